"""What a record's raw samples say of its own health: drift, carry-over, autocorrelation, and the code of what fails.

Codes make a case INCONCLUSIVE: TICK (samples too short for the clock), UNSTEADY (still changing after the warm-up),
CONTROL (legs of one plan differ, or a cold regime is not cold), DRIFT (the ratio changes within repeats), CARRY (a leg
changes what comes after it). The limits are the study's own noise limit.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studytool.metrics import PPM
from studytool.model import LEGS, Record
from studytool.stats import Interval, interval, per_launch_ns

MIN_TICKS = 100
MIN_PROBE_PPM = 1_050_000
"""A read after a flush must take at least this much longer than the same read at once."""


class Health(NamedTuple):
    """The health of one record.

    `drift` is that of ln(frost/backend) from the first to the last block, `carry` that of ln(time) after frost against
    after backend, `position` lies between the best and the worst place in a block, `lag1` is the autocorrelation of
    the paired log ratio, `trend` what the legs still changed by after the warm-up, `ticks` the shortest sample, and
    `probe` a read after a flush over the same read at once, nan in a warm regime.
    """

    drift: float
    carry: float
    position: float
    lag1: float
    trend: float
    ticks: float
    probe: float


def health(record: Record, tick_ns: int) -> Health:
    """Return the health of a record that was timed."""
    times = np.array([np.log(per_launch_ns(record.legs[leg].ns, record.legs[leg].inner)) for leg in LEGS])
    ratio = times[LEGS.index("frost")] - times[LEGS.index("backend")]
    carry, position = _order_effects(record, times)
    probe = record.checks.get("flush_probe_ppm")
    return Health(
        drift=_drift(ratio),
        carry=carry,
        position=position,
        lag1=_lag1(ratio),
        trend=int(record.checks.get("trend_ppm", 0)) / PPM,
        ticks=min(min(leg.ns) for leg in record.legs.values()) / tick_ns,
        probe=math.nan if probe is None else int(probe) / PPM,
    )


def _drift(values: NDArray[np.float64]) -> float:
    """Return the change from the first to the last value of a straight drift, from the medians of the two halves.

    Medians, since a few samples that were interrupted would tilt a fitted line.
    """
    half = len(values) // 2
    return 2 * (1 - 1 / len(values)) * float(np.median(values[half:]) - np.median(values[:half]))


def _lag1(values: NDArray[np.float64]) -> float:
    residual = values - values.mean()
    scale = float((residual**2).sum())
    return float((residual[1:] * residual[:-1]).sum()) / scale if scale else 0.0


def _order_effects(record: Record, times: NDArray[np.float64]) -> tuple[float, float]:
    """Return carry-over and position effect: least squares of ln(time) on block, leg, place and what ran before.

    Carry-over is what a launch of another plan pays right after frost's plan, whichever leg ran it.
    """
    frost = [record.legs[name].plan == record.legs["frost"].plan for name in LEGS]
    design = np.zeros((len(record.order), 4, 4 + 4 + 1))
    target = np.zeros((len(record.order), 4))
    for block, legs in enumerate(record.order):
        for place, (leg, before) in enumerate(zip(map(int, legs), (None, *map(int, legs)), strict=False)):
            design[block, place, leg] = design[block, place, 4 + place] = 1
            design[block, place, 8] = before is not None and frost[before] and not frost[leg]
            target[block, place] = times[leg, block]
    centred = (design - design.mean(axis=1, keepdims=True)).reshape(-1, design.shape[-1])
    effects = np.linalg.lstsq(centred, (target - target.mean(axis=1, keepdims=True)).ravel(), rcond=None)[0]
    return float(effects[8]), float(np.ptp(effects[4:8]))


def case_code(found: Sequence[Health], control: Sequence[float], noise_limit: float) -> str:
    """Return the code of a case in one regime from the health of its repeats and its aliased log ratios; "" is well."""
    limit = math.log1p(noise_limit)
    if min(item.ticks for item in found) < MIN_TICKS:
        return "TICK"
    if beyond(interval([item.trend for item in found]), noise_limit):
        return "UNSTEADY"
    if any(abs(value) > limit for value in control) or any(item.probe < MIN_PROBE_PPM / PPM for item in found):
        return "CONTROL"
    return "DRIFT" if beyond(interval([item.drift for item in found]), limit) else ""


def beyond(effect: Interval, limit: float) -> bool:
    """Return whether an effect is larger than the limit with its whole interval, so not by chance."""
    return effect.low > limit or effect.high < -limit


def carry_over(found: Sequence[Sequence[Health]]) -> Interval | None:
    """Return the carry-over after frost over all cases, with its interval over repeats; None without records.

    `found` has one sequence of repeats per case; the repeats of all cases are averaged first.
    """
    repeats = min((len(case) for case in found), default=0)
    if repeats == 0:
        return None
    return interval([float(np.mean([case[repeat].carry for case in found])) for repeat in range(repeats)])
