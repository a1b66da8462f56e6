"""Files are replaced whole or left alone."""

import os
from pathlib import Path

import pytest

from studytool import files
from studytool.errors import FrozenError, StudyError


def test_write_replaces_whole(tmp_path: Path) -> None:
    """A shorter text takes the place of a longer one, and nothing else is left in the folder."""
    path = tmp_path / "a.json"
    path.write_bytes(b"a long text that stood before")

    files.write_atomic(path, b"new")

    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_write_makes_the_folder(tmp_path: Path) -> None:
    """Folders that are missing are made."""
    path = tmp_path / "deep" / "er" / "a.json"

    files.write_atomic(path, b"new")

    assert path.read_bytes() == b"new"


def test_write_goes_by_another_inode(tmp_path: Path) -> None:
    """A reader that has the old file open goes on reading the old bytes."""
    path = tmp_path / "a.json"
    path.write_bytes(b"old")

    with path.open("rb") as reader:
        files.write_atomic(path, b"new")
        seen = reader.read()

    assert seen == b"old"


def test_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk fails, the old file stands, no temporary one is left, and the error is one line."""

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", fail)

    with pytest.raises(StudyError) as caught:
        files.write_atomic(path, b"new")

    assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_write_syncs_file_before_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bytes are synced before the old file goes, and the folder after."""
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    seen: list[tuple[bool, bytes]] = []
    sync = os.fsync

    def watch(handle: int) -> None:
        seen.append((Path(f"/proc/self/fd/{handle}").resolve() == tmp_path, path.read_bytes()))
        sync(handle)

    monkeypatch.setattr(os, "fsync", watch)

    files.write_atomic(path, b"new")

    assert seen == [(False, b"old"), (True, b"new")]


def test_write_below_a_file_is_an_error(tmp_path: Path) -> None:
    """A file in the place of the folder is an error that a person can read, not a traceback."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(StudyError, match=r"file/a\.json: cannot be written: File exists"):
        files.write_atomic(tmp_path / "file" / "a.json", b"new")


def test_read_gives_the_error_asked_for(tmp_path: Path) -> None:
    """A file that cannot be read gives the caller's kind of error, which names the file."""
    path = tmp_path / "a.json"

    with pytest.raises(FrozenError) as caught:
        files.read_bytes(path, FrozenError)

    assert str(caught.value) == f"{path}: cannot be read: No such file or directory"


def test_read_returns_the_bytes(tmp_path: Path) -> None:
    """What was written is read back, byte by byte."""
    files.write_atomic(tmp_path / "a", b"\x00\r\n\xff")

    assert files.read_bytes(tmp_path / "a") == b"\x00\r\n\xff"


@pytest.mark.parametrize("kind", ["a link", "a pipe"])
def test_what_is_no_plain_file_is_not_replaced(tmp_path: Path, kind: str) -> None:
    """A link, a pipe or a device that stands where a file should go is one line, and stays."""
    path, other = tmp_path / "out", tmp_path / "other"
    other.write_bytes(b"old")
    {"a link": lambda: path.symlink_to(other), "a pipe": lambda: os.mkfifo(path)}[kind]()
    before = path.lstat().st_mode

    with pytest.raises(StudyError, match=r"/out: cannot be written: is there, and not a plain file$"):
        files.write_atomic(path, b"new")
    assert (path.lstat().st_mode, other.read_bytes()) == (before, b"old")
    assert sorted(one.name for one in tmp_path.iterdir()) == ["other", "out"]
