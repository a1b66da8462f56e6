"""How long a split will take, from what lines took before: for `time --plan` and for deadlines."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from studytool.attempts import Attempt, Cell, Job, planned_cells, table_in_force
from studytool.jsonl import SessionFile
from studytool.model import Case, Record, Split
from studytool.runtime import lookup


class Budget:
    """A deadline: `elapsed_ns` is wall time since its beginning, or, without a clock, what was spent by `spend`."""

    def __init__(self, total_ns: int, clock: Callable[[], int] | None) -> None:
        self._total_ns, self._clock, self._spent_ns = total_ns, clock, 0
        self._begin_ns = clock() if clock else 0

    @property
    def remaining_ns(self) -> int:
        """Return what is left, below 0 when the deadline is past."""
        elapsed = self._clock() - self._begin_ns if self._clock else self._spent_ns
        return self._total_ns - elapsed

    def spend(self, took_ns: int) -> None:
        """Count the virtual time that a line of a simulated device took."""
        self._spent_ns += took_ns


class _Known(NamedTuple):
    """What lines took before: per case and regime, per op and regime over work, each also with auto on frost's plan."""

    cases: Mapping[tuple[str, str, bool], float]
    sizes: Mapping[tuple[str, str, bool], list[tuple[float, float]]]
    startup_ns: float


def took_ns(file: SessionFile) -> int:
    """Return what a session's lines took, starts of processes included."""
    return sum(int(record.checks.get(name, 0)) for record in file.records for name in ("took_ns", "startup_ns"))


def predict_ns(
    attempts: Iterable[Attempt], cases: Mapping[str, Case], missing: Iterable[Cell], led: Collection[str]
) -> int | None:
    """Return how long the missing lines will take, None where nothing like them was measured yet.

    `attempts` are those at any split of the dtype, `cases` the cases of all splits by digest, `led` the digests of
    those whose auto leg runs frost's plan.
    """
    known = _known(attempts, cases)
    cells = list(missing)
    lines = [_line_ns(known, cases[case], case, regime, case in led) for case, _, regime in cells]
    if not all(line is not None for line in lines):
        return None
    return round(sum(line or 0.0 for line in lines) + known.startup_ns * len({repeat for _, repeat, _ in cells}))


def _known(attempts: Iterable[Attempt], cases: Mapping[str, Case]) -> _Known:
    took: dict[tuple[str, str, bool], list[float]] = {}
    starts: list[int] = []
    for attempt in attempts:
        for file in attempt.files:
            for record in file.records:
                if record.order and "took_ns" in record.checks:
                    for is_led in (False, True):
                        took.setdefault((record.case, record.regime, is_led), []).append(_took_ns(record, is_led))
                starts += [int(record.checks["startup_ns"])] if "startup_ns" in record.checks else []
    means = {cell: float(np.mean(values)) for cell, values in took.items()}
    sizes: dict[tuple[str, str, bool], list[tuple[float, float]]] = {}
    for (case, regime, is_led), mean in means.items():
        sizes.setdefault((cases[case].op, regime, is_led), []).append((_work(cases[case]), mean))
    return _Known(
        means, {name: sorted(points) for name, points in sizes.items()}, float(np.mean(starts)) if starts else 0
    )


def _took_ns(record: Record, is_led: bool) -> float:
    """Return what a line took, or would have taken with auto on the other side of the table's answer."""
    spent = {name: sum(leg.ns) * (1 + (leg.inner > 1) / leg.inner) for name, leg in record.legs.items()}
    was_led = record.lookup is True
    change = (
        0.0 if is_led == was_led else spent["frost"] - spent["auto"] if is_led else spent["backend"] - spent["auto"]
    )
    return int(record.checks["took_ns"]) + change


def _work(case: Case) -> float:
    """Return a case's size: the multiplications of its two matrix products."""
    return float(case.b * case.h_q * case.s_q * case.s_kv * (case.d_qk + case.d_v))


def _line_ns(known: _Known, case: Case, digest: str, regime: str, is_led: bool) -> float | None:
    """Return what a line will take: what it took, or between the measured cases of its op that are next in size.

    Above the largest the time grows with the work, below the smallest it stays.
    """
    if (digest, regime, is_led) in known.cases:
        return known.cases[digest, regime, is_led]
    points = known.sizes.get((case.op, regime, is_led))
    if not points:
        return None
    work, largest = _work(case), points[-1]
    logs = np.log(np.array(points))
    inside = math.exp(float(np.interp(math.log(work), logs[:, 0], logs[:, 1])))
    return inside * max(1.0, work / largest[0])


def predict_job_ns(job: Job, missing: frozenset[Cell]) -> int | None:
    """Return how long these lines will take from what lines of this dtype took before, None where none did yet.

    Routing lines, which time nothing, count as nothing.
    """
    if job.split is Split.ROUTING:
        return 0
    before = [attempt for split in job.study.splits for attempt in job._replace(split=split).attempts()]
    cases = {digest: case for split in job.study.splits for digest, case in job.frozen.of(job.dtype, split).items()}
    predicted_ns = predict_ns(before, cases, missing, _led(job, before))
    return None if predicted_ns is None else round(predicted_ns * _share_measured(job))


class Weights(NamedTuple):
    """How long the lines of each case will take, and the start of a process, in any one unit; 0 where not known."""

    cases: Mapping[str, float]
    start: float


def weights(job: Job, cells: Mapping[str, Collection[Cell]]) -> Weights:
    """Return how long the lines of cases will take: predicted, or by their size where nothing was measured yet."""
    before = [attempt for split in job.study.splits for attempt in job._replace(split=split).attempts()]
    cases = {digest: case for split in job.study.splits for digest, case in job.frozen.of(job.dtype, split).items()}
    known, led = _known(before, cases), _led(job, before)
    lines = {
        case: [_line_ns(known, cases[case], case, regime, case in led) for _, _, regime in own]
        for case, own in cells.items()
    }
    if any(line is None for own in lines.values() for line in own):
        return Weights({case: _work(cases[case]) * len(own) for case, own in cells.items()}, 0.0)
    return Weights({case: sum(line or 0.0 for line in own) for case, own in lines.items()}, known.startup_ns)


def _led(job: Job, before: list[Attempt]) -> frozenset[str]:
    """Return the digests of the job's cases that the table in force leads, on the board that measured before."""
    if not before or not job.place.table.exists():
        return frozenset()
    prints, (_, table) = before[-1].files[-1].session.fingerprint, table_in_force(job.place, job.split)
    return frozenset(
        digest
        for digest, case in job.cases.items()
        if lookup.lookup(table, job.study.row, prints.cc, case.fields, prints.board) is True
    )


def _share_measured(job: Job) -> float:
    """Return which share of the planned lines the stop rule left of the train split, 1 without one."""
    train = job._replace(split=Split.TRAIN)
    done = [attempt for attempt in train.attempts() if not attempt.missing]
    return done[-1].planned / len(planned_cells(job.study, Split.TRAIN, train.cases)) if done else 1.0
