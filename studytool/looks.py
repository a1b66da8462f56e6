"""The stop rule: after whole repeats, from the eighth on, a case is measured no more once its interval is narrow.

Declared beforehand as `stop: {half_width: X}`; looking repeatedly costs coverage, so the interval is that of 96 %
(simulated coverage 95.2 %). What is looked at is the width, never the ratio: there is no stopping when significant.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from studytool import stats
from studytool.metrics import PPM
from studytool.model import Protocol, Record, Status

FIRST_LOOK = 8


class Look(NamedTuple):
    """What was seen of a case after a repeat: the half width of its interval as a log, and whether it is enough."""

    half_width: float
    stop: bool

    @property
    def checks(self) -> dict[str, int]:
        """Return the look as it stands in the record of the repeat's last regime."""
        return {"look_half_width_ppm": min(stats.share_ppm(self.half_width), 10**12), "look_stop": int(self.stop)}


def look(protocol: Protocol, records: Sequence[Record], ticks_ns: Sequence[int]) -> Look | None:
    """Return the look at a case's records of whole repeats, None where none is due.

    A case with a line that is not ok is stopped: more repeats do not mend it.
    """
    repeats = {record.repeat for record in records}
    whole = len(records) == len(repeats) * len(protocol.regimes)
    if not protocol.stop_half_width_ppm or not whole or len(repeats) < FIRST_LOOK:
        return None
    if any(record.status is not Status.OK for record in records):
        return Look(0.0, stop=True)
    ratios: dict[str, list[float]] = {}
    for record, tick_ns in zip(records, ticks_ns, strict=True):
        ratios.setdefault(record.regime, []).append(frost_over_backend(record, tick_ns))
    widths = [stats.interval(values, protocol.confidence) for values in ratios.values()]
    half_width = max((found.high - found.low) / 2 for found in widths)
    return Look(half_width, stop=half_width <= protocol.stop_half_width_ppm / PPM)


def frost_over_backend(record: Record, tick_ns: int) -> float:
    """Return the paired ln(frost/backend) of one record."""
    frost, backend = (stats.per_launch_ns(record.legs[leg].ns, record.legs[leg].inner) for leg in ("frost", "backend"))
    return stats.paired_log_ratio(frost, backend, tick_ns, min(min(leg.ns) for leg in record.legs.values()))


def looks_at(
    protocol: Protocol, records: Mapping[int, Sequence[Record]], ticks_ns: Mapping[int, Sequence[int]]
) -> tuple[dict[int, dict[str, int]], int | None]:
    """Return the looks that were due at a case, by repeat, and the repeat after which it is measured no more."""
    seen: list[Record] = []
    ticks: list[int] = []
    due: dict[int, dict[str, int]] = {}
    for repeat in sorted(records):
        seen += records[repeat]
        ticks += ticks_ns[repeat]
        if found := look(protocol, seen, ticks):
            due[repeat] = found.checks
            if found.stop:
                return due, repeat
    return due, None
