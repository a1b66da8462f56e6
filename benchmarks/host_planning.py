"""What a placement table costs the host when a graph is planned, and what planning a study costs beyond the library.

cuDNN's frontend plans with its real FROST planner. With a GPU the backend's lists are real too; without one the
planner is told a compute capability, and a list of three fixed entries stands in for the backend.

    python benchmarks/host_planning.py [--quick] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cudnn
import torch
from cudnn.engines.base import PlanConfig
from cudnn.sdpa import graph_analyzer

from studytool import freeze, studyfile
from studytool.engines.base import Order
from studytool.engines.cudnn import Device, choose, graphs, plans
from studytool.layout import StudyPlace
from studytool.model import LEGS, Case, Split
from studytool.runtime import key, lookup

ROOT = Path(__file__).resolve().parent.parent
A100 = Device("8.0", "NVIDIA A100-SXM4-40GB")
MODES = [cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK]


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: seconds, not a minute")
    parser.add_argument("--json", type=Path, help="also write the tables there")
    asked = parser.parse_args()
    plans.pin_flag("backend")
    here = "backend lists of this GPU" if torch.cuda.is_available() else described()
    cases, table = study()
    rounds, planned = (5, 100) if asked.quick else (40, 1000)
    price = [table_price(cases, table, rounds), study_price(cases, table, planned)]
    print(f"cudnn frontend {cudnn.__version__}, {here}\n")
    for found in price:
        print(f"{found['what']}: {found['n']} graphs, interleaved; median us (p90)")
        print("\n".join(f"  {name:42} {us[0]:9.2f} ({us[1]:.2f})" for name, us in found["us"].items()) + "\n")
    if asked.json:
        asked.json.write_text(json.dumps(price, indent=1) + "\n", encoding="utf-8")


def described() -> str:
    """Let the planner plan for an A100 that is not here; return what the lists are."""
    entries = [PlanConfig(engine, {}, index, MODES[index == 2]) for index, engine in enumerate((5, 7, 3))]
    graph_analyzer._device_cc = lambda: (8, 0)  # noqa: SLF001 - no public way to name a device that is not here
    graph_analyzer._device_sm_count = lambda: 108  # noqa: SLF001
    cudnn.pygraph.backend_plan_entries = lambda _graph: entries
    cudnn.pygraph._finalize_backend_layout = lambda _graph: None  # noqa: SLF001
    cudnn.pygraph.get_plan_name_at_index = lambda graph, index: str(graph.plans[index].engine_id)
    return "no GPU: described A100, three fixed entries stand in for the backend"


def study() -> tuple[list[Case], lookup.Table]:
    """Return the frozen cases of the A100 study, and a table in which each of its classes leads."""
    place = StudyPlace(ROOT, "sdpa_bwd_sm80_square")
    declared = studyfile.read(place.study_yaml, "study.yaml")
    frozen = freeze.verify(declared, place)
    cases = [case for split in (Split.TRAIN, Split.HOLDOUT) for case in frozen.cases[split].values()]
    keys = {key.class_key(declared.row, A100.cc, declared.class_key, case.fields) for case in cases}
    entries = "\n".join(f'    {line!r}: ("always", {{"square": 1}}),' for line in sorted(keys, key=str))
    text = f"SCHEMA = 1\nROWS = {{{declared.row!r}: {declared.class_key!r}}}\nTABLE = {{\n{entries}\n}}\n"
    return cases, lookup.parse(text.encode(), "the table of the benchmark")


def table_price(cases: list[Case], table: lookup.Table, rounds: int) -> dict[str, Any]:
    """Return what a look-up adds to planning one graph: planned without and with it, in turns that change places."""
    case = cases[0]
    turns: dict[str, Callable[[], float]] = {
        "graph planned": lambda: timed(lambda: ready(case)),
        "graph planned, then choose()": lambda: timed(
            lambda: choose(ready(case), case.fields, table, base="backend", device=A100)
        ),
    }
    graph = ready(case)
    us = interleaved(turns, rounds * 10)
    alone = [timed(lambda: choose(graph, case.fields, table, base="backend", device=A100)) for _ in range(rounds * 100)]
    us["choose() alone"] = spread(alone)
    us["look-up alone"] = spread(
        [timed(lambda: lookup.lookup(table, "sdpa_bwd_sm80", "8.0", case.fields)) for _ in range(rounds * 100)]
    )
    return {"what": "One promoted class, with and without the table", "n": rounds * 10, "us": us}


def study_price(cases: list[Case], table: lookup.Table, count: int) -> dict[str, Any]:
    """Return what planning a study's cases costs, all four legs named, and what the library alone takes of it."""
    took: dict[str, list[float]] = {"library alone": [], "studytool, four legs named": []}
    beyond = []
    for turn in range(count):
        case = cases[turn % len(cases)]
        order = list(took.items()) if turn % 2 else list(reversed(took.items()))
        own = {}
        for name, values in order:
            run = (lambda c=case: bare(c)) if name == "library alone" else (lambda c=case: legs(c, table))
            own[name] = timed(run)
            values.append(own[name])
        beyond.append(own["studytool, four legs named"] - own["library alone"])
    us = {name: spread(values) for name, values in took.items()} | {"beyond the library, paired": spread(beyond)}
    return {"what": "A study's cases", "n": count, "us": us}


def ready(case: Case) -> Any:
    """Return a case's graph, planned."""
    graph = graphs.build(case).graph
    graphs.plan(graph)
    return graph


def legs(case: Case, table: lookup.Table) -> list[str]:
    """Return the plan of each leg of a case, as the engine finds them before anything is built."""
    graph = ready(case)
    answer = lookup.lookup(table, "sdpa_bwd_sm80", A100.cc, case.fields, A100.board)
    orders = plans.orders(plans.engine_ids(graph), plans.row_engine("sdpa_bwd_sm80"), Order("backend", answer))
    return [plans.plan_at(graph, orders[leg][0]).identity for leg in LEGS]


def bare(case: Case) -> Any:
    """Return the same backward graph, planned, written out in the library's calls."""
    io, f32 = graphs.IO_TYPES[case.dtype], cudnn.data_type.FLOAT
    graph = cudnn.pygraph(io_data_type=io, intermediate_data_type=f32, compute_data_type=f32)

    def tensor(heads: int, size: int, dim: int) -> Any:
        stride = [size * heads * dim, dim, heads * dim, 1]
        return graph.tensor(dim=[case.b, heads, size, dim], stride=stride, data_type=io)

    q, o, do = (tensor(case.h_q, case.s_q, case.d_qk) for _ in range(3))
    k, v = (tensor(case.h_kv, case.s_kv, case.d_qk) for _ in range(2))
    stride = [case.s_q * case.h_q, case.s_q, 1, 1]
    stats = graph.tensor(dim=[case.b, case.h_q, case.s_q, 1], stride=stride, data_type=f32)
    made = graph.sdpa_backward(
        q=q,
        k=k,
        v=v,
        o=o,
        dO=do,
        stats=stats,
        attn_scale=case.d_qk**-0.5,
        diagonal_alignment=cudnn.diagonal_alignment.BOTTOM_RIGHT,
        diagonal_band_right_bound=0,
        diagonal_band_left_bound=case.window,
    )
    for out, like in zip(made, (q, k, v), strict=True):
        out.set_output(True).set_dim(list(like.dim)).set_stride(list(like.stride)).set_data_type(io)
    graph.validate()
    graph.build_operation_graph()
    graph.create_execution_plans(MODES)
    return graph


def interleaved(turns: dict[str, Callable[[], float]], rounds: int) -> dict[str, tuple[float, float]]:
    """Return median and 90th percentile in us of each; rounds go forth and back."""
    found: dict[str, list[float]] = {name: [] for name in turns}
    for number in range(rounds):
        for name, run in list(turns.items())[:: 1 if number % 2 else -1]:
            found[name].append(run())
    return {name: spread(values) for name, values in found.items()}


def spread(values: list[float]) -> tuple[float, float]:
    """Return the median and the 90th percentile."""
    return statistics.median(values), statistics.quantiles(values, n=10)[-1]


def timed(run: Callable[[], Any]) -> float:
    """Return how long a call takes in us."""
    begin = time.perf_counter_ns()
    run()
    return (time.perf_counter_ns() - begin) / 1000


if __name__ == "__main__":
    main()
