"""Four regimes on the simulated device; each guard is removed once, and the same measurement is then wrong."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from devices import fixed_order, health_of, log_ratio, measured, record_of
from factories import make_case, make_fingerprint, make_session

from studytool import frame, measure, noise, stats
from studytool.engines.base import Arrays, Bench, Clock, Sample
from studytool.engines.simulated import SimulatedBench
from studytool.engines.world import MIB
from studytool.jsonl import SessionFile
from studytool.measure import Measured
from studytool.model import LEGS, REGIMES, Status

LIMIT = 0.025
REPEATS = range(1, 6)
MISS_NS = 100_000
CASE = make_case(b=2, h_q=8, h_kv=8, s_q=512, s_kv=512)
TENSORS_MIB = 4 * 2 * 2 * 8 * 512 * 64 / MIB
SHORT = {"backend_ns": "1000", "frost_ns": "1000"}
"""Two engines that take as long as each other, of which a sample holds many launches."""


def _per_launch(found: Measured, leg: str) -> set[float]:
    return {ns / found.legs[leg].inner for ns in found.legs[leg].ns}


def _code(found: Measured) -> str:
    return noise.case_code([health_of(found)], [log_ratio(found, "auto", "default")], LIMIT)


def _mean(found: Sequence[Measured], a: str = "frost", b: str = "backend", tick_ns: int = 1) -> float:
    return float(np.mean([log_ratio(one, a, b, tick_ns) for one in found]))


@pytest.mark.parametrize("regime", REGIMES)
def test_regime_decides_what_a_launch_costs(regime: str) -> None:
    """A cold launch pays for every byte of its tensors, in each sample of each leg; a warm one for none."""
    found = measured(regime=regime, case=CASE, miss_ns_per_mib=MISS_NS)
    extra = TENSORS_MIB * MISS_NS if regime.endswith("cold") else 0.0

    assert (found.status, _code(found)) == (Status.OK, "")
    assert _per_launch(found, "frost") == {256_000 + extra}
    assert _per_launch(found, "backend") == _per_launch(found, "auto") == {512_000 + extra}
    assert ("flush_probe_ppm" in found.checks) is regime.endswith("cold")


@pytest.mark.parametrize("regime", REGIMES)
def test_short_launches_are_as_cold_as_long_ones(regime: str) -> None:
    """A sample of many launches is flushed before each of them in a cold regime, and host times add up."""
    small = make_case(s_q=64, s_kv=64)
    found = measured(regime=regime, case=small, miss_ns_per_mib=MISS_NS, host_ns=700)
    extra = 4 * 2 * 4 * 64 * 64 / MIB * MISS_NS if regime.endswith("cold") else 0.0
    frost = found.legs["frost"]

    assert frost.inner > 3
    assert set(frost.host_ns) == {700 * frost.inner}
    assert all(value == pytest.approx(32_000 + extra, abs=1) for value in _per_launch(found, "frost"))


def test_no_flush_reads_warm_and_only_the_probe_sees_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the flush a cold regime reads warm times; the probe says CONTROL, and without it nothing would."""
    asked: dict[str, Any] = {"case": CASE, "miss_ns_per_mib": MISS_NS}
    warm, cold = (measured(regime=f"eager-{heat}", **asked) for heat in ("warm", "cold"))
    monkeypatch.setattr(SimulatedBench, "flush", lambda _bench: None)
    unflushed = measured(regime="eager-cold", **asked)

    assert _per_launch(unflushed, "frost") == _per_launch(warm, "frost") != _per_launch(cold, "frost")
    assert (_code(cold), _code(unflushed)) == ("", "CONTROL")
    monkeypatch.setattr(SimulatedBench, "flush_probe_ns", lambda _bench, _clock: (2, 1))
    assert _code(measured(regime="eager-cold", **asked)) == ""


def test_flush_that_does_not_reach_the_cache_is_seen() -> None:
    """A device whose flush does nothing is found out in the cold regimes and does no harm in the warm ones."""
    said = {regime: _code(measured(regime=regime, case=CASE, cold_is_warm="b == 2")) for regime in REGIMES}

    assert said == {"eager-warm": "", "eager-cold": "CONTROL", "replay-warm": "", "replay-cold": "CONTROL"}


def test_without_poison_a_stale_output_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A leg that writes nothing is a wrong result, since its outputs were NaN; unpoisoned it has the last leg's."""
    guarded = measured(stale_output="b == 1")
    outputs, last = SimulatedBench.outputs, dict[str, Arrays]()

    def unpoisoned(bench: SimulatedBench, leg: str, regime: str) -> Arrays:
        found = outputs(bench, leg, regime)
        if not np.isnan(found["O"]).any():
            last["memory"] = found
        return last["memory"]

    monkeypatch.setattr(SimulatedBench, "outputs", unpoisoned)
    unguarded = measured(stale_output="b == 1")

    assert (guarded.status, guarded.order) == (Status.WRONG_RESULT, ())
    assert (unguarded.status, _code(unguarded)) == (Status.OK, "")


@pytest.mark.parametrize("regime", REGIMES)
def test_empty_graph_is_wrong_and_unchecked_a_speed_up(monkeypatch: pytest.MonkeyPatch, regime: str) -> None:
    """A graph that captured no launch is a wrong result in the replay regimes; unchecked it is the fastest of all."""
    guarded = measured(regime=regime, empty_graph="b == 1")
    monkeypatch.setattr(measure, "_wrong", lambda _checks, _dtype: "")
    unguarded = measured(regime=regime, empty_graph="b == 1")
    replayed = regime.startswith("replay")

    assert guarded.status is (Status.WRONG_RESULT if replayed else Status.OK)
    assert (log_ratio(unguarded) < math.log(0.001)) is replayed


def test_unqueued_clock_reads_the_host() -> None:
    """Behind a queue the device's time is read and the record is host bound; without one the host's is taken for it."""
    queued, unqueued, fast = (
        measured(host_ns=host_ns, queued=queued) for host_ns, queued in ((400_000, True), (400_000, False), (900, True))
    )
    files = [
        SessionFile(path, make_session(fingerprint=make_fingerprint()), (record_of(found),), "", 1, 0)  # type: ignore[arg-type]
        for path, found in (("queued", queued), ("fast", fast))
    ]

    assert _per_launch(queued, "backend") == {128_000.0}
    assert (_per_launch(unqueued, "backend"), _per_launch(unqueued, "frost")) == ({400_000.0}, {400_000.0})
    assert log_ratio(queued) == pytest.approx(math.log(0.5))
    assert log_ratio(unqueued) == 0.0
    assert frame.repeats(files)["host_bound"].tolist() == [True, False]


def _unprimed(bench: Bench, clock: Clock, leg: str, regime: str, inner: int) -> Sample:
    with bench.armed(leg, regime) as launch:
        return clock.sample(launch, inner)


def test_without_priming_carry_over_biases_short_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The untimed launch takes what frost left behind; without it the backend pays, and frost seems the faster."""
    asked: dict[str, Any] = {**SHORT, "carry_ppm": 50_000, "noise_ppm": 1000, "lookup": True}
    primed = [measured(repeat=repeat, **asked) for repeat in REPEATS]
    monkeypatch.setattr(measure, "_sample", _unprimed)
    unprimed = [measured(repeat=repeat, **asked) for repeat in REPEATS]

    assert abs(_mean(primed)) < 0.002
    assert _mean(unprimed) < -0.03
    assert abs(_mean(primed, "auto", "default")) < 0.002
    assert abs(_mean(unprimed, "auto", "default")) > 0.03


def test_median_under_a_coarse_tick_is_biased(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of samples of twenty ticks the mean finds the ratio within 0.5 %; their median is off by more than 1 %."""
    monkeypatch.setattr(measure, "TICKS_PER_SAMPLE", 20)
    asked: dict[str, Any] = {"backend_ns": "101000", "frost_ns": "109000", "tick_ns": 5000, "noise_ppm": 500}
    found = [measured(repeat=repeat, blocks=96, min_sample_ns=1, **asked) for repeat in REPEATS]
    ours = _mean(found, tick_ns=5000)
    monkeypatch.setattr(stats, "COARSE", math.inf)
    median = _mean(found, tick_ns=5000)
    truth = math.log(109 / 101)

    assert abs(ours - truth) < 0.005
    assert abs(median - truth) > 0.01


@pytest.mark.parametrize(
    ("disturbed", "pair"),
    [
        ({"trend_ppm_per_s": 2_000_000, "frost_ns": "s_kv * 1000"}, ("frost", "backend")),
        ({"carry_ppm": 50_000, "min_sample_ns": 50_000, "frost_ns": "s_kv * 1000"}, ("auto", "default")),
    ],
    ids=["trend", "carry-over"],
)
def test_fixed_order_is_biased(monkeypatch: pytest.MonkeyPatch, disturbed: Any, pair: tuple[str, str]) -> None:
    """A trend and a carry-over cancel in balanced orders; where the order is fixed they are taken for a ratio."""
    balanced = [measured(repeat=repeat, noise_ppm=100, **disturbed) for repeat in REPEATS]
    fixed_order(monkeypatch)
    fixed = [measured(repeat=repeat, noise_ppm=100, **disturbed) for repeat in REPEATS]

    assert {one.order for one in fixed} == {("0123",) * 24}
    assert abs(_mean(fixed, *pair)) > 3 * abs(_mean(balanced, *pair))
    assert abs(_mean(fixed, *pair)) > 0.0005


def _blocks(found: Measured) -> list[float]:
    frost, backend = (stats.per_launch_ns(found.legs[leg].ns, found.legs[leg].inner) for leg in ("frost", "backend"))
    return [float(value) for value in np.log(frost) - np.log(backend)]


def test_pooled_repeats_do_not_cover_the_truth() -> None:
    """With process effects an interval over repeats covers the truth; one over all blocks, as if independent, fails."""
    truth, studies = math.log(0.5), 200
    covered = {"repeats": 0, "pooled": 0}
    for study in range(studies):
        found = [measured(repeat=repeat, blocks=8, seed=study, process_ppm=8000, noise_ppm=1000) for repeat in REPEATS]
        ways = {
            "repeats": [log_ratio(one) for one in found],
            "pooled": [value for one in found for value in _blocks(one)],
        }
        for way, values in ways.items():
            _, low, high = stats.interval(values)
            covered[way] += low <= truth <= high

    assert covered["repeats"] > 0.88 * studies
    assert covered["pooled"] < 0.70 * studies


def test_plan_change_is_declined_in_every_regime() -> None:
    """A library that picks another plan between blocks spoils the case, whatever the regime."""
    found = [measured(regime=regime, plan_change="b == 1") for regime in REGIMES]

    assert {one.status for one in found} == {Status.DECLINED}
    assert {one.error for one in found} == {"leg backend changed from eng5_k1=0 to eng6_k1=1 between blocks"}


def test_warm_up_of_the_whole_device_spoils_no_ratio() -> None:
    """A device that still becomes faster after the last warm-up round slows all legs alike: the ratio is the truth."""
    found = measured(warmup_ppm=3_000_000, warmup_ms=60)

    assert found.checks["steady"] == 0
    assert (abs(int(found.checks["trend_ppm"])) < 5000, _code(found)) == (True, "")
    assert log_ratio(found) == pytest.approx(math.log(0.5), abs=0.002)


def test_legs_of_one_plan_agree_in_every_regime() -> None:
    """Backend, auto and default run one plan here, and differ by noise alone in each regime."""
    for regime in REGIMES:
        found = [measured(repeat=repeat, regime=regime, case=CASE, noise_ppm=2000) for repeat in REPEATS]
        pairs = [_mean(found, a, b) for a, b in (("backend", "auto"), ("backend", "default"), ("auto", "default"))]

        assert max(map(abs, pairs)) < 0.003
        assert {leg: one.plan for leg, one in found[0].legs.items() if leg != "frost"}.keys() == {*LEGS} - {"frost"}
