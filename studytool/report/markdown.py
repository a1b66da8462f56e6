"""report.md: what was asked, what was found, how sure it is, and what was not measured."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from studytool.explain import explain_rows
from studytool.fit import Fit
from studytool.ledger import Freshness
from studytool.lines import Header
from studytool.metrics import PPM, geomean_ppm, metric_text, ratio_text
from studytool.model import Fingerprint, Study
from studytool.report import control
from studytool.report.cells import number, ratio, table, time_text
from studytool.report.control import Score
from studytool.runtime import key
from studytool.studyjson import Summary

LEGEND = (
    "Columns 3 and 4 are regret: a leg's time over the faster of frost and backend, geomean (max); 1 is the oracle."
    " Applied over default is geomean (min, max)."
)
TERMS = "\n".join(
    f"- {line}"
    for line in (
        "**frost**, **backend**: the row that an entry lifts, and the engine that it competes with. **default**,"
        " **auto** (applied, with the entries): what runs without the table, and with it. These are a case's legs.",
        "**regret**: a leg's time over that of the faster of frost and backend; 1 is the best that can be had.",
        "**A/A band**: legs that run one plan should take the same time; 95 % of them are apart by no more than this.",
        "**repeat spread**: of a leg's times in different processes, the largest minus the least, over the median.",
        "**FRESH**: no entry changed after a look at the hold-out; **looks** counts the scores that were made of it.",
        "**gate**: the conditions that were frozen with the cases, before anything was timed.",
        "**b12 h48/6 d128 S16484 br w96**: 12 batches, 48 query and 6 key heads, head dimension 128, 16484 queries and"
        " keys, bottom-right causal mask, window of 96 keys. **tile** on: that length is a multiple of 128.",
    )
)
HOLDS = {True: "holds", False: "does not hold", None: "cannot be said"}
REPLAY = (
    "`studytool replay` on the study's folder checks every hash and recomputes every number above, without the device."
    " It cannot tell when the records were made: for that, compare the manifest's SHA-256 with the line that"
    " `studytool freeze` printed, where it was posted beforehand."
)


class Sources(NamedTuple):
    """What a report is written from."""

    study: Study
    summary: Summary
    fit: Fit
    header: Header
    score: Score
    freshness: Freshness
    sessions: Sequence[tuple[str, str, int]]
    fingerprint: Fingerprint


def render(sources: Sources) -> str:
    """Return report.md."""
    study, score = sources.study, sources.score
    sections = [
        f"# {study.name}, {score['dtype']}\n\n{intro(study)}\n\n**{answer(sources)}**",
        f"## Result\n\n{result_table([score])}\n\n{_legend(sources)}\n\n{_gate(score)}",
        f"## Change\n\n{classes([sources])}\n\n{_lines(sources)}",
        f"## Notable cases\n\n{notable(score['cases'])}",
        f"## Regimes\n\n{control.regimes(score)}",
        f"## Noise and control\n\n{control.noise(score, sources.summary.band_ppm)}",
        f"## Routing\n\n{_routing(score)}",
        f"## How the hold-out was run\n\n{_run(sources)}",
        f"## Not measured\n\n{_bullets(not_measured(sources))}",
        f"## Method\n\n{method(study)}",
        f"## Terms\n\n{TERMS}",
        f"## Provenance\n\n{_provenance(sources)}",
        f"## Replay\n\n{REPLAY}",
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
            _auto_default(score),
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


def _auto_default(score: Score) -> str:
    mean, least, most = (ratio(score["metrics"][f"auto_over_default_{what}"]) for what in ("geomean", "min", "max"))
    return f"{mean} ({least}, {most})"


def intro(study: Study) -> str:
    """Return what was asked, after a warning where no hardware was."""
    simulated = (
        "**SIMULATED: no hardware was timed. The times of both engines are declared in study.yaml, and what is found is"
        " what was declared. Not to be merged as a result about any device.**\n\n"
    )
    return f"{simulated if study.engine == 'simulated' else ''}{study.question}"


def answer(sources: Sources) -> str:
    """Return in a sentence in how many classes the row leads, and what the hold-out says of that."""
    rules = [outcome.line.rule for outcome in sources.fit.outcomes if outcome.line]
    never = rules.count("never")
    score = sources.score
    reached, timed = (score["metrics"][name] for name in ("reached", "cases_timed"))
    if not rules:
        tested = "nothing is claimed"
    elif not reached:
        tested = "NO hold-out case reaches an entry, so that the entries were not tested"
    else:
        tested = (
            f"{reached} of {timed} hold-out cases reach an entry; applied / default {_auto_default(score)} over all,"
            f" {number(score['metrics']['slower_beyond_noise'])} slower beyond noise"
        )
    return (
        f"`{sources.study.row}` leads in {len(rules) - never} of {len(sources.fit.outcomes)} classes"
        f"{f' and trails in {never}' if never else ''}; {tested}; the gate says {score['verdict']}; the hold-out is"
        f" {fresh(sources.freshness)}."
    )


def fresh(freshness: Freshness) -> str:
    """Return whether the hold-out still judges, with the reason where it does not."""
    if freshness.state == "FRESH":
        return "FRESH"
    return f"SPENT, so this is not out-of-sample ({freshness.reason})"


def _legend(sources: Sources) -> str:
    score = sources.score
    low, high = score["intervals"].get("auto_over_default_geomean", (None, None))
    return (
        f"{LEGEND} 95 % interval of that geomean, classes and then cases drawn again: {ratio(low)} to {ratio(high)}."
        f"{small_gains([sources])}"
    )


def small_gains(all_sources: Sequence[Sources]) -> str:
    """Return how many cases that an entry leads gain less than the margin that it was made with, in any regime."""
    led, small = 0, 0
    for sources in all_sources:
        own = [case for case in sources.score["cases"] if case["lookup"]]
        enough = PPM * PPM // (PPM + sources.header.margin_ppm)
        led += len({case["case"] for case in own})
        small += len({case["case"] for case in own if case["auto_over_default_ppm"][0] > enough})
    return f" Of {led} cases that an entry leads {small} gain less than the margin." if led else ""


def _gate(score: Score) -> str:
    rows = []
    for row in score["gate"]:
        shown = metric_text(row["condition"].split()[0], row["value"])
        rows.append([f"`{row['condition']}`", shown, HOLDS[row["holds"]]])
    return table(["frozen gate", "found", ""], rows)


def _lines(sources: Sources) -> str:
    emitted = "\n".join(line.strip() for line in sources.fit.text.splitlines()[1:])
    shown = f"```python\n{emitted}\n```" if emitted else "No class gets an entry; the table stays as it is."
    return f"{shown}\n\n{made_with(sources)}"


def made_with(sources: Sources) -> str:
    """Return which margin and scope the lines were made with, and whether those were declared."""
    header, decide = sources.header, sources.study.decide
    told = f"Made with margin {ratio_text(header.margin_ppm)}, scope {header.scope}"
    if (header.margin_ppm, header.scope) != (decide.margin_ppm, decide.scope):
        told += f"; **declared were {ratio_text(decide.margin_ppm)}, {decide.scope}**"
    holds = {
        "class": "An entry holds for every size of its class, also outside of the measured ones",
        "box": "An entry holds inside of the sizes that were measured, and on this board",
    }
    return f"{told}. {holds[header.scope]}."


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
    looks = f"- The hold-out is {fresh(sources.freshness)}; per-case looks at it so far: {sources.freshness.looks}."
    coverage = score["coverage"]
    led = (
        f"- Of the hold-out cases the table leads {coverage['leads']}, trails {coverage['trails']} and leaves"
        f" {coverage['abstains']} as they are."
    )
    return "\n".join(
        [f"- Cases by status: {statuses}.", *failed, led, looks, *attempts(score), control.boards(score), "", sessions]
    )


def attempts(score: Score) -> list[str]:
    """Return what was left unscored, and why a further attempt was made."""
    left = [
        f"- Unscored: {row['split']} attempt {row['attempt']} with {row['lines']} of {row['planned']} lines"
        + (f", of which the gate says {row['verdict']} with the same entries." if row["verdict"] else ".")
        for row in score["unscored"]
    ]
    left += [
        f"- {row['split']} attempt {row['attempt']} was made because: {row['reason']}."
        for row in score["unscored"]
        if row["reason"]
    ]
    left += [f"- {attempt} was made because: {reason}." for attempt, reason in sorted(score["reasons"].items())]
    return left


def not_measured(sources: Sources) -> list[str]:
    """Return what a reader could take for measured, and was not."""
    constant = sources.score["coverage"]["constant"]
    never = ", ".join(f"{name} {value}" for name, value in sorted(constant.items()) if name != "dtype")
    return [
        f"- Other boards than {sources.fingerprint.board}; other versions than those below.",
        f"- Sizes outside of train's: {_ranges(sources.summary)}.",
        f"- Regimes other than {', '.join(sources.study.protocol.regimes)}.",
        f"- Features with other values than the one that all timed cases have: {never or 'none'}.",
        "- Memory, workspace and determinism; numbers beyond the legs' agreement and the reference on small cases.",
    ]


def _ranges(summary: Summary) -> str:
    """Return the range of every size in the train split."""
    names = [*(name for name in key.GEOMETRY if name in key.INTEGER_FIELDS), "window"]
    values = {name: sorted(int(case.fields.get(name, 0)) for case in summary.cases) for name in names}
    return ", ".join(f"{name} {found[0]}-{found[-1]}" for name, found in values.items() if found[-1])


def method(study: Study) -> str:
    """Return how a study measures, in its own numbers."""
    protocol = study.protocol
    return (
        f"{protocol.repeats} repeats, each a fresh process that visits every case with fresh tensors; {protocol.blocks}"
        f" blocks a case and repeat, each leg timed once a block in the order of 4x4 Williams squares; samples of at"
        f" least {protocol.min_sample_ns // 1000} µs; inputs {', '.join(protocol.distributions)}. A ratio is the paired"
        " log ratio within a block, its median over blocks, its mean over repeats; intervals are t over repeats. Before"
        " timing, outputs were poisoned and compared between legs and, on small cases, with a float64 reference."
    )


def _provenance(sources: Sources) -> str:
    records = [f"- `{name}`: `{digest}`." for name, digest in sorted(sources.score["records"].items())]
    return _bullets([*machine(sources), *records])


def machine(sources: Sources) -> list[str]:
    """Return what measured: board, versions, settings, code, and the frozen manifest."""
    prints = sources.fingerprint
    versions = ", ".join(f"{name} {value}" for name, value in sorted(prints.versions.items()))
    settings = ", ".join(f"{name} {value}" for name, value in sorted(prints.settings.items()))
    return [
        f"- Board: {prints.board}, cc {prints.cc}, {prints.cores} cores; clock tick {prints.tick_ns} ns.",
        f"- Versions: {versions}.",
        f"- Settings: {settings or 'none'}.",
        f"- Measuring code: `{prints.code}`.",
        f"- Frozen manifest: `{sources.score['manifest_sha256']}`.",
    ]


def _bullets(lines: Sequence[str]) -> str:
    return "\n".join(lines)
