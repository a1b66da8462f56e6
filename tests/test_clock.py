"""The host's clock: what is inside an interval, what is beside it, and the tick."""

import mmap
from pathlib import Path
from types import SimpleNamespace

import pytest

from studytool import clock
from studytool.clock import HostClock


def _scripted(monkeypatch: pytest.MonkeyPatch, wall: list[int], log: list[str]) -> HostClock:
    """Return a host clock whose reads are logged and come from a script: wall time, CPU time, page faults."""
    timer = HostClock()
    cpu, faults, preemptions = iter([1000, 1900]), iter([5, 8]), iter([2, 3])

    def usage(_who: int) -> SimpleNamespace:
        log.append("usage")
        return SimpleNamespace(ru_minflt=next(faults), ru_nivcsw=next(preemptions))

    def wall_ns() -> int:
        log.append("wall")
        return wall.pop(0)

    def cpu_ns() -> int:
        log.append("cpu")
        return next(cpu)

    monkeypatch.setattr(clock, "resource", SimpleNamespace(getrusage=usage, RUSAGE_THREAD=1))
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=wall_ns, thread_time_ns=cpu_ns))
    return timer


def test_only_the_launch_is_inside_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock is read right before and after the launch; the slower counters are read outside of that."""
    log: list[str] = []
    sample = _scripted(monkeypatch, [100, 750], log).sample(lambda inner: log.append(f"launch {inner}"), 12)

    assert log == ["usage", "cpu", "wall", "launch 12", "wall", "cpu", "usage"]
    assert sample == (650, None, {"cpu_ns": 900, "minor_faults": 3, "preemptions": 1})


def test_sample_is_never_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch shorter than the clock can tell takes one nanosecond, since a record has no time of zero."""
    assert _scripted(monkeypatch, [100, 100], []).sample(lambda _inner: None, 1).ns == 1


def test_counters_are_of_this_thread_and_interval() -> None:
    """A launch that works and touches new memory has CPU time and page faults, and its own alone."""
    timer = HostClock()

    def launch(inner: int) -> None:
        with mmap.mmap(-1, inner * 4096) as memory:
            memory.write(bytes(inner * 4096))

    busy = timer.sample(launch, 2048)
    idle = timer.sample(lambda _inner: None, 1)

    assert busy.counters["minor_faults"] > idle.counters["minor_faults"]
    assert busy.counters["cpu_ns"] > idle.counters["cpu_ns"] >= 0


@pytest.mark.parametrize(("step", "tick"), [(1, 1), (40, 40), (1000, 1000)])
def test_tick_is_measured(monkeypatch: pytest.MonkeyPatch, step: int, tick: int) -> None:
    """The tick is what all intervals of the clock are multiples of."""
    reads = iter(range(0, step * 10**6, step))
    skips = iter([2, 3, 6] * 400)

    def wall_ns() -> int:
        for _ in range(next(skips)):
            next(reads)
        return next(reads)

    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=wall_ns))

    assert clock.measured_tick_ns() == tick


def test_clock_that_stands_has_the_smallest_tick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which no time passes has a tick of one, which nothing divides by zero with."""
    monkeypatch.setattr(clock, "time", SimpleNamespace(perf_counter_ns=lambda: 5))

    assert clock.measured_tick_ns() == 1


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("processor\t: 0\ncpu MHz\t\t: 2249.998\nprocessor\t: 1\ncpu MHz\t\t: 3100.6\n", (3101,)),
        ("processor\t: 0\nmodel name\t: some ARM\n", ()),
        (None, ()),
    ],
)
def test_clock_rate_is_the_fastest_core_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, found: tuple[int, ...]
) -> None:
    """The rate is that of the fastest core in whole MHz, and nothing where the system does not tell."""
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(clock, "_CPUINFO", tmp_path / "cpuinfo")

    assert HostClock().mhz() == found
