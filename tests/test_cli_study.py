"""The commands on a study that was timed: score, report, run, replay, demo, and how the study is found."""

import json
import re
from pathlib import Path

import benches
import finished
import pytest
import scripted
from commands import call, scores, tiny, tree
from scripted import HOLDOUT, Timed

from studytool import demo
from studytool.layout import StudyPlace
from studytool.model import Split, Status


def test_score_prints_the_result(whole: StudyPlace) -> None:
    """Score prints the table of results of the dtypes asked for; scoring again changes no file."""
    before = tree(whole.root)

    assert call("score", whole.folder, "--dtype", "f16") == (0, scores(whole, "f16"), "")
    assert call("score", whole.folder, "--dtype", "all") == (0, scores(whole, "bf16", "f16"), "")
    assert tree(whole.root) == before


def test_score_exits_1_when_the_gate_fails(tmp_path: Path) -> None:
    """A gate that does not hold is said on stderr after the result, and exits 1."""
    scripted.scored(tmp_path)
    place = StudyPlace(tmp_path, "scripted")

    assert call("score", place.folder, "--dtype", "bf16") == (1, scores(place, "bf16"), "the gate fails\n")
    assert call("run", place.folder, "--dtype", "bf16")[:2] == (1, scores(place, "bf16"))


def test_score_exits_3_when_the_gate_cannot_be_said(tmp_path: Path) -> None:
    """Where no case was timed, the gate's conditions have no value: exit 3."""
    scripted.scored(tmp_path, {s_kv: Timed(ended={1: Status.CRASHED}) for s_kv in HOLDOUT})
    said = call("score", tmp_path / "studies" / "scripted", "--dtype", "bf16")

    assert (said.code, said.err) == (
        3,
        ("the gate cannot say: no hold-out case reaches an entry; 4 hold-out cases failed; a condition has no value\n"),
    )


def test_score_exits_3_while_the_hold_out_is_incomplete(tmp_path: Path) -> None:
    """An incomplete hold-out is one line with the count, exit 3, and no file is written or changed."""
    place = scripted.prepare(tmp_path)
    nothing = call("score", place.folder, "--dtype", "bf16")
    scripted.write(place, Split.HOLDOUT, scripted.by_length(HOLDOUT), stop_after=7)
    before = tree(tmp_path)
    said = call("score", place.folder, "--dtype", "bf16")
    count = "holdout attempt 1 is incomplete: 7 of 12 lines; run `studytool time --split holdout --dtype bf16` to go on"

    assert nothing[:2] == (3, "")
    assert nothing.err.startswith("holdout: nothing is measured yet; run `studytool time --split holdout")
    assert said == (3, "", f"{count}\n")
    assert tree(tmp_path) == before


def test_report_prints_where_it_is(whole: StudyPlace) -> None:
    """Report writes report.md anew, the same, and prints its path; before a score it exits 3."""
    results = whole.results("bf16")
    before = results.report.read_bytes()
    results.report.unlink()
    said = call("report", whole.folder, "--dtype", "bf16")
    results.score.unlink()
    early = call("report", whole.folder, "--dtype", "bf16")

    assert said == (0, f"{results.report}\n{results.page}\n", "")
    assert results.report.read_bytes() == before
    assert early == (3, "", f"{results.score}: not there; run `studytool score`\n")


def test_run_does_what_is_not_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run takes a declared study to its report, telling each step on stderr; again, it measures and writes nothing."""
    place = tiny(tmp_path)
    benches.inline(monkeypatch)
    first = call("run", place.folder, "--dtype", "bf16")
    before = tree(tmp_path)
    benches.InlineProcess.starts.clear()
    again = call("run", place.folder, "--dtype", "all")

    assert first[:2] == again[:2] == (0, scores(place, "bf16"))
    assert [line.partition(" sha256")[0] for line in first.err.splitlines()] == [
        "frozen tiny",
        "bf16 train: attempt 1, 18 of 18 lines",
        "bf16 lines: 0 added, 0 replaced or removed",
        "bf16 holdout: attempt 1, 6 of 6 lines",
        "bf16 routing: attempt 1, 1 of 1 lines",
        str(place.results("bf16").page),
    ]
    assert (tree(tmp_path), benches.InlineProcess.starts) == (before, [])
    assert call("replay", place.folder).code == 0


def test_replay_holds(made: StudyPlace) -> None:
    """Replay prints one line a check and the sentence, and exits 0; the folder of a dtype checks that dtype."""
    said = call("replay", made.folder)
    lines = said.out.splitlines()
    one = call("replay", made.results("f16").folder)

    assert (said.code, said.err) == (0, "")
    assert lines[-1] == f"holds: {len(lines) - 4} checks are ok, 3 do not apply"
    assert lines[0] == "ok               frozen files: 7 files, 8 holdout, 2 routing, 17 train"
    assert all(line.startswith(("ok ", "n/a ")) for line in lines[:-1])
    assert one.code == 0
    assert [line for line in lines[:-2] if " bf16 " not in line[:17]] == one.out.splitlines()[:-1]
    assert lines[-2] == "ok               report of all dtypes: written again, byte for byte"


def test_replay_takes_the_study_file_too(made: StudyPlace) -> None:
    """The path of study.yaml means its study."""
    assert call("replay", made.study_yaml) == call("replay", made.folder)


@pytest.mark.parametrize("name", ["bf8", "table.py", "nothing"])
def test_replay_refuses_what_is_no_dtype(made: StudyPlace, name: str) -> None:
    """A path within a study that is no dtype's folder is one line."""
    path = made.folder / name

    assert call("replay", path) == (
        2,
        "",
        f"{path}: found {name}; expected a study's folder, or that of bf16, f16\n",
    )


def test_replay_exits_1_where_something_changed(whole: StudyPlace) -> None:
    """A changed number in a score fails its check, which names file and line, and that of the ledger that noted it."""
    path = whole.results("bf16").score
    path.write_bytes(path.read_bytes().replace(b'"cases_timed":4', b'"cases_timed":5'))
    said = call("replay", whole.folder)
    failed = [line for line in said.out.splitlines() if line.startswith("FAIL")]

    assert (said.code, said.err) == (1, "")
    assert len(failed) == 2
    assert re.fullmatch(
        r"FAIL        bf16 ledger: .+: not the score that is in studies/whole/bf16/score\.json", failed[0]
    )
    assert re.fullmatch(r"FAIL        bf16 score\.json: studies/whole/bf16/score\.json:\d+: differs from .+", failed[1])
    assert re.fullmatch(r"does not hold: 2 of \d+ checks fail", said.out.splitlines()[-1])


def test_replay_exits_3_where_something_is_missing(whole: StudyPlace, tmp_path: Path) -> None:
    """Without a report there is no answer yet; of a study that was never timed there is none either."""
    whole.results("bf16").report.unlink()
    said = call("replay", whole.results("bf16").folder)
    place = tiny(tmp_path / "tiny")
    call("freeze", place.folder)

    assert said.code == 3
    told = "studies/whole/bf16/report.md: not there yet; run `studytool report`"
    assert f"cannot say  bf16 report.md: {told}" in said.out
    assert call("replay", place.folder).code == 3


@pytest.mark.parametrize("below", ["", "bf16", "bf16/records"])
def test_the_study_is_found_from_within(made: StudyPlace, monkeypatch: pytest.MonkeyPatch, below: str) -> None:
    """Without an argument, the study is the one around the current directory."""
    monkeypatch.chdir(made.folder / below)

    assert call("freeze", "--check") == call("freeze", "--check", made.folder)
    assert call("replay").code == 0


def test_no_study_around_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of a study, a command without an argument says what it expects."""
    monkeypatch.chdir(tmp_path)

    assert call("score", "--dtype", "all") == (
        2,
        "",
        "no study here; expected a STUDY argument or a folder below studies/NAME\n",
    )


@pytest.mark.parametrize("command", ["time", "score", "report", "run"])
def test_an_unknown_dtype_is_one_line(made: StudyPlace, command: str) -> None:
    """A dtype that the study does not have is named with those that it has."""
    said = call(command, made.folder, "--dtype", "fp8")

    assert said == (2, "", "--dtype: found fp8; expected bf16, f16 or all\n")


def test_lines_of_another_study_are_refused(whole: StudyPlace, tmp_path: Path) -> None:
    """A study's table takes its own lines alone: others would be told to the wrong ledgers."""
    text = whole.results("bf16").lines.read_text()
    before = tree(whole.root)
    for old, new, found in (('"whole"', '"other"', "other, bf16"), ('"bf16",', '"../../up",', "whole, ../../up")):
        path = tmp_path / "lines.txt"
        path.write_text(text.replace(f'"study":{old}', f'"study":{new}').replace(f'"dtype":{old}', f'"dtype":{new}'))
        said = call("apply", path, "--table", whole.table)

        assert said == (2, "", f"{path}:1: found lines of study {found}; expected study whole, bf16 or f16\n")
    assert tree(whole.root) == before


def test_apply_tells_the_ledger_however_the_table_is_named(
    whole: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path and one with `..` are the study's own table all the same: its ledgers are told."""
    results = whole.results("bf16")
    monkeypatch.chdir(whole.folder)
    for table in ("table.py", "../whole/table.py", "bf16/../table.py"):
        before = results.ledger.read_bytes()
        margin = "0.05" if results.lines.read_text().count("\n") == 1 else "0.9"
        (tmp_path / "l.txt").write_text(call("gen", results.study_json, "--margin", margin).out)
        said = call("apply", tmp_path / "l.txt", "--table", table)

        assert said.code == 0
        assert results.ledger.read_bytes().count(b'"event":"apply"') == before.count(b'"event":"apply"') + 1


@pytest.mark.parametrize("kind", ["another study", "a file"])
def test_demo_leaves_another_study_alone(tmp_path: Path, kind: str) -> None:
    """A demo into a folder with another study there, or into a file, is one line, exit 2, and changes nothing."""
    out = tmp_path / "demo"
    path = out / "studies" / "cpu_smoke" / "study.yaml" if kind == "another study" else out
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("schema: 1\n")
    before = tree(tmp_path)
    said = call("demo", "--quick", "--out", out)

    assert said[:2] == (2, "")
    assert said.err == (
        f"{path}: another study is there; expected an empty folder as --out\n"
        if kind == "another study"
        else f"{out}/studies/cpu_smoke/study.yaml: cannot be written: Not a directory\n"
    )
    assert tree(tmp_path) == before


def test_demo_goes_the_whole_path_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo ends with a replay that has no failed record; again, it measures nothing and says the same."""
    benches.inline(monkeypatch)
    source = tmp_path / "study.yaml"
    source.write_text(finished.WHOLE_YAML.replace("name: whole", "name: sim_demo"), encoding="utf-8")
    monkeypatch.setattr(demo, "bundled_study", lambda _name: source)
    out = tmp_path / "demo"
    first = call("demo", "--engine", "simulated", "--out", out)
    before = tree(out)
    again = call("demo", "--engine", "simulated", "--out", out)
    statuses = json.loads((out / "studies/sim_demo/bf16/score.json").read_bytes())["statuses"]

    assert (first.code, again.code) == (0, 0)
    assert again.out == first.out
    assert "Lines in the table:\n" in first.out
    assert re.search(
        r"\n\nReplay: (holds|does not hold): .+\.\nCheck it again: .+ replay .+/studies/sim_demo\n", first.out
    )
    assert statuses == {"ok": 4}
    assert tree(out) == before
