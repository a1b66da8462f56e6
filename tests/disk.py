"""A disk that is watched: the calls of this process that change files below a folder, and what of them would last.

Trouble may befall each call: the process is killed in it, the disk is full, or nobody may write.
"""

import contextlib
import functools
import io
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

State = dict[str, bytes | None]
"""What is below a folder, by relative name: the bytes of a file, None for a folder. A lock is no file of a study."""

Fate = BaseException | Literal["short"] | signal.Signals | None
Trouble = Callable[[int, str], Fate]
"""What befalls a call, given its number from 0 and its kind: an error, half a write, a signal, or nothing."""

LOCK = ".time.lock"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def calm(_number: int, _kind: str) -> Fate:
    """Return that nothing befalls a call."""
    return None


def state(root: Path) -> State:
    """Return what is below a folder."""
    found = sorted(path for path in root.rglob("*") if path.name != LOCK)
    return {path.relative_to(root).as_posix(): None if path.is_dir() else path.read_bytes() for path in found}


def put(root: Path, wanted: State) -> None:
    """Let a folder hold this and nothing else."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    for name, data in wanted.items():
        path = root / name
        (path if data is None else path.parent).mkdir(parents=True, exist_ok=True)
        if data is not None:
            path.write_bytes(data)


class _Raw(io.FileIO):
    """A file that is opened for writing, whose writes are watched."""

    def __init__(self, disk: "Disk", path: Path, mode: str) -> None:
        super().__init__(path, mode)
        self._disk, self._path = disk, path

    def write(self, data: Any, /) -> int:
        """Write as the disk allows."""
        return self._disk.written(self._path, bytes(data), super().write)


class Disk:
    """What this process asks of the disk below a folder, and what a loss of power would leave of it.

    `calls` are the calls so far, each its kind and the name of its file; `watch` is called before each, and in the
    middle of each write. Nothing is really synced: that a file or a folder was synced is noted.
    """

    def __init__(
        self,
        root: Path,
        trouble: Trouble = calm,
        watch: Callable[["Disk"], None] | None = None,
        lasting: tuple[State, State] | None = None,
    ) -> None:
        """Take all that is there for synced, or only `lasting`: the synced bytes of each file, and the synced names."""
        self.root, self.calls = root.resolve(), list[str]()
        self._trouble, self._watch = trouble, watch
        self._real: dict[str, Any] = {}
        self._kept: list[int] = []
        self._data: dict[int, bytes] = {}
        self._names: dict[int, dict[str, int]] = {self.root.stat().st_ino: {}}
        there = state(self.root)
        data, named = lasting or (there, there)
        for name, now in there.items():
            path = self.root / name
            if now is None:
                self._names[path.stat().st_ino] = {}
            else:
                self._data[path.stat().st_ino] = data.get(name) or b""
            if name in named:
                self._names[path.parent.stat().st_ino][path.name] = path.stat().st_ino

    @contextlib.contextmanager
    def watched(self) -> Iterator["Disk"]:
        """Return a context in which calls are watched."""
        wrappers = {
            "open": self._open,
            "write": self._write,
            "fsync": self._fsync,
            "mkdir": self._mkdir,
            "replace": self._replace,
            "rename": self._replace,
            "unlink": self._removing("unlink"),
            "rmdir": self._removing("rmdir"),
            "truncate": self._plain("truncate"),
            "ftruncate": self._plain("ftruncate"),
            "chmod": self._plain("chmod"),
        }
        self._real = {name: getattr(os, name) for name in wrappers}
        opened, disk = Path.open, self

        def open_path(path: Path, mode: str = "r", *args: Any, **more: Any) -> Any:
            target = disk._below(path)
            if target is None or not set(mode) & set("wxa+"):
                return opened(path, mode, *args, **more)
            assert "b" in mode
            make = functools.partial(disk._created, target, functools.partial(_Raw, disk, target, mode))
            return io.BufferedWriter(disk._do("create", target, make))

        with pytest.MonkeyPatch.context() as patch:
            for name, wrapper in wrappers.items():
                patch.setattr(os, name, wrapper)
            patch.setattr(Path, "open", open_path)
            try:
                yield self
            finally:
                for handle in self._kept:
                    os.close(handle)

    def lasting(self, *, names: bool = False) -> State:
        """Return what a loss of power would leave now: the synced bytes under synced names, or under all `names`."""
        found: State = {}
        self._walk(self.root, self.root.stat().st_ino, found, names=names)
        return found

    def written(self, path: Path, data: bytes, act: Callable[[bytes], int]) -> int:
        """Write to a file, in two halves, unless there is trouble."""
        fate = self._next("write", path)
        half = data[: len(data) // 2]
        if isinstance(fate, OSError):
            raise fate
        if fate is not None:
            count = act(half)
            self._end(fate)
            return count
        if self._watch is not None and self._below(path) is not None:
            act(half)
            self._watch(self)
            return len(half) + act(data[len(half) :])
        return act(data)

    def _walk(self, folder: Path, inode: int, found: State, *, names: bool) -> None:
        entries = {entry.name: entry.inode() for entry in os.scandir(folder)} if names else self._names.get(inode, {})
        for name, child in entries.items():
            path = folder / name
            if child in self._names:
                found[path.relative_to(self.root).as_posix()] = None
                self._walk(path, child, found, names=names)
            elif name != LOCK:
                found[path.relative_to(self.root).as_posix()] = self._data.get(child, b"")

    def _below(self, path: Any, dir_fd: int | None = None) -> Path | None:
        full = (Path(f"/proc/self/fd/{dir_fd}").readlink() if dir_fd is not None else Path()) / os.fspath(path)
        return full.absolute() if full.absolute().is_relative_to(self.root) else None

    def _at(self, handle: int) -> Path | None:
        return self._below(Path(f"/proc/self/fd/{handle}").readlink())

    def _next(self, kind: str, path: Path) -> Fate:
        """Note a call, and return what befalls it."""
        number = len(self.calls)
        self.calls.append(f"{kind} {path.relative_to(self.root).as_posix()}")
        if self._watch is not None:
            self._watch(self)
        return self._trouble(number, kind)

    def _do(self, kind: str, path: Path, act: Callable[[], Any]) -> Any:
        fate = self._next(kind, path)
        if fate not in {None, "short"}:
            self._end(fate)
        return act()

    @staticmethod
    def _end(fate: Fate) -> None:
        """Raise an error, or end this process by a signal."""
        if isinstance(fate, BaseException):
            raise fate
        if isinstance(fate, signal.Signals):
            signal.signal(fate, signal.SIG_DFL) if fate != signal.SIGKILL else None
            os.kill(os.getpid(), fate)
            time.sleep(60)

    def _created(self, path: Path, act: Callable[[], Any]) -> Any:
        there = path.exists()
        made = act()
        if not there:
            self._data[path.stat().st_ino] = b""
        return made

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        def act() -> int:
            return int(self._real["open"](path, flags, mode, dir_fd=dir_fd))

        target = self._below(path, dir_fd) if flags & _WRITING else None
        return act() if target is None else int(self._do("create", target, lambda: self._created(target, act)))

    def _write(self, handle: int, data: bytes) -> int:
        path = self._at(handle)
        write: Callable[[bytes], int] = functools.partial(self._real["write"], handle)
        return write(data) if path is None else self.written(path, data, write)

    def _fsync(self, handle: int) -> None:
        path = self._at(handle)
        if path is not None:
            self._do("sync", path, lambda: self._synced(path))

    def _synced(self, path: Path) -> None:
        if path.is_dir():
            self._names[path.stat().st_ino] = {entry.name: entry.inode() for entry in os.scandir(path)}
        elif path.exists():
            self._data[path.stat().st_ino] = path.read_bytes()

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        def act() -> None:
            self._real["mkdir"](path, mode, dir_fd=dir_fd)
            if target is not None:
                self._names[target.stat().st_ino] = {}

        target = self._below(path, dir_fd)
        if target is None or target.exists():
            act()
        else:
            self._do("mkdir", target, act)

    def _replace(self, source: Any, target: Any, **more: Any) -> None:
        def act() -> None:
            self._keep(path)
            self._real["replace"](source, target, **more)

        path = self._below(target)
        if path is None:
            act()
        else:
            self._do("rename", path, act)

    def _keep(self, path: Path | None) -> None:
        """Keep a file's inode from being another file's, since what lasts is told by inodes."""
        if path is not None and path.is_file():
            self._kept.append(self._real["open"](path, os.O_RDONLY))

    def _removing(self, name: str) -> Callable[..., None]:
        def remove(path: Any, *, dir_fd: int | None = None) -> None:
            def act() -> None:
                self._keep(target)
                self._real[name](path, dir_fd=dir_fd)

            target = self._below(path, dir_fd)
            if target is None:
                act()
            else:
                self._do("remove", target, act)

        return remove

    def _plain(self, name: str) -> Callable[..., None]:
        def change(path: Any, *args: Any, **more: Any) -> None:
            target = self._at(path) if isinstance(path, int) else self._below(path)
            if target is None:
                self._real[name](path, *args, **more)
            else:
                self._do(name, target, lambda: self._real[name](path, *args, **more))

        return change
