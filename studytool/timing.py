"""The parent of the workers: which lines are missing, a fresh process per repeat, one record per line, sealed files.

It alone writes records. A crash, a hang or a defect costs one line and the worker, not the run.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock
import msgspec

from studytool import jsonl, ledger, sessions
from studytool.attempts import Attempt, Job
from studytool.costs import Budget
from studytool.digest import line_marks, sha256
from studytool.errors import LedgerError, StudyError
from studytool.files import read_bytes, sync, write_atomic
from studytool.lanes import Shard
from studytool.layout import StudyPlace
from studytool.model import Session
from studytool.process import WorkerProcess, terms_of
from studytool.progress import Progress
from studytool.sessions import Applied, History, Now, Run


def time_split(
    job: Job,
    now: Now,
    progress: Callable[[Progress], None],
    new_attempt: str = "",
    budget: Budget | None = None,
    shard: Shard | None = None,
) -> Attempt:
    """Return the attempt after every missing line of it was measured, or the budget was spent.

    `new_attempt` is the reason for starting a new one although there is one already; "" goes on with the last. A
    hold-out that cannot end within the budget is not begun: CannotSayError. With a shard its lines alone are measured,
    in a lane of its own; other shards may do so at the same time, and the ledger is told when they are merged.
    """
    with alone(job.place, shard.lane if shard else ""):
        begun(job) if shard is None else _same_manifest(job, ledger.read(job.results.ledger))
        run = sessions.plan_run(job, now, progress, new_attempt, budget, shard.lane if shard else "", shard)
        if run.missing:
            _measure(run)
        if shard is None:
            seal_held(job, now)
        return sessions.attempt_of(run)


def seal(job: Job, now: Now, *, lanes: bool = False) -> None:
    """Write a ledger event for every finished records file that has none, such as one whose process was killed.

    Those of lanes, which others may be writing, only when asked for, and of the job's split alone.
    """
    with alone(job.place):
        seal_held(job, now, lanes=lanes)


def note_driver(job: Job, now: Now, driver: Path) -> None:
    """Keep a copy of a script that was started, and write its name and digest into the ledger."""
    data = read_bytes(driver)
    if problem := ledger.body_problem("driver", {"name": driver.name, "sha256": sha256(data)}):
        raise LedgerError(f"{job.results.ledger}: {problem}")
    with alone(job.place):
        seal_held(job, now)
        write_atomic(job.place.driver(driver.name, sha256(data)), data)
        ledger.append(job.results.ledger, now(), "driver", {"name": driver.name, "sha256": sha256(data)})


@contextlib.contextmanager
def alone(place: StudyPlace, lane: str = "") -> Iterator[None]:
    """Return a context in which no other process writes a study's records and ledgers; StudyError when one does.

    With a lane, its records alone: other lanes may be written at the same time.
    """
    lock = filelock.FileLock(place.folder / f".time{lane and '.'}{lane}.lock", timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        at_work = f"on shard {lane.replace('of', '/')} of this study" if lane else "on this study"
        raise StudyError(f"{place.folder}: another process is at work {at_work}") from None
    except OSError as error:
        raise StudyError(f"{place.folder}: cannot be written: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def begun(job: Job) -> tuple[ledger.Event, ...]:
    """Return the events of the job's ledger, none before its first; LedgerError for one of other frozen cases."""
    path = job.results.ledger
    ledger.drop_torn_tail(path)
    for records in sorted(job.results.records.glob("*.jsonl")):
        sync(records)
    events = ledger.read(path)
    _same_manifest(job, events)
    return events


def _same_manifest(job: Job, events: tuple[ledger.Event, ...]) -> None:
    begun = ledger.last(events, "frozen")
    if begun is not None and begun.body["manifest"] != job.frozen.sha256:
        raise LedgerError(f"{job.results.ledger}: the manifest is not the one that this ledger began with")


def seal_held(job: Job, now: Now, *, lanes: bool = False) -> None:
    """Write an event for every records file that has none; of lanes for those of the job's split, and only if asked."""
    path = job.results.ledger
    events = begun(job)
    if not events:
        marks = line_marks(read_bytes(job.place.manifest))
        ledger.append(path, now(), "frozen", {"manifest": job.frozen.sha256, "marks": marks})
    sealed = ledger.sealed(events)
    for file in jsonl.read_all(job.results.records, job.place.root):
        own = not file.session.lane or (lanes and file.session.split is job.split)
        if file.path.name not in sealed and own:
            body: ledger.Body = {"file": file.path.name, "sha256": file.sha256, "lines": file.lines}
            ledger.append(path, now(), "session", body)


def _measure(run: Run) -> None:
    table = sessions.applied(run.job)
    process = WorkerProcess(terms_of(run.job.study))
    try:
        prints = process.fingerprint()  # before anything is written, also by the ledger
        sessions.check_device(run, prints, table)
        if not run.lane:
            seal_held(run.job, run.now)
        header = sessions.header(run, prints, table)
        with jsonl.Writer(sessions.path(run), header) as writer:
            _repeats(run, process, writer, header, table)
    finally:
        process.stop()


def _repeats(run: Run, process: WorkerProcess, writer: jsonl.Writer, header: Session, table: Applied) -> None:
    job, budget, tick_ns = run.job, run.budget, header.fingerprint.tick_ns
    history, teller, left = History(job.study, run.files, tick_ns), run.teller(), set(run.missing)
    for number, repeat in enumerate(sorted({repeat for _, repeat, _ in run.missing})):
        if number:
            process.start()
        startup_ns = process.startup_ns
        for cell in sessions.visits(job, repeat, left):
            answer = sessions.answer_of(job, header.fingerprint, table, cell[0])
            found = process.ask(sessions.request_of(job, answer, cell), job.study.protocol.case_timeout_s)
            record = sessions.record_of(job, header, answer, cell, found, startup_ns)
            record = msgspec.structs.replace(record, checks={**record.checks, **history.look(record)})
            writer.append(record)
            startup_ns = 0
            left.discard(cell)
            if record.checks.get("look_stop"):
                left -= {other for other in left if other[0] == cell[0]}
            if budget is not None:
                budget.spend(int(record.checks.get("took_ns", 0)))
            teller.tell(record, tick_ns, len(left))
            if budget is not None and budget.remaining_ns <= 0:
                return
