"""What a look-up in a placement table costs: ours beside a plain dictionary and what libraries look up, in one run.

The others are written here after the published schemes; cudnn-frontend's `placement.place` is the installed one. All
are asked for the same cases in turns, from tables of the same 300 classes. What a library holds before it looks up (a
case, shapes, facts) is made ready before.

    python benchmarks/lookup.py [--quick] [--json FILE]
"""

import argparse
import copy
import functools
import importlib.util
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from generate import BOARD, CC, MARGIN, REPEATS, ROW, Data, summary

from studytool import fit, lines
from studytool.digest import permutation
from studytool.metrics import PPM
from studytool.model import Case
from studytool.runtime import key, lookup

ROOT = Path(__file__).resolve().parent.parent
FEATURES = ("dtype", "d_qk", "d_v", "mask", "heads", "tile")
DTYPES, DIMS, OTHER_DIMS, HEADS = ("bf16", "f16"), (64, 96, 128, 192, 256), (72, 80, 104, 136, 200), (1, 4, 0)
MASKS = (("none", 0), ("tl", 0), ("br", 0), ("tl", 64), ("br", 64))
TRAIN_SIZES, SIZES = (128, 256, 512, 1024, 2048, 4096), (384, 1536)
BATCH = 64
"""Look-ups in a sample: a quantile is over samples."""

LIMIT, INLINE = "dict, its key by class_key", "dict, its key written out"
CLASS, BOX = "studytool, scope class", "studytool, scope box"


class Rival(NamedTuple):
    """A way to look up: `ready` makes what it is asked with of a case, `run` looks a batch of these up."""

    ready: Callable[[Case], Any]
    run: Callable[[Sequence[Any]], None]


def cases(dims: Sequence[int], sizes: Sequence[int]) -> Iterator[Case]:
    """Return cases of so many sizes in each class; a group of heads of 0 is one head of K and V."""
    for dtype, dim, (mask, window), group, off, (turn, size) in itertools.product(
        DTYPES, dims, MASKS, HEADS, (0, 8), enumerate(sizes)
    ):
        heads = 8 << turn % 2
        yield Case(
            op="sdpa_fwd", dtype=dtype, b=1 << turn % 4, h_q=heads, h_kv=heads // group if group else 1,
            s_q=size + off, s_kv=size + off, d_qk=dim, d_v=dim, mask=mask, window=window,
        )  # fmt: skip


def table_text(scope: str) -> bytes:
    """Return the table that studytool makes of a study in which every case wins."""
    train = list(cases(DIMS, TRAIN_SIZES))
    data = Data(train, [""] * len(train), np.full(len(train), 0.7), np.full((len(train), REPEATS), np.log(0.7)))
    found = fit.fit(summary(data, FEATURES), b"", round(MARGIN * PPM), scope)
    return lines.table_text(lines.read_lines(found.text.encode(), "lines")[1]).encode()


def studytool(scope: str, function: Callable[..., object]) -> Rival:
    """Return ours."""
    table = lookup.parse(table_text(scope), scope)

    def run(batch: Sequence[Any]) -> None:
        for case in batch:
            function(table, ROW, CC, case, BOARD)

    return Rival(lambda case: case.fields, run)


def plain(*, inline: bool) -> Rival:
    """Return a dictionary by the same tuple, which is made by the runtime's own `class_key` or in place."""
    get, make = dict.fromkeys(lookup.parse(table_text("class"), "class").entries, True).get, key.class_key

    def run(batch: Sequence[Any]) -> None:
        for case in batch:
            get(make(ROW, CC, FEATURES, case))

    def run_inline(batch: Sequence[Any]) -> None:
        for case in batch:
            mask, h_q, h_kv = case.get("mask", "none"), case["h_q"], case["h_kv"]
            mask = f"{mask}+window" if case.get("window") else mask
            heads = "mha" if h_q == h_kv else "mqa" if h_kv == 1 else "gqa"
            tile = "off" if case["s_kv"] % 128 else "on"
            get((ROW, CC, case["dtype"], case["d_qk"], case["d_v"], mask, heads, tile))

    return Rival(lambda case: case.fields, run_inline if inline else run)


def nearest() -> Rival:
    """Return what fused-MoE configs do: a JSON file a class, read once; in it the key nearest to M of 18."""
    ms = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096)
    config = {"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 8, "num_warps": 4}
    files = {_name(*_class(case)): json.dumps(dict.fromkeys(ms, config)) for case in cases(DIMS, SIZES)}

    @functools.cache
    def configs(*of_class: int | str) -> dict[int, Any] | None:
        text = files.get(_name(*of_class))
        return {int(m): found for m, found in json.loads(text).items()} if text else None

    def nearest_to(m: int, found: dict[int, Any]) -> Any:
        return found[min(found.keys(), key=lambda x: abs(x - m))]

    def run(batch: Sequence[Any]) -> None:
        for of_class, m in batch:
            found = configs(*of_class)
            if found:
                nearest_to(m, found)

    return Rival(lambda case: (_class(case), case.b * case.s_q), run)


def _class(case: Case) -> tuple[int | str, ...]:
    return key.class_key(ROW, CC, FEATURES, case.fields)[2:]


def _name(*of_class: int | str) -> str:
    names = ",".join(f"{name}={value}" for name, value in zip(FEATURES, of_class, strict=True))
    return f"{names},device_name={BOARD.replace(' ', '_')}.json"


def strings() -> Rival:
    """Return what Inductor's template table does: text of dtypes, shapes and strides with the device, then without."""
    config = {"template_id": "sdpa", "BLOCK_M": 128, "BLOCK_N": 64, "num_stages": 3, "num_warps": 8}
    table = {f"{BOARD}+{_spelled(_nodes(case))}+sdpa": [config] for case in cases(DIMS, SIZES)}

    def run(batch: Sequence[Any]) -> None:
        for nodes in batch:
            both = f"{BOARD}+{_spelled(nodes)}+sdpa", f"{_spelled(nodes)}+sdpa"
            found = next((table[name] for name in both if name in table), [])
            for each in copy.deepcopy(found):
                del each["template_id"]

    return Rival(_nodes, run)


def _nodes(case: Case) -> tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]:
    shapes = ((case.h_q, case.s_q, case.d_qk), (case.h_kv, case.s_kv, case.d_qk), (case.h_kv, case.s_kv, case.d_v))
    return tuple((case.dtype, (case.b, h, s, d), (s * h * d, d, h * d, 1)) for h, s, d in shapes)


def _spelled(nodes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]) -> str:
    return str(tuple((dtype, list(shape), list(stride)) for dtype, shape, stride in nodes))


def placement() -> Rival:
    """Return cudnn-frontend's rules for its most measured row, on a described B200."""
    from cudnn.sdpa import graph_analyzer  # noqa: PLC0415 - only where it is installed
    from cudnn.sdpa.fwd import engines  # noqa: PLC0415
    from cudnn.sdpa.fwd import placement as rules  # noqa: PLC0415

    from studytool.engines.cudnn import graphs  # noqa: PLC0415

    graph_analyzer._device_cc = lambda: (10, 0)  # noqa: SLF001 - no public way to name a device that is not here
    graph_analyzer._device_sm_count = lambda: 148  # noqa: SLF001
    (spec,) = (spec for spec in engines.ENGINE_SPECS if spec.name == "sdpa_fwd_prefill_sm100")
    place = rules.place

    def run(batch: Sequence[Any]) -> None:
        for facts in batch:
            place(spec, facts)

    return Rival(lambda case: graph_analyzer.analyze(graphs.build(case).graph), run)


def prices(rounds: int) -> list[dict[str, Any]]:
    """Return per way of looking up the quantiles in ns of a hit and of a miss, and the ratio to the dictionary."""
    rivals = {
        CLASS: studytool("class", lookup.lookup),
        BOX: studytool("box", lookup.lookup),
        f"{CLASS}, explain": studytool("class", lookup.explain),
        f"{BOX}, explain": studytool("box", lookup.explain),
        LIMIT: plain(inline=False),
        INLINE: plain(inline=True),
        "nearest of 18 keys, as fused MoE": nearest(),
        "string key and deep copy, as Inductor": strings(),
    }
    if importlib.util.find_spec("cudnn"):
        rivals["cudnn-frontend placement.place"] = placement()
    asked: dict[tuple[str, str], list[list[Any]]] = {}
    for kind, found in (("hit", list(cases(DIMS, SIZES))), ("miss", list(cases(OTHER_DIMS, SIZES)))):
        mixed = [found[at] for at in permutation(len(found), kind)]
        for name, rival in rivals.items():
            ready = [rival.ready(case) for case in mixed]
            asked[name, kind] = [ready[at : at + BATCH] for at in range(0, len(ready) - BATCH + 1, BATCH)]
    ns: dict[tuple[str, str], list[tuple[float, float]]] = {place: [] for place in asked}
    for turn in range(rounds):
        for place, batches in list(asked.items())[:: 1 if turn % 2 else -1]:
            run, batch = rivals[place[0]].run, batches[turn % len(batches)]
            begin = time.thread_time_ns()
            run(batch)
            again = time.thread_time_ns()
            run(batch)
            ns[place].append(((again - begin) / BATCH, (time.thread_time_ns() - again) / BATCH))
    return [priced(name, ns) for name in rivals]


def priced(name: str, ns: dict[tuple[str, str], list[tuple[float, float]]]) -> dict[str, Any]:
    """Return one line: quantiles over batches in ns of CPU time, and medians over those of the dictionaries.

    The first pass comes after all others had their turn (cold caches), the second right after it (warm).
    """
    row: dict[str, Any] = {"what": name}
    for kind, state in (("hit", "warm"), ("hit", "cold"), ("miss", "warm")):
        passes = {other: [each[state == "warm"] for each in ns[other, kind]] for other in (name, LIMIT, INLINE)}
        p50 = {other: statistics.median(found) for other, found in passes.items()}
        row[f"{kind}, {state} p50 ns"] = p50[name]
        row[f"{kind}, {state} p99 ns"] = statistics.quantiles(passes[name], n=100)[-1]
        row[f"{kind}, {state} / dict"] = p50[name] / p50[LIMIT]
        row[f"{kind}, {state} / written out"] = p50[name] / p50[INLINE]
    return row


FRESH = """
import sys, time
sys.path.insert(0, sys.argv[1])
for name in sys.argv[4:]:
    __import__(name)
times = [time.process_time_ns()]
from studytool.runtime import lookup
times.append(time.process_time_ns())
table = lookup.load(sys.argv[2])
times.append(time.process_time_ns())
row, cc, dtype, dim = next(iter(table.entries))[:4]
case = {"op": "sdpa_fwd", "dtype": dtype, "b": 1, "h_q": 8, "h_kv": 8, "s_q": 1, "s_kv": 1, "d_qk": dim, "d_v": dim}

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1])

def ask(count):
    for size in range(1, count + 1):
        case["s_q"] = case["s_kv"] = size
        lookup.lookup(table, row, cc, case, "simulated")

ask(1000)
pages = resident()
ask(int(sys.argv[3]))
pages = resident() - pages
import json, os, tracemalloc
tracemalloc.start()
ask(1000)
traced = tracemalloc.get_traced_memory()[0]
ask(int(sys.argv[3]))
traced = tracemalloc.get_traced_memory()[0] - traced
kib = {"resident KiB": pages * os.sysconf("SC_PAGE_SIZE") / 1024, "traced KiB": traced / 1024}
print(json.dumps({"import ms": (times[1] - times[0]) / 1e6, "load ms": (times[2] - times[1]) / 1e6, **kib}))
"""
"""What a fresh isolated interpreter does with a root, a table, a count of look-ups, and modules to import before."""

STDLIB = ("ast", "collections.abc", "contextlib", "functools", "operator", "pathlib", "typing", "types", "warnings")


def fresh(times: int, count: int) -> list[dict[str, Any]]:
    """Return CPU times, medians of so many fresh interpreters, and what so many distinct look-ups add of memory."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder, "table.py")
        table.write_bytes(table_text("box"))
        for what, there in (("bare", ()), ("the runtime's standard modules imported", STDLIB)):
            command = [sys.executable, "-I", "-S", "-c", FRESH, str(ROOT), str(table)]
            counts = [count] + [0] * (times - 1)
            found = [json.loads(subprocess.check_output([*command, str(n), *there])) for n in counts]  # noqa: S603 - ours
            medians = {name: statistics.median(run[name] for run in found) for name in ("import ms", "load ms")}
            rows.append({"fresh interpreter": what, **found[0], **medians, "look-ups": count})
    return rows


def text(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows as Markdown."""
    cells = [
        [f"{cell:,.{1 if cell > 9 else 2}f}" if isinstance(cell, float) else str(cell) for cell in row]
        for row in (list(each.values()) for each in rows)
    ]
    return "".join("| " + " | ".join(line) + " |\n" for line in (list(rows[0]), ["---"] * len(rows[0]), *cells))


def main() -> None:
    """Print two tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: seconds, not a minute")
    parser.add_argument("--json", type=Path, help="also write the tables there")
    asked = parser.parse_args()
    found = prices(200 if asked.quick else 5000)
    print(text(found))
    alone = fresh(3, 20_000) if asked.quick else fresh(15, 1_000_000)
    print(text(alone), end="")
    if asked.json:
        asked.json.write_text(json.dumps({"lookups": found, "fresh": alone}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
