"""A device whose true times are declared in study.yaml, on a virtual clock: the same seed gives the same samples.

Costs are integer expressions over a case's fields, faults are comparisons; `noise_ppm` is the sd of ln(time) per
sample, `process_ppm` that of an effect which a leg's plan keeps for a whole repeat.
"""

import contextlib
import math
import os
import signal
import time
from collections.abc import Iterator

import numpy as np

from studytool import expression
from studytool.digest import rank
from studytool.engines.base import Arrays, Bench, Clock, Facts, Launch, Order, PlanError, Sample, leg_plans
from studytool.metrics import PPM
from studytool.model import SIMULATED_COSTS, Case, Plan, Status
from studytool.runtime import key

BACKEND = Plan(engine=5, name="eng5_k1=0", knobs={"k1": 0})
FROST = Plan(engine=20_001, name="simulated_row")


class Simulated:
    """The engine of `engine: simulated`, and the clock of its device."""

    def __init__(self, declared: dict[str, int | str]) -> None:
        self._declared = declared
        self.now_ns = 0.0

    def facts(self) -> Facts:
        """Return the simulated device as a board."""
        settings = {name: str(value) for name, value in sorted(self._declared.items())}
        return Facts(cc="sim-1", board="simulated device", versions={"simulated": "1"}, settings=settings)

    def own_clock(self) -> Clock:
        """Return the virtual clock."""
        return _VirtualClock(self, self.number("tick_ns"))

    def prepare(self, case: Case, order: Order, seed: int, distribution: str) -> Bench:  # noqa: ARG002
        """Return the case made ready, or meet the fate that the study declares for it."""
        self.now_ns = 0.0  # what was timed before must not move the ticks that this case's samples fall on
        fields = {**key.NEUTRAL, **case.fields}
        fate = next((Status(name) for name in self.faults if expression.holds(str(self._declared[name]), fields)), None)
        if fate is Status.CRASHED:
            os.kill(os.getpid(), signal.SIGKILL)
        if fate is Status.TIMEOUT:
            time.sleep(86_400)
        if fate is Status.ERROR:
            raise RuntimeError("the simulated engine has a defect")
        if fate in {Status.REFUSED, Status.DECLINED}:
            raise PlanError(fate, f"the simulated engine says {fate}")
        costs = {
            plan.identity: self._cost_ns(name, fields)
            for plan, name in zip((BACKEND, FROST), SIMULATED_COSTS, strict=True)
        }
        return _SimulatedBench(self, costs, order, seed, fate)

    @property
    def faults(self) -> list[str]:
        """Return the names of the faults that the study declares."""
        return [str(status) for status in Status if str(status) in self._declared]

    def number(self, name: str) -> int:
        """Return a declared number."""
        return int(self._declared[name])

    def _cost_ns(self, name: str, fields: dict[str, int | str]) -> int:
        return max(1, expression.integer(str(self._declared[name]), fields))


class _VirtualClock:
    def __init__(self, device: Simulated, tick_ns: int) -> None:
        self._device, self.tick_ns = device, tick_ns

    def sample(self, launch: Launch, inner: int) -> Sample:
        begin = self._read()
        launch(inner)
        return Sample(self._read() - begin, None, {})

    def mhz(self) -> tuple[int, ...]:
        return (1000,)

    def _read(self) -> int:
        return int(self._device.now_ns) // self.tick_ns * self.tick_ns


class _SimulatedBench:
    def __init__(self, device: Simulated, costs: dict[str, int], order: Order, seed: int, fate: Status | None) -> None:
        self._device, self._fate = device, fate
        backend = [] if fate is Status.NO_BACKEND else [BACKEND]
        frost = [] if fate is Status.NO_FROST else [FROST]
        self.plans = leg_plans(order, [*backend, *frost], backend, frost)
        self.build_ns = dict.fromkeys(self.plans, 1_000_000)
        stream = int(rank(device.number("seed"), seed)[:16], 16)
        self._random = np.random.Generator(np.random.PCG64(stream))
        effects = self._random.standard_normal(2) * device.number("process_ppm") / PPM
        self._ns = {name: cost * math.exp(effect) for (name, cost), effect in zip(costs.items(), effects, strict=True)}

    @contextlib.contextmanager
    def armed(self, leg: str) -> Iterator[Launch]:
        plan = self.current_plan(leg)
        noise = self._device.number("noise_ppm") / PPM

        def launch(inner: int) -> None:
            self._device.now_ns += inner * self._ns[plan.identity] * math.exp(noise * self._random.standard_normal())

        yield launch

    def current_plan(self, leg: str) -> Plan:
        plan = self.plans[leg]
        if plan is None:
            raise ValueError(f"leg {leg} has no plan")
        return plan

    def proven_plan(self, leg: str) -> Plan | None:
        return self.plans[leg]

    def outputs(self, leg: str) -> Arrays:
        wrong = self._fate is Status.WRONG_RESULT and self.plans[leg] == FROST
        return {"O": np.arange(1.0, 9.0) * (1.5 if wrong else 1.0)}

    def reference(self) -> Arrays | None:
        return {"O": np.arange(1.0, 9.0)}
