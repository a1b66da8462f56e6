"""The parent of the workers: which lines are missing, a fresh process per repeat, one record per line, sealed files.

It alone writes records. A crash, a hang or a defect costs one line and the worker, not the run.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import filelock

from studytool import attempts, fingerprint, jsonl, ledger, lines, model, schedule
from studytool.attempts import Attempt, Cell, Job
from studytool.digest import line_marks, rank, sha256
from studytool.errors import CannotSayError, DeviceError, LedgerError, StudyError
from studytool.files import read_bytes
from studytool.layout import StudyPlace
from studytool.measure import Measured, Request
from studytool.model import Fingerprint, Record, Session, Split
from studytool.process import Failed, WorkerProcess
from studytool.runtime import key, lookup

Now = Callable[[], str]


class Progress(NamedTuple):
    """Where a split stands: lines done of those planned in this call, and the case that was just measured."""

    done: int
    total: int
    label: str


def time_split(job: Job, now: Now, progress: Callable[[Progress], None], new_attempt: str = "") -> Attempt:
    """Return the attempt after every missing line of it was measured.

    `new_attempt` is the reason for starting a new one although there is one already; "" goes on with the last.
    """
    with _alone(job.place):
        _seal(job, now)
        found = job.attempts()
        number = found[-1].number + bool(new_attempt) if found else 1
        current = found[-1] if found and not new_attempt else None
        missing = current.missing if current else attempts.planned_cells(job.study, job.split, job.cases)
        if missing:
            _measure(job, number, current, missing, now, progress, new_attempt)
            _seal(job, now)
        return job.attempts()[-1]


def seal(job: Job, now: Now) -> None:
    """Write a ledger event for every finished records file that has none, such as one whose process was killed."""
    with _alone(job.place):
        _seal(job, now)


@contextlib.contextmanager
def _alone(place: StudyPlace) -> Iterator[None]:
    lock = filelock.FileLock(place.folder / ".time.lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise StudyError(f"{place.folder}: another process is timing this study") from None
    except OSError as error:
        raise StudyError(f"{place.folder}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def _seal(job: Job, now: Now) -> None:
    path = job.results.ledger
    events = ledger.read(path)
    begun = ledger.last(events, "frozen")
    if begun is None:
        marks = line_marks(read_bytes(job.place.manifest))
        ledger.append(path, now(), "frozen", {"manifest": job.frozen.sha256, "marks": marks})
    elif begun.body["manifest"] != job.frozen.sha256:
        raise LedgerError(f"{path}: the manifest is not the one that this ledger began with")
    sealed = {event.body["file"] for event in events if event.event == "session"}
    for file in jsonl.read_all(job.results.records, job.place.root):
        if file.path.name not in sealed:
            body: ledger.Body = {"file": file.path.name, "sha256": file.sha256, "lines": file.lines}
            ledger.append(path, now(), "session", body)


def table_in_force(place: StudyPlace, split: Split) -> tuple[bytes, lookup.Table]:
    """Return the bytes and the content of the study's table; the train split may be timed before there is one."""
    if not place.table.exists():
        if split is not Split.TRAIN:
            raise CannotSayError(f"{place.table}: not there; expected gen.py and `studytool apply` to have been run")
        return lines.EMPTY.encode(), lookup.EMPTY
    data = read_bytes(place.table)
    lines.read_table(data, str(place.table))
    return data, lines.parse_table(data, str(place.table))


def _measure(
    job: Job,
    number: int,
    current: Attempt | None,
    missing: frozenset[Cell] | set[Cell],
    now: Now,
    progress: Callable[[Progress], None],
    reason: str,
) -> None:
    data, table = table_in_force(job.place, job.split)
    entries = lines.entries_digest(lines.read_table(data, str(job.place.table)), job.study.row, job.dtype)
    process = WorkerProcess(job.study)
    try:
        prints = process.fingerprint()
        _check_device(job, prints, current, missing, entries)
        before = current.files[-1] if current else None
        header = Session(
            schema=model.SCHEMA,
            study=job.study.name,
            manifest=job.frozen.sha256,
            dtype=job.dtype,
            split=job.split,
            attempt=number,
            session=len(current.files) + 1 if current else 1,
            table=sha256(data),
            entries=entries,
            started=now(),
            reason=reason,
            fingerprint=prints,
            prev=before.sha256 if before else "",
        )
        path = job.results.session(job.split, number, _next_session(job, number))
        with jsonl.Writer(path, header) as writer:
            _repeats(job, process, writer, header, table, missing, progress)
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


def _repeats(
    job: Job,
    process: WorkerProcess,
    writer: jsonl.Writer,
    header: Session,
    table: lookup.Table,
    missing: frozenset[Cell] | set[Cell],
    progress: Callable[[Progress], None],
) -> None:
    done, fresh = 0, True
    for repeat in sorted({repeat for _, repeat, _ in missing}):
        if not fresh:
            process.start()
        fresh = False
        visited = schedule.case_order(job.study.sha256, job.split, repeat, [c for c, r, _ in missing if r == repeat])
        for digest in dict.fromkeys(visited):
            for regime in job.study.protocol.regimes:
                if (digest, repeat, regime) in missing:
                    writer.append(_line(job, process, header, table, (digest, repeat, regime)))
                    done += 1
                    progress(Progress(done, len(missing), job.cases[digest].label))


def _line(job: Job, process: WorkerProcess, header: Session, table: lookup.Table, cell: Cell) -> Record:
    digest, repeat, regime = cell
    study, case, prints = job.study, job.cases[digest], header.fingerprint
    answer = lookup.lookup(table, study.row, prints.cc, case.fields, prints.board)
    timed = job.split is not Split.ROUTING
    blocks = study.protocol.blocks
    request = Request(
        case=case,
        regime=regime,
        orders=schedule.block_orders(study.sha256, digest, repeat, regime, blocks) if timed else (),
        base=study.base,
        lookup=answer,
        seed=int(rank(study.sha256, digest, repeat)[:12], 16),
        process_seed=int(rank(study.sha256, job.split, repeat)[:12], 16),
        distribution=study.protocol.distributions[(repeat - 1) % len(study.protocol.distributions)],
        min_sample_ns=study.protocol.min_sample_ns,
    )
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
        checks=measured.checks,
        error=measured.error,
        prev="",
    )
