"""Kernels are compiled by several processes before one of them times; nothing is recorded."""

import threading
from collections import Counter
from pathlib import Path
from typing import ClassVar

import msgspec
import pytest
from benches import make_job
from commands import call, tree
from factories import STUDY_YAML

from studytool import pipeline, prewarm
from studytool.attempts import Job
from studytool.engines.base import Terms
from studytool.errors import StudyError
from studytool.measure import Measured, Request
from studytool.model import Status
from studytool.pipes import Failed


class Compiler:
    """Stands in for a worker; all of them wait for each other, so that none can take all cases."""

    together: ClassVar[threading.Barrier] = threading.Barrier(1)
    asked: ClassVar[list[tuple["Compiler", Request]]] = []
    stopped: ClassVar[list["Compiler"]] = []
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, terms: Terms) -> None:
        assert (terms.engine, terms.row) == ("cudnn", "open_engine")
        self._waited = False

    def ask(self, request: Request, timeout_s: int) -> Measured | Failed:
        """Note the request; one case in two has no FROST plan."""
        if not self._waited:
            self.together.wait(timeout_s)
        self._waited = True
        with self.lock:
            self.asked.append((self, request))
            return Measured(status=Status.OK) if len(self.asked) % 2 else Failed(Status.CRASHED, "ended")

    def stop(self) -> None:
        """Note it."""
        self.stopped.append(self)


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a frozen job whose engine is said to be cuDNN."""
    made = make_job(tmp_path)
    monkeypatch.setattr(prewarm, "WorkerProcess", Compiler)
    monkeypatch.setattr(Compiler, "asked", [])
    monkeypatch.setattr(Compiler, "stopped", [])
    return made._replace(study=msgspec.structs.replace(made.study, engine="cudnn"))


def test_each_case_is_asked_once_without_anything_to_time(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes share the cases; a request has no blocks, so that plans are built and nothing is launched."""
    monkeypatch.setattr(Compiler, "together", threading.Barrier(2))
    steps: list[int] = []

    ended = prewarm.prewarm(job, 2, lambda step: steps.append(step.done))

    assert sorted(job.cases.values(), key=lambda case: case.label) == sorted(
        (request.case for _, request in Compiler.asked), key=lambda case: case.label
    )
    assert {request.orders for _, request in Compiler.asked} == {()}
    assert len({process for process, _ in Compiler.asked}) == 2
    assert set(Compiler.stopped) == {process for process, _ in Compiler.asked}
    assert ended == Counter({Status.OK: (len(job.cases) + 1) // 2, Status.CRASHED: len(job.cases) // 2})
    assert steps[-1] == len(job.cases)


def test_there_are_no_more_processes_than_cases(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four processes asked for, as many started as there are cases."""
    monkeypatch.setattr(Compiler, "together", threading.Barrier(len(job.cases)))

    prewarm.prewarm(job, 64, lambda _step: None)

    assert len(Compiler.stopped) == len(job.cases)


def test_what_came_of_it_is_told(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line says how the cases ended."""
    monkeypatch.setattr(Compiler, "together", threading.Barrier(1))
    outside = pipeline.Hooks(lambda: "", lambda _name, _step: None, lambda _text: None)
    count = len(job.cases)

    said = pipeline.prewarm(job, 1, outside)

    assert said == (f"bf16 train: compiled in up to 1 processes, {count // 2} crashed, {(count + 1) // 2} ok")


def test_only_cudnn_keeps_what_it_compiles(tmp_path: Path) -> None:
    """Another engine is one line, exit 2, and nothing is written."""
    job = make_job(tmp_path, text=STUDY_YAML)
    before = tree(tmp_path)

    with pytest.raises(StudyError, match="--prewarm: found engine simulated; expected cudnn"):
        prewarm.prewarm(job, 2, lambda _step: None)
    code, out, err = call("time", job.place.folder, "--dtype", "bf16", "--prewarm", 2)
    assert (code, out, tree(tmp_path)) == (2, "", before)
    assert err == "--prewarm: found engine simulated; expected cudnn, whose compiled kernels are kept\n"
