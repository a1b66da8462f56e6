"""Entries and table text: what is rendered is read back, and what is not as it is written is refused with its line."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import studytool.runtime
from studytool import lines
from studytool.digest import canonical
from studytool.errors import TableError
from studytool.lines import Header, Line, Text
from studytool.metrics import ratio_text
from studytool.runtime import key, lookup

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
COMMENTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
SIZES = st.integers(-(10**15), 10**15)
LIMITS = (
    SIZES
    | TEXTS
    | st.tuples(SIZES, SIZES).map(lambda pair: (min(pair), max(pair)))
    | st.lists(TEXTS, min_size=1, max_size=3).map(tuple)
)
BOXES = st.dictionaries(st.sampled_from(key.FEATURES), LIMITS, max_size=5) | TEXTS.map(lambda board: {"board": board})
RULES = st.sampled_from(sorted(lookup.RULES))
FEATURES = ("dtype", "mask")


@st.composite
def _lines(draw: st.DrawFn) -> Line:
    rule = draw(RULES)
    axis = draw(st.sampled_from(["s_kv", "b*h_kv*s_kv"])) if rule.endswith(("from", "upto")) else ""
    values = draw(st.tuples(SIZES | TEXTS, SIZES | TEXTS))
    bound = draw(SIZES) if axis else 0
    return Line(("r", draw(TEXTS), *values), rule, axis, bound, draw(BOXES), draw(COMMENTS))


def _header(**changes: Any) -> Header:
    fields: dict[str, Any] = {"schema": 1, "study": "tiny", "dtype": "bf16", "row": "r", "features": FEATURES}
    return Header(**{**fields, "margin_ppm": 50_000, "scope": "box", "study_json": "5"} | changes)


def _line(cc: str = "8.0", dtype: str = "bf16", rule: str = "always", comment: str = "c", row: str = "r") -> Line:
    return Line((row, cc, dtype, "none"), rule, "", 0, {}, comment)


def _table(*entries: Line) -> Text:
    return Text({entry.key[0]: FEATURES for entry in entries}, {e.key: lines.render(e) for e in entries})  # type: ignore[misc]


def _said(data: str | bytes, read: Any) -> str:
    with pytest.raises(TableError) as caught:
        read(data.encode() if isinstance(data, str) else data, "f")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_entry_is_one_line_as_in_the_design() -> None:
    """An entry reads as the design shows it."""
    box: dict[str, lookup.Limit] = {"square": 1, "s_q": (128, 16250), "heads": ("gqa",)}
    line = Line(("sdpa_bwd_sm80", "8.0", "bf16", 64), "from", "s_kv", 512, box, "win 8/8")

    assert lines.render(line) == (
        '    ("sdpa_bwd_sm80", "8.0", "bf16", 64): '
        '("from", "s_kv", 512, {"square": 1, "s_q": (128, 16250), "heads": ("gqa",)}),  # win 8/8'
    )


@given(st.lists(_lines(), max_size=4, unique_by=lambda line: line.key))
def test_what_is_rendered_is_read_back(entries: list[Line]) -> None:
    """Whatever stands in keys, boxes and comments, a table reads back as the entries that were rendered."""
    data = lines.table_text(Text({"r": FEATURES}, {entry.key: lines.render(entry) for entry in entries})).encode()
    read = lookup.parse(data, "t.py")
    said = {key: (e.rule, e.axis, e.bound, e.box) for key, e in read.entries.items()}

    assert read.rows == {"r": FEATURES}
    assert said == {e.key: (e.rule, e.axis, e.bound, e.box) for e in entries}
    assert all(data.decode().split("\n")[read.entries[e.key].line - 1] == lines.render(e) for e in entries)
    assert lines.read_table(data, "t.py").entries == {entry.key: lines.render(entry) for entry in entries}


@given(st.lists(_lines(), max_size=4, unique_by=lambda line: line.key))
def test_lines_file_is_read_back(entries: list[Line]) -> None:
    """A lines file reads back as its header and each entry's own line."""
    header, text = lines.read_lines(lines.lines_text(_header(study="é\n"), entries).encode(), "lines")

    assert header == _header(study="é\n")
    assert text == Text({"r": FEATURES}, {entry.key: lines.render(entry) for entry in entries})


@given(
    st.lists(_lines(), min_size=2, max_size=5, unique_by=lambda line: line.key).flatmap(
        lambda some: st.tuples(st.just(some), st.permutations(some))
    )
)
def test_order_of_entries_does_not_matter(both: tuple[list[Line], list[Line]]) -> None:
    """Entries in another order make the same bytes, sorted by the canonical form of their keys."""
    one, other = (lines.lines_text(_header(), entries) for entries in both)
    tables = [lines.table_text(Text({"r": FEATURES}, {e.key: lines.render(e) for e in entries})) for entries in both]

    assert one == other
    assert tables[0] == tables[1]
    assert one.split("\n")[1:-1] == [lines.render(e) for e in sorted(both[0], key=lambda e: canonical(e.key))]


def test_the_empty_table_ships() -> None:
    """A table without entries is the one that ships with the runtime, byte by byte."""
    shipped = Path(studytool.runtime.__file__).with_name("table.py").read_bytes()

    assert shipped == lines.EMPTY.encode()
    assert lines.read_table(shipped, "t.py") == Text({}, {})


TABLE = lines.table_text(_table(_line("8.0"), _line("9.0"), _line("8.0", row="s")))
FIRST, SECOND = lines.render(_line("8.0")), lines.render(_line("9.0"))


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (lambda t: t.replace("Placement", "placement"), 1),
        (lambda t: t.replace("# fmt: off", "# fmt: on"), 3),
        (lambda t: t.replace("SCHEMA = 1\n", "SCHEMA = 1\n\n"), 6),
        (lambda t: t.replace('"s": ("dtype"', '"s": ( "dtype"'), 9),
        (lambda t: t.replace('    "r"', '    "@"').replace('    "s"', '    "r"').replace('    "@"', '    "s"'), 8),
        (lambda t: t.replace(FIRST, "@").replace(SECOND, FIRST).replace("@", SECOND), 14),
        (lambda t: t.replace(FIRST, FIRST + "\n    # a note"), 15),
        (lambda t: t.replace(FIRST, FIRST + "\n"), 15),
        (lambda t: t.replace(FIRST, FIRST.replace(": (", ":\n (")), 14),
        (lambda t: t.replace(FIRST, FIRST.replace("    ", "  ")), 14),
        (lambda t: t.replace(FIRST, FIRST.replace('"', "'")), 14),
        (lambda t: t.replace(FIRST + "\n", FIRST.partition("  #")[0] + " "), 14),
        (lambda t: t + "\n", 18),
        (lambda t: t + "# end\n", 18),
        (lambda t: t[:-1], 17),
    ],
)
def test_table_that_is_not_as_written_names_the_line(change: Any, line: int) -> None:
    """A table that says the same in another way is refused with the first line that differs."""
    changed = change(TABLE)

    assert changed != TABLE
    assert _said(changed, lines.read_table).startswith(f"f:{line}: ")


def test_table_as_written_is_read() -> None:
    """The table of these tests is read when nothing is changed."""
    assert len(lines.read_table(TABLE.encode(), "f").entries) == 3


@pytest.mark.parametrize("end", ["\r\n", "\r"])
@pytest.mark.parametrize("which", ["all", "last"])
def test_carriage_returns_are_refused(end: str, which: str) -> None:
    """A line end that Python takes for one and other tools do not is refused with its line, in either file."""
    text = lines.lines_text(_header(), [_line()])
    table, emitted = (
        whole.replace("\n", end) if which == "all" else whole.replace("# c\n", f"# c{end}# d\n")
        for whole in (lines.table_text(_table(_line())), text)
    )

    assert _said(table, lines.read_table) == f"f:{1 if which == 'all' else 13}: a carriage return; expected LF alone"
    assert _said(emitted, lines.read_lines) == f"f:{1 if which == 'all' else 2}: a carriage return; expected LF alone"


def test_bad_table_is_a_table_error() -> None:
    """What the look-up would refuse is an error of the toolkit, with the same message."""
    assert _said(TABLE.replace("always", "alway"), lines.read_table).startswith("f:14: entry ('alway', {}); expected ")


def _head(**changes: Any) -> str:
    return "# studytool lines " + canonical(msgspec.to_builtins(_header()) | changes).decode() + "\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("", "1: expected `# studytool lines` and its header; was it made by gen.py --emit?"),
        (lines.render(_line()) + "\n", "1: expected `# studytool lines` and its header; was it made by gen.py --emit?"),
        ("# studytool lines {\n", "1: not a header: "),
        ("# studytool lines " + "[" * 100_000, "1: not a header: "),
        (_head(schema=2), "1: schema 2; this version reads 1"),
        (_head(color=1), "1: not a header: Object contains unknown field `color`"),
        (_head(margin_ppm="0.5"), "1: not a header: Expected `int`, got `str` - at `$.margin_ppm`"),
        (_head(features=["dtype", "size"]), "1: features dtype, size; expected names of features"),
        (b"\xff", "1: not UTF-8"),
        (_head().encode() + b"\n\n\xff", "4: not UTF-8"),
    ],
)
def test_bad_header_is_one_line(data: str | bytes, message: str) -> None:
    """A file that was not made by the generator is refused in one line."""
    assert _said(data, lines.read_lines).startswith(f"f:{message}")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (f"{FIRST}\n{SECOND}", "1: not Python: '{' was never closed"),
        (f"{FIRST}\n\n{SECOND}\n", "3: expected one entry a line, sorted, nothing else"),
        (f"{FIRST}\n{SECOND}\n\n", "4: expected one entry a line, sorted, nothing else"),
        (f"{FIRST}\n# a note\n{SECOND}\n", "3: expected one entry a line, sorted, nothing else"),
        (f"{SECOND}\n{FIRST}\n", "2: expected one entry a line, sorted, nothing else"),
        (f"{FIRST}\n {SECOND}\n", "3: expected one entry a line, sorted, nothing else"),
        (f"{FIRST}\n{FIRST}\n", "3: key ('r', '8.0', 'bf16', 'none') stands already in line 2"),
        (f"{FIRST}\n    5: 6,\n", "3: key 5; expected (row, cc, feature values)"),
        (f"{FIRST}\n{SECOND.replace('9.0', chr(92) + 'ud800')}\n", "3: a key that has no UTF-8"),
        (f"{FIRST}\n    f(): 6,\n", "3: not a literal"),
        (
            f"{FIRST}\n    (\n",
            "4: not Python: closing parenthesis '}' does not match opening parenthesis '('",
        ),
        (f"{FIRST}\n}}\n", "4: not Python: unmatched '}'"),
        (f"{FIRST}\n}}\nimport os\nx = {{\n", "4: expected SCHEMA, ROWS and TABLE, each once, and nothing else"),
        (f"{lines.render(_line(row='s'))}\n", "2: key ('s', '8.0', 'bf16', 'none') does not have the features of"),
    ],
)
def test_errors_name_the_line_of_the_file(body: str, message: str) -> None:
    """Whatever is wrong with a lines file, the numbers in the message are those of its own lines."""
    assert _said(_head() + body, lines.read_lines).startswith(f"f:{message}")


def test_insert_replaces_whole_lines() -> None:
    """A line whose key is there takes its place, evidence and all; other lines and rows stay, new ones come."""
    table = _table(_line("8.0", comment="old"), _line("9.0"), _line("8.0", row="s"))
    changed, added = _line("8.0", rule="never", comment="new"), _line("7.0")
    found = lines.insert(table, _table(changed, added), "t.py")

    assert found.rows == {"r": FEATURES, "s": FEATURES}
    assert found.entries == _table(changed, added, _line("9.0"), _line("8.0", row="s")).entries


def test_insert_refuses_other_features() -> None:
    """A row that stands in the table with other features would make other keys."""
    with pytest.raises(TableError) as caught:
        lines.insert(Text({"r": ("dtype",)}, {}), _table(_line()), "t.py")

    assert str(caught.value) == ("t.py: row r has features ('dtype',) in the table; the lines have ('dtype', 'mask')")


def test_entries_digest_looks_at_its_row_and_dtype() -> None:
    """Entries of another row or dtype change no digest; any change of the own lines, evidence too, does."""
    own = [_line("8.0"), _line("9.0")]
    others = [_line("8.0", dtype="f16"), _line("8.0", row="s")]
    plain = lines.entries_digest(_table(*own), "r", "bf16")
    changed = [_table(own[0]), _table(own[0], _line("9.0", comment="d")), _table(own[0], _line("9.0", rule="never"))]

    assert lines.entries_digest(_table(*others, *reversed(own)), "r", "bf16") == plain
    assert lines.entries_digest(_table(*others), "r", "bf16") == lines.entries_digest(Text({}, {}), "r", "bf16")
    assert len({plain, *(lines.entries_digest(table, "r", "bf16") for table in changed)}) == 4


@pytest.mark.parametrize(
    ("ppm", "text"),
    [
        (0, "0.000"),
        (499, "0.000"),
        (500, "0.001"),
        (933_499, "0.933"),
        (933_500, "0.934"),
        (999_499, "0.999"),
        (999_500, "1.000"),
        (12_345_678, "12.346"),
    ],
)
def test_ratio_text(ppm: int, text: str) -> None:
    """A ratio has three decimals, rounded half up."""
    assert ratio_text(ppm) == text
