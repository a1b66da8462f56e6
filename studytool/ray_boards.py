"""Boards of a Ray cluster: an actor for each, in which worker processes measure. Ray places, starts and transports."""

import os
import re
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import ray

from studytool.board_events import Answered, Came, Lost
from studytool.engines.base import Terms
from studytool.engines.simulated import WHICH_BOARD
from studytool.errors import DeviceError, StudyError
from studytool.measure import Measured, Request
from studytool.pipes import Failed
from studytool.process import WorkerProcess
from studytool.worker import Opened

RESOURCE = "studytool_board"
"""What a node without a GPU offers for each of its boards: `ray start --resources='{"studytool_board": 1}'`."""

PLACED_S = 300
"""How long a board may take to be placed and opened while no other one is at work."""


class Board:
    """One board as its actor: it opens a worker, and measures repeat by repeat, each in a fresh process."""

    def __init__(self, terms: bytes, environment: Mapping[str, str]) -> None:
        os.environ.update(environment)
        self._process = WorkerProcess(msgspec.json.decode(terms, type=Terms))
        self._is_fresh = False

    def open(self) -> tuple[bytes, str, str]:
        """Return what a worker found, or b"" and the reason why there is none; and the node's id."""
        host = ray.get_runtime_context().get_node_id()
        try:
            opened = msgspec.json.encode(self._process.open())
        except DeviceError as error:
            return b"", str(error), host
        self._is_fresh = True
        return opened, "", host

    def measure(self, requests: Sequence[bytes], timeout_s: int) -> tuple[list[tuple[bytes, str, str]], int]:
        """Return each answer, or status and error of a failure, and what starting the process took, in ns."""
        if not self._is_fresh:
            self._process.start()
        self._is_fresh = False
        startup_ns, answers = self._process.startup_ns, []
        for request in requests:
            found = self._process.ask(msgspec.json.decode(request, type=Request), timeout_s)
            failed = isinstance(found, Failed)
            answers.append((b"", str(found.status), found.error) if failed else (msgspec.json.encode(found), "", ""))
        return answers, startup_ns


class RayBoards:
    """The boards of a cluster, as `board_events.Boards`."""

    def __init__(self, terms: Terms, count: int) -> None:
        kind = {"num_gpus": 1} if terms.engine == "cudnn" else {"num_cpus": 0, "resources": {RESOURCE: 1}}
        self._actors: dict[int, Any] = {}
        self._waiting: dict[Any, tuple[str, int]] = {}
        self._lost: deque[Lost] = deque()
        encoded = msgspec.json.encode(terms)
        for number in range(1, count + 1):
            environment = {WHICH_BOARD: f"fleet-{number}"} if terms.engine == "simulated" else {}
            actor: Any = ray.remote(**kind)(Board).remote(encoded, environment)
            self._actors[number] = actor
            self._waiting[actor.open.remote()] = ("open", number)

    def ask(self, board: int, requests: Sequence[Request], timeout_s: int) -> None:
        """Have a board measure these one after the other, in a fresh process."""
        encoded = [msgspec.json.encode(request) for request in requests]
        try:
            ref = self._actors[board].measure.remote(encoded, timeout_s)
        except ray.exceptions.RayError as error:
            self._lost.append(Lost(board, _reason(error)))
            return
        self._waiting[ref] = ("measure", board)

    def next(self) -> Came | Answered | Lost | None:
        """Return what happens next, waiting for it; None when no board is there and none comes any more."""
        if self._lost:
            return self._lost.popleft()
        if not self._waiting:
            return None
        working = any(what == "measure" for what, _ in self._waiting.values())
        ready, _ = ray.wait(list(self._waiting), num_returns=1, timeout=None if working else PLACED_S)
        if not ready:
            return None
        what, board = self._waiting.pop(ready[0])
        try:
            found = ray.get(ready[0])
        except ray.exceptions.RayError as error:
            return Lost(board, _reason(error))
        if what == "open":
            opened, problem, host = found
            return Came(board, msgspec.json.decode(opened, type=Opened) if opened else None, problem, host[:8])
        answers, startup_ns = found
        return Answered(board, [_answer(*answer) for answer in answers], startup_ns)

    def stop(self) -> None:
        """End every board's actor, and with it its worker."""
        for actor in self._actors.values():
            ray.kill(actor)


def _answer(measured: bytes, status: str, error: str) -> Measured | Failed:
    if measured:
        return msgspec.json.decode(measured, type=Measured)
    return msgspec.convert((status, error), Failed)


def _reason(error: Exception) -> str:
    """Return the first line of what Ray says, as one line."""
    return str(error).strip().splitlines()[0][:200] if str(error).strip() else type(error).__name__


def _reachable(address: str) -> None:
    """Raise StudyError where nobody listens at an address, which Ray itself would try for minutes."""
    match = re.fullmatch(r"(?:ray://)?\[?([^\]]+?)\]?:([0-9]{1,5})", address)
    if match is None:
        return
    try:
        socket.create_connection((match[1], int(match[2])), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise StudyError(f"--ray: found {address}; nobody answers there: {error}") from None


def connect(address: str, engine: str, boards: int | None) -> int:
    """Join a cluster, or start one on this machine (`local`), and return how many boards to ask it for.

    StudyError where there is no cluster at the address, or no board in it.
    """
    _reachable(address)
    how: dict[str, Any] = {"address": address, "log_to_driver": False, "logging_level": "ERROR"}
    if address == "local":
        how |= {"include_dashboard": False}
        how |= {} if engine == "cudnn" else {"resources": {RESOURCE: boards or 1}}
    try:
        ray.init(**how)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise StudyError(f"--ray: found {address}; expected local, or the address of a cluster: {error}") from None
    resource = "GPU" if engine == "cudnn" else RESOURCE
    found = int(ray.cluster_resources().get(resource, 0))  # type: ignore[no-untyped-call]
    if not found:
        raise StudyError(f"--ray: no node of {address} offers {resource}")
    return min(found, boards) if boards else found
