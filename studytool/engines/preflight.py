"""What must be here before a study can be measured; a missing piece often fails in silence, so each is looked at.

Libraries are imported only once they are known to be there, and no graph is made before cuDNN's switch is set.
"""

import importlib
import importlib.util
import os
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from studytool.engines.base import Finding, PlanError, Terms
from studytool.model import Case

_MAPS = Path("/proc/self/maps")
_KNOWN_DIMS = (128, 64, 256, 512)
_LOCKED_BIT = 0x2
"""NVML's throttle reason for clocks that are held by application settings."""


def preflight(terms: Terms) -> list[Finding]:
    """Return what is found here of all that an engine needs, in the order in which it is needed.

    What cannot be looked at for a missing piece is left out. For cuDNN its switch is set as the base needs it.
    """
    if terms.engine == "cudnn":
        return _cudnn(terms)
    return [_package("torch", "torch", "torch")] if terms.engine == "torch_sdpa" else []


def _package(module: str, distribution: str, extra: str) -> Finding:
    """Return whether a package is installed, with its version; `extra` is the extra of studytool that brings it."""
    if importlib.util.find_spec(module) is None:
        return Finding(distribution, "not installed", f"pip install 'studytool[{extra}]'")
    try:
        return Finding(distribution, metadata.version(distribution))
    except metadata.PackageNotFoundError:
        return Finding(distribution, f"another package brought its module {module}", f"pip install {distribution}")


def _cudnn(terms: Terms) -> list[Finding]:
    needed = [
        _package("torch", "torch", "cudnn"),
        _package("cudnn", "nvidia-cudnn-frontend", "cudnn"),
        _package("cutlass", "nvidia-cutlass-dsl", "cudnn"),
        _package("pynvml", "nvidia-ml-py", "cudnn"),
    ]
    if any(finding.needed for finding in needed):
        return needed
    try:
        importlib.import_module("cutlass")  # a DSL that does not import declines every build, and says nothing
    except (ImportError, OSError, RuntimeError) as error:
        return [*needed, Finding("CuTe DSL", f"does not import: {error}", "a nvidia-cutlass-dsl that imports")]
    from studytool.engines.cudnn import plans

    plans.pin_flag(terms.base)
    needed.append(Finding(plans.FLAG, f"{plans.flag() or 'not set'}, as base {terms.base} needs"))
    for step in (_gpu, _libraries, lambda: _plans(terms)):
        needed += step()
        if any(finding.needed for finding in needed):
            return needed
    return needed


def _gpu() -> Iterator[Finding]:
    import pynvml
    import torch

    from studytool.engines.cudnn import nvml

    wanted = "an NVIDIA GPU with its driver, visible to this process"
    try:
        before = {board.uuid: board.state() for board in nvml.boards()}
    except pynvml.NVMLError as error:
        yield Finding("GPU", f"none: {str(error).lower()}", wanted)
        return
    yield Finding("driver", nvml.driver_version())
    if not torch.cuda.is_available():
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = f"CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else f"torch {torch.__version__} sees none"
        yield Finding("GPU", f"none of {len(before)}: {why}", wanted)
        return
    properties = torch.cuda.get_device_properties(0)
    yield Finding("GPU", f"{properties.name}, cc {properties.major}.{properties.minor}")
    board = nvml.open_board(str(properties.uuid))
    settings, state = board.settings(), before.get(board.uuid, board.state())
    held = "held" if max(0, state.get("throttle", 0)) & _LOCKED_BIT else "not held"
    yield Finding(
        "clocks",
        f"SM {state.get('sm_mhz', '?')} MHz now, at most {settings.get('most_sm_mhz', '?')}, {held} by application"
        " settings (every block records its clock)",
    )
    words = (f"{name} {settings[name]}" for name in ("mig", "ecc", "persistence", "power_limit_mw") if name in settings)
    yield Finding("board", ", ".join(words) or "tells nothing of itself")
    if state.get("processes", -1) >= 0:
        yield Finding("other processes on the GPU", f"{state['processes']} (every block records their number)")


def _libraries() -> Iterator[Finding]:
    import cudnn
    import torch

    try:
        own = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]  # loads torch's copy, where it has one
        yield Finding("cuDNN", f"{cudnn.backend_version()} (torch's: {own or 'none'})")
    except RuntimeError as error:
        yield Finding("cuDNN", f"cannot be used: {str(error).splitlines()[0]}", "one libcudnn, of torch's own version")
        return
    maps = _MAPS.read_text(encoding="utf-8", errors="replace") if _MAPS.is_file() else ""
    found = sorted({Path(path) for path in re.findall(r"(/\S*libcudnn\.so[.0-9]*)", maps)})
    folders = {path.resolve() for path in found}
    several = "one: two copies answer for each other's versions" if len(folders) > 1 else ""
    yield Finding("copies of libcudnn loaded", str(len(folders)), several)


def _plans(terms: Terms) -> Iterator[Finding]:
    """Return whether the row is the library's, and both sides have plans for a graph that the row is known to serve.

    Without a row any will do, of the forward or the backward.
    """
    from studytool.engines.cudnn import graphs, plans

    engine = plans.row_engine(terms.row) if terms.row else None
    if terms.row and engine is None:
        yield Finding(
            f"row {terms.row}", "not among the library's rows", "a row of the installed nvidia-cudnn-frontend"
        )
        return
    backend, frost = 0, 0
    for case in _known_cases(terms.row):
        try:
            graph = graphs.build(case).graph
            graphs.plan(graph)
        except PlanError:
            continue
        library, ours, rows = plans.sides(plans.engine_ids(graph), engine)
        rows = rows if terms.row else [index for index in library if index not in ours]
        if rows:
            backend, frost = len(ours), len(rows)
            break
    dims = ", ".join(map(str, _KNOWN_DIMS))
    wanted = f"one for a dense causal graph of head dim {dims}: a GPU of the row's cc, and a CuTe DSL that imports"
    yield Finding(f"FROST plans of {terms.row or 'any row'}", str(frost), "" if frost else wanted)
    if frost:
        yield Finding("backend plans of that graph", str(backend), "" if backend else "at least one")


def _known_cases(row: str) -> Iterator[Case]:
    for op in ("sdpa_fwd", "sdpa_bwd"):
        for dim in _KNOWN_DIMS if not row or row.startswith(op) else ():
            yield Case(op=op, dtype="bf16", b=1, h_q=8, h_kv=8, s_q=1024, s_kv=1024, d_qk=dim, d_v=dim, mask="tl")
