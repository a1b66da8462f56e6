"""Two runs of one frozen study side by side: what differs around them, which verdicts flip, how far ratios moved."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from studytool import stats
from studytool.judge import Judged
from studytool.lines import rule_text
from studytool.metrics import ratio_text
from studytool.report import markdown
from studytool.report.cells import ratio, table
from studytool.report.sources import Sources

MOST_LISTED = 20


class Pair(NamedTuple):
    """One case in two runs: its ratios of frost to backend, and its verdicts where it is a train case."""

    split: str
    label: str
    here_ppm: int
    there_ppm: int
    here: str
    there: str

    @property
    def moved(self) -> float:
        """Return the log of the ratio here over that there."""
        return math.log(self.here_ppm / self.there_ppm)


def pairs(here: Sources, there: Sources) -> list[Pair]:
    """Return the cases that both runs timed, train before hold-out; of several regimes the one with the worst ratio."""
    train = [
        Pair("train", one.case.label, one.ratio_ppm, other.ratio_ppm, str(one.verdict), str(other.verdict))
        for digest, one in _judged(here).items()
        if (other := _judged(there).get(digest)) and one.ratio_ppm and other.ratio_ppm
    ]
    ours, theirs = (_holdout(sources) for sources in (here, there))
    holdout = [Pair("hold-out", label, ours[label], theirs[label], "", "") for label in ours if label in theirs]
    return train + holdout


def _judged(sources: Sources) -> Mapping[str, Judged]:
    return {item.case.digest: item for outcome in sources.fit.outcomes for item in outcome.judged}


def _holdout(sources: Sources) -> dict[str, int]:
    found: dict[str, int] = {}
    for case in sources.score["cases"]:
        found[case["label"]] = max(found.get(case["label"], 0), int(case["frost_over_backend_ppm"]))
    return found


def render(here: Sources, there: Sources, names: tuple[str, str]) -> str:
    """Return against.md; `names` are how the two runs are called."""
    found = pairs(here, there)
    flips = [pair for pair in found if pair.here != pair.there]
    sections = [
        f"# {here.study.name}, {here.score['dtype']}: {names[0]} against {names[1]}",
        _answer(here, there, found, flips),
        f"## Result\n\n{_results(here, there, names)}",
        f"## What differs\n\n{_differences(here, there, names)}",
        f"## Classes\n\n{_classes(here, there, names)}",
        f"## Verdicts that flip\n\n{_flips(flips, names)}",
        f"## Ratios that moved most\n\n{_moved(found, names)}",
    ]
    return "\n\n".join(sections) + "\n"


def _answer(here: Sources, there: Sources, found: Sequence[Pair], flips: Sequence[Pair]) -> str:
    rules, others = _rules(here), _rules(there)
    changed = sum(rules.get(name) != others.get(name) for name in rules.keys() | others.keys())
    if not found:
        return "**No case was timed by both runs.**"
    moves = [pair.moved for pair in found]
    return (
        f"**{changed} of {len(rules.keys() | others.keys())} classes have another entry or none; {len(flips)} of"
        f" {sum(pair.split == 'train' for pair in found)} train verdicts flip; frost / backend is"
        f" {ratio_text(stats.ppm(stats.geomean_log(moves)))} times what it was (geomean of {len(found)} cases;"
        f" {ratio_text(stats.ppm(min(moves)))} to {ratio_text(stats.ppm(max(moves)))}).**"
    )


def _results(here: Sources, there: Sources, names: tuple[str, str]) -> str:
    rows = [{**sources.score, "dtype": name} for sources, name in ((here, names[0]), (there, names[1]))]
    return markdown.result_table(rows).replace("| dtype |", "| run |", 1)


def _differences(here: Sources, there: Sources, names: tuple[str, str]) -> str:
    sides = [sources.fingerprint for sources in (here, there)]
    told = [{"board": p.board, "cc": p.cc, "measuring code": p.code[:12], **p.versions, **p.settings} for p in sides]
    rows = [
        [name, told[0].get(name, ""), told[1].get(name, "")]
        for name in sorted(told[0].keys() | told[1].keys())
        if told[0].get(name) != told[1].get(name)
    ]
    return table(["", *names], rows) if rows else "Board, versions, settings and measuring code are the same."


def _rules(sources: Sources) -> dict[str, str]:
    return {
        " ".join(map(str, outcome.class_key[2:])): rule_text(outcome.line) or outcome.code
        for outcome in sources.fit.outcomes
    }


def _classes(here: Sources, there: Sources, names: tuple[str, str]) -> str:
    ours, theirs = _rules(here), _rules(there)
    rows = [
        [
            name,
            ours.get(name, "none"),
            theirs.get(name, "none"),
            "" if ours.get(name) == theirs.get(name) else "CHANGED",
        ]
        for name in sorted(ours.keys() | theirs.keys())
    ]
    return table(["class", *names, ""], rows)


def _flips(flips: Sequence[Pair], names: tuple[str, str]) -> str:
    if not flips:
        return "None."
    rows = [
        [pair.label, f"{pair.here} {ratio(pair.here_ppm)}", f"{pair.there} {ratio(pair.there_ppm)}"]
        for pair in sorted(flips, key=lambda pair: (-abs(pair.moved), pair.label))[:MOST_LISTED]
    ]
    rest = f"\n\nAnd {len(flips) - MOST_LISTED} more." if len(flips) > MOST_LISTED else ""
    return table(["train case", *names], rows) + rest


def _moved(found: Sequence[Pair], names: tuple[str, str]) -> str:
    rows = [
        [pair.split, pair.label, ratio(pair.here_ppm), ratio(pair.there_ppm), ratio(stats.ppm(pair.moved))]
        for pair in sorted(found, key=lambda pair: (-abs(pair.moved), pair.split, pair.label))[:MOST_LISTED]
    ]
    return table(["split", "case, frost / backend", *names, f"{names[0]} / {names[1]}"], rows) if rows else "None."
