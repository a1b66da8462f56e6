"""Simulated worlds with a known truth, and how people time in them: written after the published algorithms.

triton's do_bench, torch.utils.benchmark, pyperf, best of rounds and round robin read the same virtual clock as ours and
get the same device time. Every process of every method sees the row's nuisance once over its own run.
"""

import math
import statistics
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy import special

from studytool import measure
from studytool.digest import rank
from studytool.engine_terms import SIMULATED_NUMBERS
from studytool.engines.base import Bench, Clock, Order, Seeds
from studytool.engines.simulated import Simulated
from studytool.model import Case

REPEATS, BLOCKS, MIN_SAMPLE_NS = 5, 16, 150_000
KERNEL_NS, NOISE_PPM = 100_000, 3_000
REGIME = "eager-warm"


class Row(NamedTuple):
    """A nuisance: the device's numbers for a process that runs so many ms, and the kernel's time."""

    name: str
    numbers: Callable[[float], dict[str, int]]
    kernel_ns: int = KERNEL_NS
    noise_ppm: int = NOISE_PPM


ROWS = [
    Row("no drift", lambda _ms: {}),
    Row("3 % drift", lambda ms: {"trend_ppm_per_s": round(30_000 / ms * 1000)}),
    Row("3 % warm-up", lambda ms: {"warmup_ppm": 30_000, "warmup_ms": max(1, round(ms / 10))}),
    Row(
        "3 % throttle step",
        lambda ms: {
            "throttle_ppm": 30_000,
            "throttle_every_ms": max(1, round(ms / 2)),
            "throttle_ms": max(1, round(ms / 4)),
        },
    ),
    Row("0.5 % carry-over", lambda _ms: {"carry_ppm": 5_000}),
    Row("0.8 % process effect", lambda _ms: {"process_ppm": 8_000}),
    Row("1 µs tick, 8.3 µs kernel", lambda _ms: {"tick_ns": 1_000}, kernel_ns=8_300),
    Row(
        "noisy host, 7 %",
        lambda ms: {
            "throttle_ppm": 600_000,
            "throttle_every_ms": max(1, round(ms / 8)),
            "throttle_ms": max(1, round(ms / 16)),
        },
        noise_ppm=70_000,
    ),
]


class Estimate(NamedTuple):
    """What a method says of ln(frost/backend): its interval is None where it offers none."""

    center: float
    interval: tuple[float, float] | None


class World(NamedTuple):
    """A row at a true ratio: makes devices, and opens a bench of one on its own clock."""

    row: Row
    ratio: float

    def device(self, run_ms: float) -> Simulated:
        """Return a device for a process that runs about so long."""
        declared: dict[str, int | str] = {
            **SIMULATED_NUMBERS,
            "noise_ppm": self.row.noise_ppm,
            **self.row.numbers(run_ms),
            "backend_ns": str(self.row.kernel_ns),
            "frost_ns": str(round(self.row.kernel_ns * self.ratio)),
        }
        return Simulated(declared)

    def bench(self, run_ms: float, *seed: object) -> tuple[Bench, Clock]:
        """Return a case made ready in a process of its own, and the clock."""
        device = self.device(run_ms)
        case = Case(op="sdpa_fwd", dtype="bf16", b=1, h_q=1, h_kv=1, s_q=64, s_kv=64, d_qk=64, d_v=64)
        seeds = Seeds(int(rank(*seed, "case")[:12], 16), int(rank(*seed, "process")[:12], 16))
        return device.prepare(case, Order("library", None), seeds, "normal"), device.own_clock()


def inner_of(row: Row) -> int:
    """Return how many launches a sample of ours has on a row."""
    ticks = measure.TICKS_PER_SAMPLE * row.numbers(100.0).get("tick_ns", 1)
    return math.ceil(max(MIN_SAMPLE_NS, ticks) / row.kernel_ns)


def budget_ns(row: Row) -> float:
    """Return the device time of one study of ours: four legs, warm-up and calibration included."""
    inner = inner_of(row)
    launches = 4 * measure.STEADY_COUNT + 2 * (inner + 1) + 4 * BLOCKS * (inner + (inner > 1))
    return float(REPEATS * launches * row.kernel_ns)


def timed(bench: Bench, clock: Clock, leg: str, count: int, inner: int) -> list[float]:
    """Return the times per launch of so many samples of one leg, one after the other."""
    with bench.armed(leg, REGIME) as launch:
        return [clock.sample(launch, inner).ns / inner for _ in range(count)]


def _mean_interval(values: list[float]) -> tuple[float, float]:
    """Return mean and standard error of logs as if the samples were independent."""
    logs = np.log(values)
    return float(logs.mean()), float(logs.std(ddof=1) / math.sqrt(len(logs)))


def _two_samples(a: list[float], b: list[float]) -> Estimate:
    (frost, frost_se), (backend, backend_se) = _mean_interval(a), _mean_interval(b)
    half = float(special.stdtrit(len(a) + len(b) - 2, 0.975)) * math.hypot(frost_se, backend_se)
    return Estimate(frost - backend, (frost - backend - half, frost - backend + half))


def sequential_mean(world: World, seed: int) -> Estimate:
    """As triton.testing.do_bench: five launches to warm up, then the mean of single launches, leg by leg."""
    budget = budget_ns(world.row)
    bench, clock = world.bench(budget / 1e6, seed, "do_bench")
    count = int(budget / world.row.kernel_ns / 2) - 5
    sides = []
    for leg in ("backend", "frost"):
        timed(bench, clock, leg, 5, 1)
        sides.append(timed(bench, clock, leg, count, 1))
    return _two_samples(sides[1], sides[0])


def best_of_rounds(world: World, seed: int) -> Estimate:
    """Leg by leg: the lowest of three means over a third of the time each."""
    budget = budget_ns(world.row)
    bench, clock = world.bench(budget / 1e6, seed, "rounds")
    inner = inner_of(world.row)
    count = int(budget / world.row.kernel_ns / 2 / inner / 3)
    best = [
        min(statistics.fmean(timed(bench, clock, leg, count, inner)) for _ in range(3)) for leg in ("backend", "frost")
    ]
    return Estimate(math.log(best[1] / best[0]), None)


def blocked_autorange(world: World, seed: int) -> Estimate:
    """As torch.utils.benchmark: the block grows until it lasts long enough, then the median of blocks, leg by leg."""
    budget = budget_ns(world.row)
    bench, clock = world.bench(budget / 1e6, seed, "autorange")
    medians = []
    for leg in ("backend", "frost"):
        number, spent = 1, 0.0
        while number * world.row.kernel_ns < budget / 2 / 1000 or number * world.row.kernel_ns < MIN_SAMPLE_NS:
            spent += timed(bench, clock, leg, 1, number)[0] * number
            number *= 10 if number * world.row.kernel_ns < MIN_SAMPLE_NS / 10 else 2
        count = max(3, int((budget / 2 - spent) / world.row.kernel_ns / number))
        medians.append(statistics.median(timed(bench, clock, leg, count, number)))
    return Estimate(math.log(medians[1] / medians[0]), None)


def pyperf(world: World, seed: int) -> Estimate:
    """As pyperf: leg by leg twenty processes of one warm-up and three values, pooled as independent."""
    budget = budget_ns(world.row)
    inner = max(1, int(budget / 2 / 20 / 4 / world.row.kernel_ns))
    sides = []
    for leg in ("backend", "frost"):
        values: list[float] = []
        for process in range(20):
            bench, clock = world.bench(budget / 40 / 1e6, seed, "pyperf", process, leg)
            values += timed(bench, clock, leg, 4, inner)[1:]
        sides.append(values)
    return _two_samples(sides[1], sides[0])


def round_robin(world: World, seed: int) -> Estimate:
    """Two legs in turn, always in one order, in one process; the mean of paired log ratios, blocks as independent."""
    budget = budget_ns(world.row)
    bench, clock = world.bench(budget / 1e6, seed, "robin")
    inner = inner_of(world.row)
    count = int(budget / world.row.kernel_ns / 2 / inner)
    logs = []
    for _ in range(count):
        frost, backend = (timed(bench, clock, leg, 1, inner)[0] for leg in ("frost", "backend"))
        logs.append(math.log(frost / backend))
    center, error = float(np.mean(logs)), float(np.std(logs, ddof=1) / math.sqrt(count))
    half = float(special.stdtrit(count - 1, 0.975)) * error
    return Estimate(center, (center - half, center + half))


OTHERS: dict[str, Callable[[World, int], Estimate]] = {
    "best of rounds, leg after leg": best_of_rounds,
    "mean, leg after leg (do_bench)": sequential_mean,
    "median of blocks, leg after leg (torch)": blocked_autorange,
    "20 processes, pooled (pyperf)": pyperf,
    "round robin, fixed order": round_robin,
}
