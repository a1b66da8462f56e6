"""Time one case in one regime: prove the plans, check the numbers, warm up, calibrate, run the blocks."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec
import numpy as np

from studytool.engines.base import Arrays, Bench, Clock, Engine, Order, PlanError, Sample, Seeds
from studytool.metrics import PPM
from studytool.model import LEGS, Case, LegRecord, Plan, Status

TICKS_PER_SAMPLE = 200
WARMUP_ROUNDS = 50
WARMUP_NS = 300_000_000
STEADY_COUNT = 5
STEADY_SPREAD = 0.01
INNER_LIMIT = 1_000_000
PPB = 1_000_000_000

TOLERANCE_PPB = {
    "f32": (2_000, 3_000),
    "bf16": (6_000_000, 15_000_000),
    "f16": (800_000, 2_000_000),
    "fp8": (40_000_000, 80_000_000),
}
"""Largest relative L2 error (of O, of gradients) against float64 per dtype, three times what was measured for MATH
and FLASH_ATTENTION on the CPU; between two legs twice that is allowed."""

STATS_TOLERANCE_PPB = 200_000
"""That of the softmax statistics, which are float32 whatever the inputs are."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker is asked to do with one case."""

    case: Case
    regime: str
    orders: tuple[str, ...]
    base: str
    lookup: bool | None
    seed: int
    process_seed: int
    distribution: str
    min_sample_ns: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; `legs` and `order` are empty where nothing was timed, `took_ns` is what all of it cost."""

    status: Status
    took_ns: int = 0
    legs: dict[str, LegRecord] = {}
    order: tuple[str, ...] = ()
    clock_mhz: tuple[int, ...] = ()
    blocks: dict[str, tuple[int, ...]] = {}
    checks: dict[str, int | str] = {}
    error: str = ""


def run_case(engine: Engine, clock: Clock, request: Request) -> Measured:
    """Return one case's samples, or the status that kept it from being timed.

    Without block orders (routing) the plans of auto and default are proven and nothing is timed.
    """
    order = Order(request.base, request.lookup)
    seeds = Seeds(request.seed, request.process_seed)
    try:
        bench = engine.prepare(request.case, order, seeds, request.distribution)
        measured = _run(bench, clock, request)
    except PlanError as error:
        return Measured(status=error.status, error=str(error))
    return msgspec.structs.replace(measured, checks={**bench.notes, **measured.checks})


def _run(bench: Bench, clock: Clock, request: Request) -> Measured:
    legs = {leg: LegRecord(plan=bench.plans[leg], build_ns=bench.build_ns[leg]) for leg in LEGS}
    needed = LEGS if request.orders else ("auto", "default")
    for leg in needed:
        if bench.plans[leg] is None:
            status = Status.NO_FROST if leg == "frost" else Status.NO_BACKEND
            sides = (leg,) if request.orders else ("backend", "frost")
            why = [str(bench.notes[name]) for side in sides if (name := f"declined_{side}") in bench.notes]
            return Measured(status=status, legs=legs, error=": ".join([f"leg {leg} has no plan", *why]))
    if changed := _unproven(bench, needed):
        return Measured(status=Status.DECLINED, legs=legs, error=changed)
    if not request.orders:
        return Measured(status=Status.OK, legs=legs)
    checks: dict[str, int | str] = {**_numerics(bench, request.regime)}
    if wrong := _wrong(checks, request.case.dtype):
        return Measured(status=Status.WRONG_RESULT, legs=legs, checks=checks, error=wrong)
    return _timed(bench, clock, request, checks)


def _timed(bench: Bench, clock: Clock, request: Request, checks: dict[str, int | str]) -> Measured:
    clock.settle()
    before = clock.mhz()
    warm = _warm_up(bench, clock, request.regime)
    checks |= {"warmup_rounds": warm.rounds, "steady": int(warm.steady), "trend_ppm": warm.trend_ppm}
    if request.regime.endswith("cold"):
        cold_ns, warm_ns = bench.flush_probe_ns(clock)
        checks["flush_probe_ppm"] = round(cold_ns / warm_ns * PPM)
    inner = _calibrate(bench, clock, request.regime, warm.launch_ns, request.min_sample_ns)
    legs = {leg: LegRecord(plan=bench.plans[leg], build_ns=bench.build_ns[leg]) for leg in LEGS}
    if inner is None:
        return Measured(status=Status.UNRESOLVABLE, legs=legs, checks=checks, error="no sample is long enough")
    samples: dict[str, list[int]] = {leg: [] for leg in LEGS}
    host: dict[str, list[int]] = {leg: [] for leg in LEGS}
    counters: dict[str, dict[str, list[int]]] = {leg: {} for leg in LEGS}
    states: dict[str, list[int]] = {}
    for block in request.orders:
        for name, value in clock.state().items():
            states.setdefault(name, []).append(value)
        for index in block:
            leg = LEGS[int(index)]
            sample = _sample(bench, clock, leg, request.regime, inner[leg])
            samples[leg].append(sample.ns)
            host[leg] += [] if sample.host_ns is None else [sample.host_ns]
            for name, value in sample.counters.items():
                counters[leg].setdefault(name, []).append(value)
        if changed := _changed(bench):
            return Measured(status=Status.DECLINED, legs=legs, checks=checks, error=changed)
    if changed := _unproven(bench, LEGS):
        return Measured(status=Status.DECLINED, legs=legs, checks=checks, error=changed)
    timed = {
        leg: LegRecord(
            plan=bench.plans[leg],
            inner=inner[leg],
            ns=tuple(samples[leg]),
            host_ns=tuple(host[leg]),
            build_ns=bench.build_ns[leg],
            counters={name: tuple(values) for name, values in counters[leg].items()},
        )
        for leg in LEGS
    }
    return Measured(
        status=Status.OK,
        legs=timed,
        order=request.orders,
        clock_mhz=(*before, *clock.mhz()),
        blocks={name: tuple(values) for name, values in states.items()},
        checks=checks,
    )


def _unproven(bench: Bench, legs: tuple[str, ...]) -> str:
    for leg in legs:
        named, ran = bench.plans[leg], bench.proven_plan(leg)
        if named is None or ran is None or ran.identity != named.identity:
            return f"leg {leg} is named {_name(named)} and ran {_name(ran)}"
    return ""


def _changed(bench: Bench) -> str:
    for leg in LEGS:
        named, now = bench.plans[leg], bench.current_plan(leg)
        if named is None or now.identity != named.identity:
            return f"leg {leg} changed from {_name(named)} to {_name(now)} between blocks"
    return ""


def _name(plan: Plan | None) -> str:
    return plan.name if plan else "no known plan"


def _numerics(bench: Bench, regime: str) -> dict[str, int]:
    """Return the largest relative L2 error of any leg, in parts per billion; PPB squared stands for NaN."""
    outputs = {leg: bench.outputs(leg, regime) for leg in LEGS}
    errors: dict[str, int] = {}
    references: list[tuple[str, Arrays | None]] = [("legs", outputs["backend"]), ("float64", bench.reference())]
    for name, reference in references:
        for output in reference or {}:
            worst = max(relative_error_ppb(outputs[leg], reference or {}, output) for leg in LEGS)
            kind = {"O": "o", "Stats": "stats"}.get(output, "grad")
            errors[f"{name}_{kind}_ppb"] = max(worst, errors.get(f"{name}_{kind}_ppb", 0))
    return errors


def relative_error_ppb(found: Arrays, reference: Arrays, output: str) -> int:
    """Return the L2 norm of found - reference over that of reference, in ppb, capped at PPB squared (also for NaN)."""
    if found[output].shape != reference[output].shape:
        return PPB**2
    distance = float(np.linalg.norm(found[output] - reference[output]))
    scale = float(np.linalg.norm(reference[output]))
    if not math.isfinite(distance) or (scale == 0 and distance > 0):
        return PPB**2
    return round(min(distance / scale, float(PPB)) * PPB) if scale else 0


def _wrong(checks: Mapping[str, int | str], dtype: str) -> str:
    for name, value in checks.items():
        against, kind, _ = name.split("_")
        one = STATS_TOLERANCE_PPB if kind == "stats" else TOLERANCE_PPB[dtype][kind == "grad"]
        limit = one * (2 if against == "legs" else 1)
        if int(value) > limit:
            return f"{name} is {value}; expected at most {limit}"
    return ""


def _sample(bench: Bench, clock: Clock, leg: str, regime: str, inner: int) -> Sample:
    """Return one sample of `inner` launches, which in a cold regime are timed one by one, a flush before each.

    Warm, a sample of short launches is opened by one that is not timed, so that what the leg before left behind
    falls on that one; what is left on long ones is told by the carry-over.
    """
    with bench.armed(leg, regime) as launch:
        if regime.endswith("warm"):
            if inner > 1:
                launch(bench.granule(regime))
            return clock.sample(launch, inner)
        parts = [clock.sample(launch, 1, bench.flush) for _ in range(inner)]
    hosts = [part.host_ns for part in parts if part.host_ns is not None]
    counters = {name: sum(part.counters[name] for part in parts) for name in parts[0].counters}
    return Sample(sum(part.ns for part in parts), sum(hosts) if hosts else None, counters)


class _Warm(NamedTuple):
    """How the warm-up ended: time of one launch per leg, and by how much legs that never agreed still changed."""

    launch_ns: dict[str, float]
    rounds: int
    steady: bool
    trend_ppm: int


def _warm_up(bench: Bench, clock: Clock, regime: str) -> _Warm:
    """Launch every leg equally often until the last five samples of each agree within one percent, with a cap."""
    seen: dict[str, list[int]] = {leg: [] for leg in LEGS}
    granule = bench.granule(regime)
    spent, steady = 0, False
    while len(seen["auto"]) < STEADY_COUNT or (not steady and len(seen["auto"]) < WARMUP_ROUNDS and spent < WARMUP_NS):
        for leg in LEGS:
            ns = _sample(bench, clock, leg, regime, granule).ns
            seen[leg].append(ns)
            spent += ns
        recent = [values[-STEADY_COUNT:] for values in seen.values()]
        steady = all(max(values) - min(values) <= STEADY_SPREAD * min(values) for values in recent)
    launch_ns = {leg: float(np.median(values[-STEADY_COUNT:])) / granule for leg, values in seen.items()}
    trend_ppm = 0 if steady else max(_trends_ppm(list(seen.values())), key=abs)
    return _Warm(launch_ns, len(seen["auto"]), steady, trend_ppm)


def _trends_ppm(legs: list[list[int]]) -> list[int]:
    """Return per leg by how much its share of a round changed from the five rounds before the last five to those.

    What slows all legs alike, such as a clock that drifts, is no trend: it falls out of a ratio.
    """
    rounds = np.log(np.array(legs, dtype=np.float64))
    if rounds.shape[1] < 2 * STEADY_COUNT:
        return [0]
    shares = rounds - rounds.mean(axis=0)
    before = np.median(shares[:, -2 * STEADY_COUNT : -STEADY_COUNT], axis=1)
    return [round(math.expm1(change) * PPM) for change in np.median(shares[:, -STEADY_COUNT:], axis=1) - before]


def _calibrate(
    bench: Bench, clock: Clock, regime: str, launch_ns: dict[str, float], least_ns: int
) -> dict[str, int] | None:
    """Return launches per sample for each leg, the same for legs of one plan; None when none can be long enough."""
    target = max(least_ns, TICKS_PER_SAMPLE * clock.tick_ns)
    inner: dict[str, int] = {}
    for leg in LEGS:
        plan = bench.current_plan(leg).identity
        if plan not in inner:
            count = _enough(bench, clock, leg, regime, launch_ns[leg], target)
            if count is None:
                return None
            inner[plan] = count
    return {leg: inner[bench.current_plan(leg).identity] for leg in LEGS}


def _enough(bench: Bench, clock: Clock, leg: str, regime: str, launch_ns: float, target_ns: int) -> int | None:
    granule = bench.granule(regime)
    count = math.ceil(target_ns / max(launch_ns, 1.0))
    for _ in range(8):
        count = min(math.ceil(count / granule) * granule, INNER_LIMIT // granule * granule)
        ns = _sample(bench, clock, leg, regime, count).ns
        if ns >= target_ns:
            return count
        if count + granule > INNER_LIMIT:
            return None
        count = math.ceil(count * min(target_ns / max(ns, 1), 16.0) * 1.05)
    return None
