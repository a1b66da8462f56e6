"""The ledger of one dtype's results: what was done when, append-only; each line carries its own hash and the last.

Events: `frozen` (the manifest that holds from here on), `session` (a records file was finished, with its hash),
`apply` (lines went into the table), `score` (a per-case look at the hold-out), `driver` (a script of the study's
`drivers/` was started).
"""

import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from studytool import model
from studytool.decode import decode
from studytool.digest import canonical, digest, sha256
from studytool.errors import LedgerError
from studytool.files import make_folder, read_bytes, sync, sync_folder
from studytool.metrics import PPM
from studytool.model import Split

_DRIVER = {"name": r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", "sha256": "[0-9a-f]{64}"}
Body = dict[str, int | str | list[str]]
EVENTS: dict[str, dict[str, type]] = {
    "frozen": {"manifest": str, "marks": list},
    "session": {"file": str, "sha256": str, "lines": int},
    "apply": {"dtype": str, "lines": str, "margin_ppm": int, "scope": str, "table": str, "entries": str},
    "score": {"score": str},
    "driver": {"name": str, "sha256": str},
}
"""What each event tells: the names and types of its body."""


class Event(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a ledger: `own` is the digest of the rest of the line, `prev` the `own` of the line before."""

    schema: int
    at: str
    event: str
    body: Body
    prev: str
    own: str


class Freshness(NamedTuple):
    """Whether the hold-out still judges: FRESH, or SPENT with the reason; `looks` counts the per-case looks."""

    state: str
    reason: str
    looks: int


def read(path: Path, shown: str | None = None) -> tuple[Event, ...]:
    """Return the events of a ledger, none when there is no file; LedgerError names file and line of a break."""
    name = shown or str(path)
    if not path.exists():
        return ()
    data = read_bytes(path, LedgerError)
    events: list[Event] = []
    for number, whole in enumerate(io.BytesIO(data), 1):
        line, where = whole.removesuffix(b"\n"), f"{name}:{number}"
        if line == whole:
            break
        event = decode(line, Event, where, "event", LedgerError)
        if problem := body_problem(event.event, event.body):
            raise LedgerError(f"{where}: {problem}")
        if line != _line(event) or event.own != _own(event):
            raise LedgerError(f"{where}: changed after it was written")
        if event.prev != (events[-1].own if events else ""):
            raise LedgerError(f"{where}: does not follow line {number - 1}")
        events.append(event)
    if not data.endswith(b"\n") and data:
        raise LedgerError(f"{name}:{len(events) + 1}: torn; expected a whole line")
    return tuple(events)


def body_problem(kind: str, body: Body) -> str | None:
    """Return what is wrong with what an event of a kind tells, found and expected, or None."""
    if kind not in EVENTS:
        return f"event {kind!r}; expected one of {', '.join(EVENTS)}"
    found = {name: type(value).__name__ for name, value in sorted(body.items())}
    expected = {name: type_.__name__ for name, type_ in sorted(EVENTS[kind].items())}
    if found != expected:
        return f"{kind} tells {found}; expected {expected}"
    if kind == "apply" and not (0 <= int(str(body["margin_ppm"])) <= PPM and body["scope"] in model.SCOPES):
        return f"apply tells margin_ppm {body['margin_ppm']}, scope {body['scope']}; no fit has them"
    names = {name: str(body[name]) for name in _DRIVER if kind == "driver"}
    wrong = next((text for name, text in names.items() if not re.fullmatch(_DRIVER[name], text)), None)
    return None if wrong is None else f"driver tells {wrong[:100]!r}; expected a file's name and its SHA-256"


def sealed(events: Sequence[Event]) -> set[str]:
    """Return the names of the records files that a ledger knows."""
    return {str(event.body["file"]) for event in events if event.event == "session"}


def append(path: Path, at: str, event: str, body: Body) -> None:
    """Add one event; it and the whole ledger are checked first. `at` is the time as text."""
    events = read(path)
    draft = Event(schema=model.SCHEMA, at=at, event=event, body=body, prev=events[-1].own if events else "", own="")
    if problem := body_problem(event, body):
        raise LedgerError(f"{path}: {problem}")
    line = _line(msgspec.structs.replace(draft, own=_own(draft))) + b"\n"
    try:
        make_folder(path.parent)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            written = os.write(handle, line)
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(f"{path}: cannot be written: {error.strerror}") from None
    if written != len(line):
        raise LedgerError(f"{path}: {written} of {len(line)} bytes written; is the disk full?")


def drop_torn_tail(path: Path) -> None:
    """Cut off a last line without its end: an event that was never acknowledged, so that the ledger can go on."""
    data = read_bytes(path, LedgerError) if path.exists() else b""
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
    if path.exists():
        sync(path)  # what is there may be what a command wrote that was killed before it was durable


def freshness(events: tuple[Event, ...]) -> Freshness:
    """Return whether the hold-out is FRESH: it is SPENT once the entries change after it was timed or looked at."""
    looks, timed, entries, reason = 0, False, sha256(b""), ""  # without an `apply` there are no entries
    for number, event in enumerate(events, 1):
        looks += event.event == "score"
        timed = timed or (event.event == "session" and str(event.body["file"]).startswith(f"{Split.HOLDOUT}-"))
        if event.event == "apply":
            if (looks or timed) and event.body["entries"] != entries:
                seen = "a look at the hold-out" if looks else "the hold-out was timed"
                reason = reason or f"line {number} of the ledger changed the entries after {seen}"
            entries = str(event.body["entries"])
    return Freshness("SPENT" if reason else "FRESH", reason, looks)


def last_apply(events: tuple[Event, ...], dtype: str) -> Event | None:
    """Return the last event by which lines of a dtype went into the table, or None."""
    return last(tuple(event for event in events if event.body.get("dtype") == dtype), "apply")


def last(events: tuple[Event, ...], kind: str) -> Event | None:
    """Return the last event of a kind, or None."""
    return next((event for event in reversed(events) if event.event == kind), None)


def _own(event: Event) -> str:
    return digest(msgspec.to_builtins(msgspec.structs.replace(event, own="")))


def _line(event: Event) -> bytes:
    return canonical(msgspec.to_builtins(event))
