"""One call's share of an attempt: the lines that it has to measure, the session that it writes, and its records."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from studytool import attempts, costs, fingerprint, lines, looks, model, schedule
from studytool.attempts import Attempt, Cell, Job
from studytool.costs import Budget
from studytool.digest import rank, sha256
from studytool.errors import CannotSayError, DeviceError, StudyError
from studytool.hosts import without_paths
from studytool.jsonl import SessionFile
from studytool.lanes import Shard, alike
from studytool.measure import Measured, Request
from studytool.model import Fingerprint, Record, Session, Split, Study
from studytool.pipes import Failed
from studytool.progress import Progress, Teller
from studytool.runtime import key, lookup

Now = Callable[[], str]


class Run(NamedTuple):
    """One call's work: which lines of which attempt, its files so far, and what the outside gives.

    `current` is the attempt where it goes on with one.
    """

    job: Job
    number: int
    lane: str
    current: Attempt | None
    missing: frozenset[Cell]
    now: Now
    progress: Callable[[Progress], None]
    reason: str
    predicted_ns: int | None
    budget: Budget | None

    @property
    def files(self) -> tuple[SessionFile, ...]:
        """Return the files of the run's lane so far, which the new one follows."""
        return self.current.lanes.get(self.lane, ()) if self.current else ()

    def teller(self) -> Teller:
        """Return what says after each line of the run how far it is."""
        return Teller(
            self.job.cases,
            len(self.missing),
            self.progress,
            lambda: None if self.budget is None else self.budget.remaining_ns,
        )


def plan_run(
    job: Job,
    now: Now,
    progress: Callable[[Progress], None],
    new_attempt: str,
    budget: Budget | None,
    lane: str = "",
    shard: Shard | None = None,
) -> Run:
    """Return what a call has to measure; StudyError where the attempt was begun in other lanes.

    `new_attempt` is the reason for a new one; a shard goes on with the last where another one began it for that reason.
    CannotSayError for a hold-out that cannot end within the budget.
    """
    found = job.attempts()
    last = found[-1] if found else None
    begun = new_attempt and last is not None and shard is not None and last.files[0].session.reason == new_attempt
    current = last if begun or not new_attempt else None
    number = current.number if current else last.number + 1 if last else 1
    if current is None:
        planned = attempts.planned_cells(job.study, job.split, job.cases)
        missing = frozenset(attempts.shard_cells(job, shard) if shard else planned)
    else:
        _check_lanes(job, current, lane)
        missing = attempts.missing_of(job, current, shard) if shard else current.missing
    predicted_ns = costs.predict_job_ns(job, missing) if missing else None
    if missing:
        _check_budget(job, predicted_ns, budget)
    return Run(
        job=job,
        number=number,
        lane=lane,
        current=current,
        missing=missing,
        now=now,
        progress=progress,
        reason=new_attempt,
        predicted_ns=predicted_ns,
        budget=budget,
    )


def attempt_of(run: Run) -> Attempt:
    """Return the attempt of a run as it is on disk now, one without files where nothing was to be measured."""
    for attempt in reversed(run.job.attempts()):
        if attempt.number == run.number:
            return attempt
    planned = attempts.planned_cells(run.job.study, run.job.split, run.job.cases)
    return Attempt(run.number, (), len(planned), frozenset(planned), ())


def _check_lanes(job: Job, current: Attempt, lane: str) -> None:
    """Raise where an attempt was begun in lanes of another kind: it would be measured twice.

    One that is complete is gone on with all the same, since nothing is left, but by a shard, which lacks its anchors.
    """
    strange = [other for other in current.lanes if not alike(other, lane)]
    if strange and (current.missing or Shard.of_lane(lane)):
        raise StudyError(
            f"{job.dtype} {job.split} attempt {current.number}: {current.found} of {current.planned} lines are there,"
            f" begun {_lane_text(strange[0])}; found {_lane_text(lane)}"
        )


def _lane_text(lane: str) -> str:
    if shard := Shard.of_lane(lane):
        return f"with --shard {shard.number}/{shard.of}"
    return "with --ray" if lane else "without --shard"


def _check_budget(job: Job, predicted_ns: int | None, budget: Budget | None) -> None:
    if budget is None or job.split is not Split.HOLDOUT:
        return
    if predicted_ns is None or predicted_ns > budget.remaining_ns:
        known = "an unknown time" if predicted_ns is None else f"about {predicted_ns / 1e9:.0f} s"
        raise CannotSayError(
            f"{job.dtype} {job.split}: not begun, since it would take {known} and"
            f" {max(0, budget.remaining_ns) / 1e9:.0f} s are left before the deadline"
        )


class Applied(NamedTuple):
    """The table in force: its SHA-256, the digest of its entries for the row and dtype, and the table itself."""

    sha256: str
    entries: str
    table: lookup.Table


def applied(job: Job) -> Applied:
    """Return the table that a split is measured with."""
    data, table = attempts.table_in_force(job.place, job.split)
    text = lines.read_table(data, str(job.place.table))
    return Applied(sha256(data), lines.entries_digest(text, job.study.row, job.dtype), table)


def header(run: Run, prints: Fingerprint, table: Applied) -> Session:
    """Return the first line of the run's session."""
    return Session(
        schema=model.SCHEMA,
        study=run.job.study.name,
        manifest=run.job.frozen.sha256,
        dtype=run.job.dtype,
        split=run.job.split,
        attempt=run.number,
        session=len(run.files) + 1,
        table=table.sha256,
        entries=table.entries,
        started=run.now(),
        reason=run.reason,
        predicted_ns=run.predicted_ns or 0,
        fingerprint=prints,
        prev=run.files[-1].sha256 if run.files else "",
        lane=run.lane,
    )


def path(run: Run) -> Path:
    """Return a file for the run's session that is not there, also not with a torn first line."""
    number = 1
    while (found := run.job.results.session(run.job.split, run.number, number, run.lane)).exists():
        number += 1
    return found


def check_device(run: Run, prints: Fingerprint, table: Applied) -> None:
    """Raise where this machine is not the one that the study asks for, or not like that of the attempt so far."""
    job = run.job
    for name, wanted, found in (("cc", job.study.cc, prints.cc), ("board", job.study.board, prints.board)):
        if wanted not in {"host", "any", found}:
            raise DeviceError(f"{job.study.path}: device.{name} is {wanted}; this machine has {found}")
    if run.current is None:
        return
    first = run.current.files[0].session
    difference = fingerprint.comparable(first.fingerprint, prints)
    if not difference and first.entries != table.entries:
        difference = "another table"
    others = [file for file in run.files if file.session.fingerprint.uuid != prints.uuid]
    if not difference and {r.case for file in others for r in file.records} & {case for case, _, _ in run.missing}:
        difference = "cases of another machine of that board"
    if difference:
        raise StudyError(
            f"{job.split} attempt {run.number} has {run.current.found} of {run.current.planned} lines from another"
            f" state: {difference}; start again with --attempt new --reason ..."
        )


def visits(job: Job, repeat: int, left: set[Cell]) -> list[Cell]:
    """Return what is left of a repeat in its order of cases, all regimes of a case together."""
    own = sorted({case for case, number, _ in left if number == repeat})
    visited = schedule.case_order(job.study.sha256, job.split, repeat, own)
    cells = [(case, repeat, regime) for case in visited for regime in job.study.protocol.regimes]
    return [cell for cell in cells if cell in left]


class History:
    """The records of an attempt so far, by case, for the looks of the stop rule."""

    def __init__(self, study: Study, files: Sequence[SessionFile], tick_ns: int) -> None:
        self._study, self._tick_ns = study, tick_ns
        self._records: dict[str, list[tuple[Record, int]]] = {}
        for file in files if study.protocol.stop_half_width_ppm else ():
            for record in file.records:
                self._records.setdefault(record.case, []).append((record, file.session.fingerprint.tick_ns))

    def look(self, record: Record) -> dict[str, int]:
        """Return what a look says once a record is added, nothing where none is due."""
        if not self._study.protocol.stop_half_width_ppm:
            return {}
        own = self._records.setdefault(record.case, [])
        own.append((record, self._tick_ns))
        found = looks.look(self._study.protocol, [record for record, _ in own], [tick_ns for _, tick_ns in own])
        return found.checks if found else {}


def request_of(job: Job, answer: bool | None, cell: Cell) -> Request:
    """Return what a worker is asked for a planned line, whose case the table in force answers so."""
    digest, repeat, regime = cell
    study = job.study
    timed = job.split is not Split.ROUTING
    return Request(
        case=job.cases[digest],
        regime=regime,
        orders=schedule.block_orders(study.sha256, digest, repeat, regime, study.protocol.blocks) if timed else (),
        base=study.base,
        lookup=answer,
        seed=int(rank(study.sha256, digest, repeat)[:12], 16),
        process_seed=int(rank(study.sha256, job.split, repeat)[:12], 16),
        distribution=study.protocol.distributions[(repeat - 1) % len(study.protocol.distributions)],
        min_sample_ns=study.protocol.min_sample_ns,
    )


def record_of(
    job: Job, header: Session, answer: bool | None, cell: Cell, found: Measured | Failed, startup_ns: int
) -> Record:
    """Return the record of what a worker answered, or of how it failed; `startup_ns` where its process was new."""
    digest, repeat, regime = cell
    study, case, prints = job.study, job.cases[digest], header.fingerprint
    measured = Measured(status=found.status, error=found.error) if isinstance(found, Failed) else found
    costs_ns = {"took_ns": measured.took_ns, "startup_ns": 0 if study.engine == "simulated" else startup_ns}
    return Record(
        schema=model.SCHEMA,
        case=digest,
        split=job.split,
        repeat=repeat,
        regime=regime,
        attempt=header.attempt,
        status=measured.status,
        class_key=key.class_key(study.row, prints.cc, study.class_key, case.fields),
        lookup=answer,
        legs=measured.legs,
        order=measured.order,
        clock_mhz=measured.clock_mhz,
        blocks=measured.blocks,
        checks=_told(measured.checks) | {name: ns for name, ns in costs_ns.items() if ns},
        error=without_paths(measured.error),
        prev="",
    )


def answer_of(job: Job, prints: Fingerprint, table: Applied, case: str) -> bool | None:
    """Return what the table in force says of a case on a board."""
    return lookup.lookup(table.table, job.study.row, prints.cc, job.cases[case].fields, prints.board)


def _told(checks: Mapping[str, int | str]) -> dict[str, int | str]:
    """Return what an engine noted, without the paths that its words may have."""
    return {name: without_paths(value) if isinstance(value, str) else value for name, value in checks.items()}
