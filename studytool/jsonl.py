"""Records files: append-only, chained, one fsynced write a line; and their reader, which checks every line.

The first line is the Session, each further line a Record. `prev` of a record is the SHA-256 of the line before it;
`prev` of a session is that of the whole file of the session before it. Only the last line may be torn: a reader
drops it, since the case is then measured again whole. Anything else that is wrong raises with file and line.
"""

import hashlib
import io
import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import msgspec

from studytool import model
from studytool.decode import decode
from studytool.digest import sha256
from studytool.errors import RecordError
from studytool.files import make_folder, read_bytes, sync_folder
from studytool.lanes import session_stem
from studytool.model import MOST_NS, LegRecord, Record, Session, Split, Status

MAX_LINE = 64 << 20
MOST_BYTES = 1 << 60
_COUNTS = frozenset({"trend_ppm", "flush_probe_ppm", "took_ns", "startup_ns", "warmup_rounds", "steady"})
"""Checks of a record that are read as integers."""

_ENCODER = msgspec.json.Encoder(order="sorted")
"""Writes a record, which has no floats, as `digest.canonical` writes what it is made of."""

_LEGS = frozenset(model.LEGS)
_ORDERS = frozenset(map("".join, itertools.permutations("0123")))

_T = TypeVar("_T", Session, Record)


class SessionFile(NamedTuple):
    """A records file as it was read. `lines` counts its whole lines, `torn` the bytes of a torn last line."""

    path: Path
    session: Session
    records: tuple[Record, ...]
    sha256: str
    lines: int
    torn: int


class Writer:
    """The one writer of a new records file; each append is on disk when it returns."""

    def __init__(self, path: Path, session: Session) -> None:
        """Create the file and write its first line; RecordError when it exists or cannot be written."""
        self._path = path
        try:
            make_folder(path.parent)
            self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
            sync_folder(path.parent)
        except OSError as error:
            raise RecordError(f"{path}: cannot be created: {error.strerror}") from None
        line = _ENCODER.encode(session) + b"\n"
        self._write(line)
        self._prev = sha256(line)

    def append(self, *records: Record) -> None:
        """Write records behind the others, each chained to the line before it, all in one write."""
        lines, prev = [], self._prev
        for record in records:
            lines.append(_ENCODER.encode(msgspec.structs.replace(record, prev=prev)) + b"\n")
            prev = sha256(lines[-1])
        self._write(b"".join(lines))
        self._prev = prev

    def close(self) -> None:
        """Close the file; nothing is lost without it, since every append was synced."""
        os.close(self._handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, lines: bytes) -> None:
        try:
            written = os.write(self._handle, lines)
            os.fsync(self._handle)
        except OSError as error:
            raise RecordError(f"{self._path}: cannot be written: {error.strerror}") from None
        if written != len(lines):
            raise RecordError(f"{self._path}: {written} of {len(lines)} bytes written; is the disk full?")


def read(path: Path, shown: str | None = None) -> SessionFile | None:
    """Return a records file, checked line by line, or None when not even its first line is whole.

    RecordError names the file (as `shown`) and the line of anything that is wrong but a torn last line.
    """
    name = shown or str(path)
    data = read_bytes(path, RecordError)
    file = io.BytesIO(data)  # read line by line: a list of tens of millions would take gigabytes
    session: Session | None = None
    records: list[Record] = []
    before, torn = b"", 0
    for number, whole in enumerate(file, 1):
        line, where = whole.removesuffix(b"\n"), f"{name}:{number}"
        if line == whole:
            torn = len(whole)
            break
        if session is None:
            session = _decode(line, Session, where)
            if problem := _session_problem(session):
                raise RecordError(f"{where}: {problem}")
        else:
            record = _decode(line, Record, where)
            if record.prev != sha256(before):
                raise RecordError(f"{_broken_link(name, number, whole, file.readline())}: changed after it was written")
            if problem := record_problem(record, session):
                raise RecordError(f"{where}: {problem}")
            if line != _ENCODER.encode(record):
                raise RecordError(f"{where}: not written as this tool writes a record")
            records.append(record)
        before = whole
    if session is None:
        return None
    return SessionFile(path, session, tuple(records), sha256(data), 1 + len(records), torn)


def contents(records: Iterable[Record]) -> str:
    """Return the SHA-256 of what records say, whatever files they are in: without their chain, in a fixed order."""
    sha = hashlib.sha256()
    for record in sorted(records, key=lambda record: (record.case, record.repeat, record.regime)):
        sha.update(_ENCODER.encode(msgspec.structs.replace(record, prev="")) + b"\n")
    return sha.hexdigest()


def read_all(folder: Path, root: Path) -> list[SessionFile]:
    """Return the records files of a folder in the order of their names; messages name them relative to root.

    RecordError also for a file whose name is not what its session says: ledgers know files by their names.
    """
    found = []
    for path in sorted(folder.glob("*.jsonl")):
        shown = path.relative_to(root).as_posix()
        file = read(path, shown)
        if file is None:
            continue
        stem = session_stem(file.session.split, file.session.attempt, file.session.lane)
        if not re.fullmatch(rf"{re.escape(stem)}[0-9]{{3,}}\.jsonl", path.name):
            raise RecordError(f"{shown}: not the name of its session; expected {stem}NNN.jsonl")
        found.append(file)
    return found


def _session_problem(session: Session) -> str | None:
    """Return what a session's fingerprint says that cannot be, found and expected, or None."""
    prints = session.fingerprint
    if not re.fullmatch(model.LANE, session.lane):
        return f"lane is {session.lane[:100]!r}; expected a shard such as 3of16, or a board"
    if not 0 < prints.tick_ns <= MOST_NS:
        return f"tick_ns is {prints.tick_ns}; expected a time"
    if not 0 <= prints.memory_bytes <= MOST_BYTES:
        return f"memory_bytes is not between 0 and {MOST_BYTES}"
    numbers = {"cudnn": prints.versions.get("cudnn", "0"), "sm_count": prints.settings.get("sm_count", "0")}
    numbers["neighbours"] = prints.device.get("neighbours", "0")
    if wrong := [name for name, value in numbers.items() if not re.fullmatch("[0-9]{1,9}", value)]:
        return f"{wrong[0]} is {numbers[wrong[0]][:100]!r}; expected a number"
    texts = [prints.board, prints.uuid, prints.cc, *prints.versions.values(), *prints.settings.values()]
    odd = next((text for text in [*texts, *prints.device.values()] if not text.isprintable() or len(text) > 1000), None)
    return None if odd is None else f"found {odd[:100]!r} in the fingerprint; expected printable text on one line"


def _broken_link(name: str, number: int, line: bytes, following: bytes) -> str:
    """Return which of line number - 1 and line number was changed: the later one when its own hash is off too."""
    if not following.endswith(b"\n"):
        return f"{name}:{number}: this line or line {number - 1}"
    own = sha256(line).encode()
    return f"{name}:{number - 1}" if b'"prev":"' + own + b'"' in following else f"{name}:{number}"


def _decode(line: bytes, kind: type[_T], where: str) -> _T:
    if len(line) > MAX_LINE:
        raise RecordError(f"{where}: {len(line)} bytes; expected at most {MAX_LINE}")
    return decode(line, kind, where, kind.__name__.lower(), RecordError)


def record_problem(record: Record, session: Session) -> str | None:
    """Return what a record says that cannot be, found and expected, or None."""
    if (record.split, record.attempt) != (session.split, session.attempt):
        return f"{record.split} attempt {record.attempt} in a session of {session.split} attempt {session.attempt}"
    if not _LEGS.issuperset(record.legs):
        return f"legs {', '.join(sorted(record.legs))}; expected {', '.join(model.LEGS)}"
    if not _ORDERS.issuperset(record.order):
        return "a block that does not have each leg once"
    blocks = len(record.order)
    for name, leg in record.legs.items():
        if problem := _leg_problem(leg, blocks):
            return f"leg {name}: {problem}"
    for name in _COUNTS & record.checks.keys():
        value = record.checks[name]
        if type(value) is not int or not -MOST_NS <= value <= MOST_NS:
            return f"check {name} is {value!r:.100}; expected an integer"
    for name, values in record.blocks.items():
        if len(values) != blocks:
            return f"{len(values)} values of {name} in {blocks} blocks"
    return _status_problem(record)


def _status_problem(record: Record) -> str | None:
    timed = record.status is Status.OK and record.split is not Split.ROUTING
    if record.order and not timed:
        return f"status {record.status}, split {record.split} with samples"
    if timed and (len(record.legs) != len(model.LEGS) or not record.order):
        return "status ok without samples of all four legs"
    if timed or record.status is not Status.OK:
        return None
    plans = [leg.plan for name, leg in record.legs.items() if name in {"auto", "default"} and leg.plan is not None]
    return None if len(plans) == 2 else "status ok without the plans of auto and default"


def _leg_problem(leg: LegRecord, blocks: int) -> str | None:
    if len(leg.ns) != blocks:
        return f"{len(leg.ns)} samples in {blocks} blocks"
    if leg.host_ns and len(leg.host_ns) != blocks:
        return f"{len(leg.host_ns)} values of host_ns in {blocks} blocks"
    for what, values in leg.counters.items():
        if len(values) != blocks:
            return f"{len(values)} values of {what} in {blocks} blocks"
    if blocks and (leg.plan is None or leg.inner < 1):
        return "samples without a plan or without launches"
    return None
