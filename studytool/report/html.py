"""report.html: the text of report.md with plots and a table of all cases, in one file that needs no network."""

import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, NamedTuple

import jinja2
from markdown_it import MarkdownIt

from studytool import rows
from studytool.metrics import ratio_text
from studytool.model import Case, Record
from studytool.report import against, markdown, plots, together
from studytool.report.cells import time_text
from studytool.report.sources import Sources
from studytool.rows import Row
from studytool.runtime import key


class Measured(NamedTuple):
    """What was measured on the hold-out: its cases by digest and its records in the order of timing."""

    cases: Mapping[str, Case]
    records: Sequence[Record]
    rows: Sequence[Row]


def render(sources: Sources, measured: Measured) -> str:
    """Return report.html."""
    return _of(markdown.render(sources), [sources], [measured])


def render_together(all_sources: Sequence[Sources], all_measured: Sequence[Measured]) -> str:
    """Return the report.html of a study, over all of its dtypes; what was measured in the order of the sources."""
    return _of(together.render(all_sources), all_sources, all_measured)


def _of(text: str, all_sources: Sequence[Sources], all_measured: Sequence[Measured]) -> str:
    """Return a report's text as a page, with the plots, the coverage and all cases of its dtypes."""
    drawn: dict[str, list[plots.Plot]] = {}
    for sources, measured in zip(all_sources, all_measured, strict=True):
        for section, own in (_plots(sources, measured) if sources.score["cases"] else {}).items():
            named = section == "Change" or len(all_sources) == 1  # classes name their dtype themselves
            titled = own if named else [plot._replace(title=f"{sources.score['dtype']}: {plot.title}") for plot in own]
            drawn.setdefault(section, []).extend(titled)
    found = [case for sources in all_sources for case in sources.score["cases"]]
    cases = [_cells(case) for case in sorted(found, key=lambda case: -case["auto_over_default_ppm"][0])]
    return _page(text, drawn, _coverage(all_sources, all_measured), cases)


def compare(here: Sources, there: Sources, names: tuple[str, str]) -> str:
    """Return against.html: two runs of one study, called by these names, side by side."""
    found = against.pairs(here, there)
    drawn = {"Ratios that moved most": [plots.against(found, names)]} if found else {}
    return _page(against.render(here, there, names), drawn, None, [])


def _page(
    source: str,
    drawn: Mapping[str, Sequence[plots.Plot]],
    coverage: "Coverage | None",
    cases: Sequence[Sequence[tuple[str, int | str]]],
) -> str:
    """Return Markdown as a page, with the plots of each section behind its text."""
    text = MarkdownIt("commonmark", {"html": False}).enable("table")
    head, *rest = source.split("\n## ")
    title, lead = head.removeprefix("# ").split("\n", 1)
    sections = []
    for section in rest:
        name, body = section.split("\n", 1)
        own = {"plots": drawn.get(name, []), "body": text.render(body)}
        sections.append({"name": name, "id": name.lower().replace(" ", "-"), **own})
    page = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    template = page.from_string(resources.files("studytool.report").joinpath("report.html.j2").read_text("utf-8"))
    return template.render(
        title=title, lead=text.render(lead), sections=sections, coverage=coverage, columns=_COLUMNS, cases=cases
    )


def _plots(sources: Sources, measured: Measured) -> dict[str, list[plots.Plot]]:
    """Return the plots of each section."""
    score = sources.score
    control = rows.control(rows.aliased(rows.timed_cells(measured.rows)))
    return {
        "Result": [plots.regrets(score), plots.speedups(score)],
        "Change": list(plots.classes(sources.fit, score, measured.cases, sources.header.margin_ppm)),
        "Noise and control": [plots.noise(score, control)],
        "How the hold-out was run": list(plots.over_the_run(measured.rows, _states(measured.records))),
    }


_STATES = {
    "clock, MHz": "clock_mhz",
    "power, W": "power_mw",
    "temperature, °C": "temperature_c",
    "throttled, blocks": "throttle",
}


def _states(records: Sequence[Record]) -> dict[str, list[float | None]]:
    """Return per record, in the order of timing, what the device said of itself: medians over blocks."""
    found: dict[str, list[float | None]] = {}
    for name, source in _STATES.items():
        values = [record.clock_mhz if source == "clock_mhz" else record.blocks.get(source, ()) for record in records]
        found[name] = [_state(source, [value for value in own if value >= 0]) for own in values]
    return found


def _state(source: str, values: Sequence[int]) -> float | None:
    if not values:
        return None
    if source == "throttle":
        return float(sum(value != 0 for value in values))
    middle = sorted(values)[len(values) // 2]
    return middle / 1000 if source == "power_mw" else float(middle)


_COLUMNS = (
    ("case", "text"),
    ("class", "text"),
    ("regime", "text"),
    ("look-up", "text"),
    ("backend", "number"),
    ("frost", "number"),
    ("frost / backend", "number"),
    ("regret, default", "number"),
    ("regret, applied", "number"),
    ("applied / default", "number"),
    ("interval", "text"),
    ("repeat spread", "number"),
    ("code", "text"),
)


def _cells(case: Mapping[str, Any]) -> list[tuple[str, int | str]]:
    """Return the cells of a case as they are shown, each with what it is sorted by."""
    ratio, low, high = case["auto_over_default_ppm"]
    spread = max(case["spread_ppm"].values())
    look = {True: "leads", False: "trails", None: "no entry"}[case["lookup"]]
    texts = (case["label"], " ".join(map(str, case["class"][2:])), case["regime"], look)
    times = [(time_text(case["leg_ns"][leg]), int(case["leg_ns"][leg])) for leg in ("backend", "frost")]
    ratios = (case["frost_over_backend_ppm"], case["regret_ppm"]["default"], case["regret_ppm"]["auto"], ratio)
    interval = f"{ratio_text(low)} to {ratio_text(high)}" if math.isfinite(high) else ""
    return [
        *((text, text) for text in texts),
        *times,
        *((ratio_text(value), value) for value in ratios),
        (interval, interval),
        (ratio_text(spread), spread),
        (case["code"] or "ok", case["code"] or "ok"),
    ]


class Coverage(NamedTuple):
    """Which values of each feature each class has, by split; what never varied stands apart."""

    classes: Sequence[str]
    rows: Sequence[tuple[str, str, Sequence[str]]]
    constant: Sequence[tuple[str, str]]


_MOST_VALUES = 12


def _coverage(all_sources: Sequence[Sources], all_measured: Sequence[Measured]) -> Coverage:
    """Return per value of a feature and class how many cases there are, train + hold-out."""
    outcomes = [outcome for sources in all_sources for outcome in sources.fit.outcomes]
    names = [" ".join(map(str, outcome.class_key[2:])) for outcome in outcomes]
    counts: dict[tuple[str, str], dict[str, list[int]]] = {}
    fields = [(item.case.class_key, item.case.fields, 0) for outcome in outcomes for item in outcome.judged]
    study, cc = all_sources[0].study, all_sources[0].summary.cc
    holdout = [case for measured in all_measured for case in measured.cases.values()]
    fields += [(key.class_key(study.row, cc, study.class_key, case.fields), case.fields, 1) for case in holdout]
    for class_key, case, split in fields:
        name = " ".join(map(str, class_key[2:]))
        for feature, value in zip(key.FACTS, key.facts(case), strict=True):
            own = counts.setdefault((feature, str(value)), {}).setdefault(name, [0, 0])
            own[split] += 1
    values = {feature: [value for name, value in counts if name == feature] for feature in key.FACTS}
    varied = [feature for feature in key.FEATURES if 1 < len(values[feature]) <= _MOST_VALUES]
    table = [
        (feature, value, ["{} + {}".format(*counts[feature, value].get(name, (0, 0))) for name in names])
        for feature in varied
        for value in sorted(values[feature], key=lambda text: (len(text), text))
    ]
    constant = [(feature, values[feature][0]) for feature in key.FEATURES if len(values[feature]) == 1]
    return Coverage(names, table, constant)
