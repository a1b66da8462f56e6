"""report.md: what was asked, what was found, how sure it is, and what was not measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from studytool.explain import explain_rows
from studytool.metrics import geomean_ppm, metric_text
from studytool.report import control, sentences
from studytool.report.cells import auto_default, number, ratio, table, time_text
from studytool.report.sources import Score, Sources

HOLDS = {True: "holds", False: "does not hold", None: "cannot be said"}


def render(sources: Sources) -> str:
    """Return report.md."""
    study, score = sources.study, sources.score
    sections = [
        f"# {study.name}, {score['dtype']}\n\n{sentences.intro(study)}\n\n**{sentences.answer(sources)}**",
        f"## Result\n\n{result_table([score])}\n\n{_legend(sources)}\n\n{_gate(score)}",
        f"## Change\n\n{classes([sources])}\n\n{_lines(sources)}",
        f"## Notable cases\n\n{notable(score['cases'])}",
        f"## Regimes\n\n{control.regimes(score)}",
        f"## Noise and control\n\n{control.noise(score, sources.summary.band_ppm)}",
        f"## Routing\n\n{_routing(score)}",
        f"## How the hold-out was run\n\n{_run(sources)}",
        f"## Not measured\n\n{_bullets(sentences.not_measured(sources))}",
        f"## Method\n\n{sentences.method(study)}",
        f"## Terms\n\n{sentences.TERMS}",
        f"## Provenance\n\n{_provenance(sources)}",
        f"## Replay\n\n{sentences.REPLAY}",
    ]
    return "\n\n".join(sections) + "\n"


def result_table(scores: Sequence[Score]) -> str:
    """Return the table of results, one line a dtype."""
    rows = [
        [
            score["dtype"],
            f"{score['metrics']['cases_timed']} of {score['metrics']['cases']}",
            _mean_max(score, "default"),
            _mean_max(score, "auto"),
            auto_default(score),
            f"{score['metrics']['reached']}",
            number(score["metrics"]["slower_beyond_noise"]),
            score["verdict"],
        ]
        for score in scores
    ]
    head = [
        "dtype",
        "cases",
        "default",
        "with the entries",
        "applied / default",
        "reach an entry",
        "slower beyond noise",
        "gate",
    ]
    return table(head, rows)


def _mean_max(score: Score, leg: str) -> str:
    metrics = score["metrics"]
    return f"{ratio(metrics[f'regret_{leg}_geomean'])} ({ratio(metrics[f'regret_{leg}_max'])})"


def _legend(sources: Sources) -> str:
    score = sources.score
    low, high = score["intervals"].get("auto_over_default_geomean", (None, None))
    return (
        f"{sentences.LEGEND} 95 % interval of that geomean, classes and then cases drawn again: {ratio(low)} to"
        f" {ratio(high)}.{sentences.small_gains([sources])}"
    )


def _gate(score: Score) -> str:
    rows = []
    for row in score["gate"]:
        shown = metric_text(row["condition"].split()[0], row["value"])
        rows.append([f"`{row['condition']}`", shown, HOLDS[row["holds"]]])
    return table(["frozen gate", "found", ""], rows)


def _lines(sources: Sources) -> str:
    emitted = "\n".join(line.strip() for line in sources.fit.text.splitlines()[1:])
    shown = f"```python\n{emitted}\n```" if emitted else "No class gets an entry; the table stays as it is."
    return f"{shown}\n\n{sentences.made_with(sources)}"


def classes(all_sources: Sequence[Sources]) -> str:
    """Return what became of each class: its features, what train says of it, and how its hold-out cases fared."""
    rows = []
    for sources in all_sources:
        holdout: dict[str, list[int]] = {}
        for case in sources.score["cases"]:
            holdout.setdefault(str(case["class"]), []).append(int(case["auto_over_default_ppm"][0]))
        for row in explain_rows(sources.fit):
            own = holdout.get(str(row["class"]), [])
            rows.append(
                [
                    *(str(part) for part in row["class"][2:]),  # type: ignore[index]
                    str(row["rule"] or row["code"]),
                    f"{row['win']} / {row['neutral']} / {row['lose']} / {row['inconclusive']}",
                    ratio(row["geomean_ppm"]),  # type: ignore[arg-type]
                    str(len(own)),
                    f"{ratio(geomean_ppm(own))} ({ratio(max(own))})" if own else "n/a",
                    "" if row["rule"] else str(row["detail"]),
                ]
            )
    head = [*all_sources[0].study.class_key, "entry or code", "train: win / neutral / lose / unclear"]
    head += ["frost / backend", "hold-out cases", "applied / default (highest)", "why not"]
    return table(head, rows)


def notable(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return the slowest of cases, the one that saves most, and the one of the largest regret."""
    if not cases:
        return "No case was timed."
    slowest = max(cases, key=lambda case: (case["auto_over_default_ppm"][0], case["case"]))
    saved = max(cases, key=lambda case: (_saved(case), case["case"]))
    regret = max(cases, key=lambda case: (case["regret_ppm"]["auto"], case["case"]))
    return "\n".join(
        [
            f"- Highest applied / default: {ratio(slowest['auto_over_default_ppm'][0])}, {_case(slowest)}.",
            f"- Largest time saved: {_case(saved)}." if _saved(saved) > 0 else "- No case became faster.",
            f"- Largest regret with the entries: {ratio(regret['regret_ppm']['auto'])}, {_case(regret)}.",
            "- Ratios are paired within blocks, and each time is a median of its own: a quotient of times can differ.",
        ]
    )


def _saved(case: Mapping[str, Any]) -> int:
    return int(case["leg_ns"]["default"]) - int(case["leg_ns"]["auto"])


def _case(case: Mapping[str, Any]) -> str:
    times = case["leg_ns"]
    return f"{case['label']}: {time_text(times['default'])} by default, {time_text(times['auto'])} with the entries"


def _routing(score: Score) -> str:
    rows = score["routing"]
    if not rows:
        return "No routing case was declared."
    plans = table(
        ["graph", "look-up", "plan applied", "plan by default", "status"],
        [[row["label"], _look(row["lookup"]), row["auto_name"], row["default_name"], row["status"]] for row in rows],
    )
    return f"{kept(score)} of {len(rows)} graphs keep their plan.\n\n{plans}"


def kept(score: Score) -> int:
    """Return how many routing cases run the plan that they have by default."""
    return sum(row["auto"] == row["default"] and row["status"] == "ok" for row in score["routing"])


def _look(answer: bool | None) -> str:
    return {True: "leads", False: "trails", None: "no entry"}[answer]


def _run(sources: Sources) -> str:
    score = sources.score
    sessions = table(
        ["session file", "started", "lines"],
        [[f"`{name}`", started, str(lines)] for name, started, lines in sources.sessions],
    )
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(score["statuses"].items()))
    failed = [f"- {row['status']}: {row['label']}: {row['error']}." for row in score["failed"]]
    fresh = sentences.fresh(sources.freshness)
    looks = f"- The hold-out is {fresh}; per-case looks at it so far: {sources.freshness.looks}."
    coverage = score["coverage"]
    led = (
        f"- Of the hold-out cases the table leads {coverage['leads']}, trails {coverage['trails']} and leaves"
        f" {coverage['abstains']} as they are."
    )
    return "\n".join(
        [
            f"- Cases by status: {statuses}.",
            *failed,
            led,
            looks,
            *sentences.attempts(score),
            control.boards(score),
            "",
            sessions,
        ]
    )


def _provenance(sources: Sources) -> str:
    records = [f"- `{name}`: `{digest}`." for name, digest in sorted(sources.score["records"].items())]
    return _bullets([*sentences.machine(sources), *records])


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(lines)
