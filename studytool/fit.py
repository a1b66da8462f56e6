"""Train summary → entries. Integers decide: the same study.json gives the same bytes on any machine.

The margin is applied to each case in `judge`, and to a region of cases in `support`. A class gets at most one entry:
`always`, or the first of the study's (axis, direction) pairs that has a run of levels without a losing case. In doubt
there is no entry, with a code (`abstain`).
"""

from collections.abc import Sequence
from typing import NamedTuple

from studytool import model
from studytool.abstain import why_not
from studytool.digest import canonical, digest, sha256
from studytool.judge import Judged, judge, known_ratios
from studytool.lines import OPPOSITE, Header, Line, lines_text
from studytool.metrics import geomean_ppm, ratio_text
from studytool.model import Status, Threshold, Verdict
from studytool.runtime import key, lookup
from studytool.studyjson import CaseSummary, Summary
from studytool.support import Support

_RANGES = ("b", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v", "window")
_SETS = ("op", "mask", "heads", "tile")


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
    return Outcome(class_key, judged, None, *why_not(summary, judged))


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
