"""Train summary → entries. Integers decide: the same study.json gives the same bytes on any machine.

This is where the margin is applied (`judge`). A class gets at most one entry: `always`, or the first of the study's
(axis, direction) pairs that has a run of levels without a losing case. In doubt there is no entry, with a code.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from studytool import model
from studytool.digest import canonical, digest, sha256
from studytool.lines import OPPOSITE, Header, Line, lines_text
from studytool.metrics import PPM, geomean_ppm, ratio_text
from studytool.model import Status, Threshold, Verdict
from studytool.runtime import key, lookup
from studytool.studyjson import CaseSummary, RegimeSummary, Summary
from studytool.support import MIN_LEVELS, Support

MIN_REPEATS = 3
FROST_FAILURES = frozenset(Status) - {Status.OK, Status.REFUSED, Status.NO_BACKEND, Status.UNRESOLVABLE}
"""Statuses that bar a case from being led: the row could not be shown to run it rightly."""

_WORST_FIRST = (Verdict.LOSE, Verdict.INCONCLUSIVE, Verdict.NEUTRAL, Verdict.WIN)
_RANGES = ("b", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v", "window")
_SETS = ("op", "mask", "heads", "tile")


class Judged(NamedTuple):
    """A case with its verdict and its ratio in ppm (the worst over regimes), 0 where there is none."""

    case: CaseSummary
    verdict: Verdict
    ratio_ppm: int


class Outcome(NamedTuple):
    """What became of a class: a line, or the code (SUPPORT, MARGIN, NOISE, CONFLICT, FAILED) and its reason.

    `detail` is the reason, or which case cut the threshold of a line.
    """

    class_key: lookup.Key
    judged: tuple[Judged, ...]
    line: Line | None
    code: str
    detail: str


class Fit(NamedTuple):
    """The outcomes of all classes, sorted by key, and the lines file that they make."""

    outcomes: tuple[Outcome, ...]
    text: str


def fit(summary: Summary, study_json: bytes, margin_ppm: int, scope: str) -> Fit:
    """Return what a train summary decides at a margin; `study_json` are the bytes that the summary was read from."""
    classes: dict[lookup.Key, list[CaseSummary]] = {}
    for case in sorted(summary.cases, key=lambda case: case.digest):
        classes.setdefault(case.class_key, []).append(case)
    outcomes = tuple(
        class_outcome(summary, class_key, classes[class_key], margin_ppm, scope)
        for class_key in sorted(classes, key=canonical)
    )
    header = Header(
        schema=model.SCHEMA,
        study=summary.study,
        dtype=summary.dtype,
        row=summary.row,
        features=summary.class_key,
        margin_ppm=margin_ppm,
        scope=scope,
        study_json=sha256(study_json),
    )
    return Fit(outcomes, lines_text(header, [outcome.line for outcome in outcomes if outcome.line]))


def judge(summary: Summary, case: CaseSummary, margin_ppm: int, *, exchanged: bool) -> Judged:
    """Return the verdict of a case for the row, or for the backend against the row when `exchanged`.

    WIN: ratio <= 1/(1+margin) and its upper bound below 1. LOSE: above max_regret, or the row failed. INCONCLUSIVE:
    too few repeats, a regime missing, or too much noise.
    """
    if case.status in FROST_FAILURES:
        return Judged(case, Verdict.WIN if exchanged else Verdict.LOSE, 0)
    if case.status is not Status.OK or _too_noisy(summary) or _control_fails(summary, case):
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


def _too_noisy(summary: Summary) -> bool:
    return not 0 <= summary.band_ppm <= summary.decide.noise_limit_ppm


def class_outcome(
    summary: Summary, class_key: lookup.Key, cases: Sequence[CaseSummary], margin_ppm: int, scope: str
) -> Outcome:
    """Return what becomes of a class with these cases."""
    allowed = [
        c for c in cases if c.status is not Status.REFUSED and all(key.feature(c.fields, g) for g in summary.guards)
    ]
    leads = [case for case in allowed if case.plans["default"] and case.plans["default"] == case.plans["frost"]]
    exchanged = bool(allowed) and len(leads) == len(allowed)
    judged = tuple(judge(summary, case, margin_ppm, exchanged=exchanged) for case in allowed)
    ways = [("always", None), *((threshold.direction, threshold) for threshold in summary.decide.thresholds)]
    for way, threshold in ways:
        region = (
            _always(summary, judged, margin_ppm) if threshold is None else _run(summary, judged, margin_ppm, threshold)
        )
        if region:
            line = _line(summary, class_key, judged, region, way, threshold, scope, exchanged=exchanged)
            return Outcome(class_key, judged, line, "", "" if threshold is None else _cut(judged, region, line))
    return Outcome(class_key, judged, None, *_why_not(summary, judged))


def _always(summary: Summary, judged: Sequence[Judged], margin_ppm: int) -> list[Judged]:
    if any(_blocks(item) for item in judged):
        return []
    axis = summary.decide.thresholds[0].axis if summary.decide.thresholds else "s_kv"
    support = Support(margin_ppm, summary.decide.min_support)
    _add(support, judged, axis)
    return list(judged) if support.is_enough() else []


def _run(summary: Summary, judged: Sequence[Judged], margin_ppm: int, threshold: Threshold) -> list[Judged]:
    """Return the cases of the longest supported run of levels from the frozen end, none when there is none."""
    levels: dict[int, list[Judged]] = {}
    for item in judged:
        levels.setdefault(key.axis_value(item.case.fields, threshold.axis), []).append(item)
    support = Support(margin_ppm, summary.decide.min_support)
    run: list[Judged] = []
    longest = 0
    for number, level in enumerate(sorted(levels, reverse=threshold.direction == "from")):
        wins = any(item.verdict is Verdict.WIN for item in levels[level])
        if any(_blocks(item) for item in levels[level]) or (number == 0 and not wins):
            break
        _add(support, levels[level], threshold.axis)
        run += levels[level]
        if wins and support.is_enough():
            longest = len(run)
    return run[:longest]


def _cut(judged: Sequence[Judged], region: Sequence[Judged], line: Line) -> str:
    """Return why a threshold is where it is: the nearest size beyond it that loses or is unclear, by its worst case."""
    sizes = {item.case.digest: key.axis_value(item.case.fields, line.axis) for item in judged}
    inside = {item.case.digest for item in region}
    beyond = [item for item in judged if item.case.digest not in inside and _blocks(item)]
    if not beyond:
        return "" if len(region) == len(judged) else "no win beyond"
    nearest = min(
        beyond, key=lambda item: (abs(sizes[item.case.digest] - line.bound), -item.ratio_ppm, item.case.digest)
    )
    ratio = ratio_text(nearest.ratio_ppm) if nearest.ratio_ppm else nearest.case.status
    return f"cut by {nearest.case.label}: {ratio} {nearest.verdict}"


def _add(support: Support, items: Sequence[Judged], axis: str) -> None:
    for item in items:
        level = key.axis_value(item.case.fields, axis)
        support.add(item.ratio_ppm, level, is_win=item.verdict is Verdict.WIN)


def known_ratios(region: Sequence[Judged]) -> list[int]:
    """Return the ratios in ppm of the cases that have one: a row that failed has none."""
    return [item.ratio_ppm for item in region if item.ratio_ppm]


def _blocks(item: Judged) -> bool:
    return item.verdict in {Verdict.LOSE, Verdict.INCONCLUSIVE}


def _line(
    summary: Summary,
    class_key: lookup.Key,
    judged: Sequence[Judged],
    region: Sequence[Judged],
    way: str,
    threshold: Threshold | None,
    scope: str,
    *,
    exchanged: bool,
) -> Line:
    axis, bound = "", 0
    if threshold is not None:
        axis = threshold.axis
        sizes = [key.axis_value(item.case.fields, axis) for item in region]
        bound = min(sizes) if way == "from" else max(sizes)
    rule = OPPOSITE[way] if exchanged else way
    wins = sum(item.verdict is Verdict.WIN for item in region)
    evidence = digest(
        [list(class_key), rule, axis, bound, sorted([item.case.digest, item.ratio_ppm] for item in region)]
    )
    ratios = known_ratios(region)
    comment = (
        f"win {wins}/{len(region)} worst {ratio_text(max(ratios)) if ratios else 'n/a'}"
        f" geomean {ratio_text(geomean_ppm(ratios)) if ratios else 'n/a'}"
        + (f" of {len(judged)}" if len(region) < len(judged) else "")
        + f" ev {evidence[:12]} {_plans(region)}"
    )
    guards: dict[str, lookup.Limit] = dict.fromkeys(sorted(summary.guards), 1)
    whole = _box(summary, [item.case for item in region])
    measured = {name: summary.measured[name] for name in lookup.MEASURED if name in summary.measured}
    flags = {name: limit for name, limit in whole.items() if name in key.FLAGS}  # a look-up asks for these by name
    box = {**measured, **guards, **whole} if scope == "box" else {**guards, **flags}
    return Line(class_key, rule, axis, bound, box, comment)


def _plans(region: Sequence[Judged]) -> str:
    """Return the first plans of both sides that a line rests on, and its case with the least to spare."""
    seen = (sorted({item.case.plans[leg] for item in region}) for leg in ("backend", "frost"))
    backend, frost = (" ".join(plan for plan in plans if plan) or "none" for plans in seen)
    witness = min(region, key=lambda item: (-item.ratio_ppm, item.case.digest))
    return f"plans {backend} | {frost} at {witness.case.label}"


def _box(summary: Summary, cases: Sequence[CaseSummary]) -> dict[str, lookup.Limit]:
    """Return what was measured: the range or the value of every un-keyed size, the set of every un-keyed kind."""
    box: dict[str, lookup.Limit] = {"board": summary.board}
    for name in (*_RANGES, *_SETS, *key.PREDICATES, *key.FLAGS):
        values = sorted({key.feature(case.fields, name) for case in cases}, key=lambda value: (str(type(value)), value))
        if name in summary.class_key or (name in key.FLAGS and values == [key.NEUTRAL[name]]):
            continue
        if len(values) == 1:
            box[name] = values[0]
        elif name in _RANGES or (name in key.FLAGS and name in key.INTEGER_FIELDS):
            box[name] = (int(values[0]), int(values[-1]))
        elif name not in key.PREDICATES:
            box[name] = tuple(str(value) for value in values)
    return box


def _why_not(summary: Summary, judged: Sequence[Judged]) -> tuple[str, str]:
    wins, loses, unclear = (
        [item for item in judged if item.verdict is verdict]
        for verdict in (Verdict.WIN, Verdict.LOSE, Verdict.INCONCLUSIVE)
    )
    failed = [item for item in judged if item.case.status in FROST_FAILURES]
    if failed:
        return "FAILED", f"{failed[0].case.label}: {failed[0].case.status}"
    if _too_noisy(summary):
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
