"""Replay: what a reviewer is told of a study that is whole, and of one that was changed anywhere."""

from collections.abc import Iterator
from pathlib import Path

import finished
import pytest
from factories import make_leg, make_record

from studytool import conduct, editing, opening, pipeline, replay, results, timing
from studytool.layout import StudyPlace
from studytool.model import LEGS, Split


def checks_of(place: StudyPlace, *dtypes: str) -> list[replay.Check]:
    """Return the check list of a study, or of these dtypes alone."""
    return replay.replay(opening.open_study(place), place, dtypes)


def failures(place: StudyPlace, *dtypes: str) -> list[str]:
    """Return the figures of the checks that fail."""
    return [check.figure for check in checks_of(place, *dtypes) if check.state == replay.FAIL]


def test_an_untouched_study_holds(made: StudyPlace) -> None:
    """All checks of a study that went the whole path, and that have something to look at, are ok for both dtypes."""
    found = checks_of(made)

    beside = [(check.dtype, check.name) for check in found if check.state != replay.OK]

    assert {check.state for check in found} == {replay.OK, replay.NOT_APPLICABLE}
    assert beside == [("", "posted beforehand"), ("bf16", "unseen hold-out"), ("f16", "unseen hold-out")]
    assert {check.dtype for check in found} == {"", "bf16", "f16"}
    assert replay.conclusion(found) == (f"holds: {len(found) - 3} checks are ok, 3 do not apply", 0)


def changed_lines(place: StudyPlace) -> Iterator[tuple[Path, int]]:
    """Return three lines of every file that a replay of bf16 must guard: the first, the last, one between."""
    guarded = [*place.frozen.iterdir(), place.table]
    for name in ("study.json", "lines.txt", "ledger.jsonl", "score.json", "report.md", "records/*.jsonl"):
        guarded += place.folder.glob(f"bf16/{name}")
    for path in sorted(guarded):
        lines = path.read_bytes().splitlines()
        numbers = [number for number, line in enumerate(lines, 1) if line]
        for number in sorted({numbers[0], numbers[len(numbers) // 2], numbers[-1]}):
            yield path, number


def test_one_changed_byte_of_any_file_is_found_and_named(made: StudyPlace, whole: StudyPlace) -> None:
    """One flipped bit in the middle of a line of any file fails a check that names the file and the line."""
    missed = []
    count = 0
    for original, number in changed_lines(made):
        path = whole.root / original.relative_to(made.root)
        data = original.read_bytes()
        lines = data.splitlines(keepends=True)
        line = bytearray(lines[number - 1])
        line[(len(line) - 1) // 2] ^= 1
        path.write_bytes(b"".join([*lines[: number - 1], bytes(line), *lines[number:]]))
        shown = path.relative_to(whole.root).as_posix()
        found = failures(whole, "f16" if "/f16/" in shown else "bf16")
        if not any(f"{shown}:{number}:" in figure or f"or line {number}:" in figure for figure in found):
            missed.append((shown, number, found))
        path.write_bytes(data)
        count += 1

    assert missed == []
    assert count > 40


def test_a_changed_study_file_is_found(whole: StudyPlace) -> None:
    """A changed declaration is named, since the frozen cases were made from another one."""
    whole.study_yaml.write_text(whole.study_yaml.read_text().replace("margin: 0.05", "margin: 0.06"))

    assert any("studies/whole/study.yaml: changed since it was frozen" in figure for figure in failures(whole))


@pytest.mark.parametrize("name", ["train-01-001.jsonl", "holdout-01-001.jsonl"])
def test_a_missing_records_file_is_found(whole: StudyPlace, name: str) -> None:
    """A records file that is in the ledger and not there is named."""
    (whole.results("bf16").records / name).unlink()

    assert any(f"studies/whole/bf16/records/{name}: in the ledger and not there" in f for f in failures(whole))


def test_a_dropped_last_record_is_found(whole: StudyPlace) -> None:
    """Taking the last line off a records file leaves its chain whole; the ledger's hash tells."""
    path = whole.results("bf16").records / "holdout-01-001.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))

    assert any("holdout-01-001.jsonl" in figure for figure in failures(whole))


def test_a_file_that_the_ledger_does_not_know_is_found(whole: StudyPlace) -> None:
    """A records file that nobody sealed fails the replay."""
    records = whole.results("bf16").records
    (records / "train-01-009.jsonl").write_bytes((records / "train-01-001.jsonl").read_bytes())

    assert any("train-01-009.jsonl: not in the ledger" in figure for figure in failures(whole))


def test_entries_changed_after_a_look_spend_the_hold_out(whole: StudyPlace) -> None:
    """Applying other lines after the score makes the hold-out SPENT, which the replay says."""
    job = opening.job_of(opening.open_study(whole), whole, "bf16", Split.TRAIN)
    path = whole.root / "lines.txt"
    train = results.study_json(job.results.study_json.read_bytes(), "study.json")
    path.write_text(results.lines_of(train, 400_000, "class").text)
    editing.apply_lines(path, whole.table, finished.hooks().now)

    assert any("SPENT, not out-of-sample" in figure for figure in failures(whole))


def test_a_study_that_is_not_timed_cannot_be_said(tmp_path: Path) -> None:
    """A frozen study without results is neither right nor wrong."""
    place = finished.declare(tmp_path)
    study = opening.open_study(place)
    pipeline.freeze_study(study, place, [])

    assert replay.conclusion(checks_of(place))[1] == 3


def test_an_incomplete_hold_out_cannot_be_said(tmp_path: Path) -> None:
    """With the train split alone, nothing fails and the answer is still open."""
    place = finished.declare(tmp_path)
    study = opening.open_study(place)
    pipeline.freeze_study(study, place, [])
    pipeline.time(opening.job_of(study, place, "bf16", Split.TRAIN), finished.hooks())
    checks = checks_of(place)

    assert not [check for check in checks if check.state == replay.FAIL]
    assert replay.conclusion(checks)[1] == 3


def test_a_hold_out_timed_before_the_lines_were_applied_is_found(whole: StudyPlace) -> None:
    """The ledger's order tells when a hold-out was timed with a table that came before the fit."""
    path = whole.results("f16").ledger
    events = path.read_bytes()
    study = opening.open_study(whole)
    job = opening.job_of(study, whole, "f16", Split.HOLDOUT)
    path.unlink()
    timing.seal(job, finished.hooks().now)
    editing.apply_lines(job.results.lines, whole.table, finished.hooks().now)
    found = failures(whole)

    assert path.read_bytes() != events
    assert any("timed before the lines were applied" in figure for figure in found)


@pytest.mark.parametrize(
    ("answer", "plans", "problem"),
    [
        (True, "5552", None),
        (True, "1522", "auto ran 2; expected the frost plan 5"),
        (None, "1522", None),
        (None, "1525", "auto ran 2; expected the default plan 5"),
        (False, "1515", None),
        (False, "1525", None),  # a plan of neither side, which comes before the row
        (False, "1555", "auto ran the frost plan 5, which trails"),
        (False, "-555", None),  # a graph that the backend has no plan for
    ],
)
def test_auto_ran_what_the_table_says(answer: bool | None, plans: str, problem: str | None) -> None:
    """An entry that leads lifts frost's plan, one that trails puts it last, and without one auto is the default."""
    legs = {leg: make_leg(plan=int(plan)) for leg, plan in zip(LEGS, plans, strict=True) if plan != "-"}

    assert conduct._auto_problem(make_record(lookup=answer, legs=legs)) == problem


def test_lines_of_another_dtype_that_cannot_be_read_are_named(whole: StudyPlace) -> None:
    """A table that is not the applied one is held against the lines of all dtypes, each named by its file."""
    whole.table.write_bytes(whole.table.read_bytes() + b"# more\n")
    other = whole.results("f16").lines
    other.write_bytes(other.read_bytes() + b"lead(\n")

    (figure,) = (c.figure for c in checks_of(whole, "bf16") if c.name == "table")
    assert figure.startswith("studies/whole/f16/lines.txt:3: not Python: ")


@pytest.mark.parametrize("kind", ["a folder", "a link to nothing"])
def test_a_report_over_all_dtypes_that_is_no_file_is_no_absent_one(whole: StudyPlace, kind: str) -> None:
    """Where a report was never written there is nothing to check; what stands in its place is not passed over."""
    whole.report.unlink(missing_ok=True)
    assert failures(whole) == []
    if kind == "a folder":
        whole.report.mkdir()
    else:
        whole.report.symlink_to("nowhere")

    assert [figure.startswith("studies/whole/report.md: ") or figure for figure in failures(whole)] == [True]
