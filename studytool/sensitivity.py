"""How much a line depends on the margin and on single cases."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from studytool.fit import Outcome, class_outcome, fit
from studytool.judge import Judged
from studytool.lines import Line, rule_text
from studytool.metrics import PPM, ratio_text
from studytool.runtime import key, lookup
from studytool.studyjson import Summary

MARGINS_PPM = range(PPM // 100, PPM // 5 + 1, PPM // 100)
"""The margins of a sweep: 0.01 to 0.20 by 0.01."""


class Stretch(NamedTuple):
    """A run of margins at which a class has the same line, or none: the first and the last margin, in ppm."""

    class_key: lookup.Key
    rule: str
    first_ppm: int
    last_ppm: int


def sweep(summary: Summary, study_json: bytes, scope: str) -> list[Stretch]:
    """Return, class by class, what it gets at each margin, equal neighbours in one."""
    found: dict[lookup.Key, list[Stretch]] = {}
    for margin_ppm in MARGINS_PPM:
        for outcome in fit(summary, study_json, margin_ppm, scope).outcomes:
            own = found.setdefault(outcome.class_key, [])
            rule = rule_text(outcome.line) or outcome.code
            if own and own[-1].rule == rule:
                own[-1] = own[-1]._replace(last_ppm=margin_ppm)
            else:
                own.append(Stretch(outcome.class_key, rule, margin_ppm, margin_ppm))
    return [stretch for own in found.values() for stretch in own]


def sweep_text(stretches: Sequence[Stretch]) -> str:
    """Return a sweep as text: a line a class, with what it gets from which to which margin."""
    classes: dict[lookup.Key, list[str]] = {}
    for stretch in stretches:
        first, last = (ratio_text(value)[:4] for value in (stretch.first_ppm, stretch.last_ppm))
        span = first if first == last else f"{first}-{last}"
        classes.setdefault(stretch.class_key, []).append(f"{stretch.rule} at {span}")
    names = {class_key: " ".join(map(str, class_key[2:])) for class_key in classes}
    width = max(map(len, names.values()), default=0)
    return "".join(f"{names[name].ljust(width)}  {'; '.join(told)}\n" for name, told in classes.items())


def kept(summary: Summary, outcome: Outcome, margin_ppm: int, scope: str) -> int | None:
    """Return without how many of a class's cases, one at a time, its line decides all others as it does; None: no line.

    A bound may move to the next measured size, as long as no case that is left is decided otherwise.
    """
    if outcome.line is None:
        return None
    full = _led(outcome.line, outcome.judged)
    return sum(
        _led(again.line, again.judged) == full - {left_out.case.digest}
        for left_out, again in _without_each(summary, outcome, margin_ppm, scope)
    )


def _without_each(summary: Summary, outcome: Outcome, margin_ppm: int, scope: str) -> Iterator[tuple[Judged, Outcome]]:
    cases = [item.case for item in outcome.judged]
    for item in outcome.judged:
        rest = [case for case in cases if case.digest != item.case.digest]
        yield item, class_outcome(summary, outcome.class_key, rest, margin_ppm, scope)


def _led(line: Line | None, judged: Sequence[Judged]) -> frozenset[str]:
    """Return the digests of the cases that a line's rule holds for."""
    if line is None:
        return frozenset()
    if not line.axis:
        return frozenset(item.case.digest for item in judged)
    sizes = ((item.case.digest, key.axis_value(item.case.fields, line.axis)) for item in judged)
    above = line.rule.endswith("from")
    return frozenset(digest for digest, size in sizes if (size >= line.bound if above else size <= line.bound))
