"""What a change of a table means: its kind, line by line, and the frozen cases that it decides otherwise."""

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import NamedTuple

from studytool import lines
from studytool.errors import TableError
from studytool.lines import OPPOSITE, Text
from studytool.model import Case, Split
from studytool.runtime import key, lookup


class Kind(StrEnum):
    """How an entry changed."""

    ADDED = "ADDED"
    REMOVED = "REMOVED"
    WIDENED = "WIDENED"  # it holds for all that it held for, and more
    NARROWED = "NARROWED"  # it holds for less
    SHIFTED = "SHIFTED"  # it holds for some more and for some less
    FLIPPED = "FLIPPED"  # it says the opposite
    RESTATED = "RESTATED"  # it says the same on other evidence


class Device(NamedTuple):
    """Where a table is asked: entries are keyed on the compute capability, and a box may name the board."""

    cc: str
    board: str


class Move(NamedTuple):
    """A frozen case that a change decides otherwise: lead (True), trail (False), keep the order (None)."""

    split: Split
    case: Case
    before: bool | None
    after: bool | None


class Change(NamedTuple):
    """One entry that changed, and the cases that it moves."""

    kind: Kind
    key: lookup.Key
    moves: tuple[Move, ...]


def changes(before: Text, after: Text, splits: Mapping[Split, Iterable[Case]], device: Device | None) -> list[Change]:
    """Return the entries that differ between two tables, sorted by key; without a device no case is looked up."""
    old, new = (lines.parse_table(lines.table_text(text).encode(), "a table") for text in (before, after))
    moves: dict[lookup.Key, list[Move]] = {}
    if device is not None:
        for entry_key, move in _moves(old, new, splits, device):
            moves.setdefault(entry_key, []).append(move)
    found = []
    for entry_key in sorted({*before.entries, *after.entries}, key=str):
        if before.entries.get(entry_key) != after.entries.get(entry_key):
            kind = _kind(old.entries.get(entry_key), new.entries.get(entry_key))
            found.append(Change(kind, entry_key, tuple(moves.get(entry_key, ()))))
    return found


def text(found: Iterable[Change]) -> str:
    """Return changes as text: one line an entry, and one for each case that it moves."""
    words = {True: "lead", False: "trail", None: "no entry"}
    told = []
    for change in found:
        told.append(f"{change.kind:8}  {' '.join(map(str, change.key))}")
        told += [
            f"          {move.split}: {move.case.label}: {words[move.before]} -> {words[move.after]}"
            for move in change.moves
        ]
    return "\n".join(told) or "no entry changes"


def idle(table: Text, keys: Iterable[lookup.Key], cases: Iterable[Case], device: Device) -> list[lookup.Key]:
    """Return the entries among `keys` that change nothing: turned into their opposite, no case is decided otherwise."""
    parsed = lines.parse_table(lines.table_text(table).encode(), "a table")
    known = list(cases)
    return [own for own in keys if not _flip_matters(parsed, own, known, device)]


def merge(one: Text, other: Text, names: tuple[str, str], numbers: tuple[Mapping[lookup.Key, int], ...]) -> Text:
    """Return the entries of two tables in one; TableError, naming both lines, where both have one key."""
    for entry_key in one.entries:
        if entry_key in other.entries:
            here, there = (f"{name}:{lines_of[entry_key]}" for name, lines_of in zip(names, numbers, strict=True))
            raise TableError(f"{here} and {there}: both have an entry for {entry_key}")
    return lines.insert(one, other, names[1])


def _flip_matters(table: lookup.Table, entry_key: lookup.Key, cases: list[Case], device: Device) -> bool:
    entry = table.entries[entry_key]
    opposite = entry._replace(rule=OPPOSITE[entry.rule])
    alone, flipped = (lookup.table_of(table.rows, {entry_key: one}) for one in (entry, opposite))
    row = str(entry_key[0])
    return any(
        lookup.lookup(alone, row, device.cc, case.fields, device.board)
        is not lookup.lookup(flipped, row, device.cc, case.fields, device.board)
        for case in cases
    )


def _moves(
    old: lookup.Table, new: lookup.Table, splits: Mapping[Split, Iterable[Case]], device: Device
) -> Iterator[tuple[lookup.Key, Move]]:
    rows = sorted({*old.rows, *new.rows})
    for split, cases in splits.items():
        for case in cases:
            for row in rows:
                before, after = (lookup.explain(t, row, device.cc, case.fields, device.board) for t in (old, new))
                entry_key = after.key or before.key
                if before.verdict is not after.verdict and entry_key is not None:
                    yield entry_key, Move(split, case, before.verdict, after.verdict)


def _kind(before: lookup.Entry | None, after: lookup.Entry | None) -> Kind:
    if before is None:
        return Kind.ADDED
    if after is None:
        return Kind.REMOVED
    if lookup.RULES[before.rule] is not lookup.RULES[after.rule]:
        return Kind.FLIPPED
    wider, narrower = _holds(after, before), _holds(before, after)
    if wider and narrower:
        return Kind.RESTATED
    return Kind.WIDENED if wider else Kind.NARROWED if narrower else Kind.SHIFTED


def _holds(outer: lookup.Entry, inner: lookup.Entry) -> bool:
    """Return whether an entry holds wherever another one does, as far as rule, bound and box can tell."""
    if outer.axis:
        above = outer.rule.endswith("from")
        same = outer.axis == inner.axis and outer.rule == inner.rule
        if not same or (outer.bound > inner.bound if above else outer.bound < inner.bound):
            return False
    neutral = {name: key.NEUTRAL[name] for name in key.FLAGS}  # an entry that does not name a flag knows it so alone
    wide, narrow = ({**neutral, **entry.measured, **entry.box} for entry in (outer, inner))
    return all(name in narrow and _within(narrow[name], limit) for name, limit in wide.items())


def _within(inner: lookup.Limit, outer: lookup.Limit) -> bool:
    low, high = lookup.bounds_of(inner), lookup.bounds_of(outer)
    if low is not None and high is not None:
        return high[0] <= low[0] and low[1] <= high[1]
    inside, around = (set(limit) if isinstance(limit, tuple) else {limit} for limit in (inner, outer))
    return inside <= around
