"""Reading and replacing files whole: a reader never sees half of one, and a failure leaves the old one."""

import contextlib
import errno
import os
import stat
from pathlib import Path

from studytool.errors import StudyError

MAX_BYTES = 1 << 30
"""The largest file that is read: a study's records files are far below."""


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file by these bytes: written beside it, synced, then renamed. StudyError where it cannot be."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        if path.is_symlink() or (path.exists() and not (path.is_file() or path.is_dir())):  # a link, a device or a pipe
            raise StudyError(f"{path}: cannot be written: is there, and not a plain file")
        make_folder(path.parent)
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        raise StudyError(f"{path}: cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def make_folder(folder: Path) -> None:
    """Make a folder and those around it that are missing, durably."""
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for one in reversed(missing):
        sync_folder(one.parent)


def sync(path: Path) -> None:
    """Make a file that somebody else may have written, its bytes and its name, durable."""
    try:
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(path.parent)
    except OSError as error:
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
        facts = path.stat()
        if stat.S_ISREG(facts.st_mode) and facts.st_size <= MAX_BYTES:
            return path.read_bytes()
        if stat.S_ISDIR(facts.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    except OSError as error:
        raise kind(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError:  # a NUL in its name
        raise kind(f"{path}: cannot be read: not a file's name") from None
    raise kind(f"{path}: cannot be read: expected a plain file of at most {MAX_BYTES} bytes")
