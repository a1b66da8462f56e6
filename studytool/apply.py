"""Put emitted lines into a table, whole lines at a time, and say so in the ledgers of the study that it belongs to."""

from pathlib import Path
from typing import NamedTuple

from studytool import ledger, lines
from studytool.digest import sha256
from studytool.errors import TableError
from studytool.files import read_bytes, write_atomic
from studytool.layout import StudyPlace
from studytool.runtime.lookup import Key


class Applied(NamedTuple):
    """What changed in the table: added and replaced entry lines, and entries that stood there already."""

    added: tuple[str, ...]
    replaced: tuple[str, ...]
    kept: int


class Draft(NamedTuple):
    """A table before and after lines are put into it, and the lines: their header and bytes."""

    header: lines.Header
    body: bytes
    before: lines.Text
    after: lines.Text

    @property
    def text(self) -> bytes:
        """Return the table's bytes after."""
        return lines.table_text(self.after).encode()


def draft(lines_path: Path, table_path: Path, place: StudyPlace | None) -> Draft:
    """Return what a table becomes with lines put into it; TableError where one of the files is not what it should be.

    With the place of a study whose table this is, entries of the lines' row and dtype that are no longer emitted are
    removed.
    """
    body = read_bytes(lines_path, TableError)
    header, new = lines.read_lines(body, str(lines_path))
    if place is not None and header.study != place.name:
        raise TableError(f"{lines_path}:1: lines of study {header.study}; expected {place.name}, whose table this is")
    before = _before(table_path)
    stale = {k for k in before.entries if place is not None and _owned(k, before, header)}
    kept = lines.Text(before.rows, {k: v for k, v in before.entries.items() if k not in stale})
    found = Draft(header, body, before, lines.insert(kept, new, str(table_path)))
    lines.read_table(found.text, str(table_path))
    return found


def apply(lines_path: Path, table_path: Path, place: StudyPlace | None, at: str) -> Applied:
    """Insert or replace whole lines.

    With the place of a study whose table this is, the lines are kept with the dtype's results, and each ledger of the
    study gets an `apply` event, unless it says already that these lines made this table. TableError or LedgerError, and
    nothing written, where a file is not what it should be.
    """
    found = draft(lines_path, table_path, place)
    header, body, before, after = found
    text = found.text
    ledgers = sorted(place.folder.glob("*/ledger.jsonl")) if place else []
    untold = [path for path in ledgers if not _told(path, header, sha256(body), sha256(text))]
    write_atomic(table_path, text)
    if place is not None:
        write_atomic(place.results(header.dtype).lines, body)
    _tell(untold, header, sha256(body), after, sha256(text), at)
    gone = [line for key, line in before.entries.items() if after.entries.get(key) != line]
    come = [line for key, line in after.entries.items() if key not in before.entries]
    return Applied(tuple(come), tuple(gone), len(before.entries) - len(gone))


def _before(path: Path) -> lines.Text:
    return lines.read_table(read_bytes(path, TableError), str(path)) if path.exists() else lines.Text({}, {})


def _owned(key: Key, table: lines.Text, header: lines.Header) -> bool:
    features = table.rows.get(str(key[0]), ())
    return key[0] == header.row and "dtype" in features and key[2 + features.index("dtype")] == header.dtype


def _told(path: Path, header: lines.Header, body: str, table_sha256: str) -> bool:
    events = ledger.read(path)
    own = ledger.last_apply(events, header.dtype)
    last = ledger.last(events, "apply")
    return bool(own and last and own.body["lines"] == body and last.body["table"] == table_sha256)


def _tell(ledgers: list[Path], header: lines.Header, body: str, table: lines.Text, table_sha256: str, at: str) -> None:
    for path in ledgers:
        event: ledger.Body = {
            "dtype": header.dtype,
            "lines": body,
            "margin_ppm": header.margin_ppm,
            "scope": header.scope,
            "table": table_sha256,
            "entries": lines.entries_digest(table, header.row, path.parent.name),
        }
        ledger.append(path, at, "apply", event)
