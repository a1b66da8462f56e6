"""Which plan of a cuDNN graph each leg is, by engine id alone: the choice from outside, through public calls.

An id below 10,000 is the backend's, from 20,000 on a FROST row's; ids are never reused, names and places in the list
say nothing. An entry that delegates to the backend (id -1) has no plan to name and is in no leg.
"""

import functools
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import cudnn
from cudnn.engines import MANIFEST, decline_types, is_backend_engine, is_python_engine

from studytool.engines.base import Order, leg_orders
from studytool.model import BASES, Plan
from studytool.runtime import lookup

FLAG = "CUDNN_FRONTEND_ENABLE_FROST_ENGINES"
"""The library's switch: set, it offers rows that are opt-in, and puts FROST first for every graph."""


def pin_flag(base: str) -> None:
    """Set the library's switch as a study's base needs it, before any graph: on for a trail-only row, else off."""
    if base == "backend":
        os.environ[FLAG] = "1"
    else:
        os.environ.pop(FLAG, None)


def flag() -> str:
    """Return the library's switch as it is set, "" where it is not."""
    return os.environ.get(FLAG, "")


class Device(NamedTuple):
    """What entries are keyed on: the compute capability, such as `9.0`, and the board's name."""

    cc: str
    board: str


class Walk(NamedTuple):
    """The first plan of an order that builds, None where none does, and why those before it did not, by index."""

    at: int | None
    declined: dict[int, str]


@functools.cache
def row_engine(row: str) -> int | None:
    """Return the engine id of a FROST row of the library that is installed, None where it has no such row."""
    ids = {name: family.engine_id + slot.slot for family in MANIFEST for name, slot in family.slots.items()}
    return ids.get(row)


def sides(ids: Sequence[int], engine: int | None) -> tuple[list[int], list[int], list[int]]:
    """Return the indices of ranked plans by their engine ids: all that have a plan, the backend's, the row's."""
    named = [index for index, plan in enumerate(ids) if is_backend_engine(plan) or is_python_engine(plan)]
    backend = [index for index in named if is_backend_engine(ids[index])]
    return named, backend, [index for index in named if ids[index] == engine]


def orders(ids: Sequence[int], engine: int | None, order: Order) -> dict[str, list[int]]:
    """Return per leg the indices to try in turn; `frost` has the plans of the row alone."""
    library, backend, frost = sides(ids, engine)
    return leg_orders(order, library, backend, frost)


def engine_ids(graph: Any) -> list[int]:
    """Return the engine ids of a graph's ranked plans."""
    return [plan.engine_id for plan in graph.plans]


def plan_at(graph: Any, index: int) -> Plan:
    """Return the plan at an index: its engine id, the library's name for it, its public knobs by name."""
    engine, knobs = graph.get_engine_and_knobs_at_index(index)
    named = {getattr(knob, "name", str(knob)): int(value) for knob, value in knobs.items()}
    return Plan(engine=engine, name=graph.get_plan_name_at_index(index), knobs=dict(sorted(named.items())))


class Builder:
    """Builds the plans of one graph, each once, and keeps what each build took and why it declined."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._reasons: dict[int, str | None] = {}
        self.took_ns: dict[int, int] = {}

    def first(self, order: Sequence[int]) -> Walk:
        """Return the first plan of an order that builds; an error that is no decline is the library's defect."""
        declined: dict[int, str] = {}
        for index in order:
            reason = self._reason(index)
            if reason is None:
                return Walk(index, declined)
            declined[index] = reason
        return Walk(None, declined)

    def _reason(self, index: int) -> str | None:
        if index not in self._reasons:
            begin = time.perf_counter_ns()
            try:
                self._graph.build_plan_at_index(index)
            except decline_types() as error:
                self._reasons[index] = f"{type(error).__name__}: {error}"
            else:
                self._reasons[index] = None
            self.took_ns[index] = time.perf_counter_ns() - begin
        return self._reasons[index]


def choose(
    graph: Any,
    case: Mapping[str, int | str],
    table: lookup.Table,
    *,
    base: str = "library",
    device: Device | None = None,
) -> int:
    """Return the index in `graph.plans` of the plan that a table puts first, for `graph.build_plan_at_index`.

    `graph` has its plans (`create_execution_plans()` was called), `case` has its features by `runtime.key`'s names,
    `table` is what `runtime.lookup.load` gives; a row of it that has no plan for the graph is not asked. Without an
    entry for the case the order stays: the library's own, or with `base="backend"` the backend's plans first. `device`
    is the CUDA device that is current at the first call, unless given. A row that is offered by opt-in only needs the
    library's switch (FLAG) to be set before the graph is made. ValueError for a graph without plans, or another base.
    """
    if base not in BASES:
        raise ValueError(f"base is {base!r}; expected one of {', '.join(BASES)}")
    ids = engine_ids(graph)
    if not ids:
        raise ValueError("the graph has no plans; expected create_execution_plans() to have been called")
    here = device or current_device()
    for row in table.rows:
        engine = row_engine(row)
        answer = lookup.lookup(table, row, here.cc, dict(case), here.board) if engine in ids else None
        if answer is not None:
            return orders(ids, engine, Order(base, answer))["auto"][0]
    return 0 if base == "library" else next(iter(sides(ids, None)[1]), 0)


@functools.cache
def current_device() -> Device:
    """Return the CUDA device that is current when this is first called, as cuDNN describes it."""
    facts = json.loads(cudnn.create_device_properties(0).serialize())
    version = int(facts["deviceVer"])
    return Device(f"{version // 100}.{version % 100 // 10}", str(facts["deviceName"]))
