"""What an engine must offer, and the rule by which four legs follow from its plans. No library is imported here."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import NamedTuple, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from studytool.model import Case, Plan, Status

Arrays = dict[str, NDArray[np.float64]]
Launch = Callable[[int], None]
_T = TypeVar("_T")


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a study asks of an engine: its name, the row that an entry lifts, the order without one."""

    engine: str
    row: str
    base: str
    simulated: dict[str, int | str]


class Finding(msgspec.Struct, frozen=True):
    """What was found of one thing that measuring depends on; `needed` says what is missing, "" where nothing is."""

    what: str
    found: str
    needed: str = ""


class Sample(NamedTuple):
    """One timed interval: `ns` of the device, `host_ns` where the host's share is kept apart, further counters."""

    ns: int
    host_ns: int | None
    counters: Mapping[str, int]


class Clock(Protocol):
    """A clock that times launches; `tick_ns` is measured, not assumed."""

    @property
    def tick_ns(self) -> int:
        """Return the measured tick."""
        ...

    def sample(self, launch: Launch, inner: int, before: Callable[[], None] | None = None) -> Sample:
        """Return the time of `launch(inner)`, `before` having been called right before it and outside of the time."""
        ...

    def settle(self) -> None:
        """Bring the device to the state in which it works, before a warm-up."""
        ...

    def now_ns(self) -> int:
        """Return the time since some beginning, by which the cost of a case is told."""
        ...

    def mhz(self) -> tuple[int, ...]:
        """Return the device's clock now in MHz, nothing where it cannot be read."""
        ...

    def state(self) -> Mapping[str, int]:
        """Return what the device says of itself now, such as power and temperature; asked before every block."""
        ...


class Facts(NamedTuple):
    """What an engine knows of itself: `cc` names the instruction set or compute capability that it runs on.

    `versions` and `settings` must be equal in sessions that are compared, `device` need not. Where `uuid` is "" and
    `memory_bytes` 0, the host's are meant.
    """

    cc: str
    board: str | None
    versions: dict[str, str]
    settings: dict[str, str]
    uuid: str = ""
    memory_bytes: int = 0
    device: Mapping[str, str] = MappingProxyType({})


class Seeds(NamedTuple):
    """What inputs and simulated noise depend on: the case in its repeat, and the process of the repeat."""

    case: int
    process: int


class PlanError(Exception):
    """The legs of a case cannot all be had; `status` says why, the message gives the engine's own words."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class Bench(Protocol):
    """A case made ready: fresh tensors, and a plan for each leg (None where there is none)."""

    @property
    def plans(self) -> Mapping[str, Plan | None]:
        """Return the plan of each leg."""
        ...

    @property
    def build_ns(self) -> Mapping[str, int]:
        """Return how long each leg's plan took to be built and run for the first time."""
        ...

    @property
    def notes(self) -> Mapping[str, int | str]:
        """Return what else there is to say of how the case was made ready.

        `declined_backend` and `declined_frost` say which plans of a side did not build, and why.
        """
        ...

    def armed(self, leg: str, regime: str) -> AbstractContextManager[Launch]:
        """Return a context in which the leg's launch can be timed; entering it is not part of the time.

        In a replay regime the launch replays what was captured.
        """
        ...

    def granule(self, regime: str) -> int:
        """Return how many launches are made at a time in a regime; a sample has a multiple of them."""
        ...

    def flush(self) -> None:
        """Push the case's tensors out of the caches, by writing a buffer of at least twice their size."""
        ...

    def flush_probe_ns(self, clock: Clock) -> tuple[int, int]:
        """Return the time of a read of a buffer that fits the caches, after a flush and again at once."""
        ...

    def current_plan(self, leg: str) -> Plan:
        """Return the plan that the leg would run now, cheaply; asked in every block."""
        ...

    def proven_plan(self, leg: str) -> Plan | None:
        """Return the plan that the leg did run when it was run for the purpose, None for anything unknown."""
        ...

    def outputs(self, leg: str, regime: str) -> Arrays:
        """Return what the leg computes when launched as the regime says, after its outputs were filled with NaN."""
        ...

    def reference(self) -> Arrays | None:
        """Return the float64 reference, None where the case is too large for it."""
        ...


class Engine(Protocol):
    """An engine of a library with two sides, backend and frost."""

    def facts(self) -> Facts:
        """Return versions and settings; the process is pinned as the settings say."""
        ...

    def own_clock(self) -> Clock | None:
        """Return the engine's clock, None where the host's is the right one."""
        ...

    def prepare(self, case: Case, order: "Order", seeds: Seeds, distribution: str) -> Bench:
        """Return the case made ready. PlanError for a case that has no plan at all."""
        ...


class Order(NamedTuple):
    """What decides a case's auto leg: the table's answer (`lookup`) and the order without it (`base`)."""

    base: str
    lookup: bool | None


def leg_orders(order: Order, library: Sequence[_T], backend: Sequence[_T], frost: Sequence[_T]) -> dict[str, list[_T]]:
    """Return per leg the plans to try in turn, from the library's own list and the ranked plans of its two sides.

    `default` is the order without an entry: the library's own, or the backend's first for a trail-only row. `auto`
    lifts the row's plans (True), puts them last (False), or is the default (None).
    """
    natural = [*library] if order.base == "library" else [*backend, *frost]
    auto = natural
    if order.lookup is not None:
        rest = [plan for plan in natural if plan not in frost]
        rest += [plan for plan in backend if plan not in rest]
        auto = [*frost, *rest] if order.lookup else [*rest, *frost]
    return {"backend": [*backend], "frost": [*frost], "auto": auto, "default": natural}


def leg_plans(
    order: Order, library: Sequence[Plan], backend: Sequence[Plan], frost: Sequence[Plan]
) -> dict[str, Plan | None]:
    """Return the first plan of each leg, for engines whose plans are known to build."""
    by_identity = {plan.identity: plan for plan in (*frost, *backend, *library)}
    orders = leg_orders(order, *([plan.identity for plan in plans] for plans in (library, backend, frost)))
    return {leg: by_identity[own[0]] if own else None for leg, own in orders.items()}
