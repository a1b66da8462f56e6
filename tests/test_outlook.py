"""What a study's cases would run on a described board: statuses, legs, the table applied, and how it is told."""

from collections.abc import Callable
from typing import Any

import pytest
from controls import BACKEND_PLAN, FROST_PLAN, OTHER_PLAN, OTHER_ROW_PLAN, StandIn, both, listed, refused
from factories import STUDY_YAML, make_case, make_study

from studytool import grid, lines, outlook
from studytool.engines.base import Order
from studytool.model import LEGS, Case, Plan, Split, Status, Study
from studytool.outlook import Expected
from studytool.planning import boards
from studytool.planning.messages import Planned
from studytool.runtime import lookup

H200 = boards.load("h200")
STUDY = make_study()
CASES = grid.expand(STUDY)
Answer = Callable[[Case], Planned]


def expected(answer: Answer, study: Study = STUDY, table: lookup.Table = lookup.EMPTY) -> list[Expected]:
    """Return what a study's cases would run on an H200 whose plans are these."""
    return outlook.expect(study, grid.expand(study), StandIn(answer), H200, table, lambda *_: None)


def statuses(answer: Answer, split: Split, base: str = "library") -> set[str]:
    """Return how the cases of a split would end."""
    return {item.status for item in expected(answer, make_study(base=base)) if item.split is split}


def names(legs: Any) -> list[str]:
    """Return the names of the legs' plans, in the order of LEGS."""
    return [legs[leg].name if legs[leg] else "none" for leg in LEGS]


@pytest.mark.parametrize(
    ("plans", "timed", "routed"),
    [
        ((BACKEND_PLAN, FROST_PLAN), "ok", "ok"),
        ((FROST_PLAN, BACKEND_PLAN), "ok", "ok"),
        ((BACKEND_PLAN,), "no_frost", "ok"),
        ((BACKEND_PLAN, OTHER_ROW_PLAN), "no_frost", "ok"),
        ((FROST_PLAN,), "no_backend", "ok"),
        ((OTHER_ROW_PLAN,), "no_backend", "ok"),
        ((), "no_backend", "no_backend"),
    ],
)
def test_a_case_that_lacks_a_side_has_a_status(plans: tuple[Plan, ...], timed: str, routed: str) -> None:
    """A timed case needs both sides, and the frost one of its own row; a routing case needs auto and default alone."""
    found = [statuses(lambda _case: listed(*plans), split) for split in Split]

    assert found == [{timed}, {timed}, {routed}]


def test_another_row_s_plan_is_none_for_a_trail_only_row() -> None:
    """With the backend's order as base, a list that has only another row's plans leaves even auto without one."""
    assert statuses(lambda _case: listed(OTHER_ROW_PLAN), Split.ROUTING, "backend") == {"no_backend"}


@pytest.mark.parametrize("status", [Status.REFUSED, Status.DECLINED, Status.ERROR, Status.CRASHED, Status.TIMEOUT])
def test_a_case_without_plans_keeps_its_status_and_reason(status: Status) -> None:
    """How the planner ended is told in every split, in its words, and all four legs have none."""
    found = expected(lambda _case: refused(status, "KeyError: 576"))

    assert {(item.status, item.reason) for item in found} == {(status, "KeyError: 576")}
    assert {(leg, plan) for item in found for leg, plan in item.legs.items()} == {(leg, None) for leg in LEGS}


def test_legs_are_told_by_engine_ids() -> None:
    """Backend plans are those below 20,000 and frost those of the row alone, wherever they stand in the list."""
    planned = listed(OTHER_ROW_PLAN, FROST_PLAN, OTHER_PLAN, BACKEND_PLAN)
    row = FROST_PLAN.engine

    assert names(outlook.legs_of(planned, row, Order("library", None))) == [
        "eng8",
        "sdpa_bwd_sm80",
        "sdpa_fwd_prefill_sm100",
        "sdpa_fwd_prefill_sm100",
    ]
    assert names(outlook.legs_of(planned, row, Order("backend", None))) == ["eng8", "sdpa_bwd_sm80", "eng8", "eng8"]
    assert names(outlook.legs_of(planned, row, Order("backend", True)))[2:] == ["sdpa_bwd_sm80", "eng8"]
    assert names(outlook.legs_of(planned, row, Order("library", False)))[2:] == [
        "sdpa_fwd_prefill_sm100",
        "sdpa_fwd_prefill_sm100",
    ]
    assert names(outlook.legs_of(planned, None, Order("library", None)))[1] == "none"


def table_of(rule: str, box: dict[str, lookup.Limit]) -> lookup.Table:
    """Return a table with one entry for the bf16 cases without a mask on cc 9.0."""
    key = ("open_engine", "9.0", "sdpa_fwd", "bf16", "none")
    entry = lines.render(lines.Line(key, rule, "", 0, box, "evidence"))
    text = lines.table_text(lines.Text({"open_engine": ("op", "dtype", "mask")}, {key: entry}))
    return lines.parse_table(text.encode(), "table.py")


def told(found: list[Expected], leg: str) -> dict[str, str]:
    """Return the name of a leg's plan, by label, of the dense cases."""
    return {item.case.label: plan.name for item in found if item.case.layout == "dense" and (plan := item.legs[leg])}


def test_the_table_is_applied() -> None:
    """Auto is the row's plan where an entry of the board's cc leads, and the default elsewhere."""
    found = expected(both, table=table_of("always", {"square": 1}))
    by_label = {item.case.label: item.case for item in found}
    entry = {label: case.mask == "none" and case.s_q == case.s_kv for label, case in by_label.items()}

    assert told(found, "auto") == {
        label: "sdpa_bwd_sm80" if entry[label] else "eng7_k24=2" for label in told(found, "auto")
    }
    assert set(entry.values()) == {True, False}
    assert {item.class_key[:2] for item in found} == {("open_engine", "9.0")}
    assert all(item.legs["default"] == BACKEND_PLAN for item in found)
    assert [item.legs["auto"] for item in found if item.case.layout == "strided"] == [BACKEND_PLAN]


@pytest.mark.parametrize(("board", "led"), [("NVIDIA H200", 4), ("NVIDIA H100 80GB HBM3", 0)])
def test_an_entry_that_was_measured_on_a_board_is_asked_with_the_board_s_name(board: str, led: int) -> None:
    """The board of an entry's box is the one that the driver names, not the name of a file here."""
    study = make_study(STUDY_YAML.replace("s_kv: [64, 128, 256, 512]", "s_kv: [64, 128, 256, 512], s_q: 64"))
    found = expected(both, study, table_of("always", {"board": board}))

    assert sum(item.legs["auto"] == FROST_PLAN for item in found if item.split is Split.TRAIN) == led


def test_an_entry_that_trails_puts_the_row_last() -> None:
    """Where the library puts the row first, an entry `never` gives auto the backend's plan."""
    found = expected(lambda _case: listed(FROST_PLAN, BACKEND_PLAN), table=table_of("never", {}))
    masks = {item.case.label: item.case.mask for item in found}

    assert {(masks[label], name) for label, name in told(found, "auto").items()} == {
        ("none", "eng7_k24=2"),
        ("tl", "sdpa_bwd_sm80"),
    }
    assert set(told(found, "default").values()) == {"sdpa_bwd_sm80"}


def test_every_case_is_asked_once_and_progress_is_told() -> None:
    """All splits are planned in order, and each case is told with its number of how many."""
    planner, steps = StandIn(both), list[tuple[int, int, str]]()
    found = outlook.expect(STUDY, CASES, planner, H200, lookup.EMPTY, lambda *step: steps.append(step))
    cases = [case for own in CASES.values() for case in own.values()]

    assert planner.asked == cases == [item.case for item in found]
    assert steps == [(number, len(cases), case.label) for number, case in enumerate(cases, 1)]
    assert [item.digest for item in found] == [digest for own in CASES.values() for digest in own]


def mixed(case: Case) -> Planned:
    """Return what differs by case: a list, one without a side, a case that is declined and one that raises."""
    if case.mask == "tl":
        return refused(Status.DECLINED, "neither side has a plan")
    if case.s_kv == 512:
        return refused(Status.ERROR, "KeyError: 512")
    return listed(OTHER_PLAN) if case.s_kv < 100 else listed(BACKEND_PLAN, FROST_PLAN)


TEXT = """\
h200, cuDNN 92700, frontend 1.32.0: predictions, nothing ran

| dtype | split | cases | both sides | declined | no_frost | error |
| --- | --- | --- | --- | --- | --- | --- |
| bf16 | train | 6 | 2 | 2 | 1 | 1 |
| bf16 | holdout | 2 | 1 | 0 | 1 | 0 |
| bf16 | routing | 1 | 1 | 0 | 0 | 0 |

| class | cases | backend | frost | auto | default |
| --- | --- | --- | --- | --- | --- |
| sdpa_fwd bf16 none | 7 | BACKEND | none, sdpa_bwd_sm80 | BACKEND | BACKEND |
| sdpa_fwd bf16 tl | 2 | none | none | none | none |

2 x declined: neither side has a plan
1 x error: KeyError: 512

9 graphs planned in 0.0 s, 2.0 ms each"""
"""With the names of the backend's plans for BACKEND."""


def test_the_text_of_an_outlook() -> None:
    """Counts by dtype and split, plans by class, reasons with their counts, and what planning took."""
    assert outlook.as_text(H200, StandIn(mixed), expected(mixed)) == TEXT.replace("BACKEND", "eng7_k24=2, eng8, none")


def test_the_text_counts_dtypes_and_splits_in_order() -> None:
    """Dtypes stand in their order, splits in that of the study's steps, and no reasons leave no gap."""
    study = make_study(STUDY_YAML.replace("dtypes: [bf16]", "dtypes: [f16, bf16]"))
    said = outlook.as_text(H200, StandIn(both), expected(both, study)).splitlines()

    assert [line.split("|")[1:3] for line in said[4:10]] == [
        [f" {dtype} ", f" {split} "] for dtype in ("bf16", "f16") for split in Split
    ]
    assert said[-2:] == ["", "18 graphs planned in 0.0 s, 2.0 ms each"]
    assert said[-3].startswith("|")


def test_the_outlook_for_machines_has_every_case() -> None:
    """The JSON names board, versions and, by case, split, status, reason and each leg's plan with id and name."""
    found = outlook.as_json(STUDY, H200, StandIn(mixed), expected(mixed))
    backend = {"plan": "7[KERNEL_CFG=2]", "name": "eng7_k24=2"}
    by_label = {item["label"]: item for item in found.pop("cases")}
    case = make_case(s_q=256, s_kv=256)

    assert found == {"schema": 1, "study": "tiny", "board": "h200", "cudnn": 92700, "frontend": "1.32.0"}
    assert len(by_label) == 9
    assert by_label[case.label] == {
        "case": grid.case_digest(case),
        "label": case.label,
        "split": "train",
        "status": "ok",
        "reason": "",
        "legs": {
            "backend": backend,
            "frost": {"plan": "20601", "name": "sdpa_bwd_sm80"},
            "auto": backend,
            "default": backend,
        },
    }
    assert [item["reason"] for item in by_label.values() if item["status"] == "error"] == ["KeyError: 512"]
