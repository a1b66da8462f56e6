"""Hold-out and routing records → the score: regret, noise, routing, coverage. Every number is derived from records.

All numbers are integers: ratios in parts per million, times in ns. Regret of a leg is its time over the faster of
frost and backend, from paired log ratios; noise can put a leg that is the faster one a hair below 1.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from studytool import boards, gate, rows, stats, tally
from studytool.attempts import Attempt
from studytool.lines import NO_ENTRIES
from studytool.metrics import METRICS, PPM, condition_text
from studytool.model import LEGS, SCHEMA, Case, Split, Status, Study
from studytool.rows import Row
from studytool.runtime import key
from studytool.studyjson import Summary

Json = dict[str, object]
BETTER_HIGH = frozenset({"auto_over_default_min", "closed_gap"})
"""Metrics whose worst over the regimes is the lowest."""


class Unscored(NamedTuple):
    """An attempt that is not scored; `verdict` is what the gate would say of a whole one with the same entries."""

    split: Split
    attempt: Attempt
    verdict: str
    reason: str


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
    unscored: Sequence[Unscored]


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
    found = rows.rows(inputs.holdout.files)
    cells = rows.timed_cells(found)
    pairs = rows.aliased(cells)
    band = rows.band(pairs)
    control = [math.exp(value) for value in rows.control(pairs)]
    limit = inputs.study.decide.noise_limit_ppm / PPM
    compared = boards.compare(inputs.holdout.anchored, band, inputs.study.protocol.confidence)
    timed = _timed_cases(inputs, found, rows.codes(cells, pairs, limit, apart=bool(compared.apart)))
    routing = tally.routing_rows(inputs.routing.files if inputs.routing else (), inputs.routing_cases)
    metrics = _metrics(inputs, timed, band, control, routing)
    checked = gate.check(inputs.study.gate, metrics)
    statuses = tally.statuses(found, inputs.holdout_cases)
    failed = sum(count for status, count in statuses.items() if status not in {Status.OK, Status.REFUSED})
    holds = band is not None and math.expm1(band) <= limit
    opened = _open(inputs, timed, checked, failed, holds=holds)
    opened += [f"BOARDS: anchors of {', '.join(compared.apart)} are off those of the others"] if compared.apart else []
    unsaid = not holds or compared.apart
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
        "failed": tally.failed_cases(found, inputs.holdout_cases),
        "gate": [
            {"condition": condition_text(item.condition), "value": item.value, "holds": item.holds} for item in checked
        ],
        "verdict": "CANNOT SAY" if unsaid or (opened and gate.verdict(checked) != "FAIL") else gate.verdict(checked),
        "open": opened,
        "regimes": _regimes(inputs, timed, band),
        "health": _health(cells),
        "boards": _boards(inputs, compared),
        "coverage": tally.coverage(
            [msgspec.convert(case.fields, Case) for case in inputs.summary.cases], inputs.holdout_cases, found
        ),
        "host_bound": sum(row.host_bound for row in found),
        "unsteady": sum(not row.steady for row in found),
        "cases": [item.entry for item in timed],
        "routing": routing,
    }


def _boards(inputs: Inputs, compared: boards.Compared) -> Json:
    """Return which boards measured the hold-out, in which lanes, and the anchors that each of them measured."""
    sessions = [file.session for file in inputs.holdout.files]
    anchors = [
        {
            "case": anchor.case,
            "label": inputs.holdout_cases[anchor.case].label,
            "regime": anchor.regime,
            "frost_over_backend_ppm": {
                lane: stats.ppm(stats.mean(list(own.values()))) for lane, own in anchor.ratios.items()
            },
        }
        for anchor in compared.anchors
    ]
    return {
        "boards": sorted({session.fingerprint.uuid for session in sessions}),
        "lanes": {session.lane: session.fingerprint.uuid for session in sessions if session.lane},
        "neighbours": max(int(session.fingerprint.device.get("neighbours", "0")) for session in sessions),
        "anchors": anchors,
        "offsets_ppm": {
            regime: {lane: [stats.ppm(value) for value in off] for lane, off in own.items()}
            for regime, own in compared.offsets.items()
        },
        "apart": list(compared.apart),
    }


def moved(routing: Sequence[Json]) -> list[Json]:
    """Return the rows of routing cases that do not keep their plan."""
    return [row for row in routing if row["auto"] != row["default"] or row["status"] != Status.OK]


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
            {
                "split": str(split),
                "attempt": attempt.number,
                "lines": attempt.found,
                "planned": attempt.planned,
                "verdict": verdict,
                "reason": reason,
            }
            for split, attempt, verdict, reason in inputs.unscored
        ],
    }


def _timed_cases(inputs: Inputs, found: Sequence[Row], codes: Mapping[rows.Cell, str]) -> list[_Timed]:
    """Return the cases that are ok in every line, per regime, in the order of digest and regime."""
    return [
        _timed(inputs, regime, repeats, codes[digest, regime])
        for digest, own in rows.by_case(found).items()
        if rows.worst_status(own)[0] is Status.OK
        for regime, repeats in rows.by_regime(own).items()
    ]


def _timed(inputs: Inputs, regime: str, own: Sequence[Row], code: str) -> _Timed:
    first = own[0]
    case = inputs.holdout_cases[first.case]
    against = {leg: {other: _log_ratio(own, leg, other) for other in ("frost", "backend")} for leg in LEGS}
    regret = {leg: max(values.values()) for leg, values in against.items()}
    auto_default = rows.pair_interval(own, "auto", "default", inputs.study.protocol.confidence)
    spreads = {leg: stats.spread([row.ns[place] for row in own]) for place, leg in enumerate(LEGS)}
    class_key = key.class_key(inputs.study.row, inputs.summary.cc, inputs.study.class_key, case.fields)
    hosts = {leg: [v for row in own if not math.isnan(v := row.host_ns[place])] for place, leg in enumerate(LEGS)}
    entry: Json = {
        "case": first.case,
        "label": case.label,
        "class": list(class_key),
        "regime": regime,
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
    return _Timed(first.case, class_key, regret, auto_default, same, list(spreads.values()), entry)


def _log_ratio(own: Sequence[Row], leg: str, other: str) -> float:
    return 0.0 if leg == other else rows.pair_interval(own, leg, other, 0.95).center


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
        "routing_changed": len(moved(routing)),
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
        "no hold-out case reaches an entry": inputs.holdout.files[0].session.entries != NO_ENTRIES and not reached,
        f"{failed} hold-out cases failed": failed > 0,
        "a condition has no value": any(item.holds is None for item in checked),
    }
    return [reason for reason, applies in reasons.items() if applies]


def _health(cells: Mapping[rows.Cell, Sequence[Row]]) -> Json:
    """Return what disturbed the hold-out: the carry-over with its interval, and the largest of the other effects."""
    carried = rows.carry_over(cells)
    if carried is None:
        return {}
    found = [item for own in rows.healths(cells).values() for item in own]
    return {
        "carry_over_ppm": [stats.ppm(value) for value in carried],
        "position_median_ppm": stats.share_ppm(stats.median([item.position for item in found])),
        "drift_median_ppm": stats.share_ppm(stats.median([abs(item.drift) for item in found])),
        "lag1_median_ppm": stats.share_ppm(stats.median([item.lag1 for item in found])),
        "trend_max_ppm": stats.share_ppm(max(abs(item.trend) for item in found)),
    }
