"""The host's clock, for engines that run on the CPU."""

import resource
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from studytool.engines.base import Launch, Sample
from studytool.stats import tick_of

_CPUINFO = Path("/proc/cpuinfo")


class HostClock:
    """Wall time of launches by `perf_counter_ns`, with the thread's CPU time, page faults and preemptions beside it."""

    def __init__(self) -> None:
        self.tick_ns = measured_tick_ns()

    def sample(self, launch: Launch, inner: int, before: Callable[[], None] | None = None) -> Sample:
        """Return the wall time of `launch(inner)`; the counters are read outside of it."""
        if before is not None:
            before()
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        cpu = time.thread_time_ns()
        begin = time.perf_counter_ns()
        launch(inner)
        end = time.perf_counter_ns()
        cpu = time.thread_time_ns() - cpu
        after = resource.getrusage(resource.RUSAGE_THREAD)
        counters = {
            "cpu_ns": cpu,
            "minor_faults": after.ru_minflt - usage.ru_minflt,
            "preemptions": after.ru_nivcsw - usage.ru_nivcsw,
        }
        return Sample(max(1, end - begin), None, counters)

    def settle(self) -> None:
        """Do nothing: a processor that asks is at work."""

    def now_ns(self) -> int:
        """Return the monotonic time."""
        return time.monotonic_ns()

    def mhz(self) -> tuple[int, ...]:
        """Return the fastest core's clock now, nothing where the system does not tell."""
        if not _CPUINFO.is_file():
            return ()
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
        found = [round(float(line.split(":")[1])) for line in lines if line.startswith("cpu MHz")]
        return (max(found),) if found else ()

    def state(self) -> Mapping[str, int]:
        """Return nothing: what disturbs a sample here is in its counters."""
        return {}


def measured_tick_ns() -> int:
    """Return the tick of `perf_counter_ns`, from 512 intervals of varied length."""
    intervals = []
    for length in range(512):
        begin = time.perf_counter_ns()
        for _ in range(length % 16):
            pass
        intervals.append(time.perf_counter_ns() - begin)
    return max(1, tick_of(intervals))
