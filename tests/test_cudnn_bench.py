"""A case on cuDNN made ready and timed, on a fake device: its legs, regimes, graphs, memory, numbers and failures."""

import itertools
from collections import Counter
from collections.abc import Callable, Container, Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest
from benches import FakeEngine, make_request
from factories import make_case
from hypothesis import given
from hypothesis import strategies as st

from studytool import measure
from studytool.engines.base import Launch, Order, Sample, Seeds, Terms
from studytool.measure import Measured
from studytool.model import LEGS, REGIMES, Case, Status

torch = pytest.importorskip("torch")
cudnn = pytest.importorskip("cudnn")
fakecudnn = pytest.importorskip("fakecudnn")
bench_module = pytest.importorskip("studytool.engines.cudnn.bench")
tensors_module = pytest.importorskip("studytool.engines.cudnn.tensors")
plans = pytest.importorskip("studytool.engines.cudnn.plans")
pytestmark = pytest.mark.torch

FWD, BWD = 20508, 20601
REPLAY, COLD = REGIMES[2:], [regime for regime in REGIMES if regime.endswith("cold")]
OPS = {"sdpa_fwd": "sdpa_fwd_prefill_sm80", "sdpa_bwd": "sdpa_bwd_sm80"}
LEAST_FLUSH_BYTES = bench_module.LEAST_FLUSH_BYTES


class Fake(NamedTuple):
    """The engine on its fake device, and what befalls its graphs."""

    engine: Any
    device: Any
    fates: Any

    def bench(self, case: Case, lookup: bool | None = None, base: str = "backend", seed: int = 7) -> Any:
        """Return a case made ready."""
        return self.engine.prepare(case, Order(base, lookup), Seeds(seed, 3), "normal")

    def run(self, case: Case, regime: str = "eager-warm", **changes: Any) -> Measured:
        """Return what becomes of a case that is timed in four blocks of short samples."""
        wanted = {"orders": make_request().orders[:4], "base": "backend", "min_sample_ns": 1, **changes}
        return measure.run_case(self.engine, self.engine.own_clock(), make_request(case=case, regime=regime, **wanted))


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Let torch's products of small matrices not wait for other threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fake]:
    """Return what opens the engine for a row, with a small flush."""
    from studytool.engines.cudnn.engine import Cudnn

    monkeypatch.setenv(plans.FLAG, "1")
    monkeypatch.setattr(bench_module, "LEAST_FLUSH_BYTES", 1 << 12)

    def open_row(row: str, cc: tuple[int, int] = (8, 0)) -> Fake:
        device, fates = fakecudnn.install(monkeypatch.setattr, cc)
        device.l2_bytes = 1 << 12
        return Fake(Cudnn(Terms(engine="cudnn", row=row, base="backend", simulated={}), device), device, fates)

    return open_row


@pytest.fixture
def forward(opened: Callable[..., Fake]) -> Fake:
    """Return the engine with the forward row of cc 8.0."""
    return opened("sdpa_fwd_prefill_sm80")


@pytest.fixture
def backward(opened: Callable[..., Fake]) -> Fake:
    """Return the engine with the backward row of cc 8.0."""
    return opened("sdpa_bwd_sm80")


def small(**changes: Any) -> Case:
    """Return a case that plain attention runs in no time, with these fields changed."""
    return make_case(**{"h_q": 2, "h_kv": 2, "s_q": 24, "s_kv": 24, **changes})


def noted(patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., None]) -> None:
    """Let a function be noted before it is called."""
    function = getattr(owner, name)

    def noting(*values: Any, **words: Any) -> Any:
        note(*values, **words)
        return function(*values, **words)

    patch.setattr(owner, name, noting)


def engines(found: Any) -> dict[str, int | None]:
    """Return the engine id of each leg of a bench or of what was measured."""
    named = found.plans if hasattr(found, "plans") else {leg: record.plan for leg, record in found.legs.items()}
    return {leg: plan and plan.engine for leg, plan in named.items()}


# Legs


@pytest.mark.parametrize(
    ("base", "lookup", "auto", "default"),
    [
        ("backend", None, 5, 5),
        ("backend", True, FWD, 5),
        ("backend", False, 5, 5),
        ("library", None, FWD, FWD),
        ("library", True, FWD, FWD),
        ("library", False, 5, FWD),
    ],
)
def test_four_legs_are_two_plans(forward: Fake, base: str, lookup: bool | None, auto: int, default: int) -> None:
    """Backend and frost are the first of their sides; auto and default each alias one of them, an A/A pair."""
    found = forward.run(small(mask="tl"), base=base, lookup=lookup)
    by_plan = {leg: record.plan.identity for leg, record in found.legs.items() if record.plan}

    assert (found.status, found.error) == (Status.OK, "")
    assert engines(found) == {"backend": 5, "frost": FWD, "auto": auto, "default": default}
    assert len(set(by_plan.values())) == 2
    assert all(found.legs[a].inner == found.legs[b].inner for a in LEGS for b in LEGS if by_plan[a] == by_plan[b])
    assert {ns / found.legs["frost"].inner for ns in found.legs["frost"].ns} == {40_000.0}
    assert {ns / found.legs["backend"].inner for ns in found.legs["backend"].ns} == {100_000.0}


def test_record_tells_of_planning_and_building(forward: Fake) -> None:
    """Planning is noted with its time, each leg with the time of its build, and legs of one plan share it."""
    bench = forward.bench(small(), lookup=True)
    found = forward.run(small(), lookup=True)

    assert int(bench.notes["plan_ns"]) > 0
    assert bench.build_ns["auto"] == bench.build_ns["frost"] > 0
    assert bench.build_ns["default"] == bench.build_ns["backend"] > 0
    assert found.checks.keys() >= {"plan_ns", "legs_o_ppb", "float64_o_ppb", "warmup_rounds"}
    assert not any(name.startswith("declined") for name in found.checks)


def test_blocks_and_host_times_come_from_the_device(forward: Fake) -> None:
    """Host times are kept apart, every sample says whether its queue ran dry, every block what the board said."""
    found = forward.run(small())

    assert set(found.legs["backend"].host_ns) == {fakecudnn.HOST_NS * found.legs["backend"].inner}
    assert {leg: record.counters for leg, record in found.legs.items()} == {leg: {"gap": (0,) * 4} for leg in LEGS}
    assert found.blocks == {name: (value,) * 4 for name, value in forward.device.board.readings.items()}
    assert found.clock_mhz == (fakecudnn.MHZ,) * 2


# Regimes


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("leg", "engine"), [("backend", 5), ("frost", FWD)])
def test_regime_launches_what_it_says(forward: Fake, leg: str, engine: int, regime: str) -> None:
    """Eagerly a launch executes the leg's plan; replayed it executes nothing, and replays one graph of one launch."""
    bench = forward.bench(small())
    ran: list[int] = []
    with bench.armed(leg, regime) as launch:
        forward.device.log.clear()
        forward.fates.after = lambda engine, _named: ran.append(engine)
        launch(3)

    assert forward.device.log == [f"launch {engine}" if regime.startswith("eager") else "replay 1"] * 3
    assert ran == [engine] * 3


@pytest.mark.parametrize(("inner", "graphs"), [(1, [1]), (15, [1] * 15), (16, [16]), (35, [16, 16, 1, 1, 1])])
def test_replays_are_unrolled(forward: Fake, inner: int, graphs: list[int]) -> None:
    """So many launches are replayed as were asked for, sixteen in one graph as far as they go."""
    bench = forward.bench(small(s_q=2, s_kv=2))
    ran: list[int] = []
    with bench.armed("frost", "replay-warm") as launch:
        forward.device.log.clear()
        forward.fates.after = lambda engine, _named: ran.append(engine)
        launch(inner)

    assert forward.device.log == [f"replay {nodes}" for nodes in graphs]
    assert ran == [FWD] * inner


@pytest.mark.parametrize("regime", REGIMES)
def test_two_sets_of_tensors_take_turns_when_cold(forward: Fake, regime: str) -> None:
    """In a cold regime no launch has the tensors of the one before, whichever leg that was; warm there is one set."""
    bench = forward.bench(small(), lookup=True)
    used: list[int] = []
    with bench.armed("backend", regime):
        forward.fates.after = lambda _engine, named: used.append(named["K"].data_ptr())
    for leg in ("backend", "frost", "frost", "auto", "default", "backend"):
        with bench.armed(leg, regime) as launch:
            launch(1)

    assert len(set(used)) == (2 if regime in COLD else 1)
    assert not any(a == b for a, b in itertools.pairwise(used)) or regime not in COLD


@pytest.mark.parametrize("regime", REGIMES)
def test_sets_hold_the_same_values(backward: Fake, regime: str) -> None:
    """What the legs compute does not depend on whose turn it is: all sets are drawn from one seed."""
    bench = backward.bench(small(op="sdpa_bwd"))
    found = [bench.outputs(leg, regime) for leg in ("backend", "backend", "frost")]

    assert all(np.array_equal(found[0][name], other[name]) for other in found for name in ("dQ", "dK", "dV"))
    assert len(bench._sets) == (2 if regime in COLD else 1)


@pytest.mark.parametrize("regime", REGIMES)
def test_flush_is_there_when_cold(forward: Fake, monkeypatch: pytest.MonkeyPatch, regime: str) -> None:
    """A cold regime flushes before every launch of a sample; warm, nothing is flushed and no buffer is held."""
    events: list[str] = []
    noted(monkeypatch, bench_module.CudnnBench, "flush", lambda *_, **__: events.append("flush"))
    forward.fates.after = lambda _engine, _named: events.append("launch")
    found = forward.run(small(), regime)
    timed = events[events.index("flush") :] if "flush" in events else []

    assert found.status is Status.OK
    assert ("flush" in events, "flush_probe_ppm" in found.checks) == (regime in COLD, regime in COLD)
    assert all(timed[place - 1] == "flush" for place, event in enumerate(timed) if event == "launch")


@pytest.mark.parametrize(("l2_bytes", "least", "size"), [(1 << 20, 1 << 12, 2 << 20), (1 << 10, 1 << 22, 1 << 22)])
@pytest.mark.parametrize("regime", REGIMES)
def test_flush_writes_enough(
    forward: Fake, monkeypatch: pytest.MonkeyPatch, regime: str, l2_bytes: int, least: int, size: int
) -> None:
    """The buffer is twice the L2 and at least 256 MiB, every byte is written; warm it is empty."""
    assert fakecudnn.Device.l2_bytes == 1 << 20
    monkeypatch.setattr(bench_module, "LEAST_FLUSH_BYTES", least)
    forward.device.l2_bytes = l2_bytes
    bench = forward.bench(small())
    with bench.armed("backend", regime):
        before = bench._flush_buffer.clone()
    bench.flush()

    assert bench._flush_buffer.numel() * bench._flush_buffer.element_size() == (size if regime in COLD else 0)
    assert bool((bench._flush_buffer != before).all())


def test_method_s_sizes() -> None:
    """A flush is of 256 MiB at least, and sixteen launches are unrolled, as the method says."""
    assert (LEAST_FLUSH_BYTES, bench_module.UNROLLED) == (256 << 20, 16)


class _Noted:
    """A clock that notes what it is asked to time."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def sample(self, launch: Launch, inner: int) -> Sample:
        """Return how many events there were until the launch was done."""
        self.events.append("sample")
        launch(inner)
        return Sample(len(self.events), None, {})


def test_flush_is_probed_by_a_read_of_half_the_l2(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read was read before, is flushed once, and is timed after the flush and again at once."""
    bench, events, read = forward.bench(small()), list[str](), set[int]()
    noted(monkeypatch, torch.Tensor, "sum", lambda one: read.add(one.nbytes))
    noted(monkeypatch, torch.Tensor, "sum", lambda _one: events.append("read"))
    monkeypatch.setattr(bench, "flush", lambda: events.append("flush"))
    found = bench.flush_probe_ns(_Noted(events))

    assert events == ["read", "flush", "sample", "read", "sample", "read"]
    assert (found, read) == ((4, 6), {forward.device.l2_bytes // 2})


# Captured graphs


def _lose(fake: Fake, monkeypatch: pytest.MonkeyPatch, captures: Container[int], launches: int) -> None:
    """Let captures, counted from 1, lose launches of a FROST plan to another stream."""
    count, capturing = [0], fake.device.capture

    def losing(launch: Callable[[], None]) -> Any:
        count[0] += 1
        fake.device.lost = launches if count[0] in captures else 0
        return capturing(launch)

    monkeypatch.setattr(fake.device, "capture", losing)


@pytest.mark.parametrize("regime", REPLAY)
@pytest.mark.parametrize(
    ("captures", "lost", "nodes"),
    [
        (range(1, 99), 16, "0.0"),
        ({1}, 1, "0.0, 1.0"),
        ({2}, 16, "0.0, 1.0"),
        ({2}, 1, "0.9375, 1.0"),
        ({2}, 15, "0.0625, 1.0"),
    ],
    ids=["empty", "single empty", "unrolled empty", "partial", "nearly empty"],
)
def test_graph_that_captured_too_little_is_wrong(
    forward: Fake, monkeypatch: pytest.MonkeyPatch, regime: str, captures: Container[int], lost: int, nodes: str
) -> None:
    """A launch that went to another stream is not in the graph: the case is wrong, and says whose graph it is."""
    _lose(forward, monkeypatch, captures, lost)
    found = forward.run(small(), regime)
    name, _, why = found.error.partition(": ")

    assert (found.status, found.order) == (Status.WRONG_RESULT, ())
    assert name == "sdpa_fwd_prefill_sm80[PACK_GQA=0, SCHED_POLICY=0, SPLIT_KV=1]"
    assert why == f"captured launches hold {nodes} nodes; expected as many each"


def test_graph_of_the_second_set_is_checked_as_well(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch that is missing from the graph of the other set of tensors alone is found."""
    _lose(forward, monkeypatch, {4}, 1)

    assert forward.run(small(), "replay-cold").status is Status.WRONG_RESULT


@pytest.mark.parametrize("regime", REPLAY)
def test_nodes_are_noted(forward: Fake, regime: str) -> None:
    """The record says how many nodes one launch of each plan holds, which eagerly nobody knows."""
    checks = forward.run(small(), regime).checks

    assert {name: value for name, value in checks.items() if name.startswith("nodes")} == {
        "nodes_5": 1,
        f"nodes_{FWD}": 1,
    }
    assert not any(name.startswith("nodes") for name in forward.run(small()).checks)


@pytest.mark.parametrize("regime", REPLAY)
def test_result_of_the_capture_s_time_is_wrong(forward: Fake, monkeypatch: pytest.MonkeyPatch, regime: str) -> None:
    """A graph that only copies what was computed when it was captured has all its nodes, and old inputs' numbers."""
    kernel, written = forward.device.kernel, dict[str, Any]()
    forward.fates.after = lambda _engine, named: written.update(named)

    def half_captured(engine: int, effect: Callable[[], None]) -> None:
        if forward.device.capturing is not None and engine == FWD:
            effect()
            out, frozen = written["O"], written["O"].clone()
            kernel(engine, lambda: out.copy_(frozen))
        else:
            kernel(engine, effect)

    monkeypatch.setattr(forward.device, "kernel", half_captured)
    found = forward.run(small(), regime)

    assert found.status is Status.WRONG_RESULT
    assert found.error.startswith("legs_o_ppb is ")


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("engine", [5, FWD])
def test_output_that_is_not_written_is_wrong(forward: Fake, engine: int, regime: str) -> None:
    """A plan that leaves its outputs as they were leaves NaN there, in every regime, whichever side it is."""
    forward.fates.stale = {engine}
    found = forward.run(small(), regime)

    assert (found.status, found.order) == (Status.WRONG_RESULT, ())
    assert found.error == f"legs_o_ppb is {measure.PPB**2}; expected at most 12000000"


@pytest.mark.parametrize("regime", REGIMES)
def test_outputs_of_all_sets_are_poisoned(forward: Fake, regime: str) -> None:
    """A plan that stops writing is found on its next launch, whichever set of tensors that launch has."""
    bench = forward.bench(small())
    before = [bench.outputs("frost", regime)["O"] for _ in range(2)]
    forward.fates.stale = {FWD}
    after = [bench.outputs("frost", regime)["O"] for _ in range(2)]

    assert np.isfinite(before).all()
    assert np.isnan(after).all()


# Memory


@pytest.mark.parametrize("regime", REGIMES)
def test_legs_share_one_workspace_of_the_largest(forward: Fake, regime: str) -> None:
    """All launches of all legs have one buffer, as large as the leg with the largest needs it."""
    found = forward.run(small(mask="tl"), regime)
    held = forward.device.workspaces

    assert engines(found)["backend"] == 5
    assert ({w.data_ptr() for w in held}, {w.numel() for w in held}) == ({held[0].data_ptr()}, {16 * (3 + 1)})


def test_launches_go_to_the_stream_of_the_device(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """One handle is made, it has the device's stream, and graphs and launches are given it."""
    handles: list[Any] = []
    noted(monkeypatch, bench_module.graphs, "build", lambda _case, **words: handles.append(words["handle"]))
    found = forward.run(small())
    forward.engine._handle.stream = forward.device.stream + 1

    assert (found.status, handles) == (Status.OK, [forward.engine._handle])
    with pytest.raises(AssertionError):  # the fake refuses a launch whose handle has another stream
        forward.run(small())


def test_memory_of_the_case_before_is_released_first(forward: Fake) -> None:
    """What the case before held is given back before anything is launched, once, and not in routing."""
    forward.run(small())

    assert (forward.device.log[0], forward.device.log.count("release")) == ("release", 1)
    forward.device.log.clear()
    assert (forward.run(small(), orders=()).status, forward.device.log) == (Status.OK, [])


@pytest.mark.parametrize(("distribution", "spread", "most"), [("normal", 1.0, 6.0), ("uniform", 3**-0.5, 1.0)])
def test_inputs_are_drawn_from_the_seed(forward: Fake, distribution: str, spread: float, most: float) -> None:
    """One seed gives the same inputs each time, another one others; they are spread as asked and never zeros."""
    drawn = []
    for seed in (7, 7, 8):
        bench = forward.engine.prepare(small(), Order("backend", None), Seeds(seed, 3), distribution)
        with bench.armed("frost", "eager-warm"):
            drawn.append({name: tensor.double() for name, tensor in bench._sets[0].inputs.items()})
    first, again, other = drawn

    assert first.keys() == {"Q", "K", "V"}
    for name, values in first.items():
        assert torch.equal(values, again[name])
        assert not torch.equal(values, other[name])
        assert float(values.std()) == pytest.approx(spread, rel=0.1)
        assert float(values.abs().max()) <= most
    assert not torch.equal(first["K"], first["V"])


# Numbers


NUMBERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "tl": {"mask": "tl"},
    "br window": {"mask": "br", "window": 5, "s_q": 12},
    "gqa": {"h_q": 4},
    "mqa window": {"h_q": 4, "h_kv": 1, "mask": "tl", "window": 3},
    "d_qk and d_v": {"d_qk": 64, "d_v": 32},
    "two batches, f16": {"b": 2, "dtype": "f16"},
}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", NUMBERS)
def test_legs_agree_with_float64(opened: Callable[..., Fake], name: str, op: str) -> None:
    """O, or the gradients, of all legs agree with a reference in float64."""
    fake = opened(OPS[op])
    found = fake.run(small(op=op, **NUMBERS[name]), lookup=True)
    kind = "grad" if op == "sdpa_bwd" else "o"

    assert (found.status, found.error) == (Status.OK, "")
    assert {check for check in found.checks if check.endswith("ppb")} == {f"legs_{kind}_ppb", f"float64_{kind}_ppb"}
    assert int(found.checks[f"float64_{kind}_ppb"]) > 0


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("name", NUMBERS)
def test_reference_is_what_torch_computes(opened: Callable[..., Fake], name: str, op: str) -> None:
    """The reference is attention as torch has it, and not only as the fake device has it."""
    fake = opened(OPS[op])
    case = small(op=op, **NUMBERS[name])
    bench = fake.bench(case)
    bench.outputs("backend", "eager-warm")
    inputs = {key: tensor.double() for key, tensor in bench._sets[0].inputs.items()}
    q, k, v = (inputs[key].requires_grad_() for key in ("Q", "K", "V"))
    places = torch.arange(case.s_q)[:, None] + (case.s_kv - case.s_q if case.mask == "br" else 0)
    distance = places - torch.arange(case.s_kv)[None, :]
    seen = (distance >= 0) & (distance < (case.window or case.s_kv)) if case.mask != "none" else None
    out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, enable_gqa=True)
    expected = {"O": out}
    if op == "sdpa_bwd":
        expected = dict(zip(("dQ", "dK", "dV"), torch.autograd.grad(out, (q, k, v), inputs["dO"]), strict=True))
    reference = bench.reference()

    assert reference.keys() == expected.keys()
    for key, tensor in expected.items():
        assert np.allclose(reference[key], tensor.detach().reshape(-1).numpy(), rtol=1e-9, atol=1e-12)


def test_sink_takes_its_share(forward: Fake) -> None:
    """With a sink the reference has one more score per head, and the legs agree with it."""
    bench = forward.bench(small(sink=1))
    bench.outputs("backend", "eager-warm")
    inputs = {key: tensor.double() for key, tensor in bench._sets[0].inputs.items()}
    scores = inputs["Q"] @ inputs["K"].transpose(-1, -2) * 64**-0.5
    share = scores.exp() / (scores.exp().sum(-1, keepdim=True) + inputs["Sink"].exp())

    assert np.allclose(bench.reference()["O"], (share @ inputs["V"]).reshape(-1).numpy())
    assert forward.run(small(sink=1)).status is Status.OK


def test_legs_that_are_wrong_alike_are_found(forward: Fake) -> None:
    """Where all legs compute the same wrong numbers, the reference alone says so."""
    forward.fates.after = lambda _engine, named: named["O"].mul_(1.03)
    found = forward.run(small())

    assert found.status is Status.WRONG_RESULT
    assert found.error.startswith("float64_o_ppb is ")


@pytest.mark.parametrize("output", ["dQ", "dK", "dV", "dSink"])
def test_every_gradient_is_compared(backward: Fake, output: str) -> None:
    """One gradient that one side has wrong is enough, also the sink's."""
    backward.fates.after = lambda engine, named: named[output].mul_(1.1) if engine == BWD and output in named else None
    found = backward.run(small(op="sdpa_bwd", sink=int(output == "dSink")))

    assert found.status is Status.WRONG_RESULT
    assert found.error.startswith("legs_grad_ppb is ")


@pytest.mark.parametrize(
    ("op", "changes"),
    [
        ("sdpa_fwd", {"padding": 1}),
        ("sdpa_bwd", {"padding": 1}),
        ("sdpa_bwd", {"sink": 1}),
        ("sdpa_fwd", {"s_q": 25}),
    ],
)
def test_without_a_plain_form_legs_are_compared_with_each_other(
    opened: Callable[..., Fake], monkeypatch: pytest.MonkeyPatch, op: str, changes: dict[str, Any]
) -> None:
    """Padding, the sink's gradient and large cases have no reference; the legs are still compared."""
    monkeypatch.setattr(bench_module, "_REFERENCE_LIMIT", 2 * 24 * 24)
    fake = opened(OPS[op])
    whole, found = fake.run(small(op=op)), fake.run(small(op=op, **changes))

    assert {one.status for one in (whole, found)} == {Status.OK}
    assert [sum(name.startswith("float64") for name in one.checks) for one in (whole, found)] == [1, 0]
    assert sum(name.startswith("legs") for name in found.checks) == 1


# Padding


def _spoil(name: str, batch: int, row: int) -> Callable[[int, dict[str, Any]], None]:
    """Return what writes NaN into a row of an output of FROST."""

    def after(engine: int, named: dict[str, Any]) -> None:
        if engine in {FWD, BWD} and name in named:
            named[name][batch, :, row] = float("nan")

    return after


@pytest.mark.parametrize(
    ("op", "name", "length"),
    [
        ("sdpa_fwd", "O", 15),
        ("sdpa_fwd", "Stats", 15),
        ("sdpa_bwd", "dQ", 15),
        ("sdpa_bwd", "dK", 24),
        ("sdpa_bwd", "dV", 24),
    ],
)
def test_padded_rows_are_not_compared(opened: Callable[..., Fake], op: str, name: str, length: int) -> None:
    """What a plan leaves behind the end of a sequence is its own affair; the last visible row is not."""
    fake = opened(OPS[op])
    case = small(op=op, b=2, s_q=20, s_kv=32, padding=1, stats=int(op == "sdpa_fwd"))
    said = []
    for batch, row in ((1, length), (1, length - 1), (0, 15)):
        fake.fates.after = _spoil(name, batch, row)
        said.append(fake.run(case).status)

    assert said == [Status.OK, Status.WRONG_RESULT, Status.WRONG_RESULT]


def test_lengths_are_on_the_device(forward: Fake) -> None:
    """The lengths that a graph reads go down from the whole sequence, for queries and for keys."""
    bench = forward.bench(small(b=4, s_q=8, s_kv=24, padding=1))
    bench.outputs("backend", "eager-warm")
    inputs = bench._sets[0].inputs

    assert [inputs[f"seq_len_{side}"].reshape(-1).tolist() for side in ("q", "kv")] == [[8, 7, 6, 5], [24, 21, 18, 15]]


def test_statistics_of_rows_that_see_nothing_may_be_infinite(forward: Fake) -> None:
    """A row that sees no key has statistics of minus infinity, which is a number as good as another; NaN is not."""
    said = []
    for value, engines_hit in ((float("-inf"), {5, FWD}), (float("nan"), {FWD}), (float("inf"), {FWD})):

        def after(engine: int, named: dict[str, Any], value: float = value, hit: set[int] = engines_hit) -> None:
            if engine in hit:
                named["Stats"][:, :, 3] = value

        forward.fates.after = after
        said.append(forward.run(small(stats=1)).status)

    assert said == [Status.OK, Status.WRONG_RESULT, Status.WRONG_RESULT]


# What a backward reads


@pytest.mark.parametrize("regime", REGIMES)
def test_backward_reads_what_a_forward_wrote(backward: Fake, regime: str) -> None:
    """O and Stats of every set are the library's own forward of that very Q, K and V, also after a capture."""
    bench = backward.bench(small(op="sdpa_bwd", mask="tl"))
    with bench.armed("frost", regime):
        sets = bench._sets
    forward = backward.bench(small(mask="tl"))
    forward._sets = sets

    for tensors in sets:
        assert np.allclose(tensors_module.compared(tensors.inputs["O"]), forward.reference()["O"], rtol=2e-2, atol=2e-2)
        assert bool((tensors.inputs["Stats"] == 1.0).all())  # what the fake writes


def test_backend_s_forward_is_taken_before_frost_s(backward: Fake) -> None:
    """The forward is the backend's first plan that builds, one of FROST where none of the backend's does."""
    ran = []
    for declining in ({}, {5: "no"}, dict.fromkeys((5, 7, 3), "no")):
        bench = backward.bench(small(op="sdpa_bwd"))
        backward.device.log.clear()
        backward.fates.declines = declining
        with bench.armed("frost", "eager-warm"):
            ran.append([event for event in backward.device.log if event.startswith("launch")])
        backward.fates.declines = {}

    assert ran == [["launch 5"], ["launch 7"], [f"launch {FWD}"]]


def test_what_a_forward_leaves_out_is_zero(backward: Fake) -> None:
    """Rows that padding hides are written by no forward; a backward finds zeros there, not what was in memory."""
    bench = backward.bench(small(op="sdpa_bwd", b=2, padding=1))
    with bench.armed("frost", "eager-warm"):
        inputs = bench._sets[0].inputs
    for name in ("O", "Stats"):
        inputs[name].fill_(float("nan"))
    backward.fates.stale = {5}
    bench._fill(8)

    assert not any(bool(inputs[name].any()) for name in ("O", "Stats"))


def test_backward_without_a_forward_is_declined(backward: Fake) -> None:
    """Where no forward gives O and Stats the case is declined, with the reasons of all that declined."""
    case = small(op="sdpa_bwd")
    bench = backward.bench(case)
    backward.fates.declines = dict.fromkeys((5, 7, 3, FWD), "no kernel")
    found = measure.run_case(FakeEngine(bench), backward.engine.own_clock(), make_request(case=case))
    reasons = "; ".join(["cudnnGraphNotSupportedError: no kernel"] * 4)

    assert (found.status, found.order) == (Status.DECLINED, ())
    assert found.error == f"no forward gives O and Stats: {reasons}"


# Cases that are not timed


@pytest.mark.parametrize(
    ("changes", "row", "auto"),
    [
        ({"layout": "thd"}, "sdpa_fwd_prefill_sm80", FWD),
        ({"layout": "thd", "op": "sdpa_bwd"}, "sdpa_bwd_sm80", BWD),
        ({"layout": "paged"}, "sdpa_fwd_prefill_sm80", 5),
    ],
)
def test_packed_and_paged_cases_are_routed_not_timed(
    opened: Callable[..., Fake], changes: dict[str, Any], row: str, auto: int
) -> None:
    """What has no tensors here is planned all the same: routing is fine, timing is declined by name."""
    fake = opened(row)
    routed, timed = fake.run(small(**changes), lookup=True, orders=()), fake.run(small(**changes), lookup=True)

    assert (routed.status, routed.error, engines(routed)["auto"], engines(routed)["default"]) == (
        Status.OK,
        "",
        auto,
        5,
    )
    assert (timed.status, timed.error) == (
        (Status.DECLINED, f"layout {changes['layout']} is planned here, not timed")
        if auto != 5
        else (Status.NO_FROST, "leg frost has no plan")
    )
    assert not any(event.startswith("launch") for event in fake.device.log)


def test_refused_and_unspelled_cases_keep_their_words(forward: Fake) -> None:
    """An invalid graph and a feature without a spelling end with the status and the words of `graphs`."""
    refused, declined = forward.run(small(d_qk=60)), forward.run(small(dropout_pct=10))

    assert (refused.status, refused.error) == (Status.REFUSED, "hidden_dim should be multiple of 8")
    assert (declined.status, declined.error) == (Status.DECLINED, "dropout is not built for cuDNN here")


# Plans that are missing


def test_side_without_a_plan_is_named_with_its_reasons(forward: Fake) -> None:
    """A side that the library does not have, and one whose plans all decline, have their status; reasons are told."""
    said = "cudnnGraphNotSupportedError: no kernel"
    none = forward.run(small(d_qk=264, d_v=264))
    forward.fates.declines = {FWD: "no kernel"}
    declined = forward.run(small())
    forward.fates.declines = dict.fromkeys((5, 7, 3), "no kernel")
    closed = forward.run(small())
    forward.fates.declines, forward.fates.no_backend = {}, True
    absent = forward.run(small())
    name = "sdpa_fwd_prefill_sm80[PACK_GQA=0, SCHED_POLICY=0, SPLIT_KV=1]"

    assert (none.status, none.error) == (Status.NO_FROST, "leg frost has no plan")
    assert (declined.status, declined.error) == (Status.NO_FROST, f"leg frost has no plan: {name}: {said}")
    assert (closed.status, closed.error) == (
        Status.NO_BACKEND,
        f"leg backend has no plan: eng5: {said}; eng7: {said}; eng3: {said}",
    )
    assert (absent.status, absent.error) == (Status.NO_BACKEND, "leg backend has no plan")
    assert engines(declined) == {"backend": 5, "frost": None, "auto": 5, "default": 5}


def test_reasons_of_one_side_are_not_told_of_the_other(forward: Fake) -> None:
    """A side that the library does not have is not said to be missing for what a plan of the other side declined."""
    forward.fates.declines = {5: "needs more memory"}

    assert forward.run(small(d_qk=264, d_v=264)).error == "leg frost has no plan"


def test_plan_that_declines_falls_to_the_next(forward: Fake) -> None:
    """A plan that does not build is passed over by every leg, is built once, and stands in the record with why."""
    forward.fates.declines = {5: "needs more memory"}
    found = forward.run(small(), lookup=True)

    assert engines(found) == {"backend": 7, "frost": FWD, "auto": FWD, "default": 7}
    assert found.status is Status.OK
    assert found.checks["declined_backend"] == "eng5: cudnnGraphNotSupportedError: needs more memory"


def test_row_s_next_plan_is_taken_with_its_own_knobs(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the row's first plan declines its next one is the frost leg, told apart by its knobs."""
    build = cudnn.pygraph.build_plan_at_index
    asked: Counter[int] = Counter()

    def first_declines(graph: Any, index: int) -> None:
        asked[index] += 1
        if index == 0:
            raise NotImplementedError("no such schedule")
        build(graph, index)

    monkeypatch.setattr(cudnn.pygraph, "build_plan_at_index", first_declines)
    bench = forward.bench(small(mask="tl"), lookup=True)

    assert bench.plans["frost"].knobs["SCHED_POLICY"] == 1
    assert bench.plans["auto"] == bench.plans["frost"] == bench.proven_plan("auto")
    assert bench.notes["declined_frost"] == (
        "sdpa_fwd_prefill_sm80[PACK_GQA=0, SCHED_POLICY=2, SPLIT_KV=1]: NotImplementedError: no such schedule"
    )
    assert set(asked.values()) == {1}


def test_leg_without_a_plan_cannot_be_launched(forward: Fake) -> None:
    """A leg that has no plan is proven to have none, and is an error for whoever would launch it."""
    bench = forward.bench(small(d_qk=264, d_v=264))

    assert bench.proven_plan("frost") is None
    with pytest.raises(ValueError, match=r"\Aleg frost has no plan\Z"):
        bench.current_plan("frost")


def test_defect_of_the_library_is_no_status(forward: Fake) -> None:
    """An error of the planner that is no decline leaves `run_case`: the worker ends, and its parent says error."""
    forward.fates.key_error = {24}

    with pytest.raises(KeyError, match="576"):
        forward.run(small())


def test_graph_whose_plans_all_have_gone_is_declined(forward: Fake) -> None:
    """A graph that neither side serves is declined in the library's words."""
    forward.fates.no_backend = True
    found = forward.run(small(d_qk=264, d_v=264))

    assert found.status is Status.DECLINED
    assert "no engine" in found.error


# What is compared


@given(st.integers(1, 900), st.integers(1, 300))
def test_large_tensor_is_sampled_evenly(size: int, most: int) -> None:
    """At most so many values are compared, in float64 and at the smallest odd distance; small tensors are whole."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors_module, "MOST_COMPARED", most)
        found = tensors_module.compared(torch.arange(size))
    step = next(step for step in itertools.count(1, 2) if len(range(0, size, step)) <= most)

    assert (found.dtype, found.tolist()) == (np.float64, [*range(0, size, step)])


@pytest.mark.parametrize("columns", [2, 8, 64])
def test_sample_falls_on_every_column(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Of a tensor that is sampled every column of a head is seen, whatever power of two it has."""
    monkeypatch.setattr(tensors_module, "MOST_COMPARED", 1 << 10)
    found = tensors_module.compared(torch.arange(columns).repeat(1 << 12))

    assert set(found) == set(range(columns))


@given(st.integers(1, 400), st.data(), st.sampled_from([float("nan"), float("inf"), float("-inf")]))
def test_value_that_is_not_finite_is_seen_anywhere(size: int, data: st.DataObject, value: float) -> None:
    """No sample misses a value that is not finite: it is told by the first place."""
    tensor = torch.ones(size)
    tensor[data.draw(st.integers(0, size - 1))] = value
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors_module, "MOST_COMPARED", 20)
        found = tensors_module.compared(tensor)

    assert np.isnan(found[0])
    assert measure.relative_error_ppb({"O": found}, {"O": np.ones(len(found))}, "O") == measure.PPB**2
