"""Whether the boards of a split agree: the anchors, which each of them measured, held against one another."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from studytool import noise, rows, stats
from studytool.model import Record
from studytool.rows import Row


class Anchor(NamedTuple):
    """One anchor in one regime: ln(frost/backend) by lane and, in it, by repeat."""

    case: str
    regime: str
    ratios: Mapping[str, Mapping[int, float]]


class Compared(NamedTuple):
    """The anchors, per regime and lane how far that one is off the others, and the lanes that are too far off."""

    anchors: Sequence[Anchor]
    offsets: Mapping[str, Mapping[str, stats.Interval]]
    apart: Sequence[str]


def compare(anchored: Mapping[str, Sequence[tuple[Record, int]]], band: float | None, confidence: float) -> Compared:
    """Return the boards of a split held against one another, by the records of their anchors with the clock's tick."""
    found = anchors({lane: rows.rows_of(own) for lane, own in anchored.items()})
    off = offsets(found, confidence)
    return Compared(found, off, disagreeing(off, band))


def anchors(lanes: Mapping[str, Sequence[Row]]) -> list[Anchor]:
    """Return the anchors that at least two lanes have samples of, in the order of digest and regime."""
    found: dict[tuple[str, str], dict[str, dict[int, float]]] = {}
    for lane, own in sorted(lanes.items()):
        for cell, repeats in rows.timed_cells(own).items():
            ratios = {row.repeat: rows.log_ratio(row, "frost", "backend") for row in repeats}
            found.setdefault(cell, {})[lane] = ratios
    return [Anchor(*cell, ratios) for cell, ratios in sorted(found.items()) if len(ratios) > 1]


def offsets(found: Sequence[Anchor], confidence: float) -> dict[str, dict[str, stats.Interval]]:
    """Return per regime and lane how far its ratios are off those of the other lanes, with the interval over repeats.

    In each repeat, which is a process of its own, it is the mean over the anchors that all lanes measured in it.
    """
    regimes: dict[str, dict[str, stats.Interval]] = {}
    for regime in sorted({anchor.regime for anchor in found}):
        own = [anchor.ratios for anchor in found if anchor.regime == regime]
        lanes = sorted({lane for ratios in own for lane in ratios})
        shared = [ratios for ratios in own if len(ratios) == len(lanes)]
        repeats = (
            sorted(set.intersection(*(set(one) for ratios in shared for one in ratios.values()))) if shared else []
        )
        if not repeats:
            continue
        regimes[regime] = {}
        for lane in lanes:
            off = [
                stats.mean([r[lane][p] - stats.mean([r[x][p] for x in lanes if x != lane]) for r in shared])
                for p in repeats
            ]
            regimes[regime][lane] = stats.interval(off, confidence)
    return regimes


def disagreeing(found: Mapping[str, Mapping[str, stats.Interval]], band: float | None) -> list[str]:
    """Return the lanes whose ratios are off those of the others by more than the A/A band, with the whole interval."""
    limit = 0.0 if band is None else band
    return sorted({lane for own in found.values() for lane, off in own.items() if noise.beyond(off, limit)})
