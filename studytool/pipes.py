"""A child process that answers each line with one line: given up when its time is over, told from a crash."""

import contextlib
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

import studytool
from studytool.model import Status

_T = TypeVar("_T", bound=msgspec.Struct)


def python_path(own: Mapping[str, str]) -> str:
    """Return the PYTHONPATH of a child: this very package, then what stands in an environment."""
    path = [str(Path(studytool.__file__).parent.parent), own.get("PYTHONPATH", "")]
    return os.pathsep.join(part for part in path if part)


class Failed(NamedTuple):
    """A process that ended, or was ended, before it answered."""

    status: Status
    error: str


class Pipe:
    """A process that is started by `start`, and ended by `stop`, a crash, or an answer that does not come in time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = command, environment
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop

    @property
    def is_running(self) -> bool:
        """Return whether there is a process to ask."""
        return self._process is not None

    def start(self) -> None:
        """Start a fresh process in place of the present one."""
        self._kill()
        self._errors.seek(0)
        self._errors.truncate()
        self._process = subprocess.Popen(  # noqa: S603 - words of this package
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._environment,
        )

    def exchange(self, message: msgspec.Struct, timeout_s: int, kind: type[_T]) -> _T | Failed:
        """Return the answer to a message, or how the process failed; after a failure it does not run."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(msgspec.json.encode(message) + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            return self._ended()
        line = _read_line(process.stdout.fileno(), timeout_s)
        if line is None:
            self._kill()
            return Failed(Status.TIMEOUT, f"no answer in {timeout_s} s")
        if not line:
            return self._ended()
        try:
            return msgspec.json.decode(line, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._kill()
            return Failed(Status.ERROR, f"answered {line[:60]!r}, which is no answer")

    def stop(self) -> None:
        """End the process, if there is one."""
        self._kill()
        self._errors.close()

    def _ended(self) -> Failed:
        assert self._process is not None
        code = self._process.wait()
        self._kill()
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", errors="replace").strip().splitlines()
        last = said[-1].strip() if said else ""
        if code == 1:
            return Failed(Status.ERROR, last or "ended with code 1")
        names = {member.value: member.name for member in signal.Signals}
        how = f"code {code}" if code >= 0 else names.get(-code, f"signal {-code}")
        return Failed(Status.CRASHED, f"ended by {how}")

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
            self._process = None


def _read_line(handle: int, timeout_s: int) -> bytes | None:
    """Return one line, b"" at the end of the pipe, None when the time is over before."""
    deadline = time.monotonic() + timeout_s
    parts: list[bytes] = []
    with selectors.DefaultSelector() as selector:
        selector.register(handle, selectors.EVENT_READ)
        while not parts or not parts[-1].endswith(b"\n"):
            if not selector.select(max(0.0, deadline - time.monotonic())):
                return None
            part = os.read(handle, 1 << 20)
            if not part:
                return b""
            parts.append(part)
    return b"".join(parts)
