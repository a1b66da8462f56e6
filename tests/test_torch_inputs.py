"""What torch's engines are given, and the float64 reference that they are held against."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from benches import FakeClock, torch_bench, torch_case
from factories import make_case

from studytool.engines.base import Launch, Sample
from studytool.model import REGIMES

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize("distribution", ["normal", "uniform"])
def test_inputs_depend_on_the_seed(distribution: str) -> None:
    """Another seed gives other inputs and other gradients to start from; none is zero; the same seed gives the same."""
    one, same, other = (
        [*bench._qkv, bench._grad_output]
        for bench in (torch_bench(torch_case(), seed=seed, distribution=distribution) for seed in (5, 5, 6))
    )

    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(tensor.count_nonzero() > 0.9 * tensor.numel() for tensor in one)
    assert len({tensor.flatten()[0].item() for tensor in one}) == 4
    assert (max(tensor.abs().max().item() for tensor in one) <= 1) is (distribution == "uniform")


def _visible(**changes: Any) -> list[list[int]]:
    from studytool.engines import torch_inputs

    seen = torch_inputs.visible_keys(make_case(**changes))
    return [] if seen is None else seen.int().tolist()


def test_masks_by_example() -> None:
    """Top-left and bottom-right differ where there are more keys than queries; without a mask nothing is hidden."""
    assert _visible(s_q=2, s_kv=4, mask="br") == [[1, 1, 1, 0], [1, 1, 1, 1]]
    assert _visible(s_q=2, s_kv=4, mask="tl") == [[1, 0, 0, 0], [1, 1, 0, 0]]
    assert _visible(s_q=3, s_kv=4, mask="br", window=2) == [[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]
    assert _visible(s_q=3, s_kv=4, mask="tl", window=2) == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0]]
    assert _visible(s_q=2, s_kv=4) == []


@pytest.mark.parametrize("window", [1, 3, 8, 9])
def test_window_is_what_a_query_sees(window: int) -> None:
    """A query with a window of L sees L keys, itself included, or all that there are before it."""
    rows = _visible(s_q=8, s_kv=8, mask="tl", window=window)

    assert [sum(row) for row in rows] == [min(window, query + 1) for query in range(8)]
    assert all(rows[query][query] == 1 for query in range(8))


def test_reference_is_attention_written_out() -> None:
    """The float64 reference is softmax(QK/sqrt(d))V over what each query sees, with heads shared in groups."""
    case = torch_case(op="sdpa_fwd_bwd", dtype="f32", b=2, h_q=4, h_kv=2, s_q=3, s_kv=5, mask="br", window=2)
    bench = torch_bench(case)
    q, k, v = (tensor.detach().double().numpy() for tensor in bench._qkv)
    out, d_v = np.zeros((2, 4, 3, 16)), np.zeros_like(v)
    grad = bench._grad_output.double().numpy()
    for b, h, i in np.ndindex(2, 4, 3):
        keys = [i + 1, i + 2]
        weights = np.exp([q[b, h, i] @ k[b, h // 2, j] / 4 for j in keys])
        for j, weight in zip(keys, weights / weights.sum(), strict=True):
            out[b, h, i] += weight * v[b, h // 2, j]
            d_v[b, h // 2, j] += weight * grad[b, h, i]
    found = bench.reference()

    np.testing.assert_allclose(found["O"], out, rtol=1e-12)
    np.testing.assert_allclose(found["dV"], d_v, rtol=1e-12)
    assert found.keys() == {"O", "dQ", "dK", "dV"}


@pytest.mark.parametrize("op", ["sdpa_fwd", "sdpa_bwd", "sdpa_fwd_bwd"])
def test_reference_is_computed_where_the_tensors_are(monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Only results are brought to the host: inputs, mask and sink are used where the inputs are, on a GPU say."""
    from studytool.engines import torch_inputs

    case, moved = make_case(op=op, b=2, h_q=4, h_kv=2, s_q=3, s_kv=5, d_qk=8, d_v=4, mask="br"), list[Any]()

    def to_host(tensor: Any) -> Any:
        moved.append((tensor.device.type, tuple(tensor.shape)))
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    monkeypatch.setattr(torch.Tensor, "cpu", to_host)
    shapes = {"Q": (2, 4, 3, 8), "K": (2, 2, 5, 8), "V": (2, 2, 5, 4), "O": (2, 4, 3, 4), "Sink": (1, 4, 1, 1)}
    q, k, v, grad, sink = (torch.empty(shape, dtype=torch.bfloat16, device="meta") for shape in shapes.values())
    seen = torch_inputs.visible_keys(case)
    found = torch_inputs.float64_result(case, (q, k, v), grad, seen, sink=sink)
    names = {"sdpa_fwd": "O", "sdpa_bwd": "QKV", "sdpa_fwd_bwd": "OQKV"}[op]

    assert moved == [("meta", shapes[name]) for name in names]
    assert {name: values.dtype for name, values in found.items()} == {
        name if name == "O" else f"d{name}": np.float64 for name in names
    }


def test_large_case_has_no_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to a number of scores there is a float64 reference, above it none; with dropout there is never one."""
    from studytool.engines import torch_sdpa

    scores = 4 * 24 * 24
    found = []
    for limit in (scores, scores - 1):
        monkeypatch.setattr(torch_sdpa, "_REFERENCE_LIMIT", limit)
        found.append(torch_bench(torch_case()).reference() is None)

    assert found == [False, True]
    monkeypatch.setattr(torch_sdpa, "_REFERENCE_LIMIT", scores)
    assert torch_bench(torch_case(dropout_pct=10)).reference() is None


def test_launch_runs_so_many_times() -> None:
    """A launch of n runs the kernel n times."""
    bench = torch_bench(torch_case())
    counted = []
    bench._step = lambda _leg: lambda: counted.append(1)
    with bench.armed("backend", "eager-warm") as launch:
        launch(7)
    typed: Launch = launch

    assert (len(counted), callable(typed)) == (7, True)


def test_flush_writes_more_than_the_caches_hold() -> None:
    """A flush writes each byte of a buffer of 256 MiB, the same buffer each time."""
    from studytool.engines import torch_sdpa

    bench, buffer = torch_bench(torch_case()), torch_sdpa._flush_buffer()
    before = int(buffer[0])
    bench.flush()

    assert buffer.numel() * buffer.element_size() == 256 << 20
    assert (int(buffer.min()), int(buffer.max())) == (before + 1, before + 1)
    assert torch_sdpa._flush_buffer() is buffer


class _Noting(FakeClock):
    """A clock that notes what it is asked to call before a launch."""

    def __init__(self) -> None:
        super().__init__()
        self.before: list[Callable[[], None] | None] = []

    def sample(self, launch: Launch, inner: int, before: Callable[[], None] | None = None) -> Sample:
        """Note it."""
        self.before.append(before)
        return super().sample(launch, inner, before)


def test_probe_reads_after_a_flush_and_again() -> None:
    """The probe of the flush is timed twice by the clock that asks, once after a flush and once right after that."""
    bench, clock = torch_bench(torch_case()), _Noting()
    flushed: list[int] = []
    bench.flush = lambda: flushed.append(clock.taken)
    found = bench.flush_probe_ns(clock)

    assert (found, flushed, clock.taken) == ((0, 0), [0], 2)
    assert clock.before == [bench.flush, None]


def test_launches_are_made_one_by_one() -> None:
    """On the CPU a sample may have any number of launches."""
    bench = torch_bench(torch_case())

    assert {bench.granule(regime) for regime in REGIMES} == {1}
