"""The worker process of a repeat as its parent sees it: opened with a fingerprint, asked case by case."""

import os
import sys
import time
from collections.abc import Mapping

from studytool import fingerprint, worker
from studytool.engines.base import Finding, Terms
from studytool.errors import DeviceError
from studytool.measure import Measured, Request
from studytool.model import Fingerprint, Study
from studytool.pipes import Failed, Pipe, python_path

STARTUP_TIMEOUT_S = 300


def terms_of(study: Study) -> Terms:
    """Return what a study asks of its engine."""
    return Terms(engine=study.engine, row=study.row, base=study.base, simulated=study.simulated)


def examine(terms: Terms) -> tuple[Finding, ...]:
    """Return what a worker finds here of its engine; one that cannot be opened is a finding too."""
    process = WorkerProcess(terms)
    try:
        return process.open().findings
    except DeviceError as error:
        return (Finding("engine", str(error), "an engine that opens"),)
    finally:
        process.stop()


class WorkerProcess:
    """A worker process that is started anew when it ends before its time."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        command = [sys.executable, "-P", "-m", "studytool.worker"]
        self._pipe = Pipe(command, _environment(os.environ))
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
        opened = self.open()
        for finding in opened.findings:
            if finding.needed:
                raise DeviceError(
                    f"engine {self._terms.engine} cannot measure here: {finding.what}: {finding.found};"
                    f" needed: {finding.needed}"
                )
        found = opened.fingerprint
        assert found is not None
        if self._prints is not None and (difference := fingerprint.comparable(self._prints, found)):
            raise DeviceError(f"the machine changed between two processes of a session: {difference}")
        self._prints = found

    def open(self) -> worker.Opened:
        """Return what a fresh process found of its engine; it can be asked where nothing is missing."""
        begin = time.monotonic_ns()
        self._pipe.start()
        found = self._pipe.exchange(self._terms, STARTUP_TIMEOUT_S, worker.Opened)
        if isinstance(found, Failed):
            raise DeviceError(f"engine {self._terms.engine} cannot be opened here: {found.error}")
        self.startup_ns = time.monotonic_ns() - begin
        return found

    def ask(self, request: Request, timeout_s: int) -> Measured | Failed:
        """Return what a worker measured, or how it failed; after a failure the next call has a new process."""
        if not self._pipe.is_running:
            self.start()
        return self._pipe.exchange(request, timeout_s, Measured)

    def stop(self) -> None:
        """End the process, if there is one."""
        self._pipe.stop()


def _environment(own: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: pinned, and with this very package on its path."""
    return {**own, **worker.PINS, "PYTHONPATH": python_path(own)}
