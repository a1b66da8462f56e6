"""Shards: parts of a split that are measured by themselves, and merged they are what one run gives."""

import contextlib
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import benches
import finished
import forger
import pytest
from bad_records import chained, values_of
from commands import Said, call
from hypothesis import given
from hypothesis import strategies as st

from studytool import attempts, bundle, editing, files, jsonl, opening, pipeline, replay, reporting, schedule, timing
from studytool.attempts import Job
from studytool.digest import sha256
from studytool.engines.simulated import WHICH_BOARD
from studytool.errors import RecordError
from studytool.lanes import Shard
from studytool.layout import StudyPlace
from studytool.model import Split

OF = 16
GRID = "{s_kv: [64, 128, 256, 512, 1024, 2048], h_q: 4, d_qk: 64}"
SHARED_YAML = (
    finished.WHOLE_YAML.replace("[bf16, f16]", "[bf16]")
    .replace(GRID, "{s_kv: [64, 128, 160, 224, 704, 2048], h_q: [6, 8, 12, 16], d_qk: 64}")
    .replace(
        "      - {dtype: f16, s_kv: [96, 192, 384, 768, 1536], h_q: 8, d_qk: 64, mask: tl, window: s_kv // 2}\n", ""
    )
)
"""24 train cases, of which each of sixteen shards has one at least."""

LINES = 72
"""The planned lines of the train split."""

ANCHORED_YAML = SHARED_YAML.replace("blocks: 8}", "blocks: 8, anchors: 2}")
DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)


def frozen(root: Path, text: str = SHARED_YAML) -> StudyPlace:
    """Return the place of a study that is frozen below root."""
    place = finished.declare(root, text)
    pipeline.freeze_study(opening.open_study(place), place, [])
    return place


def shard(place: StudyPlace, text: str, *more: object, board: str = "", split: str = "train") -> Said:
    """Return how a shard ended that was measured on a board of its own name, or of this one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WHICH_BOARD, board or f"board {text}")
        return call("time", place.folder, "--dtype", "bf16", "--split", split, "--shard", text, *more)


def shards(places: Sequence[StudyPlace], split: str = "train") -> None:
    """Measure as many shards as there are places, each in its own and on a board of its own."""
    for number, place in enumerate(places, 1):
        said = shard(place, f"{number}/{len(places)}", split=split)
        assert (said.code, said.err) == (0, ""), said


def copies(place: StudyPlace, count: int) -> list[StudyPlace]:
    """Return so many copies of a study, beside it."""
    return [finished.copy(place, place.root.parent / f"copy {number}") for number in range(1, count + 1)]


def merged(place: StudyPlace, folders: Sequence[StudyPlace] = (), split: str = "train") -> Said:
    """Return how merging the shards of these folders into a study ended."""
    own = [folder.folder for folder in folders]
    return call("merge-records", *own, "--into", place.folder, "--dtype", "bf16", "--split", split)


def tree(root: Path) -> dict[str, str]:
    """Return the digest of every file below root by name; locks are no files of a study."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
    return {path.relative_to(root).as_posix(): sha256(path.read_bytes()) for path in found}


def job_of(place: StudyPlace, split: Split = Split.TRAIN) -> Job:
    """Return the job of a study's bf16."""
    return forger.job_of(place, split)


def refused(place: StudyPlace, folders: Sequence[StudyPlace] = (), split: str = "train", code: int = 2) -> str:
    """Return the one line with which merging is refused; nothing is written, nor told."""
    roots = [place, *folders]
    before = [tree(one.root) for one in roots]
    said = merged(place, folders, split)

    assert (said.code, said.out, said.err.count("\n"), said.err[-1:]) == (code, "", 1, "\n"), said
    assert [tree(one.root) for one in roots] == before
    return said.err.removesuffix("\n")


def lane_file(place: StudyPlace, lane: str, session: int = 1, split: Split = Split.TRAIN) -> Path:
    """Return the records file of a session of a lane."""
    return place.results("bf16").session(split, 1, session, lane)


def header_changed(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the session of a records file and mend the chain behind it, as a forger would."""
    values = values_of(path)
    change(values[0])
    chained(path, values)


class Source(NamedTuple):
    """A frozen study, three copies of it in which the shards of three were measured, and the one run's study.json."""

    place: StudyPlace
    copies: list[StudyPlace]
    whole: bytes


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every worker be in this process."""
    benches.inline(monkeypatch)


@pytest.fixture(scope="module")
def three_made(tmp_path_factory: pytest.TempPathFactory) -> Source:
    """Return three measured shards that nobody may change."""
    return made_of(tmp_path_factory.mktemp("three"), 3, ANCHORED_YAML)


def made_of(root: Path, count: int, text: str) -> Source:
    """Return a study measured in one run, and so many shards of a copy of it, each in a copy and on a board."""
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        one = frozen(root / "one", text)
        assert call("time", one.folder, "--dtype", "bf16").code == 0
        place = frozen(root / "study", text)
        folders = copies(place, count)
        shards(folders)
    return Source(place, folders, one.results("bf16").study_json.read_bytes())


@pytest.fixture
def three(three_made: Source, tmp_path: Path) -> Source:
    """Return three measured shards of the test's own."""
    folders = [finished.copy(one, tmp_path / one.root.name) for one in three_made.copies]
    return Source(finished.copy(three_made.place, tmp_path / "study"), folders, three_made.whole)


# Which case is where


@given(st.sets(DIGESTS, max_size=40), st.integers(1, 999))
def test_every_case_is_in_exactly_one_shard(cases: set[str], of: int) -> None:
    """Shards are a partition of the cases, whatever their number, and where a case is follows from its digest alone."""
    parts = [{case for case in cases if schedule.shard_of(case, of) == number} for number in range(1, of + 1)]

    assert sum(map(len, parts)) == len(cases)
    assert set().union(*parts) == cases


def test_shards_are_pinned() -> None:
    """Which shard a known case is in never changes: shards of two releases of the tool fit together."""
    digests = [sha256(str(number).encode()) for number in range(8)]

    assert [schedule.shard_of(digest, 16) for digest in digests] == [4, 15, 15, 9, 13, 3, 12, 9]


@given(st.sets(DIGESTS, max_size=30), st.integers(0, 40), st.text(max_size=5), st.randoms(use_true_random=False))
def test_anchors_are_so_many_of_the_cases(cases: set[str], count: int, study: str, dice: Any) -> None:
    """Anchors are as many cases as asked for, or all; their order does not matter, and fewer are part of more."""
    shuffled = sorted(cases)
    dice.shuffle(shuffled)
    found = schedule.anchors(study, "train", shuffled, count)

    assert len(found) == min(count, len(cases))
    assert schedule.anchors(study, "train", cases, count - 1 if count else 0) <= found <= cases


def test_anchors_follow_from_study_and_split() -> None:
    """Another study or split has other anchors of the same cases."""
    cases = [sha256(str(number).encode()) for number in range(200)]
    drawn = {schedule.anchors(study, split, cases, 5) for study in ("a", "b") for split in ("train", "holdout")}

    assert len(drawn) == 4


@pytest.mark.parametrize("anchors", [0, 2])
def test_lines_of_shards_are_the_planned_ones(tmp_path: Path, anchors: int) -> None:
    """Each line is of one shard, but for those of anchors, which are of every one."""
    job = job_of(frozen(tmp_path, ANCHORED_YAML.replace("anchors: 2", f"anchors: {anchors}")))
    parts = [attempts.shard_cells(job, Shard(number, 5)) for number in range(1, 6)]
    planned = attempts.planned_cells(job.study, job.split, job.cases)
    everywhere = {cell for cell in planned if all(cell in part for part in parts)}

    assert set().union(*parts) == planned
    assert sum(map(len, parts)) == len(planned) + 4 * len(everywhere)
    assert {case for case, _, _ in everywhere} == attempts.anchors_of(job.study, job.split, job.cases)
    assert len(everywhere) == 3 * anchors


# The command


@pytest.mark.parametrize("text", ["0/4", "5/4", "a/b", "1/1000", "1/0", "1", "1/2/3", "-1/4", "1 / 2", "", "1/4\n"])
def test_what_is_no_shard_is_one_line(tmp_path: Path, text: str) -> None:
    """A shard that cannot be is one line that says what was found and expected, exit 2, before anything is written."""
    place = frozen(tmp_path)
    before = tree(tmp_path)
    said = shard(place, text)
    shown = text.replace("\n", "\\n")

    assert said == (2, "", f"--shard: found {shown}; expected a part and their number, from 1/N to N/N, such as 3/16\n")
    assert tree(tmp_path) == before


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--plan",), "Error: --plan is for a whole split, --shard for a part of it\n"),
        (("--ray", "local"), "Error: --ray goes without --shard, --plan and --prewarm\n"),
    ],
)
def test_shard_goes_without_plan_and_ray(tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    """A shard is measured here and whole: with `--plan` or `--ray` it is bad usage."""
    place = frozen(tmp_path)
    before = tree(tmp_path)
    said = shard(place, "1/2", *more)

    assert (said.code, said.out) == (2, "")
    assert said.err.endswith(words)
    assert tree(tmp_path) == before


# Measured in parts, it is what one run gives


@pytest.mark.parametrize("text", [SHARED_YAML, ANCHORED_YAML], ids=["without anchors", "anchors"])
def test_sixteen_shards_are_one_run(tmp_path: Path, text: str) -> None:
    """Sixteen shards, each in a copy of the study and on a board of its own, merged give the bytes of one run."""
    made = made_of(tmp_path, OF, text)
    said = merged(made.place, made.copies)
    (attempt,) = job_of(made.place).attempts()
    lines = f"{LINES} of {LINES} lines from {OF} shards on {OF} boards, {OF} files copied"

    assert said == (0, f"bf16 train: attempt 1, {lines}\n", "")
    assert made.place.results("bf16").study_json.read_bytes() == made.whole
    assert (attempt.planned, attempt.found, attempt.missing) == (LINES, LINES, frozenset())
    assert benches.cells(job_of(made.place)) == benches.planned(job_of(made.place))
    assert benches.on_disk(job_of(made.place)) == benches.sealed(job_of(made.place))


@pytest.mark.parametrize("text", [SHARED_YAML, ANCHORED_YAML], ids=["without anchors", "anchors"])
def test_shards_in_one_folder_are_one_run(tmp_path: Path, text: str) -> None:
    """Where all shards are measured in the study's own folder, merging needs no folder and copies nothing."""
    one = frozen(tmp_path / "one", text)
    assert call("time", one.folder, "--dtype", "bf16").code == 0
    place = frozen(tmp_path / "study", text)
    shards([place] * 4)
    before = [path.exists() for path in (place.results("bf16").study_json, place.results("bf16").ledger)]
    said = merged(place)

    assert said == (0, "bf16 train: attempt 1, 72 of 72 lines from 4 shards on 4 boards, 0 files copied\n", "")
    assert before == [False, False]
    assert place.results("bf16").study_json.read_bytes() == one.results("bf16").study_json.read_bytes()
    assert benches.on_disk(job_of(place)) == benches.sealed(job_of(place))


def test_shards_of_both_places_are_merged(three: Source) -> None:
    """Some shards may have been measured in the study's own folder, others in copies."""
    first = three.copies[0].results("bf16").records
    shutil.copytree(first, three.place.results("bf16").records)
    said = merged(three.place, three.copies[1:])

    assert said == (0, "bf16 train: attempt 1, 72 of 72 lines from 3 shards on 3 boards, 2 files copied\n", "")
    assert three.place.results("bf16").study_json.read_bytes() == three.whole


def test_the_ledger_is_told_by_the_merge_alone(three: Source) -> None:
    """While shards are measured no ledger is begun and no study.json written; the merge tells of every file."""
    assert [one.results("bf16").ledger.exists() for one in three.copies] == [False] * 3
    assert [one.results("bf16").study_json.exists() for one in three.copies] == [False] * 3
    merged(three.place, three.copies)

    assert benches.on_disk(job_of(three.place)) == benches.sealed(job_of(three.place))
    assert len(benches.sealed(job_of(three.place))) == 3
    assert [one.results("bf16").ledger.exists() for one in three.copies] == [False] * 3


# Side by side, stopped, and gone on with


def test_status_names_the_shard_that_is_missing_and_then_the_merge(tmp_path: Path) -> None:
    """In a folder with shards the next command is that of the first shard that is not whole, then the merge."""
    place = frozen(tmp_path / "root")
    folder, asked = "studies/whole", "--dtype bf16 --split train"

    def told() -> tuple[str, str]:
        out = call("status", place.folder).out.splitlines()
        return out[1], out[-1]

    assert shard(place, "2/3").code == 0
    assert told()[0].endswith("of 72 lines; of 3 shards not whole: 1, 3")
    assert told()[1] == f"next: studytool time {folder} {asked} --shard 1/3"
    assert [shard(place, f"{number}/3").code for number in (1, 3)] == [0, 0]
    assert told() == (
        "next   bf16 train     72 of 72 lines; the 3 shards are not merged",
        f"next: studytool merge-records --into {folder} {asked}",
    )
    assert merged(place).code == 0
    assert told()[0] == "done   bf16 train     72 of 72 lines"


def stopped_shard(place: StudyPlace, number: int, of: int, after: int, board: str = "") -> None:
    """Measure a shard until it is stopped after so many lines."""

    def progress(step: Any) -> None:
        if step.done == after:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setenv(WHICH_BOARD, board or f"board {number}/{of}")
        timing.time_split(job_of(place), lambda: "2024-01-01T00:00:00+00:00", progress, shard=Shard(number, of))
        pytest.fail("it was not stopped")


def test_shards_do_not_hinder_each_other(tmp_path: Path) -> None:
    """While a shard is measured, others of the same folder are, line by line; that shard itself is refused."""
    place = frozen(tmp_path)
    said: list[Said] = []

    def progress(step: Any) -> None:
        if step.done == 4:
            said.extend([shard(place, "2/3"), shard(place, "1/3"), shard(place, "3/3")])

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WHICH_BOARD, "board 1/3")
        timing.time_split(job_of(place), lambda: "now", progress, shard=Shard(1, 3))

    assert [one.code for one in said] == [0, 2, 0]
    assert said[1].err == f"{place.folder}: another process is at work on shard 1/3 of this study\n"
    assert merged(place).code == 0


def test_stopped_shard_goes_on(three: Source) -> None:
    """A shard that was stopped twice goes on in its own lane, behind what is there; merged it is what one run gives."""
    place = three.copies[0]
    lane_file(place, "1of3").unlink()
    stopped_shard(place, 1, 3, 4)
    stopped_shard(place, 1, 3, 5)
    half = refused(three.place, three.copies, code=3)
    said = shard(place, "1/3")
    read = [jsonl.read(path) for path in sorted(place.results("bf16").records.glob("*.jsonl"))]
    sessions = [file.session for file in read if file]
    own = len(attempts.shard_cells(job_of(place), Shard(1, 3)))

    assert said.code == 0
    assert half == f"{lane_file(place, '1of3', 2)}: shard 1/3 has 9 of {own} lines"
    assert [(one.lane, one.session) for one in sessions] == [("1of3", 1), ("1of3", 2), ("1of3", 3)]
    assert [one.prev for one in sessions] == ["", *(file.sha256 for file in read[:-1] if file)]
    assert [len(file.records) for file in read if file] == [4, 5, own - 9]
    assert merged(three.place, three.copies).code == 0
    assert three.place.results("bf16").study_json.read_bytes() == three.whole


def test_shard_that_is_whole_is_not_measured_again(three: Source) -> None:
    """The same command once more starts no process and leaves every file as it was."""
    before = tree(three.copies[1].root)
    benches.InlineProcess.starts.clear()
    said = shard(three.copies[1], "2/3")
    own = len(attempts.shard_cells(job_of(three.place), Shard(2, 3)))

    assert said == (0, f"bf16 train, shard 2/3: attempt 1, {own} of {own} lines\n", "")
    assert (benches.InlineProcess.starts, tree(three.copies[1].root)) == ([], before)


def test_shard_does_not_go_on_elsewhere(three: Source) -> None:
    """A shard that began cases on one board does not go on with them on another; a new attempt does."""
    place = three.copies[0]
    lane_file(place, "1of3").unlink()
    stopped_shard(place, 1, 3, 4)
    before = tree(place.root)
    said = shard(place, "1/3", board="another")

    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "cases of another machine of that board; start again with --attempt new --reason ..." in said.err
    assert tree(place.root) == before
    assert shard(place, "1/3", "--attempt", "new", "--reason", "moved", board="another").code == 0


def test_shard_says_that_a_deadline_came(tmp_path: Path) -> None:
    """A shard that a deadline stops says how far it is, exit 3, and the same command goes on."""
    place = frozen(
        tmp_path, SHARED_YAML.replace("s_kv * 1000", "s_kv * 10000000").replace("s_kv * 500", "s_kv * 50000")
    )
    own = len(attempts.shard_cells(job_of(place), Shard(1, 2)))
    said = shard(place, "1/2", "--deadline", "1m")
    match = re.fullmatch(
        rf"bf16 train, shard 1/2: the deadline came after (\d+) of {own} lines; the same command goes on\n", said.err
    )

    assert match is not None, said
    assert (said.code, said.out) == (3, "")
    assert 0 < int(match[1]) < own
    assert shard(place, "1/2") == (0, f"bf16 train, shard 1/2: attempt 1, {own} of {own} lines\n", "")


def test_holdout_shard_that_cannot_end_is_not_begun(tmp_path: Path) -> None:
    """A hold-out's shard is not begun before a deadline in which it cannot end."""
    place = frozen(tmp_path)
    benches.write_table(job_of(place))
    said = shard(place, "1/2", "--deadline", "1s", split="holdout")

    assert (said.code, said.out) == (3, "")
    assert said.err.startswith("bf16 holdout: not begun, since it would take ")
    assert not place.results("bf16").records.exists()


def begun(place: StudyPlace, text: str) -> str:
    """Return the line that refuses to go on with what `text` says of how its attempt was begun."""
    before = tree(place.root)
    said = call("time", place.folder, "--dtype", "bf16", *(("--shard", text) if text else ()))

    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert tree(place.root) == before
    return said.err


def test_shards_and_a_lone_run_do_not_mix(tmp_path: Path) -> None:
    """An attempt that shards began is not gone on with by a lone run, nor by shards of another number; nor back."""
    parts, lone = frozen(tmp_path / "parts"), frozen(tmp_path / "lone")
    assert shard(parts, "1/2").code == 0
    there = len(attempts.shard_cells(job_of(parts), Shard(1, 2)))
    benches.stopped(job_of(lone), 4)
    words = f"bf16 train attempt 1: {there} of 72 lines are there, begun with --shard 1/2; found "

    assert begun(parts, "") == f"{words}without --shard\n"
    assert begun(parts, "2/3") == f"{words}with --shard 2/3\n"
    assert begun(lone, "1/2") == (
        "bf16 train attempt 1: 4 of 72 lines are there, begun without --shard; found with --shard 1/2\n"
    )


def test_new_attempt_is_joined_for_the_same_reason(tmp_path: Path) -> None:
    """A new attempt that one shard began is joined by others for the same reason; another reason begins another."""
    place = frozen(tmp_path)
    shards([place] * 2)
    for text in ("1/2", "2/2", "1/2"):
        assert shard(place, text, "--attempt", "new", "--reason", "the fan failed").code == 0
    before = [(one.number, one.found, len(one.files)) for one in job_of(place).attempts()]
    assert shard(place, "1/2", "--attempt", "new", "--reason", "the other fan").code == 0
    last = job_of(place).attempts()[-1]

    assert before == [(1, LINES, 2), (2, LINES, 2)]
    assert (last.number, set(last.lanes)) == (3, {"1of2"})
    assert {file.session.reason for file in last.files} == {"the other fan"}


# What does not fit together


def test_a_shard_twice_is_refused(three: Source) -> None:
    """A shard of two folders is one line that names both."""
    again = finished.copy(three.copies[1], three.place.root.parent / "again")
    said = refused(three.place, [*three.copies, again])

    assert said == f"{lane_file(again, '2of3')}: shard 2/3 is there twice; also in {lane_file(three.copies[1], '2of3')}"


def test_a_shard_measured_twice_is_refused(three: Source) -> None:
    """A shard that two boards measured, one of them in the study's own folder, is one line that names both."""
    assert shard(three.place, "2/3", board="another").code == 0
    said = refused(three.place, three.copies)

    assert said == (
        f"{lane_file(three.copies[1], '2of3')}: shard 2/3 is there twice; also in {lane_file(three.place, '2of3')}"
    )


@pytest.mark.parametrize("missing", [1, 2, 3])
def test_a_missing_shard_is_said(three: Source, missing: int) -> None:
    """Where a shard is in no folder, one line says which, and where it was looked for: exit 3."""
    folders = [one for number, one in enumerate(three.copies, 1) if number != missing]
    said = refused(three.place, folders, code=3)
    names = ", ".join(str(one.folder) for one in (three.place, *folders))

    assert said == f"bf16 train: shard {missing}/3 is in none of {names}"


def test_no_shard_at_all_is_said(tmp_path: Path) -> None:
    """Where nothing was measured, or not in shards, there is nothing to merge."""
    place, lone = frozen(tmp_path / "place"), frozen(tmp_path / "lone")
    assert call("time", lone.folder, "--dtype", "bf16").code == 0

    assert refused(place, [lone], code=3) == f"bf16 train: no shard was measured in {place.folder}, {lone.folder}"


def test_an_incomplete_shard_is_said(three: Source) -> None:
    """A shard of which lines are missing is named with its file and its count: exit 3."""
    path = lane_file(three.copies[2], "3of3")
    own = len(attempts.shard_cells(job_of(three.place), Shard(3, 3)))
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))

    assert refused(three.place, three.copies, code=3) == f"{path}: shard 3/3 has {own - 2} of {own} lines"


def test_a_shard_without_an_anchor_is_incomplete(three: Source) -> None:
    """An anchor that other shards measured is missing all the same where this one did not."""
    job = job_of(three.place)
    (case, *_) = sorted(attempts.anchors_of(job.study, job.split, job.cases))
    path = lane_file(three.copies[2], "3of3")
    values = values_of(path)
    chained(path, [value for value in values if value.get("case") != case])
    own = len(attempts.shard_cells(job, Shard(3, 3)))

    assert refused(three.place, three.copies, code=3) == f"{path}: shard 3/3 has {own - 3} of {own} lines"


def test_a_shard_of_another_board_model_is_refused(three: Source) -> None:
    """A shard that another model of board measured is one line with both files and both models."""
    lane_file(three.copies[1], "2of3").unlink()
    assert shard(three.copies[1], "2/3", board="OTHER:1").code == 0

    assert refused(three.place, three.copies) == (
        f"{lane_file(three.copies[1], '2of3')}:1: not comparable with {lane_file(three.copies[0], '1of3')}:"
        " board simulated device and OTHER"
    )


@pytest.mark.parametrize(
    ("name", "value"), [("code", "0" * 64), ("cc", "sim-2"), ("versions", {}), ("settings", {"noise_ppm": "1"})]
)
def test_a_shard_of_other_code_is_refused(three: Source, name: str, value: object) -> None:
    """A shard of other measuring code, versions, settings or instruction set is one line with both files."""
    header_changed(lane_file(three.copies[2], "3of3"), lambda head: head["fingerprint"].update({name: value}))
    said = refused(three.place, three.copies)
    names = f"{lane_file(three.copies[2], '3of3')}:1: not comparable with {lane_file(three.copies[0], '1of3')}"

    assert said.startswith(f"{names}: {name} ")
    assert said.endswith(f"and {value}")


def test_a_shard_of_another_number_is_refused(three: Source) -> None:
    """Shards of three and of four are one line that names one of each."""
    lane_file(three.copies[2], "3of3").unlink()
    assert shard(three.copies[2], "3/4").code == 0

    assert refused(three.place, three.copies) == (
        f"{lane_file(three.copies[2], '3of4')}:1: shard 3/4; {lane_file(three.copies[0], '1of3')} is 1/3"
    )


def test_shards_with_other_tables_are_refused(tmp_path: Path) -> None:
    """Hold-out shards that were timed with two tables are one line with both files."""
    place = frozen(tmp_path / "study")
    folders = copies(place, 2)
    benches.write_table(job_of(folders[0]))
    benches.write_table(job_of(folders[1]), "always")
    shards(folders, "holdout")
    benches.write_table(job_of(place))
    one, other = (lane_file(folder, f"{n}of2", 1, Split.HOLDOUT) for n, folder in enumerate(folders, 1))

    assert refused(place, folders, "holdout") == f"{other}:1: timed with another table than {one}"


def test_shards_of_another_study_are_refused(three: Source) -> None:
    """A folder of another study, or of other frozen cases, is one line that names its file and this manifest."""
    other = frozen(three.place.root.parent / "other", ANCHORED_YAML.replace("seed: 7", "seed: 8"))
    assert shard(other, "1/3").code == 0
    path = lane_file(other, "1of3")

    assert refused(three.place, [other, *three.copies[1:]]) == (
        f"{path}:1: of other frozen cases than {three.place.manifest}"
    )


def test_shards_of_a_study_of_another_name_are_refused(three: Source) -> None:
    """A folder of a study that is called otherwise is one line as well."""
    other = finished.declare(
        three.place.root.parent / "other", ANCHORED_YAML.replace("name: whole", "name: half"), "half"
    )
    pipeline.freeze_study(opening.open_study(other), other, [])
    assert shard(other, "1/3").code == 0

    assert refused(three.place, [other, *three.copies[1:]]) == (
        f"{other.folder}: of study half; expected a folder of study whole"
    )


def test_a_case_of_another_shard_is_refused(three: Source) -> None:
    """A case that two shards measured, whatever their names say, is there twice."""
    job = job_of(three.place)
    anchors = attempts.anchors_of(job.study, job.split, job.cases)
    first, second = lane_file(three.copies[0], "1of3"), lane_file(three.copies[1], "2of3")
    own = next(value for value in values_of(first)[1:] if value["case"] not in anchors)
    chained(second, [*values_of(second), own])
    said = refused(three.place, three.copies)

    assert said.endswith(f": {job.cases[own['case']].label} repeat {own['repeat']} is there twice")


# Merging again, and half-way


def test_merging_twice_changes_nothing(three: Source) -> None:
    """A second merge copies nothing, says so, and leaves every file as it was, the ledger as well."""
    first = merged(three.place, three.copies)
    before = tree(three.place.root)
    again = merged(three.place, three.copies)
    alone = merged(three.place)

    assert first.out.endswith(", 3 files copied\n")
    assert again == alone == (0, first.out.replace("3 files", "0 files"), "")
    assert tree(three.place.root) == before


@pytest.mark.parametrize("done", [1, 2])
def test_a_merge_that_was_killed_goes_on(three: Source, monkeypatch: pytest.MonkeyPatch, done: int) -> None:
    """A merge that was killed after some files goes on with the rest; the end is that of one merge."""
    whole = finished.copy(three.place, three.place.root.parent / "whole")
    merged(whole, three.copies)
    real, left = files.write_atomic, iter(range(done))

    def write(path: Path, data: bytes) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        real(path, data)

    monkeypatch.setattr("studytool.merging.write_atomic", write)
    stopped = merged(three.place, three.copies)
    there = len(benches.on_disk(job_of(three.place)))
    monkeypatch.setattr("studytool.merging.write_atomic", real)
    said = merged(three.place, three.copies)

    assert (stopped.code, there) == (130, done)
    assert (said.code, said.out.endswith(f", {3 - done} files copied\n")) == (0, True)
    assert benches.on_disk(job_of(three.place)) == benches.on_disk(job_of(whole))
    assert benches.sealed(job_of(three.place)) == benches.on_disk(job_of(three.place))
    assert three.place.results("bf16").study_json.read_bytes() == three.whole


def test_the_dtype_that_cannot_be_merged_is_named(tmp_path: Path) -> None:
    """With `--dtype all` the line says of which dtype a shard is missing."""
    place = frozen(tmp_path / "study", finished.WHOLE_YAML)
    folders = copies(place, 2)
    for number, folder in enumerate(folders, 1):
        dtype = "all" if number == 1 else "bf16"
        assert call("time", folder.folder, "--dtype", dtype, "--shard", f"{number}/2").code == 0
    said = call("merge-records", *(f.folder for f in folders), "--into", place.folder, "--dtype", "all")

    assert (said.code, said.out) == (3, "")
    assert said.err.startswith("f16 train: shard 2/2 is in none of ")


# The whole path


WALKED_YAML = ANCHORED_YAML.replace("{s_kv: 512, h_q: 4", "{s_kv: [96, 192, 256, 384, 512, 768, 1024, 2048], h_q: 4")
"""With as many routing cases as it takes for each of two shards to have one."""


def decided(place: StudyPlace) -> None:
    """Make the lines of a train split that is there, and put them into the table."""
    job = job_of(place)
    pipeline.generate(job)
    editing.apply_lines(job.results.lines, place.table, finished.hooks().now)


def judged(place: StudyPlace) -> dict[str, Any]:
    """Score and report a study whose splits are there, and return the score."""
    job = job_of(place, Split.HOLDOUT)
    scored = pipeline.score(job, finished.hooks().now)
    reporting.report(job)
    return scored


def walked_in(place: StudyPlace) -> dict[str, Any]:
    """Take a study to its report, each split in two shards in its own folder, one stopped twice; return the score."""
    stopped_shard(place, 1, 2, 4)
    stopped_shard(place, 1, 2, 5)
    for split in Split:
        shards([place] * 2, split)
        assert merged(place, split=split).code == 0
        if split is Split.TRAIN:
            decided(place)
    return judged(place)


@pytest.fixture(scope="module")
def walked_made(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a study that went the whole path in shards, which nobody may change."""
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        place = frozen(tmp_path_factory.mktemp("walked"), WALKED_YAML)
        walked_in(place)
    return place


@pytest.fixture
def walked(walked_made: StudyPlace, tmp_path: Path) -> StudyPlace:
    """Return a study of the test's own that went the whole path in shards."""
    return finished.copy(walked_made, tmp_path / "walked")


def failing(place: StudyPlace) -> dict[str, str]:
    """Return what a replay finds wrong, or cannot say, by check."""
    found = replay.replay(opening.open_study(place), place)
    return {check.name: check.figure for check in found if check.state in {replay.FAIL, replay.UNSAID}}


def test_replay_holds_after_the_whole_path(walked_made: StudyPlace) -> None:
    """Train, hold-out and routing in shards, merged, decided, scored and reported: a replay holds, check by check."""
    lanes = {
        split: sorted(job_of(walked_made, split).attempts()[-1].lanes)
        for split in (Split.TRAIN, Split.HOLDOUT, Split.ROUTING)
    }

    assert failing(walked_made) == {}
    assert call("replay", walked_made.folder).code == 0
    assert lanes == {split: ["1of2", "2of2"] for split in Split}
    assert not attempts.anchors_of(opening.open_study(walked_made), Split.ROUTING, job_of(walked_made).cases)


def test_replay_holds_where_shards_were_copied(tmp_path: Path) -> None:
    """The same in copies of the study, of which each has one shard: what is decided and scored is that of one run."""
    one, place = frozen(tmp_path / "one", WALKED_YAML), frozen(tmp_path / "study", WALKED_YAML)
    pipeline.run(opening.open_study(one), one, ("bf16",), finished.hooks())
    for split in Split:
        folders = [finished.copy(place, tmp_path / f"{split} {number}") for number in (1, 2)]
        shards(folders, split)
        assert merged(place, folders, split).code == 0
        if split is Split.TRAIN:
            decided(place)
    mine, other = judged(place), json.loads(one.results("bf16").score.read_bytes())

    assert failing(place) == {}
    assert place.table.read_bytes() == one.table.read_bytes()
    assert {name for name, value in json.loads(json.dumps(mine)).items() if value != other[name]} == {
        "boards",
        "records",
    }


def test_an_archive_has_the_lanes(walked: StudyPlace, tmp_path: Path) -> None:
    """A bundle holds the records files of every lane, and a replay of it holds."""
    archive = tmp_path / "walked.tar.gz"
    assert call("bundle", walked.folder, "-o", archive).code == 0
    unpacked = bundle.unpack(archive, tmp_path / "unpacked")

    assert benches.on_disk(job_of(unpacked)) == benches.on_disk(job_of(walked))
    assert len(benches.on_disk(job_of(unpacked))) == 8
    assert call("replay", archive).code == 0


# Tampering


def resealed(place: StudyPlace) -> None:
    """Let the ledger tell of the records files that are there, and of no others, as a forger would."""
    events = [
        event
        for event in forger.tell(place)
        if event["event"] != "session" or (place.results("bf16").records / event["body"]["file"]).is_file()
    ]
    forger.write_events(place, forger.rehashed(events))


@pytest.mark.parametrize("mended", [False, True])
def test_a_lane_s_session_that_was_removed_is_found(walked: StudyPlace, mended: bool) -> None:
    """Where a lane's second session is gone, its third does not follow; also where the ledger knows nothing of it."""
    lane_file(walked, "1of2", 2).unlink()
    if mended:
        resealed(walked)
    found = failing(walked)
    third = "studies/whole/bf16/records/train-01-1of2-003.jsonl:1"

    assert (
        found["planned lines"] == f"{third}: does not follow the session file before it; one is missing or was changed"
    )
    assert ("records sealed" in found) is not mended


def test_a_lane_s_last_session_that_was_removed_is_found(walked: StudyPlace) -> None:
    """Where a lane's last session is gone, and the ledger knows nothing of it, its lines are missing."""
    lane_file(walked, "1of2", 3).unlink()
    resealed(walked)

    assert failing(walked)["planned lines"].startswith("train attempt 1 is incomplete: ")


def test_a_lane_that_was_removed_is_found(walked: StudyPlace) -> None:
    """Where a whole lane is gone, the ledger tells of it; where it does not, its lines are missing."""
    lane_file(walked, "2of2").unlink()
    told = failing(walked)["records sealed"]
    resealed(walked)

    assert told == "studies/whole/bf16/records/train-01-2of2-001.jsonl: in the ledger and not there"
    assert failing(walked)["planned lines"].startswith("train attempt 1 is incomplete: ")


def test_an_anchor_s_record_twice_is_found(walked: StudyPlace) -> None:
    """An anchor is there once in each lane: twice within one is found, with its place."""
    job = job_of(walked)
    anchors = attempts.anchors_of(job.study, job.split, job.cases)
    path = lane_file(walked, "2of2")
    values = values_of(path)
    own = next(value for value in values[1:] if value["case"] in anchors)
    chained(path, [*values, own])
    resealed(walked)
    with pytest.raises(RecordError) as caught:
        job.attempts()

    label = job.cases[own["case"]].label
    assert str(caught.value) == (
        f"studies/whole/bf16/records/{path.name}:{len(values) + 1}: {label} repeat {own['repeat']} is there twice"
    )
    assert failing(walked)["planned lines"] == str(caught.value)


def test_an_anchor_of_two_boards_in_a_lane_is_found(walked: StudyPlace) -> None:
    """The lines of an anchor within a lane are of one board, as those of any case are."""
    first, second, third = (lane_file(walked, "1of2", number) for number in (1, 2, 3))
    values = values_of(second)
    values[0]["fingerprint"]["uuid"] = "another"
    after = values_of(third)
    after[0]["prev"] = chained(second, values)
    chained(third, after)
    with pytest.raises(RecordError, match=r"train-01-1of2-00[23]\.jsonl:\d+: sdpa_fwd .* was measured on two boards\Z"):
        job_of(walked).attempts()

    assert jsonl.read(first) is not None


BAD_LANES = (
    *("0of2", "1of0", "1of1000", "1000of1", "01of2", "1of02", "1of", "of2", "1-of-2", "1of2\n", "../1of2", "x"),
    *("b", "bF" * 8, "b" + "0" * 15, "b" + "0" * 17),
)


@pytest.mark.parametrize("lane", BAD_LANES)
def test_a_session_of_a_bad_lane_is_refused(walked: StudyPlace, lane: str) -> None:
    """A lane is a shard or a board; any other is one line with the file, what was found and expected."""
    path = lane_file(walked, "2of2")
    header_changed(path, lambda head: head.update(lane=lane))
    with pytest.raises(RecordError) as caught:
        jsonl.read(path, "name")

    assert str(caught.value) == f"name:1: lane is {lane!r}; expected a shard such as 3of16, or a board"


@pytest.mark.parametrize("lane", ["", "1of1", "16of16", "999of999", "b" + "0" * 16])
def test_a_session_of_a_lane_is_read(walked: StudyPlace, lane: str) -> None:
    """What a shard, a board, or a lone machine writes is read."""
    path = lane_file(walked, "2of2")
    header_changed(path, lambda head: head.update(lane=lane))
    found = jsonl.read(path)

    assert found is not None
    assert found.session.lane == lane


def test_a_shard_without_a_case_is_whole(tmp_path: Path) -> None:
    """A shard that has no case is done at once, also where nothing was measured yet."""
    place = frozen(tmp_path)
    empty = next(n for n in range(1, 41) if not attempts.shard_cells(job_of(place), Shard(n, 40)))

    assert shard(place, f"{empty}/40") == (0, f"bf16 train, shard {empty}/40: attempt 1, 0 of 0 lines\n", "")


def test_a_complete_attempt_is_not_measured_again_by_a_shard(tmp_path: Path) -> None:
    """Where a lone run measured all, a shard is refused, whose anchors would be measured once more."""
    place = frozen(tmp_path, ANCHORED_YAML)
    call("time", place.folder, "--dtype", "bf16")
    before = tree(place.root)
    said = shard(place, "1/2")

    assert (said.code, said.err.count("\n")) == (2, 1)
    assert tree(place.root) == before


@pytest.mark.parametrize("whole", [False, True])
def test_a_lone_attempt_is_not_merged_into(three: Source, whole: bool) -> None:
    """Where the study has an attempt that no shard made, merging is refused and copies nothing."""
    if whole:
        call("time", three.place.folder, "--dtype", "bf16")
    else:
        benches.stopped(job_of(three.place), 4)

    assert "attempt 1 was begun without shards" in refused(three.place, three.copies)


def test_attempts_before_the_last_are_merged_too(three: Source) -> None:
    """Shards that were begun anew are merged with the attempt before them."""
    for number, one in enumerate(three.copies, 1):
        shard(one, f"{number}/3", "--attempt", "new", "--reason", "moved")
    merged(three.place, three.copies)

    assert [one.number for one in job_of(three.place).attempts()] == [1, 2]


def test_shards_begun_anew_alone_or_for_other_reasons_are_refused(three: Source) -> None:
    """Where one shard alone was begun anew the others are named, and another reason is another attempt."""
    shard(three.copies[0], "1/3", "--attempt", "new", "--reason", "moved")
    assert "shard 2/3 was not begun anew" in merged(three.place, three.copies).err
    for number in (2, 3):
        shard(three.copies[number - 1], f"{number}/3", "--attempt", "new", "--reason", "drifted")

    assert "begun for another reason than" in refused(three.place, three.copies)


def test_a_merge_leaves_shards_of_other_splits_alone(tmp_path: Path) -> None:
    """While a hold-out's shard is measured, merging train does not seal its file."""
    place = frozen(tmp_path, WALKED_YAML)
    shards([place] * 2)
    merged(place)
    decided(place)

    def progress(step: Any) -> None:
        if step.done == 3:
            merged(place)

    timing.time_split(job_of(place, Split.HOLDOUT), lambda: "now", progress, shard=Shard(1, 2))
    shard(place, "2/2", split="holdout")
    merged(place, split="holdout")

    assert "records sealed" not in failing(place)


def test_a_torn_file_is_replaced_by_a_merge(three: Source) -> None:
    """A file of which not even the first line is whole does not keep a shard from being copied."""
    path = lane_file(three.place, "2of3")
    path.parent.mkdir(parents=True)
    path.write_bytes(b'{"attempt')

    assert merged(three.place, three.copies).code == 0


def test_folders_of_a_merge_are_named(three: Source, tmp_path: Path) -> None:
    """A folder that is not there is an error, one that is given twice counts once, a damaged file is named in its."""
    gone = StudyPlace(tmp_path / "gone", three.place.name)
    assert str(gone.folder) in refused(three.place, [*three.copies, gone])
    damaged = lane_file(three.copies[1], "2of3")
    data = damaged.read_bytes()
    damaged.write_bytes(data.replace(b'"repeat":1', b'"repeat":2', 1))
    assert str(damaged) in refused(three.place, three.copies)
    damaged.write_bytes(data)

    assert merged(three.place, [*three.copies, three.copies[0]]).code == 0
