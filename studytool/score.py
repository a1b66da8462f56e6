"""Hold-out and routing records → the score: regret, noise, routing, coverage. Every number is derived from records.

All numbers are integers: ratios in parts per million, times in ns. What regret is, `regret` says.
"""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from studytool import boards, gate, regret, rows, stats, tally
from studytool.attempts import Attempt
from studytool.lines import NO_ENTRIES
from studytool.metrics import METRICS, PPM, condition_text
from studytool.model import SCHEMA, Case, Split, Status, Study
from studytool.regret import Timed
from studytool.rows import Row
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


def score(inputs: Inputs) -> Json:
    """Return the content of score.json."""
    found = rows.rows(inputs.holdout.files)
    cells = rows.timed_cells(found)
    pairs = rows.aliased(cells)
    band = rows.band(pairs)
    control = [math.exp(value) for value in rows.control(pairs)]
    limit = inputs.study.decide.noise_limit_ppm / PPM
    compared = boards.compare(inputs.holdout.anchored, band, inputs.study.protocol.confidence)
    codes = rows.codes(cells, pairs, limit, apart=bool(compared.apart))
    timed = regret.timed_cases(inputs.study, inputs.summary.cc, inputs.holdout_cases, found, codes)
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
        "intervals": regret.intervals(timed, inputs.manifest_sha256),
        "statuses": statuses,
        "failed": tally.failed_cases(found, inputs.holdout_cases),
        "gate": [
            {"condition": condition_text(item.condition), "value": item.value, "holds": item.holds} for item in checked
        ],
        "verdict": "CANNOT SAY" if unsaid or (opened and gate.verdict(checked) != "FAIL") else gate.verdict(checked),
        "open": opened,
        "regimes": regret.regimes(timed, inputs.summary, band),
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


def _metrics(
    inputs: Inputs, timed: Sequence[Timed], band: float | None, control: Sequence[float], routing: Sequence[Json]
) -> dict[str, int | None]:
    """Return the metrics; those of regret and ratio are the worst over the regimes."""
    metrics: dict[str, int | None] = dict.fromkeys(METRICS)
    metrics |= {
        "cases": len(inputs.holdout_cases),
        "cases_timed": len({item.digest for item in timed}),
        "inconclusive": len({item.digest for item in timed if item.entry["code"]}),
        "reached": len({item.digest for item in timed if item.entry["lookup"] is not None}),
        "routing_changed": len(tally.moved(routing)),
        "band": None if band is None else stats.ppm(band) - PPM,
    }
    if not timed:
        return metrics
    for regime in regret.regimes(timed, inputs.summary, band).values():
        for name, value in regime.items():
            worse = min if name in BETTER_HIGH else max
            metrics[name] = value if metrics[name] is None else worse(value, metrics[name] or 0)
    spreads = [value for item in timed for value in item.spreads]
    slower = {item.digest for item in timed if band is not None and regret.slower(item, band)}
    metrics |= {
        "slower_beyond_noise": None if band is None else len(slower),
        "spread_median": stats.share_ppm(stats.quantile(spreads, 0.5)),
        "spread_p90": stats.share_ppm(stats.quantile(spreads, 0.9)),
        "spread_max": stats.share_ppm(max(spreads)),
        "control_min": stats.share_ppm(min(control)) if control else None,
        "control_max": stats.share_ppm(max(control)) if control else None,
    }
    return metrics


def _open(
    inputs: Inputs, timed: Sequence[Timed], checked: Sequence[gate.Checked], failed: int, *, holds: bool
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
