"""What a score measures, by name and unit, and the conditions on it that a gate may have."""

import math
from collections.abc import Sequence
from typing import NamedTuple

PPM = 1_000_000
"""Ratios are integers in parts per million."""

METRICS: dict[str, str] = {
    "cases": "count",
    "cases_timed": "count",
    "inconclusive": "count",
    "reached": "count",
    "regret_default_geomean": "ratio",
    "regret_default_max": "ratio",
    "regret_auto_geomean": "ratio",
    "regret_auto_max": "ratio",
    "regret_backend_geomean": "ratio",
    "regret_frost_geomean": "ratio",
    "auto_over_default_geomean": "ratio",
    "auto_over_default_min": "ratio",
    "auto_over_default_max": "ratio",
    "slower_beyond_noise": "count",
    "routing_changed": "count",
    "band": "ratio",
    "spread_median": "ratio",
    "spread_p90": "ratio",
    "spread_max": "ratio",
    "control_min": "ratio",
    "control_max": "ratio",
    "closed_gap": "ratio",
}
"""The metrics of a score that a gate may name, with their unit: a ratio in ppm or a count."""


class Condition(NamedTuple):
    """One line of a gate: a metric of the score, `<=`, `>=` or `==`, and a number in the metric's unit."""

    metric: str
    op: str
    value: int


def condition_text(condition: Condition) -> str:
    """Return a condition as study.yaml writes it."""
    if METRICS[condition.metric] == "count":
        return f"{condition.metric} {condition.op} {condition.value}"
    whole, rest = divmod(condition.value, PPM)
    return f"{condition.metric} {condition.op} {whole}.{rest:06d}".rstrip("0").rstrip(".")


def geomean_ppm(ratios_ppm: Sequence[int]) -> int:
    """Return the geometric mean of ratios in ppm, rounded down: the integer root of their product.

    Logarithms tell it but where the mean is within 1e-6 of an integer; there the product does.
    """
    count = len(ratios_ppm)
    if not count or min(ratios_ppm) < 1:
        return 0
    mean = math.exp(math.fsum(map(math.log, ratios_ppm)) / count)
    root = round(mean)
    if abs(mean - root) > max(1e-6, mean * 1e-12):
        return math.floor(mean)
    product = math.prod(ratios_ppm)
    while root**count > product:
        root -= 1
    while (root + 1) ** count <= product:
        root += 1
    return root


def ratio_text(value_ppm: int) -> str:
    """Return a ratio in ppm with three decimals, rounded half up, without going through a float."""
    thousandths = (value_ppm + 500) // 1000
    return f"{thousandths // 1000}.{thousandths % 1000:03d}"


def metric_text(metric: str, value: int | None) -> str:
    """Return a metric's value as people read it: a ratio with three decimals, a count as it is, n/a without one."""
    if value is None:
        return "n/a"
    if METRICS[metric] == "count":
        return str(value)
    return ratio_text(value) if value >= 0 else f"-{ratio_text(-value)}"
