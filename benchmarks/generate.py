"""What making a table costs and is worth: ours against a decision tree that is trained as AutoHeuristic trains one.

Both see the same simulated measurements of classes whose true ratios are known, and answer for the same hold-out. The
tree is scikit-learn's with the split, the grid and the gates of PyTorch's torchgen/_autoheuristic.

    python benchmarks/generate.py [--quick] [--json FILE] [--million]
"""

import argparse
import difflib
import functools
import itertools
import json
import math
import multiprocessing
import re
import resource
import statistics
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from studytool import fit, lines
from studytool.grid import case_digest
from studytool.metrics import PPM
from studytool.model import LEGS, MASKS, Case, Decide, Status, Threshold
from studytool.runtime import key, lookup
from studytool.studyjson import CaseSummary, RegimeSummary, Summary

KINDS = ("threshold", "planted loser", "parity", "flip")
"""Frost is faster from some size on; 0.70, but 1.30 at the largest size; no different; 0.75, but 1.25 with a bias."""

KERNELS = (("sdpa_fwd", "tl"), ("sdpa_fwd", "br"), ("sdpa_fwd", "none"), ("sdpa_bwd", "tl"))
WORLDS, LEVELS, SHAPES = ("classes of a mask alike", "every class its own"), 12, ("classes of 12", "four classes")
ROW, CC, BOARD, REGIME, CLASS_KEY = "open_engine", "sim-1", "simulated", "eager-warm", ("op", "mask", "d_qk", "d_v")
REPEATS, NOISE, RIPPLE, MARGIN, BAND_PPM, T_95 = 5, 0.01, 0.01, 0.05, 20_000, 2.7764451051977987
OURS, TREE = "studytool", "tree"
DEPTHS = {TREE: (5, 6, 7), "tree of any depth": (5, 6, 7, 10, 15, None), "always the default": ()}
GRID = ((1, 5, 10, 0.01, 0.05, 0.02), ("gini", "entropy"))
"""The depths, leaf sizes and criteria of AutoHeuristic's grid; more depths than these; and none."""

Floats = np.ndarray[Any, np.dtype[np.float64]]


class Data(NamedTuple):
    """Cases with their kinds, their true ratios (frost over backend), and what each repeat measures, in logarithms."""

    cases: list[Case]
    kinds: list[str]
    truth: Floats
    logs: Floats

    def shuffled(self, seed: int) -> "Data":
        """Return the same measurements in another order."""
        order = np.random.Generator(np.random.PCG64([seed, 4])).permutation(len(self.cases))
        cases, kinds = ([values[at] for at in order.tolist()] for values in (self.cases, self.kinds))
        return Data(cases, kinds, self.truth[order], self.logs[order])


class World:
    """So many classes on so many sizes, and what is true of them."""

    def __init__(self, classes: int, levels: int, seed: int, name: str = WORLDS[0]) -> None:
        spaced = np.geomspace(128, 16_384, levels) if levels <= LEVELS else 128 + 8 * np.arange(levels)
        self.sizes: list[int] = spaced.round().astype(int).tolist()
        draw = np.random.Generator(np.random.PCG64([seed, 0]))
        self._seed, self._draws = seed, draw.random(classes).tolist()
        own = draw.integers(len(KINDS), size=classes).tolist()
        self.kinds = [KINDS[own[n] if name == WORLDS[1] else n % len(KINDS)] for n in range(classes)]

    def train(self) -> Data:
        """Return every class on every size, or on each second one with and without what flips the winner."""
        found, last = [], len(self.sizes) - 1
        for (number, kind), level in itertools.product(enumerate(self.kinds), range(len(self.sizes))):
            place, flipped = (level // 2, level % 2 == 1) if kind == "flip" else (level, False)
            size = self.sizes[place * last // (last // 2) if kind == "flip" else place]
            found.append((number, size, 1 << place % 4, 1 << place % 3, flipped))
        return self._measured(found, 1)

    def holdout(self, each: int) -> Data:
        """Return so many cases of each class with other sizes, between the smallest and the largest measured."""
        draw = np.random.Generator(np.random.PCG64([self._seed, 2]))
        ends = math.log(self.sizes[0]), math.log(self.sizes[-1])
        found = []
        for (number, kind), place in itertools.product(enumerate(self.kinds), range(each)):
            size, b, group = round(math.exp(draw.uniform(*ends))), int(draw.integers(1, 9)), 1 << draw.integers(3)
            found.append((number, size, b, int(group), kind == "flip" and place % 2 == 1))
        return self._measured(found, 3)

    def _measured(self, rows: list[tuple[int, int, int, int, bool]], stream: int) -> Data:
        draw = np.random.Generator(np.random.PCG64([self._seed, stream]))
        plain = np.array([self._ratio(number, size, flipped) for number, size, _b, _group, flipped in rows])
        truth = plain * np.exp(RIPPLE * draw.standard_normal(len(rows)))
        logs = np.log(truth)[:, None] + NOISE * draw.standard_normal((len(rows), REPEATS))
        return Data([_case(*row) for row in rows], [self.kinds[row[0]] for row in rows], truth, logs)

    def _ratio(self, number: int, size: int, flipped: bool) -> float:
        kind, draw = self.kinds[number], self._draws[number]
        if kind == "threshold":
            crossover = (400 + 80 * (number // len(KERNELS) % 64)) * (0.8 + 0.4 * draw)
            return float(min(1.6, 0.7 + 0.3 * crossover / size))
        if kind == "planted loser":
            return 0.70 if size <= self.sizes[-2] + draw * (self.sizes[-1] - self.sizes[-2]) else 1.30
        return 1.0 if kind == "parity" else 1.25 if flipped else 0.75


def _case(number: int, size: int, b: int, group: int, flipped: bool) -> Case:
    (op, mask), place = KERNELS[number % len(KERNELS)], number // len(KERNELS)
    return Case(
        op=op, dtype="bf16", mask=mask, b=b, h_q=4 * group, h_kv=4, s_q=size, s_kv=size, d_qk=8 * (1 + place % 64),
        d_v=8 * (1 + place // 64), bias="bool" if flipped else "none",
    )  # fmt: skip


def summary(data: Data, class_key: tuple[str, ...] = CLASS_KEY) -> Summary:
    """Return what studytool summarises from such measurements."""
    centers, halves = data.logs.mean(axis=1), T_95 * data.logs.std(axis=1, ddof=1) / math.sqrt(REPEATS)
    ppm = (np.rint(PPM * np.exp(centers + side * halves)).astype(int).tolist() for side in (-1.0, 0.0, 1.0))
    legs, plans = dict.fromkeys(LEGS, 100_000), {"backend": "1", "frost": "5", "auto": "1", "default": "1"}
    cases = [
        CaseSummary(
            digest=case_digest(case), label=case.label, fields=case.fields, status=Status.OK, error="", plans=plans,
            class_key=key.class_key(ROW, CC, class_key, case.fields), regimes={REGIME: RegimeSummary(
                repeats=REPEATS, code="", ratio_ppm=ratio, low_ppm=low, high_ppm=high, leg_ns=legs)},
        )
        for case, low, ratio, high in zip(data.cases, *ppm, strict=True)
    ]  # fmt: skip
    return Summary(
        schema=1, study="simulated", study_sha256="", manifest_sha256="", dtype="bf16", row=ROW, base="backend", cc=CC,
        board=BOARD, versions={}, measured={}, code="", class_key=class_key, guards=(), regimes=(REGIME,), attempt=1,
        decide=Decide(thresholds=(Threshold("s_kv", "from"), Threshold("s_kv", "upto"))), records="",
        band_ppm=BAND_PPM, cases=tuple(cases),
    )  # fmt: skip


class Made(NamedTuple):
    """What a method made of measurements, in how much time, and the features that it asks to be declared.

    Per case of the hold-out `answers` say whether frost leads, or None, which leaves the default: the backend.
    """

    seconds: float
    text: str
    answers: list[bool | None]
    asks: tuple[str, ...] = ()


def ours(data: Data, holdout: Data, declared: tuple[str, ...]) -> Made:
    """Return the lines that studytool makes, and what the runtime finds in them."""
    given = summary(data, (*CLASS_KEY, *declared))
    begin = time.process_time()
    found = fit.fit(given, b"", round(MARGIN * PPM), "box")
    seconds = time.process_time() - begin
    table = lookup.parse(lines.table_text(lines.read_lines(found.text.encode(), "lines")[1]).encode(), "table")
    asks = tuple(name for outcome in found.outcomes for name in re.findall(r"(\w+) as a key", outcome.detail))
    answers = [lookup.lookup(table, ROW, CC, case.fields, BOARD) for case in holdout.cases]
    return Made(seconds, found.text, answers, asks)


def tree(depths: Sequence[int | None], data: Data, holdout: Data, declared: tuple[str, ...]) -> Made:
    """Return the tree of the grid that answers most of the validation rightly, and what it answers.

    As AutoHeuristic's mixed_mm does: rows are split at random, and a leaf in which frost is 5 % slower in any train
    row leaves the default.
    """
    from sklearn.model_selection import train_test_split  # noqa: PLC0415 - not in a process that measures ours
    from sklearn.tree import DecisionTreeClassifier, export_text  # noqa: PLC0415

    x, ratios = features(data.cases, declared), np.exp(data.logs.mean(axis=1))
    begin = time.process_time()
    rest, _ = train_test_split(np.arange(len(x)), test_size=0.01, random_state=42)
    train, check = train_test_split(rest, test_size=0.19 / 0.99, random_state=42)
    most, best = 0, None
    for depth, leaf, criterion in itertools.product(depths, *GRID):
        model = DecisionTreeClassifier(max_depth=depth, min_samples_leaf=leaf, criterion=criterion, random_state=42)
        model.fit(x[train], ratios[train] < 1)
        unsafe = model.apply(x[train])[model.predict(x[train]) & (ratios[train] > 1.05)]
        is_right = model.predict(x[check]) == (ratios[check] < 1)
        right = int((is_right & ~np.isin(model.apply(x[check]), unsafe)).sum())
        if right > most:
            most, best = right, (model, unsafe)
    seconds = time.process_time() - begin
    if best is None or not holdout.cases:
        return Made(seconds, "", [None] * len(holdout.cases))
    model, unsafe = best
    asked = features(holdout.cases, declared)
    told = zip(np.isin(model.apply(asked), unsafe).tolist(), model.predict(asked).tolist(), strict=True)
    return Made(seconds, export_text(model, max_depth=1000), [None if silent else leads for silent, leads in told])


def features(cases: Sequence[Case], declared: tuple[str, ...]) -> Floats:
    """Return what a tree sees: sizes and their products, the words of the key one column a value, what is declared."""
    return np.array([
        (c.b, c.h_q, c.h_kv, c.s_kv, c.d_qk, c.d_v, c.b * c.h_kv, c.b * c.h_kv * c.s_kv, c.b * c.h_q * c.s_q,
         c.op == "sdpa_bwd", *(c.mask == mask for mask in MASKS), *(getattr(c, name) != "none" for name in declared))
        for c in cases
    ], dtype=np.float64)  # fmt: skip


METHODS = {OURS: ours} | {name: functools.partial(tree, depths) for name, depths in DEPTHS.items()}


def quality(classes: int, seeds: int) -> list[dict[str, Any]]:
    """Return a line for each world, state of declaration and method, over so many studies and their hold-outs."""
    found = []
    for name, feature, method in itertools.product(WORLDS, ("hidden", "declared"), METHODS):
        rows: list[tuple[str, float, bool | None]] = []
        runs = []
        for seed in range(seeds):
            world = World(classes, LEVELS, seed, name)
            train, holdout = world.train(), world.holdout(LEVELS)
            declared = () if feature == "hidden" else tuple(sorted(set(ours(train, holdout, ()).asks)))
            run, other = (METHODS[method](data, holdout, declared) for data in (train, train.shuffled(seed)))
            runs.append((run.seconds, changed_bytes(run.text, other.text)))
            rows += zip(holdout.kinds, holdout.truth.tolist(), run.answers, strict=True)
        row = {"classes": name, "feature": feature, "method": method, **scored(rows)}
        row["fit_cpu_s"], row["bytes_changed"] = map(statistics.fmean, zip(*runs, strict=True))
        own = {kind: scored([row for row in rows if row[0] == kind]) for kind in KINDS}
        row |= {f"{kind}: {what}": own[kind][what] for kind in KINDS for what in ("regret", "lost")}
        found.append(row)
    return found


def scored(rows: Sequence[tuple[str, float, bool | None]]) -> dict[str, Any]:
    """Return the regret and the lost cases of answers: frost's true time against the margin, where it leads."""
    regrets = [(truth if answer else 1.0) / min(truth, 1.0) for _, truth, answer in rows]
    return {
        "cases": len(rows),
        "regret": math.exp(statistics.fmean(map(math.log, regrets))),
        "max": max(regrets),
        "lost": sum(truth > 1 + MARGIN for _, truth, answer in rows if answer),
        "decided_%": 100 * statistics.fmean(answer is not None for *_, answer in rows),
        "led_%": 100 * statistics.fmean(answer is True for *_, answer in rows),
    }


def changed_bytes(one: str, other: str) -> int:
    """Return the bytes of the lines that come and go from one text to the other."""
    changes = list(difflib.unified_diff(one.splitlines(keepends=True), other.splitlines(keepends=True), n=0))[2:]
    return sum(len(line) - 1 for line in changes if not line.startswith("@@"))


def scale(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return what a fit of so many cases takes, each in a fresh process: small classes, large ones, and a tree."""
    found: list[dict[str, Any]] = []
    for method, shape in ((OURS, SHAPES[0]), (OURS, SHAPES[1]), (TREE, SHAPES[0])):
        rows: list[dict[str, Any]] = []
        for cases in sizes:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
                rows.append(fresh.submit(one_fit, method, shape, cases).result())
        for one, row in itertools.pairwise(rows):
            row["exponent"] = math.log(row["fit_cpu_s"] / one["fit_cpu_s"]) / math.log(row["cases"] / one["cases"])
        found += rows
    return found


def one_fit(method: str, shape: str, cases: int) -> dict[str, Any]:
    """Fit in this process; return how long that took, and this process's most memory before it and in all."""
    levels = LEVELS if shape == SHAPES[0] else cases // len(KINDS)
    world = World(max(1, cases // levels), levels, 0)
    train = world.train()
    given = summary(train) if method == OURS else None
    before, begin = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, time.process_time()
    if given:
        fit.fit(given, b"", round(MARGIN * PPM), "box")
    seconds = time.process_time() - begin if given else METHODS[method](train, world.holdout(0), ()).seconds
    row = {"method": method, "classes": shape, "cases": cases, "fit_cpu_s": seconds, "MiB_before": before}
    return row | {"peak_MiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "exponent": None}


def text(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> str:
    """Return these columns of rows as Markdown."""
    cells = ([f"{row[name] or 0:{'.5g' if isinstance(row[name], float) else ''}}" for name in columns] for row in rows)
    return "".join("| " + " | ".join(line) + " |\n" for line in (columns, ["---"] * len(columns), *cells))


def main() -> None:
    """Print three tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="fewer and smaller studies: seconds, not minutes")
    parser.add_argument("--json", type=Path, help="also write the tables there")
    parser.add_argument("--million", action="store_true", help="also fit a million cases")
    asked = parser.parse_args()
    grown = scale([100, 1000] if asked.quick else [100, 10_000, 100_000] + [1_000_000] * asked.million)
    found = quality(*((48, 2) if asked.quick else (128, 10)))
    kinds = [name for name in found[0] if ":" in name]
    print(text(found, [name for name in found[0] if name not in kinds]))
    print(text(found, ["classes", "feature", "method", *kinds]))
    print(text(grown, list(grown[0])), end="")
    if asked.json:
        asked.json.write_text(json.dumps({"quality": found, "scale": grown}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
