"""A worker process as its parent sees it: started, asked, given up when its time is over, told from a crash."""

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

import studytool
from studytool import fingerprint, worker
from studytool.errors import DeviceError
from studytool.measure import Measured, Request
from studytool.model import Fingerprint, Status, Study

STARTUP_TIMEOUT_S = 300
_T = TypeVar("_T", Fingerprint, Measured)


class Failed(NamedTuple):
    """A worker that ended, or was ended, before it answered."""

    status: Status
    error: str


class WorkerProcess:
    """A worker process that is started anew when it ends before its time."""

    def __init__(self, study: Study) -> None:
        self._opening = worker.Opening(engine=study.engine, simulated=study.simulated)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop
        self._prints: Fingerprint | None = None
        self.startup_ns = 0

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of the first process, starting it when there is none yet."""
        if self._prints is None:
            self.start()
        assert self._prints is not None
        return self._prints

    def start(self) -> None:
        """Start a fresh process in place of the present one; DeviceError when it cannot open its engine."""
        self._kill()
        self._errors.seek(0)
        self._errors.truncate()
        begin = time.monotonic_ns()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "studytool.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=_environment(os.environ),
        )
        found = self._exchange(self._opening, STARTUP_TIMEOUT_S, Fingerprint)
        if isinstance(found, Failed):
            raise DeviceError(f"engine {self._opening.engine} cannot be opened here: {found.error}")
        if self._prints is not None and (difference := fingerprint.comparable(self._prints, found)):
            raise DeviceError(f"the machine changed between two processes of a session: {difference}")
        self._prints = found
        self.startup_ns = time.monotonic_ns() - begin

    def ask(self, request: Request, timeout_s: int) -> Measured | Failed:
        """Return what a worker measured, or how it failed; after a failure the next call has a new process."""
        if self._process is None:
            self.start()
        return self._exchange(request, timeout_s, Measured)

    def stop(self) -> None:
        """End the process, if there is one."""
        self._kill()
        self._errors.close()

    def _exchange(self, message: msgspec.Struct, timeout_s: int, kind: type[_T]) -> _T | Failed:
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
        return msgspec.json.decode(line, type=kind) if line else self._ended()

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


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: pinned, and with this very package on its path."""
    path = [str(Path(studytool.__file__).parent.parent), own.get("PYTHONPATH", "")]
    return {**own, **worker.PINS, "PYTHONPATH": os.pathsep.join(part for part in path if part)}


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
