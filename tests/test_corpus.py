"""Every reader, given anything: it returns what it read, and reads that back, or raises the one error that it may."""

import ast
import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from factories import (
    STUDY_YAML,
    make_case_summary,
    make_fields,
    make_leg,
    make_record,
    make_session,
    make_summary,
    unchained,
    write_session,
)
from hypothesis import event, given, settings
from hypothesis import strategies as st
from sharing import examples

from studytool import fit, freeze, jsonl, ledger, lines, studyfile, studyjson
from studytool.digest import canonical, digest, pretty, sha256
from studytool.errors import StudyError
from studytool.freeze import Manifest
from studytool.ledger import Event
from studytool.model import LEGS, Decide, Status, Threshold
from studytool.runtime import lookup

CORPUS = Path(__file__).parent / "corpus"
MOST_FILES, MOST_BYTES, MOST_BYTES_IN_ALL = 100, 2 << 10, 100 << 10


class Reader(NamedTuple):
    """A reader of bytes, and the writer of what it returns; `valid` are bytes that it takes."""

    read: Callable[[bytes, Path], Any]
    write: Callable[[Any, Path], bytes]
    valid: tuple[bytes, ...]


def _read_records(data: bytes, folder: Path) -> Any:
    (folder / "read.jsonl").write_bytes(data)
    found = jsonl.read(folder / "read.jsonl", "read.jsonl")
    return None if found is None else (found.session, [unchained(record) for record in found.records])


def _write_records(found: Any, folder: Path) -> bytes:
    path = folder / "written.jsonl"
    path.unlink(missing_ok=True)
    if found is None:
        return b""
    write_session(path, *found)
    return path.read_bytes()


def _read_ledger(data: bytes, folder: Path) -> tuple[Event, ...]:
    (folder / "ledger.jsonl").write_bytes(data)
    events = ledger.read(folder / "ledger.jsonl", "ledger.jsonl")
    ledger.freshness(events)
    return events


def _write_ledger(events: tuple[Event, ...], _folder: Path) -> bytes:
    return b"".join(canonical(msgspec.to_builtins(event)) + b"\n" for event in events)


def _read_summary(data: bytes, _folder: Path) -> Any:
    found = studyjson.decode(data, "study.json")
    fit.fit(found, data, found.decide.margin_ppm, found.decide.scope)
    return found


def _write_lines(found: Any, _folder: Path) -> bytes:
    header, text = found
    head = f"# studytool lines {canonical(msgspec.to_builtins(header)).decode()}\n"
    return (head + "".join(text.entries[name] + "\n" for name in sorted(text.entries, key=canonical))).encode()


CASES = (make_fields(), make_fields(mask="br", window=32, s_q=1, layout="thd"), make_fields(b=-1, s_kv=0, h_kv=10**30))


def _read_table(data: bytes, _folder: Path) -> Any:
    """Return rows and entries; what a look-up says of some cases must be what `explain` says."""
    found = lookup.parse(data, "table.py")
    for row, cc, *_ in found.entries:
        for case in CASES:
            said = [lookup.lookup(found, str(row), str(cc), case, board) for board in ("", "Board")]
            assert said == [lookup.explain(found, str(row), str(cc), case, board).verdict for board in ("", "Board")]
    return found.rows, {name: entry._replace(line=0) for name, entry in found.entries.items()}


def _write_table(found: Any, _folder: Path) -> bytes:
    """Return a table as Python writes its literals, which escapes what is no text."""
    rows, entries = found
    values = {
        name: (entry.rule, *((entry.axis, entry.bound) if entry.axis else ()), {**entry.measured, **entry.box})
        for name, entry in entries.items()
    }
    return f"SCHEMA = 1\nROWS = {dict(rows)!r}\nTABLE = {values!r}\n".encode()


def _sessions() -> Iterator[bytes]:
    """Return records files: samples, failures, counters."""
    leg = make_leg(host_ns=(0, 1, 2, 3), counters={"gap": (0, 0, 0, 1)})
    legs = {**dict.fromkeys(LEGS, leg), "frost": make_leg((100_000,) * 4, plan=5)}
    records = [
        make_record(),
        make_record(repeat=2, status=Status.CRASHED, error="é\n"),
        make_record(repeat=3, legs=legs, checks={"trend_ppm": -1, "steady": 1}, blocks={"power_mw": (1, 2, 3, 4)}),
    ]
    for count in (1, 3):
        values = [msgspec.to_builtins(part) for part in (make_session(), *records[:count])]
        yield b"".join(_chained(values))


def _chained(values: list[dict[str, Any]]) -> Iterator[bytes]:
    """Return the lines of a records file whose chain is whole, whatever its records say."""
    line = b""
    for value in values:
        line = canonical({**value, "prev": sha256(line)} if line else value) + b"\n"
        yield line


def _own_chain(values: list[dict[str, Any]]) -> Iterator[bytes]:
    """Return the lines of a ledger whose chain is whole, whatever its events say."""
    prev = ""
    for value in values:
        draft = {**value, "prev": prev, "own": ""}
        prev = digest(draft)
        yield canonical({**draft, "own": prev}) + b"\n"


def _events() -> bytes:
    bodies = {
        "frozen": {"manifest": "m", "marks": ["a", "b"]},
        "session": {"file": "holdout-01-001.jsonl", "sha256": "5", "lines": 3},
        "apply": {"dtype": "bf16", "lines": "l", "margin_ppm": 50_000, "scope": "box", "table": "t", "entries": "e"},
        "score": {"score": "s"},
        "driver": {"name": "full_study.py", "sha256": "0" * 64},
    }
    return b"".join(
        _own_chain([{"schema": 1, "at": "t", "event": kind, "body": body} for kind, body in bodies.items()])
    )


SUMMARY = make_summary(
    [make_case_summary(700_000, s_q=size, s_kv=size) for size in (64, 128, 256, 512)]
    + [make_case_summary(1_300_000, s_q=32, s_kv=32)],
    decide=Decide(thresholds=(Threshold("s_kv", "from"), Threshold("b*s_kv", "upto"))),
    measured={"cudnn": "9.27", "sm_count": 108},
)
LINES = fit.fit(SUMMARY, b"", 50_000, "box").text.encode()
TABLE = lines.table_text(lines.read_lines(LINES, "lines.txt")[1]).encode()
MANIFEST = Manifest(
    schema=1,
    name="whole",
    study_sha256="5",
    files={"bf16.train.jsonl": "6", "gate.json": "7"},
    counts={"train": 6, "holdout": 2},
    tool="0.1.0",
    commit="",
    disjoint_from=(freeze.Exclusion(name="earlier", sha256="8"),),
)

READERS: dict[str, Reader] = {
    "jsonl": Reader(_read_records, _write_records, tuple(_sessions())),
    "ledger": Reader(_read_ledger, _write_ledger, (_events(),)),
    "studyfile": Reader(
        lambda data, _: (studyfile.parse(data, "study.yaml", "tiny"), data)[1],
        lambda data, _: data,
        (STUDY_YAML.encode(),),
    ),
    "studyjson": Reader(_read_summary, lambda found, _: studyjson.encode(found), (studyjson.encode(SUMMARY),)),
    "lines": Reader(lambda data, _: lines.read_lines(data, "lines.txt"), _write_lines, (LINES,)),
    "table": Reader(
        lambda data, _: lines.read_table(data, "table.py"), lambda found, _: lines.table_text(found).encode(), (TABLE,)
    ),
    "parse": Reader(_read_table, _write_table, (TABLE, lines.EMPTY.encode())),
    "manifest": Reader(
        lambda data, _: freeze.manifest_of(data, "MANIFEST.json"),
        lambda found, _: pretty(msgspec.to_builtins(found)),
        (pretty(msgspec.to_builtins(MANIFEST)),),
    ),
}
"""The readers by the folder of their inputs in the corpus."""


def read_twice(name: str, data: bytes, folder: Path) -> bool:
    """Return whether a reader takes bytes; then it takes what is written of them, as the same."""
    reader = READERS[name]
    try:
        found = reader.read(data, folder)
    except (StudyError, lookup.TableError):
        return False
    assert reader.read(reader.write(found, folder), folder) == found
    return True


def inputs() -> list[Path]:
    """Return the files of the corpus."""
    return sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("reader", READERS)
def test_any_reader_of_any_input(tmp_path: Path, reader: str) -> None:
    """Each reader takes or refuses each file of the corpus, whichever reader it was found for."""
    taken = [path for path in inputs() if read_twice(reader, path.read_bytes(), tmp_path)]

    assert any(path.parent.name == reader for path in taken)


def test_the_corpus_is_small() -> None:
    """A corpus is kept to be run each time, so that it stays small."""
    sizes = [path.stat().st_size for path in inputs()]

    assert {path.parent.name for path in inputs()} == READERS.keys()
    assert len(sizes) <= MOST_FILES
    assert max(sizes) <= MOST_BYTES
    assert sum(sizes) <= MOST_BYTES_IN_ALL


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that all examples of a test write into."""
    return tmp_path_factory.mktemp("readers")


@pytest.mark.parametrize("reader", READERS)
@given(data=st.binary(max_size=200))
def test_any_bytes(folder: Path, reader: str, data: bytes) -> None:
    """Bytes that mean nothing are refused, or read as what can be read again."""
    read_twice(reader, data, folder)


ODD: tuple[bytes, ...] = (
    b"",
    b"\0",
    b"\xff",
    b"\r",
    b"\x1b",
    b"\xe2\x80\xa8",
    b"9" * 20,
    b"9" * 400,
    b"-1",
    b"0",
    b"1.5",
    b"1e999",
    b"null",
)
ODD += (
    b"NaN",
    b"[",
    b"]",
    b"{",
    b"}",
    b"(",
    b")",
    b'"',
    b"'",
    b",",
    b":",
    b"#",
    b"\n",
    b"  ",
    b"\t",
    b"\\",
    b"\\ud800",
)
ODD += (b"&a ", b"*a", b"!!str ", b"<<: ", b"- ", b"? ", b"2j", b"**{}", b"lambda: 0", b"f'{1}'", b"0x" + b"f" * 300)


@st.composite
def spoiled(draw: st.DrawFn, valid: tuple[bytes, ...]) -> bytes:
    """Return valid bytes of which up to four parts are gone, put elsewhere or something else."""
    data = draw(st.sampled_from(valid))
    for _ in range(draw(st.integers(1, 4))):
        first, last = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        last = min(last, first + draw(st.sampled_from((0, 1, 5, 100))))
        start = draw(st.integers(0, len(data)))
        part = data[start : start + draw(st.integers(1, 40))]
        data = data[:first] + draw(st.sampled_from((*ODD, part))) + data[last:]
    return data


@pytest.mark.parametrize("reader", READERS)
@settings(max_examples=examples(150))
@given(data=st.data())
def test_valid_bytes_spoiled(folder: Path, reader: str, data: st.DataObject) -> None:
    """What was valid and is spoiled in a few places is refused, or read as what can be read again."""
    taken = read_twice(reader, data.draw(spoiled(READERS[reader].valid)), folder)
    event(f"taken: {taken}")


VALUES = st.sampled_from((0, -1, 1, 10**15, 10**15 + 1, 2**64, 10**400, "", "\0", "\x1b[2J", "é", "ok", "a" * 2000)) | (
    st.sampled_from((None, True, [], {}, [[]], [0], ["0132"], {"x": 1}, "from", "s_kv", "b*s_kv", "box", "auto"))
)


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return where the members of a JSON value are, of all that are in it."""
    for name in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield (*at, name)
        yield from _places(value[name], (*at, name))


@st.composite
def changed(draw: st.DrawFn, valid: Any) -> Any:
    """Return a JSON value with up to three members gone, called otherwise or something else."""
    value = json.loads(json.dumps(valid))
    for _ in range(draw(st.integers(1, 3))):
        *outer, name = draw(st.sampled_from(list(_places(value)) or [("x",)]))
        inside = value
        for part in outer:
            inside = inside[part]
        act = draw(st.sampled_from(("put", "put", "drop", "rename")))
        if act != "put" and isinstance(inside, dict) and name in inside:
            member = inside.pop(name)
            inside |= {} if act == "drop" else {draw(st.sampled_from(("x", "", "gap", "frost", "\x1b"))): member}
        else:
            inside[name] = copy.deepcopy(draw(VALUES))
    return value


def _values(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.splitlines()]


FORMS: dict[str, tuple[Any, Callable[[Any], bytes]]] = {
    "jsonl": (_values(READERS["jsonl"].valid[-1]), lambda values: b"".join(_chained(values))),
    "ledger": (_values(_events()), lambda values: b"".join(_own_chain(values))),
    "studyjson": (msgspec.to_builtins(SUMMARY), canonical),
    "manifest": (msgspec.to_builtins(MANIFEST), canonical),
}
"""JSON values of readers, and how they are written with a chain that is whole."""


@pytest.mark.parametrize("reader", FORMS)
@settings(max_examples=examples(250))
@given(data=st.data())
def test_values_changed_behind_a_whole_chain(folder: Path, reader: str, data: st.DataObject) -> None:
    """Whatever a forger says in JSON that is well formed and chained is refused, or can be read again."""
    valid, written = FORMS[reader]
    if isinstance(valid, list):
        number = data.draw(st.integers(0, len(valid) - 1))
        value = [*valid[:number], data.draw(changed(valid[number])), *valid[number + 1 :]]
    else:
        value = data.draw(changed(valid))
    taken = read_twice(reader, written(value), folder)
    event(f"taken: {taken}")


def _literals(data: bytes) -> list[tuple[int, int]]:
    """Return where the literals of a table begin and end."""
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    return [
        (starts[node.lineno - 1] + node.col_offset, starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0))
        for node in ast.walk(ast.parse(data))
        if isinstance(node, ast.Constant | ast.Tuple | ast.Dict)
    ]


LITERALS: tuple[str, ...] = (
    "0",
    "-1",
    "256",
    "True",
    "None",
    "1.5",
    "2 + 1j",
    f"0x{'f' * 300}",
    f"0x{'f' * 300} + 2j",
    "()",
    "(1, 2)",
)
LITERALS += ("(2, 1)", '("tl", "br")', '("tl", 1)', "{}", "[1]", "{1}", 'b"a"', r'"\ud800"', r'"\n"', '"é"', "{1: 2}")
LITERALS += ('"always"', '"from"', '"never_upto"', '"s_kv"', '"b*s_kv"', '"board"', '"sm_count"', '"window_binds"')


@pytest.mark.parametrize("reader", ["parse", "table"])
@settings(max_examples=examples(250))
@given(data=st.data())
def test_literals_changed_in_a_table(folder: Path, reader: str, data: st.DataObject) -> None:
    """A table of other literals is refused, or can be read again and is looked up in without an exception."""
    table = TABLE
    for _ in range(data.draw(st.integers(1, 3))):
        first, last = data.draw(st.sampled_from(_literals(table)))
        other = table[:first] + data.draw(st.sampled_from(LITERALS)).encode() + table[last:]
        try:
            ast.parse(other)
        except SyntaxError:
            break
        table = other
    taken = read_twice(reader, table, folder)
    event(f"taken: {taken}")
