"""The nuisances of a simulated device on virtual time: drift, warm-up, throttling, carry-over, process effects, an L2.

Everything is a function of the declared numbers and two seeds, one of the case in its repeat and one of the process,
so a case that is measured again, after a crash or alone, gives the same samples.
"""

import math
from collections import OrderedDict
from collections.abc import Mapping

import numpy as np

from studytool.engines.base import Seeds
from studytool.metrics import PPM

MS = 1_000_000.0
MIB = 1 << 20
BACKEND_SIDE, FROST_SIDE = 0, 1
_CHUNK = 1024


class World:
    """What happens to a device while it is measured."""

    def __init__(self, declared: Mapping[str, int], seeds: Seeds) -> None:
        self._n = declared
        self._random = np.random.Generator(np.random.PCG64(seeds.case))
        self._phase = float(self._random.random()) * 2 * math.pi
        self._normals: list[float] = []
        self._throttles: list[tuple[float, float]] = []
        process = np.random.Generator(np.random.PCG64(seeds.process))
        self._process = np.exp(process.standard_normal(2) * declared["process_ppm"] / PPM).tolist()
        self._last_side = BACKEND_SIDE
        self.start_ns = 0.0

    def slowness(self, side: int, now_ns: float) -> float:
        """Return how much slower than declared a launch of a side is now, its noise included."""
        number = self._n
        factor = float(self._process[side]) * self.slowness_in_time(now_ns)
        if number["noise_ppm"]:
            factor *= math.exp(number["noise_ppm"] / PPM * self._normal())
        if number["carry_ppm"] and self._last_side == FROST_SIDE and side != FROST_SIDE:
            factor *= 1 + number["carry_ppm"] / PPM
        if number["power_ppm"] and side == FROST_SIDE and self._normal() < 0:
            factor *= 1 + number["power_ppm"] / PPM
        self._last_side = side
        return factor

    def slowness_in_time(self, at_ns: float) -> float:
        """Return the part of the slowness that depends on time alone, the same for both sides.

        Drift, warm-up and throttling begin at `start_ns`, when everything is built.
        """
        number = self._n
        now_ns = at_ns - self.start_ns
        factor = 1 + number["trend_ppm_per_s"] / PPM * now_ns / (1000 * MS)
        if number["drift_ppm"]:
            angle = 2 * math.pi * now_ns / (number["drift_ms"] * MS) + self._phase
            factor *= 1 + number["drift_ppm"] / PPM * math.sin(angle)
        if number["warmup_ppm"]:
            factor *= 1 + number["warmup_ppm"] / PPM * math.exp(-now_ns / (number["warmup_ms"] * MS))
        if number["throttle_ppm"] and self._throttled(now_ns):
            factor *= 1 + number["throttle_ppm"] / PPM
        return factor

    def _throttled(self, now_ns: float) -> bool:
        every, length = self._n["throttle_every_ms"] * MS, self._n["throttle_ms"] * MS
        while not self._throttles or self._throttles[-1][1] <= now_ns:
            last = self._throttles[-1][1] if self._throttles else 0.0
            begin = last + float(self._random.exponential(every))
            self._throttles.append((begin, begin + length))
        return self._throttles[-1][0] <= now_ns

    def _normal(self) -> float:
        if not self._normals:
            self._normals = self._random.standard_normal(_CHUNK).tolist()
        return self._normals.pop()


class Cache:
    """A least-recently-used cache of so many bytes, over named buffers."""

    def __init__(self, size_bytes: int) -> None:
        self._size = size_bytes
        self._held: OrderedDict[str, int] = OrderedDict()

    def touch(self, buffers: Mapping[str, int]) -> int:
        """Return how many bytes of these buffers were not held; afterwards they are the most recently used."""
        missed = 0
        for name, size in buffers.items():
            missed += size - self._held.pop(name, 0)
            self._held[name] = min(size, self._size)
            while sum(self._held.values()) > self._size:
                self._held.popitem(last=False)
        return missed
