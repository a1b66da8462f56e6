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
    carry, position = _order_effects(times, record.order)
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
    return 2 * float(np.median(values[half:]) - np.median(values[:half]))


def _lag1(values: NDArray[np.float64]) -> float:
    residual = values - values.mean()
    scale = float((residual**2).sum())
    return float((residual[1:] * residual[:-1]).sum()) / scale if scale else 0.0


def _order_effects(times: NDArray[np.float64], order: Sequence[str]) -> tuple[float, float]:
    """Return carry-over and position effect: least squares of ln(time) on block, leg, place and the leg before."""
    rows, values = [], []
    for block, legs in enumerate(order):
        before = ""
        for place, leg in enumerate(legs):
            row = np.zeros(4 + 4 + 3)
            row[int(leg)] = row[4 + place] = 1
            if before and before != "0":
                row[8 + int(before) - 1] = 1
            rows.append(row)
            values.append(times[int(leg), block])
            before = leg
    design = np.array(rows).reshape(len(order), 4, -1)
    centred = (design - design.mean(axis=1, keepdims=True)).reshape(len(rows), -1)
    target = np.array(values).reshape(len(order), 4)
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
