"""Hold-out and routing records → the score: regret, noise, routing, coverage. Every number is derived from records.

All numbers are integers: ratios in parts per million, times in ns. Regret of a leg is its time over the faster of
frost and backend, from paired log ratios; noise can put a leg that is the faster one a hair below 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import pandas as pd

from studytool import frame, gate, stats, tally
from studytool.attempts import Attempt
from studytool.metrics import METRICS, PPM, condition_text
from studytool.model import LEGS, SCHEMA, Case, Split, Status, Study
from studytool.runtime import key
from studytool.studyjson import Summary
from studytool.summary import worst_status

Json = dict[str, object]
BETTER_HIGH = frozenset({"auto_over_default_min", "closed_gap"})
"""Metrics whose worst over the regimes is the lowest."""


class Inputs(NamedTuple):
    """What a score is made of: complete attempts at the hold-out and routing splits, their cases, and the rest."""

    study: Study
    dtype: str
    manifest_sha256: str
    summary: Summary
    holdout: Attempt
    holdout_cases: Mapping[str, Case]
    routing: Attempt | None
    routing_cases: Mapping[str, Case]
    unscored: Sequence[tuple[Split, Attempt]]
    has_entries: bool


class _Timed(NamedTuple):
    """One hold-out case in one regime; all ratios as logs."""

    digest: str
    class_key: tuple[key.Value, ...]
    regret: dict[str, float]
    auto_default: stats.Interval
    same_plan: bool
    spreads: list[float]
    entry: Json


def score(inputs: Inputs) -> Json:
    """Return the content of score.json."""
    table = frame.repeats(inputs.holdout.files)
    band = frame.band(table)
    control = [math.exp(value) for value in frame.control(table)]
    limit = inputs.study.decide.noise_limit_ppm / PPM
    timed = _timed_cases(inputs, table, frame.codes(table, limit))
    routing = tally.routing_rows(inputs.routing.files if inputs.routing else (), inputs.routing_cases)
    metrics = _metrics(inputs, timed, band, control, routing)
    checked = gate.check(inputs.study.gate, metrics)
    statuses = tally.statuses(table, inputs.holdout_cases)
    failed = sum(count for status, count in statuses.items() if status not in {Status.OK, Status.REFUSED})
    holds = band is not None and math.expm1(band) <= limit
    opened = _open(inputs, timed, checked, failed, holds=holds)
    return {
        "schema": SCHEMA,
        "study": inputs.study.name,
        "dtype": inputs.dtype,
        "manifest_sha256": inputs.manifest_sha256,
        **_sources(inputs),
        "repeats": inputs.study.protocol.repeats,
        "metrics": metrics,
        "intervals": _intervals(inputs, timed),
        "statuses": statuses,
        "failed": tally.failed_cases(table, inputs.holdout_cases),
        "gate": [
            {"condition": condition_text(item.condition), "value": item.value, "holds": item.holds} for item in checked
        ],
        "verdict": "CANNOT SAY" if not holds or (opened and gate.verdict(checked) != "FAIL") else gate.verdict(checked),
        "open": opened,
        "regimes": _regimes(inputs, timed, band),
        "health": _health(table),
        "coverage": tally.coverage(
            [msgspec.convert(case.fields, Case) for case in inputs.summary.cases], inputs.holdout_cases, table
        ),
        "host_bound": int(table["host_bound"].sum()),
        "unsteady": int((~table["steady"].astype(bool)).sum()),
        "cases": [item.entry for item in timed],
        "routing": routing,
    }


def _sources(inputs: Inputs) -> Json:
    """Return which attempts and records were scored, why an attempt was made, and what was left unscored."""
    return {
        "attempts": {"train": inputs.summary.attempt, "holdout": inputs.holdout.number}
        | ({"routing": inputs.routing.number} if inputs.routing else {}),
        "records": {
            file.path.name: file.sha256
            for attempt in (inputs.holdout, inputs.routing)
            if attempt
            for file in attempt.files
        },
        "reasons": {
            f"{attempt.files[0].session.split} attempt {attempt.number}": attempt.files[0].session.reason
            for attempt in (inputs.holdout, inputs.routing)
            if attempt and attempt.files[0].session.reason
        },
        "unscored": [
            {"split": str(split), "attempt": attempt.number, "lines": attempt.found, "planned": attempt.planned}
            for split, attempt in inputs.unscored
        ],
    }


def _timed_cases(inputs: Inputs, table: pd.DataFrame, codes: Mapping[tuple[str, str], str]) -> list[_Timed]:
    """Return the cases that are ok in every line, per regime, in the order of digest and regime."""
    found = []
    for digest, group in table.groupby("case", sort=True):
        if worst_status(group)[0] is Status.OK:
            for regime, rows in group.groupby("regime", sort=True):
                found.append(_timed(inputs, str(digest), str(regime), rows, codes[str(digest), str(regime)]))
    return found


def _timed(inputs: Inputs, digest: str, regime: str, rows: pd.DataFrame, code: str) -> _Timed:
    case = inputs.holdout_cases[digest]
    against = {leg: {other: _log_ratio(rows, leg, other) for other in ("frost", "backend")} for leg in LEGS}
    regret = {leg: max(values.values()) for leg, values in against.items()}
    auto_default = frame.pair_interval(rows, "auto", "default", inputs.study.protocol.confidence)
    spreads = {leg: stats.spread(rows[f"{leg}_ns"].tolist()) for leg in LEGS}
    first = rows.iloc[0]
    class_key = key.class_key(inputs.study.row, inputs.summary.cc, inputs.study.class_key, case.fields)
    entry: Json = {
        "case": digest,
        "label": case.label,
        "class": list(class_key),
        "regime": regime,
        "code": code,
        "host_bound": bool(rows["host_bound"].any()),
        "lookup": first["lookup"],
        "plans": {leg: first[f"{leg}_plan"] for leg in LEGS},
        "leg_ns": {leg: round(frame.leg_ns(rows, leg)) for leg in LEGS},
        "host_ns": {leg: round(value) for leg in LEGS if (value := rows[f"{leg}_host_ns"].median()) == value},
        "regret_ppm": {leg: stats.ppm(value) for leg, value in regret.items()},
        "frost_over_backend_ppm": stats.ppm(against["frost"]["backend"]),
        "auto_over_default_ppm": [stats.ppm(value) for value in auto_default],
        "spread_ppm": {leg: stats.share_ppm(value) for leg, value in spreads.items()},
    }
    same = bool(rows["alias_auto_default"].all())
    return _Timed(digest, class_key, regret, auto_default, same, list(spreads.values()), entry)


def _log_ratio(rows: pd.DataFrame, leg: str, other: str) -> float:
    return 0.0 if leg == other else frame.pair_interval(rows, leg, other, 0.95).center


def _metrics(
    inputs: Inputs, timed: Sequence[_Timed], band: float | None, control: Sequence[float], routing: Sequence[Json]
) -> dict[str, int | None]:
    """Return the metrics; those of regret and ratio are the worst over the regimes."""
    metrics: dict[str, int | None] = dict.fromkeys(METRICS)
    metrics |= {
        "cases": len(inputs.holdout_cases),
        "cases_timed": len({item.digest for item in timed}),
        "inconclusive": len({item.digest for item in timed if item.entry["code"]}),
        "reached": len({item.digest for item in timed if item.entry["lookup"] is not None}),
        "routing_changed": sum(row["auto"] != row["default"] or row["status"] != Status.OK for row in routing),
        "band": None if band is None else stats.ppm(band) - PPM,
    }
    if not timed:
        return metrics
    for regime in _regimes(inputs, timed, band).values():
        for name, value in regime.items():
            worse = min if name in BETTER_HIGH else max
            metrics[name] = value if metrics[name] is None else worse(value, metrics[name] or 0)
    spreads = [value for item in timed for value in item.spreads]
    slower = {item.digest for item in timed if band is not None and _slower(item, band)}
    metrics |= {
        "slower_beyond_noise": None if band is None else len(slower),
        "spread_median": stats.share_ppm(stats.quantile(spreads, 0.5)),
        "spread_p90": stats.share_ppm(stats.quantile(spreads, 0.9)),
        "spread_max": stats.share_ppm(max(spreads)),
        "control_min": stats.share_ppm(min(control)) if control else None,
        "control_max": stats.share_ppm(max(control)) if control else None,
    }
    return metrics


def _regimes(inputs: Inputs, timed: Sequence[_Timed], band: float | None) -> dict[str, dict[str, int]]:
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
        gap = _closed_gap(inputs.summary, regrets, band)
        found[regime] = values if gap is None else {**values, "closed_gap": gap}
    return found


def _slower(item: _Timed, band: float) -> bool:
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


def _intervals(inputs: Inputs, timed: Sequence[_Timed]) -> Json:
    """Return 95 % bootstrap intervals of geometric means in their worst regime, classes resampled before cases."""
    if not timed:
        return {}
    seed = int(inputs.manifest_sha256[:15], 16)
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


def _open(
    inputs: Inputs, timed: Sequence[_Timed], checked: Sequence[gate.Checked], failed: int, *, holds: bool
) -> list[str]:
    """Return what keeps the gate from an answer, none where it has one."""
    reached = any(item.entry["lookup"] is not None for item in timed)
    reasons = {
        "the A/A band is above the noise limit or unknown": not holds,
        "no hold-out case reaches an entry": inputs.has_entries and not reached,
        f"{failed} hold-out cases failed": failed > 0,
        "a condition has no value": any(item.holds is None for item in checked),
    }
    return [reason for reason, applies in reasons.items() if applies]


def _health(table: pd.DataFrame) -> Json:
    """Return what disturbed the hold-out: the carry-over with its interval, and the largest of the other effects."""
    timed = table[table["drift"].notna()]
    carried = frame.carry_over(timed)
    if carried is None:
        return {}
    return {
        "carry_over_ppm": [stats.ppm(value) for value in carried],
        "position_median_ppm": stats.share_ppm(float(timed["position"].median())),
        "drift_median_ppm": stats.share_ppm(float(timed["drift"].abs().median())),
        "lag1_median_ppm": stats.share_ppm(float(timed["lag1"].median())),
        "trend_max_ppm": stats.share_ppm(float(timed["trend"].abs().max())),
    }
