"""What is claimed was tested: stale, untested and missing entries are told, and nothing is made up in their place."""

import json
import re
from pathlib import Path

import benches
import finished
import pytest
from bad_records import legs, with_bytes, with_value
from commands import call, tree
from factories import STUDY_YAML

from studytool.layout import StudyPlace
from studytool.metrics import geomean_ppm, ratio_text

STALE = "bf16 holdout attempt 1 was timed with other entries than the table has now; time it again with --split"
NO_FROST, WRONG, NOISY = "no_frost: s_kv > 0", "wrong_result: s_kv == 512", "noise_ppm: 100000"


def went(root: Path, monkeypatch: pytest.MonkeyPatch, *more: tuple[str, str]) -> tuple[StudyPlace, int]:
    """Return a study, with parts of its text replaced, that went the whole path for bf16, and how that ended."""
    text = finished.WHOLE_YAML
    for old, new in more:
        assert old in text
        text = text.replace(old, new)
    benches.inline(monkeypatch)
    place = finished.declare(root, text)
    return place, call("run", place.folder, "--dtype", "bf16").code


def headline(place: StudyPlace) -> str:
    """Return the sentence that the report begins with."""
    return next(line for line in place.results("bf16").report.read_text().splitlines() if line.startswith("**`"))


def with_margin(place: StudyPlace, margin: str) -> None:
    """Apply the lines that another margin makes, as somebody by hand would."""
    path = place.root / "by_hand.txt"
    path.write_text(call("gen", place.results("bf16").study_json, "--margin", margin, "--emit").out)

    assert call("apply", path, "--table", place.table).code == 0


@pytest.mark.parametrize("command", [("score",), ("report",), ("time", "--split", "holdout")])
def test_stale_records_are_refused(whole: StudyPlace, command: tuple[str, ...]) -> None:
    """After other entries were applied, one line says to time the hold-out anew, exit 3, and no file changes."""
    with_margin(whole, "0.5")
    before = tree(whole.root)
    said = call(command[0], whole.folder, *command[1:], "--dtype", "bf16")

    assert said[:2] == (3, "")
    assert said.err == f"{STALE} holdout --attempt new --reason ...\n"
    assert tree(whole.root) == before


def test_the_other_dtype_is_not_stale(whole: StudyPlace) -> None:
    """Entries of one dtype that changed say nothing of the other's hold-out."""
    with_margin(whole, "0.5")

    assert call("score", whole.folder, "--dtype", "f16").code == 0
    assert call("time", whole.folder, "--dtype", "f16", "--split", "holdout").code == 0


def test_another_margin_with_the_same_entries_is_not_stale(whole: StudyPlace) -> None:
    """Lines that lead to the same entries leave the hold-out as it is."""
    with_margin(whole, "0.06")

    assert call("score", whole.folder, "--dtype", "bf16").code == 0


def test_run_leaves_lines_that_were_applied_by_hand(whole: StudyPlace) -> None:
    """Run does not put the study's own margin back: it ends with exit 3, and the table and its lines stay."""
    with_margin(whole, "0.5")
    before = tree(whole.root)
    said = call("run", whole.folder, "--dtype", "bf16")

    assert (said.code, said.out) == (3, "")
    assert said.err.endswith(f"{STALE} holdout --attempt new --reason ...\n")
    assert tree(whole.root) == before


def test_a_new_attempt_makes_the_hold_out_spent(whole: StudyPlace) -> None:
    """Timed anew the study can be scored with the lines that were applied by hand, and the report says SPENT."""
    with_margin(whole, "0.5")
    table = whole.table.read_bytes()
    timed = call(
        "time", whole.folder, "--dtype", "bf16", "--split", "holdout", "--attempt", "new", "--reason", "margin"
    )
    ran = call("run", whole.folder, "--dtype", "bf16")
    replayed = call("replay", whole.folder / "bf16")

    assert (timed.code, ran.code) == (0, 0)
    assert whole.table.read_bytes() == table
    assert "; the hold-out is SPENT, so this is not out-of-sample (line " in headline(whole)
    assert re.search(r"^FAIL .*fresh hold-out: SPENT, not out-of-sample: line \d+ ", replayed.out, re.MULTILINE)
    assert replayed.code == 1


def test_entries_that_no_hold_out_case_reaches_were_not_tested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the hold-out lies outside of every entry's box, the gate cannot say, exit 3, and the report begins so."""
    place, code = went(tmp_path, monkeypatch, ("scope: class", "scope: box"))
    score = json.loads(place.results("bf16").score.read_bytes())
    said = call("score", place.folder, "--dtype", "bf16")

    assert (code, said.code, score["verdict"], score["metrics"]["reached"]) == (3, 3, "CANNOT SAY", 0)
    assert [row["holds"] for row in score["gate"]] == [True, True, True]
    assert headline(place).startswith(
        "**`open_engine` leads in 1 of 1 classes; NO hold-out case reaches an entry, so that the entries were not"
        " tested; the gate says CANNOT SAY;"
    )


@pytest.mark.parametrize("change", [("scope: class", "scope: box"), ("noise_ppm: 2000", NOISY)])
def test_replay_does_not_say_more_than_the_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str]
) -> None:
    """What the score cannot say, because entries were not tested or the control fails, the replay cannot say."""
    place, code = went(tmp_path, monkeypatch, change)
    said = call("replay", place.folder)

    assert code == 3
    assert re.search(r"^cannot say +bf16 gate: ", said.out, re.MULTILINE)
    assert said.code == 3


def test_a_gate_with_values_is_not_said_to_have_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all conditions hold and the entries were not tested, the line on stderr says that."""
    place, _ = went(tmp_path, monkeypatch, ("scope: class", "scope: box"))

    assert "without a value" not in call("score", place.folder, "--dtype", "bf16").err


def test_without_an_entry_nothing_is_claimed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study whose classes all keep their order says so, and its gate is that of a table that changes nothing."""
    place, code = went(tmp_path, monkeypatch, ("s_kv * 500 + 64000", "s_kv * 1000 + 64000"))

    assert code == 0
    assert headline(place).startswith(
        "**`open_engine` leads in 0 of 1 classes; nothing is claimed; the gate says PASS;"
    )


def test_emitting_no_entry_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: StudyPlace) -> None:
    """Gen with --emit prints the header alone and says on stderr that there is no entry; with entries it is silent."""
    place, _ = went(tmp_path, monkeypatch, ("s_kv * 500 + 64000", "s_kv * 1000 + 64000"))
    said = call("gen", place.results("bf16").study_json, "--emit")

    assert (said.code, said.err) == (0, "no class gets an entry; --explain says why\n")
    assert said.out.count("\n") == 1
    assert call("gen", place.results("bf16").study_json, "--explain").err == ""
    assert call("gen", made.results("bf16").study_json, "--emit").err == ""


@pytest.mark.parametrize(
    ("change", "code", "known"),
    [
        (("seed: 7", f"seed: 7\n  {NO_FROST}"), "FAILED", 0),
        (("seed: 7", f"seed: 7\n  {WRONG}"), "FAILED", 5),
        (("noise_ppm: 2000", NOISY), "NOISE", 6),
    ],
)
def test_ratios_are_real_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], code: str, known: int
) -> None:
    """The geomean of a class that failed or was too noisy is that of the cases that have a ratio, n/a without any."""
    place, _ = went(tmp_path, monkeypatch, change)
    path = place.results("bf16").study_json
    cases = [case for case in json.loads(path.read_bytes())["cases"] if case["status"] == "ok"]
    ratios = [case["regimes"]["eager-warm"]["ratio_ppm"] for case in cases]
    geomean = geomean_ppm(ratios) if ratios else None
    shown = "n/a" if geomean is None else ratio_text(geomean)
    (row,) = json.loads(call("gen", path, "--json").out)
    explained = call("gen", path, "--explain").out.splitlines()[1]
    report = place.results("bf16").report.read_text()

    assert len(ratios) == known
    assert (row["geomean_ppm"], row["code"], row["rule"]) == (geomean, code, None)
    assert re.search(rf"  {re.escape(shown)} +{code}  ", explained)
    assert re.search(rf"^\| bf16 \| 64 \| {code} \| [^|]+ \| {re.escape(shown)} \|", report, re.MULTILINE)


TORCH_YAML = STUDY_YAML.replace("engine: simulated", "engine: torch_sdpa").replace("open_engine", "torch_sdpa_math")
TORCH_YAML = TORCH_YAML.split("simulated: {")[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "row: torch_sdpa_math",
            "row: torch_sdpa_maths",
            "row: found 'torch_sdpa_maths'; expected one of torch_sdpa_math",
        ),
        ("dtypes: [bf16]", "dtypes: [bf16, fp8]", "dtypes: found 'fp8'; expected one of f32, bf16, f16"),
        (
            "op: [sdpa_fwd]",
            "op: [sdpa_fwd, sdpa_what]",
            "op: found 'sdpa_what'; expected one of sdpa_fwd, sdpa_bwd, ",
        ),
        (
            "blocks: 8",
            "blocks: 8, regimes: [replay-warm]",
            "protocol.regimes: found 'replay-warm'; expected one of ",
        ),
    ],
)
def test_what_the_engine_does_not_have_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A row, dtype, op or regime that torch does not have stops `freeze` with its place, exit 2; nothing is written."""
    good = finished.declare(tmp_path / "good", TORCH_YAML, "tiny")
    place = finished.declare(tmp_path / "bad", TORCH_YAML.replace(old, new), "tiny")
    before = tree(tmp_path / "bad")
    said = call("freeze", place.folder)

    assert call("freeze", good.folder).code == 0
    assert said[:2] == (2, "")
    assert re.fullmatch(rf"studies/tiny/study\.yaml:\d+: {re.escape(message)}[^\n]*\n", said.err)
    assert tree(tmp_path / "bad") == before


def test_time_tells_how_many_lines_did_not_end_ok(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of a split counts the lines that ended otherwise, by status."""
    benches.inline(monkeypatch)
    text = finished.WHOLE_YAML.replace("seed: 7", "seed: 7\n  wrong_result: s_kv == 512\n  declined: s_kv <= 128")
    place = finished.declare(tmp_path, text)
    call("freeze", place.folder)
    said = call("time", place.folder, "--dtype", "all")

    assert said.out == (
        "bf16 train: attempt 1, 18 of 18 lines (6 declined, 3 wrong_result)\n"
        "f16 train: attempt 1, 33 of 33 lines (9 declined, 3 wrong_result)\n"
    )


def test_one_changed_record_fails_once(whole: StudyPlace) -> None:
    """A changed byte is one FAIL with file and line; what cannot be checked before it is mended cannot be said."""
    with_bytes(5, lambda line: line.replace(b'"ns":[', b'"ns":[1', 1))(whole)
    said = call("replay", whole.folder)
    lines = said.out.splitlines()
    fails = [line for line in lines if line.startswith("FAIL")]
    later = [line for line in lines if line.endswith(": not before what fails above is mended")]

    assert said.code == 1
    assert len(fails) == 1
    assert "records sealed: studies/whole/bf16/records/holdout-01-001.jsonl:5: changed after it was written" in fails[0]
    assert len(later) > 3
    assert all(re.match(r"cannot say +(bf16 |report of all dtypes)", line) for line in later)
    assert lines[-1] == f"does not hold: 1 of {len(lines) - 1} checks fail"


def test_different_failures_are_all_told(whole: StudyPlace) -> None:
    """A forged sample with a whole chain fails where it was sealed and where its numbers are, each in its own words."""
    with_value(5, lambda value: legs(value)["auto"]["ns"].__setitem__(0, 1))(whole)
    said = call("replay", whole.folder)
    figures = [line.split(": ", 1)[1] for line in said.out.splitlines() if line.startswith("FAIL")]

    assert said.code == 1
    assert len(figures) == len(set(figures)) > 1


def test_replay_of_an_unfinished_study_cannot_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the train split alone, every check is ok, cannot be said or does not apply, and the exit code is 3."""
    benches.inline(monkeypatch)
    place = finished.declare(tmp_path)
    call("freeze", place.folder)
    call("time", place.folder, "--dtype", "bf16")
    said = call("replay", place.folder)
    states = {line.split("  ")[0] for line in said.out.splitlines()[:-1]}

    assert (said.code, states) == (3, {"ok", "cannot say", "n/a"})
    assert said.out.splitlines()[-1].startswith("cannot say")


@pytest.mark.parametrize("name", ["nope/table.py", "nope/deeper/table.py"])
def test_apply_makes_no_folder(whole: StudyPlace, name: str) -> None:
    """A table in a folder that is not there is one line, exit 2, and nothing is created."""
    before = tree(whole.root)
    said = call("apply", whole.results("bf16").lines, "--table", whole.root / name)

    assert said[:2] == (2, "")
    assert said.err == f"{whole.root / name}: its folder is not there; expected the folder of a study or of a library\n"
    assert tree(whole.root) == before
    assert not (whole.root / "nope").exists()
