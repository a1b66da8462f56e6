"""From a case to cuDNN's graph: the library's own facts of it say what the case says, or a PlanError says why not."""

import dataclasses
from typing import Any

import pytest
from factories import make_case
from hypothesis import given
from hypothesis import strategies as st

from studytool.engines.base import PlanError
from studytool.model import Case, Status
from studytool.possible import case_problem

cudnn = pytest.importorskip("cudnn")
fakecudnn = pytest.importorskip("fakecudnn")
graphs = pytest.importorskip("studytool.engines.cudnn.graphs")
plans = pytest.importorskip("studytool.engines.cudnn.plans")
pytestmark = pytest.mark.torch

SM80 = {"sdpa_fwd": 20508, "sdpa_bwd": 20601}
SM100 = 20511


@pytest.fixture(autouse=True)
def _opted_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the library's switch."""
    monkeypatch.setenv(plans.FLAG, "1")


def facts_of(case: Case) -> Any:
    """Return what the library itself reads from the case's graph."""
    from cudnn.engines import manifest

    graph = graphs.build(case).graph
    return graph._facts_for(manifest.resolve_analyzer(manifest.family_for(graph)))


def plain(facts: Any) -> dict[str, Any]:
    """Return the facts that are no tensors, no layouts by port and not of the device."""
    names = [field.name for field in dataclasses.fields(facts) if not field.name.endswith("_t")]
    left_out = {"port_layouts", "device_cc", "device_sm_count"}
    return {name: getattr(facts, name) for name in names if name not in left_out}


def raised(case: Case) -> PlanError:
    """Return the error of a case that cannot be built."""
    with pytest.raises(PlanError) as caught:
        graphs.build(case)
    return caught.value


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return a case that has a spelling, of any features together."""
    op = draw(st.sampled_from(["sdpa_fwd", "sdpa_bwd"]))
    h_kv, s_kv = draw(st.integers(1, 4)), draw(st.integers(2, 600))
    mask = draw(st.sampled_from(["none", "tl", "br"]))
    forward = op == "sdpa_fwd"
    return make_case(
        op=op,
        dtype=draw(st.sampled_from(["bf16", "f16"])),
        b=draw(st.integers(1, 5)),
        h_kv=h_kv,
        h_q=h_kv * draw(st.integers(1, 6)),
        s_kv=s_kv,
        s_q=draw(st.integers(1, s_kv if mask != "none" else 900)),
        d_qk=8 * draw(st.integers(1, 72)),
        d_v=8 * draw(st.integers(1, 72)),
        mask=mask,
        window=draw(st.integers(0, 700)) if mask != "none" else 0,
        layout=draw(st.sampled_from(["dense", "thd", "paged"] if forward else ["dense", "thd"])),
        padding=draw(st.integers(0, 1)),
        sink=draw(st.integers(0, 1)),
        stats=draw(st.integers(0, 1)) if forward else 0,
        deterministic=0 if forward else draw(st.integers(0, 1)),
    )


@given(cases())
def test_facts_of_the_graph_are_those_of_the_case(case: Case) -> None:
    """Sizes, masks, lengths and features are read by the library as the case has them; nothing is added."""
    facts = plain(facts_of(case))
    backward = case.op == "sdpa_bwd"
    totals = {side: sum(graphs.lengths(case, size)) for side, size in (("q", case.s_q), ("kv", case.s_kv))}
    declared = backward and case.layout == "thd"
    expected = {
        **{name: getattr(case, name) for name in ("b", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v")},
        "invalid": None,
        "is_backward": backward,
        "dtype": graphs.IO_TYPES[case.dtype],
        "dtype_o": graphs.IO_TYPES[case.dtype],
        "scale": case.d_qk**-0.5,
        "causal": case.mask != "none",
        "right_bound": 0 if case.mask != "none" else None,
        "bottom_right": case.mask == "br",
        "window_left": case.window - 1 if case.window else None,
        "padded": bool(case.padding) or case.layout in {"thd", "paged"},
        "thd": case.layout == "thd",
        "max_total_seq_len_q": totals["q"] if declared else None,
        "max_total_seq_len_kv": totals["kv"] if declared else None,
        "has_paged_kv": case.layout == "paged",
        "page_size": graphs.PAGE if case.layout == "paged" else 0,
        "has_sink": bool(case.sink),
        "has_dsink": backward and bool(case.sink),
        "wants_stats": bool(case.stats),
        "deterministic": bool(case.deterministic),
    }
    rest = {name for name, value in facts.items() if name not in expected and value not in {None, False, ()}}

    assert case_problem(case) is None
    assert {name: facts[name] for name in expected} == expected
    assert rest == {
        *("uniform_dtype", "uniform_out_dtype", "bshd_layout", "packed_layout", "dense_layout"),
        *("epilogue_gate_shape_ok", "epilogue_gate_layout_ok", "sdpa_o_virtual_declared"),
    }


SPELLED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal tl": ({"mask": "tl"}, {"causal": True, "right_bound": 0}),
    "causal br": ({"mask": "br"}, {"causal": True, "right_bound": 0, "bottom_right": True}),
    "tl window": ({"mask": "tl", "window": 9}, {"causal": True, "right_bound": 0, "window_left": 8}),
    "br window": (
        {"mask": "br", "window": 1},
        {"causal": True, "right_bound": 0, "bottom_right": True, "window_left": 0},
    ),
    "wide window": ({"mask": "tl", "window": 4096}, {"causal": True, "right_bound": 0, "window_left": 4095}),
    "gqa": ({"h_q": 8}, {"h_q": 8}),
    "mqa": ({"h_kv": 1}, {"h_kv": 1}),
    "d_qk and d_v": ({"d_qk": 96, "d_v": 32}, {"d_qk": 96, "d_v": 32, "scale": 96**-0.5}),
    "padding": ({"padding": 1}, {"padded": True}),
    "stats": ({"stats": 1}, {"wants_stats": True}),
    "sink": ({"sink": 1}, {"has_sink": True}),
    "sink backward": ({"op": "sdpa_bwd", "sink": 1}, {"has_sink": True, "has_dsink": True}),
    "deterministic": ({"op": "sdpa_bwd", "deterministic": 1}, {"deterministic": True}),
    "thd": ({"layout": "thd"}, {"padded": True, "thd": True}),
    "thd backward": (
        {"op": "sdpa_bwd", "layout": "thd"},
        {"padded": True, "thd": True, "max_total_seq_len_q": 128 + 96, "max_total_seq_len_kv": 192 + 144},
    ),
    "paged": ({"layout": "paged"}, {"padded": True, "has_paged_kv": True, "page_size": 128}),
    "paged, the last page in part": (
        {"layout": "paged", "s_kv": 200},
        {"padded": True, "has_paged_kv": True, "page_size": 128, "s_kv": 200},
    ),
}


def spelled(name: str) -> Case:
    """Return a case of two batches that has one feature."""
    return make_case(**{"b": 2, "s_kv": 192, **SPELLED[name][0]})


@pytest.mark.parametrize("name", SPELLED)
def test_one_feature_changes_its_facts_alone(name: str) -> None:
    """A feature is the only difference that the library sees between a graph that has it and one that has not."""
    case = spelled(name)
    before, after = plain(facts_of(make_case(op=case.op, b=2, s_kv=192))), plain(facts_of(case))

    assert {fact: value for fact, value in after.items() if before[fact] != value} == SPELLED[name][1]


@pytest.mark.parametrize("name", SPELLED)
def test_rows_serve_each_spelling(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The real planner proposes the row for each feature, so that no tensor is laid out in a way that it declines."""
    case = spelled(name)
    paged = case.layout == "paged"
    fakecudnn.planner(monkeypatch.setattr, (10, 0) if paged else (8, 0), 108)
    graph = graphs.build(case).graph
    graphs.plan(graph)

    assert (SM100 if paged else SM80[case.op]) in plans.engine_ids(graph)


@given(cases())
def test_scale_is_always_given_and_memory_is_bshd(case: Case) -> None:
    """No graph leaves the scale to the library; each sequence lies as batch, position, head, dimension."""
    made = graphs.build(case)
    words = next(iter(made.graph.nodes)).params
    ports = {**made.inputs, **made.outputs}
    dense = {"Q", "O", "dO", "dQ", "dK", "dV", *(() if case.layout == "paged" else ("K", "V"))}

    assert words["attn_scale"] == case.d_qk**-0.5
    for name in dense & ports.keys():
        b, h, s, d = ports[name].shape
        assert (b, ports[name].stride) == (case.b, (s * h * d, d, h * d, 1)), name
    for port in ports.values():
        assert (tuple(port.tensor.get_dim()), tuple(port.tensor.get_stride())) == (port.shape, port.stride)


@given(cases())
def test_ports_are_what_the_graph_binds(case: Case) -> None:
    """Every tensor that the graph reads or writes has a port of its dtype, and ports have names of their own."""
    made = graphs.build(case)
    types = {"io": graphs.IO_TYPES[case.dtype], "f32": cudnn.data_type.FLOAT, "i32": cudnn.data_type.INT32}
    node = next(iter(made.graph.nodes))
    ports = {**made.inputs, **made.outputs}
    own = {id(port.tensor) for port in ports.values()}
    offsets = {id(port.tensor.ragged_offset) for port in ports.values()} - {id(None)}
    read = {id(tensor) for tensor in node.inputs.values()}
    written = {id(tensor) for tensor in node.outputs.values() if not tensor.get_is_virtual()}

    assert read | written | offsets == own
    assert {id(port.tensor) for port in made.inputs.values()} >= offsets
    assert all(port.tensor.get_data_type() == types[port.dtype] for port in ports.values())
    assert len(own) == len(ports)
    assert not made.inputs.keys() & made.outputs.keys()


@pytest.mark.parametrize(
    ("op", "packed"),
    [
        ("sdpa_fwd", {"Q", "K", "V", "O", "Stats"}),
        ("sdpa_bwd", {"Q", "K", "V", "O", "dO", "Stats", "dQ", "dK", "dV"}),
    ],
)
def test_thd_packs_every_sequence(op: str, packed: set[str]) -> None:
    """Each tensor that has a place per position has offsets of its own; statistics lie token by token."""
    case = make_case(op=op, b=3, h_q=4, layout="thd", stats=int(op == "sdpa_fwd"))
    made = graphs.build(case)
    ports = {**made.inputs, **made.outputs}
    found = {name: port.tensor.ragged_offset for name, port in ports.items() if port.tensor.ragged_offset is not None}

    assert found.keys() == packed
    assert all(offset is ports[f"offsets_{name}"].tensor for name, offset in found.items())
    assert {ports[f"offsets_{name}"].shape for name in packed} == {(4, 1, 1, 1)}
    assert ports["Stats"].stride == (128 * 4, 1, 4, 1)


def test_pages_hold_all_keys() -> None:
    """A pool has so many pages as all sequences need, and a table's row as many as one needs."""
    made = graphs.build(make_case(b=3, h_q=4, h_kv=2, s_kv=300, layout="paged"))

    assert made.inputs["K"].shape == made.inputs["V"].shape == (9, 2, graphs.PAGE, 64)
    assert made.inputs["k_table"].shape == made.inputs["v_table"].shape == (3, 1, 3, 1)


UNSPELLED: list[tuple[dict[str, Any], str]] = [
    ({"dtype": "fp8"}, "dtype fp8 (its scale factors are no fields of a case)"),
    ({"dtype": "f32"}, "dtype f32 (its scale factors are no fields of a case)"),
    ({"op": "sdpa_fwd_bwd"}, "op sdpa_fwd_bwd (two graphs)"),
    ({"layout": "strided"}, "layout strided of sdpa_fwd"),
    ({"layout": "broadcast"}, "layout broadcast of sdpa_fwd"),
    ({"layout": "paged", "op": "sdpa_bwd"}, "layout paged of sdpa_bwd"),
    ({"bias": "bool"}, "bias bool"),
    ({"bias": "learned"}, "bias learned"),
    ({"dropout_pct": 10}, "dropout"),
    ({"deterministic": 1}, "a deterministic forward"),
]


@pytest.mark.parametrize(("changes", "name"), UNSPELLED)
def test_what_has_no_spelling_is_declined_by_name(changes: dict[str, Any], name: str) -> None:
    """A feature that is not built here is declined by its name, never left out in silence."""
    error = raised(make_case(**changes))

    assert (error.status, str(error)) == (Status.DECLINED, f"{name} is not built for cuDNN here")


def test_statistics_of_a_backward_are_not_left_out_in_silence() -> None:
    """A backward that asks for statistics as an output is declined: its graph has no such output."""
    assert raised(make_case(op="sdpa_bwd", stats=1)).status is Status.DECLINED


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_qk": 60}, "hidden_dim should be multiple of 8"),
        ({"op": "sdpa_bwd", "d_qk": 60, "d_v": 60}, "hidden_dim should be multiple of 8"),
        ({"mask": "br", "s_q": 256}, "Bottom right causal mask does not support max_s_q > max_s_kv"),
        ({"mask": "tl", "window": 8, "s_q": 256}, "Sliding window attention is only supported with"),
        ({"h_q": 4, "h_kv": 3}, "number of heads for key and query must be a factor"),
        ({"op": "sdpa_bwd", "s_q": 1, "s_kv": 1}, "s_q"),
    ],
)
def test_invalid_graph_is_refused_in_the_library_s_words(changes: dict[str, Any], words: str) -> None:
    """A graph that the library calls invalid is refused, and the error is what the library says."""
    error = raised(make_case(**changes))

    assert error.status is Status.REFUSED
    assert words in str(error)


def test_every_kind_of_refusal_is_caught_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library refuses by an error of its own or by ValueError; anything else is a defect, and is not caught."""
    said = iter([ValueError("stride"), cudnn.cudnnGraphNotSupportedError("dim"), RuntimeError("broken")])

    def refuse(_graph: Any) -> None:
        raise next(said)

    monkeypatch.setattr(cudnn.pygraph, "validate", refuse)

    assert [(error.status, str(error)) for error in (raised(make_case()), raised(make_case()))] == [
        (Status.REFUSED, "stride"),
        (Status.REFUSED, "dim"),
    ]
    with pytest.raises(RuntimeError, match="broken"):
        graphs.build(make_case())


@pytest.mark.parametrize("changes", [{}, {"op": "sdpa_bwd", "mask": "br"}])
def test_graph_that_nobody_serves_is_declined(monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]) -> None:
    """Without a backend plan and without a row of this GPU, planning is declined in the library's words."""
    fates = fakecudnn.Fates()
    fates.no_backend = True
    fakecudnn.planner(monkeypatch.setattr, (8, 6), 82, fates)
    graph = graphs.build(make_case(**changes)).graph
    with pytest.raises(PlanError, match="no engine") as caught:
        graphs.plan(graph)

    assert caught.value.status is Status.DECLINED
    assert f"{'sdpa_bwd' if changes else 'sdpa_fwd_prefill'}_sm80" in str(caught.value)


def test_plans_are_asked_of_heuristics_and_of_the_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The backend's plans of both modes are ranked, those of its fallback last."""
    asked: list[Any] = []
    fakecudnn.planner(monkeypatch.setattr, (8, 6), 82)
    entries = cudnn.pygraph.backend_plan_entries

    def noted(graph: Any) -> Any:
        asked.append(graph._backend_heuristics)
        return entries(graph)

    monkeypatch.setattr(cudnn.pygraph, "backend_plan_entries", noted)
    graph = graphs.build(make_case()).graph
    graphs.plan(graph)

    assert asked == [[cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]]
    assert plans.engine_ids(graph) == [5, 7, 3]


def test_defect_of_the_planner_is_no_decline(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the planner that is no decline is not taken for one."""
    fates = fakecudnn.Fates()
    fates.key_error = {128}
    fakecudnn.planner(monkeypatch.setattr, (8, 0), 108, fates)

    with pytest.raises(KeyError, match="576"):
        graphs.plan(graphs.build(make_case()).graph)


def test_forward_of_a_backward_gives_what_it_reads() -> None:
    """The forward has the backward's shape and mask, and writes O and Stats as the backward reads them."""
    case = make_case(op="sdpa_bwd", b=2, h_kv=2, d_v=32, mask="br", window=7, padding=1, sink=1, deterministic=1)
    backward, forward = graphs.build(case), graphs.build(graphs.forward_of(case))
    twins = {name: port[1:] for name, port in {**forward.inputs, **forward.outputs}.items()}

    assert forward.outputs.keys() == {"O", "Stats"}
    assert twins == {name: port[1:] for name, port in backward.inputs.items() if name != "dO"}


@given(st.integers(1, 40), st.integers(1, 20_000), st.sampled_from([{"padding": 1}, {"layout": "thd"}]))
def test_lengths_go_down_from_all_to_half(b: int, size: int, changes: dict[str, Any]) -> None:
    """Padded, the first batch is whole, none is longer than the one before it, and the last is just above half."""
    found = graphs.lengths(make_case(b=b, **changes), size)

    assert (len(found), found[0]) == (b, size)
    assert found == sorted(found, reverse=True)
    assert found[-1] == max(1, size * (b + 1) // (2 * b))


@given(st.integers(1, 40), st.integers(1, 20_000), st.sampled_from(["dense", "paged"]))
def test_unpadded_lengths_are_whole(b: int, size: int, layout: str) -> None:
    """Without padding every batch is as long as the tensor, paged too."""
    assert graphs.lengths(make_case(b=b, layout=layout), size) == [size] * b
