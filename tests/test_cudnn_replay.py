"""Captured graphs of a case on cuDNN, on a fake device: what they hold, and what is replayed of them."""

import itertools
from collections.abc import Callable, Container
from typing import Any

import gpus
import numpy as np
import pytest
from gpus import COLD, FWD, REPLAY, Fake, small

from studytool import measure
from studytool.model import REGIMES, Status

pytestmark = pytest.mark.torch

opened, forward = gpus.opened, gpus.forward


# What is replayed


@pytest.mark.parametrize(
    ("regime", "inner", "graphs"),
    [
        ("replay-warm", 16, [16]),
        ("replay-warm", 48, [16, 16, 16]),
        ("replay-cold", 1, [1]),
        ("replay-cold", 3, [1, 1, 1]),
        ("replay-cold", 16, [1] * 16),
    ],
)
def test_replays_are_unrolled(forward: Fake, regime: str, inner: int, graphs: list[int]) -> None:
    """So many launches are replayed as were asked for: warm sixteen in one graph, cold one."""
    bench = forward.bench(small(s_q=2, s_kv=2))
    ran: list[int] = []
    with bench.armed("frost", regime) as launch:
        forward.device.log.clear()
        forward.fates.after = lambda engine, _named: ran.append(engine)
        launch(inner)

    assert forward.device.log == [f"replay {nodes}" for nodes in graphs]
    assert ran == [FWD] * inner


@pytest.mark.parametrize(("regime", "granule"), [("replay-warm", 16), ("replay-cold", 1)])
def test_one_length_of_graph_is_timed_in_a_regime(forward: Fake, regime: str, granule: int) -> None:
    """Beside the first replay of each graph, warm only unrolled ones are replayed, cold only single ones."""
    found = forward.run(small(), regime)
    log = ["", *(event for event in forward.device.log if not event.startswith("launch"))]
    replays = {now for before, now in itertools.pairwise(log) if now.startswith("replay") and "capture" not in before}

    assert (found.status, replays) == (Status.OK, {f"replay {granule}"})
    assert {leg.inner % granule for leg in found.legs.values()} == {0}
    assert {ns / found.legs["frost"].inner for ns in found.legs["frost"].ns} == {40_000.0}


def test_granules_are_those_of_the_graphs(forward: Fake) -> None:
    """Only where unrolled graphs are replayed are launches made sixteen at a time."""
    bench = forward.bench(small())

    assert [bench.granule(regime) for regime in REGIMES] == [1, 1, 16, 1]


@pytest.mark.parametrize("regime", REPLAY)
def test_graphs_are_replayed_right_after_their_capture(forward: Fake, regime: str) -> None:
    """Each plan is captured with each set of tensors, once and unrolled, and each graph is replayed once at once."""
    bench = forward.bench(small())
    with bench.armed("backend", regime):
        log = forward.device.log.copy()
    expected = ["release"]
    for launch in [f"launch {engine}" for engine in (FWD, 5) for _ in range(2 if regime in COLD else 1)]:
        expected += [launch, launch, "capture 1", "replay 1", *[launch] * 16, "capture 16", "replay 16"]

    assert log == expected


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
