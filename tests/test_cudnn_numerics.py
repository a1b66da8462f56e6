"""What the legs of a case on cuDNN compute, on a fake device, against each other and against float64."""

from collections.abc import Callable
from typing import Any

import gpus
import numpy as np
import pytest
from gpus import BWD, COLD, FWD, OPS, Fake, small

from studytool import measure
from studytool.model import REGIMES, Status

torch = pytest.importorskip("torch")
bench_module = pytest.importorskip("studytool.engines.cudnn.bench")
pytestmark = pytest.mark.torch

opened, forward, backward = gpus.opened, gpus.forward, gpus.backward


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
    monkeypatch.setitem(bench_module.MOST_REFERENCE_SCORES, "cpu", 2 * 24 * 24)
    fake = opened(OPS[op])
    whole, found = fake.run(small(op=op)), fake.run(small(op=op, **changes))

    assert {one.status for one in (whole, found)} == {Status.OK}
    assert [sum(name.startswith("float64") for name in one.checks) for one in (whole, found)] == [1, 0]
    assert sum(name.startswith("legs") for name in found.checks) == 1


def test_reference_has_a_limit_of_each_device(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GPU, which computes the reference itself, has one for larger cases than a CPU."""
    assert bench_module.MOST_REFERENCE_SCORES == {"cpu": 1 << 22, "cuda": 1 << 27}
    bench, found = forward.bench(small()), []
    bench.outputs("backend", "eager-warm")
    for limits in ({"cpu": 2 * 24 * 24, "cuda": 0}, {"cpu": 0, "cuda": 2 * 24 * 24}):
        monkeypatch.setattr(bench_module, "MOST_REFERENCE_SCORES", limits)
        for name in limits:
            forward.device.name = name
            found.append(bench.reference() is not None)

    assert found == [True, False, False, True]


# Several sets of tensors


@pytest.mark.parametrize("regime", REGIMES)
def test_outputs_of_all_sets_are_joined(backward: Fake, regime: str) -> None:
    """The outputs are those of a launch on every set, one set after the other, and the reference is repeated alike."""
    bench, sets, sizes = backward.bench(small(op="sdpa_bwd")), 2 if regime in COLD else 1, set()
    for found in (bench.outputs("frost", regime), bench.outputs("backend", regime), bench.reference()):
        assert found.keys() == {"dQ", "dK", "dV"}
        for name, values in found.items():
            sizes.add(values.size)
            own = [tensors.results()[name] for tensors in bench._sets]
            assert np.allclose(values, np.concatenate(own), rtol=2e-2, atol=2e-2)
            assert all(np.array_equal(part, values[: 2 * 24 * 64]) for part in np.split(values, sets))

    assert (len(bench._sets), sizes) == (sets, {sets * 2 * 24 * 64})


@pytest.mark.parametrize("regime", REGIMES)
def test_outputs_come_from_one_launch_on_each_set(forward: Fake, regime: str) -> None:
    """Every set is launched on once, or sixteen times by a graph that is unrolled, and the next turn is the first's."""
    bench, used = forward.bench(small()), list[int]()
    with bench.armed("frost", regime):
        forward.fates.after = lambda _engine, named: used.append(named["O"].data_ptr())
    bench.outputs("frost", regime)
    launches = bench.granule(regime)

    assert sorted(used) == sorted([tensors.outputs["O"].data_ptr() for tensors in bench._sets] * launches)


@pytest.mark.parametrize("regime", COLD)
@pytest.mark.parametrize("engine", [5, FWD])
@pytest.mark.parametrize("place", [0, 1])
def test_set_that_is_not_written_is_wrong(forward: Fake, place: int, engine: int, regime: str) -> None:
    """A launch that writes nothing on one set of tensors alone is found, whichever set that is."""
    forward.fates.stale, forward.fates.stale_sets = {engine}, {place}
    found = forward.run(small(), regime)

    assert (found.status, found.order) == (Status.WRONG_RESULT, ())
    assert found.error == f"legs_o_ppb is {measure.PPB**2}; expected at most 12000000"


# Statistics


@pytest.mark.parametrize(("factor", "status"), [(1.0003, Status.OK), (1.0005, Status.WRONG_RESULT)])
def test_statistics_have_a_tolerance_of_their_own(forward: Fake, factor: float, status: Status) -> None:
    """Statistics are float32: an error that a gradient of bf16 might have is wrong in them."""
    forward.fates.after = lambda engine, named: named["Stats"].mul_(factor) if engine == FWD else None
    found = forward.run(small(stats=1))

    assert found.status is status
    assert found.checks["legs_stats_ppb"] == pytest.approx((factor - 1) * measure.PPB, rel=0.01)


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
