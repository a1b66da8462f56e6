"""The real plan lists of both sides, for boards that are only described: what the studies' cases would run.

Needs the library's frontend, and two versions of cuDNN in the cache (and 9.19, whose lists are other ones); a test
whose version is not there is skipped with what to type.
"""

import functools
from collections import Counter
from typing import NamedTuple

import pytest
from a100 import ROOT
from controls import control_cases, rows_met
from reallists import BOARDS, CASES, OLD, ROW, STUDY, TABLE, VERSIONS, expected, identity, square, wanted

from studytool import outlook
from studytool.engines.base import Order
from studytool.layout import StudyPlace
from studytool.model import Case, Split, Status
from studytool.outlook import Expected
from studytool.planning import boards
from studytool.planning.deviceless import Planner
from studytool.planning.messages import Planned
from studytool.runtime import lookup

pytest.importorskip("cudnn")
pytestmark = pytest.mark.xdist_group("planning_real")

EACH = pytest.mark.parametrize("version", VERSIONS)
ENVELOPE = StudyPlace(ROOT, "sdpa_fwd_sm90_envelope")


def envelope(version: str) -> list[Expected]:
    """Return what the H200 study's cases would run without a table."""
    return expected(ENVELOPE, BOARDS["9.0"], version, table=False)


def names(found: list[Expected], leg: str) -> dict[int, set[str]]:
    """Return the names of a leg's first plans by head dimension."""
    dims = {item.case.d_qk for item in found}
    return {d: {str(plan and plan.name) for i in found if i.case.d_qk == d for plan in [i.legs[leg]]} for d in dims}


@EACH
def test_every_case_of_the_a100_study_has_both_sides(version: str) -> None:
    """All train, hold-out and routing cases of the 16 classes have a plan of the backend and one of the row."""
    found = square(version)

    assert Counter((str(item.split), str(item.status)) for item in found) == {
        ("train", "ok"): 256,
        ("holdout", "ok"): 128,
        ("routing", "ok"): 32,
    }
    assert len({item.class_key for item in found}) == 16
    assert {item.reason for item in found} == {""}
    assert all(item.legs["frost"] is not None for item in found)


@EACH
def test_first_plans_of_the_a100_study_are_engine_7_and_the_row(version: str) -> None:
    """The backend's first plan is engine 7, with knobs by head dimension, and FROST's is sdpa_bwd_sm80."""
    found = square(version)

    assert names(found, "backend") == {
        64: {"eng7_k24=2_k27=0_k38=0_k40=2_k41=2"},
        128: {"eng7_k24=2_k27=0_k38=0_k40=1_k41=2"},
    }
    assert names(found, "frost") == {64: {"sdpa_bwd_sm80"}, 128: {"sdpa_bwd_sm80"}}
    assert {identity(item, "frost") for item in found} == {str(ROW)}
    assert {identity(item, "backend")[:2] for item in found} == {"7["}


@EACH
def test_the_table_moves_the_squares_and_no_routing_case(version: str) -> None:
    """With every class leading, auto is the row's plan for the 384 squares, and the default where q < kv."""
    found = square(version)
    moved = {item.case.label for item in found if identity(item, "auto") == str(ROW)}
    stayed = [item for item in found if item.split is Split.ROUTING]

    assert moved == {case.label for split in (Split.TRAIN, Split.HOLDOUT) for case in CASES[split]}
    assert len(moved) == 384
    assert all(identity(item, "default") == identity(item, "backend") for item in found)
    assert [item.legs["auto"] for item in stayed] == [item.legs["default"] for item in stayed]


def test_an_earlier_version_has_other_lists() -> None:
    """Under 9.19 both sides are there too, and the backend's plans of engine 7 have other knobs."""
    found = square(OLD)

    assert Counter(item.status for item in found) == {Status.OK: 416}
    assert names(found, "backend") == {64: {"eng7_k24=28"}, 128: {"eng7_k24=27"}}
    assert names(found, "frost") == {64: {"sdpa_bwd_sm80"}, 128: {"sdpa_bwd_sm80"}}


@EACH
def test_every_train_case_of_the_h200_study_has_both_sides_and_the_backend_leads(version: str) -> None:
    """From 320 to 448 the library puts the backend first, so that an entry there would move something."""
    train = [item for item in envelope(version) if item.split is Split.TRAIN]

    assert Counter(item.status for item in train) == {Status.OK: 24}
    assert {item.case.d_qk for item in train} == {320, 344, 384, 408, 432, 448}
    assert {identity(item, "default") == identity(item, "backend") for item in train} == {True}
    assert {identity(item, "backend")[:2] for item in train} == {"8["}
    assert {plan.engine for item in train if (plan := item.legs["frost"])} == {20517}


@EACH
def test_at_exactly_512_the_row_leads_by_itself(version: str) -> None:
    """The library's own first plan of a square 512 is the row's; of a decode it is the backend's."""
    found = [item for item in envelope(version) if item.case.d_qk == item.case.d_v == 512]

    assert {(item.case.s_q == 1, identity(item, "default") == identity(item, "frost")) for item in found} == {
        (False, True),
        (True, False),
    }
    assert {item.status for item in envelope(version)} == {Status.OK}


class Control(NamedTuple):
    """A control graph with its plans, and the ids of the library's rows."""

    cc: str
    case: Case
    planned: Planned
    rows: dict[str, int]


@functools.cache
def controls(version: str, base: str) -> list[Control]:
    """Return the controls planned for a board of each compute capability."""
    found = []
    for cc, board in BOARDS.items():
        with Planner(boards.load(board), wanted(version), base) as planner:
            own = [case for other, case in control_cases(STUDY.dtypes) if other == cc]
            found += [Control(cc, case, planner.plan(case), planner.found.rows) for case in own]
    return found


BASES = pytest.mark.parametrize(("base", "planned"), [("library", 274), ("backend", 308)])


@EACH
@BASES
def test_the_controls_keep_their_first_plan(version: str, base: str, planned: int) -> None:
    """With the table 336 graphs outside of the classes run what they run with an empty one; some have no plan."""
    found = controls(version, base)
    legs = []
    for cc, case, plans, rows in found:
        answers = (lookup.lookup(table, STUDY.row, cc, case.fields) for table in (TABLE, lookup.EMPTY))
        legs.append([outlook.legs_of(plans, rows[STUDY.row], Order(base, answer))["auto"] for answer in answers])

    assert len(found) == 336
    assert [cc for (with_table, bare), (cc, *_) in zip(legs, found, strict=True) if with_table != bare] == []
    assert Counter(item.planned.status for item in found) == {Status.OK: planned, Status.DECLINED: 336 - planned}


@EACH
@BASES
def test_the_controls_meet_every_row_of_their_boards(version: str, base: str, planned: int) -> None:
    """Each FROST row has plans of as many controls as where the backend's list is made up (test_cudnn_routing)."""
    found = controls(version, base)
    met = Counter(
        row for item in found for row in {plan.engine for plan in item.planned.plans if plan.engine >= 20_000}
    )

    assert met == {found[0].rows[row]: count for row, count in rows_met(base).items()}
    assert sum(met.values()) <= planned
