"""The commands as people type them: what goes to stdout and to stderr, and the exit code."""

import json
import re
import subprocess
import sys
from pathlib import Path

import benches
import click
import pytest
from commands import call, tiny, tree

import studytool
from studytool.cli import main, terminal
from studytool.digest import sha256
from studytool.layout import StudyPlace
from studytool.progress import Progress

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("command", main.commands.values(), ids=lambda command: str(command.name))
def test_each_command_has_help(command: click.Command) -> None:
    """--help and -h print what a command does and every option with its help, on stdout, and exit 0."""
    said = call(str(command.name), "--help")
    first = (command.help or "").splitlines()[0].rstrip(".")

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("Usage: main " + str(command.name))
    assert first in re.sub(r"\s+", " ", said.out)
    assert all(p.opts[0] in said.out and p.help for p in command.params if isinstance(p, click.Option))
    assert call(str(command.name), "-h") == said


def test_the_version_is_the_package_s() -> None:
    """--version prints the version of the package, without looking for an installation."""
    said = call("--version")

    assert (said.code, said.err) == (0, "")
    assert said.out.rstrip().endswith(f"version {studytool.__version__}")


BAD_USAGE = {
    "no such command": (["freze"], "No such command 'freze'"),
    "no dtype": (["time"], "Missing option '--dtype'"),
    "no dtype to score": (["score", "x"], "Missing option '--dtype'"),
    "no such split": (["time", "--dtype", "bf16", "--split", "test"], "'test' is not one of"),
    "no such attempt": (["time", "--dtype", "bf16", "--attempt", "old"], "'old' is not"),
    "new without a reason": (["time", "--dtype", "bf16", "--attempt", "new"], "--attempt new and --reason go together"),
    "reason without new": (["time", "--dtype", "bf16", "--reason", "x"], "--attempt new and --reason go together"),
    "reason of two lines": (
        ["time", "--dtype", "bf16", "--attempt", "new", "--reason", "a\nb"],
        "--reason: expected printable text on one line",
    ),
    "reason that is no text": (
        ["time", "--dtype", "bf16", "--attempt", "new", "--reason", "a\udcff"],
        "--reason: expected printable text on one line",
    ),
    "nothing to generate from": (["gen"], "Missing argument 'STUDY_JSON'"),
    "no such scope": (["gen", "x", "--scope", "all"], "'all' is not one of"),
    "no table": (["apply", "lines.txt"], "Missing option '--table'"),
    "two paths": (["replay", "a", "b"], "unexpected extra argument (b)"),
    "no such option": (["freeze", "--force"], "No such option"),
}


@pytest.mark.parametrize(("args", "message"), BAD_USAGE.values(), ids=BAD_USAGE.keys())
def test_bad_usage_exits_2(args: list[str], message: str) -> None:
    """A command that is called wrongly says so on stderr, prints nothing, and exits 2."""
    said = call(*args)

    assert (said.code, said.out) == (2, "")
    assert message in said.err


def test_freeze_prints_the_line_to_post_once(tmp_path: Path) -> None:
    """Freeze prints the posted line; a second freeze is refused with one line, and changes nothing."""
    place = tiny(tmp_path)
    first = call("freeze", place.folder)
    before = tree(tmp_path)
    digest = sha256(place.manifest.read_bytes())
    again = call("freeze", place.folder)

    assert first == (0, f"frozen tiny sha256:{digest} 2 holdout 1 routing 6 train\n", "")
    assert again == (2, "", f"{place.frozen}: is there already; frozen cases are never rewritten\n")
    assert tree(tmp_path) == before


def test_freeze_check_verifies(tmp_path: Path) -> None:
    """--check prints the same line while all is as frozen, names the line that changed, and writes nothing."""
    place = tiny(tmp_path)
    missing = call("freeze", place.folder, "--check")
    posted = call("freeze", place.folder)
    same = call("freeze", place.folder, "--check")
    path = place.frozen / "bf16.train.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"s_kv":256', b'"s_kv":257'))
    before = tree(tmp_path)
    changed = call("freeze", place.folder, "--check")

    assert missing[:2] == (2, "")
    assert same == posted
    assert changed[:2] == (1, "")
    assert re.fullmatch(r"frozen_cases/tiny/bf16\.train\.jsonl:\d: differs from what study\.yaml makes\n", changed.err)
    assert tree(tmp_path) == before


def test_freeze_excludes(tmp_path: Path, made: StudyPlace) -> None:
    """--exclude writes down the study that the hold-out was checked against."""
    place = tiny(tmp_path)
    said = call("freeze", place.folder, "--exclude", made.manifest)

    assert said.code == 0
    assert [found["name"] for found in json.loads(place.manifest.read_bytes())["disjoint_from"]] == ["whole"]


def test_time_measures_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time says how many lines there are; the second call measures nothing and says the same."""
    place = tiny(tmp_path)
    benches.inline(monkeypatch)
    call("freeze", place.folder)
    first = call("time", place.folder, "--dtype", "bf16")
    before = tree(tmp_path)
    benches.InlineProcess.starts.clear()
    again = call("time", place.folder, "--dtype", "all")

    assert first == again == (0, "bf16 train: attempt 1, 18 of 18 lines\n", "")
    assert (tree(tmp_path), benches.InlineProcess.starts) == (before, [])
    assert {"studies/tiny/bf16/study.json", "studies/tiny/bf16/records/train-01-001.jsonl"} <= before.keys()


def test_a_new_attempt_is_kept_beside_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--attempt new with a reason measures all again; the old records stay, and the reason stands in the new ones."""
    place = tiny(tmp_path)
    benches.inline(monkeypatch)
    call("freeze", place.folder)
    call("time", place.folder, "--dtype", "bf16")
    before = tree(place.results("bf16").records)
    said = call("time", place.folder, "--dtype", "bf16", "--attempt", "new", "--reason", "grüner Lüfter")
    after = tree(place.results("bf16").records)

    assert said == (0, "bf16 train: attempt 2, 18 of 18 lines\n", "")
    assert before.items() <= after.items()
    assert '"reason":"grüner Lüfter"' in (place.results("bf16").records / "train-02-001.jsonl").read_text("utf-8")


def test_a_hold_out_waits_for_its_table(tmp_path: Path) -> None:
    """Timing the hold-out before lines were applied cannot be done yet: one line, exit 3."""
    place = tiny(tmp_path)
    call("freeze", place.folder)
    said = call("time", place.folder, "--dtype", "bf16", "--split", "holdout")

    assert said == (3, "", f"{place.table}: not there; expected gen.py and `studytool apply` to have been run\n")


def test_gen_emits_the_lines_that_were_applied(made: StudyPlace) -> None:
    """Gen prints the lines with the study's own margin and scope, and the same lines when they are given."""
    results = made.results("bf16")
    plain = call("gen", results.study_json)

    assert plain == (0, results.lines.read_text(), "")
    assert call("gen", results.study_json, "--emit", "--margin", "0.05", "--scope", "class") == plain
    assert call("gen", results.study_json, "--check", results.lines) == (0, f"{results.lines}: as generated\n", "")


def test_gen_py_is_gen(made: StudyPlace) -> None:
    """`python gen.py` prints what `studytool gen` prints."""
    path = made.results("bf16").study_json
    found = subprocess.run([sys.executable, str(ROOT / "gen.py"), str(path)], capture_output=True, check=False)

    assert (found.returncode, found.stdout.decode(), found.stderr) == (*call("gen", path)[:2], b"")


def test_gen_obeys_margin_and_scope(made: StudyPlace) -> None:
    """A larger margin takes the entry away, and the scope `box` keeps what was measured in the line."""
    path = made.results("bf16").study_json
    strict, box = call("gen", path, "--margin", "0.9"), call("gen", path, "--scope", "box")

    assert strict.out.count("\n") == 1
    assert '"margin_ppm":900000' in strict.out
    assert '"board": "simulated device"' in box.out


def test_gen_explains(made: StudyPlace) -> None:
    """--explain prints a line per class with its counts and reason, and --json the same as JSON."""
    said = call("gen", made.results("f16").study_json, "--explain")
    rows = json.loads(call("gen", made.results("f16").study_json, "--json").out)
    head, line = said.out.splitlines()

    assert " ".join(head.split()) == "class cases win neutral lose unclear geomean rule or code stable detail"
    assert line.startswith("f16 64  11     4    1        6     0 ")
    assert (rows[0]["code"], rows[0]["rule"], rows[0]["cases"]) == ("CONFLICT", None, 11)
    assert re.search(rf"  CONFLICT +{re.escape(rows[0]['detail'])}$", line)


def test_gen_check_names_the_first_line_that_differs(whole: StudyPlace) -> None:
    """--check exits 1 where the file is not what the summary gives, and names file and line."""
    results = whole.results("bf16")
    results.lines.write_text(results.lines.read_text().replace('"from", "s_kv", 256', '"from", "s_kv", 128'))
    said = call("gen", results.study_json, "--check", results.lines)

    assert (said.code, said.err) == (1, f"{results.lines}:2: not what {results.study_json} gives\n")


@pytest.mark.parametrize("margin", ["-0.1", "nan", "5 %", "1e9", "", "0.05x", "\u0660.\u0665"])
def test_a_bad_margin_is_one_line(made: StudyPlace, margin: str) -> None:
    """A margin that is no decimal number is refused with what was found."""
    said = call("gen", made.results("bf16").study_json, "--margin", margin)

    assert said[:2] == (2, "")
    assert re.fullmatch(r"--margin: found .*; expected .+\n", said.err)


def test_apply_says_what_changed(whole: StudyPlace) -> None:
    """Apply counts added, replaced and kept lines; the same lines again change nothing."""
    results = whole.results("bf16")
    table = whole.root / "other.py"
    first = call("apply", results.lines, "--table", table)
    before = tree(whole.root)
    again = call("apply", results.lines, "--table", table)
    own = call("apply", results.lines, "--table", whole.table)

    assert first == (0, f"{table}: 1 added, 0 replaced or removed, 0 kept\n", "")
    assert again == (0, f"{table}: 0 added, 0 replaced or removed, 1 kept\n", "")
    assert own == (0, f"{whole.table}: 0 added, 0 replaced or removed, 1 kept\n", "")
    assert tree(whole.root) == before


def test_what_a_step_says() -> None:
    """Ratio, noise and time before the deadline stand before the case, as far as they are known."""
    label = "sdpa_fwd bf16 b1 h4 d64 S128"

    assert terminal.seen(Progress(1, 9, label)) == label
    assert terminal.seen(Progress(1, 9, label, 0.7123, 0.0042, 12 * 60 * 10**9)) == (
        f"frost/backend 0.712, A/A 0.4 %, 12 min left, {label}"
    )
    assert terminal.seen(Progress(1, 9, label, None, None, -5)) == f"0 min left, {label}"
