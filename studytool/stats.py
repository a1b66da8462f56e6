"""Ratios, intervals and noise from raw samples. Pure; numpy arrays in, floats out, integers in ppm at the border.

The estimator is paired: within a block ln(a) - ln(b), the median over blocks, the mean over repeats (processes).
Samples are never pooled across repeats: a repeat is the unit of replication (Kalibera and Jones 2013).
"""

import functools
import itertools
import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studytool.metrics import PPM

COARSE = 0.002
"""Where the clock's tick is more than this share of a sample, the mean of blocks is taken, not the median."""

BOOTSTRAP_DRAWS = 2000
Floats = NDArray[np.float64]


class Interval(NamedTuple):
    """An estimate on the log scale with its interval; infinite bounds from a single repeat."""

    center: float
    low: float
    high: float


def per_launch_ns(ns: Sequence[int], inner: int) -> Floats:
    """Return the time of one launch per sample, in ns."""
    return np.asarray(ns, dtype=np.float64) / inner


def paired_log_ratio(a_ns: Floats, b_ns: Floats, tick_ns: float, sample_ns: float) -> float:
    """Return ln(a/b) of one repeat from times per launch that were taken in the same blocks.

    `tick_ns` is the clock's tick and `sample_ns` the shortest sample: the median of quantised samples is biased by
    up to half a tick, their mean is not, so the mean is taken where the tick is coarse.
    """
    if a_ns.shape != b_ns.shape:
        raise ValueError(f"{a_ns.size} and {b_ns.size} blocks; expected pairs")
    if tick_ns > COARSE * sample_ns:
        return float(np.log(np.mean(a_ns)) - np.log(np.mean(b_ns)))
    return float(np.median(np.log(a_ns) - np.log(b_ns)))


def interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return mean and t interval of one value per repeat.

    Notes: the repeats are taken as independent and near normal on the log scale; with P repeats, t has P-1 degrees
    of freedom.
    """
    count, center = len(values), mean(values)
    if count < 2:
        return Interval(center, -math.inf, math.inf)
    deviation = math.sqrt(math.fsum((value - center) ** 2 for value in values) / (count - 1))
    half = _t_quantile(count - 1, (1 + confidence) / 2) * deviation / math.sqrt(count)
    return Interval(center, center - half, center + half)


@functools.cache
def _t_quantile(freedom: int, q: float) -> float:
    from scipy import special  # noqa: PLC0415 - takes longer than the rest of a worker's start, and no worker needs it

    return float(special.stdtrit(freedom, q))


def ppm(log_ratio: float) -> int:
    """Return exp(log_ratio) in parts per million, rounded to the nearest, at least 1; huge ones are capped."""
    return max(1, round(math.exp(min(log_ratio, 27.0)) * PPM))


def share_ppm(value: float) -> int:
    """Return a plain number in parts per million, rounded to the nearest."""
    return round(value * PPM)


def mean(values: Sequence[float]) -> float:
    """Return the mean of values, by an exact sum."""
    return math.fsum(values) / len(values)


def median(values: Sequence[float]) -> float:
    """Return the median of values."""
    return float(statistics.median(values))


def medians(values: Floats) -> Floats:
    """Return the medians over the last axis; sorting is what numpy does fastest."""
    ranked, half = np.sort(values, axis=-1), values.shape[-1] // 2
    found: Floats = ranked[..., half] if values.shape[-1] % 2 else (ranked[..., half - 1] + ranked[..., half]) / 2
    return found


def geomean_log(logs: Sequence[float]) -> float:
    """Return the mean of log ratios: the log of their geometric mean."""
    return mean(logs)


def quantile(values: Sequence[float], q: float) -> float:
    """Return the q-quantile, linear between order statistics."""
    return float(np.quantile(np.asarray(values, dtype=np.float64), q))


def spread(values: Sequence[float]) -> float:
    """Return the spread of repeats: (max - min) / median."""
    return (max(values) - min(values)) / median(values)


def bootstrap_mean(groups: Sequence[Sequence[float]], seed: int) -> tuple[float, float]:
    """Return the 95 % percentile interval of the mean, resampling groups (classes), then members (cases).

    Indices come from PCG64's raw 64-bit output, whose stream is stable across versions of numpy.
    """
    members = [np.asarray(group, dtype=np.float64) for group in groups if len(group)]
    count, longest = len(members), max(len(group) for group in members)
    raw = np.asarray(np.random.PCG64(seed).random_raw(BOOTSTRAP_DRAWS * count * (1 + longest)), dtype=np.uint64)
    raw = raw.reshape(BOOTSTRAP_DRAWS, count, 1 + longest)
    chosen = raw[:, :, 0] % np.uint64(count)
    total = np.zeros(BOOTSTRAP_DRAWS)
    size = np.zeros(BOOTSTRAP_DRAWS)
    for number, group in enumerate(members):
        draw, slot = np.nonzero(chosen == number)
        picked = group[(raw[draw, slot, 1 : 1 + len(group)] % np.uint64(len(group))).astype(np.int64)]
        np.add.at(total, draw, picked.sum(axis=1))
        np.add.at(size, draw, len(group))
    means = (total / size).tolist()
    return quantile(means, 0.025), quantile(means, 0.975)


def tick_of(intervals_ns: Sequence[int]) -> int:
    """Return the clock's tick in ns: the greatest common divisor of the differences of measured intervals.

    One value alone is its own tick, none gives 0.
    """
    distinct = sorted(set(intervals_ns))
    if len(distinct) < 2:
        return distinct[0] if distinct else 0
    return math.gcd(*(b - a for a, b in itertools.pairwise(distinct)))
