"""Fill an engine's persistent cache of compiled kernels by several processes at once, before one of them times."""

import contextlib
import queue
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from studytool.attempts import Job, planned_cells
from studytool.costs import Budget
from studytool.errors import StudyError
from studytool.measure import Request
from studytool.model import Status
from studytool.process import WorkerProcess, terms_of
from studytool.progress import Progress
from studytool.sessions import request_of


def prewarm(
    job: Job, processes: int, progress: Callable[[Progress], None], budget: Budget | None = None
) -> Counter[Status]:
    """Return how building the plans of a job's cases ended, in at most so many processes at once; nothing is timed.

    When the budget is spent, or the caller is interrupted, no further case is begun.

    DeviceError where a process cannot open the engine. StudyError for an engine that compiles nothing that is kept.
    """
    if job.study.engine != "cudnn":
        raise StudyError(f"--prewarm: found engine {job.study.engine}; expected cudnn, whose compiled kernels are kept")
    cells = sorted(cell for cell in planned_cells(job.study, job.split, job.cases) if cell[1] == 1)
    first = {cell[0]: cell for cell in reversed(cells)}
    waiting: queue.SimpleQueue[Request] = queue.SimpleQueue()
    for _, cell in sorted(first.items()):
        waiting.put(msgspec.structs.replace(request_of(job, None, cell), orders=()))
    ended: Counter[Status] = Counter()
    workers = min(processes, len(first))
    with ThreadPoolExecutor(workers) as pool:
        try:
            for statuses in pool.map(lambda _: _work(job, waiting, budget), range(workers)):
                ended += statuses
                progress(Progress(ended.total(), len(first), "compiled"))
        finally:
            _drain(waiting)
    return ended


def _drain(waiting: "queue.SimpleQueue[Request]") -> None:
    """Leave nothing to be begun."""
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _work(job: Job, waiting: "queue.SimpleQueue[Request]", budget: Budget | None) -> Counter[Status]:
    """Return how the cases that one process took from the queue ended."""
    ended: Counter[Status] = Counter()
    process = WorkerProcess(terms_of(job.study))
    try:
        while budget is None or budget.remaining_ns > 0:
            try:
                request = waiting.get_nowait()
            except queue.Empty:
                break
            ended[process.ask(request, job.study.protocol.case_timeout_s).status] += 1
        return ended
    finally:
        process.stop()
