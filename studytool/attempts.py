"""Which records belong together: sessions of one attempt, checked comparable, and the lines that are missing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from studytool import fingerprint, jsonl, lines, looks, schedule
from studytool.errors import CannotSayError, RecordError
from studytool.files import read_bytes
from studytool.freeze import Frozen
from studytool.jsonl import SessionFile
from studytool.lanes import Shard
from studytool.layout import ResultPlace, StudyPlace
from studytool.model import Case, Record, Split, Study
from studytool.runtime import key, lookup

Cell = tuple[str, int, str]
"""A planned line: case digest, repeat (from 1), regime."""


class Attempt(NamedTuple):
    """One attempt at a split: its session files in order, and the planned lines that are not there yet.

    `read` are the files as they are; in `files` an anchor has the records of one lane only, which are those that count.
    """

    number: int
    files: tuple[SessionFile, ...]
    planned: int
    missing: frozenset[Cell]
    read: tuple[SessionFile, ...]

    @property
    def found(self) -> int:
        """Return how many planned lines are there."""
        return self.planned - len(self.missing)

    @property
    def lanes(self) -> dict[str, tuple[SessionFile, ...]]:
        """Return the session files of each lane as they are, in order."""
        found: dict[str, list[SessionFile]] = {}
        for file in self.read:
            found.setdefault(file.session.lane, []).append(file)
        return {lane: tuple(own) for lane, own in found.items()}

    @property
    def anchored(self) -> dict[str, list[tuple[Record, int]]]:
        """Return by lane the records of cases that several lanes measured, with their clock's tick in ns."""
        own = {lane: {r.case for file in files for r in file.records} for lane, files in self.lanes.items()}
        lanes_of = Counter(case for cases in own.values() for case in cases)
        return {
            lane: [
                (record, file.session.fingerprint.tick_ns)
                for file in files
                for record in file.records
                if lanes_of[record.case] > 1
            ]
            for lane, files in self.lanes.items()
            if len(own) > 1
        }


class Kept:
    """What was read of one dtype's records, for a reader beside whom nobody writes."""

    def __init__(self) -> None:
        """Begin with nothing read."""
        self.files: list[SessionFile] | None = None
        self.attempts: dict[Split, list[Attempt]] = {}


class Job(NamedTuple):
    """What is to be timed: one dtype and split of a frozen study.

    With `kept` each records file is read once, and what was read is kept; without, it is read anew each time.
    """

    study: Study
    place: StudyPlace
    frozen: Frozen
    dtype: str
    split: Split
    kept: Kept | None = None

    @property
    def results(self) -> ResultPlace:
        """Return where the results go."""
        return self.place.results(self.dtype)

    @property
    def cases(self) -> dict[str, Case]:
        """Return the cases of this job by digest."""
        return self.frozen.of(self.dtype, self.split)

    def files(self) -> list[SessionFile]:
        """Return the records files of the dtype, whatever the split."""
        if self.kept is not None and self.kept.files is not None:
            return self.kept.files
        found = jsonl.read_all(self.results.records, self.place.root)
        if self.kept is not None:
            self.kept.files = found
        return found

    def attempts(self) -> list[Attempt]:
        """Return the attempts made so far; RecordError for a session of other frozen cases or another dtype."""
        if self.kept is not None and self.split in self.kept.attempts:
            return self.kept.attempts[self.split]
        found = load(self.study, self.files(), self.place.root, self.split, self.cases)
        for file in (file for attempt in found for file in attempt.files):
            if (file.session.manifest, file.session.dtype) != (self.frozen.sha256, self.dtype):
                raise RecordError(f"{self.place.shown(file.path)}:1: timed for other frozen cases or another dtype")
        if self.kept is not None:
            self.kept.attempts[self.split] = found
        return found


def shard_cells(job: Job, shard: Shard) -> set[Cell]:
    """Return the lines that a shard should have."""
    anchors = anchors_of(job.study, job.split, job.cases)
    own = {case for case in job.cases if schedule.shard_of(case, shard.of) == shard.number}
    return {cell for cell in planned_cells(job.study, job.split, job.cases) if cell[0] in own | anchors}


def missing_of(job: Job, attempt: Attempt, shard: Shard) -> frozenset[Cell]:
    """Return the lines of an attempt that a shard lacks."""
    anchors = anchors_of(job.study, job.split, job.cases)
    own = lacking(shard_cells(job, shard), attempt.lanes.get(shard.lane, ()))
    return frozenset(cell for cell in own if cell[0] in anchors or cell in attempt.missing)


def lacking(cells: set[Cell], files: Sequence[SessionFile]) -> set[Cell]:
    """Return the lines that are not in the files of a lane; a case that the stop rule ended there lacks none."""
    own = [record for file in files for record in file.records]
    there = {(record.case, record.repeat, record.regime) for record in own}
    ended = {record.case for record in own if record.checks.get("look_stop")}
    return {cell for cell in cells - there if cell[0] not in ended}


def planned_cells(study: Study, split: Split, cases: Mapping[str, Case]) -> set[Cell]:
    """Return the lines that a split should have: every case, repeat and regime; routing cases once."""
    repeats = 1 if split is Split.ROUTING else study.protocol.repeats
    regimes = study.protocol.regimes[:1] if split is Split.ROUTING else study.protocol.regimes
    return {(case, repeat, regime) for case in cases for repeat in range(1, repeats + 1) for regime in regimes}


def load(
    study: Study, found: Sequence[SessionFile], root: Path, split: Split, cases: Mapping[str, Case]
) -> list[Attempt]:
    """Return the attempts at a split in order. RecordError for a line that is foreign, double, or not comparable."""
    files = [file for file in found if file.session.split is split]
    planned = planned_cells(study, split, cases)
    attempts = []
    anchors = anchors_of(study, split, cases)
    for number in sorted({file.session.attempt for file in files}):
        read = tuple(file for file in files if file.session.attempt == number)
        _check(study, read, planned, cases, anchors, root)
        own = _counted(read, anchors)
        seen = {(record.case, record.repeat, record.regime) for file in own for record in file.records}
        missing = frozenset(planned - seen - _stopped(study, own, planned, cases, root))
        attempts.append(Attempt(number, own, len(seen) + len(missing), missing, read))
    return attempts


def anchors_of(study: Study, split: Split, cases: Mapping[str, Case]) -> frozenset[str]:
    """Return the cases of a split that every board measures, none of routing cases."""
    count = 0 if split is Split.ROUTING else study.protocol.anchors
    return schedule.anchors(study.sha256, split, cases, count)


def _counted(files: tuple[SessionFile, ...], anchors: frozenset[str]) -> tuple[SessionFile, ...]:
    """Return the files with each anchor's records of one lane: of those with most lines of it the first by name."""
    lines = Counter((record.case, file.session.lane) for file in files for record in file.records)
    lane_of: dict[str, str] = {}
    for (case, lane), count in sorted(lines.items()):
        if case not in lane_of or count > lines[case, lane_of[case]]:
            lane_of[case] = lane
    return tuple(
        file._replace(
            records=tuple(r for r in file.records if r.case not in anchors or lane_of[r.case] == file.session.lane)
        )
        for file in files
    )


def _check(
    study: Study,
    files: tuple[SessionFile, ...],
    planned: set[Cell],
    cases: Mapping[str, Case],
    anchors: frozenset[str],
    root: Path,
) -> None:
    """Raise RecordError for a session or a line that does not belong to an attempt, or is there twice."""
    seen: set[tuple[Cell, str]] = set()
    boards: dict[tuple[str, str], str] = {}
    previous: dict[str, str] = {}
    row, cc, features = study.row, files[0].session.fingerprint.cc, study.class_key
    classes = {digest: key.class_key(row, cc, features, case.fields) for digest, case in cases.items()}
    for file in files:
        name = file.path.relative_to(root).as_posix()
        lane = file.session.lane
        if problem := _session_problem(study, file, files[0], previous.get(lane, "")):
            raise RecordError(f"{name}:1: {problem}")
        previous[lane] = file.sha256
        prints = file.session.fingerprint
        for number, record in enumerate(file.records, 2):
            where = f"{name}:{number}"
            cell = (record.case, record.repeat, record.regime)
            if cell not in planned:
                raise RecordError(f"{where}: not a planned line of {record.split}")
            case = cases[record.case]
            of = lane if record.case in anchors else ""
            if (cell, of) in seen:
                raise RecordError(f"{where}: {case.label} repeat {record.repeat} is there twice")
            if boards.setdefault((record.case, of), prints.uuid) != prints.uuid:
                raise RecordError(f"{where}: {case.label} was measured on two boards")
            if record.class_key != classes[record.case]:
                raise RecordError(f"{where}: class {record.class_key}; expected {classes[record.case]}")
            seen.add((cell, of))
            if record.order and record.order != schedule.block_orders(study.sha256, *cell, study.protocol.blocks):
                raise RecordError(f"{where}: {case.label}: not the block orders of this study, case and repeat")


def _stopped(
    study: Study, files: tuple[SessionFile, ...], planned: set[Cell], cases: Mapping[str, Case], root: Path
) -> set[Cell]:
    """Return the planned lines that the stop rule takes away; RecordError where a line says otherwise."""
    if not study.protocol.stop_half_width_ppm:
        return set()
    records: dict[str, dict[int, list[Record]]] = {}
    ticks: dict[str, dict[int, list[int]]] = {}
    places: dict[tuple[str, int], str] = {}
    for file in files:
        for number, record in enumerate(file.records, 2):
            records.setdefault(record.case, {}).setdefault(record.repeat, []).append(record)
            ticks.setdefault(record.case, {}).setdefault(record.repeat, []).append(file.session.fingerprint.tick_ns)
            places[record.case, record.repeat] = f"{file.path.relative_to(root).as_posix()}:{number}"
    stopped: set[Cell] = set()
    for case, own in records.items():
        due, last = looks.looks_at(study.protocol, own, ticks[case])
        for repeat in sorted(own):
            checks = own[repeat][-1].checks
            said = {name: checks[name] for name in ("look_half_width_ppm", "look_stop") if name in checks}
            if said != due.get(repeat, {}) or (last is not None and repeat > last):
                raise RecordError(
                    f"{places[case, repeat]}: {cases[case].label}: look {said or 'none'} is not what the stop rule says"
                )
        if last is not None:
            stopped |= {cell for cell in planned if cell[0] == case and cell[1] > last}
    return stopped


def _session_problem(study: Study, file: SessionFile, first: SessionFile, previous: str) -> str | None:
    session = file.session
    if session.study != study.name:
        return f"session of study {session.study}; expected {study.name}"
    if (session.manifest, session.dtype) != (first.session.manifest, first.session.dtype):
        return "session of another dtype or of other frozen cases than the attempt's first"
    if session.prev != previous:
        return "does not follow the session file before it; one is missing or was changed"
    if difference := fingerprint.comparable(first.session.fingerprint, session.fingerprint):
        return f"not comparable with the attempt's first session: {difference}"
    if session.entries != first.session.entries:
        return "the table changed within the attempt"
    return None


def table_in_force(place: StudyPlace, split: Split) -> tuple[bytes, lookup.Table]:
    """Return the bytes and the content of the study's table; the train split may be timed before there is one."""
    if not place.table.exists():
        if split is not Split.TRAIN:
            raise CannotSayError(f"{place.table}: not there; expected gen.py and `studytool apply` to have been run")
        return lines.EMPTY.encode(), lookup.EMPTY
    data = read_bytes(place.table)
    lines.read_table(data, str(place.table))
    return data, lines.parse_table(data, str(place.table))
