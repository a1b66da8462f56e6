"""Look a case up in a placement table: True (the row leads), False (it trails), None (no entry: keep the order).

`lookup` is the quick way, `explain` the one that says why; they agree on every case. Both are total: whatever they are
given, no exception leaves them.
"""

import operator
from collections.abc import Mapping
from typing import NamedTuple, cast

from . import key as _key
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

_NAMES = {str}
_fetch = operator.itemgetter(*_key.GEOMETRY)
_GEOMETRY_TYPES = tuple(int if name in _key.INTEGER_FIELDS else str for name in _key.GEOMETRY)


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
    if type(case) is not dict or type(row) is not str or type(cc) is not str or {*map(type, case)} != _NAMES:
        return None
    try:
        values = _fetch(case)
    except KeyError:
        return None
    if tuple(map(type, values)) != _GEOMETRY_TYPES:
        return None
    mask, window = case.get("mask"), case.get("window")
    masked = type(mask) is str and type(window) is int and len(case) == len(values) + 2
    if not masked and (mask is not None or window is not None or len(case) != len(values)):
        return explain(table, row, cc, case, board).verdict  # what most graphs are not
    index = table.indices.get((row, cc))
    if index is None:
        return None
    quick = index.entries.get((*index.fields(case), *[get(case) for get in index.features]))
    return quick.verdict if quick is not None and _holds(quick, case, values, board) else None


def _holds(quick: Quick, case: _key.Case, values: tuple[int, ...], board: str) -> bool:
    """Return whether an entry's conditions hold for a well-formed case, whose geometry is `values`."""
    if quick.axis is not None and not quick.least <= quick.axis(case) <= quick.most:
        return False
    for place, low, high in quick.ranges:
        if not low <= values[place] <= high:
            return False
    for get, allowed in quick.others:
        value = get(case)
        if type(allowed) is tuple:
            if type(value) is not int or not allowed[0] <= value <= allowed[1]:
                return False
        elif value not in allowed:
            return False
    return quick.board is None or (type(board) is str and quick.board == board)


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
    if {*map(type, case)} - _NAMES:  # before a name is compared, which one of another type may not like
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
