"""Kinds of bad records: how a finished study's hold-out is spoiled, and the message after the file's name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from studytool.digest import canonical, sha256
from studytool.layout import StudyPlace

Values = list[dict[str, Any]]
Spoil = Callable[[StudyPlace], None]


def holdout(place: StudyPlace, session: int = 1) -> Path:
    """Return a hold-out file of bf16."""
    return place.results("bf16").records / f"holdout-01-{session:03d}.jsonl"


def values_of(path: Path) -> Values:
    """Return the lines of a records file as JSON values."""
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def chained(path: Path, values: Values) -> str:
    """Write a records file whose chain is whole, whatever its lines say, and return its hash."""
    lines: list[bytes] = []
    for value in values:
        chain = {"prev": sha256(lines[-1])} if lines else {}
        lines.append(canonical({**value, **chain}) + b"\n")
    path.write_bytes(b"".join(lines))
    return sha256(path.read_bytes())


def with_value(line: int, change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Return what changes one line's value and mends the chain behind it, as a forger would."""

    def spoil(place: StudyPlace) -> None:
        values = values_of(holdout(place))
        change(values[line - 1])
        chained(holdout(place), values)

    return spoil


def with_bytes(line: int, change: Callable[[bytes], bytes]) -> Spoil:
    """Return what changes one line's bytes."""

    def spoil(place: StudyPlace) -> None:
        lines = holdout(place).read_bytes().splitlines(keepends=True)
        changed = change(lines[line - 1])
        assert changed != lines[line - 1]
        lines[line - 1] = changed
        holdout(place).write_bytes(b"".join(lines))

    return spoil


def double(place: StudyPlace) -> None:
    """Let a line be there twice, with a whole chain."""
    values = values_of(holdout(place))
    chained(holdout(place), [*values[:6], values[4], *values[6:]])


def in_sessions(change: Callable[[Values], object] | None = None) -> Spoil:
    """Return what makes three session files of the one, the second of them changed, or taken away."""

    def spoil(place: StudyPlace) -> None:
        head, *records = values_of(holdout(place))
        previous = ""
        for number in (1, 2, 3):
            part = [{**head, "session": number, "prev": previous}, *records[4 * number - 4 : 4 * number]]
            if number == 2 and change is not None:
                change(part)
            previous = chained(holdout(place, number), part)
        if change is None:
            holdout(place, 2).unlink()

    return spoil


def legs(value: dict[str, Any]) -> dict[str, Any]:
    """Return the legs of a record's value."""
    found: dict[str, Any] = value["legs"]
    return found


BAD_RECORDS: dict[str, tuple[Spoil, str]] = {
    "damaged in the middle": (with_bytes(5, lambda line: line[:90] + b"\n"), "001.jsonl:5: not a record: "),
    "no JSON": (with_bytes(5, lambda _: b"what?\n"), "001.jsonl:5: not a record: "),
    "an empty line": (with_bytes(5, lambda line: b"\n" + line), "001.jsonl:5: not a record: "),
    "a sample changed": (with_bytes(5, lambda line: line.replace(b'"ns":[', b'"ns":[1', 1)), "001.jsonl:5: changed "),
    "a line taken out": (with_bytes(5, lambda _: b""), "001.jsonl:4: changed after it was written"),
    "schema": (with_value(5, lambda v: v.update(schema=2)), "001.jsonl:5: schema 2; this version reads 1"),
    "schema of the session": (with_value(1, lambda v: v.update(schema=2)), "001.jsonl:1: schema 2; this version "),
    "unknown field": (with_value(5, lambda v: v.update(extra=1)), "001.jsonl:5: not a record: Object contains unknown"),
    "missing field": (with_value(5, lambda v: v.pop("regime")), "001.jsonl:5: not a record: Object missing required"),
    "unknown status": (with_value(5, lambda v: v.update(status="fine")), "001.jsonl:5: not a record: Invalid enum"),
    "a line twice": (double, "001.jsonl:7: sdpa_fwd bf16 b2 h2 d64 S"),
    "foreign case": (with_value(5, lambda v: v.update(case="0" * 64)), "001.jsonl:5: not a planned line of holdout"),
    "foreign repeat": (with_value(5, lambda v: v.update(repeat=9)), "001.jsonl:5: not a planned line of holdout"),
    "other class": (with_value(5, lambda v: v["class"].append(1)), "001.jsonl:5: class ("),
    "other attempt": (with_value(5, lambda v: v.update(attempt=2)), "001.jsonl:5: holdout attempt 2 in a session of"),
    "negative time": (
        with_value(5, lambda v: legs(v)["auto"]["ns"].__setitem__(0, -1)),
        "001.jsonl:5: not a record: Expected `int` >= 1",
    ),
    "too few samples": (
        with_value(5, lambda v: legs(v)["auto"]["ns"].pop()),
        "001.jsonl:5: leg auto: 7 samples in 8 blocks",
    ),
    "NaN": (with_bytes(5, lambda line: line.replace(b'"ns":[', b'"ns":[NaN,', 1)), "001.jsonl:5: not a record: "),
    "a float": (with_bytes(5, lambda line: line.replace(b'"ns":[', b'"ns":[0.5,', 1)), "001.jsonl:5: not a record: "),
    "not UTF-8": (with_bytes(5, lambda line: line.replace(b"eng5", b"eng\xff", 1)), "001.jsonl:5: not a record: "),
    "a block without each leg": (
        with_value(5, lambda v: v["order"].__setitem__(0, "0133")),
        "001.jsonl:5: a block that does not have each leg once",
    ),
    "a leg is missing": (
        with_value(5, lambda v: legs(v).pop("auto")),
        "001.jsonl:5: status ok without samples of all four legs",
    ),
    "session of another study": (
        with_value(1, lambda v: v.update(study="other")),
        "001.jsonl:1: session of study other; expected whole",
    ),
    "another table": (
        in_sessions(lambda part: part[0].update(entries="0" * 64)),
        "002.jsonl:1: the table changed within the attempt",
    ),
    "another board": (
        in_sessions(lambda part: part[0]["fingerprint"].update(board="other")),
        "002.jsonl:1: not comparable with the attempt's first session: board simulated device and other",
    ),
    "two boards": (
        in_sessions(lambda part: part[0]["fingerprint"].update(uuid="other")),
        "002.jsonl:2: sdpa_fwd bf16 b2 h2 d64 S",
    ),
    "a session file is missing": (in_sessions(), "003.jsonl:1: does not follow the session file before it; one is "),
}
"""What spoils the hold-out of bf16, and how the message goes on after `studies/whole/bf16/records/holdout-01-`."""
