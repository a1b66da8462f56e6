"""Tables are read once, within limits, and held against the library and board that are here; then they are frozen."""

import subprocess
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from bad_tables import KEY, ROWS
from factories import make_fields, make_levels, make_summary

import studytool.runtime
from studytool import fit, lines, studyjson
from studytool.runtime import key, loading, lookup, tables
from studytool.runtime.lookup import Limit, Table, TableError

GPU: dict[str, Limit] = {"cudnn": "9.27", "sm_count": 108, "memory_gib": 40}


def _text(**boxes: Mapping[str, Limit]) -> lines.Text:
    """Return a table as text with one entry a dtype, with these boxes."""
    found = [lines.Line(("r", "8.0", dtype, "none"), "always", "", 0, box, "win 4/4") for dtype, box in boxes.items()]
    return lines.Text({"r": ("dtype", "mask")}, {line.key: lines.render(line) for line in found})


def _file(folder: Path, **boxes: Mapping[str, Limit]) -> Path:
    """Return the file of such a table."""
    path = folder / "t.py"
    path.write_bytes(lines.table_text(_text(**boxes)).encode())
    return path


def _warned(path: Path, here: dict[str, object]) -> tuple[Table, list[str]]:
    """Return a table as it is loaded here, and the warnings, each of which points at the caller."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        table = loading.load(path, here)
    assert {(one.category, one.filename) for one in told} <= {(UserWarning, __file__)}
    return table, [str(one.message) for one in told]


def _dtypes(table: Table) -> set[object]:
    return {entry_key[2] for entry_key in table.entries}


def _asked(table: Table, dtype: str) -> bool | None:
    return lookup.lookup(table, "r", "8.0", make_fields(dtype=dtype))


@pytest.mark.parametrize("here", ["9.27", "9.27.0", "9.27.1", "9.27.0.42", "9.27.99"])
def test_same_minor_is_kept(tmp_path: Path, here: str) -> None:
    """An entry holds for every patch of the major and minor that it was measured with, without a word."""
    table = loading.load(_file(tmp_path, bf16=GPU, f16={}), {"cudnn": here})

    assert _dtypes(table) == {"bf16", "f16"}
    assert _asked(table, "bf16") is True


@pytest.mark.parametrize("here", ["9.28.0", "9.2.7", "9.2", "10.27.0", "9", "", "9.270", "09.27", 92700, None])
def test_other_minor_is_dropped_with_one_warning(tmp_path: Path, here: object) -> None:
    """An entry of another major or minor is left out; one warning names the file, the counts and both values."""
    path = _file(tmp_path, bf16=GPU, f16=GPU, f32={"torch": "2.9"})
    table, told = _warned(path, {"cudnn": here})

    assert told == [f"{path}: 2 of 3 entries were measured with cudnn 9.27, here {here}"]
    assert _dtypes(table) == {"f32"}
    assert [_asked(table, dtype) for dtype in ("bf16", "f32")] == [None, True]


@pytest.mark.parametrize(
    ("here", "said"),
    [
        ({"sm_count": 84}, "sm_count 108, here 84"),
        ({"memory_gib": 80}, "memory_gib 40, here 80"),
        ({"cudnn": "9.27.5", "sm_count": 108, "memory_gib": 80}, "memory_gib 40, here 80"),
        ({"sm_count": None}, "sm_count 108, here None"),
        ({"sm_count": 108, "memory_gib": 40, "torch": "1.0", "color": 5}, ""),
        ({"memory_gib": 40}, ""),
        ({"cudnn": "9.27.0", "sm_count": 108, "memory_gib": 40}, ""),
        ({}, ""),
    ],
)
def test_board_is_held_against_what_here_names(tmp_path: Path, here: dict[str, object], said: str) -> None:
    """SMs and memory must be those that were measured; what `here` does not name is not held against an entry."""
    path = _file(tmp_path, bf16=GPU, f16={"board": "A100"})
    table, told = _warned(path, here)

    assert told == ([f"{path}: 1 of 2 entries were measured with {said}"] if said else [])
    assert _dtypes(table) == ({"f16"} if said else {"bf16", "f16"})


def test_two_reasons_are_one_warning(tmp_path: Path) -> None:
    """Entries that are left out for different reasons are told of in a single warning with each reason."""
    path = _file(tmp_path, bf16=GPU, f16={"torch": "2.9"}, f32={"sm_count": 132}, fp8={"cudnn": "9.28"})
    table, told = _warned(path, {"cudnn": "9.28.1", "torch": "2.10.0", "sm_count": 108})

    assert told == [
        f"{path}: 3 of 4 entries were measured with"
        " cudnn 9.27, here 9.28.1; sm_count 132, here 108; torch 2.9, here 2.10.0"
    ]
    assert _dtypes(table) == {"fp8"}


def test_every_reason_of_an_entry_is_told(tmp_path: Path) -> None:
    """An entry that differs in two ways is told of with both, by `fitting` as by `load`, at the line of the caller."""
    path = _file(tmp_path, bf16=GPU)
    here = {"cudnn": "9.28.1", "sm_count": 84}
    _, told = _warned(path, here)
    with pytest.warns(UserWarning, match=r"cudnn 9\.27, here 9\.28\.1; sm_count 108, here 84") as direct:
        loading.fitting(loading.load(path), here, str(path))

    assert told == [str(one.message) for one in direct]
    assert [one.filename for one in direct] == [__file__]


def test_without_here_nothing_is_checked(tmp_path: Path) -> None:
    """A caller that says nothing of its library and board gets every entry, as `parse` reads them."""
    path = _file(tmp_path, bf16=GPU, f16={"torch": "0.0", "sm_count": 1})

    assert _dtypes(loading.load(path)) == _dtypes(loading.load(str(path))) == {"bf16", "f16"}
    assert loading.load(path).entries == lookup.parse(path.read_bytes(), "t.py").entries


def test_what_was_measured_is_not_looked_at_again(tmp_path: Path) -> None:
    """Names of library and board stand apart from the box; no look-up and no explanation asks for them."""
    table = loading.load(_file(tmp_path, bf16={**GPU, "torch": "2.9", "d_qk": 64}))
    answer = lookup.explain(table, "r", "8.0", make_fields())

    assert (answer.verdict, answer.code) == (True, "HIT")
    assert answer.entry is not None
    assert (answer.entry.measured, answer.entry.box) == ({**GPU, "torch": "2.9"}, {"d_qk": 64})
    assert _asked(table, "bf16") is True
    assert not set(tables.MEASURED) & set(key.FEATURES)


def test_what_was_measured_is_read_back() -> None:
    """Each name of library and board is rendered as it is read, byte for byte, in the order of MEASURED."""
    text = _text(bf16=GPU, f16={"torch": "2.9", "board": "x86", "s_kv": (1, 2)}, f32={"memory_gib": 40})
    data = lines.table_text(text).encode()

    assert lines.read_table(data, "t.py") == text
    assert b'"f16", "none"): ("always", {"torch": "2.9", "board": "x86", "s_kv": (1, 2)})' in data


def test_lines_of_a_gpu_study_are_read_back() -> None:
    """Lines that are made from a study.json, which has its names sorted, can be put into a table."""
    data = studyjson.encode(make_summary(make_levels("W W W W"), measured=GPU))
    emitted = fit.fit(studyjson.decode(data, "study.json"), data, 50_000, "box").text
    _, text = lines.read_lines(emitted.encode(), "lines.txt")
    (entry,) = lookup.parse(lines.table_text(text).encode(), "t.py").entries.values()

    assert [*text.entries.values()] == emitted.splitlines()[1:]
    assert entry.measured == GPU


@pytest.mark.parametrize(
    "limit",
    [
        *["'cudnn': 92700", "'cudnn': ('9.27', '9.28')", "'torch': 2", "'torch': None", "'sm_count': '108'"],
        *["'sm_count': True", "'sm_count': (84, 108)", "'memory_gib': 39.5", "'memory_gib': '40'", "'gpu': 'A100'"],
    ],
)
def test_bad_value_of_what_was_measured_is_one_line(tmp_path: Path, limit: str) -> None:
    """A version that is no text, or a count that is no integer, is refused with file and line."""
    path = tmp_path / "t.py"
    path.write_text(f"{ROWS}TABLE = {{\n    {KEY}: ('always', {{{limit}}}),\n}}\n")

    with pytest.raises(TableError) as caught:
        loading.load(path)
    assert str(caught.value).startswith(f"{path}:6: entry ('always', {{{limit}}}); expected (rule, box) or ")


def test_bad_line_names_the_file_and_the_line(tmp_path: Path) -> None:
    """A bad line of a file is told with the file's name and its number, whether or not anything is asked of here."""
    path = _file(tmp_path, bf16={}, f16={})
    path.write_text(path.read_text().replace('"f16", "none"): ("always"', '"f16", "none"): ("alway"'))

    for here in (None, {"cudnn": "9.27.0"}):
        with pytest.raises(TableError, match=r"t\.py:14: entry \('alway', \{\}\); expected ") as caught:
            loading.load(path, here)
        assert str(caught.value).startswith(str(path))


def test_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file above the limit is refused by its size, before a byte of it is read; one at the limit is read."""
    path = tmp_path / "t.py"
    read: list[Path] = []

    def noted(self: Path) -> bytes:
        read.append(self)
        return lines.EMPTY.encode()

    with path.open("wb") as file:
        file.truncate(tables.MAX_BYTES + 1)
    monkeypatch.setattr(Path, "read_bytes", noted)

    with pytest.raises(TableError) as caught:
        loading.load(path)
    assert (str(caught.value), read) == (f"{path}:1: more than {tables.MAX_BYTES} bytes", [])
    with path.open("wb") as file:
        file.truncate(tables.MAX_BYTES)
    assert (loading.load(path).entries, read) == ({}, [path])


def test_bytes_that_are_too_many_are_refused() -> None:
    """Bytes above the limit are refused before they are taken apart."""
    with pytest.raises(TableError, match=rf"^t\.py:1: more than {tables.MAX_BYTES} bytes$"):
        lookup.parse(b" " * (tables.MAX_BYTES + 1), "t.py")


def test_entries_have_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table of more entries than the limit is refused with the line of TABLE; one at the limit is read."""
    path = _file(tmp_path, bf16={}, f16={}, f32={})
    monkeypatch.setattr(tables, "MAX_ENTRIES", 3)
    kept = loading.load(path)
    monkeypatch.setattr(tables, "MAX_ENTRIES", 2)

    assert len(kept.entries) == 3
    with pytest.raises(TableError, match=r"t\.py:12: more than 2 entries$"):
        loading.load(path)


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (f"{KEY}: ('always', {{'mask': {'(' * 9}'br'{',)' * 9}}})", 6),
        (f"{KEY[:-1]}, {'[' * 9}{']' * 9}): ('always', {{}})", 6),
        (f"{KEY}:\n    ('always', {{'s_kv': {'-' * 9}5}})", 7),
    ],
)
def test_depth_has_a_limit(entry: str, line: int) -> None:
    """A key or a value that is nested deeper than any entry is refused with its line."""
    with pytest.raises(TableError, match=rf"^t\.py:{line}: nested deeper than {tables.MAX_DEPTH}$"):
        lookup.parse(f"{ROWS}TABLE = {{\n    {entry},\n}}\n".encode(), "t.py")


def test_shipped_table_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table that ships is the committed one, which is empty; asked for again, it is the same one, and no file."""
    shipped = loading.shipped()
    committed = Path(studytool.runtime.__file__).with_name("table.py").read_bytes()

    def never(self: Path) -> bytes:
        raise AssertionError(self)

    monkeypatch.setattr(Path, "read_bytes", never)
    assert loading.shipped() is shipped is lookup.shipped()
    assert shipped.entries == lookup.parse(committed, "table.py").entries == lookup.EMPTY.entries == {}


FIRST = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
from studytool.runtime import loading
start, load, loads = threading.Barrier(8), loading.load, []
def slow(path):
    loads.append(path)
    time.sleep(0.05)
    return load(path)
loading.load = slow
with ThreadPoolExecutor(8) as pool:
    found = list(pool.map(lambda _: (start.wait(), loading.shipped())[1], range(8)))
print(len(found), len({id(table) for table in found}), len(loads))
"""


def test_threads_get_one_shipped_table() -> None:
    """Eight threads that ask for the shipped table first, at the same time, get one table, which is read once."""
    root = Path(studytool.runtime.__file__).parents[2]
    run = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, text=True, check=False, cwd=root)

    assert (run.stdout, run.stderr) == ("8 1 1\n", "")


MAPPINGS: dict[str, Callable[[Table], Any]] = {
    "rows": lambda table: table.rows,
    "entries": lambda table: table.entries,
    "box": lambda table: next(iter(table.entries.values())).box,
    "measured": lambda table: next(iter(table.entries.values())).measured,
    "indices": lambda table: table.indices,
    "entries of an index": lambda table: next(iter(table.indices.values())).entries,
}


@pytest.mark.parametrize("what", MAPPINGS)
def test_table_cannot_be_changed(what: str) -> None:
    """No mapping of a table that was read can be changed in place, and none of its parts be put in another's place."""
    table = lookup.parse(lines.table_text(_text(bf16={**GPU, "board": "A", "s_kv": (70, 200)})).encode(), "t.py")
    mapping = MAPPINGS[what](table)
    name = next(iter(mapping))
    before = dict(mapping)

    with pytest.raises(TypeError):
        mapping[name] = None
    with pytest.raises(TypeError):
        del mapping[name]
    with pytest.raises(AttributeError):
        setattr(table, what.partition(" ")[0], {})
    assert dict(mapping) == before


def test_table_is_apart_from_what_it_was_made_of() -> None:
    """A table that was made of dictionaries does not change with them."""
    table = lookup.parse(lines.table_text(_text(bf16={})).encode(), "t.py")
    rows, entries = dict(table.rows), dict(table.entries)
    made = lookup.table_of(rows, entries)
    rows["q"], entries["q", "8.0"] = (), entries.pop(next(iter(entries)))

    assert (made.rows, made.entries) == (table.rows, table.entries)
    assert _asked(made, "bf16") is True
