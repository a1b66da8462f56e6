"""Records → DataFrames (pandas begins here): one row a record, and one row a case and regime.

Times are per launch in ns; `ln_a_b` is the paired log ratio of legs a and b, whose sign is below 0 where a is faster.
"""

import itertools
from collections.abc import Iterable

import numpy as np
import pandas as pd

from studytool import noise, stats
from studytool.jsonl import SessionFile
from studytool.model import LEGS, Record, Status
from studytool.noise import Health

Cell = tuple[str, str]
"""A case digest and a regime."""

PAIRS = tuple(itertools.combinations(LEGS, 2))


def repeats(files: Iterable[SessionFile]) -> pd.DataFrame:
    """Return one row per record.

    Columns: case, repeat, regime, status, error, lookup; per leg `LEG_ns` (median over blocks) and `LEG_plan`; per
    pair of legs `ln_A_B` and `alias_A_B` (whether both ran one plan).
    """
    rows = [_row(record, file.session.fingerprint.tick_ns) for file in files for record in file.records]
    return pd.DataFrame(rows, columns=_columns()).astype({"lookup": object})


def _columns() -> list[str]:
    columns = ["case", "repeat", "regime", "status", "error", "lookup", "host_bound", "steady"]
    columns += [f"{leg}_{what}" for leg in LEGS for what in ("ns", "host_ns", "plan", "name")]
    columns += list(Health._fields)
    return columns + [f"{what}_{a}_{b}" for a, b in PAIRS for what in ("ln", "alias")]


def _row(record: Record, tick_ns: int) -> dict[str, object]:
    row: dict[str, object] = {
        "case": record.case,
        "repeat": record.repeat,
        "regime": record.regime,
        "status": str(record.status),
        "error": record.error,
        "lookup": record.lookup,
        "host_bound": _host_bound(record),
        "steady": bool(record.checks.get("steady", 1)),
    }
    times = {}
    for name in LEGS:
        leg = record.legs.get(name)
        row[f"{name}_plan"] = leg.plan.identity if leg and leg.plan else ""
        row[f"{name}_name"] = leg.plan.name if leg and leg.plan else ""
        if leg and leg.ns:
            times[name] = stats.per_launch_ns(leg.ns, leg.inner)
            row[f"{name}_ns"] = float(np.median(times[name]))
            row[f"{name}_host_ns"] = float(np.median(leg.host_ns)) / leg.inner if leg.host_ns else float("nan")
    if record.status is Status.OK and record.order:
        shortest = min(min(leg.ns) for leg in record.legs.values())
        for a, b in PAIRS:
            row[f"ln_{a}_{b}"] = stats.paired_log_ratio(times[a], times[b], tick_ns, shortest)
            row[f"alias_{a}_{b}"] = row[f"{a}_plan"] == row[f"{b}_plan"]
        row |= noise.health(record, tick_ns)._asdict()
    return row


def _host_bound(record: Record) -> bool:
    """Return whether a leg's host time exceeds its device time, or is in a sample that could not be had without it."""
    legs = record.legs.values()
    slower = any(leg.host_ns and np.median(leg.host_ns) > np.median(leg.ns) for leg in legs)
    return slower or any(any(leg.counters.get("gap", ())) for leg in legs)


def control(table: pd.DataFrame) -> list[float]:
    """Return the log ratio of every pair of legs that ran one plan in all repeats, of all cases and regimes."""
    return [value for pairs in aliased(table).values() for value in pairs]


def aliased(table: pd.DataFrame) -> dict[Cell, list[float]]:
    """Return per case and regime the log ratio of each pair of legs that ran one plan in all repeats."""
    timed = table[table["status"] == Status.OK].dropna(subset=["drift"])
    if timed.empty:
        return {}
    columns = {what: [f"{what}_{a}_{b}" for a, b in PAIRS] for what in ("ln", "alias")}
    grouped = timed.astype(dict.fromkeys(columns["alias"], bool)).groupby(["case", "regime"], sort=True)
    means, same = grouped[columns["ln"]].mean(), grouped[columns["alias"]].all()
    return {
        (str(cell[0]), str(cell[1])): [float(value) for value, alike in zip(values, flags, strict=True) if alike]
        for cell, values, flags in zip(means.index, means.to_numpy(), same.to_numpy(), strict=True)
    }


def band(table: pd.DataFrame) -> float | None:
    """Return the A/A band: the 95th percentile of |ln| over aliased legs; None where no legs are aliased."""
    pairs = control(table)
    return stats.quantile([abs(value) for value in pairs], 0.95) if pairs else None


def healths(table: pd.DataFrame) -> dict[Cell, list[Health]]:
    """Return per case and regime the health of each timed record, in the order of the repeats."""
    found: dict[Cell, list[Health]] = {}
    timed = table[table["status"] == Status.OK].dropna(subset=["drift"]).sort_values(["case", "regime", "repeat"])
    cells = zip(timed["case"], timed["regime"], strict=True)
    for cell, values in zip(cells, timed[list(Health._fields)].itertuples(index=False), strict=True):
        found.setdefault((str(cell[0]), str(cell[1])), []).append(Health(*values))
    return found


def codes(table: pd.DataFrame, noise_limit: float) -> dict[Cell, str]:
    """Return per case and regime the code of what fails in it, "" where nothing does."""
    floor, carried, pairs, limit = band(table), carry_over(table), aliased(table), np.log1p(noise_limit)
    whole = "CARRY" if carried is not None and noise.beyond(carried, limit) else ""
    whole = "CONTROL" if floor is None or floor > limit else whole
    return {
        cell: noise.case_code(own, pairs.get(cell, []), noise_limit) or whole for cell, own in healths(table).items()
    }


def carry_over(table: pd.DataFrame) -> stats.Interval | None:
    """Return the carry-over after frost over all timed cases, with its interval over repeats."""
    return noise.carry_over(list(healths(table).values()))


def pair_interval(group: pd.DataFrame, a: str, b: str, confidence: float) -> stats.Interval:
    """Return ln(a/b) with its interval over the repeats of one case and regime."""
    if (a, b) in PAIRS:
        return stats.interval(group[f"ln_{a}_{b}"].tolist(), confidence)
    center, low, high = stats.interval(group[f"ln_{b}_{a}"].tolist(), confidence)
    return stats.Interval(-center, -high, -low)


def leg_ns(group: pd.DataFrame, leg: str) -> float:
    """Return a leg's time per launch in ns: the median over repeats of the median over blocks."""
    return float(group[f"{leg}_ns"].median())
