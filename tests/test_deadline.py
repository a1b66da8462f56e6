"""Durations and deadlines as the commands tell them: nothing is begun that cannot end, nothing is lost that was."""

import re
from pathlib import Path

import benches
import finished
import pytest
import stopping
from benches import InlineProcess
from commands import Said, call, tree

from studytool import opening
from studytool.layout import StudyPlace
from studytool.model import Split

TRAIN_LINES, HOLDOUT_LINES = 20, 20
STEEP = (("b * h_q * s_q * s_kv * d_qk", "s_kv * s_kv * s_kv"), ("4608", "8192"))
"""Costs that grow faster than the work does, so that what is larger than the train cases takes longer than told."""


def declared(root: Path, monkeypatch: pytest.MonkeyPatch, *more: tuple[str, str]) -> StudyPlace:
    """Return a frozen study whose device takes seconds of virtual time."""
    benches.inline(monkeypatch)
    text = stopping.COSTS_YAML
    for old, new in more:
        assert old in text
        text = text.replace(old, new)
    return benches.make_job(root, text=text).place


def fitted(root: Path, monkeypatch: pytest.MonkeyPatch, *more: tuple[str, str]) -> StudyPlace:
    """Return such a study whose train split was timed and whose lines were applied."""
    place = declared(root, monkeypatch, *more)
    stopping.applied(opening.job_of(opening.open_study(place), place, "bf16", Split.TRAIN))
    return place


def timed(place: StudyPlace, split: str, *more: object) -> Said:
    """Return how timing a split of the study's dtype ended."""
    return call("time", place.folder, "--dtype", "bf16", "--split", split, *more)


def predicted_s(place: StudyPlace, split: str) -> float:
    """Return the duration that `--plan` tells of a split, in seconds."""
    match = re.search(r"lines are missing, about ([0-9.]+) s;", timed(place, split, "--plan").out)
    assert match
    return float(match.group(1))


def test_plan_before_anything_was_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first line there is no duration; how many lines are missing is told, and nothing is written."""
    place = declared(tmp_path, monkeypatch)
    before = tree(tmp_path)
    unknown = (
        "lines are missing, an unknown time, since nothing like it was measured yet; no run had a prediction yet\n"
    )

    assert timed(place, "train", "--plan") == (0, f"bf16 train: {TRAIN_LINES} {unknown}", "")
    assert timed(place, "holdout", "--plan") == (0, f"bf16 holdout: {HOLDOUT_LINES} {unknown}", "")
    assert tree(tmp_path) == before
    assert InlineProcess.starts == []


def test_plan_after_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the train split the hold-out has a duration; after the hold-out, how far that was off is told."""
    place = fitted(tmp_path, monkeypatch)
    told = predicted_s(place, "holdout")
    timed(place, "holdout")
    found = timed(place, "holdout", "--plan")
    pattern = (
        r"bf16 holdout: 0 lines are missing, about 0\.0 s; the last run was predicted at ([0-9.]+) s and took ([0-9.]+)"
        r" s \(([+-]\d+) %\)\n"
    )
    match = re.fullmatch(pattern, found.out)

    assert told > 1
    assert (found.code, found.err) == (0, "")
    assert match
    assert float(match.group(1)) == told
    assert abs(float(match.group(1)) / float(match.group(2)) - 1) <= 0.15
    assert abs(int(match.group(3))) <= 15


def test_plan_of_all_dtypes_is_a_line_each(tmp_path: Path) -> None:
    """With --dtype all each dtype has its line."""
    place = finished.declare(tmp_path)
    call("freeze", place.folder)
    said = call("time", place.folder, "--dtype", "all", "--plan")

    assert [line.split(":")[0] for line in said.out.splitlines()] == ["bf16 train", "f16 train"]


def test_a_hold_out_that_cannot_end_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With less time than predicted, one line says so, exit 3; no process is started and no file is written."""
    place = fitted(tmp_path, monkeypatch)
    seconds = int(predicted_s(place, "holdout"))
    before, starts = tree(tmp_path), list(InlineProcess.starts)
    said = timed(place, "holdout", "--deadline", f"{seconds - 1}s")

    assert said[:2] == (3, "")
    assert re.fullmatch(
        rf"bf16 holdout: not begun, since it would take about \d+ s and {seconds - 1} s are left before the deadline\n",
        said.err,
    )
    assert tree(tmp_path) == before
    assert InlineProcess.starts == starts


def test_a_hold_out_that_can_end_is_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With more time than predicted the hold-out is timed whole."""
    place = fitted(tmp_path, monkeypatch)
    said = timed(place, "holdout", "--deadline", f"{int(predicted_s(place, 'holdout') * 1.2) + 1}s")

    assert said == (0, f"bf16 holdout: attempt 1, {HOLDOUT_LINES} of {HOLDOUT_LINES} lines\n", "")


def test_a_hold_out_of_unknown_duration_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no line like those of the hold-out was measured, a deadline keeps it from being begun."""
    place = fitted(
        tmp_path,
        monkeypatch,
        ("op: sdpa_fwd\n", "op: [sdpa_fwd, sdpa_bwd]\n"),
        ("[512, 1024, 2048, 4096], h_q: 4", "[512, 1024, 2048, 4096], op: sdpa_fwd, h_q: 4"),
    )
    said = timed(place, "holdout", "--deadline", "100h")

    assert said[:2] == (3, "")
    assert said.err.startswith("bf16 holdout: not begun, since it would take an unknown time and 360000 s are left")


def test_a_train_split_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A train split that runs into the deadline says how far it came, exit 3, goes on later, and ends complete."""
    place = declared(tmp_path, monkeypatch)
    counts = [_cut(place, "train", "1s") for _ in range(2)]
    job = opening.job_of(opening.open_study(place), place, "bf16", Split.TRAIN)
    early = job.results.study_json.exists()
    last = timed(place, "train")

    assert 0 < counts[0] < counts[1] < TRAIN_LINES
    assert not early
    assert last == (0, f"bf16 train: attempt 1, {TRAIN_LINES} of {TRAIN_LINES} lines\n", "")
    assert benches.cells(job) == benches.planned(job)
    assert [len(file.records) for file in job.attempts()[-1].files] == [
        counts[0],
        counts[1] - counts[0],
        TRAIN_LINES - counts[1],
    ]


def test_a_deadline_ends_at_the_first_line_beyond_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Virtual time is what lines took: all but the last one fit into the deadline."""
    place = declared(tmp_path, monkeypatch)
    timed(place, "train", "--deadline", "1s")
    job = opening.job_of(opening.open_study(place), place, "bf16", Split.TRAIN)
    took_ns = [int(record.checks["took_ns"]) for record in benches.records(job)]

    assert sum(took_ns[:-1]) < 10**9 <= sum(took_ns)


def test_dtypes_share_one_deadline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --dtype all the deadline is that of the whole call: the second dtype has what the first one left."""
    place = declared(tmp_path, monkeypatch, ("dtypes: [bf16]", "dtypes: [bf16, f16]"))
    call("time", place.folder, "--dtype", "bf16")
    alone = opening.job_of(opening.open_study(place), place, "bf16", Split.TRAIN)
    whole_s = stopping.spent_ns(alone) // 10**9
    said = call(
        "time", place.folder, "--dtype", "all", "--attempt", "new", "--reason", "again", "--deadline", f"{whole_s + 2}s"
    )

    assert said.code == 3
    assert said.out == f"bf16 train: attempt 2, {TRAIN_LINES} of {TRAIN_LINES} lines\n"
    assert re.fullmatch(r"f16 train: the deadline came after \d+ of 20 lines; the same command goes on\n", said.err)


def interrupted(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[StudyPlace, int, int]:
    """Return a study whose train split, begun anew since, and hold-out ran into a deadline, with their counts."""
    place = declared(root, monkeypatch, *STEEP)
    counts = [_cut(place, "train", "1s")]
    timed(place, "train", "--attempt", "new", "--reason", "the deadline came first")
    stopping.applied(opening.job_of(opening.open_study(place), place, "bf16", Split.TRAIN))
    counts.append(_cut(place, "holdout", f"{int(predicted_s(place, 'holdout')) + 1}s"))
    return place, counts[0], counts[1]


def _cut(place: StudyPlace, split: str, deadline: str) -> int:
    said = timed(place, split, "--deadline", deadline)
    pattern = rf"bf16 {split}: the deadline came after (\d+) of 20 lines; the same command goes on\n"
    match = re.fullmatch(pattern, said.err)
    assert said[:2] == (3, "")
    assert match
    return int(match.group(1))


def test_an_interrupted_attempt_is_told_as_unscored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold-out that ran into a deadline and was begun anew stays, with its count, in report.md and in the replay."""
    place, train, count = interrupted(tmp_path, monkeypatch)
    early = call("score", place.folder, "--dtype", "bf16")
    again = timed(place, "holdout", "--attempt", "new", "--reason", "the deadline came first")
    timed(place, "routing")
    scored = call("score", place.folder, "--dtype", "bf16")
    call("report", place.folder, "--dtype", "bf16")
    replayed = call("replay", place.folder)
    report = place.results("bf16").report.read_text()

    assert early[:2] == (3, "")
    assert f"holdout attempt 1 is incomplete: {count} of {HOLDOUT_LINES} lines" in early.err
    assert again == (0, f"bf16 holdout: attempt 2, {HOLDOUT_LINES} of {HOLDOUT_LINES} lines\n", "")
    assert scored.code == 0
    assert f"\n- Unscored: holdout attempt 1 with {count} of {HOLDOUT_LINES} lines.\n" in report
    assert f"\n- Unscored: train attempt 1 with {train} of {TRAIN_LINES} lines.\n" in report
    assert f"train {TRAIN_LINES}, unscored attempt 1: {train} of {TRAIN_LINES};" in replayed.out
    assert f"holdout {HOLDOUT_LINES}, unscored attempt 1: {count} of {HOLDOUT_LINES};" in replayed.out
    assert replayed.code == 0


def test_an_interrupted_hold_out_can_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a deadline the same attempt ends complete, and nothing is unscored."""
    place, _, _ = interrupted(tmp_path, monkeypatch)
    said = timed(place, "holdout")

    assert said == (0, f"bf16 holdout: attempt 1, {HOLDOUT_LINES} of {HOLDOUT_LINES} lines\n", "")


def test_plan_does_not_judge_a_prediction_by_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a run that was cut short, the prediction for the whole is not said to be too long."""
    place = declared(tmp_path, monkeypatch)
    timed(place, "train", "--deadline", "1s")
    timed(place, "train", "--deadline", "1s")
    match = re.search(r"\(\+(\d+) %\)", timed(place, "train", "--plan").out)

    assert match is None or int(match.group(1)) <= 20


@pytest.mark.parametrize("deadline", ["soon", "45", "m", "1.5h", "-5m", "45 m", "45m ", "1h30m", "", "9999999s", "45M"])
@pytest.mark.parametrize("command", [("time",), ("time", "--plan"), ("time", "--split", "holdout"), ("run",)])
def test_a_bad_deadline_is_one_line(tmp_path: Path, command: tuple[str, ...], deadline: str) -> None:
    """A deadline that is no count of s, m or h is one line, exit 2, and nothing is written."""
    place = finished.declare(tmp_path, stopping.COSTS_YAML, "tiny")
    call("freeze", place.folder)
    before = tree(tmp_path)
    said = call(command[0], place.folder, *command[1:], "--dtype", "bf16", "--deadline", deadline)

    assert said == (2, "", f"--deadline: found {deadline}; expected a number of s, m or h, such as 45m\n")
    assert tree(tmp_path) == before


@pytest.mark.parametrize("deadline", ["100000s", "2000m", "40h"])
def test_a_deadline_has_a_unit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deadline: str) -> None:
    """Seconds, minutes and hours are all understood."""
    place = declared(tmp_path, monkeypatch)

    assert timed(place, "train", "--deadline", deadline).code == 0


def test_run_stops_at_its_deadline_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run with a deadline ends with what came first: in the train split, before the hold-out, or done."""
    benches.inline(monkeypatch)
    place = finished.declare(tmp_path, stopping.COSTS_YAML, "tiny")
    train = call("run", place.folder, "--dtype", "bf16", "--deadline", "1s")
    middle = call("run", place.folder, "--dtype", "bf16", "--deadline", "20s")
    begun = sorted(path.name for path in place.results("bf16").records.iterdir())
    done = call("run", place.folder, "--dtype", "bf16", "--deadline", "1h")

    assert train[:2] == middle[:2] == (3, "")
    assert re.search(r"\nbf16 train: the deadline came after \d+ of 20 lines; the same command goes on\n\Z", train.err)
    assert re.search(r"\nbf16 lines: 1 added, .*\nbf16 holdout: not begun, since it would take about ", middle.err)
    assert begun == ["train-01-001.jsonl", "train-01-002.jsonl"]
    assert done.code == 0
    assert call("replay", place.folder).code == 0
