"""The ledger: a chain that shows every change, and whether the hold-out still judges."""

import os
import re
from pathlib import Path

import pytest
from factories import make_body, watch_disk
from hypothesis import given
from hypothesis import strategies as st

from studytool import ledger
from studytool.digest import canonical, digest
from studytool.errors import LedgerError
from studytool.ledger import Body, Event
from studytool.lines import Text, entries_digest

AT = "2026-01-01T00:00:00+00:00"
SCORE = make_body("score")


def _made(path: Path, *events: tuple[str, Body]) -> bytes:
    for kind, body in events:
        ledger.append(path, AT, kind, body)
    return path.read_bytes()


def _each(path: Path) -> bytes:
    """Return the bytes of a ledger with an event of each kind."""
    changes: dict[str, Body] = {"frozen": {"marks": ["a"]}, "session": {"file": "é.jsonl"}}
    return _made(path, *((kind, make_body(kind, **changes.get(kind, {}))) for kind in ledger.EVENTS))


def _apply(entries: str) -> tuple[str, Body]:
    return "apply", make_body("apply", entries=entries)


def _states(path: Path, *events: tuple[str, Body]) -> list[str]:
    """Return the freshness after each event."""
    _made(path, *events)
    found = ledger.read(path)
    return [ledger.freshness(found[:count]).state for count in range(1, len(found) + 1)]


def _said(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(LedgerError) as caught:
        ledger.read(path, "l")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_reads_back_chained(tmp_path: Path) -> None:
    """Events read back in order, each with the digest of its own rest, and that of the event before it."""
    _each(tmp_path / "deep" / "l")
    events = ledger.read(tmp_path / "deep" / "l")

    assert [(event.at, event.event) for event in events] == [(AT, kind) for kind in ledger.EVENTS]
    assert [event.prev for event in events] == ["", *(event.own for event in events[:-1])]
    assert events[3].own == digest(
        {"schema": 1, "at": AT, "event": "score", "body": SCORE, "prev": events[2].own, "own": ""}
    )


def test_no_file_is_no_event(tmp_path: Path) -> None:
    """A ledger that was not begun, or is empty, has no events and its hold-out is fresh."""
    (tmp_path / "empty").write_bytes(b"")

    assert ledger.read(tmp_path / "l") == ledger.read(tmp_path / "empty") == ()
    assert ledger.freshness(()) == ("FRESH", "", 0)


def test_every_changed_byte_names_its_line(tmp_path: Path) -> None:
    """Whichever byte of whichever line is flipped, in whichever bit, that line is named; the last one too."""
    data = _each(tmp_path / "l")

    for place, byte in enumerate(data):
        changed = data[:place] + bytes([byte ^ (1 << place % 8)]) + data[place + 1 :]
        line = data[:place].count(b"\n") + 1

        assert _said(tmp_path / "l", changed).startswith(f"l:{line}: "), place


@given(st.data())
def test_any_changed_byte_names_its_line(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever a byte is changed to, its line is named; a name that is told may then hold a line end."""
    path = tmp_path_factory.mktemp("t") / "l"
    intact = _each(path)
    place = data.draw(st.integers(0, len(intact) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda byte: byte != intact[place]))
    path.write_bytes(intact[:place] + bytes([value]) + intact[place + 1 :])

    with pytest.raises(LedgerError, match=rf"^l:{intact[:place].count(10) + 1}: "):
        ledger.read(path, "l")


def test_every_cut_is_an_error(tmp_path: Path) -> None:
    """A ledger cut within a line is an error that names it; cut between lines it reads, since a chain has no end."""
    data = _each(tmp_path / "l")

    for size in range(1, len(data)):
        if data[:size].endswith(b"\n"):
            (tmp_path / "l").write_bytes(data[:size])
            assert len(ledger.read(tmp_path / "l")) == data[:size].count(b"\n")
        else:
            line = data[:size].count(b"\n") + 1
            assert _said(tmp_path / "l", data[:size]) == f"l:{line}: torn; expected a whole line"


@pytest.mark.parametrize(("change", "line"), [("drop", 2), ("double", 3), ("swap", 2), ("first", 1)])
def test_lines_stay_where_they_are(tmp_path: Path, change: str, line: int) -> None:
    """A line that is left out, doubled or moved does not follow the one before it."""
    first, second, third, *rest = _each(tmp_path / "l").splitlines(keepends=True)
    changed = {
        "drop": [first, third, *rest],
        "double": [first, second, second, third, *rest],
        "swap": [first, third, second, *rest],
        "first": [second, third, *rest],
    }[change]

    assert _said(tmp_path / "l", b"".join(changed)) == f"l:{line}: does not follow line {line - 1}"


def _forged(**changes: object) -> bytes:
    """Return a first line with these members changed, its own digest made anew."""
    event = {"schema": 1, "at": AT, "event": "score", "body": SCORE, "prev": "", "own": ""} | changes
    return canonical(event | {"own": digest(event)}) + b"\n"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (_forged(schema=2), "schema 2; this version reads 1"),
        (_forged(event="look"), "event 'look'; expected one of frozen, session, apply, score"),
        (_forged(color=1), "not an event: Object contains unknown field `color`"),
        (_forged(body={"score": None}), "not an event: Expected `int | str | array`, got `null` - at `$.body[...]`"),
        (_forged().replace(b',"body":', b', "body":'), "changed after it was written"),
        (_forged(prev="0"), "does not follow line 0"),
        (b"\n", "not an event: Input data was truncated"),
        (b"[" * 100_000 + b"\n", "not an event: "),
        (b"\xff\n", "not an event: "),
    ],
)
def test_bad_line_is_one_line(tmp_path: Path, line: bytes, message: str) -> None:
    """A line that is no event is refused in one line with file, line, found and expected."""
    assert _said(tmp_path / "l", line).startswith(f"l:1: {message}")


@pytest.mark.parametrize("kind", ledger.EVENTS)
def test_forged_line_would_read(tmp_path: Path, kind: str) -> None:
    """The forger of these tests makes lines that are read when nothing is wrong with them."""
    (tmp_path / "l").write_bytes(_forged(event=kind, body=make_body(kind)))

    assert [event.body for event in ledger.read(tmp_path / "l")] == [make_body(kind)]


@pytest.mark.parametrize("kind", ledger.EVENTS)
def test_event_tells_just_what_is_its_own(tmp_path: Path, kind: str) -> None:
    """A name too few, too many or another, or a value of another type, is refused though the digests are right."""
    body = make_body(kind)
    values: Body = {"text": "5", "count": 5, "list": ["5"]}
    bad: list[Body] = [{}, {**body, "color": 1}]
    for name, value in body.items():
        rest = {other: kept for other, kept in body.items() if other != name}
        bad += [rest, {**rest, f"{name}_": value}]
        bad += [{**body, name: other} for other in values.values() if type(other) is not type(value)]

    assert len(bad) == 2 + 4 * len(body)
    for told in bad:
        assert _said(tmp_path / "l", _forged(event=kind, body=told)) == f"l:1: {tells(kind, told)}"


def tells(kind: str, told: Body) -> str:
    """Return what is said of a body that is not its event's."""
    found = {name: type(value).__name__ for name, value in sorted(told.items())}
    return f"{kind} tells {found}; expected { {n: k.__name__ for n, k in sorted(ledger.EVENTS[kind].items())} }"


def test_no_event_is_added_that_would_be_refused(tmp_path: Path) -> None:
    """Half a body is refused before anything is written."""
    with pytest.raises(LedgerError, match="session tells"):
        ledger.append(tmp_path / "l", AT, "session", {"file": "f", "lines": 1})

    assert not (tmp_path / "l").exists()


def test_append_reads_first(tmp_path: Path) -> None:
    """Nothing is appended to a ledger that is broken, and the broken one stays as it is."""
    data = _each(tmp_path / "l").replace(b'"score":"5"', b'"score":"6"')
    (tmp_path / "l").write_bytes(data)

    with pytest.raises(LedgerError, match=r"l:4: changed after it was written$"):
        ledger.append(tmp_path / "l", AT, "score", SCORE)
    assert (tmp_path / "l").read_bytes() == data


def test_append_is_one_synced_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event is one write of one whole line, synced, and then so is the name of the file."""
    seen = watch_disk(monkeypatch)
    ledger.append(tmp_path / "l", AT, "score", SCORE)

    assert seen == ["write 1", "sync", "sync"]


@pytest.mark.parametrize("error", [True, False])
def test_failed_append_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, error: bool) -> None:
    """A write that fails, or that takes only a part of the line, is an error of one line."""
    write = os.write

    def fail(handle: int, data: bytes) -> int:
        if error:
            raise OSError(28, "No space left on device")
        return write(handle, data[:9])

    monkeypatch.setattr(os, "write", fail)
    expected = "cannot be written: No space left on device" if error else r"9 of \d+ bytes written; is the disk full\?"

    with pytest.raises(LedgerError, match=rf"l: {expected}$"):
        ledger.append(tmp_path / "l", AT, "score", SCORE)


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([_apply("a")], "FRESH"),
        ([_apply("a"), _apply("b")], "FRESH"),
        ([_apply("a"), ("score", SCORE)], "FRESH"),
        ([_apply("a"), ("score", SCORE), ("session", make_body("session")), ("score", SCORE)], "FRESH"),
        ([_apply("a"), ("score", SCORE), _apply("a")], "FRESH"),
        ([_apply("a"), ("score", SCORE), _apply("a"), ("score", SCORE), _apply("a")], "FRESH"),
        ([_apply("a"), _apply("b"), ("score", SCORE), _apply("a")], "SPENT"),
        ([_apply("a"), ("score", SCORE), _apply("b")], "SPENT"),
        ([_apply("a"), ("score", SCORE), _apply("b"), _apply("a")], "SPENT"),
        ([("score", SCORE), _apply("a")], "SPENT"),
        ([("score", SCORE), _apply(entries_digest(Text({}, {}), "r", "bf16"))], "FRESH"),  # no entry before and after
    ],
)
def test_spent_once_the_entries_change_after_a_look(tmp_path: Path, events: list[tuple[str, Body]], state: str) -> None:
    """The hold-out is SPENT just when entries change after a per-case look; to change them back does not help."""
    assert _states(tmp_path / "l", *events)[-1] == state


def test_reason_names_the_first_change(tmp_path: Path) -> None:
    """A SPENT hold-out says which line of the ledger spent it, and how often it was looked at."""
    _made(tmp_path / "l", _apply("a"), ("score", SCORE), _apply("b"), _apply("c"), ("score", SCORE))
    found = ledger.freshness(ledger.read(tmp_path / "l"))

    assert re.match("line 3 of the ledger changed the entries after a look", found.reason)
    assert found.looks == 2


def test_last_of_a_kind(tmp_path: Path) -> None:
    """The last event of a kind is found behind others, and none where there is none."""
    _made(tmp_path / "l", ("score", {"score": "1"}), ("score", {"score": "2"}), _apply("a"))
    events: tuple[Event, ...] = ledger.read(tmp_path / "l")

    assert ledger.last(events, "score") == events[1]
    assert ledger.last(events, "frozen") is None
