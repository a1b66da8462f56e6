"""Reading and replacing files whole: a reader never sees half of one, and a failure leaves the old one."""

import contextlib
import os
from pathlib import Path

from studytool.errors import StudyError


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file by these bytes: written beside it, synced, then renamed. StudyError where it cannot be."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise StudyError(f"{path}: cannot be written: {error.strerror}") from None


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_bytes(path: Path, kind: type[StudyError] = StudyError) -> bytes:
    """Return a file's bytes; an error of the kind asked for, naming the file, where it cannot be read."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from None
