"""Look a case up in a placement table: True (the row leads), False (it trails), None (no entry: keep the order).

A table is a Python module of literals (`SCHEMA`, `ROWS`, `TABLE`), read with `ast` and never executed. An entry
is `key: (rule, box)` or `key: (rule, axis, bound, box)`. The box holds what was measured: a feature's only
value, an inclusive integer range `(lo, hi)`, or a tuple of strings that it may be one of.
"""

import ast
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, cast

from . import key as _key

SCHEMA = 1
RULES = {
    "always": True,
    "from": True,
    "upto": True,
    "never": False,
    "never_from": False,
    "never_upto": False,
}
"""The rules an entry may have, with what a look-up answers when the rule holds."""

Key = tuple[int | str, ...]
Limit = int | str | tuple[int, int] | tuple[str, ...]


class TableError(ValueError):
    """A table is not what a table may be; the message names file and line."""


class Entry(NamedTuple):
    """One line of a table. `axis` and `bound` are "" and 0 where the rule has none; `line` is where it stands."""

    rule: str
    axis: str
    bound: int
    box: Mapping[str, Limit]
    line: int


class Table(NamedTuple):
    """A table as it was read: per row the features of its keys, and the entries by key."""

    rows: Mapping[str, tuple[str, ...]]
    entries: Mapping[Key, Entry]


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


EMPTY = Table(MappingProxyType({}), MappingProxyType({}))


def load(path: str | Path) -> Table:
    """Return the table in a file; TableError where it is not one, OSError where it cannot be read."""
    return parse(Path(path).read_bytes(), str(path))


def parse(source: bytes, where: str) -> Table:
    """Return the table in a module's bytes; `where` names it in the TableError of a bad line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            body = ast.parse(source.decode("utf-8")).body
    except SyntaxError as error:
        raise TableError(f"{where}:{error.lineno or 1}: not Python: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise TableError(f"{where}:1: not a table: {str(error) or 'nested too deep'}") from None
    parts: dict[str, ast.expr] = {}
    for number, node in enumerate(body):
        if number == 0 and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            continue
        name = node.targets[0] if isinstance(node, ast.Assign) and len(node.targets) == 1 else None
        if not isinstance(name, ast.Name) or name.id not in {"SCHEMA", "ROWS", "TABLE"} or name.id in parts:
            raise TableError(f"{where}:{node.lineno}: expected SCHEMA, ROWS and TABLE, each once, and nothing else")
        parts[name.id] = cast("ast.Assign", node).value
    if set(parts) != {"SCHEMA", "ROWS", "TABLE"}:
        raise TableError(f"{where}:1: found {', '.join(sorted(parts)) or 'nothing'}; expected SCHEMA, ROWS, TABLE")
    schema = _literal(parts["SCHEMA"], where)
    if schema != SCHEMA or type(schema) is not int:
        raise TableError(f"{where}:{parts['SCHEMA'].lineno}: schema {schema!r}; expected {SCHEMA}")
    rows = _rows(parts["ROWS"], where)
    return Table(MappingProxyType(rows), MappingProxyType(_entries(parts["TABLE"], rows, where)))


def _literal(node: ast.expr, where: str) -> Any:
    try:
        value = ast.literal_eval(node)
        repr(value)  # an integer that is too long to print raises here, not in an error message
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise TableError(f"{where}:{node.lineno}: not a literal") from None
    return value


def _pairs(node: ast.expr, where: str) -> list[tuple[ast.expr, ast.expr]]:
    if not isinstance(node, ast.Dict):
        raise TableError(f"{where}:{node.lineno}: expected a dictionary")
    for key, value in zip(node.keys, node.values, strict=True):
        if key is None:
            raise TableError(f"{where}:{value.lineno}: expected `key: value`, found `**`")
    return list(zip(cast("list[ast.expr]", node.keys), node.values, strict=True))


def _rows(node: ast.expr, where: str) -> dict[str, tuple[str, ...]]:
    rows: dict[str, tuple[str, ...]] = {}
    for key_node, value_node in _pairs(node, where):
        row, features = _literal(key_node, where), _literal(value_node, where)
        line = key_node.lineno
        if type(row) is not str or row in rows:
            raise TableError(f"{where}:{line}: row {row!r} is not a new name")
        if type(features) is not tuple or not all(type(f) is str and f in _key.FEATURES for f in features):
            raise TableError(
                f"{where}:{line}: features of {row}: found {features!r}, expected a tuple of feature names"
            )
        rows[row] = features
    return rows


def _entries(node: ast.expr, rows: Mapping[str, tuple[str, ...]], where: str) -> dict[Key, Entry]:
    entries: dict[Key, Entry] = {}
    for key_node, value_node in _pairs(node, where):
        line = key_node.lineno
        key, value = _literal(key_node, where), _literal(value_node, where)
        parts = [type(part) for part in key] if type(key) is tuple else []
        if parts[:2] != [str, str] or not set(parts) <= {int, str}:
            raise TableError(f"{where}:{line}: key {key!r}; expected (row, cc, feature values)")
        if len(key) != 2 + len(rows.get(key[0], key)):
            raise TableError(f"{where}:{line}: key {key!r} does not have the features of ROWS[{key[0]!r}]")
        if key in entries:
            raise TableError(f"{where}:{line}: key {key!r} stands already in line {entries[key].line}")
        if _says_twice(value_node):
            raise TableError(f"{where}:{line}: a name stands twice in the box of {key!r}")
        entries[key] = _entry(value, line, where)
    return entries


def _says_twice(literal: ast.expr) -> bool:
    dicts = (part for part in ast.walk(literal) if isinstance(part, ast.Dict))
    return any(len(ast.literal_eval(part)) < len(part.keys) for part in dicts)


def _entry(value: object, line: int, where: str) -> Entry:
    threshold = False
    if type(value) is tuple and len(value) in {2, 4} and type(value[0]) is str and value[0] in RULES:
        threshold = len(value) == 4
        rule, box = value[0], value[-1]
        axis, bound = (value[1], value[2]) if threshold else ("", 0)
        if (
            threshold == rule.endswith(("from", "upto"))
            and type(bound) is int
            and type(axis) is str
            and (not threshold or _key.is_axis(axis))
            and type(box) is dict
            and all(_limit_ok(name, limit) for name, limit in box.items())
        ):
            return Entry(rule, axis, bound, MappingProxyType(box), line)
    raise TableError(f"{where}:{line}: entry {value!r}; expected (rule, box) or (rule, axis, bound, box)")


def _limit_ok(name: object, limit: object) -> bool:
    if name == "board":
        return type(limit) is str
    if type(name) is not str or name not in _key.FEATURES:
        return False
    if type(limit) is tuple and limit:
        strings = all(type(part) is str for part in limit)
        return strings or (len(limit) == 2 and all(type(part) is int for part in limit) and limit[0] <= limit[1])
    return type(limit) in {int, str}


def _inside(value: int | str, limit: Limit) -> bool:
    if type(limit) is tuple:
        low, high = limit[0], limit[-1]
        if type(low) is int and type(high) is int:
            return type(value) is int and low <= value <= high
        return value in limit
    return value == limit


def lookup(table: Table, row: str, cc: str, case: Mapping[str, object], board: str = "") -> bool | None:
    """Return True (the row leads), False (it trails) or None (no entry) for a case. Never raises."""
    return explain(table, row, cc, case, board).verdict


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
    for name in _key.GEOMETRY:
        if name not in case:
            return name
    for name, value in case.items():
        if type(name) is not str or name not in _key.FIELDS:
            return name if type(name) is str and name else "field"
        if type(value) is not (int if name in _key.INTEGER_FIELDS else str):
            return name
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
