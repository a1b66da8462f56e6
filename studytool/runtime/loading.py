"""Tables from files, once and for all: after this nothing is read and nothing is written."""

import functools
import threading
import warnings
from collections.abc import Mapping
from pathlib import Path

from .tables import MAX_BYTES, Limit, Table, TableError, parse, table_of

_LOCK = threading.Lock()


def load(path: str | Path, here: Mapping[str, object] | None = None) -> Table:
    """Return the table in a file; TableError where it is not one, OSError where it cannot be read.

    `here` is what the caller knows of its library and board, by the names of MEASURED, such as `{"cudnn": "9.27.0",
    "sm_count": 108}`: entries that were measured otherwise are left out, with a single warning. What `here` does not
    name is not held against it.
    """
    if Path(path).stat().st_size > MAX_BYTES:
        raise TableError(f"{path}:1: more than {MAX_BYTES} bytes")
    table = parse(Path(path).read_bytes(), str(path))
    return table if here is None else fitting(table, here, str(path), stacklevel=3)


def shipped() -> Table:
    """Return the table that comes with this folder, read once, whichever thread is first."""
    with _LOCK:
        return _shipped()


@functools.cache
def _shipped() -> Table:
    return load(Path(__file__).with_name("table.py"))


def fitting(table: Table, here: Mapping[str, object], where: str, stacklevel: int = 2) -> Table:
    """Return a table without the entries that were measured with another library or board than is here.

    `stacklevel` says, as for warnings.warn, whose line the single warning names: 2 is the caller's.
    """
    kept = {}
    differences = set()
    for key, entry in table.entries.items():
        wrong = [name for name, limit in entry.measured.items() if name in here and not _same(here[name], limit)]
        differences |= {f"{name} {entry.measured[name]}, here {here[name]}" for name in wrong}
        if not wrong:
            kept[key] = entry
    if differences:
        count = len(table.entries) - len(kept)
        told = "; ".join(sorted(differences))
        text = f"{where}: {count} of {len(table.entries)} entries were measured with {told}"
        warnings.warn(text, stacklevel=stacklevel)
    return table_of(table.rows, kept)


def _same(here: object, limit: Limit) -> bool:
    """Return whether a number is the one that was measured, or a version agrees in major and minor."""
    if type(here) is str and type(limit) is str:
        return here.split(".")[:2] == limit.split(".")[:2]
    return here == limit
