"""The parent of the workers: which lines are missing, a fresh process per repeat, one record per line, sealed files.

It alone writes records. A crash, a hang or a defect costs one line and the worker, not the run.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import filelock
import msgspec

from studytool import attempts, costs, fingerprint, jsonl, ledger, lines, looks, model, rows, schedule, stats
from studytool.attempts import Attempt, Cell, Job
from studytool.costs import Budget
from studytool.digest import line_marks, rank, sha256
from studytool.errors import CannotSayError, DeviceError, LedgerError, StudyError
from studytool.files import read_bytes, sync, write_atomic
from studytool.hosts import without_paths
from studytool.layout import StudyPlace
from studytool.measure import Measured, Request
from studytool.model import Fingerprint, Record, Session, Split, Study
from studytool.pipes import Failed
from studytool.process import WorkerProcess, terms_of
from studytool.runtime import key, lookup

Now = Callable[[], str]


class Progress(NamedTuple):
    """Where a split stands: lines done of those planned in this call, and the case that was just measured.

    `ratio` is frost over backend in it, `noise` the largest share by which legs that ran one plan were apart in 95 % of
    the lines so far, `left_ns` what is left before the deadline; None where there is none.
    """

    done: int
    total: int
    label: str
    ratio: float | None = None
    noise: float | None = None
    left_ns: int | None = None


def time_split(
    job: Job, now: Now, progress: Callable[[Progress], None], new_attempt: str = "", budget: Budget | None = None
) -> Attempt:
    """Return the attempt after every missing line of it was measured, or the budget was spent.

    `new_attempt` is the reason for starting a new one although there is one already; "" goes on with the last. A
    hold-out that cannot end within the budget is not begun: CannotSayError.
    """
    with alone(job.place):
        _begun(job)
        found = job.attempts()
        number = found[-1].number + bool(new_attempt) if found else 1
        current = found[-1] if found and not new_attempt else None
        missing = current.missing if current else frozenset(attempts.planned_cells(job.study, job.split, job.cases))
        if missing:
            predicted_ns = costs.predict_job_ns(job, missing)
            _check_budget(job, predicted_ns, budget)
            run = _Run(job, number, current, missing, now, progress, new_attempt, predicted_ns, budget)
            _measure(run)
        _seal(job, now)
        return job.attempts()[-1]


class _Run(NamedTuple):
    """One call's work: which lines of which attempt, and what the outside gives."""

    job: Job
    number: int
    current: Attempt | None
    missing: frozenset[Cell]
    now: Now
    progress: Callable[[Progress], None]
    reason: str
    predicted_ns: int | None
    budget: Budget | None


def _check_budget(job: Job, predicted_ns: int | None, budget: Budget | None) -> None:
    if budget is None or job.split is not Split.HOLDOUT:
        return
    if predicted_ns is None or predicted_ns > budget.remaining_ns:
        known = "an unknown time" if predicted_ns is None else f"about {predicted_ns / 1e9:.0f} s"
        raise CannotSayError(
            f"{job.dtype} {job.split}: not begun, since it would take {known} and"
            f" {max(0, budget.remaining_ns) / 1e9:.0f} s are left before the deadline"
        )


def seal(job: Job, now: Now) -> None:
    """Write a ledger event for every finished records file that has none, such as one whose process was killed."""
    with alone(job.place):
        _seal(job, now)


def note_driver(job: Job, now: Now, driver: Path) -> None:
    """Keep a copy of a script that was started, and write its name and digest into the ledger."""
    data = read_bytes(driver)
    if problem := ledger.body_problem("driver", {"name": driver.name, "sha256": sha256(data)}):
        raise LedgerError(f"{job.results.ledger}: {problem}")
    with alone(job.place):
        _seal(job, now)
        write_atomic(job.place.driver(driver.name, sha256(data)), data)
        ledger.append(job.results.ledger, now(), "driver", {"name": driver.name, "sha256": sha256(data)})


@contextlib.contextmanager
def alone(place: StudyPlace) -> Iterator[None]:
    """Return a context in which no other process writes a study's records and ledgers; StudyError when one does."""
    lock = filelock.FileLock(place.folder / ".time.lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise StudyError(f"{place.folder}: another process is at work on this study") from None
    except OSError as error:
        raise StudyError(f"{place.folder}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def _begun(job: Job) -> tuple[ledger.Event, ...]:
    """Return the events of the job's ledger, none before its first; LedgerError for one of other frozen cases."""
    path = job.results.ledger
    ledger.drop_torn_tail(path)
    for records in sorted(job.results.records.glob("*.jsonl")):
        sync(records)
    events = ledger.read(path)
    begun = ledger.last(events, "frozen")
    if begun is not None and begun.body["manifest"] != job.frozen.sha256:
        raise LedgerError(f"{path}: the manifest is not the one that this ledger began with")
    return events


def _seal(job: Job, now: Now) -> None:
    path = job.results.ledger
    events = _begun(job)
    if not events:
        marks = line_marks(read_bytes(job.place.manifest))
        ledger.append(path, now(), "frozen", {"manifest": job.frozen.sha256, "marks": marks})
    sealed = {event.body["file"] for event in events if event.event == "session"}
    for file in jsonl.read_all(job.results.records, job.place.root):
        if file.path.name not in sealed:
            body: ledger.Body = {"file": file.path.name, "sha256": file.sha256, "lines": file.lines}
            ledger.append(path, now(), "session", body)


def _measure(run: _Run) -> None:
    job, current = run.job, run.current
    data, table = attempts.table_in_force(job.place, job.split)
    entries = lines.entries_digest(lines.read_table(data, str(job.place.table)), job.study.row, job.dtype)
    process = WorkerProcess(terms_of(job.study))
    try:
        prints = process.fingerprint()  # before anything is written, also by the ledger
        _check_device(job, prints, current, run.missing, entries)
        _seal(job, run.now)
        before = current.files[-1] if current else None
        header = Session(
            schema=model.SCHEMA,
            study=job.study.name,
            manifest=job.frozen.sha256,
            dtype=job.dtype,
            split=job.split,
            attempt=run.number,
            session=len(current.files) + 1 if current else 1,
            table=sha256(data),
            entries=entries,
            started=run.now(),
            reason=run.reason,
            predicted_ns=run.predicted_ns or 0,
            fingerprint=prints,
            prev=before.sha256 if before else "",
        )
        path = job.results.session(job.split, run.number, _next_session(job, run.number))
        with jsonl.Writer(path, header) as writer:
            _repeats(run, process, writer, header, table)
    finally:
        process.stop()


def _next_session(job: Job, attempt: int) -> int:
    """Return a number that no file has, also not one whose first line was torn."""
    number = 1
    while job.results.session(job.split, attempt, number).exists():
        number += 1
    return number


def _check_device(
    job: Job, prints: Fingerprint, current: Attempt | None, missing: frozenset[Cell] | set[Cell], entries: str
) -> None:
    for name, wanted, found in (("cc", job.study.cc, prints.cc), ("board", job.study.board, prints.board)):
        if wanted not in {"host", "any", found}:
            raise DeviceError(f"{job.study.path}: device.{name} is {wanted}; this machine has {found}")
    if current is None:
        return
    first = current.files[0].session
    difference = fingerprint.comparable(first.fingerprint, prints)
    if not difference and first.entries != entries:
        difference = "another table"
    others = [file for file in current.files if file.session.fingerprint.uuid != prints.uuid]
    if not difference and {r.case for file in others for r in file.records} & {case for case, _, _ in missing}:
        difference = "cases of another machine of that board"
    if difference:
        raise StudyError(
            f"{job.split} attempt {current.number} has {current.found} of {current.planned} lines from another state:"
            f" {difference}; start again with --attempt new --reason ..."
        )


def _repeats(run: _Run, process: WorkerProcess, writer: jsonl.Writer, header: Session, table: lookup.Table) -> None:
    job, missing, budget = run.job, run.missing, run.budget
    history = _History(job.study, run.current, header.fingerprint.tick_ns)
    apart: list[float] = []
    left = set(missing)
    for number, repeat in enumerate(sorted({repeat for _, repeat, _ in missing})):
        if number:
            process.start()
        startup = {"startup_ns": process.startup_ns} if job.study.engine != "simulated" else {}
        for cell in _visits(job, repeat, left):
            record = _line(job, process, header, table, cell)
            record = msgspec.structs.replace(record, checks={**record.checks, **startup, **history.look(record)})
            writer.append(record)
            startup = {}
            left.discard(cell)
            if record.checks.get("look_stop"):
                left -= {other for other in left if other[0] == cell[0]}
            if budget is not None:
                budget.spend(int(record.checks.get("took_ns", 0)))
            (row,) = rows.rows_of([(record, header.fingerprint.tick_ns)])
            apart += [abs(math.expm1(value)) for value in rows.aliased_in([row])] if row.health else []
            run.progress(
                Progress(
                    done=len(missing) - len(left),
                    total=len(missing),
                    label=job.cases[cell[0]].label,
                    ratio=math.exp(rows.log_ratio(row, "frost", "backend")) if row.health else None,
                    noise=stats.quantile(apart, 0.95) if apart else None,
                    left_ns=budget.remaining_ns if budget is not None else None,
                )
            )
            if budget is not None and budget.remaining_ns <= 0:
                return


def _visits(job: Job, repeat: int, left: set[Cell]) -> list[Cell]:
    """Return what is left of a repeat in its order of cases, all regimes of a case together."""
    own = sorted({case for case, number, _ in left if number == repeat})
    visited = schedule.case_order(job.study.sha256, job.split, repeat, own)
    cells = [(case, repeat, regime) for case in visited for regime in job.study.protocol.regimes]
    return [cell for cell in cells if cell in left]


class _History:
    """The records of an attempt so far, by case, for the looks of the stop rule."""

    def __init__(self, study: Study, current: Attempt | None, tick_ns: int) -> None:
        self._study, self._tick_ns = study, tick_ns
        self._records: dict[str, list[tuple[Record, int]]] = {}
        for file in current.files if current else ():
            for record in file.records:
                self._records.setdefault(record.case, []).append((record, file.session.fingerprint.tick_ns))

    def look(self, record: Record) -> dict[str, int]:
        """Return what a look says once a record is added, nothing where none is due."""
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


def _line(job: Job, process: WorkerProcess, header: Session, table: lookup.Table, cell: Cell) -> Record:
    digest, repeat, regime = cell
    study, case, prints = job.study, job.cases[digest], header.fingerprint
    answer = lookup.lookup(table, study.row, prints.cc, case.fields, prints.board)
    request = request_of(job, answer, cell)
    found = process.ask(request, study.protocol.case_timeout_s)
    measured = Measured(status=found.status, error=found.error) if isinstance(found, Failed) else found
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
        checks=_told(measured.checks) | ({"took_ns": measured.took_ns} if measured.took_ns else {}),
        error=without_paths(measured.error),
        prev="",
    )


def _told(checks: Mapping[str, int | str]) -> dict[str, int | str]:
    """Return what an engine noted, without the paths that its words may have."""
    return {name: without_paths(value) if isinstance(value, str) else value for name, value in checks.items()}
