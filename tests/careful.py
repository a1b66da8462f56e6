"""Changes to a finished study whose traces were wiped out, but for some: chains mended, seals and scores renewed."""

import contextlib
import functools
import json
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import benches
import finished
import forger
import pytest
from bad_records import chained, values_of
from clumsy import FILES, FOLDER, FROZEN, RECORDS, Change, Names
from forger import Json, Tree

from studytool import freeze, ledger, opening, pipeline, reporting, schedule
from studytool.digest import pretty, sha256
from studytool.errors import StudyError
from studytool.grid import expand
from studytool.layout import StudyPlace

TRAIN, HOLDOUT, ROUTING = (FILES[f"{split} records"] for split in ("train", "holdout", "routing"))
LEDGER = FILES["ledger"]
LINE = 6
"""The line of a records file that is changed where any would do: neither the first nor the last."""

Edit = Callable[[list[Json]], object]


def named(file: str, line: int | None = None, *more: str) -> Names:
    """Return the words that name a line of a file, or the file."""
    return (f"{file}:" if line is None else f"{file}:{line}:", *more)


# Records changed, and everything that follows from them made anew


def faster(values: list[Json]) -> None:
    """Halve what a leg took in one line."""
    leg = values[LINE - 1]["legs"]["auto"]
    leg["ns"] = [max(1, ns // 2) for ns in leg["ns"]]


def smoother(values: list[Json]) -> None:
    """Let all samples of a leg be as the least of them."""
    leg = values[LINE - 1]["legs"]["auto"]
    leg["ns"] = [min(leg["ns"])] * len(leg["ns"])


def failed(values: list[Json]) -> None:
    """Let a line have crashed."""
    values[LINE - 1] |= {"status": "crashed", "legs": {}, "order": [], "error": "ended by SIGKILL"}


def clock(values: list[Json]) -> None:
    """Let the device have run at another rate."""
    values[LINE - 1]["clock_mhz"] = [2000, 2000]


VALUES: dict[str, Edit] = {"faster": faster, "smoother": smoother, "crashed": failed, "another clock": clock}
"""Changes of a hold-out line after which it still could be one."""

STEPS = ("chain", "seal", "score.json", "look", "report.md", "ledger's chain")
"""What a forger may mend after a hold-out record was changed; with all of it done, nothing is left to be found."""


@functools.cache
def forged_values(place: StudyPlace, change: Edit) -> tuple[bytes, Tree]:
    """Return a changed hold-out whose chain is not mended, and all files after everything was made anew behind it."""
    original, path = forger.tree_of(place.root), place.root / HOLDOUT
    lines = path.read_bytes().splitlines(keepends=True)
    forger.edit(place, "holdout-01-001", change)
    unchained = b"".join([*lines[: LINE - 1], path.read_bytes().splitlines(keepends=True)[LINE - 1], *lines[LINE:]])
    forger.forge(place)
    forged = forger.tree_of(place.root)
    forger.put(place.root, original)
    return unchained, forged


def after_steps(change: Edit, *steps: str) -> Callable[[StudyPlace], Names]:
    """Return what changes the hold-out and mends these things alone; it returns what names one that is not mended."""

    def act(place: StudyPlace) -> Names:
        unchained, forged = forged_values(place, change)
        taken = {HOLDOUT: forged[HOLDOUT] if "chain" in steps else unchained}
        taken |= {FILES[name]: forged[FILES[name]] for name in ("score.json", "report.md") if name in steps}
        forger.put(place.root, forger.tree_of(place.root) | taken)
        events, told = forger.events_of(place), forger.tell(place)
        changed = []
        for number, event in enumerate(told):
            if event["event"] == "score":
                event["body"]["score"] = sha256(forged[FILES["score.json"]])
            if event != events[number] and ("look" if event["event"] == "score" else "seal") in steps:
                events[number] = event
                changed.append(number + 1)
        forger.write_events(place, forger.rehashed(events) if "ledger's chain" in steps else events)
        return _unmended(steps, changed)

    return act


def _unmended(steps: tuple[str, ...], changed: list[int]) -> Names:
    if "ledger's chain" not in steps and changed:  # nothing else is looked at beside a broken ledger
        return named(LEDGER, changed[0])
    if "chain" not in steps:
        return named(HOLDOUT, LINE)
    names = {"seal": HOLDOUT, "look": LEDGER, "score.json": FILES["score.json"], "report.md": FILES["report.md"]}
    return tuple(f"{names[step]}:" for step in names if step not in steps)


def value_changes() -> Iterator[tuple[str, Change]]:
    """Return every choice of things mended after one change, and the first few of them, and all but one, after each."""
    for chosen in range(2 ** len(STEPS) - 1):
        steps = tuple(step for place, step in enumerate(STEPS) if chosen >> place & 1)
        if "ledger's chain" not in steps or {"seal", "look"} & set(steps):  # a chain that is whole needs no mending
            yield f"faster, mended {', '.join(steps) or 'nothing'}", Change(after_steps(faster, *steps))
    for name in ("smoother", "crashed", "another clock"):
        for count in range(len(STEPS)):
            yield f"{name}, mended {count} things", Change(after_steps(VALUES[name], *STEPS[:count]))
        for left in STEPS[1:-1]:
            steps = tuple(step for step in STEPS if step != left)
            yield f"{name}, all mended but {left}", Change(after_steps(VALUES[name], *steps))


# Files of a forged study among those of the true one


def better_train(values: list[Json]) -> None:
    """Let frost be a tenth faster in a whole train split."""
    for value in values[1:]:
        leg = value["legs"]["frost"]
        leg["ns"] = [ns * 9 // 10 for ns in leg["ns"]]


@functools.cache
def forged_train(place: StudyPlace) -> Tree:
    """Return all files after everything was made anew behind a better train split."""
    original = forger.tree_of(place.root)
    forger.edit(place, "train-01-001", better_train)
    forger.forge(place, train=True)
    forged = forger.tree_of(place.root)
    forger.put(place.root, original)
    together = FILES["report.md"].replace("/bf16", "")
    assert {name for name in forged if forged[name] != original[name]} == {*FORGED, together}
    return forged


FORGED = (
    TRAIN,
    *(FILES[name] for name in ("study.json", "lines.txt", "table.py")),
    *(name.replace("/bf16", f"/{dtype}") for dtype in ("bf16", "f16") for name in (HOLDOUT, ROUTING, LEDGER)),
    *(FILES[name].replace("/bf16", f"/{dtype}") for dtype in ("bf16", "f16") for name in ("score.json", "report.md")),
)
"""The files that follow from the train split of bf16."""


def mixed(chosen: frozenset[str]) -> Callable[[StudyPlace], Names]:
    """Return what takes these files of a forged study; it returns what names any file that tells of another study."""

    def act(place: StudyPlace) -> Names:
        forged = forged_train(place)
        forger.put(place.root, forger.tree_of(place.root) | {name: forged[name] for name in chosen})
        few = chosen if len(chosen) <= len(FORGED) // 2 else set(FORGED) - chosen
        return tuple(f"{name}:" for name in FORGED) if len(few) > 1 else (*_tells(*few),)

    return act


def _tells(name: str) -> Iterator[str]:
    """Return what names a file, or what other files tell of it."""
    yield f"{name}:"
    yield f"than {name}"
    if name.endswith(".py"):  # applied, and timed with
        yield f"{HOLDOUT}:1: timed with another table"
        yield f"{HOLDOUT}:1: timed with other entries"
    if "ledger" in name:  # what is held against it
        yield f"{TRAIN}:"
        yield f"{FILES['table.py']}:"
        yield f"{FILES['lines.txt']}: not the lines that were applied"


def mixtures() -> Iterator[tuple[str, Change]]:
    """Return each file alone, all but each file, and some choices of several."""
    for name in FORGED:
        yield f"forged {name} alone", Change(mixed(frozenset({name})), dtypes=("bf16", "f16"))
        yield f"forged all but {name}", Change(mixed(frozenset(FORGED) - {name}), dtypes=("bf16", "f16"))
    draw = random.Random(7)
    for number in range(24):
        chosen = frozenset(draw.sample(FORGED, draw.randint(2, len(FORGED) - 2)))
        yield f"forged files, choice {number}", Change(mixed(chosen), dtypes=("bf16", "f16"))


# Records that cannot be, whatever was mended behind them


def _set(line: int, **fields: Any) -> Edit:
    return lambda values: values[line - 1].update(fields)


def _prints(**fields: Any) -> Edit:
    return lambda values: values[0]["fingerprint"].update(fields)


def _each(**fields: Any) -> Edit:
    def change(values: list[Json]) -> None:
        for value in values:
            value.update(fields)

    return change


def _looked(answer: bool | None, other: bool | None) -> Edit:
    def change(values: list[Json]) -> None:
        values[_line_of(values, answer) - 1]["lookup"] = other

    return change


def _line_of(values: list[Json], answer: bool | None) -> int:
    return next(line for line, value in enumerate(values[1:], 2) if value["lookup"] is answer)


def _plan(leg: str, other: str) -> Edit:
    """Let one leg of a line in which the table leads have run the plan of another."""

    def change(values: list[Json]) -> None:
        legs = values[_line_of(values, answer=True) - 1]["legs"]
        legs[leg]["plan"] = legs[other]["plan"]

    return change


def _orders(*places: int) -> Edit:
    def change(values: list[Json]) -> None:
        order = values[LINE - 1]["order"]
        assert len({order[place] for place in places}) > 1
        moved = [order[place] for place in (*places[1:], places[0])]
        for place, block in zip(places, moved, strict=True):
            order[place] = block

    return change


def _leg_order(values: list[Json]) -> None:
    order = values[LINE - 1]["order"]
    order[0] = order[0][::-1]


def _class(*more: Any) -> Edit:
    return lambda values: values[LINE - 1]["class"].__setitem__(slice(-len(more), None), more)


def _repeats_turned(values: list[Json]) -> None:
    """Let two repeats of a case change their numbers."""
    one = values[LINE - 1]
    other = next(value for value in values[1:] if value["case"] == one["case"] and value["repeat"] != one["repeat"])
    one["repeat"], other["repeat"] = other["repeat"], one["repeat"]


def _other_case(values: list[Json]) -> None:
    values[LINE - 1]["case"] = next(v["case"] for v in values[1:] if v["case"] != values[LINE - 1]["case"])


def _wrong(values: list[Json]) -> None:
    values[LINE - 1] |= {"status": "wrong_result", "order": [], "error": "far off"}
    for leg in values[LINE - 1]["legs"].values():
        leg["ns"] = []


def _leg(**fields: Any) -> Edit:
    return lambda values: values[LINE - 1]["legs"]["auto"].update(fields)


def _routed(values: list[Json]) -> None:
    legs = values[1]["legs"]
    legs["auto"]["plan"] = legs["frost"]["plan"]


def _dropped(values: list[Json]) -> None:
    del values[LINE - 1]


def _doubled(values: list[Json]) -> None:
    values.insert(LINE, values[LINE - 1])


def _case_of(split: str, dtype: str = "bf16") -> Callable[[StudyPlace], str]:
    return lambda place: sha256((place.frozen / f"{dtype}.{split}.jsonl").read_bytes().splitlines()[0])


HOLDOUT_EDITS: dict[str, tuple[Edit, Names]] = {
    "a look-up led no more": (_looked(answer=True, other=None), (": look-up None; the table says True of ",)),
    "a look-up trails": (_looked(answer=True, other=False), (": look-up False; the table says True of ",)),
    "a look-up leads": (_looked(answer=None, other=True), (": look-up True; the table says None of ",)),
    "auto ran the backend": (_plan("auto", "backend"), (": auto ran 5[k1=0]; expected the frost plan 20001",)),
    "frost ran the backend": (_plan("frost", "backend"), (": auto ran 20001; expected the frost plan 5[k1=0]",)),
    "two blocks turned": (_orders(0, 1), named(HOLDOUT, LINE)),
    "three blocks turned": (_orders(2, 5, 7), named(HOLDOUT, LINE)),
    "the legs of a block turned": (_leg_order, named(HOLDOUT, LINE)),
    "another class": (_class(128), named(HOLDOUT, LINE)),
    "a class of another dtype": (_class("f16", 64), named(HOLDOUT, LINE)),
    "a class of another device": (_class("sim-2", "bf16", 64), named(HOLDOUT, LINE)),
    "an attempt renumbered in a line": (_set(LINE, attempt=2), named(HOLDOUT, LINE)),
    "an attempt renumbered in the session": (_set(1, attempt=2), named(HOLDOUT, 2)),
    "an attempt renumbered throughout": (_each(attempt=2), (f"{HOLDOUT}:",)),
    "a repeat that is not planned": (_set(LINE, repeat=4), named(HOLDOUT, LINE)),
    "two repeats turned": (_repeats_turned, (f"{HOLDOUT}:",)),
    "another regime": (_set(LINE, regime="eager-cold"), named(HOLDOUT, LINE)),
    "another case": (_other_case, (f"{HOLDOUT}:",)),
    "another split in a line": (_set(LINE, split="train"), named(HOLDOUT, LINE)),
    "a status with samples": (_set(LINE, status="timeout"), named(HOLDOUT, LINE)),
    "no samples": (_set(LINE, order=[]), named(HOLDOUT, LINE)),
    "too few samples": (_leg(ns=[1000]), named(HOLDOUT, LINE)),
    "samples without launches": (_leg(inner=0), named(HOLDOUT, LINE)),
    "samples without a plan": (_leg(plan=None), named(HOLDOUT, LINE)),
    "a wrong result": (_wrong, named(HOLDOUT, LINE, "numerics: ")),
    "another study": (_set(1, study="other"), named(HOLDOUT, 1)),
    "another dtype": (_set(1, dtype="f16"), named(HOLDOUT, 1)),
    "other frozen cases": (_set(1, manifest="0" * 64), named(HOLDOUT, 1)),
    "another table": (_set(1, table="0" * 64), named(HOLDOUT, 1)),
    "other entries": (_set(1, entries="0" * 64), named(HOLDOUT, 1)),
    "a line twice": (_doubled, named(HOLDOUT, LINE + 1)),
}
"""What cannot be in a hold-out, and how it is named, when all that follows from it was made anew."""

PRINTS: dict[str, Json] = {
    "board": {"board": "another board"},
    "cc": {"cc": "sim-2"},
    "versions": {"versions": {"simulated": "3"}},
    "settings": {"settings": {"seed": "8"}},
    "code": {"code": "0" * 64},
}
"""What a session's fingerprint may be changed to."""


def _forged_edit(name: str, change: Edit, words: Names) -> Callable[[StudyPlace], Names]:
    def act(place: StudyPlace) -> Names:
        forger.edit(place, name, change)
        forger.forge(place)
        return words

    return act


def impossible() -> Iterator[tuple[str, Change]]:
    """Return records that say what cannot be, with everything behind them made anew."""
    for name, (change, words) in HOLDOUT_EDITS.items():
        yield f"forged hold-out: {name}", Change(_forged_edit("holdout-01-001", change, words))
    yield "forged hold-out: a session before the first", Change(_with_prev)
    for split, file in (("train", TRAIN), ("holdout", HOLDOUT), ("routing", ROUTING)):
        for what, fields in PRINTS.items():
            words = named(HOLDOUT if split == "train" and what != "cc" else file)
            yield f"forged {split}: another {what}", Change(_forged_edit(f"{split}-01-001", _prints(**fields), words))
    routing: dict[str, tuple[Edit, Names]] = {
        "a look-up leads": (_looked(answer=None, other=True), named(ROUTING, 2)),
        "auto ran frost": (_routed, named(ROUTING, 2)),
        "another class": (lambda values: values[1]["class"].append(1), named(ROUTING, 2)),
        "other entries": (_set(1, entries="0" * 64), named(ROUTING, 1)),
        "a second repeat": (_set(2, repeat=2), named(ROUTING, 2)),
    }
    for name, (change, found) in routing.items():
        yield f"forged routing: {name}", Change(_forged_edit("routing-01-001", change, found))
    gone = Change(
        _forged_edit("holdout-01-001", _dropped, ("holdout attempt 1 is incomplete: 11 of 12",)), "cannot say"
    )
    yield "forged hold-out: a line dropped", gone
    yield "forged hold-out: train lines with the split renamed", Change(_renamed_split)
    yield "forged hold-out: train lines as hold-out cases", Change(_renamed_cases)
    yield "forged hold-out: lines of another dtype", Change(_of_f16)
    yield "forged hold-out: a train case", Change(_with_case("train"))
    yield "forged hold-out: an unknown case", Change(_with_case(""))


def _with_prev(place: StudyPlace) -> Names:
    forger.edit(place, "holdout-01-001", _set(1, prev="0" * 64))
    forger.write_events(place, forger.rehashed(forger.tell(place)))
    return named(HOLDOUT, 1)


def _with_case(split: str) -> Callable[[StudyPlace], Names]:
    def act(place: StudyPlace) -> Names:
        case = _case_of(split)(place) if split else "0" * 64
        return _forged_edit("holdout-01-001", _set(LINE, case=case), named(HOLDOUT, LINE))(place)

    return act


def _renamed_split(place: StudyPlace) -> Names:
    """Take the records of train for those of the hold-out."""
    train, head = values_of(place.root / TRAIN), values_of(place.root / HOLDOUT)[0]
    chained(place.root / HOLDOUT, [head, *({**value, "split": "holdout"} for value in train[1:13])])
    forger.forge(place)
    return named(HOLDOUT, 2, "not a planned line of holdout")


def _renamed_cases(place: StudyPlace) -> Names:
    """Take the samples of train for those of the hold-out, under the hold-out's cases, classes and look-ups."""
    train, values = values_of(place.root / TRAIN), values_of(place.root / HOLDOUT)
    kept = ("case", "repeat", "class", "lookup", "split")
    moved = [{**one, **{name: own[name] for name in kept}} for one, own in zip(train[1:], values[1:], strict=False)]
    chained(place.root / HOLDOUT, [values[0], *moved])
    forger.forge(place)
    return named(HOLDOUT, 2, "not the block orders")


def _of_f16(place: StudyPlace) -> Names:
    head, other = values_of(place.root / HOLDOUT)[0], values_of(place.root / HOLDOUT.replace("/bf16", "/f16"))
    chained(place.root / HOLDOUT, [head, *other[1:]])
    forger.forge(place)
    return named(HOLDOUT, 2)


# Events


EVENTS = ("frozen", "train", "apply bf16", "apply f16", "holdout", "routing", "score", "driver")
"""The events of the ledger of bf16, in order."""


def _ledger(change: Callable[[list[Json]], object], words: Names, *, whole: bool = True, state: str = "FAIL") -> Change:
    def act(place: StudyPlace) -> Names:
        events = forger.events_of(place)
        assert len(events) == len(EVENTS)
        change(events)
        forger.write_events(place, forger.rehashed(events) if whole else events)
        return words

    return Change(act, state)


def _without(number: int) -> Callable[[list[Json]], object]:
    return lambda events: events.pop(number)


def _twice(number: int) -> Callable[[list[Json]], object]:
    return lambda events: events.insert(number, events[number])


def _moved(number: int, to: int) -> Callable[[list[Json]], object]:
    return lambda events: events.insert(to, events.pop(number))


def _body(number: int, **fields: Any) -> Callable[[list[Json]], object]:
    return lambda events: events[number].update(body={**events[number]["body"], **fields})


def _inserted(number: int, kind: str, **body: Any) -> Callable[[list[Json]], object]:
    return lambda events: events.insert(number, {**events[0], "event": kind, "body": body})


OTHER = "0" * 64
DROPPED: dict[str, Names] = {
    "frozen": named(LEDGER, 1),
    "train": named(TRAIN),
    "apply bf16": (HOLDOUT,),
    "apply f16": (f"{LEDGER}: ",),
    "holdout": named(HOLDOUT),
    "routing": named(ROUTING),
    "score": (LEDGER,),
    "driver": named(FILES["driver"]),
}
"""How it is named that an event was dropped and the ledger's chain mended."""

BODIES: dict[str, tuple[int, Json, Names]] = {
    "the manifest": (0, {"manifest": OTHER}, (f"{FROZEN}/MANIFEST.json:",)),
    "the manifest's marks": (0, {"marks": ["0" * 8] * 10}, (f"{LEDGER}:", f"{FROZEN}/MANIFEST.json:")),
    "a file's name": (1, {"file": "train-01-002.jsonl"}, (f"{RECORDS}/train-01-002.jsonl:",)),
    "a file's hash": (1, {"sha256": OTHER}, named(TRAIN)),
    "a file's lines": (1, {"lines": 7}, (LEDGER, TRAIN)),
    "the hold-out's hash": (4, {"sha256": OTHER}, named(HOLDOUT)),
    "routing's hash": (5, {"sha256": OTHER}, named(ROUTING)),
    "whose lines": (2, {"dtype": "f32"}, (LEDGER, HOLDOUT)),
    "the lines": (2, {"lines": OTHER}, (FILES["lines.txt"], f"{LEDGER}:")),
    "the lines of f16": (3, {"lines": OTHER}, (f"{LEDGER}:",)),
    "the margin": (2, {"margin_ppm": 60_000}, (FILES["lines.txt"],)),
    "the scope": (2, {"scope": "box"}, (FILES["lines.txt"],)),
    "the margin of f16": (3, {"margin_ppm": 60_000}, (f"{LEDGER}:",)),
    "the table": (2, {"table": OTHER}, (f"{LEDGER}:",)),
    "the last table": (3, {"table": OTHER}, (f"{LEDGER}:", f"{FILES['table.py']}:")),
    "the entries": (2, {"entries": OTHER}, (FILES["table.py"], HOLDOUT)),
    "the last entries": (3, {"entries": OTHER}, (f"{FILES['table.py']}:", f"{LEDGER}:")),
    "the score": (6, {"score": OTHER}, (f"{LEDGER}:", FILES["score.json"])),
    "a driver's name": (7, {"name": "other.py"}, ("other.py: not the script that was started",)),
    "a driver's hash": (7, {"sha256": OTHER}, (f"{OTHER[:12]}-full_study.py: not the script that was started",)),
}
"""Which event's body is changed to what, and how it is named, with the ledger's chain mended."""

BOTH: dict[str, tuple[int, Json, Names]] = {
    "the lines": (2, {"lines": OTHER}, (f"{FILES['lines.txt']}: not the lines that were applied",)),
    "the margin": (2, {"margin_ppm": 60_000}, (f"{FILES['lines.txt']}:1:",)),
    "the scope": (2, {"scope": "box"}, (f"{FILES['lines.txt']}:1:",)),
    "the last table": (3, {"table": OTHER}, (f"{FILES['table.py']}:",)),
}
"""The same for events that both ledgers have, changed in both."""

FREE_ORDER = frozenset({("apply f16", "holdout"), ("holdout", "routing"), ("score", "driver")})
"""Events that may have come in either order: routing beside the hold-out, drivers and other dtypes at any time."""


def events() -> Iterator[tuple[str, Change]]:
    """Return events that were dropped, doubled, moved, changed, inserted, with the ledger's chain mended and not."""
    for number, name in enumerate(EVENTS):
        line = number + 1
        yield f"ledger: {name} dropped", _ledger(_without(number), DROPPED[name])
        if line < len(EVENTS):
            yield f"ledger: {name} dropped, unmended", _ledger(_without(number), named(LEDGER, line), whole=False)
            pair = name, EVENTS[line]
            at = named(LEDGER, line, f"{LEDGER}:{line + 1}:")
            yield f"ledger: {' and '.join(pair)} turned, unmended", _ledger(_moved(number, line), at, whole=False)
            if pair not in FREE_ORDER:
                turned = _ledger(_moved(number, line), (LEDGER, HOLDOUT))
                yield f"ledger: {' and '.join(pair)} turned", turned
        if name != "driver":  # that may be started twice
            yield f"ledger: {name} twice", _ledger(_twice(number), (LEDGER, FILES["report.md"]))
        yield f"ledger: {name} twice, unmended", _ledger(_twice(number), named(LEDGER, line + 1), whole=False)
    for name, (number, fields, words) in BODIES.items():
        yield f"ledger: {name} changed", _ledger(_body(number, **fields), words)
        at = named(LEDGER, number + 1)
        yield f"ledger: {name} changed, unmended", _ledger(_body(number, **fields), at, whole=False)
    for name, (number, fields, words) in BOTH.items():
        yield f"ledgers: {name} changed in both", Change(_in_both(_body(number, **fields), words))
    yield "ledger: the look before the hold-out", _ledger(_moved(6, 4), (LEDGER, HOLDOUT))
    yield "ledger: the look before routing", _ledger(_moved(6, 5), (LEDGER, ROUTING))
    yield "ledger: the hold-out before the lines", _ledger(_moved(4, 2), (HOLDOUT,))
    yield "ledger: the train split last", _ledger(_moved(1, 6), (LEDGER, TRAIN))
    yield "ledger: a look inserted", _ledger(_inserted(5, "score", score=OTHER), (LEDGER, FILES["report.md"]))
    frozen = {"manifest": OTHER, "marks": []}
    yield "ledger: other frozen cases inserted", _ledger(_inserted(4, "frozen", **frozen), (LEDGER, "MANIFEST.json"))
    session = {"file": "holdout-02-001.jsonl", "sha256": OTHER, "lines": 13}
    yield "ledger: a session inserted", _ledger(_inserted(6, "session", **session), ("holdout-02-001.jsonl",))
    driver = {"name": "other.py", "sha256": OTHER}
    yield "ledger: a driver inserted", _ledger(_inserted(1, "driver", **driver), ("-other.py: not the script",))
    yield "ledger: an unknown event inserted", _ledger(_inserted(3, "review", by="me"), named(LEDGER, 4))
    yield "ledger: a look at nothing inserted", _ledger(_inserted(3, "score"), named(LEDGER, 4))
    yield "ledger: an apply inserted", Change(_applied_again)
    yield "ledger: sealed again behind the seal", Change(_sealed_again)
    yield "ledger: sealed, scored and reported again", Change(_all_again)
    yield "ledger: the look dropped, reported again", Change(_unlooked)


def _in_both(change: Callable[[list[Json]], object], words: Names) -> Callable[[StudyPlace], Names]:
    def act(place: StudyPlace) -> Names:
        for dtype in ("bf16", "f16"):
            events = forger.events_of(place, dtype)
            change(events)
            forger.write_events(place, forger.rehashed(events), dtype)
        return words

    return act


def _applied_again(place: StudyPlace) -> Names:
    events = forger.events_of(place)
    forger.write_events(place, forger.rehashed([*events[:4], events[2] | {"at": events[3]["at"]}, *events[4:]]))
    return (f"{LEDGER}: tells of other tables than ",)


def _sealed_again(place: StudyPlace) -> Names:
    """Change the hold-out and tell the ledger of it as of a new file, which breaks no chain."""
    forger.edit(place, "holdout-01-001", faster)
    data = (place.root / HOLDOUT).read_bytes()
    body: ledger.Body = {"file": "holdout-01-001.jsonl", "sha256": sha256(data), "lines": data.count(b"\n")}
    ledger.append(place.results("bf16").ledger, finished.hooks().now(), "session", body)
    return f"{LEDGER}:9:", f"{HOLDOUT}:"


def _all_again(place: StudyPlace) -> Names:
    """As before, and let the tool itself score and report what is there now."""
    words = _sealed_again(place)
    job = forger.job_of(place)
    pipeline.score(job, finished.hooks().now)
    reporting.report(job)
    return words


def _unlooked(place: StudyPlace) -> Names:
    """Take the look at the hold-out away, also from the report."""
    events = [event for event in forger.events_of(place) if event["event"] != "score"]
    forger.write_events(place, forger.rehashed(events))
    reporting.report(forger.job_of(place))
    return (f"{LEDGER}:",)


# What was frozen


DECLARED: dict[str, tuple[str, str]] = {
    "the gate's threshold": ("geomean <= 1.02", "geomean <= 1.20"),
    "the gate's count": ("slower_beyond_noise == 0", "slower_beyond_noise <= 4"),
    "a condition": ("  - routing_changed == 0\n", ""),
    "the margin": ("margin: 0.05", "margin: 0.01"),
    "the scope": ("scope: class", "scope: box"),
    "the thresholds": ("[from s_kv, upto s_kv]", "[from s_kv]"),
    "the noise limit": ("scope: class", "noise_limit: 0.2, scope: class"),
    "the support": ("scope: class", "min_support: 1, scope: class"),
    "the repeats": ("repeats: 3", "repeats: 4"),
    "the blocks": ("blocks: 8", "blocks: 4"),
    "a hold-out case": ("[80, 320, 640, 1280]", "[80, 640, 1280]"),
    "a train case": ("[64, 128, 256, 512, 1024, 2048]", "[64, 128, 256, 512, 1024]"),
    "what must differ": ("    differs: [s_kv, h_q]\n", ""),
    "the question": ("does the open engine lead?", "is the open engine ahead?"),
}
"""What is changed in study.yaml after everything was timed."""


def _declared(old: str, new: str, *, step: int) -> Callable[[StudyPlace], Names]:
    """Return what changes the declaration; with steps also frozen files, the ledgers' first events, all sessions."""

    def act(place: StudyPlace) -> Names:
        text = place.study_yaml.read_text()
        assert old in text
        place.study_yaml.write_text(text.replace(old, new, 1))
        study = opening.open_study(place)
        words = [f"{FILES['study.yaml']}:"]
        if step == 1:
            for name, data in freeze.contents(study, place, expand(study)).items():
                (place.frozen / name).write_bytes(data)
        if step >= 2:
            refrozen(place)
            words = [f"{FROZEN}/MANIFEST.json:"]
        if step == 4:
            reordered(place)
        if step == 5:
            resealed(place)
        if step >= 3:
            retold(place)
            words = [f"{TRAIN}:", f"{HOLDOUT}:"]
        return tuple(words)

    return act


def refrozen(place: StudyPlace) -> None:
    """Freeze a study anew, over what was frozen."""
    shutil.rmtree(place.frozen)
    freeze.freeze(opening.open_study(place), place, [], "")


def retold(place: StudyPlace) -> None:
    """Let both ledgers have begun with what is frozen now."""
    for dtype in ("bf16", "f16"):
        forger.write_events(place, forger.rehashed(forger.tell(place, dtype)), dtype)


def resealed(place: StudyPlace) -> None:
    """Let all sessions have been timed for what is frozen now."""
    manifest = sha256(place.manifest.read_bytes())
    for dtype in ("bf16", "f16"):
        for path in place.results(dtype).records.glob("*.jsonl"):
            values = values_of(path)
            chained(path, [values[0] | {"manifest": manifest}, *values[1:]])


def reordered(place: StudyPlace) -> None:
    """Let every block have been timed in the order that the declaration of now asks for."""
    study = opening.open_study(place)
    for dtype in study.dtypes:
        for path in place.results(dtype).records.glob("*.jsonl"):
            values = values_of(path)
            for value in values[1:]:
                if value["order"]:
                    cell = value["case"], value["repeat"], value["regime"]
                    value["order"] = list(schedule.block_orders(study.sha256, *cell, study.protocol.blocks))
            chained(path, values)


MANIFESTS: dict[str, tuple[Json, str]] = {
    "the name": ({"name": "other"}, "MANIFEST.json: name or counts are not those of "),
    "the counts": ({"counts": {"holdout": 80, "routing": 2, "train": 17}}, "MANIFEST.json: name or counts are not "),
    "the declaration's hash": ({"study_sha256": "0" * 64}, "study.yaml: changed since it was frozen"),
    "the files": ({"files": {}}, "gate.json: not in MANIFEST.json"),
    "the schema": ({"schema": 2}, "MANIFEST.json:1: schema 2; this version reads 1"),
}
"""What the manifest is changed to say, and what is said of it when everything behind it was made anew."""


def _manifested(fields: Json, word: str) -> Callable[[StudyPlace], Names]:
    def act(place: StudyPlace) -> Names:
        told = json.loads(place.manifest.read_bytes())
        place.manifest.write_bytes(pretty(told | fields))
        resealed(place)
        retold(place)
        with contextlib.suppress(StudyError):  # where nothing is scored any more
            forger.forge(place)
        return (word,)

    return act


def declarations() -> Iterator[tuple[str, Change]]:
    """Return declarations changed after the fact, with what was frozen, told and sealed changed after them."""
    for name, (fields, word) in MANIFESTS.items():
        yield f"MANIFEST.json: {name}", Change(_manifested(fields, word))
    begun = ", and how ledgers began"
    done = (
        "",
        ", gate and cases",
        ", all that is frozen",
        begun,
        f"{begun}, and every order",
        f"{begun}, and sessions",
    )
    for name, (old, new) in DECLARED.items():
        for step, told in enumerate(done):
            yield f"declared: {name}{told}", Change(_declared(old, new, step=step))


# Words and numbers that nothing stands behind


REPORT: dict[str, tuple[str, str]] = {
    "a number": ("0.693 (0.550", "0.593 (0.550"),
    "the freshness": ("the hold-out is FRESH", "the hold-out is new"),
    "how many lead": ("3 of 4 hold-out cases", "4 of 4 hold-out cases"),
    "the board": ("Board: simulated device", "Board: another device"),
    "the gate": ("`slower_beyond_noise == 0` | 0 | holds", "`slower_beyond_noise == 0` | 0 | cannot be said"),
    "the looks": ("looks at it so far: 1", "looks at it so far: 0"),
    "an entry": ('("from", "s_kv", 256', '("from", "s_kv", 128'),
    "the hash of records": ("- `holdout-01-001.jsonl`: `", "- `holdout-01-001.jsonl`: `0"),
}
"""What is changed in the report."""

ADDED = (
    "The gain holds on every other board.",
    "- Speed-up: 2.5x on average.",
    "## Summary",
    "| bf16 | 4 of 4 | 1.000 (1.000) | 1.000 (1.000) | 0.500 (0.500, 0.500) | 4 | 0 | PASS |",
    " ",
)
"""Lines that are put into the middle of the report."""


def _added(line: str) -> Callable[[StudyPlace], Names]:
    def act(place: StudyPlace) -> Names:
        path = place.results("bf16").report
        lines = path.read_text().split("\n")
        path.write_text("\n".join([*lines[:20], line, *lines[20:]]))
        return (f"{FILES['report.md']}:21: no number stands behind",)

    return act


SCORED: dict[str, tuple[str, str]] = {
    "the verdict": ('"verdict": "PASS"', '"verdict": "FAIL"'),
    "a count": ('"slower_beyond_noise":0', '"slower_beyond_noise":1'),
    "a status": ('"statuses": {"ok":4}', '"statuses": {"ok":5}'),
    "an attempt": ('"holdout":1', '"holdout":2'),
    "a condition": ("geomean <= 1.02", "geomean <= 1.03"),
    "a condition's answer": ('"holds":true', '"holds":false'),
    "the dtype": ('"dtype": "bf16"', '"dtype": "f16"'),
    "what was not scored": ('"unscored": []', '"unscored": [1]'),
    "why it is open": ('"open": []', '"open": ["it is late"]'),
}
"""What is changed in score.json."""


def _replaced(file: str, old: str, new: str) -> Callable[[StudyPlace], Names]:
    def act(place: StudyPlace) -> Names:
        path = place.root / FILES[file]
        lines = path.read_text().split("\n")
        number = next(number for number, text in enumerate(lines, 1) if old in text)
        lines[number - 1] = lines[number - 1].replace(old, new, 1)
        path.write_text("\n".join(lines))
        return named(FILES[file], number)

    return act


TABLED: dict[str, tuple[str, str]] = {
    "a bound": ('"s_kv", 256', '"s_kv", 128'),
    "a rule": ('("from", "s_kv", 256,', '("always",'),
    "its opposite": ('"from"', '"never_from"'),
    "an axis": ('"s_kv", 256', '"s_q", 256'),
    "a box": ("256, {}", '256, {"b": (1, 1)}'),
    "a key": ('"bf16", 64)', '"bf16", 128)'),
    "the evidence": ("worst 0.750", "worst 0.650"),
}
"""What is changed in an entry, by hand."""


def _table_by_hand(old: str, new: str, *, step: int) -> Callable[[StudyPlace], Names]:
    """Return what changes an entry in the table; with steps also in the lines, and in what the ledgers tell."""

    def act(place: StudyPlace) -> Names:
        words = _replaced("table.py", old, new)(place)
        if step >= 1:
            words = _replaced("lines.txt", old, new)(place)
        if step >= 2:
            retold(place)
            words = (f"{FILES['lines.txt']}:", f"{HOLDOUT}:1:")
        return words

    return act


def _entry_gone(file: str, *, told: bool) -> Callable[[StudyPlace], Names]:
    def act(place: StudyPlace) -> Names:
        path = place.root / FILES[file]
        lines = path.read_text().split("\n")
        number = next(n for n, text in enumerate(lines, 1) if text.startswith('    ("open_engine", '))
        path.write_text("\n".join([*lines[: number - 1], *lines[number:]]))
        if told:
            (place.root / FILES["lines.txt"]).write_text(
                (place.root / FILES["lines.txt"]).read_text().split("\n")[0] + "\n"
            )
            retold(place)
            return f"{FILES['lines.txt']}:2:", f"{HOLDOUT}:1:"
        return tuple(f"{FILES[file]}:{n}:" for n in (number, number + 1))

    return act


def words() -> Iterator[tuple[str, Change]]:
    """Return changed words, numbers and entries in what was made from the records."""
    for name, (old, new) in REPORT.items():
        yield f"report.md: {name}", Change(_replaced("report.md", old, new))
    for line in ADDED:
        yield f"report.md: with {line!r:.20}", Change(_added(line))
    for name, (old, new) in SCORED.items():
        yield f"score.json: {name}", Change(_replaced("score.json", old, new))
    for name, (old, new) in TABLED.items():
        for step, told in enumerate(("", ", and in the lines", ", and as applied")):
            yield f"table.py: {name}{told}", Change(_table_by_hand(old, new, step=step))
        yield f"lines.txt: {name}", Change(_replaced("lines.txt", old, new))
    yield "table.py: an entry gone", Change(_entry_gone("table.py", told=False))
    yield "lines.txt: an entry gone", Change(_entry_gone("lines.txt", told=False))
    yield "table.py: an entry gone, and as applied", Change(_entry_gone("table.py", told=True))


# Files of another study


@functools.cache
def twin() -> Tree:
    """Return the files of a finished study of the same cases, on a device where frost is faster."""
    text = finished.WHOLE_YAML.replace("name: whole", "name: twin").replace("s_kv * 500", "s_kv * 400")
    with tempfile.TemporaryDirectory() as root, pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        place = finished.declare(Path(root), text, "twin")
        pipeline.run(opening.open_study(place), place, ("bf16",), finished.hooks())
        return forger.tree_of(place.root)


def _of_twin(name: str, *, renamed: bool) -> Callable[[StudyPlace], Names]:
    def act(place: StudyPlace) -> Names:
        path = place.root / FILES[name]
        path.write_bytes(twin()[FILES[name].replace("/whole", "/twin")])
        if renamed:
            values = values_of(path)
            own = {"study": "whole", "manifest": sha256(place.manifest.read_bytes())}
            chained(path, [values[0] | own, *values[1:]])
            forger.write_events(place, forger.rehashed(forger.tell(place)))
        # a ledger is that of another study when it began with another manifest than the one that is there
        return f"{FILES[name]}:", *((f"{FROZEN}/MANIFEST.json:",) if name == "ledger" else ())

    return act


def twins() -> Iterator[tuple[str, Change]]:
    """Return files that another study left; renamed: its records bear this study's name, cases and seal."""
    for name in FILES:
        if f"{FOLDER}/" in FILES[name]:
            yield f"{name} of another study", Change(_of_twin(name, renamed=False))
    for split in ("train", "holdout"):
        yield f"{split} records of another study, renamed", Change(_of_twin(f"{split} records", renamed=True))


def careful() -> dict[str, Change]:
    """Return all of them by name."""
    parts = (value_changes(), mixtures(), impossible(), events(), declarations(), words(), twins())
    found: dict[str, Change] = {}
    for part in parts:
        for name, change in part:
            assert name not in found
            found[name] = change
    return found
