"""A case on cuDNN made ready: one fresh graph, its legs by index, tensors, one workspace, captured graphs."""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from studytool.engines.base import Arrays, Clock, Launch, Order, PlanError
from studytool.engines.cudnn import graphs, plans
from studytool.engines.cudnn.device import Device
from studytool.engines.cudnn.graphs import Graph
from studytool.engines.cudnn.tensors import Tensors, compared
from studytool.engines.torch_inputs import float64_result, visible_keys
from studytool.model import LEGS, Case, Plan, Status

UNROLLED = 16
"""Launches in the longer of a leg's two captured graphs, so that what lies between graphs does not count much."""

LEAST_FLUSH_BYTES = 256 << 20
MOST_REFERENCE_SCORES = {"cpu": 1 << 22, "cuda": 1 << 27}
"""Cases with at most this many attention scores are compared with a float64 reference, computed on the device."""

_OTHER_SEED = 1


class Tools(NamedTuple):
    """What all cases of a process share; `row_engine` is the engine id of the study's row, None where there is none."""

    device: Device
    handle: Any
    row_engine: int | None


class CudnnBench:
    """A case whose legs are indices of one graph's plan list, launched by `execute_plan_at_index`.

    In cold regimes two sets of tensors take turns, beside the flush.
    """

    def __init__(self, case: Case, order: Order, seed: int, distribution: str, tools: Tools) -> None:
        self._case, self._seed, self._distribution, self._tools = case, seed, distribution, tools
        begin = time.perf_counter_ns()
        self._graph = graphs.build(case, handle=tools.handle)
        graphs.plan(self._graph.graph)
        self.notes: dict[str, int | str] = {"plan_ns": time.perf_counter_ns() - begin}
        orders = plans.orders(plans.engine_ids(self._graph.graph), tools.row_engine, order)
        builder = plans.Builder(self._graph.graph)
        walks = {leg: builder.first(orders[leg]) for leg in LEGS}
        self._index = {leg: walk.at for leg, walk in walks.items()}
        self.plans = {leg: None if index is None else self._plan(index) for leg, index in self._index.items()}
        self.build_ns = {leg: 0 if index is None else builder.took_ns[index] for leg, index in self._index.items()}
        for leg in ("backend", "frost"):
            if walks[leg].declined:
                told = (f"{self._plan(index).name}: {reason}" for index, reason in walks[leg].declined.items())
                self.notes[f"declined_{leg}"] = "; ".join(told)
        self._sets: list[Tensors] = []
        self._flush_buffer = torch.empty(0)
        self._runs: dict[tuple[int, int], Callable[[], None]] = {}
        self._captured: dict[tuple[int, int, int], Callable[[], None]] = {}
        self._turn = 0

    @contextlib.contextmanager
    def armed(self, leg: str, regime: str) -> Iterator[Launch]:
        """Return the leg's launch, of plans executed or of captured graphs replayed; the first call makes all."""
        self._make_ready(regime)
        index = self._at(leg)
        replayed, granule = regime.startswith("replay"), self.granule(regime)

        def launch(inner: int) -> None:
            if inner % granule:
                raise ValueError(f"{inner} launches; expected a multiple of {granule}")
            if regime.endswith("cold"):
                self._turn = (self._turn + 1) % len(self._sets)
            turn = self._turn
            run = self._captured[index, turn, granule] if replayed else self._runs[index, turn]
            for _ in range(inner // granule):
                run()

        yield launch

    def granule(self, regime: str) -> int:
        """Return UNROLLED where graphs are replayed warm, else 1."""
        return UNROLLED if regime == "replay-warm" else 1

    def flush(self) -> None:
        """Write a buffer of at least twice the L2, then read it, so that what it leaves there need not be written."""
        self._flush_buffer.add_(1)
        self._flush_buffer.view(torch.int64).sum()

    def flush_probe_ns(self, clock: Clock) -> tuple[int, int]:
        """Return the time of a sum over half of the L2 after a flush, and again at once: medians of five."""
        probe = torch.ones(self._tools.device.l2_bytes // 8, device=self._tools.device.name)

        def read(_inner: int) -> None:
            probe.sum()

        read(1)
        pairs = [(clock.sample(read, 1, self.flush).ns, clock.sample(read, 1).ns) for _ in range(5)]
        cold, warm = zip(*pairs, strict=True)
        return int(statistics.median(cold)), int(statistics.median(warm))

    def current_plan(self, leg: str) -> Plan:
        """Return the plan that the library's list has at the leg's index."""
        return self._plan(self._at(leg))

    def proven_plan(self, leg: str) -> Plan | None:
        """Return the plan at the leg's index, which was built; FROST's and the backend's kernels bear like names."""
        index = self._index[leg]
        return None if index is None else self._plan(index)

    def outputs(self, leg: str, regime: str) -> Arrays:
        """Return the leg's outputs of a launch on every set of tensors, poisoned before.

        Where launches are replayed, their inputs were drawn anew since the capture.
        """
        with self.armed(leg, regime) as launch:
            for tensors in self._sets:
                tensors.poison()
            for _ in self._sets:
                launch(self.granule(regime))
            self._tools.device.synchronize()
        return _joined([tensors.results() for tensors in self._sets])

    def reference(self) -> Arrays | None:
        """Return O or the gradients in float64, None where the case is too large, or its masking has no plain form."""
        case, inputs = self._case, self._sets[0].inputs
        plain = not case.padding and not (case.sink and case.op == "sdpa_bwd")
        limit = MOST_REFERENCE_SCORES[self._tools.device.name]
        if case.b * case.h_q * case.s_q * case.s_kv > limit or not plain:
            return None
        qkv = (inputs["Q"], inputs["K"], inputs["V"])
        grad = inputs.get("dO", inputs["Q"])
        found = float64_result(case, qkv, grad, visible_keys(case), sink=inputs.get("Sink"))
        once = {name: compared(torch.from_numpy(values)) for name, values in found.items()}
        return _joined([once] * len(self._sets))

    def _plan(self, index: int) -> Plan:
        return plans.plan_at(self._graph.graph, index)

    def _at(self, leg: str) -> int:
        index = self._index[leg]
        if index is None:
            raise ValueError(f"leg {leg} has no plan")
        return index

    def _make_ready(self, regime: str) -> None:
        if self._sets:
            return
        case, device = self._case, self._tools.device
        if case.layout != "dense":
            raise PlanError(Status.DECLINED, f"layout {case.layout} is planned here, not timed")
        device.release()
        count = 2 if regime.endswith("cold") else 1
        self._sets = [Tensors(case, self._graph, device.name) for _ in range(count)]
        flush_bytes = max(2 * device.l2_bytes, LEAST_FLUSH_BYTES) if count > 1 else 0
        self._flush_buffer = torch.zeros(flush_bytes, dtype=torch.uint8, device=device.name)
        indices = sorted({index for index in self._index.values() if index is not None})
        graph = self._graph.graph
        sizes = [graph.get_workspace_size_plan_at_index(index) for index in indices]
        workspace = torch.empty(max(1, *sizes), dtype=torch.uint8, device=device.name)
        for index in indices:
            for turn, tensors in enumerate(self._sets):
                self._runs[index, turn] = self._runner(index, tensors, workspace)
        if regime.startswith("replay"):
            self._fill(self._seed + _OTHER_SEED)
            self._capture()
        self._fill(self._seed)

    def _runner(self, index: int, tensors: Tensors, workspace: torch.Tensor) -> Callable[[], None]:
        execute, handle = self._graph.graph.execute_plan_at_index, self._tools.handle
        pack = tensors.pack(self._graph)
        return lambda: execute(pack, workspace, index=index, handle=handle)

    def _capture(self) -> None:
        """Capture each plan with each set of tensors, once and unrolled, after a launch for what is done only once."""
        nodes: dict[int, set[int]] = {}
        for (index, turn), run in self._runs.items():
            run()
            for count in (1, UNROLLED):

                def repeated(run: Callable[[], None] = run, count: int = count) -> None:
                    for _ in range(count):
                        run()

                captured = self._tools.device.capture(repeated)
                captured.replay()  # the first replay also uploads the graph
                nodes.setdefault(index, set()).add(captured.nodes * UNROLLED // count)
                self._captured[index, turn, count] = captured.replay
        for index, counts in nodes.items():
            name = self._plan(index).name
            if 0 in counts or len(counts) > 1:
                found = ", ".join(str(count / UNROLLED) for count in sorted(counts))
                raise PlanError(
                    Status.WRONG_RESULT, f"{name}: captured launches hold {found} nodes; expected as many each"
                )
            self.notes[f"nodes_{self._plan(index).engine}"] = counts.pop() // UNROLLED

    def _fill(self, seed: int) -> None:
        """Draw all inputs; a backward's O and Stats are those of the library's own forward on them."""
        for tensors in self._sets:
            tensors.fill(seed, self._distribution)
        if self._case.op == "sdpa_bwd":
            run_forward(self._case, self._sets, self._tools)
        self._tools.device.synchronize()


def run_forward(case: Case, sets: list[Tensors], tools: Tools) -> None:
    """Write O and Stats of a backward's inputs by the first forward plan that builds, the backend's before FROST's.

    PlanError DECLINED where the library has no forward for the case.
    """
    forward: Graph = graphs.build(graphs.forward_of(case), handle=tools.handle)
    graphs.plan(forward.graph)
    library, backend, _ = plans.sides(plans.engine_ids(forward.graph), None)
    walk = plans.Builder(forward.graph).first([*backend, *(index for index in library if index not in backend)])
    if walk.at is None:
        raise PlanError(Status.DECLINED, f"no forward gives O and Stats: {'; '.join(walk.declined.values())}")
    size = forward.graph.get_workspace_size_plan_at_index(walk.at)
    workspace = torch.empty(max(1, size), dtype=torch.uint8, device=tools.device.name)
    for tensors in sets:
        forward.graph.execute_plan_at_index(tensors.pack(forward), workspace, index=walk.at, handle=tools.handle)
    tools.device.synchronize()


def _joined(results: list[Arrays]) -> Arrays:
    """Return the outputs of several sets of tensors one after the other."""
    return {name: np.concatenate([own[name] for own in results]) for name in results[0]}
