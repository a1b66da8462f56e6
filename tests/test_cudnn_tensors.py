"""What a backward on cuDNN reads, on a fake device, and which values of an output are compared."""

import itertools
import math

import gpus
import numpy as np
import pytest
from benches import FakeEngine, make_request
from gpus import FWD, Fake, small
from hypothesis import given
from hypothesis import strategies as st

from studytool import measure
from studytool.model import REGIMES, Status

torch = pytest.importorskip("torch")
tensors_module = pytest.importorskip("studytool.engines.cudnn.tensors")
pytestmark = pytest.mark.torch

opened, backward = gpus.opened, gpus.backward


# What a backward reads


@pytest.mark.parametrize("regime", REGIMES)
def test_backward_reads_what_a_forward_wrote(backward: Fake, regime: str) -> None:
    """O and Stats of every set are the library's own forward of that very Q, K and V, also after a capture."""
    bench = backward.bench(small(op="sdpa_bwd", mask="tl"))
    with bench.armed("frost", regime):
        sets = bench._sets
    forward = backward.bench(small(mask="tl"))

    for tensors in sets:
        forward._sets = [tensors]
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


# What is compared


@given(st.integers(1, 60), st.integers(1, 40), st.integers(1, 300))
def test_large_tensor_is_sampled_evenly(rows: int, columns: int, most: int) -> None:
    """At most so many values, in float64, at the smallest distance that no column divides; small tensors are whole."""
    size = rows * columns
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tensors_module, "MOST_COMPARED", most)
        found = tensors_module.compared(torch.arange(size).reshape(rows, columns))
    distances = (step for step in itertools.count(1) if math.gcd(step, columns) == 1)
    step = next(step for step in distances if len(range(0, size, step)) <= most)

    assert (found.dtype, found.tolist()) == (np.float64, [*range(0, size, step)])


@pytest.mark.parametrize(
    ("columns", "least"),
    [(2, 2), (8, 4), (64, 6), (408, 51), (344, 43), (432, 27), (448, 7), (288, 9), (192, 3), (320, 5)],
)
def test_sample_falls_on_every_column(monkeypatch: pytest.MonkeyPatch, columns: int, least: int) -> None:
    """Of a tensor that is sampled every column of a head is seen, also where the least distance divides it."""
    rows = 1 << 12
    monkeypatch.setattr(tensors_module, "MOST_COMPARED", rows * columns // least)
    found = tensors_module.compared(torch.arange(columns).repeat(1, 2, rows // 2, 1))

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
