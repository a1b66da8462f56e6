"""Placement tables: read from modules of literals, checked whole, held against what is here, and frozen.

A table is a Python module of literals (`SCHEMA`, `ROWS`, `TABLE`), read with `ast` and never executed. An entry
is `key: (rule, box)` or `key: (rule, axis, bound, box)`. The box holds what was measured: a feature's only
value, an inclusive integer range `(lo, hi)`, or a tuple of strings that it may be one of. What it says of the library's
version and of the board (`MEASURED`) is held against what is here when a table is loaded, the rest at every look-up.
"""

import ast
import functools
import operator
import warnings
from collections.abc import Callable, Mapping
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

MEASURED = ("cudnn", "torch", "sm_count", "memory_gib")
"""Names in a box that no graph has: a library's version by major.minor, the board's SMs and memory in GiB."""

MAX_BYTES = 32 << 20
MAX_ENTRIES = 100_000
MAX_DEPTH = 8

Key = tuple[int | str, ...]
Limit = int | str | tuple[int, int] | tuple[str, ...]


_PLAIN = frozenset(_key.GEOMETRY) - _key.DERIVED.keys()


class TableError(ValueError):
    """A table is not what a table may be; the message names file and line."""


class Entry(NamedTuple):
    """One line of a table. `axis` and `bound` are "" and 0 where the rule has none; `line` is where it stands.

    `measured` is what the box says of library and board, `box` the rest.
    """

    rule: str
    axis: str
    bound: int
    box: Mapping[str, Limit]
    line: int
    measured: Mapping[str, Limit] = MappingProxyType({})


class Quick(NamedTuple):
    """An entry made ready for look-ups: what it answers, and the conditions of its rule and box.

    `axis` of a threshold lies between `least` and `most`; `ranges` bound sizes by their place in key.GEOMETRY, and
    `others` all other features, by bounds or by what they may be.
    """

    verdict: bool
    axis: Callable[[_key.Case], int] | None
    least: float
    most: float
    board: str | None
    ranges: tuple[tuple[int, int, int], ...]
    others: tuple[tuple[Callable[[_key.Case], _key.Value], tuple[int, int] | frozenset[str]], ...]


class Index(NamedTuple):
    """The entries of one row and compute capability, by the values of `fields` and then of `features`."""

    fields: Callable[[_key.Case], tuple[_key.Value, ...]]
    features: tuple[Callable[[_key.Case], _key.Value], ...]
    entries: Mapping[tuple[_key.Value, ...], Quick]


class Table(NamedTuple):
    """A table as it was read: per row the features of its keys, and the entries by key; `table_of` makes one.

    `indices` are the same, made ready for look-ups, by row and compute capability.
    """

    rows: Mapping[str, tuple[str, ...]]
    entries: Mapping[Key, Entry]
    indices: Mapping[tuple[str, str], Index]


def table_of(rows: Mapping[str, tuple[str, ...]], entries: Mapping[Key, Entry]) -> Table:
    """Return a frozen table of rows and entries, which are those of `parse` or made like them."""
    index: dict[tuple[str, str], Index] = {}
    for key, entry in entries.items():
        row, cc, *values = key
        own = index.setdefault((str(row), str(cc)), _index(rows[str(row)]))
        order = sorted(range(len(values)), key=lambda place: rows[str(row)][place] not in _PLAIN)
        cast("dict[Any, Quick]", own.entries)[tuple(values[place] for place in order)] = _quick(entry)
    frozen = {name: own._replace(entries=MappingProxyType(own.entries)) for name, own in index.items()}
    return Table(MappingProxyType(dict(rows)), MappingProxyType(dict(entries)), MappingProxyType(frozen))


def parse(source: bytes, where: str) -> Table:
    """Return the table in a module's bytes; `where` names it in the TableError of a bad line."""
    if len(source) > MAX_BYTES:
        raise TableError(f"{where}:1: more than {MAX_BYTES} bytes")
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
    return table_of(rows, _entries(parts["TABLE"], rows, where))


def _literal(node: ast.expr, where: str) -> Any:
    if _deeper(node, MAX_DEPTH):
        raise TableError(f"{where}:{node.lineno}: nested deeper than {MAX_DEPTH}")
    try:
        value = ast.literal_eval(node)
        repr(value)  # an integer that is too long to print raises here, not in an error message
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        raise TableError(f"{where}:{node.lineno}: not a literal") from None
    return value


def _deeper(node: ast.AST, most: int) -> bool:
    return most < 0 or any(_deeper(child, most - 1) for child in ast.iter_child_nodes(node))


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
    if isinstance(node, ast.Dict) and len(node.keys) > MAX_ENTRIES:
        raise TableError(f"{where}:{node.lineno}: more than {MAX_ENTRIES} entries")
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
            measured = {name: box.pop(name) for name in MEASURED if name in box}
            return Entry(rule, axis, bound, MappingProxyType(box), line, MappingProxyType(measured))
    raise TableError(f"{where}:{line}: entry {value!r}; expected (rule, box) or (rule, axis, bound, box)")


def _limit_ok(name: object, limit: object) -> bool:
    if name == "board" or name in MEASURED:
        return type(limit) is (int if name in {"sm_count", "memory_gib"} else str)
    if type(name) is not str or name not in _key.FEATURES:
        return False
    if type(limit) is tuple and limit:
        strings = all(type(part) is str for part in limit)
        return strings or (len(limit) == 2 and all(type(part) is int for part in limit) and limit[0] <= limit[1])
    return type(limit) in {int, str}


def _index(features: tuple[str, ...]) -> Index:
    plain = [name for name in features if name in _PLAIN]
    return Index(_fields(plain), tuple(_key.getter(name) for name in features if name not in _PLAIN), {})


def _fields(names: list[str]) -> Callable[[_key.Case], tuple[_key.Value, ...]]:
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda case: tuple(case[name] for name in names)


def _quick(entry: Entry) -> Quick:
    ranges: list[tuple[int, int, int]] = []
    others: list[tuple[Callable[[_key.Case], _key.Value], tuple[int, int] | frozenset[str]]] = []
    for name, limit in entry.box.items():
        bounds = bounds_of(limit)
        if name == "board":
            continue
        if bounds is not None and name in _PLAIN and name in _key.INTEGER_FIELDS:
            ranges.append((_key.GEOMETRY.index(name), *bounds))
        elif bounds is not None:
            others.append((_key.getter(name), bounds))
        else:
            words = limit if isinstance(limit, tuple) else (limit,)
            others.append((_key.getter(name), frozenset(map(str, words))))
    above = entry.rule.endswith("from")
    return Quick(
        verdict=RULES[entry.rule],
        axis=functools.partial(_size, entry.axis) if entry.axis else None,
        least=entry.bound if above else float("-inf"),
        most=float("inf") if above else entry.bound,
        board=cast("str | None", entry.box.get("board")),
        ranges=tuple(ranges),
        others=tuple(others),
    )


def bounds_of(limit: Limit) -> tuple[int, int] | None:
    """Return the inclusive integers that a limit lies between, None for one of words."""
    first, last = (limit[0], limit[-1]) if isinstance(limit, tuple) else (limit, limit)
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


def _size(axis: str, case: _key.Case) -> int:
    return _key.axis_value(case, axis)


EMPTY = table_of({}, {})
