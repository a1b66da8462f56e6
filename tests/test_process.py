"""A worker process as its parent sees it: asked, given up, told from a crash, and gone when it should be."""

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benches import make_request, patch_worker
from factories import STUDY_YAML, make_case, make_study

from studytool import pipes, process, worker
from studytool.errors import DeviceError
from studytool.measure import Measured
from studytool.model import Fingerprint, Status, Study
from studytool.pipes import Failed
from studytool.process import WorkerProcess

REQUEST = make_request()
HOOK = """
from studytool.engines import simulated
def prepare(self, case, order, seed, distribution):
    {body}
    return real(self, case, order, seed, distribution)
real = simulated.Simulated.prepare
simulated.Simulated.prepare = prepare
"""


@pytest.fixture(name="start")
def _start() -> Iterator[Any]:
    """Return a maker of worker processes that are stopped after the test."""
    made: list[WorkerProcess] = []

    def start(study: Study | None = None) -> WorkerProcess:
        made.append(WorkerProcess(process.terms_of(study or make_study())))
        return made[-1]

    yield start
    for one in made:
        one.stop()


def _pid(one: WorkerProcess) -> int:
    assert one._pipe._process is not None
    return one._pipe._process.pid


def _is_there(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _with_fault(fault: str) -> Study:
    return make_study(STUDY_YAML.replace("+ 64000}", f"+ 64000, {fault}: s_kv == 64}}"))


def test_worker_answers_with_fingerprint_and_samples(start: Any) -> None:
    """A worker says what it is when it opens its engine, then answers each request with what it measured."""
    one = start()
    prints = one.fingerprint()
    pid = _pid(one)
    found = [one.ask(REQUEST, 60) for _ in range(2)]

    assert isinstance(prints, Fingerprint)
    assert prints.cc == "sim-1"
    assert [answer.status for answer in found] == [Status.OK, Status.OK]
    assert found[0] == found[1]
    assert (_pid(one), one.fingerprint()) == (pid, prints)


def test_start_is_a_fresh_process(start: Any) -> None:
    """Starting again ends the process that was there, and makes another one."""
    one = start()
    one.start()
    first = _pid(one)
    one.start()

    assert _pid(one) != first
    assert not _is_there(first)


def test_stop_leaves_nothing(start: Any) -> None:
    """After stop there is no process, not even a dead one that nobody waited for."""
    one = start()
    one.start()
    pid = _pid(one)
    one.stop()

    assert not _is_there(pid)


@pytest.mark.parametrize(
    ("fault", "timeout_s", "status", "words"),
    [
        ("crashed", 60, Status.CRASHED, "ended by SIGKILL"),
        ("error", 60, Status.ERROR, "RuntimeError: the simulated engine has a defect"),
        ("timeout", 1, Status.TIMEOUT, "no answer in 1 s"),
    ],
)
def test_failure_has_a_status_and_the_next_request_a_new_process(
    start: Any, fault: str, timeout_s: int, status: Status, words: str
) -> None:
    """A worker that fails is told from one that answers, is gone, and the next request is answered by another."""
    one = start(_with_fault(fault))
    one.start()
    first = _pid(one)
    found = one.ask(make_request(case=make_case(s_kv=64)), timeout_s)

    assert found == Failed(status, words)
    assert not _is_there(first)
    assert one.ask(REQUEST, 60).status is Status.OK


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        ("raise SystemExit(3)", Status.CRASHED, "ended by code 3"),
        ("raise SystemExit(0)", Status.CRASHED, "ended by code 0"),
        ("raise SystemExit(1)", Status.ERROR, "ended with code 1"),
        ("import os; os.abort()", Status.CRASHED, "ended by SIGABRT"),
        ("import os; os.kill(os.getpid(), 40)", Status.CRASHED, "ended by signal 40"),
        ("raise MemoryError('\\n\\n  \\n')", Status.ERROR, "MemoryError:"),
    ],
)
def test_end_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any, body: str, status: Status, words: str
) -> None:
    """However a worker ends, one line says how."""
    patch_worker(tmp_path, monkeypatch, HOOK.format(body=body))
    found = start().ask(REQUEST, 60)

    assert found == Failed(status, words)


def test_worker_that_died_between_requests_is_a_crash(start: Any) -> None:
    """A worker that was killed while nothing was asked costs the next request and no more."""
    one = start()
    one.start()
    pid = _pid(one)
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    found = one.ask(REQUEST, 60)

    assert found == Failed(Status.CRASHED, "ended by SIGKILL")
    assert one.ask(REQUEST, 60).status is Status.OK


def test_prints_do_not_disturb_the_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    """Whatever an engine prints, by Python or straight to the handle, is not taken for an answer."""
    body = "import os; print('{}'); print('x' * 100_000); os.write(1, b'{}' + bytes([10])); os.system('echo {}')"
    patch_worker(tmp_path, monkeypatch, HOOK.format(body=body.replace("{}", "{{}}")))
    quiet = start().ask(REQUEST, 60)

    assert isinstance(quiet, Measured)
    assert (quiet.status, len(quiet.legs["frost"].ns)) == (Status.OK, 8)


def test_engine_that_cannot_be_opened_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    """An engine whose library is absent is an error that names the engine and what is missing."""
    patch_worker(tmp_path, monkeypatch, "import sys\nsys.modules['torch'] = None\n")

    expected = "engine torch_sdpa cannot measure here: torch: not installed; needed: pip install 'studytool[torch]'"
    with pytest.raises(DeviceError, match=rf"\A{re.escape(expected)}\Z"):
        start(make_study(engine="torch_sdpa")).fingerprint()


def test_engine_that_hangs_while_it_opens_is_given_up(monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    """A worker that does not open its engine in time is ended, and the error says for how long it was waited."""
    monkeypatch.setattr(process, "STARTUP_TIMEOUT_S", 0)
    one = start()

    with pytest.raises(DeviceError, match=r"cannot be opened here: no answer in 0 s\Z"):
        one.start()
    assert one._pipe._process is None


def test_machine_that_changes_within_a_session_is_refused(start: Any) -> None:
    """A process that finds another machine than the first one of the session does not go on."""
    one = start()
    one._prints = msgspec.structs.replace(one.fingerprint(), board="another device")

    with pytest.raises(DeviceError, match="changed between two processes of a session: board another device and"):
        one.start()


def test_worker_is_pinned_and_finds_this_package() -> None:
    """A worker has one thread in every library and a fixed hash seed; this package comes first on its path."""
    found = process._environment({"OMP_NUM_THREADS": "8", "PYTHONPATH": "/elsewhere", "KEPT": "1"})
    package = Path(process.__file__).parent.parent

    assert found == {**worker.PINS, "KEPT": "1", "PYTHONPATH": f"{package}{os.pathsep}/elsewhere"}
    assert process._environment({})["PYTHONPATH"] == str(package)
    assert set(worker.PINS.values()) == {"0", "1"}


@pytest.mark.parametrize("pieces", [[b"one\n"], [b"o", b"n", b"e\n"], [b"one", b"\n"]])
def test_line_is_put_together_from_pieces(pieces: list[bytes]) -> None:
    """An answer that comes in pieces is read whole."""
    reading, writing = os.pipe()

    def write() -> None:
        for piece in pieces:
            os.write(writing, piece)
            time.sleep(0.01)
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    found = [pipes._read_line(reading, 60), pipes._read_line(reading, 60)]
    thread.join()
    os.close(reading)

    assert found == [b"one\n", b""]


def test_half_an_answer_is_no_answer() -> None:
    """A worker that ends in the middle of a line, or lets it hang there, did not answer."""
    reading, writing = os.pipe()
    os.write(writing, b"half")

    assert pipes._read_line(reading, 0) is None
    os.write(writing, b"half")
    os.close(writing)
    assert pipes._read_line(reading, 60) == b""
    os.close(reading)
