"""Which cases wait for a board, and which of them it is given: the longest first, and what was lost by itself."""

import heapq
from collections import Counter
from collections.abc import Iterable

from studytool.attempts import Cell
from studytool.costs import Weights

MOST_CASES = 16
"""Cases that a board takes at once at most: as many are lost with it."""

MOST_LOSSES = 3
"""A case that so many boards were lost with is not tried again: it may be why."""

STARTS = 0.8
"""How long a share takes at least, in starts of its processes: with more, boards end less together, with less, they
start processes all the time (benchmarks/fleet.py)."""

SHARES = 4
"""A board takes a share of what is left, by predicted time, of which each board would have so many."""


class Waiting:
    """Cases that any board may take, by predicted time, and how often each case was lost with one.

    A share of a board has one start of a process for each of `repeats`.
    """

    def __init__(self, cases: Iterable[str], weights: Weights, repeats: int) -> None:
        self._weights, self._least = weights.cases, STARTS * weights.start * repeats
        self._queue = [(-self._weights[case], case) for case in sorted(cases)]
        heapq.heapify(self._queue)  # the longest first, so that none is left for the end
        self._total = sum(self._weights[case] for _, case in self._queue)
        self._losses: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._queue)

    def put_back(self, case: str) -> None:
        """Have a case wait that a board was given and did not end."""
        heapq.heappush(self._queue, (-self._weights[case], case))
        self._total += self._weights[case]

    def lose(self, case: str) -> bool:
        """Note that a case was lost with a board, and return whether it may be tried again."""
        self._losses[case] += 1
        return self.may_be_tried(case)

    def may_be_tried(self, case: str) -> bool:
        """Return whether a case was not lost too often."""
        return self._losses[case] < MOST_LOSSES

    def one_by_one(self, cells: dict[str, set[Cell]]) -> dict[str, set[Cell]]:
        """Return cases that a board may have at once: one alone where it was lost with a board, none that was often."""
        kept = {case: own for case, own in cells.items() if self.may_be_tried(case)}
        lost = sorted(case for case in kept if self._losses[case])
        untried = {case: own for case, own in kept.items() if not self._losses[case]}
        return untried or {case: kept[case] for case in lost[:1]}

    def share(self, boards: int) -> list[str]:
        """Return the longest cases that wait, as many as make the share of one of so many boards; they wait no more.

        A share takes nearly as long as the starts of its processes at least.
        """
        share = max(self._least, self._total / (SHARES * boards))
        taken: list[str] = []
        weight = 0.0
        while self._queue and len(taken) < MOST_CASES and (not taken or weight - self._queue[0][0] <= share):
            if taken and self._losses[self._queue[0][1]]:  # it was lost with a board, and goes out alone
                break
            _, case = heapq.heappop(self._queue)
            taken.append(case)
            weight += self._weights[case]
            if self._losses[case]:
                break
        self._total -= weight
        return taken
