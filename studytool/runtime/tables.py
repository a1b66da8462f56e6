"""Placement tables: read from modules of literals, checked whole, held against what is here, and frozen.

A table is a Python module of literals (`SCHEMA`, `ROWS`, `TABLE`), read with `ast` and never executed. An entry
is `key: (rule, box)` or `key: (rule, axis, bound, box)`. The box holds what was measured: a feature's only
value, an inclusive integer range `(lo, hi)`, or a tuple of strings that it may be one of. What it says of the library's
version and of the board (`MEASURED`) is held against what is here when a table is loaded, the rest at every look-up.
"""

import ast
import operator
import warnings
from collections.abc import Callable, Iterable, Mapping
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
MAX_SIZE = 10**15
"""The largest integer in a key."""

MAX_PARTS = 1_500_000
"""Most commas, colons, brackets and line ends: what `ast` makes of one takes half a kilobyte."""

Key = tuple[int | str, ...]
Limit = int | str | tuple[int, int] | tuple[str, ...]


_NEVER = (_key.PLACES["b"], 1, 0)
"""The range of a feature that is a text: none lies between two numbers."""


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


Pick = Callable[[tuple[_key.Value, ...]], object]
"""Takes some of the facts of a case, by their places."""


class Quick(NamedTuple):
    """An entry made ready for look-ups: what it answers, and the conditions of its rule and box.

    Facts of a case are named by their place in key.FACTS. What `pick` takes of them is equal to `values`; `ranges`
    bound integers, `words` name what texts may be; the product of those at `axis` lies between `least` and `most`.
    """

    verdict: bool
    pick: Pick
    values: object
    ranges: tuple[tuple[int, int, int], ...]
    words: tuple[tuple[int, frozenset[str]], ...]
    axis: tuple[int, ...]
    least: float
    most: float
    board: str | None


class Index(NamedTuple):
    """The entries of one row and compute capability, by what `pick` takes of the facts of a case."""

    pick: Pick
    entries: Mapping[object, Quick]


class Table(NamedTuple):
    """A table as it was read: per row the features of its keys, and the entries by key; `table_of` makes one.

    `indices` are the same, made ready for look-ups, by row and compute capability.
    """

    rows: Mapping[str, tuple[str, ...]]
    entries: Mapping[Key, Entry]
    indices: Mapping[tuple[str, str], Index]


def table_of(rows: Mapping[str, tuple[str, ...]], entries: Mapping[Key, Entry]) -> Table:
    """Return a frozen table of rows and entries, which are those of `parse` or made like them."""
    picks = {row: _pick(features) for row, features in rows.items()}
    indices: dict[tuple[str, str], dict[object, Quick]] = {}
    shared: dict[object, Any] = {}  # what many entries have in common is kept once: it stays in the cache
    for key, entry in entries.items():
        row, cc = str(key[0]), str(key[1])
        known = dict(zip(rows[row], key[2:], strict=True))
        indices.setdefault((row, cc), {})[picks[row](_places(known))] = _quick(entry, shared)
    frozen = {name: Index(picks[name[0]], MappingProxyType(index)) for name, index in indices.items()}
    return Table(MappingProxyType(dict(rows)), MappingProxyType(dict(entries)), MappingProxyType(frozen))


def _pick(names: Iterable[str]) -> Pick:
    """Return what takes the values of these features from the facts of a case."""
    places = [_key.PLACES[name] for name in names]
    return operator.itemgetter(*places) if places else operator.itemgetter(slice(0))


def _places(known: Mapping[str, Limit]) -> tuple[Any, ...]:
    """Return what is known of a case at the places of the facts."""
    return tuple(known.get(name) for name in _key.FACTS)


def parse(source: bytes, where: str) -> Table:
    """Return the table in a module's bytes; `where` names it in the TableError of a bad line."""
    if len(source) > MAX_BYTES:
        raise TableError(f"{where}:1: more than {MAX_BYTES} bytes")
    if sum(source.count(part) for part in b",:;([{\n+-*/.=<>|&^%@~") > MAX_PARTS:
        raise TableError(f"{where}:1: more than {MAX_PARTS} commas, colons, brackets and lines")
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
    except (ValueError, TypeError, SyntaxError, OverflowError, RecursionError, MemoryError):
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
        if parts[:2] != [str, str] or not set(parts) <= {int, str} or not all(_size_ok(part) for part in key):
            raise TableError(f"{where}:{line}: key {key!r}; expected (row, cc, feature values)")
        if len(key) != 2 + len(rows.get(key[0], key)):
            raise TableError(f"{where}:{line}: key {key!r} does not have the features of ROWS[{key[0]!r}]")
        if key in entries:
            raise TableError(f"{where}:{line}: key {key!r} stands already in line {entries[key].line}")
        if _says_twice(value_node):
            raise TableError(f"{where}:{line}: a name stands twice in the box of {key!r}")
        entries[key] = _entry(value, line, where)
    return entries


def _size_ok(part: int | str) -> bool:
    """Return whether a part of a key is no larger than a size can be: of larger ones many have one hash."""
    return isinstance(part, str) or abs(part) <= MAX_SIZE


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


def _quick(entry: Entry, shared: dict[object, Any]) -> Quick:
    same: dict[str, Limit] = {}
    ranges: list[tuple[int, int, int]] = []
    words: list[tuple[int, frozenset[str]]] = []
    for name, limit in entry.box.items():
        if name == "board":
            continue
        if not isinstance(limit, tuple):
            same[name] = limit
        elif bounds := bounds_of(limit):
            possible = name in _key.INTEGER_FIELDS or name in _key.PREDICATES
            ranges.append((_key.PLACES[name], *bounds) if possible else _NEVER)
        else:
            words.append((_key.PLACES[name], frozenset(map(str, limit))))
    pick = shared.setdefault(("pick", *same), _pick(same))
    above = entry.rule.endswith("from")
    return Quick(
        verdict=RULES[entry.rule],
        pick=pick,
        values=pick(_places(same)),
        ranges=shared.setdefault(tuple(ranges), tuple(ranges)),
        words=shared.setdefault(tuple(words), tuple(words)),
        axis=tuple(_key.PLACES[name] for name in entry.axis.split("*")) if entry.axis else (),
        least=entry.bound if above else float("-inf"),
        most=float("inf") if above else entry.bound,
        board=cast("str | None", entry.box.get("board")),
    )


def bounds_of(limit: Limit) -> tuple[int, int] | None:
    """Return the inclusive integers that a limit lies between, None for one of words."""
    first, last = (limit[0], limit[-1]) if isinstance(limit, tuple) else (limit, limit)
    return (first, last) if isinstance(first, int) and isinstance(last, int) else None


EMPTY = table_of({}, {})
