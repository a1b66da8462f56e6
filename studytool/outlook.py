"""What a study's cases would run on a described board, before anything is measured or frozen."""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from studytool.engines.base import Order, leg_plans
from studytool.model import LEGS, Case, Plan, Split, Status, Study
from studytool.planning.boards import Board
from studytool.planning.deviceless import Planner
from studytool.planning.messages import Planned
from studytool.runtime import key, lookup

FROST_IDS = 20_000
"""Engine ids from here on are FROST's; below 10,000 they are the backend's."""


class Expected(NamedTuple):
    """What a case is expected to run: the plan of each leg, and how it would end."""

    split: Split
    digest: str
    case: Case
    class_key: lookup.Key
    status: Status
    reason: str
    legs: Mapping[str, Plan | None]
    took_ns: int


def expect(
    study: Study,
    splits: Mapping[Split, Mapping[str, Case]],
    planner: Planner,
    board: Board,
    table: lookup.Table,
    progress: Callable[[int, int, str], None],
) -> list[Expected]:
    """Return what each case of the splits would run, with a table applied."""
    cases = [(split, digest, case) for split, own in splits.items() for digest, case in own.items()]
    found = []
    for number, (split, digest, case) in enumerate(cases, 1):
        answer = lookup.lookup(table, study.row, board.cc, case.fields, board.device_name)
        planned = planner.plan(case)
        legs = legs_of(planned, planner.found.rows.get(study.row), Order(study.base, answer))
        class_key = key.class_key(study.row, board.cc, study.class_key, case.fields)
        status = _status(split, planned, legs)
        found.append(Expected(split, digest, case, class_key, status, planned.reason, legs, planned.took_ns))
        progress(number, len(cases), case.label)
    return found


def legs_of(planned: Planned, engine: int | None, order: Order) -> dict[str, Plan | None]:
    """Return the first plan of each leg; `engine` is the row's engine id, None where the library has no such row."""
    backend = [plan for plan in planned.plans if plan.engine < FROST_IDS]
    return leg_plans(order, planned.plans, backend, [plan for plan in planned.plans if plan.engine == engine])


def _status(split: Split, planned: Planned, legs: Mapping[str, Plan | None]) -> Status:
    if planned.status is not Status.OK:
        return planned.status
    for leg in ("auto", "default") if split is Split.ROUTING else LEGS:
        if legs[leg] is None:
            return Status.NO_FROST if leg == "frost" else Status.NO_BACKEND
    return Status.OK


def as_json(study: Study, board: Board, planner: Planner, found: Iterable[Expected]) -> dict[str, Any]:
    """Return the outlook for machines."""
    return {
        "schema": 1,
        "study": study.name,
        "board": board.name,
        "cudnn": planner.found.cudnn,
        "frontend": planner.found.frontend,
        "cases": [
            {
                "case": item.digest,
                "label": item.case.label,
                "split": str(item.split),
                "status": str(item.status),
                "reason": item.reason,
                "legs": {leg: plan and {"plan": plan.identity, "name": plan.name} for leg, plan in item.legs.items()},
            }
            for item in found
        ],
    }


def as_text(board: Board, planner: Planner, found: list[Expected]) -> str:
    """Return the outlook as tables: how the cases of each split would end, and the first plans of each class."""
    took_ms = [item.took_ns / 1e6 for item in found]
    statuses = [status for status in Status if any(item.status is status for item in found)]
    head = [f"{board.name}, cuDNN {planner.found.cudnn}, frontend {planner.found.frontend}: predictions, nothing ran"]
    head += ["", "| dtype | split | cases | " + " | ".join(_told(status) for status in statuses) + " |"]
    head += ["| --- " * (3 + len(statuses)) + "|"]
    groups = sorted({(item.case.dtype, item.split) for item in found}, key=lambda g: (g[0], list(Split).index(g[1])))
    for dtype, split in groups:
        own = Counter(item.status for item in found if (item.case.dtype, item.split) == (dtype, split))
        head.append(f"| {dtype} | {split} | {own.total()} | " + " | ".join(str(own[s]) for s in statuses) + " |")
    head += ["", "| class | cases | backend | frost | auto | default |", "| --- " * 6 + "|"]
    for class_key in sorted({item.class_key for item in found}, key=str):
        own_cases = [item for item in found if item.class_key == class_key]
        cells = [" ".join(map(str, class_key[2:])), str(len(own_cases))]
        cells += [", ".join(sorted({_name(item.legs[leg]) for item in own_cases})) for leg in LEGS]
        head.append("| " + " | ".join(cells) + " |")
    reasons = Counter(f"{item.status}: {item.reason}" for item in found if item.reason)
    head += [""] * bool(reasons) + [f"{count} x {reason}" for reason, count in sorted(reasons.items())]
    head += ["", f"{len(found)} graphs planned in {sum(took_ms) / 1e3:.1f} s, {statistics.median(took_ms):.1f} ms each"]
    return "\n".join(head)


def _told(status: Status) -> str:
    return "both sides" if status is Status.OK else str(status)


def _name(plan: Plan | None) -> str:
    return plan.name if plan else "none"
