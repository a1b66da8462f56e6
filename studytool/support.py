"""Whether a region of judged cases supports a line, told while it grows case by case."""

import math

from studytool.metrics import PPM

MIN_LEVELS = 3
_DOUBT = 1e-9
"""Sums of logarithms this close to the bound, per case, are decided by exact integers."""


class Support:
    """The cases of a region so far: how many win, on which levels, and their geometric mean against the margin.

    The decision is that of exact integers; logarithms only spare it where it is plain, since a product of many
    thousands of ratios is slow.
    """

    def __init__(self, margin_ppm: int, min_support: int) -> None:
        self._margin_ppm, self._min_support = margin_ppm, min_support
        self._cases, self._wins, self._log_sum = 0, 0, 0.0
        self._levels: set[int] = set()
        self._ratios: list[int] = []

    def add(self, ratio_ppm: int, level: int, *, is_win: bool) -> None:
        """Take in a case; `ratio_ppm` is 0 where it has none."""
        self._cases += 1
        if is_win:
            self._wins += 1
            self._levels.add(level)
        if ratio_ppm:
            self._ratios.append(ratio_ppm)
            self._log_sum += math.log(ratio_ppm / PPM)

    def is_enough(self) -> bool:
        """Return whether enough cases win, on enough levels, three in four, with a geomean at most 1/(1+margin)."""
        if self._wins < self._min_support or len(self._levels) < MIN_LEVELS or 4 * self._wins < 3 * self._cases:
            return False
        count = len(self._ratios)
        over = self._log_sum + count * math.log1p(self._margin_ppm / PPM)
        if abs(over) > _DOUBT * count:
            return over < 0
        # The geometric mean of n ratios r is at most 1/(1+m) when prod(r) * (1+m)^n is at most 1: exact in integers.
        return bool(math.prod(self._ratios) * (PPM + self._margin_ppm) ** count <= (PPM * PPM) ** count)
