"""Records → rows: what the raw samples of each record say, in numbers, and what the rows of a split say together.

Times are per launch in ns; ratios are logs, below 0 where the first of two legs is faster. Records of equally many
blocks are computed together, as arrays.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from studytool import noise, stats
from studytool.jsonl import SessionFile
from studytool.model import LEGS, LegRecord, Record, Status
from studytool.noise import Health, Samples

Cell = tuple[str, str]
"""A case digest and a regime."""

Pairs = Mapping[Cell, Sequence[float]]
"""Per case and regime the log ratios of aliased legs: those that ran one plan."""

PAIRS = tuple(itertools.combinations(LEGS, 2))
_PAIR_LEGS = tuple((LEGS.index(a), LEGS.index(b)) for a, b in PAIRS)
_TOGETHER = 512
"""Records that are computed together at most, so that memory stays bounded."""

_NO_LEG = LegRecord(plan=None)


class Row(NamedTuple):
    """One record in numbers; `plans`, `names`, `ns` and `host_ns` by leg in the order of LEGS, `ln` by pair of PAIRS.

    `ns` is the median over blocks; nan, and `health` None, where there are no samples.
    """

    case: str
    repeat: int
    regime: str
    status: Status
    error: str
    lookup: bool | None
    plans: tuple[str, ...]
    names: tuple[str, ...]
    steady: bool
    host_bound: bool
    ns: tuple[float, ...]
    host_ns: tuple[float, ...]
    ln: tuple[float, ...]
    health: Health | None


class _Numbers(NamedTuple):
    ns: tuple[float, ...]
    ln: tuple[float, ...]
    health: Health


_NOTHING = _Numbers((math.nan,) * len(LEGS), (math.nan,) * len(PAIRS), Health(*(math.nan,) * len(Health._fields)))


def rows(files: Iterable[SessionFile]) -> list[Row]:
    """Return one row per record, in their order."""
    return rows_of([(record, file.session.fingerprint.tick_ns) for file in files for record in file.records])


def rows_of(records: Sequence[tuple[Record, int]]) -> list[Row]:
    """Return one row per record, each with its clock's tick in ns, in their order."""
    numbers: dict[int, _Numbers] = {}
    alike: dict[int, list[int]] = {}
    for place, (record, _) in enumerate(records):
        if record.status is Status.OK and record.order:
            alike.setdefault(len(record.order), []).append(place)
    for places in alike.values():
        for start in range(0, len(places), _TOGETHER):
            own = places[start : start + _TOGETHER]
            numbers |= zip(own, _numbers([records[place] for place in own]), strict=True)
    return [_row(record, numbers.get(place)) for place, (record, _) in enumerate(records)]


def _numbers(timed: Sequence[tuple[Record, int]]) -> list[_Numbers]:
    """Return the numbers of records that have equally many blocks, each with its clock's tick in ns."""
    samples = Samples.of(timed)
    medians = stats.medians(samples.ns).tolist()
    found = zip(medians, _ratios(samples).tolist(), noise.healths(samples), strict=True)
    return [_Numbers(tuple(ns), tuple(ln), health) for ns, ln, health in found]


def log_ratios(record: Record, tick_ns: int) -> dict[tuple[str, str], float]:
    """Return ln(a/b) of each pair of legs of one record as its row has them, without the rest; {} without samples."""
    if record.status is not Status.OK or not record.order:
        return {}
    (ratios,) = _ratios(Samples.of([(record, tick_ns)])).tolist()
    return dict(zip(PAIRS, ratios, strict=True))


def _ratios(samples: Samples) -> stats.Floats:
    """Return what stats.paired_log_ratio says of each record and pair of legs, (R, 6)."""
    one, other = ([pair[side] for pair in _PAIR_LEGS] for side in (0, 1))
    ratios = stats.medians(samples.logs[:, one] - samples.logs[:, other])
    if samples.coarse.any():
        means = np.log(samples.ns.mean(axis=2))
        ratios = np.where(samples.coarse[:, None], means[:, one] - means[:, other], ratios)
    return ratios


def _row(record: Record, found: _Numbers | None) -> Row:
    legs = [record.legs.get(name, _NO_LEG) for name in LEGS]
    plans = [leg.plan for leg in legs]
    numbers = _NOTHING if found is None else found
    return Row(
        case=record.case,
        repeat=record.repeat,
        regime=record.regime,
        status=record.status,
        error=record.error,
        lookup=record.lookup,
        plans=tuple(plan.identity if plan else "" for plan in plans),
        names=tuple(plan.name if plan else "" for plan in plans),
        steady=bool(record.checks.get("steady", 1)),
        host_bound=any(map(_host_bound, legs)),
        ns=numbers.ns,
        host_ns=tuple(stats.median(leg.host_ns) / leg.inner if leg.host_ns else math.nan for leg in legs),
        ln=numbers.ln,
        health=None if found is None else found.health,
    )


def _host_bound(leg: LegRecord) -> bool:
    """Return whether a leg's host time exceeds its device time, or is in a sample that could not be had without it."""
    slow = bool(leg.host_ns) and stats.median(leg.host_ns) > stats.median(leg.ns)
    return slow or ("gap" in leg.counters and any(leg.counters["gap"]))


def by_case(found: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each case, cases in the order of their digests, rows in theirs."""
    cases: dict[str, list[Row]] = {}
    for row in found:
        cases.setdefault(row.case, []).append(row)
    return dict(sorted(cases.items()))


def by_regime(found: Iterable[Row]) -> dict[str, list[Row]]:
    """Return the rows of each regime, regimes by name."""
    regimes: dict[str, list[Row]] = {}
    for row in found:
        regimes.setdefault(row.regime, []).append(row)
    return dict(sorted(regimes.items()))


def timed_cells(found: Iterable[Row]) -> dict[Cell, list[Row]]:
    """Return the rows with samples of each case and regime, sorted, repeats in their order."""
    cells: dict[Cell, list[Row]] = {}
    for row in found:
        if row.health is not None:
            cells.setdefault((row.case, row.regime), []).append(row)
    return {cell: sorted(own, key=lambda row: row.repeat) for cell, own in sorted(cells.items())}


def aliased(cells: Mapping[Cell, Sequence[Row]]) -> Pairs:
    """Return per case and regime the log ratio of each pair of legs that ran one plan in all repeats."""
    return {cell: aliased_in(own) for cell, own in cells.items()}


def aliased_in(own: Sequence[Row]) -> list[float]:
    """Return the log ratio of each pair of legs that ran one plan in all of these repeats of a case and regime."""
    plans = {row.plans for row in own}
    same = [pair for pair, (a, b) in enumerate(_PAIR_LEGS) if all(found[a] == found[b] for found in plans)]
    return [stats.mean([row.ln[pair] for row in own]) for pair in same]


def control(pairs: Pairs) -> list[float]:
    """Return the log ratio of every pair of legs that ran one plan in all repeats, of all cases and regimes."""
    return [value for own in pairs.values() for value in own]


def band(pairs: Pairs) -> float | None:
    """Return the A/A band: the 95th percentile of |ln| over aliased legs; None where no legs are aliased."""
    found = control(pairs)
    return stats.quantile([abs(value) for value in found], 0.95) if found else None


def healths(cells: Mapping[Cell, Sequence[Row]]) -> dict[Cell, list[Health]]:
    """Return per case and regime the health of each record with samples."""
    return {cell: [row.health for row in own if row.health is not None] for cell, own in cells.items()}


def codes(
    cells: Mapping[Cell, Sequence[Row]], pairs: Pairs, noise_limit: float, *, apart: bool = False
) -> dict[Cell, str]:
    """Return per case and regime the code of what fails in it, "" where nothing does.

    `apart`: the boards of the split do not agree, so that nothing of it can be said.
    """
    floor, carried, limit = band(pairs), carry_over(cells), math.log1p(noise_limit)
    whole = "CARRY" if carried is not None and noise.beyond(carried, limit) else ""
    whole = "CONTROL" if floor is None or floor > limit else whole
    whole = "BOARDS" if apart else whole
    return {cell: noise.case_code(own, pairs[cell], noise_limit) or whole for cell, own in healths(cells).items()}


def carry_over(cells: Mapping[Cell, Sequence[Row]]) -> stats.Interval | None:
    """Return the carry-over after frost over all timed cases, with its interval over repeats."""
    return noise.carry_over(list(healths(cells).values()))


def log_ratio(row: Row, a: str, b: str) -> float:
    """Return ln(a/b) of one record."""
    return row.ln[PAIRS.index((a, b))] if (a, b) in PAIRS else -row.ln[PAIRS.index((b, a))]


def pair_interval(own: Sequence[Row], a: str, b: str, confidence: float) -> stats.Interval:
    """Return ln(a/b) with its interval over the repeats of one case and regime."""
    return stats.interval([log_ratio(row, a, b) for row in own], confidence)


def leg_ns(own: Sequence[Row], leg: str) -> float:
    """Return a leg's time per launch in ns: the median over repeats of the median over blocks."""
    return stats.median([row.ns[LEGS.index(leg)] for row in own])


def worst_status(own: Iterable[Row]) -> tuple[Status, str]:
    """Return how a case ended over all of its lines: ok only when every line is and a leg kept its plan throughout."""
    rows_of_case = list(own)
    if bad := [row for row in rows_of_case if row.status is not Status.OK]:
        first = min(bad, key=lambda row: (row.repeat, row.regime))
        return first.status, first.error
    for regime in by_regime(rows_of_case).values():
        for place, leg in enumerate(LEGS):
            if len(plans := sorted({row.plans[place] for row in regime})) > 1:
                return Status.DECLINED, f"leg {leg} ran plans {' and '.join(plans)} in different repeats"
    return Status.OK, ""
