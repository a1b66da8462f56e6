"""How a sample is taken in each regime, and what the warm-up says of the legs; on a bench that follows a script."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from benches import SIMULATED, FakeBench, FakeClock, FakeEngine, make_request
from factories import make_case

from studytool import clock, measure
from studytool.engines.base import Clock, Launch, Order, Sample, Seeds
from studytool.engines.simulated import Simulated, VirtualClock
from studytool.measure import Measured
from studytool.model import LEGS, REGIMES, Status


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


class _Twice(FakeClock):
    """A clock to which the first try of every sample is no good."""

    def sample(self, launch: Launch, inner: int, before: Callable[[], None] | None = None) -> Sample:
        """Return the second try."""
        super().sample(launch, inner, before)
        return super().sample(launch, inner, before)


@pytest.mark.parametrize("regime", REGIMES)
def test_every_try_of_a_cold_sample_is_flushed(regime: str) -> None:
    """It is the clock that flushes, so that a sample that it takes again is flushed again; warm there is no flush."""
    bench = FakeBench(_Twice())
    bench.cost = lambda _leg, inner, _number: 150_000 * inner
    found = _measured(bench, regime=regime, orders=("0123",) * 4)
    flushes = ["flush"] * regime.endswith("cold")
    sample = [event for leg in LEGS for event in (f"{regime}: {leg}", *[*flushes, f"{leg} 1"] * 2)]

    assert bench.events[-4 * len(sample) :] == sample * 4
    assert {leg: set(record.ns) for leg, record in found.legs.items()} == {leg: {150_000} for leg in LEGS}


def _host_clock(monkeypatch: pytest.MonkeyPatch, at: list[int]) -> Clock:
    """Return a host clock whose time is what stands in a list."""
    host = clock.HostClock()
    still = SimpleNamespace(ru_minflt=0, ru_nivcsw=0)
    monkeypatch.setattr(clock, "resource", SimpleNamespace(getrusage=lambda _who: still, RUSAGE_THREAD=1))
    names = ("perf_counter_ns", "thread_time_ns")
    monkeypatch.setattr(clock, "time", SimpleNamespace(**dict.fromkeys(names, lambda: at[0])))
    return host


def test_what_comes_before_a_sample_is_not_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's clock and the virtual one call what they are given once, right before the launch, untimed."""
    at, device = [0], Simulated(SIMULATED)
    host = _host_clock(monkeypatch, at)

    def passing(ns: int, event: str) -> Callable[..., None]:
        def happen(*_inner: int) -> None:
            at[0] += ns
            device.now_ns += ns
            events.append(event)

        return happen

    found = []
    for timer in (host, VirtualClock(device)):
        events: list[str] = []
        found.append(timer.sample(passing(500, "launch"), 3, passing(7_000, "before")))
        found.append(timer.sample(passing(300, "launch"), 1))
        assert events == ["before", "launch", "launch"]

    assert [sample.ns for sample in found] == [500, 300] * 2
    assert found[0].counters["cpu_ns"] == 500


class _Sixteen(FakeBench):
    """A bench that launches sixteen at a time in replay-warm."""

    def granule(self, regime: str) -> int:
        """Return 16 or 1."""
        return 16 if regime == "replay-warm" else 1


@pytest.mark.parametrize(("regime", "granule", "inner"), [("replay-warm", 16, 160), ("eager-warm", 1, 150)])
def test_launches_are_made_in_granules(regime: str, granule: int, inner: int) -> None:
    """Warming up, opening a sample and calibrating take whole granules, of which one is judged by a launch of it."""
    bench = _Sixteen(FakeClock())
    found = _measured(bench, regime=regime, orders=("0123",) * 4)
    opened = [granule] * (granule > 1)
    warmed_up = [(leg, count) for _ in range(5) for leg in LEGS for count in (*opened, granule)]
    calibrated = [(leg, count) for leg in LEGS[:2] for count in (granule, inner)]

    assert found.checks["warmup_rounds"] == 5
    assert {leg: record.inner for leg, record in found.legs.items()} == dict.fromkeys(LEGS, inner)
    assert bench.launched[: len(warmed_up)] == warmed_up
    assert bench.launched[len(warmed_up) :][:4] == calibrated
    assert bench.launched[-2 * 4 * 4 :] == [(leg, count) for leg in LEGS for count in (granule, inner)] * 4
    assert {record.ns for record in found.legs.values()} == {(inner * 1000,) * 4}


def test_granules_grow_until_a_sample_is_long_enough() -> None:
    """Where many launches take less than the sum of a granule's, their number grows by whole granules."""
    bench = _Sixteen(FakeClock())
    bench.cost = lambda _leg, inner, _number: (2000 if inner == 16 else 500) * inner
    found = _measured(bench, regime="replay-warm")
    inner = found.legs["backend"].inner

    assert 300 <= inner <= 336
    assert {count % 16 for _, count in bench.launched} == {0}


@pytest.mark.parametrize(("limit", "most"), [(96, 96), (100, 96), (111, 96), (112, 112)])
def test_granules_end_at_the_limit(monkeypatch: pytest.MonkeyPatch, limit: int, most: int) -> None:
    """The last number of launches that is tried is of whole granules within the limit, and is tried once."""
    monkeypatch.setattr(measure, "INNER_LIMIT", limit)
    bench = _Sixteen(FakeClock())
    bench.cost = lambda _leg, _inner, _number: 5
    found = _measured(bench, regime="replay-warm")

    assert (found.status, found.error) == (Status.UNRESOLVABLE, "no sample is long enough")
    assert [inner for _, inner in bench.launched if inner != 16] == [most]


def test_last_granules_within_the_limit_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample that is just too short is taken with one more granule, where that is the limit."""
    monkeypatch.setattr(measure, "INNER_LIMIT", 112)
    bench = _Sixteen(FakeClock())
    bench.cost = lambda _leg, inner, _number: 95_000 if inner == 96 else 1000 * inner
    found = _measured(bench, regime="replay-warm", min_sample_ns=96_000)

    assert {record.inner for record in found.legs.values()} == {112}


def test_simulated_device_has_no_granules() -> None:
    """On the simulated device a sample may have any number of launches."""
    device = Simulated(SIMULATED)
    bench = device.prepare(make_case(), Order("library", None), Seeds(1, 1), "normal")

    assert {bench.granule(regime) for regime in REGIMES} == {1}


def test_simulated_probe_leaves_its_flush_to_the_clock() -> None:
    """The simulated device's flush is probed as samples are flushed: by the clock, before the first of two reads."""
    device, before = Simulated(SIMULATED), list[Any]()
    bench = device.prepare(make_case(), Order("library", None), Seeds(1, 1), "normal")

    class Noting(VirtualClock):
        def sample(self, launch: Launch, inner: int, before_it: Callable[[], None] | None = None) -> Sample:
            before.append(before_it)
            return super().sample(launch, inner, before_it)

    bench.flush_probe_ns(Noting(device))

    assert before == [bench.flush, None]


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
