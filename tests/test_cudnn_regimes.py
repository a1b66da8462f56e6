"""How a case on cuDNN is launched in each regime, on a fake device: turns, flushes, memory, inputs."""

import itertools
from typing import Any

import gpus
import numpy as np
import pytest
from gpus import COLD, FWD, Fake, ScriptedClock, engines, noted, small

from studytool.engines.base import Order, Seeds
from studytool.model import REGIMES, Status

torch = pytest.importorskip("torch")
fakecudnn = pytest.importorskip("fakecudnn")
bench_module = pytest.importorskip("studytool.engines.cudnn.bench")
cuda_clock = pytest.importorskip("studytool.engines.cudnn.cuda_clock")
pytestmark = pytest.mark.torch

opened, forward, backward = gpus.opened, gpus.forward, gpus.backward

LEAST_FLUSH_BYTES = bench_module.LEAST_FLUSH_BYTES


# Regimes


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize(("leg", "engine"), [("backend", 5), ("frost", FWD)])
def test_regime_launches_what_it_says(forward: Fake, leg: str, engine: int, regime: str) -> None:
    """Eagerly a launch executes the leg's plan; replayed it executes nothing, and replays one graph of a granule."""
    bench = forward.bench(small())
    ran: list[int] = []
    with bench.armed(leg, regime) as launch:
        forward.device.log.clear()
        forward.fates.after = lambda engine, _named: ran.append(engine)
        launch(3 * bench.granule(regime))

    event = f"launch {engine}" if regime.startswith("eager") else f"replay {bench.granule(regime)}"
    assert forward.device.log == [event] * 3
    assert ran == [engine] * 3 * bench.granule(regime)


@pytest.mark.parametrize("regime", REGIMES)
def test_two_sets_of_tensors_take_turns_when_cold(forward: Fake, regime: str) -> None:
    """In a cold regime no launch has the tensors of the one before, whichever leg that was; warm there is one set."""
    bench = forward.bench(small(), lookup=True)
    used: list[int] = []
    with bench.armed("backend", regime):
        forward.fates.after = lambda _engine, named: used.append(named["K"].data_ptr())
    for leg in ("backend", "frost", "frost", "auto", "default", "backend"):
        with bench.armed(leg, regime) as launch:
            launch(bench.granule(regime))

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
    """A flush is of 256 MiB at least, sixteen launches are unrolled, and a device is busy for 100 ms before a case."""
    sizes = (LEAST_FLUSH_BYTES, bench_module.UNROLLED, cuda_clock.SETTLE_NS)

    assert sizes == (256 << 20, 16, 100_000_000)


def test_flush_reads_what_it_wrote(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush writes the whole buffer and then reads it, so that the caches hold nothing that must still be written."""
    bench, events = forward.bench(small()), list[tuple[str, int]]()
    with bench.armed("backend", "eager-cold"):
        buffer = bench._flush_buffer
    for name in ("add_", "sum"):
        noted(
            monkeypatch,
            torch.Tensor,
            name,
            lambda one, *_, name=name: events.append((name, one.data_ptr())),
        )
    bench.flush()

    assert events == [(name, buffer.data_ptr()) for name in ("add_", "sum")]


def test_retry_is_flushed_as_well(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cold sample that is taken again, since its queue ran dry, is flushed again before every try."""
    events, spin = list[str](), forward.device.spin
    noted(monkeypatch, bench_module.CudnnBench, "flush", lambda *_: events.append("flush"))
    forward.fates.after = lambda _engine, _named: events.append("launch")
    monkeypatch.setattr(forward.device, "spin", lambda _ns: spin(0))
    found = forward.run(small(), "eager-cold")
    timed = events[-3 * 4 * 4 * 2 :]

    assert {leg.inner for leg in found.legs.values()} == {1}
    assert {leg.counters["gap"] for leg in found.legs.values()} == {(1,) * 4}
    assert timed == ["flush", "launch"] * (3 * 4 * 4)


def test_flush_is_probed_by_a_read_of_half_the_l2(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read was read before; five times it is timed after the clock's own flush and again at once."""
    bench, events, read = forward.bench(small()), list[str](), set[int]()
    noted(monkeypatch, torch.Tensor, "sum", lambda one: read.add(one.nbytes))
    noted(monkeypatch, torch.Tensor, "sum", lambda _one: events.append("read"))
    monkeypatch.setattr(bench, "flush", lambda: events.append("flush"))
    clock = ScriptedClock([90, 1, 8, 6, 9, 90, 7, 5, 70, 3])
    found = bench.flush_probe_ns(clock)

    assert events == ["read", *["flush", "read", "read"] * 5]
    assert clock.before == [bench.flush, None] * 5
    assert (found, read) == ((9, 5), {forward.device.l2_bytes // 2})


# The device


def test_device_is_busy_before_a_case(forward: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that idled is kept busy before a warm-up, and the host waits until that is over."""
    spins: list[int] = []
    clock = cuda_clock.CudaClock(forward.device)
    noted(monkeypatch, forward.device, "spin", spins.append)
    clock.settle()

    assert spins == [cuda_clock.SETTLE_NS]
    assert forward.device.free_at_ns <= forward.device.host_at_ns


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
