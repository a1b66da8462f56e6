"""Look a case up in a placement table: True (the row leads), False (it trails), None (no entry: keep the order).

`lookup` is the quick way, `explain` the one that says why; they agree on every case. Both are total: whatever they are
given, no exception leaves them.
"""

import math
import operator
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from . import key as _key
from .key import derived
from .loading import fitting, load, shipped
from .tables import (
    EMPTY,
    MEASURED,
    RULES,
    SCHEMA,
    Entry,
    Key,
    Limit,
    Quick,
    Table,
    TableError,
    bounds_of,
    parse,
    table_of,
)

__all__ = [
    "EMPTY",
    "MEASURED",
    "RULES",
    "SCHEMA",
    "Answer",
    "Entry",
    "Key",
    "Limit",
    "Table",
    "TableError",
    "bounds_of",
    "explain",
    "fitting",
    "load",
    "lookup",
    "parse",
    "shipped",
    "table_of",
]

_fetch = operator.itemgetter(*_key.GEOMETRY)
_FEWEST = len(_key.GEOMETRY)
_NO_FLAGS = tuple(_key.NEUTRAL[name] for name in _key.FLAGS)


class Answer(NamedTuple):
    """What a look-up says and why.

    `code` is HIT, NOKEY (no entry of this class), RULE (outside the threshold), BOX (outside what was measured),
    GUARD (a predicate of the entry does not hold), BOARD (another board than the one measured) or FEATURE (the
    case has something that the table does not know); `detail` names the feature.
    """

    verdict: bool | None
    code: str
    detail: str
    key: Key | None
    entry: Entry | None


def lookup(table: Table, row: str, cc: str, case: Mapping[str, object], board: str = "") -> bool | None:
    """Return True (the row leads), False (it trails) or None (no entry) for a case. Never raises."""
    if type(case) is not dict or type(row) is not str or type(cc) is not str:
        return None
    if [*map(type, case)].count(str) != len(case):  # before a name is compared, which one of another type may not like
        return None
    mask, window = case.get("mask", "none"), case.get("window", 0)
    if len(case) != _FEWEST + ("mask" in case) + ("window" in case):
        return explain(table, row, cc, case, board).verdict  # what most graphs are not
    try:
        geometry = op, dtype, b, h_q, h_kv, s_q, s_kv, d_qk, d_v = _fetch(case)
    except KeyError:
        return None
    if not (
        type(op) is type(dtype) is type(mask) is str
        and type(b) is type(h_q) is type(h_kv) is type(s_q) is type(s_kv) is type(d_qk) is type(d_v) is int
        and type(window) is int
    ):
        return None
    index = table.indices.get((row, cc))
    if index is None:
        return None
    facts = geometry + derived(h_q, h_kv, s_q, s_kv, mask, window) + (window,) + _NO_FLAGS
    quick = index.entries.get(index.pick(facts))
    return quick.verdict if quick is not None and _holds(quick, facts, board) else None


def _holds(quick: Quick, facts: tuple[Any, ...], board: object) -> bool:
    """Return whether an entry's conditions hold for a well-formed case of these facts."""
    _verdict, pick, values, ranges, words, axis, least, most, measured = quick
    if pick(facts) != values:
        return False
    for place, low, high in ranges:
        if not low <= facts[place] <= high:
            return False
    for place, allowed in words:
        if facts[place] not in allowed:
            return False
    if axis and not least <= math.prod(facts[place] for place in axis) <= most:
        return False
    return measured is None or (type(board) is str and measured == board)


def explain(table: Table, row: str, cc: str, case: Mapping[str, object], board: str = "") -> Answer:
    """Return what the table says of a case and why. Never raises; a malformed case is answered FEATURE.

    `case` maps the names of `key.FIELDS` to integers and strings; `board` is the name of the device, needed by
    entries whose box names the board that was measured.
    """
    problem = _malformed(case)
    if problem:
        return Answer(None, "FEATURE", problem, None, None)
    known = cast("_key.Case", case)
    features = table.rows.get(row) if type(row) is str else None
    if features is None or type(cc) is not str:
        return Answer(None, "NOKEY", "row", None, None)
    key = _key.class_key(row, cc, features, known)
    entry = table.entries.get(key)
    if entry is None:
        return Answer(None, "NOKEY", "", key, None)
    code, detail = _check(entry, features, known, board)
    return Answer(RULES[entry.rule] if code == "HIT" else None, code, detail, key, entry)


def _malformed(case: object) -> str:
    if type(case) is not dict:
        return "case"
    if [*map(type, case)].count(str) != len(case):
        return "field"
    for name in _key.GEOMETRY:
        if name not in case:
            return name
    for name, value in case.items():
        if name not in _key.FIELDS:
            return str(name) or "field"
        if type(value) is not (int if name in _key.INTEGER_FIELDS else str):
            return str(name)
    return ""


def _check(entry: Entry, features: tuple[str, ...], case: _key.Case, board: str) -> tuple[str, str]:
    for name in _key.FLAGS:
        if case.get(name, _key.NEUTRAL[name]) != _key.NEUTRAL[name] and name not in features and name not in entry.box:
            return "FEATURE", name
    if entry.axis:
        size = _key.axis_value(case, entry.axis)
        if size < entry.bound if entry.rule.endswith("from") else size > entry.bound:
            return "RULE", entry.axis
    for name, limit in entry.box.items():
        if name == "board":
            if type(board) is not str or limit != board:
                return "BOARD", name
        elif not _inside(_key.feature(case, name), limit):
            return ("GUARD" if name in _key.PREDICATES else "BOX"), name
    return "HIT", ""


def _inside(value: int | str, limit: Limit) -> bool:
    if type(limit) is tuple:
        low, high = limit[0], limit[-1]
        if type(low) is int and type(high) is int:
            return type(value) is int and low <= value <= high
        return value in limit
    return value == limit
