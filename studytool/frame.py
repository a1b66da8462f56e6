"""Records → DataFrames (pandas begins here): one row a record, and one row a case and regime.

Times are per launch in ns; `ln_a_b` is the paired log ratio of legs a and b, whose sign is below 0 where a is faster.
"""

import itertools
from collections.abc import Iterable

import numpy as np
import pandas as pd

from studytool import stats
from studytool.jsonl import SessionFile
from studytool.model import LEGS, Record, Status

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
    columns += [f"{leg}_{what}" for leg in LEGS for what in ("ns", "plan")]
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
        if leg and leg.ns:
            times[name] = stats.per_launch_ns(leg.ns, leg.inner)
            row[f"{name}_ns"] = float(np.median(times[name]))
    if record.status is Status.OK and record.order:
        shortest = min(min(leg.ns) for leg in record.legs.values())
        for a, b in PAIRS:
            row[f"ln_{a}_{b}"] = stats.paired_log_ratio(times[a], times[b], tick_ns, shortest)
            row[f"alias_{a}_{b}"] = row[f"{a}_plan"] == row[f"{b}_plan"]
    return row


def _host_bound(record: Record) -> bool:
    return any(leg.host_ns and np.median(leg.host_ns) > np.median(leg.ns) for leg in record.legs.values())


def control(table: pd.DataFrame) -> list[float]:
    """Return the log ratio of every pair of legs that ran one plan in all repeats, per case and regime."""
    found: list[float] = []
    for a, b in PAIRS:
        timed = table[table[f"ln_{a}_{b}"].notna()]
        for _, group in timed.groupby(["case", "regime"], sort=True):
            if group[f"alias_{a}_{b}"].all():
                found.append(float(group[f"ln_{a}_{b}"].mean()))
    return found


def band(table: pd.DataFrame) -> float | None:
    """Return the A/A band: the 95th percentile of |ln| over aliased legs; None where no legs are aliased."""
    pairs = control(table)
    return stats.quantile([abs(value) for value in pairs], 0.95) if pairs else None


def pair_interval(group: pd.DataFrame, a: str, b: str) -> stats.Interval:
    """Return ln(a/b) with its interval over the repeats of one case and regime."""
    if (a, b) in PAIRS:
        return stats.interval(group[f"ln_{a}_{b}"].tolist())
    center, low, high = stats.interval(group[f"ln_{b}_{a}"].tolist())
    return stats.Interval(-center, -high, -low)


def leg_ns(group: pd.DataFrame, leg: str) -> float:
    """Return a leg's time per launch in ns: the median over repeats of the median over blocks."""
    return float(group[f"{leg}_ns"].median())
