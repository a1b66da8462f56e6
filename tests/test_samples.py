"""How a sample is taken in each regime, and what the warm-up says of the legs; on a bench that follows a script."""

import math
from typing import Any

import pytest
from benches import FakeBench, FakeClock, FakeEngine, make_request

from studytool import measure
from studytool.engines.base import Seeds
from studytool.measure import Measured
from studytool.model import LEGS, REGIMES


def _bench() -> FakeBench:
    return FakeBench(FakeClock())


def _measured(bench: FakeBench, **changes: Any) -> Measured:
    return measure.run_case(FakeEngine(bench), bench.clock, make_request(**changes))


@pytest.mark.parametrize(
    ("legs", "trend_ppm"),
    [(("frost",), math.expm1(-0.75 * 5 * 0.05)), (("default",), math.expm1(-0.75 * 5 * 0.05)), (LEGS, 0.0)],
    ids=["frost alone", "default alone", "all alike"],
)
def test_leg_that_goes_on_changing_is_told_in_its_size(legs: tuple[str, ...], trend_ppm: float) -> None:
    """A leg that alone becomes faster to the end of the warm-up says by how much; one with all others says nothing."""
    bench = _bench()
    bench.cost = lambda leg, inner, number: round(1_000_000 * math.exp(-0.05 * (number // 4) * (leg in legs))) * inner
    found = _measured(bench)

    assert found.checks["steady"] == 0
    assert found.checks["trend_ppm"] == pytest.approx(trend_ppm * 1e6, abs=20)


def test_legs_that_came_to_rest_have_no_trend() -> None:
    """A leg that became faster during the warm-up, and then agreed with itself five times, is well."""
    bench = _bench()
    bench.cost = lambda leg, inner, number: (1000 + 40 * max(0, 10 - number // 4) if leg == "frost" else 1000) * inner
    found = _measured(bench)

    assert (found.checks["warmup_rounds"], found.checks["steady"], found.checks["trend_ppm"]) == (15, 1, 0)


def test_trend_needs_ten_rounds() -> None:
    """A warm-up that its time ended before the tenth round says no trend, since there is nothing to compare."""
    bench = _bench()
    bench.cost = lambda _leg, inner, number: measure.WARMUP_NS * inner * (1 + number // 4 % 2)
    found = _measured(bench)

    assert (found.checks["warmup_rounds"], found.checks["steady"], found.checks["trend_ppm"]) == (5, 0, 0)


def test_warm_sample_is_opened_by_one_launch() -> None:
    """A warm sample of more than one launch comes after one untimed launch of its leg; one of a single launch alone."""
    benches = {1000: _bench(), 150_000: _bench()}
    for cost, launches in ((1000, ["1", "150"]), (150_000, ["1"])):
        bench = benches[cost]
        bench.cost = lambda _leg, inner, _number, cost=cost: cost * inner  # type: ignore[misc]
        found = _measured(bench, orders=("0123",) * 4)

        expected = [event for leg in LEGS for event in (f"eager-warm: {leg}", *(f"{leg} {n}" for n in launches))]
        assert bench.events[-4 * len(expected) :] == expected * 4
        assert set(found.legs["frost"].ns) == {cost * int(launches[-1])}
    assert not any("flush" in bench.events for bench in benches.values())


@pytest.mark.parametrize("regime", ["eager-cold", "replay-cold"])
def test_cold_sample_is_flushed_before_each_launch(regime: str) -> None:
    """A cold sample times its launches one by one, each right after a flush, which is not part of the time."""
    bench = _bench()
    bench.cost = lambda _leg, inner, _number: 50_000 * inner
    found = _measured(bench, regime=regime, orders=("0123",) * 4)
    sample = [event for leg in LEGS for event in (f"{regime}: {leg}", *["flush", f"{leg} 1"] * 3)]

    assert bench.events[-4 * len(sample) :] == sample * 4
    assert {leg: set(record.ns) for leg, record in found.legs.items()} == {leg: {150_000} for leg in LEGS}
    assert {leg: record.inner for leg, record in found.legs.items()} == dict.fromkeys(LEGS, 3)
    assert {inner for _, inner in bench.launched} == {1}


def test_counters_of_a_cold_sample_add_up() -> None:
    """The counters of the launches of a cold sample are summed."""
    bench = _bench()
    bench.cost = lambda _leg, inner, _number: 50_000 * inner
    found = _measured(bench, regime="eager-cold", orders=("0123",) * 4)
    first = bench.clock.taken - 4 * 4 * 3

    assert found.legs["backend"].counters["call"][0] == sum(range(first + 1, first + 4))
    assert found.legs["backend"].host_ns == ()


@pytest.mark.parametrize(("probe_ns", "ppm"), [((2000, 1000), 2_000_000), ((1049, 1000), 1_049_000)])
def test_cold_regime_probes_its_flush(probe_ns: tuple[int, int], ppm: int) -> None:
    """A cold regime asks once, with its own clock, whether a flush is felt; a warm regime does not ask."""
    cold, warm = _bench(), _bench()
    cold.probe_ns = probe_ns
    found = _measured(cold, regime="eager-cold")
    _measured(warm)

    assert found.checks["flush_probe_ppm"] == ppm
    assert [event for event in cold.events if "probe" in event] == ["probe"]
    assert not [event for event in warm.events if "probe" in event]


@pytest.mark.parametrize("regime", REGIMES)
def test_outputs_are_checked_as_the_regime_launches(regime: str) -> None:
    """The numbers are those of the regime that is timed, so that an empty graph is not judged by an eager launch."""
    bench = _bench()
    _measured(bench, regime=regime)

    assert [event for event in bench.events if "outputs" in event] == [f"{regime}: outputs of {leg}" for leg in LEGS]
    assert {event.partition(": ")[0] for event in bench.events if ": " in event} == {regime}


def test_engine_is_given_both_seeds() -> None:
    """The seed of the case and that of the process reach the engine apart."""
    bench = _bench()
    engine = FakeEngine(bench)
    measure.run_case(engine, bench.clock, make_request(seed=11, process_seed=22))

    assert engine.seeds[-1] == Seeds(case=11, process=22)
