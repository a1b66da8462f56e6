"""The process that plans, with the real libraries: what it needs, how it fails, and that nothing of it leaks."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benches import patch_worker
from commands import call
from factories import make_case
from reallists import wanted

from studytool import process
from studytool.errors import DeviceError
from studytool.model import Case, Status
from studytool.planning import boards, deviceless, libraries
from studytool.planning.boards import Board
from studytool.planning.deviceless import Planner
from studytool.planning.libraries import Libraries

pytest.importorskip("cudnn")

import cudnn
from cudnn.sdpa import graph_analyzer

VERSION = "9.27.0.42"
A100 = boards.load("a100-sxm4-40gb")
FLAG = "CUDNN_FRONTEND_ENABLE_FROST_ENGINES"
BACKWARD = make_case(op="sdpa_bwd", b=2, h_q=16, h_kv=4, s_q=2048, s_kv=2048, mask="br", window=256)
NOWHERE = Libraries(VERSION, Path("/nowhere/cudnn"), Path("/nowhere/cuda"))


def engines(planner: Planner, case: Case = BACKWARD) -> list[int]:
    """Return the engine ids of a case's plans; it must have some."""
    planned = planner.plan(case)

    assert (planned.status, planned.reason) == (Status.OK, "")
    return [plan.engine for plan in planned.plans]


def refusal(board: Board = A100, found: Libraries | None = None) -> str:
    """Return the one line by which a planner says that it cannot plan."""
    with pytest.raises(DeviceError) as caught, Planner(board, found or wanted(VERSION), "backend"):
        pass
    assert "\n" not in str(caught.value)
    return str(caught.value)


def pid_of(planner: Planner) -> int:
    """Return the process that plans."""
    assert planner._pipe._process is not None
    return planner._pipe._process.pid


def folders() -> tuple[str, ...]:
    """Return where the libraries of a planning process really lie, the stand-in for the driver among them."""
    found = wanted(VERSION)
    return tuple(str(path.resolve()) for path in (libraries.stub(), found.cudnn, found.cuda))


def loaded(pid: int | str, among: tuple[str, ...]) -> set[str]:
    """Return in which of some folders a process has libraries loaded."""
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return {folder for folder in among if f" {folder}/" in maps}


# What must never reach a process that measures


def test_nothing_of_a_plan_is_in_this_process() -> None:
    """While one plans and after it, this process has neither its libraries, nor its environment, nor its functions."""
    among, before = folders(), dict(os.environ)
    functions = graph_analyzer._device_cc, graph_analyzer._device_sm_count
    with Planner(A100, wanted(VERSION), "backend") as planner:
        assert 20601 in engines(planner)
        in_child, in_parent = loaded(pid_of(planner), among), loaded("self", among)
        pid = pid_of(planner)

    assert in_child == set(among)
    assert in_parent == loaded("self", among) == set()
    assert dict(os.environ) == before
    assert (graph_analyzer._device_cc, graph_analyzer._device_sm_count) == functions
    assert {function.__module__ for function in functions} == {"cudnn.sdpa.graph_analyzer"}
    assert not Path(f"/proc/{pid}").exists()


def test_a_worker_has_nothing_of_a_plan() -> None:
    """The environment of a process that measures names no folder of a planning process, before and after a plan."""
    before = process._environment(os.environ)
    with Planner(A100, wanted(VERSION), "backend") as planner:
        engines(planner)
        within = process._environment(os.environ)
    parts = (str(libraries.cache()), *folders())

    assert before == within == process._environment(os.environ)
    assert [name for name, value in before.items() if name != "XDG_CACHE_HOME" and any(p in value for p in parts)] == []
    assert FLAG not in before


def test_the_planner_s_environment_puts_its_libraries_first() -> None:
    """The stand-in, cuDNN and CUDA come before what the user has; so does this package; all else is the user's."""
    own = {"LD_LIBRARY_PATH": "/mine", "PYTHONPATH": "/src", "HOME": "/root"}
    package = str(Path(deviceless.__file__).parents[2])
    found = deviceless.environment(own, NOWHERE, Path("/stub"))

    assert found == {
        "LD_LIBRARY_PATH": "/stub:/nowhere/cudnn:/nowhere/cuda:/mine",
        "PYTHONPATH": f"{package}:/src",
        "PYTHONHASHSEED": "0",
        "HOME": "/root",
    }
    assert deviceless.environment({}, NOWHERE, Path("/stub"))["LD_LIBRARY_PATH"].endswith(":/nowhere/cuda")
    assert own == {"LD_LIBRARY_PATH": "/mine", "PYTHONPATH": "/src", "HOME": "/root"}


@pytest.mark.parametrize(("base", "offered"), [("library", False), ("backend", True)])
def test_the_switch_for_opt_in_rows_is_the_base_s(monkeypatch: pytest.MonkeyPatch, base: str, offered: bool) -> None:
    """Whatever the user's environment says, the opt-in row is offered where the base needs it, and only there."""
    found = []
    for value in ("1", ""):
        monkeypatch.setenv(FLAG, value)
        with Planner(A100, wanted(VERSION), base) as planner:
            found.append(20601 in engines(planner))

    assert found == [offered, offered]


# What stands in the way is one line


def test_where_a_driver_is_at_work_planning_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers would be those of the GPU that is here; nothing is compiled or started."""
    monkeypatch.setattr(libraries, "driver_is_loaded", lambda: True)
    monkeypatch.setattr(libraries, "stub", lambda: pytest.fail("it was compiled"))

    expected = "an NVIDIA driver is at work here; expected --even-with-driver to plan for another GPU"
    assert refusal(found=NOWHERE) == expected


def test_even_with_a_driver_is_planned_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The option takes the refusal away, here and on the command line."""
    wanted(VERSION)
    monkeypatch.setattr(libraries, "driver_is_loaded", lambda: True)
    with Planner(A100, wanted(VERSION), "backend", even_with_driver=True) as planner:
        assert 20601 in engines(planner)
    study = Path(__file__).parent.parent / "studies" / "sdpa_fwd_sm90_probe"
    args = ("plan", study, "--board", "h200", "--cudnn", VERSION)

    assert call(*args).code == 2
    assert call(*args, "--even-with-driver").code == 0
    assert [*tmp_path.iterdir()] == []


def changed(**values: Any) -> Board:
    """Return the A100 with these fields changed; None takes one away."""
    fields = {name: field for name, field in A100.fields.items() if values.get(name, 0) is not None}
    fields |= {
        name: msgspec.structs.replace(A100.fields[name], value=value)
        for name, value in values.items()
        if value is not None
    }
    return msgspec.structs.replace(A100, fields=fields)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"smCountOrigin": 108}, "smCountOrigin > CUDNN_SM_COUNT_ORIGIN_GREEN_CONTEXT"),
        ({"deviceVer": 0}, "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"),
        ({"totalGlobalMem": 10**20}, "json_object"),
        ({"warpSize": None}, "HasMember"),
    ],
)
def test_a_board_that_cudnn_does_not_take_is_one_line(values: dict[str, Any], words: str) -> None:
    """A value that cannot be, and a field that is missing, are told in cuDNN's words."""
    said = refusal(changed(**values))

    assert said.startswith(f"cuDNN {VERSION} cannot plan here: cuDNN 92700 does not take the board: ")
    assert words in said


@pytest.mark.parametrize("name", ["_device_cc", "_device_sm_count"])
def test_a_frontend_without_the_private_functions_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Where the library no longer has a function that is patched, the line names it and a version that has it."""
    wanted(VERSION)
    patch_worker(tmp_path, monkeypatch, f"from cudnn.sdpa import graph_analyzer\ndel graph_analyzer.{name}\n")

    assert refusal() == (
        f"cuDNN {VERSION} cannot plan here: nvidia-cudnn-frontend {cudnn.__version__} has no graph_analyzer.{name};"
        " 1.32.0 has"
    )


def test_without_the_frontend_one_line_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that cannot import the library ends, and its last words are told."""
    wanted(VERSION)
    patch_worker(tmp_path, monkeypatch, "import sys\nsys.modules['cudnn'] = None\n")

    assert re.match(rf"cuDNN {re.escape(VERSION)} cannot plan here: ModuleNotFoundError: .*cudnn", refusal())


def test_a_folder_that_holds_another_version_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that is loaded is asked for its number: a folder's name is not believed."""
    other = wanted("9.28.1.4")
    here = tmp_path / "studytool"
    here.mkdir()
    (here / f"cudnn-{VERSION}").symlink_to(other.cudnn.parents[2])
    (here / "cuda13").symlink_to(other.cuda.parents[2])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(libraries, "_installed", lambda: None)

    assert refusal() == f"cuDNN {VERSION} was asked for, and 92801 was loaded; expected 92700"


# A case that goes wrong


def test_a_case_on_which_the_library_raises_is_an_error_and_the_next_is_planned() -> None:
    """A head dimension of 576 ends the process on a B200; the reason names it, and another process plans on."""
    forward = make_case(b=2, h_q=16, h_kv=16, s_q=2048, s_kv=2048)
    with Planner(boards.load("b200"), wanted(VERSION), "library") as planner:
        first = pid_of(planner)
        found = planner.plan(msgspec.structs.replace(forward, d_qk=576, d_v=512))
        after = engines(planner, forward)

        assert pid_of(planner) != first
    assert (found.status, found.reason, found.plans) == (Status.ERROR, "KeyError: 576", ())
    assert after


def test_a_planner_that_is_killed_or_slow_costs_one_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash and a time that is over are statuses; the next case has a new process and the same plans as before."""
    with Planner(A100, wanted(VERSION), "backend") as planner:
        before = engines(planner)
        pid = pid_of(planner)
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        crashed = planner.plan(BACKWARD)
        between = engines(planner)
        monkeypatch.setattr(deviceless, "TIMEOUT_S", 0)
        late = planner.plan(BACKWARD)
        monkeypatch.undo()

        assert before == between == engines(planner)
    assert (crashed.status, crashed.reason) == (Status.CRASHED, "ended by SIGKILL")
    assert (late.status, late.reason) == (Status.TIMEOUT, "no answer in 0 s")


def test_a_case_that_has_no_spelling_is_declined() -> None:
    """What cuDNN's graphs cannot say is declined in this tool's words, by the same process."""
    with Planner(A100, wanted(VERSION), "backend") as planner:
        pid = pid_of(planner)
        found = planner.plan(make_case(bias="learned"))

        assert pid_of(planner) == pid
    assert (found.status, found.reason) == (Status.DECLINED, "bias learned is not built for cuDNN here")


def test_a_planner_says_who_plans() -> None:
    """Version, frontend and the ids of the library's rows are those of the process that plans."""
    with Planner(A100, wanted(VERSION), "backend") as planner:
        found = planner.found

    assert (found.problem, found.cudnn, found.frontend) == ("", 92700, cudnn.__version__)
    assert found.rows["sdpa_bwd_sm80"] == 20601


def test_a_device_s_description_is_json() -> None:
    """Where a GPU is here, what cuDNN says of it is a board; elsewhere that is one line."""
    try:
        said = deviceless.device_description()
    except DeviceError as error:
        pytest.skip(str(error))
    board = boards.from_device("here", said)

    assert boards.FIELDS.keys() <= json.loads(said).keys()
    assert board.sm_count > 0
