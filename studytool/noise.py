"""What a record's raw samples say of its own health: drift, carry-over, autocorrelation, and the code of what fails.

Codes make a case INCONCLUSIVE: TICK (samples too short for the clock), UNSTEADY (still changing after the warm-up),
CONTROL (legs of one plan differ, or a cold regime is not cold), DRIFT (the ratio changes within repeats), CARRY (a leg
changes what comes after it), BOARDS (the boards of a split disagree, which `boards` says). The limits are the study's
own noise limit.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from studytool.metrics import PPM
from studytool.model import LEGS, LegRecord, Record
from studytool.stats import COARSE, Floats, Interval, interval, medians

MIN_TICKS = 100
MIN_PROBE_PPM = 1_050_000
"""A read after a flush must take at least this much longer than the same read at once."""


_DUST = 1e-12
"""An effect below this is what rounding leaves of none."""


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


class Samples(NamedTuple):
    """The samples of R records of B blocks: `ns` per launch, their `logs` (R, 4, B), `order` (R, B, 4) legs by place.

    `frost` (R, 4) says which legs ran frost's plan, `shortest` is the shortest sample in ns, `coarse` whether the
    clock's tick is a large share of it.
    """

    ns: Floats
    logs: Floats
    order: NDArray[np.intp]
    frost: NDArray[np.bool_]
    shortest: Floats
    coarse: NDArray[np.bool_]
    tick_ns: Floats
    records: Sequence[Record]

    @classmethod
    def of(cls, timed: Sequence[tuple[Record, int]]) -> "Samples":
        """Return the samples of records that have equally many blocks, each with its clock's tick in ns."""
        records = [record for record, _ in timed]
        legs = [[record.legs[name] for name in LEGS] for record in records]
        whole = np.array([[leg.ns for leg in own] for own in legs], dtype=np.int64)
        inner = np.array([[leg.inner for leg in own] for own in legs], dtype=np.float64)
        tick_ns = np.array([tick for _, tick in timed], dtype=np.float64)
        order = np.frombuffer("".join(itertools.chain.from_iterable(r.order for r in records)).encode(), dtype=np.uint8)
        shortest = whole.min(axis=(1, 2)).astype(np.float64)
        ns = whole / inner[:, :, None]
        return cls(
            ns=ns,
            logs=np.log(ns),
            order=(order - ord("0")).reshape(len(records), -1, len(LEGS)).astype(np.intp),
            frost=np.array([[_same_plan(leg, own[LEGS.index("frost")]) for leg in own] for own in legs]),
            shortest=shortest,
            coarse=tick_ns > COARSE * shortest,
            tick_ns=tick_ns,
            records=records,
        )


def _same_plan(one: LegRecord, other: LegRecord) -> bool:
    """Return whether two legs ran one plan, whatever it is called: engine and knobs decide."""
    a, b = one.plan, other.plan
    return a is b or (a is not None and b is not None and (a.engine, a.knobs) == (b.engine, b.knobs))


def health(record: Record, tick_ns: int) -> Health:
    """Return the health of a record that was timed."""
    return healths(Samples.of([(record, tick_ns)]))[0]


def healths(samples: Samples) -> list[Health]:
    """Return the health of each of some records."""
    ratio = samples.logs[:, LEGS.index("frost")] - samples.logs[:, LEGS.index("backend")]
    carry, position = _order_effects(samples, samples.logs)
    trends = [int(record.checks.get("trend_ppm", 0)) / PPM for record in samples.records]
    probes = [record.checks.get("flush_probe_ppm") for record in samples.records]
    return list(
        map(
            Health,
            _drift(ratio).tolist(),
            carry.tolist(),
            position.tolist(),
            _lag1(ratio).tolist(),
            trends,
            (samples.shortest / samples.tick_ns).tolist(),
            [math.nan if probe is None else int(probe) / PPM for probe in probes],
        )
    )


def _drift(values: Floats) -> Floats:
    """Return the change from the first to the last of B values, (R, B), of a straight drift: by medians of the halves.

    Medians, since a few samples that were interrupted would tilt a fitted line.
    """
    count = values.shape[1]
    late, early = medians(values[:, count // 2 :]), medians(values[:, : count // 2])
    drift: Floats = 2 * (1 - 1 / count) * (late - early)
    return drift


def _lag1(values: Floats) -> Floats:
    residual = values - values.mean(axis=1, keepdims=True)
    scale, product = (residual**2).sum(axis=1), (residual[:, 1:] * residual[:, :-1]).sum(axis=1)
    lag1: Floats = np.divide(product, scale, out=np.zeros_like(scale), where=np.ptp(values, axis=1) > 0)
    return lag1


def _order_effects(samples: Samples, times: Floats) -> tuple[Floats, Floats]:
    """Return carry-over and position effect: least squares of ln(time) on block, leg, place and what ran before.

    Carry-over is what a launch of another plan pays right after frost's plan, whichever leg ran it. The blocks' own
    effects are taken out by centring each block; the normal equations of what is left have the same few matrices for
    most records, since orders are balanced.
    """
    legs, count = len(LEGS), times.shape[2]
    centred = times - times.mean(axis=1, keepdims=True)
    placed = np.take_along_axis(centred.transpose(0, 2, 1), samples.order, axis=2)
    by_place = np.take_along_axis(samples.frost[:, None, :], samples.order, axis=2)
    carries = np.zeros(samples.order.shape)
    carries[:, :, 1:] = by_place[:, :, :-1] & ~by_place[:, :, 1:]
    total = carries.sum(axis=(1, 2))
    right = np.concatenate([centred.sum(axis=2), placed.sum(axis=1), (carries * placed).sum(axis=(1, 2))[:, None]], 1)
    cell = samples.order + legs * (np.arange(legs) + legs * np.arange(len(times))[:, None, None])
    often, carried = (
        np.bincount(cell.ravel(), weights, len(times) * legs * legs).reshape(-1, legs, legs)
        for weights in (None, carries.ravel())
    )  # of each record, by place and leg
    matrix = np.zeros((len(times), 2 * legs + 1, 2 * legs + 1))
    matrix[:, :legs, :legs] = matrix[:, legs:-1, legs:-1] = count * (np.eye(legs) - 1 / legs)
    matrix[:, legs:-1, :legs] = often - count / legs
    matrix[:, :legs, legs:-1] = matrix[:, legs:-1, :legs].transpose(0, 2, 1)
    matrix[:, :legs, -1] = matrix[:, -1, :legs] = carried.sum(axis=1) - total[:, None] / legs
    matrix[:, legs:-1, -1] = matrix[:, -1, legs:-1] = carried.sum(axis=2) - total[:, None] / legs
    matrix[:, -1, -1] = total - (carries.sum(axis=2) ** 2).sum(axis=1) / legs
    distinct: dict[bytes, int] = {}
    which = [distinct.setdefault(own.tobytes(), len(distinct)) for own in matrix]
    solvers = np.linalg.pinv(
        np.frombuffer(b"".join(distinct)).reshape(-1, *matrix.shape[1:]), rcond=1e-9, hermitian=True
    )
    effects = np.einsum("rij,rj->ri", solvers[which], right)
    carry = np.where(np.abs(effects[:, -1]) < _DUST, 0.0, effects[:, -1])
    return carry, np.ptp(effects[:, legs:-1], axis=1)


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
