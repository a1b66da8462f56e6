"""The process that plans: it alone sees the stand-in for the driver, the described device and the patched functions.

Reads a Description, answers what it found, then answers each case with its plans. What nobody expects ends it, with the
reason on standard error.
"""

import os
import sys
import time
from typing import Any

import cudnn
import msgspec
from cudnn.engines import MANIFEST
from cudnn.sdpa import graph_analyzer

from studytool.engines.base import PlanError
from studytool.engines.cudnn import graphs, plans
from studytool.model import Case
from studytool.planning.messages import Description, Found, Planned

_PATCHED = ("_device_cc", "_device_sm_count")
"""Functions by which the FROST side reads the device; they are private to the frontend (1.32.0 has both)."""


def main() -> None:
    """Serve cases until standard input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lines = iter(sys.stdin.buffer.readline, b"")
    described = msgspec.json.decode(next(lines), type=Description)
    found = _prepare(described)
    answers.write(msgspec.json.encode(found) + b"\n")
    answers.flush()
    if found.problem:
        return
    device = cudnn.create_device_properties(described.device)
    major, minor = map(int, described.cc.split("."))
    for line in lines:
        case = msgspec.json.decode(line, type=Case)
        answers.write(msgspec.json.encode(_plan(case, device, major * 10 + minor)) + b"\n")
        answers.flush()


def _prepare(described: Description) -> Found:
    """Let the FROST side see the described board; what stands in the way is the problem that is told."""
    plans.pin_flag(described.base)
    missing = [name for name in _PATCHED if not hasattr(graph_analyzer, name)]
    if missing:
        return _found(f"nvidia-cudnn-frontend {cudnn.__version__} has no graph_analyzer.{missing[0]}; 1.32.0 has")
    major, minor = map(int, described.cc.split("."))
    for name, value in zip(_PATCHED, ((major, minor), described.sm_count), strict=True):
        setattr(graph_analyzer, name, lambda value=value: value)
    try:
        cudnn.create_device_properties(described.device)
    except RuntimeError as error:
        return _found(f"cuDNN {cudnn.backend_version()} does not take the board: {error}")
    return _found("")


def _found(problem: str) -> Found:
    rows = {name: family.engine_id + slot.slot for family in MANIFEST for name, slot in family.slots.items()}
    return Found(problem=problem, cudnn=cudnn.backend_version(), frontend=cudnn.__version__, rows=rows)


def _plan(case: Case, device: Any, sm_version: int) -> Planned:
    begin = time.perf_counter_ns()
    try:
        graph = graphs.build(case, device_property=device, sm_version=sm_version).graph
        graphs.plan(graph)
    except PlanError as error:
        return Planned(status=error.status, reason=str(error), took_ns=time.perf_counter_ns() - begin)
    took_ns = time.perf_counter_ns() - begin
    library, _, _ = plans.sides(plans.engine_ids(graph), None)
    return Planned(plans=tuple(plans.plan_at(graph, index) for index in library), took_ns=took_ns)


if __name__ == "__main__":
    main()
