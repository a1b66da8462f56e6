"""Records files: one synced write a line, read back whole; a torn last line is dropped, anything else is refused."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from factories import ORDERS, make_case, make_leg, make_record, make_session, unchained, watch_disk, write_session
from hypothesis import given
from hypothesis import strategies as st

from studytool import jsonl
from studytool.digest import sha256
from studytool.errors import RecordError
from studytool.jsonl import SessionFile
from studytool.model import LegRecord, Plan, Record, Split, Status

CRASH = {"status": "crashed", "legs": {}, "order": []}
DOUBLE_LEG = [*ORDERS[:3], "3022"]


def _records(count: int) -> list[Record]:
    """Return records that differ, among them some that are not ok."""
    status = {2: Status.CRASHED, 3: Status.TIMEOUT}
    return [make_record(repeat=n, status=status.get(n, Status.OK), error="é\n" * n) for n in range(1, count + 1)]


def _bytes(folder: Path, count: int) -> bytes:
    """Return the bytes of a records file with this number of records."""
    return write_session(folder / f"{count}.jsonl", make_session(), _records(count)).path.read_bytes()


def _read(folder: Path, data: bytes) -> SessionFile | None:
    (folder / "f.jsonl").write_bytes(data)
    return jsonl.read(folder / "f.jsonl", "f.jsonl")


def _said(folder: Path, data: bytes) -> str:
    """Return the one line that the reader says of bad bytes."""
    with pytest.raises(RecordError) as caught:
        _read(folder, data)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    """Session and records read back as they were appended, each chained to the line before it."""
    records = _records(4)
    found = write_session(tmp_path / "deep" / "f.jsonl", make_session(), records)
    lines = found.path.read_bytes().splitlines(keepends=True)

    assert found.session == make_session()
    assert [unchained(record) for record in found.records] == records
    assert [record.prev for record in found.records] == [sha256(line) for line in lines[:-1]]
    assert (found.lines, found.torn, found.sha256) == (5, 0, sha256(b"".join(lines)))


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 10**15), st.booleans() | st.none())
def test_any_text_reads_back(tmp_path_factory: pytest.TempPathFactory, text: str, ns: int, lookup: bool | None) -> None:
    """Whatever an engine says, and however long it takes, reads back."""
    plan = Plan(engine=-1, name=text, knobs={text: ns})
    leg = LegRecord(plan=plan, inner=1, ns=(ns,) * 4, host_ns=(0,) * 4, counters={text or "c": (ns,) * 4})
    legs, blocks = dict.fromkeys(("backend", "frost", "auto", "default"), leg), {text: (-ns, 0, 1, ns)}
    record = make_record(legs=legs, blocks=blocks, error=text, lookup=lookup)
    found = write_session(tmp_path_factory.mktemp("t") / "f.jsonl", make_session(reason=text), [record])

    assert found.session.reason == text
    assert [unchained(read) for read in found.records] == [record]


def test_cut_at_every_byte(tmp_path: Path) -> None:
    """Wherever a file is cut, its whole lines read back and the torn one is counted; a cut is never an error."""
    data = _bytes(tmp_path, 3)
    whole = _read(tmp_path, data)
    assert whole is not None

    for size in range(len(data)):
        found = _read(tmp_path, data[:size])
        lines = data[:size].count(b"\n")
        torn = size - (data[:size].rfind(b"\n") + 1)
        told = None if found is None else (found.session, found.records, found.lines, found.torn)

        assert told == ((whole.session, whole.records[: lines - 1], lines, torn) if lines else None)


@given(st.data())
def test_one_changed_byte_is_found(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A changed byte in any line but the last is found; the line named is the changed one, or the last one after it."""
    folder = tmp_path_factory.mktemp("t")
    intact = _bytes(folder, data.draw(st.integers(1, 5)))
    place = data.draw(st.integers(0, intact.rstrip(b"\n").rindex(b"\n")))
    value = data.draw(st.integers(0, 255).filter(lambda byte: byte != intact[place]))
    said = _said(folder, intact[:place] + bytes([value]) + intact[place + 1 :])
    match = re.match(r"f\.jsonl:(\d+): ", said)
    changed, last = intact[:place].count(b"\n") + 1, intact.count(b"\n")

    assert match is not None
    assert int(match[1]) == changed or (int(match[1]) == last == changed + 1 and f"or line {changed}: " in said)


@pytest.mark.parametrize("line", range(1, 6))
def test_changed_digit_names_its_line(tmp_path: Path, line: int) -> None:
    """A line that is still valid after a change is named by the hash in the next one; a last line is not covered."""
    lines = _bytes(tmp_path, 5).splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b'"u1"', b'"u2"').replace(b'"clock_mhz":[3000', b'"clock_mhz":[3001')
    last = "6: this line or line 5" if line == 5 else f"{line}"

    assert _said(tmp_path, b"".join(lines)) == f"f.jsonl:{last}: changed after it was written"


def test_changed_link_names_its_line(tmp_path: Path) -> None:
    """A line whose own link was changed is named, and not the line that it should link to."""
    lines = _bytes(tmp_path, 4).splitlines(keepends=True)
    lines[2] = lines[2].replace(sha256(lines[1]).encode(), b"0" * 64)

    assert _said(tmp_path, b"".join(lines)) == "f.jsonl:3: changed after it was written"


@pytest.mark.parametrize("change", ["drop", "double", "swap"])
def test_lines_stay_where_they_are(tmp_path: Path, change: str) -> None:
    """A line that is left out, doubled or moved breaks the chain."""
    lines = _bytes(tmp_path, 4).splitlines(keepends=True)
    second, third = lines[1:3]
    lines[1:3] = {"drop": [third], "double": [second, second, third], "swap": [third, second]}[change]

    assert re.match(r"f\.jsonl:[1-3]: ", _said(tmp_path, b"".join(lines)))


def _leg(record: dict[str, Any], **changes: Any) -> None:
    record["legs"]["auto"] |= changes


BAD: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "schema": (lambda r: r.update(schema=2), "schema 2; this version reads 1"),
    "unknown field": (lambda r: r.update(color=1), "not a record: Object contains unknown field `color`"),
    "missing field": (lambda r: r.pop("status"), "not a record: Object missing required field `status`"),
    "text": (lambda r: r.update(repeat="1"), "not a record: Expected `int`, got `str` - at `$.repeat`"),
    "truth": (
        lambda r: r.update(attempt=True),
        "not a record: Expected `int`, got `bool` - at `$.attempt`",
    ),
    "float ns": (
        lambda r: _leg(r, ns=[1.0] * 4),
        "not a record: Expected `int`, got `float` - at `$.legs[...].ns[0]`",
    ),
    "NaN ns": (lambda r: _leg(r, ns=[float("nan")]), "not a record: JSON is malformed: invalid character"),
    "unknown status": (lambda r: r.update(status="fine"), "not a record: Invalid enum value 'fine' - at `$.status`"),
    "zero time": (lambda r: _leg(r, ns=[1, 1, 0, 1]), "not a record: Expected `int` >= 1 - at `$.legs[...].ns[2]`"),
    "negative time": (
        lambda r: _leg(r, ns=[1, 1, 1, -1]),
        "not a record: Expected `int` >= 1 - at `$.legs[...].ns[3]`",
    ),
    "negative host time": (
        lambda r: _leg(r, host_ns=[0, 0, -1, 0]),
        "not a record: Expected `int` >= 0 - at `$.legs[...].host_ns[2]`",
    ),
    "a leg twice in a block": (
        lambda r: r.update(order=DOUBLE_LEG),
        "a block that does not have each leg once",
    ),
    "three legs in a block": (lambda r: r.update(order=["012"] * 4), "a block that does not have each leg once"),
    "sample missing": (lambda r: _leg(r, ns=[1, 1, 1]), "leg auto: 3 samples in 4 blocks"),
    "sample too many": (lambda r: r.update(order=r["order"][:3]), "leg auto: 4 samples in 3 blocks"),
    "host time missing": (lambda r: _leg(r, host_ns=[1, 1]), "leg auto: 2 values of host_ns in 4 blocks"),
    "counter too many": (lambda r: _leg(r, counters={"c": [1] * 5}), "leg auto: 5 values of c in 4 blocks"),
    "state missing": (lambda r: r.update(blocks={"mw": [1] * 3}), "3 values of mw in 4 blocks"),
    "state too many": (lambda r: r.update(blocks={"a": [1] * 4, "mw": [1] * 5}), "5 values of mw in 4 blocks"),
    "no plan": (lambda r: _leg(r, plan=None), "leg auto: samples without a plan or without launches"),
    "no launches": (lambda r: _leg(r, inner=0), "leg auto: samples without a plan or without launches"),
    "unknown leg": (
        lambda r: r["legs"].update(other=r["legs"]["auto"]),
        "legs auto, backend, default, frost, other; expected backend, frost, auto, default",
    ),
    "ok without a leg": (lambda r: r["legs"].pop("frost"), "status ok without samples of all four legs"),
    "ok without samples": (
        lambda r: r.update(legs={name: {"plan": None} for name in r["legs"]}, order=[]),
        "status ok without samples of all four legs",
    ),
    "state of nothing": (lambda r: r.update(CRASH, blocks={"mw": [1]}), "1 values of mw in 0 blocks"),
    "samples of a crash": (lambda r: r.update(status="crashed"), "status crashed, split train with samples"),
    "foreign split": (lambda r: r.update(split="holdout"), "holdout attempt 1 in a session of train attempt 1"),
    "foreign attempt": (lambda r: r.update(attempt=2), "train attempt 2 in a session of train attempt 1"),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_bad_record_is_one_line(tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str) -> None:
    """What a record cannot say is refused in one line with file, line, found and expected."""
    first, second = _bytes(tmp_path, 1).splitlines(keepends=True)
    record = json.loads(second)
    change(record)
    said = _said(tmp_path, first + json.dumps(record).encode() + b"\n")

    assert said.partition(" (byte ")[0] == f"f.jsonl:2: {message}"


@pytest.mark.parametrize("line", [b"", b"\xff", b"{", b"[" * 100_000, b"null", b'"' + b"\xff" * 9 + b'"'])
def test_bytes_that_are_no_record_are_one_line(tmp_path: Path, line: bytes) -> None:
    """A line that is no JSON, no UTF-8 or no record is refused with file and line, wherever it stands."""
    good = _bytes(tmp_path, 1)

    assert re.match(r"f\.jsonl:3: not a record: ", _said(tmp_path, good + line + b"\n"))
    assert re.match(r"f\.jsonl:1: not a session: ", _said(tmp_path, line + b"\n" + good))


def test_text_of_a_record_is_utf8(tmp_path: Path) -> None:
    """Bytes within a text that are not UTF-8 are refused."""
    first, second = _bytes(tmp_path, 1).splitlines(keepends=True)

    assert _said(tmp_path, first + second.replace("é".encode(), b"\xc3\x28")).startswith("f.jsonl:2: not a record: ")


def test_too_long_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line beyond the limit is refused before it is parsed, and one at the limit is not."""
    data = _bytes(tmp_path, 1)
    longest = max(map(len, data.split(b"\n")))
    monkeypatch.setattr(jsonl, "MAX_LINE", longest)
    assert _read(tmp_path, data) is not None
    monkeypatch.setattr(jsonl, "MAX_LINE", longest - 1)

    assert _said(tmp_path, data) == f"f.jsonl:2: {longest} bytes; expected at most {longest - 1}"


@pytest.mark.parametrize("status", [Status.OK, Status.NO_FROST])
def test_routing_has_plans_and_no_samples(tmp_path: Path, status: Status) -> None:
    """A routing record with plans alone is fine; one with samples is refused, ok as it is."""
    session = make_session(split=Split.ROUTING)
    plans = {"auto": make_leg(()), "default": make_leg(())}
    planned = make_record(split=Split.ROUTING, status=status, order=(), legs=plans)
    half = make_record(split=Split.ROUTING, order=(), legs={"auto": make_leg(())})

    assert len(write_session(tmp_path / "a.jsonl", session, [planned]).records) == 1
    with pytest.raises(RecordError, match=r"b\.jsonl:2: status ok, split routing with samples$"):
        write_session(tmp_path / "b.jsonl", session, [make_record(split=Split.ROUTING)])
    with pytest.raises(RecordError, match=r"c\.jsonl:2: status ok without the plans of auto and default$"):
        write_session(tmp_path / "c.jsonl", session, [half])


def test_files_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    """The files of a folder are read by name, those without a whole line are left out, and errors are relative."""
    for name, case in (("002", make_case(s_kv=64)), ("001", make_case(s_kv=96))):
        write_session(tmp_path / "r" / f"train-01-{name}.jsonl", make_session(), [make_record(of=case)])
    (tmp_path / "r" / "train-01-003.jsonl").write_bytes(b'{"torn')
    (tmp_path / "r" / "d.txt").write_bytes(b"no records")

    assert [file.path.name for file in jsonl.read_all(tmp_path / "r", tmp_path)] == [
        "train-01-001.jsonl",
        "train-01-002.jsonl",
    ]
    (tmp_path / "r" / "train-01-002.jsonl").write_bytes(b"\n")
    with pytest.raises(RecordError, match=r"^r/train-01-002\.jsonl:1: not a session"):
        jsonl.read_all(tmp_path / "r", tmp_path)


@pytest.mark.parametrize(
    "name", ["a", "train-02-001", "holdout-01-001", "train-01-2of3-001", "train-01-1of3", "xtrain-01-1of3-001"]
)
def test_a_file_has_the_name_of_its_session(tmp_path: Path, name: str) -> None:
    """A renamed file is refused: which split, attempt and lane was sealed when is told by names."""
    write_session(tmp_path / "r" / f"{name}.jsonl", make_session(lane="1of3"), [make_record()])

    with pytest.raises(RecordError, match=r"^r/[^:]+: not the name of its session; expected train-01-1of3-NNN\.jsonl$"):
        jsonl.read_all(tmp_path / "r", tmp_path)


def test_writer_refuses_an_existing_file(tmp_path: Path) -> None:
    """A file that is there is never appended to nor emptied."""
    (tmp_path / "f.jsonl").write_bytes(b"old")

    with pytest.raises(RecordError, match=r"f\.jsonl: cannot be created: File exists$"):
        jsonl.Writer(tmp_path / "f.jsonl", make_session())
    assert (tmp_path / "f.jsonl").read_bytes() == b"old"


def test_each_append_is_one_synced_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An append is one write of one whole line, synced before it returns; the file's name is synced first."""
    seen = watch_disk(monkeypatch)

    with jsonl.Writer(tmp_path / "f.jsonl", make_session()) as writer:
        assert seen == ["sync", "write 1", "sync"]
        writer.append(make_record())
        writer.append(make_record(repeat=2))

    assert seen[3:] == ["write 1", "sync"] * 2


@pytest.mark.parametrize("written", [0, 7])
def test_short_write_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int) -> None:
    """A write that took only a part of the line is an error; the lines before it read back."""
    write = os.write
    with jsonl.Writer(tmp_path / "f.jsonl", make_session()) as writer:
        writer.append(make_record())
        monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:written]))
        with pytest.raises(RecordError, match=rf"f\.jsonl: {written} of \d+ bytes written; is the disk full\?$"):
            writer.append(make_record(repeat=2))
    found = jsonl.read(tmp_path / "f.jsonl")

    assert found is not None
    assert (found.lines, found.torn) == (2, written)


def test_failed_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that the disk did not take is an error of one line."""

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with jsonl.Writer(tmp_path / "f.jsonl", make_session()) as writer:
        monkeypatch.setattr(os, "fsync", fail)

        with pytest.raises(RecordError, match=r"f\.jsonl: cannot be written: Input/output error$"):
            writer.append(make_record())
