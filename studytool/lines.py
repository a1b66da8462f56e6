"""Entries ⇄ table text: sorted, one entry a line, formatted as black would, so that a table changes by whole lines."""

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from studytool.decode import decode
from studytool.digest import canonical, sha256
from studytool.errors import TableError
from studytool.metrics import PPM
from studytool.model import SCOPES
from studytool.runtime import key as runtime_key
from studytool.runtime import lookup

_HEAD = '"""Placement table: per class of graph, which engine leads. Literals, read with `ast`, never executed."""\n'
_FORMAT = "\n# fmt: off\nSCHEMA = 1\n\n# row: the features of its class keys, in order\nROWS = {\n"
_MIDDLE = "}\n\n# (row, cc, *features): (rule, [axis, bound,] box),  # evidence\nTABLE = {\n"
_TAIL = "}\n"
_MARK = "# studytool lines "

OPPOSITE = {
    "always": "never",
    "from": "never_from",
    "upto": "never_upto",
    "never": "always",
    "never_from": "from",
    "never_upto": "upto",
}
"""Each rule with the one that says the contrary of the same cases."""


class Line(NamedTuple):
    """One entry as it is emitted: `axis` is "" for a rule without one; `comment` is its evidence."""

    key: lookup.Key
    rule: str
    axis: str
    bound: int
    box: Mapping[str, lookup.Limit]
    comment: str


class Header(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first line of a lines file: what made the lines, so that they can be made again."""

    schema: int
    study: str
    dtype: str
    row: str
    features: tuple[str, ...]
    margin_ppm: int
    scope: str
    study_json: str


class Text(NamedTuple):
    """A table or lines file as text: rows with their features, and each entry's own line by key."""

    rows: dict[str, tuple[str, ...]]
    entries: dict[lookup.Key, str]


def render(line: Line) -> str:
    """Return an entry as the line that a table holds, without its line end."""
    rule = f"{_literal(line.rule)}, {_literal(line.axis)}, {line.bound}" if line.axis else _literal(line.rule)
    box = ", ".join(f"{_literal(name)}: {_literal(limit)}" for name, limit in line.box.items())
    return f"    {_literal(line.key)}: ({rule}, {{{box}}}),  # {line.comment}"


def rule_text(line: Line | None) -> str:
    """Return a line's rule in short, such as `from s_kv 256`; "" for none."""
    if line is None:
        return ""
    return f"{line.rule} {line.axis} {line.bound}" if line.axis else line.rule


def lines_text(header: Header, lines: Iterable[Line]) -> str:
    """Return a lines file: the header, then the entries sorted by key."""
    head = _MARK + canonical(msgspec.to_builtins(header)).decode() + "\n"
    return head + "".join(render(line) + "\n" for line in sorted(lines, key=lambda line: canonical(line.key)))


def bare_text(lines: Iterable[Line]) -> str:
    """Return entries as key and rule alone, to be pasted into a library's own table; the key order is ours.

    A key is (row, cc, *features in the order of the study's class_key), a rule `"always"` or `("from", axis, bound)`.
    """
    ordered = sorted(lines, key=lambda line: canonical(line.key))
    rules = ((line.rule, line.axis, line.bound) if line.axis else line.rule for line in ordered)
    return "".join(f"    {_literal(line.key)}: {_literal(rule)},\n" for line, rule in zip(ordered, rules, strict=True))


def table_text(text: Text) -> str:
    """Return the whole text of a table, rows and entries sorted."""
    rows = "".join(row_line(row, text.rows[row]) + "\n" for row in sorted(text.rows))
    entries = "".join(text.entries[key] + "\n" for key in sorted(text.entries, key=canonical))
    return _HEAD + _FORMAT + rows + _MIDDLE + entries + _TAIL


def row_line(row: str, features: tuple[str, ...]) -> str:
    """Return the line of ROWS that tells a row's features."""
    return f"    {_literal(row)}: {_literal(features)},"


EMPTY = table_text(Text({}, {}))
"""A table without entries."""


def parse_table(data: bytes, where: str) -> lookup.Table:
    """Return a table for look-ups; TableError names file and line of what is no table."""
    try:
        table = lookup.parse(data, where)
    except lookup.TableError as error:
        raise TableError(str(error)) from None
    for key, entry in table.entries.items():
        try:
            canonical(key)
        except UnicodeEncodeError:
            raise TableError(f"{where}:{entry.line}: a key that has no UTF-8") from None
    return table


def read_table(data: bytes, where: str) -> Text:
    """Return a table's rows and entry lines; TableError where a line is not as `table_text` would write it."""
    text = _text(data, where)
    table = parse_table(data, where)
    physical = text.split("\n")
    found = Text(
        dict(table.rows), {key: _own(key, entry, physical[entry.line - 1]) for key, entry in table.entries.items()}
    )
    expected = table_text(found)
    if text != expected:
        wanted = expected.split("\n")
        pairs = enumerate(zip(physical, wanted, strict=False), 1)
        line = next((n for n, (a, b) in pairs if a != b), min(len(physical), len(wanted)))
        raise TableError(f"{where}:{line}: not as studytool writes a table: one entry a line, sorted, nothing else")
    return found


def read_lines(data: bytes, where: str) -> tuple[Header, Text]:
    """Return the header and entries of a lines file; TableError names file and line of anything else."""
    text = _text(data, where)
    first, _, rest = text.partition("\n")
    if not first.startswith(_MARK):
        raise TableError(f"{where}:1: expected `{_MARK.strip()}` and its header; was it made by gen.py --emit?")
    header = decode(first.removeprefix(_MARK), Header, f"{where}:1", "header", TableError)
    if not 0 <= header.margin_ppm <= PPM or header.scope not in SCOPES:
        raise TableError(f"{where}:1: margin_ppm or scope that no fit has")
    if not all(feature in runtime_key.FEATURES for feature in header.features):
        raise TableError(f"{where}:1: features {', '.join(header.features)}; expected names of features")
    # What stands before the entries goes in one line, as the header does, so that a line's number is that of the file.
    rows = f"{{{_literal(header.row)}: {_literal(header.features)}}}"
    start = f"SCHEMA = {lookup.SCHEMA}; ROWS = {rows}; TABLE = {{\n"
    table = parse_table((start + rest + _TAIL).encode(), where)
    physical = rest.split("\n")
    entries = {key: _own(key, entry, physical[entry.line - 2]) for key, entry in table.entries.items()}
    found = Text({header.row: header.features}, entries)
    expected = "".join(entries[key] + "\n" for key in sorted(entries, key=canonical))
    if rest != expected:
        wanted = expected.split("\n")
        line = next((n for n, (a, b) in enumerate(zip(physical, wanted, strict=False), 2) if a != b), len(wanted) + 1)
        raise TableError(f"{where}:{line}: expected one entry a line, sorted, nothing else")
    return header, found


def _own(key: lookup.Key, entry: lookup.Entry, line: str) -> str:
    """Return the line of an entry when it is as `render` writes it, else what it should begin with."""
    box = {**entry.measured, **entry.box}
    start = render(Line(key, entry.rule, entry.axis, entry.bound, box, ""))
    return line if line.startswith(start) else start


def _text(data: bytes, where: str) -> str:
    """Return the text in bytes; TableError where it is not UTF-8, or has a line end that only Python takes for one."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TableError(f"{where}:{data[: error.start].count(10) + 1}: not UTF-8") from None
    if "\r" in text:
        number = text.partition("\r")[0].count("\n") + 1
        raise TableError(f"{where}:{number}: a carriage return; expected LF alone")
    return text


def insert(table: Text, lines: Text, where: str) -> Text:
    """Return the table with the lines put in: a line whose key is there takes its place, whole.

    TableError when a row stands in the table with other features.
    """
    for row, features in lines.rows.items():
        if table.rows.get(row, features) != features:
            raise TableError(
                f"{where}: row {row} has features {table.rows[row]} in the table; the lines have {features}"
            )
    return Text({**table.rows, **lines.rows}, {**table.entries, **lines.entries})


NO_ENTRIES = sha256(b"")
"""The `entries_digest` of a table without entries of a row and dtype."""


def entries_digest(table: Text, row: str, dtype: str) -> str:
    """Return the digest of the entry lines of one row and dtype: what a dtype's hold-out judges."""
    features = table.rows.get(row, ())
    place = 2 + features.index("dtype") if "dtype" in features else None
    own = [
        table.entries[key]
        for key in sorted(table.entries, key=canonical)
        if key[0] == row and (place is None or key[place] == dtype)
    ]
    return sha256("\n".join(own).encode())


def _literal(value: object) -> str:
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        inner = ", ".join(_literal(part) for part in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return str(value)
