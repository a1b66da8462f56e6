"""How far a measurement is, told after each line."""

import math
from collections import deque
from collections.abc import Callable, Mapping
from typing import NamedTuple

from studytool import rows, stats
from studytool.model import Case, Record

LATELY = 1000
"""Over so many ratios of legs that ran one plan the noise is told meanwhile."""


class Progress(NamedTuple):
    """Where a split stands: lines done of those planned in this call, and the case that was just measured.

    `ratio` is frost over backend in it, `noise` the largest share by which legs that ran one plan were apart in 95 % of
    the last lines, `left_ns` what is left before the deadline; None where there is none.
    """

    done: int
    total: int
    label: str
    ratio: float | None = None
    noise: float | None = None
    left_ns: int | None = None


class Teller:
    """Says after each line how far a call is: done of total, the ratio just seen, and the noise lately.

    `left_ns` returns what is left before the deadline, None where there is none.
    """

    def __init__(
        self,
        cases: Mapping[str, Case],
        total: int,
        progress: Callable[[Progress], None],
        left_ns: Callable[[], int | None],
    ) -> None:
        self._cases, self._total, self._progress, self._left_ns = cases, total, progress, left_ns
        self._apart: deque[float] = deque(maxlen=LATELY)

    def tell(self, record: Record, tick_ns: int, left: int) -> None:
        """Say that a line was measured, and that so many are left."""
        ratios = rows.log_ratios(record, tick_ns)
        plans = {leg: own.plan and own.plan.identity for leg, own in record.legs.items()}
        self._apart.extend(abs(math.expm1(value)) for (a, b), value in ratios.items() if plans[a] == plans[b])
        self._progress(
            Progress(
                done=self._total - left,
                total=self._total,
                label=self._cases[record.case].label,
                ratio=math.exp(-ratios["backend", "frost"]) if ratios else None,
                noise=stats.quantile(list(self._apart), 0.95) if self._apart else None,
                left_ns=self._left_ns(),
            )
        )
