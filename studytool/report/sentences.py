"""What a report says in sentences: what was asked, the answer, how sure it is, and what was not measured."""

from collections.abc import Sequence

from studytool.ledger import Freshness
from studytool.metrics import PPM, ratio_text
from studytool.model import Study
from studytool.report.cells import auto_default, number
from studytool.report.sources import Score, Sources
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
REPLAY = (
    "`studytool replay` on the study's folder checks every hash and recomputes every number above, without the device."
    " It cannot tell when the records were made: for that, compare the manifest's SHA-256 with the line that"
    " `studytool freeze` printed, where it was posted beforehand."
)


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
            f"{reached} of {timed} hold-out cases reach an entry; applied / default {auto_default(score)} over all,"
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


def small_gains(all_sources: Sequence[Sources]) -> str:
    """Return how many cases that an entry leads gain less than the margin that it was made with, in any regime."""
    led, small = 0, 0
    for sources in all_sources:
        own = [case for case in sources.score["cases"] if case["lookup"]]
        enough = PPM * PPM // (PPM + sources.header.margin_ppm)
        led += len({case["case"] for case in own})
        small += len({case["case"] for case in own if case["auto_over_default_ppm"][0] > enough})
    return f" Of {led} cases that an entry leads {small} gain less than the margin." if led else ""


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
