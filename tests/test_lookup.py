"""Tables are read, never run; a look-up always answers, and answers None in doubt."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bad_tables import BAD_ENTRIES, BAD_TABLES, BAD_VALUES, KEY, ROWS
from factories import make_fields
from hypothesis import given
from hypothesis import strategies as st

import studytool.runtime
from studytool.runtime import key, lookup
from studytool.runtime.lookup import Answer, Table, TableError

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)
CASES = st.fixed_dictionaries(
    {name: st.sampled_from([*make_fields().values(), 0, 1, "f16", "br"]) | ANYTHING for name in key.GEOMETRY},
    optional={name: st.sampled_from([0, 1, "none", "thd"]) | ANYTHING for name in [*key.NEUTRAL, "color"]},
)


def _table(entry: str, entry_key: str = KEY) -> Table:
    """Return the table with one entry, which stands in line 6."""
    return lookup.parse(f"{ROWS}TABLE = {{\n    {entry_key}: {entry},\n}}\n".encode(), "t.py")


def _explain(entry: str, board: str = "", **changes: Any) -> Answer:
    """Return what the table with one entry says of a small square case with these fields changed."""
    return lookup.explain(_table(entry), "r", "8.0", make_fields(**changes), board)


@pytest.mark.parametrize(("source", "message"), BAD_TABLES.values(), ids=BAD_TABLES.keys())
def test_bad_table_is_one_line(source: str, message: str) -> None:
    """Whatever is not a table of literals is refused in one line with file and line, and is never run."""
    with pytest.raises(TableError) as caught:
        lookup.parse(source.encode(), "t.py")

    assert str(caught.value) == f"t.py:{message}"


@pytest.mark.parametrize(("entry", "message"), BAD_ENTRIES.values(), ids=BAD_ENTRIES.keys())
def test_bad_entry_is_one_line(entry: str, message: str) -> None:
    """An entry that is not a literal key and value of its row is refused with its line."""
    with pytest.raises(TableError) as caught:
        lookup.parse(f"{ROWS}TABLE = {{\n    {entry},\n}}\n".encode(), "t.py")

    assert str(caught.value) == f"t.py:{message}"


@pytest.mark.parametrize("value", BAD_VALUES)
def test_bad_value_is_one_line(value: str) -> None:
    """A value of the wrong form, arity or types is refused with its line and with what it is."""
    with pytest.raises(TableError) as caught:
        _table(value)

    assert str(caught.value) == f"t.py:6: entry {value}; expected (rule, box) or (rule, axis, bound, box)"


def test_duplicate_key_names_both_lines() -> None:
    """Two entries of one key are an error that names the line of each."""
    source = f"{ROWS}TABLE = {{\n    {KEY}: ('always', {{}}),\n\n    {KEY}: ('never', {{}}),\n}}\n"

    with pytest.raises(TableError, match=r"^t\.py:8: key \('r', '8\.0', 'bf16', 'none'\) stands already in line 6$"):
        lookup.parse(source.encode(), "t.py")


@pytest.mark.parametrize(
    "source",
    [
        b"SCHEMA = 1 # \xff",
        b"SCHEMA = 1\x00",
        b"SCHEMA = " + b"-" * 100_000 + b"1",
        b"SCHEMA = " + b"-" * 3000 + b"1\nROWS = {}\nTABLE = {}",
    ],
    ids=["no UTF-8", "null", "far too deep", "too deep"],
)
def test_bad_bytes_are_one_line(source: bytes) -> None:
    """Bytes that are no text, or nested too deep to read, are no table."""
    with pytest.raises(TableError, match=r"\At\.py:1: not [^\n]+\Z"):
        lookup.parse(source, "t.py")


@given(st.binary(max_size=80) | st.text("SCHEMAROWSTABLE=1{}()'\", :\n*", max_size=80).map(str.encode))
def test_any_bytes_are_no_table(source: bytes) -> None:
    """Whatever the bytes, reading a table raises nothing but a TableError of one line."""
    with pytest.raises(TableError, match=r"\At\.py:[1-9]\d*: .+\Z"):
        lookup.parse(source, "t.py")


def test_table_is_read_whole(tmp_path: Path) -> None:
    """Rows, keys, rules, axes, bounds, boxes and lines are those of the file, and cannot be changed."""
    path = tmp_path / "table.py"
    path.write_text(
        f'"""A table."""\n{ROWS}TABLE = {{\n    {KEY}: ("from", "b*s_kv", 5, {{"b": (1, 2), "mask": ("br",)}}),\n}}\n'
    )
    table = lookup.load(path)
    entry = table.entries["r", "8.0", "bf16", "none"]

    assert table.rows == {"r": ("dtype", "mask")}
    assert tuple(entry) == ("from", "b*s_kv", 5, {"b": (1, 2), "mask": ("br",)}, 7, {})
    with pytest.raises(TypeError):
        entry.box["b"] = 3  # type: ignore[index]


def test_shipped_table_is_a_table() -> None:
    """The table that ships with the runtime can be read."""
    table = lookup.load(Path(studytool.runtime.__file__).parent / "table.py")

    assert {row for row, *_ in table.entries} <= table.rows.keys()


@pytest.mark.parametrize(
    ("rule", "answers"),
    [
        ("('always', {})", [True, True, True]),
        ("('never', {})", [False, False, False]),
        ("('from', 's_kv', 100, {})", [None, True, True]),
        ("('upto', 's_kv', 100, {})", [True, True, None]),
        ("('never_from', 's_kv', 100, {})", [None, False, False]),
        ("('never_upto', 's_kv', 100, {})", [False, False, None]),
        ("('from', 'b*s_kv', 200, {})", [None, True, True]),
    ],
)
def test_rules_at_their_bound(rule: str, answers: list[bool | None]) -> None:
    """A bound belongs to the rule: a lead or trail holds at it and on one side of it."""
    table = _table(rule)
    found = [lookup.lookup(table, "r", "8.0", make_fields(b=2, s_kv=s_kv)) for s_kv in (99, 100, 101)]

    assert found == answers


@pytest.mark.parametrize("rule", ["'always'", "'from', 's_kv', 1", "'never'", "'never_upto', 's_kv', 999"])
def test_ranges_hold_their_ends(rule: str) -> None:
    """A range of a box holds both of its ends, and an integer beside them is outside what was measured."""
    table = _table(f"({rule}, {{'s_kv': (64, 96)}})")
    answers = [lookup.explain(table, "r", "8.0", make_fields(s_kv=s_kv)) for s_kv in (63, 64, 96, 97)]

    assert [answer.code for answer in answers] == ["BOX", "HIT", "HIT", "BOX"]
    assert [answer.verdict is None for answer in answers] == [True, False, False, True]


@pytest.mark.parametrize(
    ("entry", "changes", "code", "detail"),
    [
        ("('always', {})", {}, "HIT", ""),
        ("('always', {})", {"mask": "br"}, "NOKEY", ""),
        ("('from', 's_kv', 129, {})", {}, "RULE", "s_kv"),
        ("('always', {'d_qk': 32})", {}, "BOX", "d_qk"),
        ("('always', {'heads': ('gqa', 'mqa')})", {}, "BOX", "heads"),
        ("('always', {'heads': ('gqa', 'mqa')})", {"h_kv": 2}, "HIT", ""),
        ("('always', {'heads': ('gqa',)})", {"h_kv": 2}, "HIT", ""),
        ("('always', {'heads': ('gqa',)})", {}, "BOX", "heads"),
        ("('always', {'heads': (1, 2)})", {}, "BOX", "heads"),
        ("('always', {'square': 1})", {"s_q": 1}, "GUARD", "square"),
        ("('always', {'square': 1})", {}, "HIT", ""),
        ("('always', {'window_binds': 1})", {}, "GUARD", "window_binds"),
        ("('always', {'board': 'A100'})", {}, "BOARD", "board"),
        ("('always', {})", {"padding": 1}, "FEATURE", "padding"),
        ("('always', {'padding': 1})", {"padding": 1}, "HIT", ""),
        ("('always', {'padding': 0})", {"padding": 1}, "BOX", "padding"),
        ("('always', {})", {"layout": "thd"}, "FEATURE", "layout"),
        ("('always', {})", {"layout": "dense", "padding": 0}, "HIT", ""),
        ("('from', 's_kv', 129, {})", {"layout": "thd"}, "FEATURE", "layout"),
        ("('always', {})", {"color": 1}, "FEATURE", "color"),
        ("('always', {})", {"": 1}, "FEATURE", "field"),
        ("('always', {})", {"s_kv": "128"}, "FEATURE", "s_kv"),
        ("('always', {})", {"s_kv": True}, "FEATURE", "s_kv"),
        ("('always', {})", {"mask": 0}, "FEATURE", "mask"),
    ],
)
def test_codes(entry: str, changes: dict[str, Any], code: str, detail: str) -> None:
    """Each code says why: it comes with the feature, and only a HIT has a verdict."""
    answer = _explain(entry, **changes)

    assert (answer.code, answer.detail, answer.verdict) == (code, detail, True if code == "HIT" else None)


def test_board_is_the_one_that_was_measured() -> None:
    """An entry that names a board leads there and nowhere else."""
    codes = [_explain("('always', {'board': 'A100'})", board).code for board in ("A100", "A10", "")]

    assert codes == ["HIT", "BOARD", "BOARD"]


def test_answer_has_key_and_entry() -> None:
    """An answer says which key was looked up and which line of the table spoke."""
    answer = _explain("('always', {'d_qk': 32})")

    assert answer.key == ("r", "8.0", "bf16", "none")
    assert answer.entry is not None
    assert answer.entry.line == 6


@pytest.mark.parametrize(
    ("row", "cc"), [("q", "8.0"), ("", "8.0"), (None, "8.0"), ("r", "9.0"), ("r", 8.0), ("r", ["8.0"]), (["r"], "8.0")]
)
def test_other_row_or_device_has_no_key(row: Any, cc: Any) -> None:
    """A row that is not in the table, or another compute capability, has no entry."""
    answer = lookup.explain(_table("('always', {})"), row, cc, make_fields())

    assert (answer.verdict, answer.code) == (None, "NOKEY")


def test_empty_table_never_answers() -> None:
    """A table without rows has no entry for anything."""
    assert lookup.explain(lookup.EMPTY, "r", "8.0", make_fields()) == (None, "NOKEY", "row", None, None)


@pytest.mark.parametrize("name", key.GEOMETRY)
def test_missing_field_is_never_led(name: str) -> None:
    """A case without one of its sizes is malformed, and the field is named."""
    case = make_fields()
    del case[name]

    assert lookup.explain(_table("('always', {})"), "r", "8.0", case) == (None, "FEATURE", name, None, None)


ENTRIES = [
    "('always', {})",
    "('always', {'board': 'A', 'heads': ('mha',), 'square': 1, 's_kv': (1, 200), 'tile': 'on'})",
    "('upto', 'b*h_kv*window', 5, {'window': 0, 'phase': ('square', 'chunk'), 'window_binds': 0})",
    "('never_from', 's_q', 0, {'padding': (0, 1), 'layout': ('dense', 'thd')})",
]


@given(st.sampled_from(ENTRIES), st.just("r") | ANYTHING, st.just("8.0") | ANYTHING, CASES | ANYTHING, ANYTHING)
def test_explain_is_total(entry: str, row: Any, cc: Any, case: Any, board: Any) -> None:
    """Whatever is asked, there is an answer, and it is a verdict just where the code is HIT."""
    answer = lookup.explain(_table(entry), row, cc, case, board)

    assert answer.code in {"HIT", "NOKEY", "RULE", "BOX", "GUARD", "BOARD", "FEATURE"}
    assert (answer.verdict is None) is (answer.code != "HIT")
    assert lookup.lookup(_table(entry), row, cc, case, board) is answer.verdict


@given(
    st.sampled_from(ENTRIES),
    st.text().filter(lambda name: name not in key.FIELDS) | st.integers() | st.none(),
    ANYTHING,
)
def test_unknown_field_is_never_led(entry: str, name: Any, value: Any) -> None:
    """A case that has anything that the runtime does not know of is answered None, neutral as it may look."""
    answer = lookup.explain(_table(entry), "r", "8.0", {**make_fields(), name: value}, "A")

    assert (answer.verdict, answer.code) == (None, "FEATURE")


def test_no_mapping_is_never_led() -> None:
    """A case that is not a dictionary is malformed."""
    assert lookup.explain(_table("('always', {})"), "r", "8.0", list(make_fields())).detail == "case"  # type: ignore[arg-type]


def test_runtime_works_where_it_is_copied(tmp_path: Path) -> None:
    """The folder works in another tree, under another name, without site packages, on the standard library alone."""
    shutil.copytree(Path(studytool.runtime.__file__).parent, tmp_path / "elsewhere")
    (tmp_path / "t.py").write_text(f"{ROWS}TABLE = {{\n    {KEY}: ('always', {{}}),\n}}\n")
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
before = set(sys.modules)
from elsewhere import lookup
import json
table = lookup.load({str(tmp_path / "t.py")!r})
lookup.load({str(tmp_path / "elsewhere" / "table.py")!r})
answer = lookup.lookup(table, "r", "8.0", {make_fields()!r})
names = sorted({{name.split(".")[0] for name in set(sys.modules) - before}} - set(sys.stdlib_module_names))
print(json.dumps([answer, names, "elsewhere.table" in sys.modules]))
"""
    run = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=False)

    assert (run.stderr, run.returncode) == ("", 0)
    assert json.loads(run.stdout) == [True, ["elsewhere"], False]
