"""Which plan of a cuDNN graph each leg is, and what a table puts first: by engine ids alone."""

import json
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_case
from hypothesis import assume, given
from hypothesis import strategies as st

from studytool.engines.base import Order, Seeds, Terms
from studytool.model import Case, Plan
from studytool.runtime import lookup

cudnn = pytest.importorskip("cudnn")
fakecudnn = pytest.importorskip("fakecudnn")
graphs = pytest.importorskip("studytool.engines.cudnn.graphs")
plans = pytest.importorskip("studytool.engines.cudnn.plans")
pytestmark = pytest.mark.torch

FWD, BWD, OTHER = 20508, 20601, 20511
ROWS = {"sdpa_fwd_prefill_sm80": FWD, "sdpa_bwd_sm80": BWD, "sdpa_fwd_prefill_sm100": OTHER}
HERE = plans.Device("8.0", "Fake GPU")
SQUARE = make_case(op="sdpa_bwd")
BOUNDS = {"from": '"s_kv", 128, ', "upto": '"s_kv", 128, '}


@pytest.fixture(autouse=True)
def _switch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the library's switch, and have it put back, whatever a test makes of it."""
    monkeypatch.setenv(plans.FLAG, "1")


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return what plans a case with the real planner for cc 8.0."""
    fakecudnn.planner(monkeypatch.setattr, (8, 0), 108)

    def plan(case: Case = SQUARE) -> Any:
        graph = graphs.build(case).graph
        graphs.plan(graph)
        return graph

    return plan


def listed(*ids: int) -> Any:
    """Return a graph whose ranked plans have these engine ids, and nothing else that could be asked."""
    return SimpleNamespace(plans=[SimpleNamespace(engine_id=engine) for engine in ids])


def table(*rows: tuple[str, str], cc: str = "8.0", box: str = "{}") -> lookup.Table:
    """Return a table with one bf16 entry of this rule per row, none where the rule is ""."""
    named = "".join(f'"{row}": ("dtype",), ' for row, _ in rows)
    entries = "".join(
        f'    ("{row}", "{cc}", "bf16"): ("{rule}", {BOUNDS.get(rule, "")}{box}),\n' for row, rule in rows if rule
    )
    return lookup.parse(f"SCHEMA = 1\nROWS = {{{named}}}\nTABLE = {{\n{entries}}}\n".encode(), "table.py")


def test_sides_are_told_by_the_range_of_the_id() -> None:
    """Below 10,000 is the backend, from 20,000 on FROST; what delegates and what is reserved is on no side."""
    ids = [-2, -1, 0, 5, 9_999, 10_000, 19_999, 20_000, BWD, FWD]

    assert plans.sides(ids, BWD) == ([2, 3, 4, 7, 8, 9], [2, 3, 4], [8])
    assert plans.sides(ids, None) == ([2, 3, 4, 7, 8, 9], [2, 3, 4], [])
    assert plans.sides([], BWD) == ([], [], [])


RANKED = [OTHER, FWD, 5, FWD, 7, -1, 3]
"""A list of the library: another row first, two plans of the row, the backend's with its fallback last."""


@pytest.mark.parametrize(
    ("base", "answer", "auto", "default"),
    [
        ("library", None, [0, 1, 2, 3, 4, 6], [0, 1, 2, 3, 4, 6]),
        ("library", True, [1, 3, 0, 2, 4, 6], [0, 1, 2, 3, 4, 6]),
        ("library", False, [0, 2, 4, 6, 1, 3], [0, 1, 2, 3, 4, 6]),
        ("backend", None, [2, 4, 6, 1, 3], [2, 4, 6, 1, 3]),
        ("backend", True, [1, 3, 2, 4, 6], [2, 4, 6, 1, 3]),
        ("backend", False, [2, 4, 6, 1, 3], [2, 4, 6, 1, 3]),
    ],
)
def test_legs_have_orders(base: str, answer: bool | None, auto: list[int], default: list[int]) -> None:
    """Auto and default follow from base and answer; another row's plan is the library's and never the frost leg."""
    found = plans.orders(RANKED, FWD, Order(base, answer))

    assert found == {"backend": [2, 4, 6], "frost": [1, 3], "auto": auto, "default": default}


@given(
    st.lists(st.sampled_from([-1, 0, 3, 5, 9_999, 10_000, 19_999, OTHER, FWD, BWD]), max_size=9),
    st.sampled_from([FWD, BWD, None]),
    st.sampled_from(["library", "backend"]),
    st.sampled_from([None, True, False]),
)
def test_orders_of_any_list(ids: list[int], engine: int | None, base: str, answer: bool | None) -> None:
    """Default never knows the answer, auto has the plans of default and the backend, and no index comes twice."""
    found = plans.orders(ids, engine, Order(base, answer))
    auto, frost = found["auto"], found["frost"]

    assert found["default"] == plans.orders(ids, engine, Order(base, None))["default"]
    assert set(auto) == set(found["default"]) | ({*found["backend"], *frost} if answer is not None else set())
    assert all(len(order) == len(set(order)) for order in found.values())
    assert all(0 <= ids[index] < 10_000 or ids[index] >= 20_000 for order in found.values() for index in order)
    assert {ids[index] for index in frost} <= {engine}
    if answer is not None:
        assert (auto[: len(frost)] if answer else auto[len(auto) - len(frost) :]) == frost


def test_rows_have_the_ids_of_the_library() -> None:
    """A row's id is its place in the installed library's manifest; what is no row there has none."""
    known = {row: plans.row_engine(row) for row in (*ROWS, "sdpa_fwd_prefill_sm90", "sdpa_bwd_sm120")}

    assert known == {**ROWS, "sdpa_fwd_prefill_sm90": 20517, "sdpa_bwd_sm120": 20600}
    assert [plans.row_engine(row) for row in ("", "sdpa_bwd", "sdpa_bwd_sm8", "open_engine")] == [None] * 4


def test_plan_has_its_public_knobs_by_name() -> None:
    """A plan is its engine id and its knobs by name, sorted, in whatever order the library tells them."""
    kinds = cudnn.knob_type
    pairs = [(kinds.TILE_M, 64), (kinds.KERNEL_CFG, 2), (kinds.SPLIT_KV, True)]
    made = [
        plans.plan_at(
            SimpleNamespace(
                get_engine_and_knobs_at_index=lambda index, told=told: (5 + index, dict(told)),
                get_plan_name_at_index=lambda index: f"name {index}",
            ),
            2,
        )
        for told in (pairs, pairs[::-1])
    ]

    assert made == [Plan(engine=7, name="name 2", knobs={"KERNEL_CFG": 2, "SPLIT_KV": 1, "TILE_M": 64})] * 2
    assert [list(plan.knobs) for plan in made] == [["KERNEL_CFG", "SPLIT_KV", "TILE_M"]] * 2
    assert made[0].identity == "7[KERNEL_CFG=2,SPLIT_KV=1,TILE_M=64]"


def test_plans_of_a_row_differ_in_knobs(planned: Callable[..., Any]) -> None:
    """The plans that the planner makes of one row have one id, and identities of their own."""
    graph = planned(make_case(mask="tl"))
    ids = plans.engine_ids(graph)
    found = [plans.plan_at(graph, index) for index in range(len(ids))]

    assert ids == [FWD, FWD, FWD, 5, 7, 3]
    assert [plan.engine for plan in found] == ids
    assert len({plan.identity for plan in found}) == 6
    assert found[0].knobs.keys() == {"PACK_GQA", "SCHED_POLICY", "SPLIT_KV"}


class _Declining:
    """A graph that builds or declines its plans as it is told, and keeps which it was asked for."""

    def __init__(self, fates: dict[int, Exception]) -> None:
        self.fates, self.asked = fates, [0][:0]

    def build_plan_at_index(self, index: int) -> None:
        self.asked.append(index)
        if index in self.fates:
            raise self.fates[index]


def test_walk_keeps_why_each_plan_declined() -> None:
    """Each of the three kinds of decline sends the walk on, and is kept with its words, in the order of the walk."""
    kinds = (NotImplementedError, cudnn.cudnnGraphNotSupportedError, ImportError)
    graph = _Declining({index: kind(f"no {index}") for index, kind in zip((4, 0, 2), kinds, strict=True)})
    walk = plans.Builder(graph).first([4, 0, 2, 1, 3])

    assert graph.asked == [4, 0, 2, 1]
    assert walk == (
        1,
        {4: "NotImplementedError: no 4", 0: "cudnnGraphNotSupportedError: no 0", 2: "ImportError: no 2"},
    )
    assert list(walk.declined) == [4, 0, 2]


def test_each_plan_is_built_once() -> None:
    """What built or declined for one leg is not asked again for the next, and keeps the time that it took."""
    graph = _Declining({0: NotImplementedError("no")})
    builder = plans.Builder(graph)
    walks = [builder.first(order) for order in ([0, 1], [1], [2, 0], [0, 2])]
    took = dict(builder.took_ns)
    again = builder.first([0, 1, 2])

    assert graph.asked == [0, 1, 2]
    assert [(walk.at, [*walk.declined]) for walk in walks] == [(1, [0]), (1, []), (2, []), (2, [0])]
    assert again == walks[0]
    assert builder.took_ns == took
    assert took.keys() == {0, 1, 2}


@pytest.mark.parametrize("order", [[], [0], [1, 0]])
def test_walk_ends_where_nothing_builds(order: list[int]) -> None:
    """Where no plan of an order builds, there is none, and every reason is kept."""
    graph = _Declining({0: NotImplementedError("a"), 1: ImportError("b")})
    walk = plans.Builder(graph).first(order)

    assert (walk.at, [*walk.declined], graph.asked) == (None, order, order)


@pytest.mark.parametrize("error", [KeyError(576), RuntimeError("CUDA"), ValueError("no")])
def test_defect_of_a_build_is_no_decline(error: Exception) -> None:
    """An error that is no decline ends the walk at once, and is not swallowed."""
    graph = _Declining({0: error})

    with pytest.raises(type(error)) as caught:
        plans.Builder(graph).first([0, 1])
    assert caught.value is error
    assert graph.asked == [0]


@pytest.mark.parametrize(
    ("rule", "base", "engine"),
    [
        ("always", "library", BWD),
        ("always", "backend", BWD),
        ("from", "backend", BWD),
        ("never", "library", 5),
        ("never", "backend", 5),
        ("", "library", BWD),  # the switch is set, so the library itself puts FROST first
        ("", "backend", 5),
    ],
)
def test_table_puts_a_plan_first(planned: Callable[..., Any], rule: str, base: str, engine: int) -> None:
    """An entry that leads lifts the row, one that trails puts it last, and without one the order stays."""
    graph = planned()
    index = plans.choose(graph, SQUARE.fields, table(("sdpa_bwd_sm80", rule)), base=base, device=HERE)

    assert plans.engine_ids(graph) == [BWD, 5, 7, 3]
    assert plans.engine_ids(graph)[index] == engine


def test_trailing_entry_leaves_other_rows_in_place() -> None:
    """Of a row that trails all plans come last; another row's plan stays where the library has it."""
    trailing = table(("sdpa_fwd_prefill_sm80", "never"))

    assert plans.choose(listed(FWD, FWD, OTHER, 5), make_case().fields, trailing, device=HERE) == 2
    assert plans.choose(listed(FWD, FWD), make_case().fields, trailing, device=HERE) == 0


def test_first_row_with_an_answer_decides() -> None:
    """Rows are asked in the table's order: one without an answer says nothing, the first that has one decides."""
    graph, fields = listed(5, OTHER, FWD), make_case().fields
    silent = table(("sdpa_bwd_sm80", ""), ("sdpa_fwd_prefill_sm80", "always"), ("sdpa_fwd_prefill_sm100", "always"))
    turned = table(("sdpa_fwd_prefill_sm100", "always"), ("sdpa_fwd_prefill_sm80", "always"))

    assert plans.choose(graph, fields, silent, device=HERE) == 2
    assert plans.choose(graph, fields, turned, device=HERE) == 1


@pytest.mark.parametrize("rule", ["always", "never"])
def test_row_that_the_library_does_not_have_lifts_nothing(rule: str) -> None:
    """A table may have been made with another version of the library: a row that is unknown here moves no plan."""
    unknown = table(("sdpa_fwd_prefill_sm70", rule))

    assert plans.choose(listed(OTHER, 5), make_case().fields, unknown, device=HERE) == 0
    assert plans.choose(listed(OTHER, 5), make_case().fields, unknown, base="backend", device=HERE) == 1


@pytest.mark.parametrize("rule", ["always", "never", ""])
@pytest.mark.parametrize("base", ["library", "backend"])
def test_list_that_only_delegates_gives_its_only_entry(base: str, rule: str) -> None:
    """Where the library leaves the choice to the backend as a whole, that is what is built."""
    assert plans.choose(listed(-1), SQUARE.fields, table(("sdpa_bwd_sm80", rule)), base=base, device=HERE) == 0


def test_graph_without_plans_is_an_error() -> None:
    """A graph that was not planned is an error that says what to call."""
    with pytest.raises(ValueError, match=r"no plans; expected create_execution_plans\(\) to have been called"):
        plans.choose(graphs.build(SQUARE).graph, SQUARE.fields, lookup.EMPTY, device=HERE)


def test_entry_holds_for_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry of another cc or board says nothing; the current device is asked for where none is given."""
    graph, fields = listed(5, FWD), make_case().fields
    boxed = table(("sdpa_fwd_prefill_sm80", "always"), box='{"board": "Fake GPU"}')
    monkeypatch.setattr(plans, "current_device", lambda: HERE)
    elsewhere = [plans.Device("8.0", "Other GPU"), plans.Device("8.6", "Fake GPU")]

    assert plans.choose(graph, fields, boxed) == 1
    assert [plans.choose(graph, fields, boxed, device=device) for device in elsewhere] == [0, 0]


def test_names_do_not_matter(planned: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Names are never asked for to tell the sides: a library that renames its plans changes no choice."""
    graph, asked = planned(), table(("sdpa_bwd_sm80", "never"))
    before = (
        plans.choose(graph, SQUARE.fields, asked, device=HERE),
        plans.orders(plans.engine_ids(graph), BWD, Order("library", True)),
    )
    monkeypatch.setattr(cudnn.pygraph, "get_plan_name_at_index", lambda _self, _index: pytest.fail("asked by name"))

    assert before == (
        plans.choose(graph, SQUARE.fields, asked, device=HERE),
        plans.orders(plans.engine_ids(graph), BWD, Order("library", True)),
    )


RULES = st.sampled_from(["always", "never", "from", "upto", ""])
IDS = st.lists(st.sampled_from([0, 3, 5, 7, OTHER, FWD, BWD]), min_size=1, max_size=7)


@given(IDS, st.sampled_from([*ROWS]), RULES, st.integers(1, 300), st.sampled_from(["library", "backend"]))
def test_choice_is_the_first_of_the_auto_leg(ids: list[int], row: str, rule: str, s_kv: int, base: str) -> None:
    """What a user's graph is given is what the study timed as auto, wherever the backend has a plan."""
    assume(any(engine < 10_000 for engine in ids))
    fields, entries = make_case(s_kv=s_kv).fields, table((row, rule))
    answer = lookup.lookup(entries, row, HERE.cc, fields, HERE.board)
    auto = plans.orders(ids, plans.row_engine(row), Order(base, answer))["auto"]

    assert plans.choose(listed(*ids), fields, entries, base=base, device=HERE) == auto[0]


@given(
    st.sampled_from(["sdpa_fwd", "sdpa_bwd"]),
    st.sampled_from([{}, {"mask": "br", "window": 9}, {"d_qk": 264, "d_v": 264}, {"h_q": 8, "padding": 1}]),
    RULES,
    st.integers(100, 200),
    st.sampled_from(["library", "backend"]),
)
def test_choice_is_the_auto_leg_of_the_bench(op: str, changes: dict[str, Any], rule: str, s_kv: int, base: str) -> None:
    """On graphs that the real planner ranks, choice and bench name one plan, whatever the table says."""
    from studytool.engines.cudnn.engine import Cudnn

    row = "sdpa_bwd_sm80" if op == "sdpa_bwd" else "sdpa_fwd_prefill_sm80"
    case, entries = make_case(op=op, s_kv=s_kv, s_q=100, **changes), table((row, rule), box='{"board": "Fake GPU"}')
    answer = lookup.lookup(entries, row, "8.0", case.fields, "Fake GPU")
    with pytest.MonkeyPatch.context() as patch:
        device, _ = fakecudnn.install(patch.setattr)
        engine = Cudnn(Terms(engine="cudnn", row=row, base=base, simulated={}), device)
        bench = engine.prepare(case, Order(base, answer), Seeds(1, 1), "normal")
        graph = graphs.build(case).graph
        graphs.plan(graph)
        chosen = plans.plan_at(graph, plans.choose(graph, case.fields, entries, base=base))

    assert chosen == bench.plans["auto"]


@pytest.mark.parametrize(
    ("version", "cc"), [(800, "8.0"), (860, "8.6"), (900, "9.0"), (1000, "10.0"), (1030, "10.3"), (1210, "12.1")]
)
def test_current_device_is_read_as_cudnn_tells_it(monkeypatch: pytest.MonkeyPatch, version: int, cc: str) -> None:
    """The compute capability and the name come from cuDNN's own description of the device."""
    told = json.dumps({"deviceVer": version, "deviceName": "NVIDIA B1", "multiProcessorCount": 1})
    monkeypatch.setattr(cudnn, "create_device_properties", lambda _index: SimpleNamespace(serialize=lambda: told))

    assert plans.current_device.__wrapped__() == (cc, "NVIDIA B1")


@pytest.mark.parametrize("before", ["", "0", "1"])
@pytest.mark.parametrize(("base", "expected"), [("backend", "1"), ("library", "")])
def test_switch_is_as_the_base_needs_it(monkeypatch: pytest.MonkeyPatch, base: str, expected: str, before: str) -> None:
    """A trail-only row needs the switch, the library's own order needs it unset, whatever it was before."""
    from cudnn.engines.manifest import opt_in_engines_enabled

    monkeypatch.setenv(plans.FLAG, before)
    plans.pin_flag(base)

    assert (plans.flag(), os.environ.get(plans.FLAG)) == (expected, expected or None)
    assert opt_in_engines_enabled() is (base == "backend")
    plans.pin_flag(base)
    assert plans.flag() == expected
