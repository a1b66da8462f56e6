"""Why a class has no entry: the code and its reason, with the case, the number or the feature that it hangs on."""

import math
from collections.abc import Sequence

from studytool.judge import FROST_FAILURES, Judged, too_noisy
from studytool.metrics import ratio_text
from studytool.model import Status, Verdict
from studytool.runtime import key
from studytool.studyjson import CaseSummary, Summary
from studytool.support import MIN_LEVELS


def why_not(summary: Summary, judged: Sequence[Judged]) -> tuple[str, str]:
    """Return the code (FAILED, NOISE, CONFLICT, SUPPORT, MARGIN) of a class that gets no entry, and the reason."""
    wins, loses, unclear = (
        [item for item in judged if item.verdict is verdict]
        for verdict in (Verdict.WIN, Verdict.LOSE, Verdict.INCONCLUSIVE)
    )
    failed = [item for item in judged if item.case.status in FROST_FAILURES]
    if failed:
        return "FAILED", f"{failed[0].case.label}: {failed[0].case.status}"
    if too_noisy(summary):
        band = ratio_text(summary.band_ppm) if summary.band_ppm >= 0 else "unknown"
        return "NOISE", f"A/A band {band}, limit {ratio_text(summary.decide.noise_limit_ppm)}"
    if wins and (blocking := _blocking(summary, wins, loses)):
        return "CONFLICT", _conflict(summary, wins, blocking)
    if unclear:
        return "NOISE", f"{unclear[0].case.label}: {_unclear(unclear[0].case)}"
    if wins:
        return "SUPPORT", (
            f"{len(wins)} of {len(judged)} cases win; expected {summary.decide.min_support} on {MIN_LEVELS} sizes in a"
            " region where three in four win, and its geomean does"
        )
    if not judged:
        return "SUPPORT", "no case of this class passes the guards"
    best = min(judged, key=lambda item: (item.ratio_ppm, item.case.digest))
    return "MARGIN", f"best {ratio_text(best.ratio_ppm)}: {best.case.label}"


def _unclear(case: CaseSummary) -> str:
    codes = sorted({regime.code for regime in case.regimes.values()} - {""})
    return (
        "too few repeats or regimes" if case.status is Status.OK and not codes else codes[0] if codes else case.status
    )


def _conflict(summary: Summary, wins: Sequence[Judged], blocking: Sequence[Judged]) -> str:
    best = min(wins, key=lambda item: (item.ratio_ppm, item.case.digest))
    worst = max(blocking, key=lambda item: (item.ratio_ppm, item.case.digest))
    ratios = f"{best.case.label} {ratio_text(best.ratio_ppm)}, {worst.case.label} {ratio_text(worst.ratio_ppm)}"
    names = _separating(summary, wins, blocking)
    if not names:
        return f"{ratios}; no single feature separates them"
    fields = [item.case.fields for item in wins]
    guards = {name for name in names if name in key.PREDICATES and all(key.feature(case, name) for case in fields)}
    ways = " or ".join(f"{name} as a {'guard' if name in guards else 'key'}" for name in names)
    return f"{ratios}; {' or '.join(names)} tells them apart: declare {ways}"


def _blocking(summary: Summary, wins: Sequence[Judged], loses: Sequence[Judged]) -> list[Judged]:
    """Return the losing cases among the sizes that win, of the first threshold; none where one leaves them all out."""
    found: list[list[Judged]] = []
    for axis, direction in summary.decide.thresholds:
        sizes = [key.axis_value(item.case.fields, axis) for item in wins]
        low, high = (min(sizes), math.inf) if direction == "from" else (0, max(sizes))
        found.append([item for item in loses if low <= key.axis_value(item.case.fields, axis) <= high])
    return [] if not all(found) else found[0] if found else list(loses)


def _separating(summary: Summary, wins: Sequence[Judged], loses: Sequence[Judged]) -> list[str]:
    """Return the un-keyed features with the fewest values that tell every win from every loss."""
    found: dict[int, list[str]] = {}
    for name in key.FEATURES:
        if name not in summary.class_key:
            sides = [{key.feature(item.case.fields, name) for item in side} for side in (wins, loses)]
            if not sides[0] & sides[1]:
                found.setdefault(len(sides[0] | sides[1]), []).append(name)
    return found[min(found)] if found else []
