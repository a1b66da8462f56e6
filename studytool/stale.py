"""Which lines of a table rest on plans that a library no longer picks, by the plan lists of a described board."""

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from studytool.engines.base import Order
from studytool.errors import TableError
from studytool.labels import case_of
from studytool.lines import Text
from studytool.model import Case
from studytool.outlook import legs_of
from studytool.planning.deviceless import Planner
from studytool.runtime import key, lookup

SIDES = ("backend", "frost")
_PLANS = re.compile(r" plans (?P<backend>\S.*?) \| (?P<frost>\S.*?) at (?P<label>.+)$")


class State(StrEnum):
    """How a line stands under a version: the worst of its cases."""

    FRESH = "FRESH"  # both sides pick what they picked when it was measured
    STALE = "STALE"  # a side picks another plan
    DEAD = "DEAD"  # a side has no plan any more


class Witness(NamedTuple):
    """A case that a line rests on, with the plans, by side, that were first when it was measured."""

    case: Case
    plans: Mapping[str, frozenset[str]]


class Judged(NamedTuple):
    """A line of a table under one version, and what differs."""

    key: lookup.Key
    line: int
    state: State
    detail: str


def witness_of(text: str, where: str) -> Witness:
    """Return the case and plans that an entry's evidence names; TableError where it names none."""
    match = _PLANS.search(text)
    if match is None:
        raise TableError(f"{where}: its evidence names no plans; expected a line made by this version's gen.py")
    try:
        case = case_of(match["label"])
    except ValueError as error:
        raise TableError(f"{where}: {error}") from None
    return Witness(case, {side: frozenset(match[side].split()) for side in SIDES})


def judge(
    table: lookup.Table,
    entries: Text,
    where: tuple[str, str],
    planner: Planner,
    cases: Mapping[lookup.Key, Sequence[Witness]],
) -> list[Judged]:
    """Return the state of each line of the compute capability that is planned for, in the table's order.

    `where` are the table's name and that capability, `cases` further ones that a study has for a key.
    """
    name, cc = where
    found = []
    for entry_key, entry in sorted(table.entries.items(), key=lambda item: item[1].line):
        if entry_key[1] != cc:
            continue
        own = [witness_of(entries.entries[entry_key], f"{name}:{entry.line}"), *cases.get(entry_key, ())]
        states = [_state(str(entry_key[0]), planner, witness) for witness in own]
        state, detail = max(states, key=lambda item: list(State).index(item[0]))
        found.append(Judged(entry_key, entry.line, state, detail))
    return found


def _state(row: str, planner: Planner, witness: Witness) -> tuple[State, str]:
    planned = planner.plan(witness.case)
    legs = legs_of(planned, planner.found.rows.get(row), Order("library", None))
    differing = ""
    for side in SIDES:
        plan = legs[side]
        if plan is None:
            reason = f": {planned.reason}" if planned.reason else ""
            return State.DEAD, f"{witness.case.label}: no {side} plan{reason}"
        if plan.identity not in witness.plans[side] and not differing:
            before = " or ".join(sorted(witness.plans[side]))
            differing = f"{witness.case.label}: {side} was {before}, is {plan.identity}"
    return (State.STALE, differing) if differing else (State.FRESH, "")


def again(entry: lookup.Entry, cases: Iterable[Case]) -> list[Case]:
    """Return the fewest cases of a class to time again: one on each side of its bound, or the least and the largest."""
    axis = entry.axis or "b*h_q*s_q*s_kv"
    ranked = sorted(cases, key=lambda case: (key.axis_value(case.fields, axis), case.label))
    if not entry.axis:
        return [ranked[0], ranked[-1]] if len(ranked) > 1 else ranked
    above = entry.rule.endswith("from")
    sizes = [(case, key.axis_value(case.fields, axis)) for case in ranked]
    inside = [case for case, size in sizes if (size >= entry.bound if above else size <= entry.bound)]
    outside = [case for case in ranked if case not in inside]
    nearest = (inside[:1], outside[-1:]) if above else (inside[-1:], outside[:1])
    return [case for side in nearest for case in side]
