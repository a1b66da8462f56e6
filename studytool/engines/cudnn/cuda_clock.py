"""Device time by CUDA events behind a filled queue, and the host's time to enqueue, of the same launches."""

import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping

from studytool.engines.base import Launch, Sample
from studytool.engines.cudnn.device import Device
from studytool.stats import tick_of

LEAST_SPIN_NS = 50_000
MOST_SPIN_NS = 200_000_000
HEADROOM = 1.5
TRIES = 3
SETTLE_NS = 100_000_000
MOST_STRETCH = 10.0
"""By how much a spin is asked to be longer where the last one ended before its time."""

_TICK_INTERVALS = 256


class CudaClock:
    """Times launches between two events that wait, with the launches, behind a kernel that spins.

    The spin is longer than the host needs to enqueue all of it, so that no gap between launches counts. It follows
    the longest of the last enqueue times of any leg, so that every leg waits alike.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._enqueued_ns: deque[int] = deque(maxlen=32)
        self._stretch = 1.0
        self.tick_ns = self._measured_tick_ns()
        self._floor_ns = round(statistics.median(self.sample(lambda _: device.spin(0), 1).ns for _ in range(33)))

    def sample(self, launch: Launch, inner: int, before: Callable[[], None] | None = None) -> Sample:
        """Return the device time of `launch(inner)`, and the time that the host took to enqueue it.

        Where the spin ended before the host was done, the sample is taken again behind a longer one; a sample that
        cannot be had otherwise has counter `gap` 1.
        """
        sample, dry = self._sample(launch, inner, before)
        for _ in range(TRIES - 1):
            if not dry:
                break
            sample, dry = self._sample(launch, inner, before)
        return sample

    def now_ns(self) -> int:
        """Return the monotonic time."""
        return time.monotonic_ns()

    def settle(self) -> None:
        """Keep the device busy for a while, since an idle one runs at a low clock."""
        self._device.spin(SETTLE_NS)
        self._device.synchronize()

    def mhz(self) -> tuple[int, ...]:
        """Return the SM clock now."""
        return tuple(value for name, value in self._device.board.state().items() if name == "sm_mhz")

    def state(self) -> Mapping[str, int]:
        """Return the board's clocks, throttle reasons, power, temperature and number of processes now.

        `floor_ns` is what an empty kernel takes on this clock, measured once: short samples hold that much of it.
        """
        return {**self._device.board.state(), "floor_ns": self._floor_ns}

    def _sample(self, launch: Launch, inner: int, before: Callable[[], None] | None) -> tuple[Sample, bool]:
        if before is not None:
            before()
        self._device.synchronize()
        wanted_ns = round(max(self._enqueued_ns, default=0) * HEADROOM * self._stretch)
        spin_ns = min(max(wanted_ns, round(LEAST_SPIN_NS * self._stretch)), MOST_SPIN_NS)
        opened, opened_ns = self._device.moment(), self._device.host_ns()
        self._device.spin(spin_ns)
        begin = self._device.moment()
        host_begin_ns = self._device.host_ns()
        launch(inner)
        host_ns = self._device.host_ns() - host_begin_ns
        end = self._device.moment()
        self._device.synchronize()
        enqueued_ns = host_begin_ns + host_ns - opened_ns
        self._enqueued_ns.append(enqueued_ns)
        ns, spun_ns = end.since_ns(begin), begin.since_ns(opened)
        self._stretch = min(max(1.0, spin_ns / max(spun_ns, 1)), MOST_STRETCH)  # the clock may be slower than it was
        dry = enqueued_ns > spun_ns
        behind = host_ns * inner <= ns * (inner - 1)  # the host was done before the device began the last launch
        return Sample(max(1, ns), host_ns, {"gap": int(dry and not behind)}), dry

    def _measured_tick_ns(self) -> int:
        """Return the tick of events, from intervals of varied length."""
        moments = []
        for turn in range(_TICK_INTERVALS):
            begin = self._device.moment()
            self._device.spin(1_000 + 137 * turn)
            moments.append((begin, self._device.moment()))
        self._device.synchronize()
        return max(1, tick_of([end.since_ns(begin) for begin, end in moments]))
