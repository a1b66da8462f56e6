"""The plots of report.html: matplotlib figures as SVG whose colours follow the page, each with its numbers as a table.

The same numbers give the same bytes under one version of matplotlib: ids are salted, no date is written.
"""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from studytool.fit import Fit, Outcome
from studytool.metrics import PPM, ratio_text
from studytool.model import Case
from studytool.report.against import Pair
from studytool.report.sources import Score
from studytool.rows import Row
from studytool.runtime import key

INK, GRID = "#010203", "#010204"
SERIES = ("#010205", "#010206", "#010207", "#010208")
"""Colours that stand for the page's own: text and axes, grid, and series; the page says what they are in each mode."""

mpl.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "studytool", "font.size": 9.0}
mpl.rcParams |= {"axes.edgecolor": GRID, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
mpl.rcParams |= {"axes.grid": True, "axes.axisbelow": True, "grid.color": GRID, "grid.linewidth": 0.6}

_COLOURS = {INK: "currentColor", GRID: "var(--grid)"} | {c: f"var(--series-{n})" for n, c in enumerate(SERIES)}
_WIDTH, _HEIGHT = 5.6, 3.0


class Plot(NamedTuple):
    """A plot: its title, what it says in a sentence, the SVG, and its numbers as a table's head and rows."""

    title: str
    says: str
    svg: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def _svg(figure: Figure) -> str:
    stream = io.StringIO()
    figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = stream.getvalue()
    for stand_in, colour in _COLOURS.items():
        text = text.replace(stand_in, colour)
    head, rest = text[text.index("<svg") :].split(">", 1)
    return re.sub(r' (?:width|height)="[^"]*"', "", head) + ">" + rest  # as wide as the page lets it be


def _axes(width: float = _WIDTH, height: float = _HEIGHT) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(width, height))
    axes = figure.add_subplot()
    figure.subplots_adjust(0.62 / width, 0.5 / height, 1 - 0.1 / width, 1 - 0.45 / height)
    return figure, axes


def _label(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)


def _ratio_axis(axes: Axes, values: Sequence[float]) -> None:
    """Give the upright axis, of ratios, a log scale with a few plain numbers."""
    low, high = min([*values, 0.95]), max([*values, 1.05])
    steps = (
        0.01,
        0.02,
        0.03,
        0.05,
        0.1,
        0.2,
        0.3,
        0.4,
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
        1.0,
        1.1,
        1.2,
        1.5,
        2.0,
        3.0,
        4.0,
        6.0,
        8.0,
        12.0,
        20.0,
        50.0,
    )
    fine = (0.8, 0.85, 0.9, 0.95, 0.98, 1.0, 1.02, 1.05, 1.1, 1.15, 1.2)
    low, high = low * 0.97, high * 1.03
    ticks: list[float] = []
    for step in sorted(fine if low > 0.8 and high < 1.25 else steps, key=lambda step: abs(math.log(step))):
        apart = min((abs(math.log(step / tick)) for tick in ticks), default=math.inf)
        if low <= step <= high and apart > 0.08 * math.log(high / low):  # 1 first, and none upon another
            ticks.append(step)
    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FixedFormatter([f"{tick:g}" for tick in ticks]))


def _legend(axes: Axes, columns: int = 3) -> None:
    axes.legend(
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, frameon=False, labelcolor=INK, borderaxespad=0.2
    )


def classes(fit: Fit, score: Score, cases: Mapping[str, Case], margin_ppm: int) -> Iterator[Plot]:
    """Return, class by class, the ratio of frost to backend over size: train and hold-out cases, margin and bound."""
    holdout: dict[str, list[Mapping[str, Any]]] = {}
    for case in score["cases"]:
        holdout.setdefault(str(case["class"]), []).append(case)
    for outcome in fit.outcomes:
        yield _class(outcome, holdout.get(str(list(outcome.class_key)), []), cases, margin_ppm)


def _class(outcome: Outcome, holdout: Sequence[Mapping[str, Any]], cases: Mapping[str, Case], margin_ppm: int) -> Plot:
    axis = outcome.line.axis if outcome.line and outcome.line.axis else "s_kv"
    timed = [item for item in outcome.judged if item.ratio_ppm]
    train = [(key.axis_value(item.case.fields, axis), item.ratio_ppm) for item in timed]
    seen = [(key.axis_value(cases[case["case"]].fields, axis), int(case["frost_over_backend_ppm"])) for case in holdout]
    figure, axes = _axes(4.4, 3.2)
    for points, colour, marker, label in ((train, SERIES[0], "o", "train"), (seen, SERIES[1], "D", "hold-out")):
        if points:
            sizes, ratios = zip(*points, strict=True)
            axes.plot(
                sizes, [r / PPM for r in ratios], marker, color=colour, markersize=4, label=label, fillstyle="none"
            )
    axes.axhline(1.0, color=INK, linewidth=0.9)
    axes.axhline(PPM / (PPM + margin_ppm), color=INK, linewidth=0.9, linestyle="--", label="margin")
    if outcome.line and outcome.line.axis:
        axes.axvline(outcome.line.bound, color=SERIES[2], linewidth=1.1, linestyle=":", label="bound")
    sizes_known = sorted({size for size, _ in (*train, *seen)})
    _ratio_axis(axes, [ratio / PPM for _, ratio in (*train, *seen)])
    if len(sizes_known) > 1:
        axes.set_xscale("log", base=2)
        shown = [sizes_known[0], sizes_known[-1]]
        if sizes_known[0] < math.sqrt(shown[0] * shown[1]) < sizes_known[-1]:
            shown.insert(1, min(sizes_known, key=lambda size: abs(math.log(size / math.sqrt(shown[0] * shown[-1])))))
        axes.xaxis.set_major_locator(FixedLocator(shown))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FixedFormatter([str(size) for size in shown]))
    _label(axes, axis, "frost / backend")
    _legend(axes, 2)
    name = " ".join(map(str, outcome.class_key[2:]))
    says = (
        f"{outcome.line.rule} {outcome.line.axis} {outcome.line.bound or ''}".strip() if outcome.line else outcome.code
    )
    rows = [["train", item.case.label, str(item.verdict), ratio_text(item.ratio_ppm)] for item in timed]
    rows += [
        ["hold-out", case["label"], case["code"] or "ok", ratio_text(case["frost_over_backend_ppm"])]
        for case in holdout
    ]
    return Plot(name, says, _svg(figure), ("split", "case", "verdict or code", "frost / backend"), rows)


def regrets(score: Score) -> Plot:
    """Return the regret of default and of auto, each in its own order: what the table is worth, case by case."""
    found = {leg: sorted(int(case["regret_ppm"][leg]) for case in score["cases"]) for leg in ("default", "auto")}
    figure, axes = _axes()
    for (leg, values), colour, style in zip(found.items(), SERIES, ("-", "--"), strict=False):
        name = "with the entries" if leg == "auto" else "by default"
        share = [(place + 1) / len(values) for place in range(len(values))]
        axes.step(share, [value / PPM for value in values], style, where="pre", color=colour, linewidth=1.6, label=name)
    _ratio_axis(axes, [value / PPM for values in found.values() for value in values])
    _label(axes, "share of hold-out cases", "regret (1 is the faster engine)")
    _legend(axes)
    ends = {leg: values[-1] for leg, values in found.items()}
    says = f"worst regret {ratio_text(ends['default'])} by default, {ratio_text(ends['auto'])} with the entries"
    rows = [
        [case["label"], case["regime"], *(ratio_text(case["regret_ppm"][leg]) for leg in ("default", "auto"))]
        for case in sorted(score["cases"], key=lambda case: -case["regret_ppm"]["default"])
    ]
    return Plot("Regret, ordered", says, _svg(figure), ("case", "regime", "by default", "with the entries"), rows)


def speedups(score: Score) -> Plot:
    """Return applied over default, case by case in order, with its interval and the A/A band."""
    cases = sorted(score["cases"], key=lambda case: (case["auto_over_default_ppm"][0], case["case"]))
    band = (score["metrics"]["band"] or 0) / PPM
    figure, axes = _axes(_WIDTH, 3.2)
    centers, lows, highs = ([case["auto_over_default_ppm"][n] / PPM for case in cases] for n in range(3))
    places = list(range(1, len(cases) + 1))
    axes.fill_between([0, len(cases) + 1], 1 / (1 + band), 1 + band, color=GRID, label="A/A band", linewidth=0)
    most = [min(high, 4 * max(centers)) for high in highs]  # a single repeat has no upper end
    axes.vlines(places, [max(low, min(centers) / 4) for low in lows], most, color=SERIES[0], linewidth=0.9)
    axes.plot(places, centers, "o", color=SERIES[0], markersize=2.6, label="case, 95 % interval")
    axes.axhline(1.0, color=INK, linewidth=0.9)
    axes.set_xlim(0, len(cases) + 1)
    _ratio_axis(axes, [*centers, 1 + band, 1 / (1 + band)])
    _label(axes, "hold-out cases, fastest first", "applied / default")
    _legend(axes)
    faster = sum(high < 1 for high in highs)
    rows = [[case["label"], case["regime"], *(ratio_text(v) for v in case["auto_over_default_ppm"])] for case in cases]
    says = f"{faster} of {len(cases)} are faster with their whole interval; below 1 the table helps"
    return Plot("Applied over default", says, _svg(figure), ("case", "regime", "ratio", "low", "high"), rows)


def noise(score: Score, control: Sequence[float]) -> Plot:
    """Return two histograms: the spread of repeats of each leg, and the ratio of legs that ran one plan."""
    spreads = [value / PPM for case in score["cases"] for value in case["spread_ppm"].values()]
    off = [abs(math.expm1(value)) for value in control]
    figure, axes = _axes(_WIDTH, 2.6)
    most = max([*spreads, *off, 0.001])
    edges = [most * step / 24 for step in range(25)]
    named = ((spreads, SERIES[0], "spread of repeats"), (off, SERIES[1], "legs that ran one plan, off 1"))
    for values, colour, label in named:
        if values:
            axes.hist(
                values, bins=edges, histtype="step", color=colour, linewidth=1.5, label=f"{label} ({len(values)})"
            )
    _label(axes, "as a share of the time", "count")
    _legend(axes, 2)
    rows = []
    for values, _, label in named:
        ranked = sorted(values)
        if ranked:
            picks = [ranked[int(share * (len(ranked) - 1))] for share in (0, 0.25, 0.5, 0.75, 0.9, 1)]
            rows.append([label, str(len(ranked)), *(f"{value:.4f}" for value in picks)])
    head = ("as a share of the time", "count", "min", "25 %", "median", "75 %", "90 %", "max")
    return Plot("Noise", "how far apart equal things were", _svg(figure), head, rows)


def over_the_run(rows: Sequence[Row], states: Mapping[str, Sequence[float | None]]) -> Iterator[Plot]:
    """Return what happened over the run, record by record: the ratio's drift, and what the device said of itself."""
    drift = [None if row.health is None else 100 * row.health.drift for row in rows]
    series: dict[str, Sequence[float | None]] = {"drift of the ratio within a record, %": drift, **states}
    for name, values in series.items():
        known = [(place, value) for place, value in enumerate(values, 1) if value is not None]
        if not known:
            continue
        figure, axes = _axes(_WIDTH, 1.7)
        axes.plot(*zip(*known, strict=True), ".", color=SERIES[0], markersize=3)
        _label(axes, "record, in the order of timing", name.rpartition(", ")[2])
        ranked = sorted(value for _, value in known)
        says = f"{ranked[0]:.4g} to {ranked[-1]:.4g}, median {ranked[len(ranked) // 2]:.4g}"
        yield Plot(name, says, _svg(figure), ("record", name), [[str(place), f"{value:.6g}"] for place, value in known])


def against(found: Sequence[Pair], names: tuple[str, str]) -> Plot:
    """Return the ratio of frost to backend of each case in one run over that in another."""
    figure, axes = _axes(4.4, 3.6)
    for split, colour, marker in (("train", SERIES[0], "o"), ("hold-out", SERIES[1], "D")):
        own = [(pair.there_ppm / PPM, pair.here_ppm / PPM) for pair in found if pair.split == split]
        if own:
            axes.plot(*zip(*own, strict=True), marker, color=colour, markersize=4, fillstyle="none", label=split)
    ratios = [value / PPM for pair in found for value in (pair.here_ppm, pair.there_ppm)]
    _ratio_axis(axes, ratios)
    axes.set_xscale("log")
    axes.set_xlim(*axes.get_ylim())
    axes.xaxis.set_major_locator(axes.yaxis.get_major_locator())
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(axes.yaxis.get_major_formatter())
    axes.axline((1, 1), (2, 2), color=INK, linewidth=0.9)
    _label(axes, f"frost / backend, {names[1]}", f"frost / backend, {names[0]}")
    _legend(axes)
    rows = [[pair.split, pair.label, ratio_text(pair.here_ppm), ratio_text(pair.there_ppm)] for pair in found]
    return Plot("Ratios", "on the line nothing moved", _svg(figure), ("split", "case", *names), rows)
