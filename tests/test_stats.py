"""Ratios and intervals: paired within a block, the repeat is the unit, and integers at the border."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from studytool import stats

TIMES = st.floats(10.0, 1e9)
PAIRED = st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=24)
LOGS = st.lists(st.floats(-3, 3), min_size=2, max_size=8)
GOLDEN = [-20000000000, 31428571429]
TICK = st.sampled_from([1, 500])
"""Ticks on both sides of the coarse limit for a sample of 100 us."""


def _ratio(
    a: Sequence[float] | stats.Floats, b: Sequence[float] | stats.Floats, tick: float, sample: float = 100_000
) -> float:
    return stats.paired_log_ratio(np.asarray(a), np.asarray(b), tick, sample)


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-9)


@given(PAIRED, TICK)
def test_swapped_legs_negate_the_log_ratio(pairs: list[tuple[float, float]], tick: int) -> None:
    """Which leg is called a decides the sign and nothing else."""
    a, b = zip(*pairs, strict=True)

    assert _close(_ratio(a, b, tick), -_ratio(b, a, tick))


@given(PAIRED, TICK, st.floats(0.01, 100))
def test_ratio_has_no_unit(pairs: list[tuple[float, float]], tick: int, scale: float) -> None:
    """To scale both legs changes nothing; to scale one adds the log of the scale."""
    a, b = map(np.asarray, zip(*pairs, strict=True))

    assert _close(_ratio(a * scale, b * scale, tick), _ratio(a, b, tick))
    assert _close(_ratio(a * scale, b, tick), _ratio(a, b, tick) + math.log(scale))


@given(PAIRED.flatmap(lambda pairs: st.tuples(st.just(pairs), st.permutations(pairs))), TICK)
def test_order_of_blocks_does_not_matter(
    both: tuple[list[tuple[float, float]], list[tuple[float, float]]], tick: int
) -> None:
    """Blocks in another order, each still a pair, give the same ratio."""
    (a, b), (c, d) = (zip(*pairs, strict=True) for pairs in both)

    assert _close(_ratio(a, b, tick), _ratio(c, d, tick))


def test_ratio_is_paired_by_block() -> None:
    """A drift that slows both legs of a block does not enter the ratio, nor does one block that went wrong."""
    b = [100.0, 200.0, 400.0, 800.0, 1600.0]
    a = [50.0, 100.0, 200.0, 400.0, 160_000.0]

    assert _close(_ratio(a, b, 1), math.log(0.5))
    assert _close(_ratio([300.0, 100.0, 200.0], [100.0, 200.0, 400.0], 1), math.log(0.5))


def test_blocks_come_in_pairs() -> None:
    """A sample that has no partner is a defect of the caller."""
    with pytest.raises(ValueError, match=r"^2 and 1 blocks; expected pairs$"):
        _ratio([1.0, 2.0], [1.0], 1)


def test_mean_is_taken_from_the_coarse_limit_on() -> None:
    """At 0.2 % of a sample the median is taken, beyond it the mean."""
    a, b = [1.0, 1.0, 4.0], [1.0, 1.0, 1.0]

    assert _ratio(a, b, 200, 100_000) == 0.0
    assert _close(_ratio(a, b, 201, 100_000), math.log(2.0))


def _quantised(true_ns: float, tick_ns: int, count: int) -> list[float]:
    """Return samples as a clock of this tick shows them, begun at evenly spread times between two ticks."""
    begins = [tick_ns * (number + 0.5) / count for number in range(count)]
    return [float(tick_ns * ((begin + true_ns) // tick_ns)) for begin in begins]


def test_coarse_tick_does_not_bias() -> None:
    """At a tick of 1 us, 8.3 us over 8 us is found within 0.5 %, where the median would be off by more than 1 %."""
    a, b = (_quantised(true_ns, 1000, 40) for true_ns in (8300.0, 8000.0))
    true = math.log(8300 / 8000)
    median = _ratio(a, b, 0, 8000)

    assert abs(median - true) > 0.01
    assert abs(_ratio(a, b, 1000, 8000) - true) < 0.005


def test_per_launch() -> None:
    """A sample is divided by its launches, and stays a fraction."""
    assert stats.per_launch_ns((100, 7), 4).tolist() == [25.0, 1.75]


@pytest.mark.parametrize(
    ("values", "half"),
    [
        ([1.0, 2.0, 3.0], 4.302652729911275 / math.sqrt(3)),  # t(0.975, 2), deviation 1
        ([1.0, 2.0, 3.0, 2.0, 2.0], 2.7764451051977987 * math.sqrt(0.5 / 5)),  # t(0.975, 4), variance 1/2
        ([1.0, 3.0], 12.706204736432095),  # t(0.975, 1), deviation sqrt(2)
    ],
)
def test_interval_by_hand(values: list[float], half: float) -> None:
    """The interval is that of Student's t with one degree of freedom less than there are repeats."""
    found = stats.interval(values)

    assert found == pytest.approx((2.0, 2.0 - half, 2.0 + half), rel=1e-9)


@given(LOGS.flatmap(lambda logs: st.tuples(st.just(logs), st.permutations(logs))))
def test_order_of_repeats_does_not_matter(both: tuple[list[float], list[float]]) -> None:
    """Repeats in another order give the same interval, and turned signs the mirrored one."""
    one, other = map(stats.interval, both)
    turned = stats.interval([-value for value in both[0]])

    assert one == pytest.approx(other, abs=1e-9)
    assert turned == pytest.approx((-one.center, -one.high, -one.low), abs=1e-9)
    assert one.low <= one.center <= one.high


@given(st.floats(-3, 3), st.integers(2, 9))
def test_equal_repeats_leave_no_doubt(value: float, count: int) -> None:
    """The interval of n equal values is that value."""
    assert stats.interval([value] * count) == pytest.approx((value, value, value), abs=1e-12)


def test_one_repeat_says_nothing() -> None:
    """A single repeat has an estimate and no bounds, which become 1 ppm and a large number."""
    found = stats.interval([0.0])

    assert found == (0.0, -math.inf, math.inf)
    assert stats.ppm(found.low) == 1
    assert stats.ppm(found.high) > 10**15


@pytest.mark.parametrize(
    ("ratio", "ppm"),
    [
        (1.0, 1_000_000),
        (0.5, 500_000),
        (1 / 3, 333_333),
        (2 / 3, 666_667),
        (1.0000004, 1_000_000),
        (1.0000006, 1_000_001),
        (0.0000004, 1),
        (1e-30, 1),
    ],
)
def test_ppm_rounds_to_the_nearest(ratio: float, ppm: int) -> None:
    """A ratio becomes the nearest whole number of parts per million, and is never zero."""
    assert stats.ppm(math.log(ratio)) == ppm


@given(st.floats(-14, 26), st.floats(-14, 26))
def test_ppm_keeps_the_order(one: float, other: float) -> None:
    """A larger ratio never becomes a smaller number, and half a ppm is the most that rounding takes."""
    low, high = sorted((one, other))

    assert stats.ppm(low) <= stats.ppm(high)
    assert abs(stats.ppm(low) - max(1.0, math.exp(low) * 1e6)) <= 0.5 + 1e-9 * stats.ppm(low)


def test_share_ppm() -> None:
    """A plain number is rounded to the nearest ppm, below zero as well."""
    assert [stats.share_ppm(value) for value in (0.0, 1.0, -0.25, 0.0000006)] == [0, 1_000_000, -250_000, 1]


def test_geomean_quantile_and_spread() -> None:
    """Plain numbers by hand: the mean of logs, a quantile between two values, the range over the median."""
    assert stats.geomean_log([math.log(2), math.log(8)]) == pytest.approx(math.log(4))
    assert stats.quantile([4.0, 1.0, 2.0], 0.75) == 3.0
    assert stats.spread([110.0, 90.0, 100.0]) == pytest.approx(0.2)


@pytest.mark.parametrize("offset", [0, 1, 333])
@pytest.mark.parametrize("tick", [1, 32, 500, 1024])
def test_tick_is_recovered(tick: int, offset: int) -> None:
    """The tick is found in any order, whatever all intervals have in common, though any two steps share a divisor."""
    intervals = [offset + tick * count for count in (5, 11, 21, 5, 36)]

    assert stats.tick_of(intervals) == stats.tick_of(intervals[::-1]) == tick


def test_tick_without_a_difference() -> None:
    """One value alone is its own tick, however often it was measured, and no interval has no tick."""
    assert stats.tick_of([42]) == stats.tick_of([42, 42]) == 42
    assert stats.tick_of([]) == 0


def test_bootstrap_is_stable() -> None:
    """The interval is the same, to 12 digits, on any version of numpy, and another one for another seed."""
    groups = [[0.01, 0.02, -0.01], [0.0, 0.05], [-0.02]]
    found = stats.bootstrap_mean(groups, 7)

    assert [round(value * 1e12) for value in found] == GOLDEN
    assert stats.bootstrap_mean(groups, 8) != found


@given(st.floats(-1, 1), st.lists(st.integers(0, 4), min_size=1, max_size=4).filter(any))
def test_bootstrap_of_equal_values_is_that_value(value: float, sizes: list[int]) -> None:
    """Whatever is drawn of equal values has their mean; classes without cases count for nothing."""
    found = stats.bootstrap_mean([[value] * size for size in sizes], 1)

    assert found == pytest.approx((value, value), abs=1e-12)


def test_bootstrap_draws_classes_as_well() -> None:
    """Cases of one class belong together: two classes far apart make the interval as wide as they are apart."""
    low, high = stats.bootstrap_mean([[0.0] * 20, [1.0] * 20], 1)

    assert (low, high) == (0.0, 1.0)


def test_bootstrap_draws_cases_as_well() -> None:
    """Within one class the cases are drawn, so that an interval holds their mean and is narrower than their range."""
    low, high = stats.bootstrap_mean([[float(value) for value in range(20)]], 1)

    assert 5 < low < 9.5 < high < 14
