"""The gate: each frozen condition against its metric; what has no value is said to have none."""

import pytest

from studytool import gate
from studytool.metrics import METRICS, Condition, condition_text


@pytest.mark.parametrize(
    ("op", "holds"), [("<=", [True, True, False]), (">=", [False, True, True]), ("==", [False, True, False])]
)
def test_condition_at_its_bound(op: str, holds: list[bool]) -> None:
    """A bound belongs to `<=` and `>=`; the value that was found comes along."""
    found = [gate.check([Condition("cases", op, 10)], {"cases": value})[0] for value in (9, 10, 11)]

    assert [item.holds for item in found] == holds
    assert [item.value for item in found] == [9, 10, 11]


@pytest.mark.parametrize(
    ("values", "verdict"),
    [
        ((0, 1_000_000), "PASS"),
        ((0, 1_020_001), "FAIL"),
        ((1, 1_000_000), "FAIL"),
        ((0, None), "CANNOT SAY"),
        ((1, None), "FAIL"),
        ((None, None), "CANNOT SAY"),
    ],
)
def test_verdict(values: tuple[int | None, int | None], verdict: str) -> None:
    """One condition that does not hold fails the gate; else one without a value leaves it open."""
    conditions = [Condition("slower_beyond_noise", "==", 0), Condition("auto_over_default_geomean", "<=", 1_020_000)]
    metrics = {condition.metric: value for condition, value in zip(conditions, values, strict=True)}

    assert gate.verdict(gate.check(conditions, metrics)) == verdict


def test_no_condition_is_passed() -> None:
    """A study without a gate has nothing to fail."""
    assert gate.verdict(gate.check([], {"cases": 1})) == "PASS"


def test_conditions_keep_their_order() -> None:
    """Conditions are answered in the order in which they were frozen, each metric as often as it is named."""
    conditions = [Condition("cases", ">=", 1), Condition("band", "<=", 5), Condition("cases", "<=", 1)]
    found = gate.check(conditions, {"cases": 2, "band": 5})

    assert [(item.condition, item.holds) for item in found] == list(zip(conditions, [True, True, False], strict=True))


@pytest.mark.parametrize(
    ("metric", "value", "text"),
    [
        ("cases", 12, "cases <= 12"),
        ("cases", 0, "cases <= 0"),
        ("band", 1_020_000, "band <= 1.02"),
        ("band", 1_000_000, "band <= 1"),
        ("band", 25_000, "band <= 0.025"),
        ("band", 1, "band <= 0.000001"),
        ("band", 10_000_000, "band <= 10"),
        ("band", 0, "band <= 0"),
    ],
)
def test_condition_text(metric: str, value: int, text: str) -> None:
    """A condition reads as study.yaml writes it: a count whole, a ratio as a decimal without idle zeros."""
    assert condition_text(Condition(metric, "<=", value)) == text


def test_every_metric_has_a_unit() -> None:
    """A metric is a ratio or a count."""
    assert set(METRICS.values()) == {"ratio", "count"}
