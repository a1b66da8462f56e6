"""A device whose true times are declared in study.yaml, on a virtual clock: the same seeds give the same samples.

Costs are integer expressions over a case's fields, faults are comparisons over them, and the numbers of
`engine_terms.SIMULATED_NUMBERS` say what disturbs the device. Which of several such boards this process has is said by
the environment, as `CUDA_VISIBLE_DEVICES` says it of GPUs: `STUDYTOOL_SIMULATED_BOARD=SERIAL` or `MODEL:SERIAL`.
"""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from studytool import expression
from studytool.digest import rank
from studytool.engine_terms import SIMULATED_COSTS, SIMULATED_FAULTS, SIMULATED_NUMBERS
from studytool.engines.base import Arrays, Bench, Clock, Facts, Launch, Order, PlanError, Sample, Seeds, leg_plans
from studytool.engines.world import BACKEND_SIDE, FROST_SIDE, MIB, MS, Cache, World
from studytool.metrics import PPM
from studytool.model import Case, Plan, Status
from studytool.runtime import key

BACKEND = Plan(engine=5, name="eng5_k1=0", knobs={"k1": 0})
FROST = Plan(engine=20_001, name="simulated_row")
OTHER = Plan(engine=6, name="eng6_k1=1", knobs={"k1": 1})
WHICH_BOARD = "STUDYTOOL_SIMULATED_BOARD"
EMPTY_GRAPH_NS = 8.0
CALLS_BEFORE_PLAN_CHANGE = 12
_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "fp8": 1}
_VALUES = np.arange(1.0, 9.0)


class Simulated:
    """The engine of `engine: simulated`, and the clock of its device."""

    def __init__(self, declared: Mapping[str, int | str]) -> None:
        self._declared = declared
        self.numbers = {name: int(declared[name]) for name in SIMULATED_NUMBERS}
        self.now_ns = 0.0
        self.before_ns = 0.0
        self.model, _, self.serial = os.environ.get(WHICH_BOARD, "").rpartition(":")
        board = np.random.Generator(np.random.PCG64(int(rank(self.numbers["seed"], "board", self.serial)[:16], 16)))
        self.slowness = np.exp(board.standard_normal(2) * self.numbers["board_ppm"] / PPM).tolist()

    def facts(self) -> Facts:
        """Return the simulated device as a board."""
        settings = {name: str(value) for name, value in sorted(self._declared.items())}
        board, versions = self.model or "simulated device", {"simulated": "2"}
        return Facts(cc="sim-1", board=board, versions=versions, settings=settings, uuid=self.serial)

    def own_clock(self) -> Clock:
        """Return the virtual clock."""
        return VirtualClock(self)

    def prepare(self, case: Case, order: Order, seeds: Seeds, distribution: str) -> Bench:  # noqa: ARG002
        """Return the case made ready, or meet the fate that the study declares for it."""
        self.before_ns = float(int(self.before_ns + self.now_ns))
        self.now_ns = 0.0  # what was timed before must not move the ticks that this case's samples fall on
        fields = {**key.NEUTRAL, **case.fields}
        fates = {name for name in SIMULATED_FAULTS if self._holds(name, fields)}
        _meet(fates)
        return SimulatedBench(self, case, self._costs_ns(fields), order, seeds, fates)

    def world(self, seeds: Seeds) -> World:
        """Return what happens to the device in this case and process."""
        own = (
            int(rank(self.numbers["seed"], name, seed)[:16], 16)
            for name, seed in zip(Seeds._fields, seeds, strict=True)
        )
        return World(self.numbers, Seeds(*own))

    def _holds(self, name: str, fields: Mapping[str, int | str]) -> bool:
        return name in self._declared and expression.holds(str(self._declared[name]), fields)

    def _costs_ns(self, fields: Mapping[str, int | str]) -> tuple[int, int]:
        backend, frost = (max(1, expression.integer(str(self._declared[name]), fields)) for name in SIMULATED_COSTS)
        return backend, frost


def _meet(fates: set[str]) -> None:
    if Status.CRASHED in fates:
        os.kill(os.getpid(), signal.SIGKILL)
    if Status.TIMEOUT in fates:
        time.sleep(86_400)
    if Status.ERROR in fates:
        raise RuntimeError("the simulated engine has a defect")
    if "out_of_memory" in fates:
        raise MemoryError("the simulated device is out of memory")
    for status in (Status.REFUSED, Status.DECLINED):
        if status in fates:
            raise PlanError(status, f"the simulated engine says {status}")


class VirtualClock:
    """The device's clock: it reads whole ticks, and, queued, does not see how long the host takes to launch."""

    def __init__(self, device: Simulated, *, queued: bool = True) -> None:
        self._device, self._queued, self.tick_ns = device, queued, device.numbers["tick_ns"]

    def sample(self, launch: Launch, inner: int, before: Callable[[], None] | None = None) -> Sample:
        """Return the device time of `launch(inner)`, and the host's where one is declared."""
        if before is not None:
            before()
        begin_ns = self._device.now_ns
        launch(inner)
        host = self._device.numbers["host_ns"] * inner
        if not self._queued:
            self._device.now_ns = max(self._device.now_ns, begin_ns + host)
        return Sample(max(1, self._ticks(self._device.now_ns) - self._ticks(begin_ns)), host or None, {})

    def settle(self) -> None:
        """Do nothing."""

    def now_ns(self) -> int:
        """Return the virtual time since the device was opened."""
        return int(self._device.before_ns + self._device.now_ns)

    def mhz(self) -> tuple[int, ...]:
        """Return the simulated clock."""
        return (1000,)

    def state(self) -> Mapping[str, int]:
        """Return nothing."""
        return {}

    def _ticks(self, at_ns: float) -> int:
        return int(at_ns) // self.tick_ns * self.tick_ns


class SimulatedBench:
    """A case on the simulated device."""

    def __init__(
        self, device: Simulated, case: Case, costs_ns: tuple[int, int], order: Order, seeds: Seeds, fates: set[str]
    ) -> None:
        self._device, self._fates, self._costs_ns = device, fates, costs_ns
        self._world, self._cache = device.world(seeds), Cache(device.numbers["l2_mib"] * MIB)
        backend = [] if Status.NO_BACKEND in fates else [BACKEND]
        frost = [] if Status.NO_FROST in fates else [FROST]
        self.plans = leg_plans(order, [*backend, *frost], backend, frost)
        jit = int(device.numbers["jit_ms"] * MS)
        self.build_ns = {leg: 1_000_000 + (jit if plan == FROST else 0) for leg, plan in self.plans.items()}
        self._sides = {leg: FROST_SIDE if plan == FROST else BACKEND_SIDE for leg, plan in self.plans.items() if plan}
        self.notes: dict[str, int | str] = {}
        self._tensors = _tensor_bytes(case)
        self._calls = 0
        device.now_ns += sum(self.build_ns[leg] for leg in ("backend", "frost") if self.plans[leg])
        self._world.start_ns = device.now_ns

    @contextlib.contextmanager
    def armed(self, leg: str, regime: str) -> Iterator[Launch]:
        """Return the leg's launch: it lets virtual time pass."""
        device, side = self._device, self._sides[leg]
        empty = "empty_graph" in self._fates and regime.startswith("replay") and side == FROST_SIDE
        miss_ns = device.numbers["miss_ns_per_mib"] / MIB

        def launch(inner: int) -> None:
            if empty:
                device.now_ns += inner * EMPTY_GRAPH_NS
                return
            missed = self._cache.touch(self._tensors) * miss_ns if miss_ns else 0.0
            slowness = self._world.slowness(side, device.now_ns) * device.slowness[side]
            device.now_ns += (inner * self._costs_ns[side] + missed) * slowness

        yield launch

    def granule(self, regime: str) -> int:  # noqa: ARG002 - alike in all
        """Return 1."""
        return 1

    def flush(self) -> None:
        """Write twice the L2, unless the fault is that this does not reach it."""
        if "cold_is_warm" not in self._fates:
            self._cache.touch({"flush": 2 * self._device.numbers["l2_mib"] * MIB})
        self._device.now_ns += 100_000.0

    def flush_probe_ns(self, clock: Clock) -> tuple[int, int]:
        """Return a read of half the L2 after a flush, and again."""
        probe = {"probe": self._device.numbers["l2_mib"] * MIB // 2}

        def read(_inner: int) -> None:
            self._device.now_ns += 50_000.0 + self._cache.touch(probe) / MIB * 10_000.0

        read(1)
        return clock.sample(read, 1, self.flush).ns, clock.sample(read, 1).ns

    def current_plan(self, leg: str) -> Plan:
        """Return the leg's plan, another one after a while where that is the fault."""
        self._calls += 1
        plan = self.plans[leg]
        if plan is None:
            raise ValueError(f"leg {leg} has no plan")
        return OTHER if "plan_change" in self._fates and self._calls > CALLS_BEFORE_PLAN_CHANGE else plan

    def proven_plan(self, leg: str) -> Plan | None:
        """Return the leg's plan."""
        return self.plans[leg]

    def outputs(self, leg: str, regime: str) -> Arrays:
        """Return the outputs: right, wrong, or still poisoned where nothing was written."""
        frost = self._sides[leg] == FROST_SIDE
        written = not (frost and ("stale_output" in self._fates or self._empty(regime)))
        wrong = frost and Status.WRONG_RESULT in self._fates
        return {"O": _VALUES * (1.5 if wrong else 1.0) if written else np.full_like(_VALUES, np.nan)}

    def reference(self) -> Arrays | None:
        """Return the true outputs."""
        return {"O": _VALUES}

    def _empty(self, regime: str) -> bool:
        return "empty_graph" in self._fates and regime.startswith("replay")


def _tensor_bytes(case: Case) -> dict[str, int]:
    size = _BYTES[case.dtype] * case.b
    return {
        "q": size * case.h_q * case.s_q * case.d_qk,
        "k": size * case.h_kv * case.s_kv * case.d_qk,
        "v": size * case.h_kv * case.s_kv * case.d_v,
        "o": size * case.h_q * case.s_q * case.d_v,
    }
