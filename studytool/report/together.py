"""A study's report over all of its dtypes: one result table, all lines of the table, what was run, what was not."""

from collections.abc import Callable, Sequence

from studytool.labels import case_of
from studytool.metrics import metric_text
from studytool.report import control, markdown, sentences
from studytool.report.cells import ratio, table
from studytool.report.sources import Score, Sources
from studytool.runtime import key


def render(all_sources: Sequence[Sources]) -> str:
    """Return studies/NAME/report.md, from what the report of each dtype is written from."""
    study, scores = all_sources[0].study, [sources.score for sources in all_sources]
    sections = [
        f"# {study.name}\n\n{sentences.intro(study)}\n\n{_answer(all_sources)}",
        f"## Result\n\n{markdown.result_table(scores)}\n\n{_legend(all_sources)}\n\n{_gate(scores)}",
        f"## Change\n\n{_lines(all_sources)}",
        f"## Notable cases\n\n{markdown.notable([case for score in scores for case in score['cases']])}",
        f"## Noise and control\n\n{_noise(all_sources)}",
        f"## Routing\n\n{_routing(all_sources)}",
        f"## How the hold-out was run\n\n{_run(all_sources)}",
        f"## Not measured\n\n{_each(all_sources, sentences.not_measured)}",
        f"## Method\n\n{sentences.method(study)}",
        f"## Terms\n\n{sentences.TERMS}",
        f"## Provenance\n\n{_each(all_sources, sentences.machine)}",
        f"## Replay\n\n{sentences.REPLAY} Each dtype's own report, with its gate, classes, routing plans and sessions,"
        " is in the folder of its name.",
    ]
    return "\n\n".join(sections) + "\n"


def _answer(all_sources: Sequence[Sources]) -> str:
    return _each(all_sources, lambda sources: [f"- {sentences.answer(sources)}"], always=True)


def _each(all_sources: Sequence[Sources], say: Callable[[Sources], Sequence[str]], *, always: bool = False) -> str:
    """Return the items that the dtypes give, each once, with the dtypes it is of where it is not of all (or always)."""
    told: dict[str, list[str]] = {}
    for sources in all_sources:
        for line in say(sources):
            told.setdefault(line, []).append(sources.score["dtype"])
    return "\n".join(
        line if len(dtypes) == len(all_sources) and not always else f"- {', '.join(dtypes)}: {line[2:]}"
        for line, dtypes in told.items()
    )


def _legend(all_sources: Sequence[Sources]) -> str:
    found = [sources.score["intervals"].get("auto_over_default_geomean", (None, None)) for sources in all_sources]
    intervals = ", ".join(
        f"{sources.score['dtype']} {ratio(low)} to {ratio(high)}"
        for sources, (low, high) in zip(all_sources, found, strict=True)
    )
    return (
        f"{sentences.LEGEND} 95 % intervals of that geomean, classes and then cases drawn again: {intervals}."
        f"{sentences.small_gains(all_sources)}"
    )


def _gate(scores: Sequence[Score]) -> str:
    """Return the frozen gate, which all dtypes share, with what was found for each."""
    rows = []
    for place, row in enumerate(scores[0]["gate"]):
        metric = row["condition"].split()[0]
        found = [metric_text(metric, score["gate"][place]["value"]) for score in scores]
        holds = [score["gate"][place]["holds"] for score in scores]
        rows.append(
            [f"`{row['condition']}`", *(f"{a} ({markdown.HOLDS[b]})" for a, b in zip(found, holds, strict=True))]
        )
    return table(["frozen gate", *(score["dtype"] for score in scores)], rows)


def _lines(all_sources: Sequence[Sources]) -> str:
    emitted = [line.strip() for sources in all_sources for line in sources.fit.text.splitlines()[1:]]
    led = f"{len(emitted)} of {sum(len(sources.fit.outcomes) for sources in all_sources)} classes get an entry."
    shown = "```python\n{}\n```\n\n".format("\n".join(emitted)) if emitted else ""
    made = dict.fromkeys(sentences.made_with(sources) for sources in all_sources)
    return f"{led}\n\n{markdown.classes(all_sources)}\n\n{shown}{' '.join(made)}"


def _noise(all_sources: Sequence[Sources]) -> str:
    rows = []
    for sources in all_sources:
        metrics = sources.score["metrics"]
        rows.append(
            [
                sources.score["dtype"],
                *(ratio(metrics[f"spread_{what}"]) for what in ("median", "p90", "max")),
                f"{ratio(metrics['control_min'])} to {ratio(metrics['control_max'])}",
                ratio(metrics["band"]),
                ratio(sources.summary.band_ppm),
                ", ".join(control.failing(sources.score)) or "none",
            ]
        )
    head = ["dtype", "repeat spread, median", "p90", "max", "legs of one plan", "A/A band", "on train", "control fails"]
    return table(head, rows)


def _routing(all_sources: Sequence[Sources]) -> str:
    rows = []
    for sources in all_sources:
        score = sources.score
        led = [case for case in score["cases"] if case["lookup"]]
        ran = sum(case["plans"]["auto"] == case["plans"]["frost"] for case in led)
        plain = [case for case in score["cases"] if case["lookup"] is None]
        same = sum(case["plans"]["auto"] == case["plans"]["default"] for case in plain)
        led_classes = {outcome.class_key for outcome in sources.fit.outcomes if outcome.line}
        matched = sum(_class_of(sources, row["label"]) in led_classes for row in score["routing"])
        rows.append(
            [
                score["dtype"],
                f"{ran} of {len(led)}",
                f"{same} of {len(plain)}",
                f"{markdown.kept(score)} of {len(score['routing'])}",
                str(matched),
            ]
        )
    head = [
        "dtype",
        "hold-out cases that an entry leads, and that ran the row in every repeat",
        "without an entry, and ran the default",
        "routing cases that keep their plan",
        "of these are of a class with an entry",
    ]
    return table(head, rows)


def _class_of(sources: Sources, label: str) -> tuple[key.Value, ...]:
    study = sources.study
    return key.class_key(study.row, sources.summary.cc, study.class_key, case_of(label).fields)


def _run(all_sources: Sequence[Sources]) -> str:
    return _each(all_sources, _was_run, always=True)


def _was_run(sources: Sources) -> list[str]:
    score, freshness = sources.score, sources.freshness
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(score["statuses"].items()))
    looks = f"the hold-out is {sentences.fresh(freshness)}; per-case looks at it: {freshness.looks}"
    return [f"- {statuses}; {looks}.", *sentences.attempts(score), control.boards(score)]
