"""The nuisances of the simulated device, one by one: the declared size stands where it should and nowhere else."""

import math
from typing import Any

import numpy as np
import pytest

from studytool.engine_terms import SIMULATED_NUMBERS
from studytool.engines.base import Seeds
from studytool.engines.world import BACKEND_SIDE, FROST_SIDE, MIB, MS, Cache, World

SIDES = (BACKEND_SIDE, FROST_SIDE)
SECOND = 1000 * MS
LOUD = {
    "noise_ppm": 5000,
    "process_ppm": 8000,
    "drift_ppm": 20_000,
    "trend_ppm_per_s": 10_000,
    "warmup_ppm": 100_000,
    "throttle_ppm": 100_000,
    "power_ppm": 50_000,
    "carry_ppm": 50_000,
}
"""Everything that disturbs, at once."""


def _world(case: int = 1, process: int = 1, **numbers: int) -> World:
    return World({**SIMULATED_NUMBERS, **numbers}, Seeds(case, process))


def _in_time(world: World, until_ms: int, step_ms: float = 1.0) -> list[float]:
    """Return the slowness of both sides at each step, asserting that it is the same for both."""
    times = [step * step_ms * MS for step in range(int(until_ms / step_ms))]
    found = [[world.slowness(side, now) for side in SIDES] for now in times]
    assert all(backend == frost for backend, frost in found)
    return [backend for backend, _ in found]


def test_quiet_world_slows_nothing() -> None:
    """Without any nuisance declared a launch takes what it is declared to take, at any time on any side."""
    assert set(_in_time(_world(), 3000, 7.0)) == {1.0}


@pytest.mark.parametrize("amplitude_ppm", [20_000, 50_000])
def test_drift_is_a_sine_of_its_size_and_length(amplitude_ppm: int) -> None:
    """Drift goes up and down by its amplitude, once in its length, about the declared time, for both sides alike."""
    found = np.array(_in_time(_world(drift_ppm=amplitude_ppm, drift_ms=400), 1200)) - 1

    assert found.max() == pytest.approx(amplitude_ppm / 1e6, rel=1e-3)
    assert found.min() == pytest.approx(-amplitude_ppm / 1e6, rel=1e-3)
    assert found[:800] == pytest.approx(found[400:], abs=1e-9)
    assert found[:200] == pytest.approx(-found[200:400], abs=1e-9)


def test_drift_begins_anywhere() -> None:
    """The phase of the drift is drawn by the case's seed, so that repeats do not all begin in one place."""
    phases = [_world(case=seed, drift_ppm=20_000).slowness_in_time(0.0) for seed in range(20)]

    assert len(set(phases)) == 20
    assert min(phases) < 0.99
    assert max(phases) > 1.01


def test_trend_grows_by_its_size_a_second() -> None:
    """A trend slows both sides down by its size in each second, from when everything is built."""
    world = _world(trend_ppm_per_s=30_000)
    world.start_ns = 5 * SECOND
    found = [world.slowness(side, (5 + seconds) * SECOND) for seconds in (0, 1, 2.5) for side in SIDES]

    assert found == pytest.approx([1.0, 1.0, 1.03, 1.03, 1.075, 1.075], abs=1e-12)


def test_warm_up_decays_from_its_size() -> None:
    """Warming up is slow at first by its size, by 1/e of that after its length, and by nothing in the end."""
    found = _in_time(_world(warmup_ppm=200_000, warmup_ms=20), 500, 20.0)

    assert found[0] == pytest.approx(1.2, abs=1e-12)
    assert found[1] == pytest.approx(1 + 0.2 / math.e, abs=1e-12)
    assert found == sorted(found, reverse=True)
    assert found[-1] == pytest.approx(1.0, abs=1e-9)


def test_throttling_comes_in_steps_of_its_length() -> None:
    """The device is slow by one size for one length at a time, and as fast as declared in between."""
    found = _in_time(_world(throttle_ppm=100_000, throttle_every_ms=100, throttle_ms=30), 20_000)
    steps = np.flatnonzero(np.diff([1.0, *found, 1.0]))
    lengths = steps[1::2] - steps[::2]

    assert set(found) == {1.0, 1.1}
    assert 100 < len(lengths) < 220
    assert np.median(lengths) == 30
    assert sum(found) / len(found) == pytest.approx(1 + 0.1 * 30 / 130, abs=0.01)


def test_carry_over_slows_the_backend_right_after_frost() -> None:
    """What frost leaves behind costs the one backend launch that comes next; frost itself does not pay it."""
    world = _world(carry_ppm=50_000)
    order = [BACKEND_SIDE, FROST_SIDE, FROST_SIDE, BACKEND_SIDE, BACKEND_SIDE, FROST_SIDE, BACKEND_SIDE]

    assert [world.slowness(side, 0.0) for side in order] == [1.0, 1.0, 1.0, 1.05, 1.0, 1.0, 1.05]


def test_power_slows_half_of_frost() -> None:
    """Frost is slowed down by its own power in half of its samples, at random; the backend never is."""
    world = _world(power_ppm=50_000)
    frost = [world.slowness(FROST_SIDE, 0.0) for _ in range(2000)]
    backend = {world.slowness(BACKEND_SIDE, 0.0) for _ in range(100)}

    assert (set(frost), backend) == ({1.0, 1.05}, {1.0})
    assert abs(frost.count(1.05) - 1000) < 100


def test_process_effect_is_one_number_a_side() -> None:
    """A process slows each side by its own factor, the same at all times and for all its cases."""
    found = [
        [_world(case=case, process=process, process_ppm=8000).slowness(side, case * SECOND) for side in SIDES]
        for process in range(300)
        for case in range(3)
    ]
    logs = np.log(np.array(found)).reshape(300, 3, 2)

    assert (logs == logs[:, :1]).all()
    assert logs[:, 0].std(axis=0) == pytest.approx([0.008, 0.008], rel=0.15)
    assert abs(logs.mean()) < 0.001
    assert abs(np.corrcoef(logs[:, 0].T)[0, 1]) < 0.2


def test_noise_is_drawn_for_each_sample() -> None:
    """Noise has its standard deviation on the log scale, and each sample its own draw."""
    world = _world(noise_ppm=20_000)
    logs = np.log([world.slowness(side, 0.0) for _ in range(2000) for side in SIDES])

    assert len(set(logs)) == 4000
    assert logs.std() == pytest.approx(0.02, rel=0.05)
    assert abs(logs.mean()) < 0.001


@pytest.mark.parametrize("name", [name for name in LOUD if name != "process_ppm"])
def test_process_seed_moves_the_process_effect_alone(name: str) -> None:
    """Another process of the same case meets the same nuisances; only the process effect is its own."""
    one, other = (_world(process=process, **{name: LOUD[name]}) for process in (1, 2))
    times = [step * 3 * MS for step in range(300)]

    assert [one.slowness(BACKEND_SIDE, now) for now in times] == [other.slowness(BACKEND_SIDE, now) for now in times]


def _walk(world: World) -> list[float]:
    return [world.slowness(step // 2 % 2, step * MS) for step in range(3000)]


def test_same_seeds_give_the_same_world() -> None:
    """With everything declared, the same seeds give the same slowness at each step; another seed another world."""
    first = _walk(_world(3, 4, **LOUD))

    assert _walk(_world(3, 4, **LOUD)) == first
    assert _walk(_world(3, 5, **LOUD)) != first
    assert _walk(_world(4, 4, **LOUD)) != first


@pytest.mark.parametrize(
    ("touched", "missed"),
    [
        ([{"a": 4}, {"a": 4}], [4, 0]),
        ([{"a": 4, "b": 4}, {"a": 4, "b": 4}], [8, 0]),
        ([{"a": 4}, {"b": 6}, {"b": 6, "a": 4}], [4, 6, 0]),
        ([{"a": 4}, {"b": 6}, {"c": 1}, {"b": 6}, {"a": 4}], [4, 6, 1, 0, 4]),  # c pushes out a, the oldest
        ([{"a": 4}, {"b": 6}, {"a": 4}, {"c": 1}, {"a": 4}, {"b": 6}], [4, 6, 0, 1, 0, 6]),  # now b is the oldest
        ([{"a": 4}, {"flush": 20}, {"a": 4}, {"a": 4}], [4, 20, 4, 0]),
        ([{"a": 16}, {"a": 16}], [16, 6]),  # what is larger than the cache is held in part
        ([{"a": 4}, {"a": 8}], [4, 4]),  # a buffer that grew misses what is new
    ],
)
def test_cache_by_example(touched: list[dict[str, int]], missed: list[int]) -> None:
    """A cache of ten bytes holds what was used last and misses the rest, byte by byte."""
    cache = Cache(10)

    assert [cache.touch(buffers) for buffers in touched] == missed


def test_cache_of_real_size() -> None:
    """Tensors of 3 MiB stay in a cache of 32 MiB until twice its size is written."""
    cache, tensors = Cache(32 * MIB), {"q": MIB, "k": MIB, "v": MIB}
    found: list[Any] = [cache.touch(tensors), cache.touch(tensors), cache.touch({"flush": 64 * MIB})]

    assert [*found, cache.touch(tensors)] == [3 * MIB, 0, 64 * MIB, 3 * MIB]
