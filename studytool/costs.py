"""How long a split will take, from what lines took before: for `time --plan` and for deadlines."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import numpy as np

from studytool.attempts import Attempt, Cell
from studytool.jsonl import SessionFile
from studytool.model import Case


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
    """What lines took before: per case and regime, per op and regime over work, and a process's start."""

    cases: Mapping[tuple[str, str], float]
    sizes: Mapping[tuple[str, str], list[tuple[float, float]]]
    startup_ns: float


def took_ns(file: SessionFile) -> int:
    """Return what a session's lines took, starts of processes included."""
    return sum(int(record.checks.get(name, 0)) for record in file.records for name in ("took_ns", "startup_ns"))


def predict_ns(attempts: Iterable[Attempt], cases: Mapping[str, Case], missing: Iterable[Cell]) -> int | None:
    """Return how long the missing lines will take, None where nothing like them was measured yet.

    `attempts` are those at any split of the dtype, `cases` the cases of all splits by digest.
    """
    known = _known(attempts, cases)
    cells = list(missing)
    lines = [_line_ns(known, cases[case], case, regime) for case, _, regime in cells]
    if not all(line is not None for line in lines):
        return None
    return round(sum(line or 0.0 for line in lines) + known.startup_ns * len({repeat for _, repeat, _ in cells}))


def _known(attempts: Iterable[Attempt], cases: Mapping[str, Case]) -> _Known:
    took: dict[tuple[str, str], list[int]] = {}
    starts: list[int] = []
    for attempt in attempts:
        for file in attempt.files:
            for record in file.records:
                if record.order and "took_ns" in record.checks:
                    took.setdefault((record.case, record.regime), []).append(int(record.checks["took_ns"]))
                starts += [int(record.checks["startup_ns"])] if "startup_ns" in record.checks else []
    means = {cell: float(np.mean(values)) for cell, values in took.items()}
    sizes: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (case, regime), mean in means.items():
        sizes.setdefault((cases[case].op, regime), []).append((_work(cases[case]), mean))
    return _Known(
        means, {name: sorted(points) for name, points in sizes.items()}, float(np.mean(starts)) if starts else 0
    )


def _work(case: Case) -> float:
    """Return a case's size: the multiplications of its two matrix products."""
    return float(case.b * case.h_q * case.s_q * case.s_kv * (case.d_qk + case.d_v))


def _line_ns(known: _Known, case: Case, digest: str, regime: str) -> float | None:
    """Return what a line will take: what it took, or between the measured cases of its op that are next in size.

    Above the largest the time grows with the work, below the smallest it stays.
    """
    if (digest, regime) in known.cases:
        return known.cases[digest, regime]
    points = known.sizes.get((case.op, regime))
    if not points:
        return None
    work, largest = _work(case), points[-1]
    logs = np.log(np.array(points))
    inside = math.exp(float(np.interp(math.log(work), logs[:, 0], logs[:, 1])))
    return inside * max(1.0, work / largest[0])
