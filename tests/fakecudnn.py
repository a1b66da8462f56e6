"""A GPU that is not there: cuDNN's real frontend and real FROST planner on a device of virtual time.

The backend has a fixed list (engines 5 and 7 by heuristics, 3 as fallback); plans are executed by plain float64
attention, and take the time that `Device.cost_ns` says. What is patched is listed in `install`.
"""

import json
import os
import signal
from collections.abc import Callable
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import cudnn
import pynvml
import torch
from cudnn.engines import is_python_engine
from cudnn.engines.base import PlanConfig
from cudnn.sdpa import graph_analyzer

from studytool.engines.cudnn import device, nvml, plans
from studytool.engines.cudnn.device import Capture
from studytool.engines.torch_inputs import float64_result, visible_keys
from studytool.model import Case

Setter = Callable[[Any, str, Any], None]
"""How an attribute is replaced: `monkeypatch.setattr`, or plain `setattr` in a process that ends soon."""

A, FALLBACK = cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK
BACKEND = (PlanConfig(5, {}, 0, A), PlanConfig(7, {}, 1, A), PlanConfig(3, {}, 2, FALLBACK))
UUID = "12345678-1234-1234-1234-123456789abc"
HOST_NS = 2_000
MHZ = 1410


class Moment:
    """A point on the virtual stream."""

    def __init__(self, at_ns: int) -> None:
        self.at_ns = at_ns

    def since_ns(self, earlier: "Moment") -> int:
        """Return the time between two points."""
        return self.at_ns - earlier.at_ns


class Board:
    """A board that is never disturbed, unless a test changes its readings."""

    uuid = f"GPU-{UUID}"

    def __init__(self) -> None:
        self.readings = {"sm_mhz": MHZ, "throttle": 0, "power_mw": 250_000, "temperature_c": 40, "processes": 1}

    def settings(self) -> dict[str, str]:
        """Return plain settings."""
        return {"mig": "0", "ecc": "1", "persistence": "1", "power_limit_mw": "400000"}

    def state(self) -> dict[str, int]:
        """Return the readings."""
        return dict(self.readings)

    def memory_bytes(self) -> int:
        """Return 40 GiB."""
        return 40 << 30


class Device:
    """Host and device on two virtual timelines: the host enqueues, the device works off what is enqueued."""

    name = "cpu"
    l2_bytes = 1 << 20
    stream = 77

    def __init__(self) -> None:
        self.board = Board()
        self.host_at_ns, self.free_at_ns, self.tick_ns = 0, 0, 32
        self.host_cost_ns = HOST_NS
        self.cost_ns: Callable[[int], int] = lambda engine: 40_000 if is_python_engine(engine) else 100_000
        self.capturing: list[tuple[int, Callable[[], None]]] | None = None
        self.lost = 0
        """So many launches of a capture go to another stream: they run at once and are not in the graph."""

        self.log: list[str] = []
        self.workspaces: list[torch.Tensor] = []
        """The workspace of every launch of a plan, as it was handed over."""

    def host_ns(self) -> int:
        """Return the host's virtual time."""
        return self.host_at_ns

    def moment(self) -> Moment:
        """Return the time at which the stream gets here, in whole ticks."""
        return Moment(max(self.free_at_ns, self.host_at_ns) // self.tick_ns * self.tick_ns)

    def spin(self, ns: int) -> None:
        """Keep the device busy."""
        self._enqueue(ns, lambda: None)

    def synchronize(self) -> None:
        """Let the host wait."""
        self.host_at_ns = max(self.host_at_ns, self.free_at_ns)

    def release(self) -> None:
        """Note it."""
        self.log.append("release")

    def capture(self, launch: Callable[[], None]) -> Capture:
        """Return what was launched, to be run when it is replayed."""
        self.capturing = []
        launch()
        nodes, self.capturing = self.capturing, None
        self.log.append(f"capture {len(nodes)}")

        def replay() -> None:
            self.log.append(f"replay {len(nodes)}")
            self.host_at_ns += self.host_cost_ns
            for ns, effect in nodes:
                self._work(ns, effect)

        return Capture(replay, len(nodes))

    def kernel(self, engine: int, effect: Callable[[], None]) -> None:
        """Launch a plan of an engine."""
        self.log.append(f"launch {engine}")
        if self.capturing is None:
            self.host_at_ns += self.host_cost_ns
            self._work(self.cost_ns(engine), effect)
        elif self.lost and is_python_engine(engine):
            self.lost -= 1
            effect()
        else:
            self.capturing.append((self.cost_ns(engine), effect))

    def _enqueue(self, ns: int, effect: Callable[[], None]) -> None:
        self.host_at_ns += 100
        self._work(ns, effect)

    def _work(self, ns: int, effect: Callable[[], None]) -> None:
        self.free_at_ns = max(self.free_at_ns, self.host_at_ns) + ns
        effect()


class Fates:
    """What befalls graphs: by a case's s_q, or plans by their engine id."""

    def __init__(self) -> None:
        self.key_error: set[int] = set()
        self.segfault: set[int] = set()
        self.declines: dict[int, str] = {}
        self.stale: set[int] = set()
        """Engines that do not write their outputs."""

        self.stale_sets: set[int] | None = None
        """The sets of tensors on which they do not, counted in the order in which they were met; None for all."""

        self.no_backend = False
        self.after: Callable[[int, dict[str, torch.Tensor]], None] = lambda _engine, _named: None
        """What follows when an engine has written its outputs: the engine, all buffers by name."""

        self._met: list[int] = []

    def writes(self, engine: int, named: dict[str, torch.Tensor]) -> bool:
        """Return whether an engine writes the outputs of this set of tensors."""
        place = named["Q"].data_ptr()
        if place not in self._met:
            self._met.append(place)
        spared = self.stale_sets is not None and self._met.index(place) not in self.stale_sets
        return engine not in self.stale or spared


def install(set_attribute: Setter, cc: tuple[int, int] = (8, 0), sm_count: int = 108) -> tuple[Device, Fates]:
    """Put the device in place of a GPU, and return it with the fates of its graphs."""
    here, fates = Device(), Fates()
    described = {"deviceVer": cc[0] * 100 + cc[1] * 10, "multiProcessorCount": sm_count, "deviceName": "Fake GPU"}
    properties = SimpleNamespace(serialize=lambda: json.dumps(described))
    planner(set_attribute, cc, sm_count, fates)
    set_attribute(cudnn, "create_handle", lambda: SimpleNamespace(stream=None))
    set_attribute(cudnn, "set_stream", lambda handle, stream: setattr(handle, "stream", stream))
    set_attribute(cudnn, "backend_version", lambda: 92700)
    set_attribute(cudnn, "create_device_properties", lambda _index: properties)
    set_attribute(plans, "current_device", lambda: plans.Device(f"{cc[0]}.{cc[1]}", "Fake GPU"))
    set_attribute(device, "open_device", lambda: here)
    set_attribute(nvml, "driver_version", lambda: "580.1")
    set_attribute(nvml, "boards", lambda: [here.board])
    set_attribute(nvml, "open_board", lambda _uuid: here.board)
    set_attribute(pynvml, "nvmlInit", lambda: None)
    set_attribute(torch.cuda, "is_available", lambda: True)
    gpu = SimpleNamespace(name="Fake GPU", major=cc[0], minor=cc[1], uuid=UUID)
    set_attribute(torch.cuda, "get_device_properties", lambda _index: gpu)
    graph = cudnn.pygraph
    set_attribute(graph, "build_plan_at_index", lambda self, index: _build(self, index, fates))
    set_attribute(graph, "get_workspace_size_plan_at_index", lambda _self, index: 16 * (index + 1))
    set_attribute(
        graph,
        "execute_plan_at_index",
        lambda self, pack, workspace, index, handle: _execute(here, fates, self, pack, (workspace, index, handle)),
    )
    return here, fates


def planner(set_attribute: Setter, cc: tuple[int, int], sm_count: int, fates: Fates | None = None) -> None:
    """Let the real planner plan for a compute capability, beside the fixed backend."""
    fate = fates or Fates()
    set_attribute(graph_analyzer, "_device_cc", lambda: cc)
    set_attribute(graph_analyzer, "_device_sm_count", lambda: sm_count)
    graph = cudnn.pygraph
    set_attribute(graph, "backend_plan_entries", lambda self: _entries(self, fate))
    set_attribute(graph, "_finalize_backend_layout", lambda _self: None)
    named = graph.get_plan_name_at_index

    def name_of(self: Any, index: int) -> str:
        engine = self.plans[index].engine_id
        return str(named(self, index)) if is_python_engine(engine) else f"eng{engine}"

    set_attribute(graph, "get_plan_name_at_index", name_of)


@contextmanager
def placement_hook(family: str, row: str | None, set_attribute: Setter = setattr) -> Any:
    """Within it the library's own assembly places a row first, and without one the backend (cudnn.md B.3)."""
    from importlib import import_module

    from cudnn.engines import MANIFEST
    from cudnn.engines.heuristics import BACKEND as MARKER
    from cudnn.engines.heuristics import is_backend_block

    own = next(member for member in MANIFEST if member.name == family)
    assert own.heuristics is not None
    module, attribute = import_module(own.heuristics[0]), own.heuristics[1]
    before = getattr(module, attribute)

    def hook(kind: Any, facts: Any, offered: Any) -> Any:
        proposed = [plan for plan in before(kind, facts, offered) if not is_backend_block(plan)]
        lifted = [plan for plan in proposed if row is not None and plan.engine_id == offered.get(row)]
        return [*lifted, MARKER, *(plan for plan in proposed if plan not in lifted)]

    set_attribute(module, attribute, hook)
    try:
        yield
    finally:
        set_attribute(module, attribute, before)


def _entries(graph: Any, fates: Fates) -> list[PlanConfig]:
    s_q = next(iter(graph.nodes)).inputs["q"].dim[2]
    if s_q in fates.key_error:
        raise KeyError(576)
    if s_q in fates.segfault:
        os.kill(os.getpid(), signal.SIGSEGV)
    return [] if fates.no_backend else list(BACKEND)


def _build(graph: Any, index: int, fates: Fates) -> None:
    engine = graph.plans[index].engine_id
    if engine in fates.declines:
        raise cudnn.cudnnGraphNotSupportedError(fates.declines[engine])


def _execute(here: Device, fates: Fates, graph: Any, pack: dict[Any, torch.Tensor], rest: tuple[Any, int, Any]) -> None:
    workspace, index, handle = rest
    assert workspace.numel() >= 16 * (index + 1)
    assert handle.stream == here.stream
    engine = graph.plans[index].engine_id
    named = {tensor.name.rsplit("::")[-1]: buffer for tensor, buffer in pack.items()}
    here.workspaces.append(workspace)

    def effect() -> None:
        if fates.writes(engine, named):
            _attend(graph, named)
        fates.after(engine, named)

    here.kernel(engine, effect)


def _attend(graph: Any, named: dict[str, torch.Tensor]) -> None:
    """Write a graph's outputs by plain attention; backward in one go from Q, K, V."""
    node = next(iter(graph.nodes))
    backward = "dO" in named
    b, h_q, s_q, d_qk = named["Q"].shape
    _, h_kv, s_kv, d_v = named["V"].shape
    words = node.params
    corner = words.get("diagonal_alignment")
    mask = "none" if corner is None else "br" if corner == cudnn.diagonal_alignment.BOTTOM_RIGHT else "tl"
    window = int(words.get("diagonal_band_left_bound") or 0)
    case = Case(
        op="sdpa_bwd" if backward else "sdpa_fwd",
        dtype="bf16",
        b=b,
        h_q=h_q,
        h_kv=h_kv,
        s_q=s_q,
        s_kv=s_kv,
        d_qk=d_qk,
        d_v=d_v,
        mask=mask,
        window=window,
    )
    seen = visible_keys(case)
    if "seq_len_kv" in named:
        keys = torch.arange(s_kv)[None, :] < named["seq_len_kv"].reshape(-1, 1)
        seen = keys[:, None, None, :] if seen is None else seen & keys[:, None, None, :]
    found = float64_result(
        case, (named["Q"], named["K"], named["V"]), named.get("dO", named["Q"]), seen, sink=named.get("Sink")
    )
    for name, values in found.items():
        named[name].copy_(torch.from_numpy(values))
    for name in {"Stats", "dSink"} & named.keys():
        if not (backward and name == "Stats"):
            named[name].fill_(1.0)
