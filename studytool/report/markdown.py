"""report.md: what was asked, what was found, how sure it is, and what was not measured."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from studytool.explain import explain_rows
from studytool.fit import Fit
from studytool.ledger import Freshness
from studytool.metrics import metric_text, ratio_text
from studytool.model import Fingerprint, Study
from studytool.studyjson import Summary

Score = Mapping[str, Any]


class Sources(NamedTuple):
    """What a report is written from."""

    study: Study
    summary: Summary
    fit: Fit
    score: Score
    freshness: Freshness
    sessions: Sequence[tuple[str, str, int]]
    fingerprint: Fingerprint


def render(sources: Sources) -> str:
    """Return report.md."""
    study, score = sources.study, sources.score
    sections = [
        f"# {study.name}, {score['dtype']}\n\n{study.question}\n\n{_answer(sources)}",
        f"## Result\n\n{result_table([score])}\n\n{_legend(score)}\n\n{_gate(score)}",
        f"## Change\n\n{_lines(sources.fit)}\n\n{_classes(sources.fit)}",
        f"## Notable cases\n\n{_notable(score)}",
        f"## Regimes\n\n{_regimes(score)}",
        f"## Noise and control\n\n{_noise(sources)}",
        f"## Routing\n\n{_routing(score)}",
        f"## How the hold-out was run\n\n{_run(sources)}",
        f"## Not measured\n\n{_not_measured(sources)}",
        f"## Method\n\n{_method(study)}",
        f"## Provenance\n\n{_provenance(sources)}",
        "## Replay\n\n`studytool replay` on the study's folder checks every hash and recomputes every number above,"
        " without the device. It cannot tell when the records were made: for that, compare the manifest's SHA-256 with"
        " the line that `studytool freeze` printed, where it was posted beforehand.",
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
            _number(score["metrics"]["slower_beyond_noise"]),
            score["verdict"],
        ]
        for score in scores
    ]
    head = ["dtype", "cases", "default", "with the entries", "applied / default", "slower beyond noise", "gate"]
    return _table(head, rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _ratio(value: int | None) -> str:
    return "n/a" if value is None else ratio_text(value) if value >= 0 else f"-{ratio_text(-value)}"


def _number(value: int | None) -> str:
    return "n/a" if value is None else str(value)


def _time(value_ns: int) -> str:
    if value_ns < 1_000_000:
        return f"{value_ns // 1000}.{value_ns % 1000 // 100} µs"
    return f"{value_ns // 1_000_000}.{value_ns % 1_000_000 // 1000:03d} ms"


def _mean_max(score: Score, leg: str) -> str:
    metrics = score["metrics"]
    return f"{_ratio(metrics[f'regret_{leg}_geomean'])} ({_ratio(metrics[f'regret_{leg}_max'])})"


def _auto_default(score: Score) -> str:
    mean, least, most = (_ratio(score["metrics"][f"auto_over_default_{what}"]) for what in ("geomean", "min", "max"))
    return f"{mean} ({least}, {most})"


def _answer(sources: Sources) -> str:
    led = sum(outcome.line is not None for outcome in sources.fit.outcomes)
    score = sources.score
    return (
        f"**{led} of {len(sources.fit.outcomes)} classes get an entry; on the hold-out the gate says"
        f" {score['verdict']}; the hold-out is {_fresh(sources.freshness)}.**"
    )


def _fresh(freshness: Freshness) -> str:
    if freshness.state == "FRESH":
        return "FRESH"
    return f"SPENT, so this is not out-of-sample ({freshness.reason})"


def _legend(score: Score) -> str:
    low, high = score["intervals"].get("auto_over_default_geomean", (None, None))
    return (
        "Columns 3 and 4 are regret: a leg's time over the faster of frost and backend, geomean (max); 1 is the oracle."
        f" Applied over default is geomean (min, max), its 95 % bootstrap interval {_ratio(low)} to {_ratio(high)}."
    )


def _gate(score: Score) -> str:
    words = {True: "holds", False: "does not hold", None: "cannot be said"}
    rows = []
    for row in score["gate"]:
        shown = metric_text(row["condition"].split()[0], row["value"])
        rows.append([f"`{row['condition']}`", shown, words[row["holds"]]])
    return _table(["frozen gate", "found", ""], rows)


def _lines(fit: Fit) -> str:
    emitted = "\n".join(line.strip() for line in fit.text.splitlines()[1:])
    return f"```python\n{emitted}\n```" if emitted else "No class gets an entry; the table stays as it is."


def _classes(fit: Fit) -> str:
    rows = [
        [
            " ".join(str(part) for part in row["class"][2:]),  # type: ignore[index]
            str(row["cases"]),
            f"{row['win']} / {row['neutral']} / {row['lose']} / {row['inconclusive']}",
            _ratio(row["geomean_ppm"]),  # type: ignore[arg-type]
            str(row["rule"] or row["code"]),
            "" if row["rule"] else str(row["detail"]),
        ]
        for row in explain_rows(fit)
    ]
    head = ["class", "train cases", "win / neutral / lose / unclear", "frost / backend", "entry or code", "why not"]
    return _table(head, rows)


def _notable(score: Score) -> str:
    cases = score["cases"]
    if not cases:
        return "No case was timed."
    slowest = max(cases, key=lambda case: (case["auto_over_default_ppm"][0], case["case"]))
    saved = max(cases, key=lambda case: (_saved(case), case["case"]))
    regret = max(cases, key=lambda case: (case["regret_ppm"]["auto"], case["case"]))
    return "\n".join(
        [
            f"- Highest applied / default: {_ratio(slowest['auto_over_default_ppm'][0])}, {_case(slowest)}.",
            f"- Largest time saved: {_case(saved)}." if _saved(saved) > 0 else "- No case became faster.",
            f"- Largest regret with the entries: {_ratio(regret['regret_ppm']['auto'])}, {_case(regret)}.",
        ]
    )


def _saved(case: Mapping[str, Any]) -> int:
    return int(case["leg_ns"]["default"]) - int(case["leg_ns"]["auto"])


def _case(case: Mapping[str, Any]) -> str:
    times = case["leg_ns"]
    return f"{case['label']}: {_time(times['default'])} by default, {_time(times['auto'])} with the entries"


def _regimes(score: Score) -> str:
    """Return what each regime says by itself; the verdicts need them all."""
    rows = []
    for regime, found in score["regimes"].items():
        own = [case for case in score["cases"] if case["regime"] == regime]
        host = [case["host_ns"] for case in own if case["host_ns"]]
        rows.append(
            [
                regime,
                f"{_ratio(found['regret_default_geomean'])} ({_ratio(found['regret_default_max'])})",
                f"{_ratio(found['regret_auto_geomean'])} ({_ratio(found['regret_auto_max'])})",
                _ratio(found["auto_over_default_geomean"]),
                " / ".join(_time(sorted(times[leg] for times in host)[len(host) // 2]) for leg in ("backend", "frost"))
                if host
                else "not apart",
                str(sum(case["host_bound"] for case in own)),
            ]
        )
    head = ["regime", "default", "with the entries", "applied / default", "host time, backend / frost", "host-bound"]
    return _table(head, rows)


def _noise(sources: Sources) -> str:
    metrics, score = sources.score["metrics"], sources.score
    repeats = "" if score["repeats"] >= 5 else " With fewer than 5 repeats the intervals are too wide to quote."
    return (
        f"- A/A band, the noise floor (95th percentile of |ratio - 1| of legs that ran one plan):"
        f" {_ratio(metrics['band'])} on the hold-out, {_ratio(sources.summary.band_ppm)} on the train split. These"
        f" ratios range from {_ratio(metrics['control_min'])} to {_ratio(metrics['control_max'])}.\n"
        f"- Repeat spread: median {_ratio(metrics['spread_median'])}, p90 {_ratio(metrics['spread_p90'])},"
        f" max {_ratio(metrics['spread_max'])}.{repeats}\n"
        f"{_health(score)}"
        f"- Share of the gap between the better fixed choice and the oracle that the entries close:"
        f" {_ratio(metrics['closed_gap'])}."
    )


def _health(score: Score) -> str:
    found = score["health"]
    failing = [f"{case['label']} {case['code']}" for case in score["cases"] if case["code"]]
    if not found:
        return ""
    low, center, high = (_ratio(found["carry_over_ppm"][place]) for place in (1, 0, 2))
    return (
        f"- Carry-over after frost, as a ratio: {center} ({low} to {high}); place in a block: median"
        f" {_ratio(found['position_median_ppm'])}; drift of the ratio within a repeat: median"
        f" {_ratio(found['drift_median_ppm'])}; lag-1 autocorrelation: median {_ratio(found['lag1_median_ppm'])}.\n"
        f"- Still changing after the warm-up: at most {_ratio(found['trend_max_ppm'])}; cases whose control fails:"
        f" {', '.join(failing) or 'none'}.\n"
    )


def _routing(score: Score) -> str:
    rows = score["routing"]
    if not rows:
        return "No routing case was declared."
    kept = sum(row["auto"] == row["default"] and row["status"] == "ok" for row in rows)
    table = _table(
        ["graph", "look-up", "plan applied", "plan by default", "status"],
        [[row["label"], _look(row["lookup"]), row["auto"], row["default"], row["status"]] for row in rows],
    )
    return f"{kept} of {len(rows)} graphs keep their plan.\n\n{table}"


def _look(answer: bool | None) -> str:
    return {True: "leads", False: "trails", None: "no entry"}[answer]


def _run(sources: Sources) -> str:
    score = sources.score
    sessions = _table(
        ["session file", "started", "lines"],
        [[f"`{name}`", started, str(lines)] for name, started, lines in sources.sessions],
    )
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(score["statuses"].items()))
    failed = [f"- {row['status']}: {row['label']}: {row['error']}." for row in score["failed"]]
    left = [
        f"- Unscored: {row['split']} attempt {row['attempt']} with {row['lines']} of {row['planned']} lines."
        for row in score["unscored"]
    ]
    looks = f"- The hold-out is {_fresh(sources.freshness)}; per-case looks so far: {sources.freshness.looks}."
    coverage = score["coverage"]
    led = (
        f"- Of the hold-out cases the table leads {coverage['leads']}, trails {coverage['trails']} and leaves"
        f" {coverage['abstains']} as they are."
    )
    return "\n".join([f"- Cases by status: {statuses}.", *failed, led, looks, *left, "", sessions])


def _not_measured(sources: Sources) -> str:
    constant = sources.score["coverage"]["constant"]
    never = ", ".join(f"{name} {value}" for name, value in sorted(constant.items()))
    return (
        f"- Other boards than {sources.fingerprint.board}; other versions than those below.\n"
        f"- Regimes other than {', '.join(sources.study.protocol.regimes)}.\n"
        f"- Features that no timed case varied: {never or 'none'}."
    )


def _method(study: Study) -> str:
    protocol = study.protocol
    return (
        f"{protocol.repeats} repeats, each a fresh process that visits every case with fresh tensors; {protocol.blocks}"
        f" blocks a case and repeat, each leg timed once a block in the order of 4x4 Williams squares; samples of at"
        f" least {protocol.min_sample_ns // 1000} µs; inputs {', '.join(protocol.distributions)}. A ratio is the paired"
        " log ratio within a block, its median over blocks, its mean over repeats; intervals are t over repeats. Before"
        " timing, outputs were poisoned and compared between legs and, on small cases, with a float64 reference."
    )


def _provenance(sources: Sources) -> str:
    prints, score = sources.fingerprint, sources.score
    versions = ", ".join(f"{name} {value}" for name, value in sorted(prints.versions.items()))
    settings = ", ".join(f"{name} {value}" for name, value in sorted(prints.settings.items()))
    return "\n".join(
        [
            f"- Board: {prints.board}, cc {prints.cc}, {prints.cores} cores; clock tick {prints.tick_ns} ns.",
            f"- Versions: {versions}.",
            f"- Settings: {settings or 'none'}.",
            f"- Measuring code: `{prints.code}`.",
            f"- Frozen manifest: `{score['manifest_sha256']}`.",
            *(f"- `{name}`: `{digest}`." for name, digest in sorted(score["records"].items())),
        ]
    )
