"""What the table of the A100 study does to the library's own plan lists: it moves its classes, and nothing else.

The planner is the real one of nvidia-cudnn-frontend, FROST and all, for a GPU that is only described; the backend's
list is fixed. Each graph is routed twice: by the index that `plans.choose` picks from outside, and by the library's
own assembly with a placement hook.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NamedTuple

import msgspec
import pytest
from a100 import BOARD, SQUARE, class_of, emitted, frozen, parsed
from controls import control_cases, rows_met

from studytool.engines.base import Order
from studytool.model import Case, Split
from studytool.runtime import key, lookup

pytest.importorskip("cudnn")

import fakecudnn
from cudnn.engines import MANIFEST, is_python_engine

from studytool.engines.cudnn import graphs, plans

STUDY, CASES = frozen(SQUARE)
SQUARES = [*CASES[Split.TRAIN], *CASES[Split.HOLDOUT]]
TEXT = emitted(STUDY, CASES[Split.TRAIN], lambda _: 500_000)
"""The lines where the row wins everywhere."""

ROW, BACKEND = 20601, 5
"""Engine ids: the study's row, and what the fixed backend has first."""

SM_COUNTS = {"8.0": 108, "8.6": 84, "9.0": 132, "10.0": 148, "12.0": 170}


class Routed(NamedTuple):
    """One graph: what the table says of it, and the engine ids of first plans.

    `auto` and `default` are first in the orders of the legs, `applied` and `bare` what `choose` takes with the table
    and with an empty one. `rows` are the FROST rows that have a plan. `hook_agrees` says whether the library's own
    assembly, with a hook that lifts the row where the table says so, puts the plan first that `choose` takes for a
    trail-only row, among the same plans.
    """

    label: str
    code: str
    auto: int
    default: int
    applied: int
    bare: int
    rows: frozenset[int]
    hook_agrees: bool


Group = list[Routed]
Asked = tuple[str, Case]
"""A compute capability and a case."""


@functools.cache
def whole_table() -> lookup.Table:
    """Return the table with all entries."""
    return parsed(TEXT)


@functools.cache
def table_without(class_key: lookup.Key) -> lookup.Table:
    """Return the table from which one entry was removed."""
    return parsed(TEXT._replace(entries={name: line for name, line in TEXT.entries.items() if name[2:] != class_key}))


def planned(case: Case) -> Any:
    """Return a fresh graph with its plans."""
    graph = graphs.build(case).graph
    graphs.plan(graph)
    return graph


def module_of(family: str) -> tuple[Any, str]:
    """Return the module and the name of the function by which a family of the library ranks its plans."""
    module, name = next(member.heuristics for member in MANIFEST if member.name == family)
    return import_module(module), name


def family_of(case: Case) -> str:
    """Return the library's family that has the rows of a case's op."""
    return f"frost_{case.op}"


def route(case: Case, table: lookup.Table, base: str, cc: str) -> Routed:
    """Return what becomes of a case's graph on the GPU that the planner plans for."""
    device = plans.Device(cc, BOARD)
    answer = lookup.explain(table, STUDY.row, cc, case.fields, BOARD)
    graph = planned(case)
    ids = plans.engine_ids(graph)
    legs = plans.orders(ids, plans.row_engine(STUDY.row), Order(base, answer.verdict))
    choose = functools.partial(plans.choose, graph, case.fields, device=device)
    with fakecudnn.placement_hook(family_of(case), STUDY.row if answer.verdict else None):
        hooked = plans.engine_ids(planned(case))
    outside = ids[choose(table, base="backend")]
    return Routed(
        label=f"cc {cc} {case.label}",
        code=f"{answer.code} {answer.detail}".strip(),
        auto=ids[legs["auto"][0]],
        default=ids[legs["default"][0]],
        applied=ids[choose(table, base=base)],
        bare=ids[choose(lookup.EMPTY, base=base)],
        rows=frozenset(plan for plan in ids if is_python_engine(plan)),
        hook_agrees=hooked[0] == outside and sorted(hooked) == sorted(ids),
    )


def routed(asked: Iterable[Asked], base: str, table_for: Callable[[Case], lookup.Table]) -> Group:
    """Return what becomes of all these graphs, with the library's switch set as the base needs it."""
    found = []
    with pytest.MonkeyPatch.context() as outer:
        outer.setenv(plans.FLAG, "")
        plans.pin_flag(base)
        for cc, case in asked:
            major, minor = cc.split(".")
            with outer.context() as patch:
                fakecudnn.planner(patch.setattr, (int(major), int(minor)), SM_COUNTS[cc])
                found.append(route(case, table_for(case), base, cc))
    return found


@pytest.fixture(name="groups", scope="module")
def _groups() -> dict[str, Group]:
    """Return every group of graphs, routed once."""

    def squares(split: Split, cc: str = "8.0") -> list[Asked]:
        return [(cc, case) for case in CASES[split]]

    both = [*squares(Split.TRAIN), *squares(Split.HOLDOUT)]
    whole, controls = whole_table(), [*control_cases(STUDY.dtypes)]
    wanted = {
        "16 classes, train": (squares(Split.TRAIN), "backend", lambda _: whole),
        "16 classes, hold-out": (squares(Split.HOLDOUT), "backend", lambda _: whole),
        "16 classes, own entry removed": (both, "backend", lambda case: table_without(class_of(STUDY, case))),
        "16 classes, row not offered": (both, "library", lambda _: whole),
        "16 classes on cc 8.6": ([("8.6", case) for _, case in both], "backend", lambda _: whole),
        "16 classes on cc 9.0": ([("9.0", case) for _, case in both], "backend", lambda _: whole),
        "q < kv in the 16 classes": (squares(Split.ROUTING), "backend", lambda _: whole),
        "controls, base library": (controls, "library", lambda _: whole),
        "controls, base backend": (controls, "backend", lambda _: whole),
    }
    return {name: routed(asked, base, table_for) for name, (asked, base, table_for) in wanted.items()}


def count(group: Group, holds: Callable[[Routed], bool]) -> int:
    """Return of how many graphs something holds."""
    return sum(map(holds, group))


def shown(groups: dict[str, Group]) -> str:
    """Return the table of all groups."""
    head = ("group", "graphs", "auto is FROST", "auto = default", "changed", "hook agrees")
    rows = [
        (
            name,
            str(len(group)),
            str(count(group, lambda one: is_python_engine(one.auto))),
            str(count(group, lambda one: one.auto == one.default)),
            str(count(group, lambda one: one.applied != one.bare)),
            str(count(group, lambda one: one.hook_agrees)),
        )
        for name, group in groups.items()
    ]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in (head, *rows)
    ]
    return "\n".join(lines) + "\n"


TABLE = """\
group                          graphs  auto is FROST  auto = default  changed  hook agrees
16 classes, train                 256            256               0      256          256
16 classes, hold-out              128            128               0      128          128
16 classes, own entry removed     384              0             384        0          384
16 classes, row not offered       384              0             384        0          384
16 classes on cc 8.6              384              0             384        0          384
16 classes on cc 9.0              384              0             384        0          384
q < kv in the 16 classes           32              0              32        0           32
controls, base library            336             54             336        0          336
controls, base backend            336              0             336        0          336
"""


def test_the_table_of_all_groups(groups: dict[str, Group]) -> None:
    """Of 2624 routed graphs the table moves the 384 that it was fitted for and held out on; pytest -s prints it."""
    found = shown(groups)
    sys.stdout.write(f"\n{found}")

    assert found == TABLE


def test_every_class_has_its_entry() -> None:
    """The table has one `always` entry for each of the 16 classes, keyed on cc 8.0 and guarded by squareness."""
    table = whole_table()
    classes = {(STUDY.row, "8.0", *class_of(STUDY, case)) for case in SQUARES}

    assert len(classes) == 16
    assert table.entries.keys() == classes
    assert {(entry.rule, tuple(entry.box.items())) for entry in table.entries.values()} == {
        ("always", (("square", 1),))
    }


@pytest.mark.parametrize("split", ["train", "hold-out"])
def test_the_row_leads_every_case_of_the_classes(groups: dict[str, Group], split: str) -> None:
    """Auto is the row's plan by the table alone; default, and what an empty table gives, is the backend's first."""
    found = groups[f"16 classes, {split}"]

    assert {one._replace(label="") for one in found} == {
        Routed("", "HIT", ROW, BACKEND, ROW, BACKEND, frozenset({ROW}), hook_agrees=True)
    }
    assert len({one.label for one in found}) == {"train": 256, "hold-out": 128}[split]


def test_a_case_whose_entry_is_removed_is_back_on_the_backend(groups: dict[str, Group]) -> None:
    """Without its own entry, beside the other fifteen, a case runs the default, which is the backend's first plan."""
    assert {one._replace(label="") for one in groups["16 classes, own entry removed"]} == {
        Routed("", "NOKEY", BACKEND, BACKEND, BACKEND, BACKEND, frozenset({ROW}), hook_agrees=True)
    }


def test_a_removed_entry_takes_no_other_class_along() -> None:
    """Each entry is of its class alone: removed, it leaves the answers for all other cases as they are."""
    for own in {class_of(STUDY, case) for case in SQUARES}:
        table = table_without(own)
        led = [case for case in SQUARES if lookup.lookup(table, STUDY.row, "8.0", case.fields)]

        assert led == [case for case in SQUARES if class_of(STUDY, case) != own]


def test_fewer_queries_than_keys_are_kept_out_by_the_guard(groups: dict[str, Group]) -> None:
    """The key of each routing case is in the table, and by the guard alone auto is the default."""
    found, table = groups["q < kv in the 16 classes"], whole_table()

    assert all((STUDY.row, "8.0", *class_of(STUDY, case)) in table.entries for case in CASES[Split.ROUTING])
    assert {one._replace(label="") for one in found} == {
        Routed("", "GUARD square", BACKEND, BACKEND, BACKEND, BACKEND, frozenset({ROW}), hook_agrees=True)
    }


@pytest.mark.parametrize("cc", ["8.6", "9.0"])
def test_nothing_changes_on_another_cc(groups: dict[str, Group], cc: str) -> None:
    """On another compute capability no entry has the key, and the library has no plan of the row either."""
    assert {one._replace(label="") for one in groups[f"16 classes on cc {cc}"]} == {
        Routed("", "NOKEY", BACKEND, BACKEND, BACKEND, BACKEND, frozenset(), hook_agrees=True)
    }


@pytest.mark.parametrize("cc", ["8.6", "9.0", "8.00", "8", ""])
def test_an_entry_is_of_its_cc_even_where_the_row_has_plans(monkeypatch: pytest.MonkeyPatch, cc: str) -> None:
    """Were the row offered on another compute capability, the entries of 8.0 would not lift it there."""
    monkeypatch.setenv(plans.FLAG, "")
    plans.pin_flag("backend")
    fakecudnn.planner(monkeypatch.setattr, (8, 0), 108)
    for case in CASES[Split.HOLDOUT]:
        graph = planned(case)
        chosen = {
            place: plans.choose(graph, case.fields, whole_table(), base="backend", device=plans.Device(place, BOARD))
            for place in ("8.0", cc)
        }

        assert [plans.engine_ids(graph)[index] for index in chosen.values()] == [ROW, BACKEND]


def test_an_entry_cannot_lift_a_row_that_is_not_offered(groups: dict[str, Group]) -> None:
    """With the library's switch off the row has no plans: the table says True, and every case stays where it was."""
    assert {one._replace(label="") for one in groups["16 classes, row not offered"]} == {
        Routed("", "HIT", BACKEND, BACKEND, BACKEND, BACKEND, frozenset(), hook_agrees=True)
    }


@pytest.mark.parametrize("base", ["library", "backend"])
def test_a_forward_of_a_class_keeps_its_plan(base: str) -> None:
    """An entry is of a row, and the row of one op: a forward that has the key of an entry is not moved by it."""
    twins = [msgspec.structs.replace(case, op="sdpa_fwd") for case in CASES[Split.HOLDOUT]]
    found = routed([("8.0", case) for case in twins], base, lambda _: whole_table())

    assert {(one.auto, one.default, one.applied, one.bare, one.hook_agrees) for one in found} == {
        (BACKEND, BACKEND, BACKEND, BACKEND, True)
    }


def test_there_are_336_controls_outside_of_the_classes() -> None:
    """All have labels of their own, and none is a backward of a class on cc 8.0."""
    asked = [*control_cases(STUDY.dtypes)]
    classes = {class_of(STUDY, case) for case in SQUARES}
    flags = {name for name in key.FLAGS for _, case in asked if name in case.fields}

    assert len(asked) == 336
    assert len({f"cc {cc} {case.label}" for cc, case in asked}) == 336
    assert flags == {"padding", "sink", "layout", "stats", "deterministic"}
    assert not any(
        (cc, case.op) == ("8.0", "sdpa_bwd") and class_of(STUDY, case) in classes and not flags & case.fields.keys()
        for cc, case in asked
    )


@pytest.mark.parametrize("base", ["library", "backend"])
def test_every_control_keeps_its_first_plan(groups: dict[str, Group], base: str) -> None:
    """The 336 graphs run with the table what they run with an empty one, in the library's order and in the other."""
    found = groups[f"controls, base {base}"]

    assert len({one.label for one in found}) == 336
    assert [one for one in found if not one.auto == one.default == one.applied == one.bare] == []
    assert Counter(one.code for one in found) == {
        "NOKEY": 320,
        "FEATURE padding": 4,
        "FEATURE sink": 4,
        "FEATURE layout": 4,
        "FEATURE stats": 2,
        "FEATURE deterministic": 2,
    }


@pytest.mark.parametrize("base", ["library", "backend"])
def test_the_controls_meet_every_row_of_their_gpus(groups: dict[str, Group], base: str) -> None:
    """Each FROST row of these GPUs for 16 bit has plans of some controls, so that a wrong lift would show."""
    assert Counter(row for one in groups[f"controls, base {base}"] for row in one.rows) == {
        plans.row_engine(row): graphs_met for row, graphs_met in rows_met(base).items()
    }


def test_the_hook_and_the_choice_agree_on_every_graph(groups: dict[str, Group]) -> None:
    """The library's own assembly, told by a hook what the table says, has the plan first that is chosen outside."""
    assert [one for group in groups.values() for one in group if not one.hook_agrees] == []


@pytest.mark.parametrize("family", ["frost_sdpa_fwd", "frost_sdpa_bwd"])
def test_the_library_s_own_hook_is_put_back(groups: dict[str, Group], family: str) -> None:
    """After all routing, and after an error within, the family ranks by the function that it came with."""
    module, name = module_of(family)
    own = getattr(module, name)

    def fail() -> None:
        with fakecudnn.placement_hook(family, STUDY.row):
            assert getattr(module, name) is not own
            raise KeyError(family)

    with pytest.raises(KeyError, match=family):
        fail()
    assert getattr(module, name) is own
    assert (own.__module__, own.__name__) == (module.__name__, name)
    assert groups
