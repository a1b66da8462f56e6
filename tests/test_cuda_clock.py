"""Device time behind a filled queue: gaps of the host do not count, and where they cannot be kept out it is said."""

from typing import Any

import pytest

from studytool.engines.base import Launch

fakecudnn = pytest.importorskip("fakecudnn")
cuda_clock = pytest.importorskip("studytool.engines.cudnn.cuda_clock")
pytestmark = pytest.mark.torch

KERNEL_NS, HOST_NS = 30_000, 150_000
SPIN_HOST_NS = 100
"""What the fake device's host takes to enqueue a spin."""


@pytest.fixture
def device() -> Any:
    """Return a device whose kernels are much shorter than the host takes to launch one."""
    made = fakecudnn.Device()
    made.host_cost_ns, made.cost_ns, made.tick_ns = HOST_NS, lambda _engine: KERNEL_NS, 1
    return made


def kernels(device: Any) -> Launch:
    """Return what launches kernels one by one."""

    def launch(inner: int) -> None:
        for _ in range(inner):
            device.kernel(5, lambda: None)

    return launch


def spins(device: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the length of each spin from here on."""
    asked, spin = list[int](), device.spin

    def noting(ns: int) -> None:
        asked.append(ns)
        spin(ns)

    monkeypatch.setattr(device, "spin", noting)
    return asked


@pytest.mark.parametrize("inner", [1, 2, 10, 1000])
def test_gaps_of_the_host_do_not_count(device: Any, inner: int) -> None:
    """Kernels of 30 us that the host launches every 150 us take 30 us each, from the first sample on."""
    clock = cuda_clock.CudaClock(device)

    for _ in range(3):
        sample = clock.sample(kernels(device), inner)
        assert (sample.ns, sample.host_ns, sample.counters) == (inner * KERNEL_NS, inner * HOST_NS, {"gap": 0})


def test_without_the_spin_the_host_is_timed(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that fills no queue reads what the host takes: the spin is what keeps it out."""
    clock = cuda_clock.CudaClock(device)
    monkeypatch.setattr(device, "spin", lambda _ns: None)

    assert clock.sample(kernels(device), 100).ns / 100 == pytest.approx(HOST_NS, rel=0.01)


@pytest.mark.parametrize("spun", [0, 10_000])
def test_spin_that_does_not_last_is_told(device: Any, monkeypatch: pytest.MonkeyPatch, spun: int) -> None:
    """Where the device spins for much less than it was asked to, the host is timed, and the sample says so."""
    clock, spin = cuda_clock.CudaClock(device), device.spin
    monkeypatch.setattr(device, "spin", lambda _ns: spin(spun))

    assert clock.sample(kernels(device), 100).counters == {"gap": 1}


def test_spin_is_longer_than_the_host_needs(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first spin is short; where it was too short, the sample is taken again behind one with headroom."""
    clock, asked = cuda_clock.CudaClock(device), spins(device, monkeypatch)
    for inner in (10, 10, 2):
        clock.sample(kernels(device), inner)

    assert asked == [cuda_clock.LEAST_SPIN_NS, *[round((10 * HOST_NS + SPIN_HOST_NS) * cuda_clock.HEADROOM)] * 3]


def test_every_leg_waits_alike(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The spin follows the slowest of the last 32 launches of any leg, and forgets those before."""
    clock, asked = cuda_clock.CudaClock(device), spins(device, monkeypatch)
    clock.sample(kernels(device), 10)
    del asked[:]
    for _ in range(40):
        clock.sample(kernels(device), 1)
    long, short = (round((inner * HOST_NS + SPIN_HOST_NS) * cuda_clock.HEADROOM) for inner in (10, 1))

    assert asked == [long] * 32 + [short] * 8


@pytest.mark.parametrize(("host_cost_ns", "spin"), [(100, 50_000), (33_000, 50_000), (34_000, 51_150)])
def test_spin_has_a_least_length(device: Any, monkeypatch: pytest.MonkeyPatch, host_cost_ns: int, spin: int) -> None:
    """However quick the host is, the queue is filled for 50 us."""
    device.host_cost_ns = host_cost_ns
    clock, asked = cuda_clock.CudaClock(device), spins(device, monkeypatch)
    clock.sample(kernels(device), 1)
    clock.sample(kernels(device), 1)

    assert asked == [50_000, spin]


@pytest.mark.parametrize("slower", [2, 4])
def test_least_spin_is_stretched_as_well(device: Any, monkeypatch: pytest.MonkeyPatch, slower: int) -> None:
    """Where a device spins for less than it is asked to, the next spin lasts 50 us all the same."""
    device.host_cost_ns = 100
    clock, spin = cuda_clock.CudaClock(device), device.spin
    monkeypatch.setattr(device, "spin", lambda ns: spin(ns // slower))
    asked = spins(device, monkeypatch)
    for _ in range(3):
        clock.sample(kernels(device), 1)

    assert asked == [50_000, *[pytest.approx(50_000 * slower, rel=0.05)] * 2]


def test_queue_is_dry_where_the_spin_itself_was_slow_to_launch(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device spins while the host still enqueues the spin: that time counts, and the sample is taken again."""
    device.host_cost_ns = 10_000
    clock, spin, delays = cuda_clock.CudaClock(device), device.spin, iter([45_000, 0, 0])

    def slow(ns: int) -> None:
        spin(ns)
        device.host_at_ns += next(delays)

    monkeypatch.setattr(device, "spin", slow)
    sample = clock.sample(kernels(device), 1)

    assert (sample.ns, sample.host_ns, sample.counters, len([*delays])) == (KERNEL_NS, 10_000, {"gap": 0}, 1)


@pytest.mark.parametrize("tries", [1, 2, 3])
def test_what_comes_before_is_done_before_every_try(device: Any, monkeypatch: pytest.MonkeyPatch, tries: int) -> None:
    """A flush is enqueued right before each try, is waited for, and is part of no time."""
    device.host_cost_ns = 2_000
    clock, events, spin = cuda_clock.CudaClock(device), list[str](), device.spin
    too_short = iter([0] * (tries - 1))

    def flush() -> None:
        events.append("flush")
        spin(900_000)

    def spinning(ns: int) -> None:
        events.append(f"spin on {max(0, device.free_at_ns - device.host_at_ns)}")
        spin(next(too_short, ns))

    def launch(inner: int) -> None:
        events.append("launch")
        kernels(device)(inner)

    monkeypatch.setattr(device, "spin", spinning)
    sample = clock.sample(launch, 1, flush)

    assert events == ["flush", "spin on 0", "launch"] * tries
    assert (sample.ns, sample.host_ns, sample.counters) == (KERNEL_NS, 2_000, {"gap": 0})


def test_gap_that_cannot_be_had_otherwise_is_counted(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that takes longer than the longest spin has three tries, and the last sample says that it has gaps."""
    device.host_cost_ns = cuda_clock.MOST_SPIN_NS
    clock, asked, launched = cuda_clock.CudaClock(device), spins(device, monkeypatch), [0]

    def launch(inner: int) -> None:
        launched[0] += inner
        kernels(device)(inner)

    sample = clock.sample(launch, 4)

    assert sample.counters == {"gap": 1}
    assert sample.host_ns == 4 * cuda_clock.MOST_SPIN_NS
    assert (launched, asked) == ([4 * 3], [cuda_clock.LEAST_SPIN_NS, *[cuda_clock.MOST_SPIN_NS] * 2])


def test_queue_that_the_device_does_not_empty_has_no_gap(device: Any) -> None:
    """Where the host takes longer than any spin, but each kernel longer than the host, the device never waits."""
    device.host_cost_ns, device.cost_ns = 100_000_000, lambda _engine: 300_000_000
    sample = cuda_clock.CudaClock(device).sample(kernels(device), 4)

    assert (sample.ns, sample.host_ns, sample.counters) == (4 * 300_000_000, 400_000_000, {"gap": 0})


def test_retry_ends_with_the_first_good_sample(device: Any) -> None:
    """A host that was slow once, such as in a first launch, costs one more try and spoils no sample."""
    clock, costs = cuda_clock.CudaClock(device), iter([9_000_000, *[2_000] * 9])

    def launch(inner: int) -> None:
        device.host_cost_ns = next(costs)
        kernels(device)(inner)

    sample = clock.sample(launch, 1)

    assert (sample.ns, sample.host_ns, sample.counters, len([*costs])) == (KERNEL_NS, 2_000, {"gap": 0}, 8)


def test_sample_begins_on_an_idle_device(device: Any) -> None:
    """What was launched before is waited for: nothing is queued but the spin, and nothing else is in the sample."""
    clock, queued = cuda_clock.CudaClock(device), list[int]()
    device.cost_ns = lambda _engine: 900_000
    kernels(device)(50)
    device.cost_ns = lambda _engine: 1_000

    def launch(inner: int) -> None:
        queued.append(device.free_at_ns - device.host_at_ns)
        kernels(device)(inner)

    assert clock.sample(launch, 3).ns == 3_000
    assert queued[0] <= cuda_clock.LEAST_SPIN_NS


def test_nothing_takes_at_least_a_nanosecond(device: Any) -> None:
    """A launch that the clock cannot tell from nothing is one nanosecond, since no time is zero."""
    device.cost_ns = lambda _engine: 0

    assert cuda_clock.CudaClock(device).sample(lambda _inner: None, 1).ns == 1


@pytest.mark.parametrize("tick_ns", [1, 32, 500, 1024])
def test_tick_is_measured(device: Any, tick_ns: int) -> None:
    """The tick is what the differences of measured intervals have in common, whatever the device says."""
    device.tick_ns = tick_ns

    assert cuda_clock.CudaClock(device).tick_ns == tick_ns


def test_board_tells_state_and_clock(device: Any) -> None:
    """The clock rate and the state are the board's of this moment; a board that tells no clock has none."""
    floor = {"floor_ns": 1}
    clock = cuda_clock.CudaClock(device)
    device.board.readings = {"sm_mhz": 1_005, "throttle": 4}
    told = clock.mhz(), clock.state()
    device.board.readings = {"throttle": 0}

    assert told == ((1_005,), {"sm_mhz": 1_005, "throttle": 4, **floor})
    assert (clock.mhz(), clock.state()) == ((), {"throttle": 0, **floor})
    assert clock.now_ns() <= clock.now_ns()


def test_floor_is_what_an_empty_kernel_takes(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state tells the median time of an empty kernel, measured once, when the clock was made."""
    spin, floors = device.spin, iter([99_000, *[1_700] * 31, 88_000])
    monkeypatch.setattr(device, "spin", lambda ns: spin(ns or next(floors)))
    clock = cuda_clock.CudaClock(device)
    monkeypatch.setattr(device, "spin", lambda ns: spin(ns or 9_000))

    assert [clock.state()["floor_ns"] for _ in range(2)] == [1_700] * 2
    assert clock.sample(lambda _inner: device.spin(0), 1).ns == 9_000
