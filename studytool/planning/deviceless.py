"""Plans cases for a described board in a child process, which has an environment of its own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from studytool.errors import DeviceError
from studytool.model import Case
from studytool.pipes import Failed, Pipe, python_path
from studytool.planning import libraries
from studytool.planning.boards import Board
from studytool.planning.libraries import Libraries
from studytool.planning.messages import Description, Found, Planned

TIMEOUT_S = 120


class Planner:
    """A planning process for one board, cuDNN version and base; a context manager.

    DeviceError where the process cannot plan, also for the reason that a real driver is at work here: its answers
    would be those of the GPU that is here.
    """

    def __init__(self, board: Board, found: Libraries, base: str, *, even_with_driver: bool = False) -> None:
        if libraries.driver_is_loaded() and not even_with_driver:
            raise DeviceError("an NVIDIA driver is at work here; expected --even-with-driver to plan for another GPU")
        self._description = Description(device=board.description(), cc=board.cc, sm_count=board.sm_count, base=base)
        self._version = found.version
        command = [sys.executable, "-P", "-m", "studytool.planning.child"]
        self._pipe = Pipe(command, environment(os.environ, found, libraries.stub()))
        self.found: Found = self._start()

    def __enter__(self) -> "Planner":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pipe.stop()

    def plan(self, case: Case) -> Planned:
        """Return a case's plans; a planner that raises or ends is a status, and the next case has a new process."""
        if not self._pipe.is_running:
            self._start()
        planned = self._pipe.exchange(case, TIMEOUT_S, Planned)
        if isinstance(planned, Failed):
            return Planned(status=planned.status, reason=planned.error)
        return planned

    def _start(self) -> Found:
        self._pipe.start()
        found = self._pipe.exchange(self._description, TIMEOUT_S, Found)
        problem = found.error if isinstance(found, Failed) else found.problem
        if isinstance(found, Failed) or problem:
            self._pipe.stop()
            raise DeviceError(f"cuDNN {self._version} cannot plan here: {problem}")
        if (told := number(self._version)) != found.cudnn:
            self._pipe.stop()
            raise DeviceError(f"cuDNN {self._version} was asked for, and {found.cudnn} was loaded; expected {told}")
        return found


def device_description() -> str:
    """Return what cuDNN says of the GPU that is here, asked in a process of its own; DeviceError where none answers."""
    words = "import cudnn; print(cudnn.create_device_properties(0).serialize())"
    ended = subprocess.run([sys.executable, "-P", "-c", words], capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or [f"ended with code {ended.returncode}"]
        raise DeviceError(f"no GPU is here that cuDNN describes: {said[-1]}")
    return ended.stdout


def number(version: str) -> int:
    """Return the number that cuDNN tells of a version: 92700 of 9.27.0.42."""
    major, minor, patch = map(int, version.split(".")[:3])
    return major * 10_000 + minor * 100 + patch


def environment(own: Mapping[str, str], found: Libraries, stub: Path) -> dict[str, str]:
    """Return the environment of a planning process: the wanted libraries and the driver's stand-in before all else."""
    folders = [str(stub), str(found.cudnn), str(found.cuda), own.get("LD_LIBRARY_PATH", "")]
    return {
        **own,
        "LD_LIBRARY_PATH": os.pathsep.join(part for part in folders if part),
        "PYTHONPATH": python_path(own),
        "PYTHONHASHSEED": "0",
    }
