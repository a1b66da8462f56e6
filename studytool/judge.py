"""What a case says of the row at a margin: a verdict and a ratio. This is where the margin is applied to a case."""

from collections.abc import Sequence
from typing import NamedTuple

from studytool.metrics import PPM
from studytool.model import Status, Verdict
from studytool.studyjson import CaseSummary, RegimeSummary, Summary

MIN_REPEATS = 3
FROST_FAILURES = frozenset(Status) - {Status.OK, Status.REFUSED, Status.NO_BACKEND, Status.UNRESOLVABLE}
"""Statuses that bar a case from being led: the row could not be shown to run it rightly."""

_WORST_FIRST = (Verdict.LOSE, Verdict.INCONCLUSIVE, Verdict.NEUTRAL, Verdict.WIN)


class Judged(NamedTuple):
    """A case with its verdict and its ratio in ppm (the worst over regimes), 0 where there is none."""

    case: CaseSummary
    verdict: Verdict
    ratio_ppm: int


def judge(summary: Summary, case: CaseSummary, margin_ppm: int, *, exchanged: bool) -> Judged:
    """Return the verdict of a case for the row, or for the backend against the row when `exchanged`.

    WIN: ratio <= 1/(1+margin) and its upper bound below 1. LOSE: above max_regret, or the row failed. INCONCLUSIVE:
    too few repeats, a regime missing, or too much noise.
    """
    if case.status in FROST_FAILURES:
        return Judged(case, Verdict.WIN if exchanged else Verdict.LOSE, 0)
    if case.status is not Status.OK or too_noisy(summary) or _control_fails(summary, case):
        return Judged(case, Verdict.INCONCLUSIVE, max((r.ratio_ppm for r in case.regimes.values()), default=0))
    found = [_judge_regime(summary, regime, margin_ppm, exchanged=exchanged) for regime in case.regimes.values()]
    verdict = next(verdict for verdict in _WORST_FIRST if verdict in {v for v, _ in found})
    return Judged(case, verdict, max(ratio for _, ratio in found))


def _judge_regime(summary: Summary, regime: RegimeSummary, margin_ppm: int, *, exchanged: bool) -> tuple[Verdict, int]:
    ratio, high = regime.ratio_ppm, regime.high_ppm
    if exchanged:
        ratio, high = (-(-PPM * PPM // value) for value in (regime.ratio_ppm, regime.low_ppm))
    if regime.repeats < MIN_REPEATS:
        return Verdict.INCONCLUSIVE, ratio
    if ratio > (summary.decide.max_regret_ppm or PPM + summary.band_ppm):
        return Verdict.LOSE, ratio
    if ratio * (PPM + margin_ppm) <= PPM * PPM and high < PPM:
        return Verdict.WIN, ratio
    return Verdict.NEUTRAL, ratio


def _control_fails(summary: Summary, case: CaseSummary) -> bool:
    return set(case.regimes) != set(summary.regimes) or any(regime.code for regime in case.regimes.values())


def too_noisy(summary: Summary) -> bool:
    """Return whether the A/A band is above the noise limit, or unknown: no ratio is believed then."""
    return not 0 <= summary.band_ppm <= summary.decide.noise_limit_ppm


def known_ratios(region: Sequence[Judged]) -> list[int]:
    """Return the ratios in ppm of the cases that have one: a row that failed has none."""
    return [item.ratio_ppm for item in region if item.ratio_ppm]
