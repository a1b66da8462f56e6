"""Each hold-out case in numbers, regime by regime, and what regret and ratio come to over the cases.

Regret of a leg is its time over the faster of frost and backend, from paired log ratios; noise can put a leg that is
the faster one a hair below 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from studytool import rows, stats
from studytool.metrics import PPM
from studytool.model import LEGS, Case, Status, Study
from studytool.rows import Row
from studytool.runtime import key
from studytool.studyjson import Summary

Json = dict[str, object]


class Timed(NamedTuple):
    """One hold-out case in one regime; all ratios as logs."""

    digest: str
    class_key: tuple[key.Value, ...]
    regret: dict[str, float]
    auto_default: stats.Interval
    same_plan: bool
    spreads: list[float]
    entry: Json


def timed_cases(
    study: Study, cc: str, cases: Mapping[str, Case], found: Sequence[Row], codes: Mapping[rows.Cell, str]
) -> list[Timed]:
    """Return the cases that are ok in every line, per regime, in the order of digest and regime."""
    return [
        _timed(study, cc, cases[digest], repeats, codes[digest, regime])
        for digest, own in rows.by_case(found).items()
        if rows.worst_status(own)[0] is Status.OK
        for regime, repeats in rows.by_regime(own).items()
    ]


def _timed(study: Study, cc: str, case: Case, own: Sequence[Row], code: str) -> Timed:
    first = own[0]
    against = {leg: {other: _log_ratio(own, leg, other) for other in ("frost", "backend")} for leg in LEGS}
    regret = {leg: max(values.values()) for leg, values in against.items()}
    auto_default = rows.pair_interval(own, "auto", "default", study.protocol.confidence)
    spreads = {leg: stats.spread([row.ns[place] for row in own]) for place, leg in enumerate(LEGS)}
    class_key = key.class_key(study.row, cc, study.class_key, case.fields)
    hosts = {leg: [v for row in own if not math.isnan(v := row.host_ns[place])] for place, leg in enumerate(LEGS)}
    entry: Json = {
        "case": first.case,
        "label": case.label,
        "class": list(class_key),
        "regime": first.regime,
        "code": code,
        "host_bound": any(row.host_bound for row in own),
        "lookup": first.lookup,
        "plans": dict(zip(LEGS, first.plans, strict=True)),
        "leg_ns": {leg: round(rows.leg_ns(own, leg)) for leg in LEGS},
        "host_ns": {leg: round(stats.median(told)) for leg, told in hosts.items() if told},
        "regret_ppm": {leg: stats.ppm(value) for leg, value in regret.items()},
        "frost_over_backend_ppm": stats.ppm(against["frost"]["backend"]),
        "auto_over_default_ppm": [stats.ppm(value) for value in auto_default],
        "spread_ppm": {leg: stats.share_ppm(value) for leg, value in spreads.items()},
    }
    auto, default = LEGS.index("auto"), LEGS.index("default")
    same = all(row.plans[auto] == row.plans[default] for row in own)
    return Timed(first.case, class_key, regret, auto_default, same, list(spreads.values()), entry)


def _log_ratio(own: Sequence[Row], leg: str, other: str) -> float:
    return 0.0 if leg == other else rows.pair_interval(own, leg, other, 0.95).center


def regimes(timed: Sequence[Timed], summary: Summary, band: float | None) -> dict[str, dict[str, int]]:
    """Return the metrics of each regime by itself."""
    found = {}
    for regime in sorted({str(item.entry["regime"]) for item in timed}):
        own = [item for item in timed if item.entry["regime"] == regime]
        regrets = {leg: [item.regret[leg] for item in own] for leg in LEGS}
        ratios = [item.auto_default.center for item in own]
        values = {f"regret_{leg}_geomean": stats.ppm(stats.geomean_log(logs)) for leg, logs in regrets.items()}
        values |= {f"regret_{leg}_max": stats.ppm(max(regrets[leg])) for leg in ("default", "auto")}
        values["auto_over_default_geomean"] = stats.ppm(stats.geomean_log(ratios))
        values["auto_over_default_min"] = stats.ppm(min(ratios))
        values["auto_over_default_max"] = stats.ppm(max(ratios))
        gap = _closed_gap(summary, regrets, band)
        found[regime] = values if gap is None else {**values, "closed_gap": gap}
    return found


def slower(item: Timed, band: float) -> bool:
    """Return whether an entry made a case slower beyond noise; legs of one plan can differ by noise only."""
    return not item.same_plan and item.auto_default.center > band and item.auto_default.low > 0


def _closed_gap(summary: Summary, regrets: Mapping[str, Sequence[float]], band: float | None) -> int | None:
    """Return which share of the gap between the better fixed choice (by the train split) and the oracle auto closes.

    1 is the oracle, 0 the fixed choice; None where the gap is within twice the noise floor.
    """
    logs = [math.log(r.ratio_ppm / PPM) for case in summary.cases for r in case.regimes.values()]
    fixed = "frost" if logs and sum(logs) < 0 else "backend"
    gap = stats.geomean_log(regrets[fixed])
    if band is None or gap <= 2 * band:
        return None
    return stats.share_ppm((gap - stats.geomean_log(regrets["auto"])) / gap)


def intervals(timed: Sequence[Timed], manifest_sha256: str) -> Json:
    """Return 95 % bootstrap intervals of geometric means in their worst regime, classes resampled before cases."""
    if not timed:
        return {}
    seed = int(manifest_sha256[:15], 16)
    found: Json = {}
    for name in ("regret_default_geomean", "regret_auto_geomean", "auto_over_default_geomean"):
        regimes: dict[object, dict[str, list[float]]] = {}
        for item in timed:
            value = item.auto_default.center if name.startswith("auto") else item.regret[name.split("_")[1]]
            regimes.setdefault(item.entry["regime"], {}).setdefault(str(item.class_key), []).append(value)
        worst = max(
            regimes.values(), key=lambda classes: stats.geomean_log([v for own in classes.values() for v in own])
        )
        groups = [worst[class_key] for class_key in sorted(worst)]
        found[name] = [stats.ppm(value) for value in stats.bootstrap_mean(groups, seed)]
    return found
