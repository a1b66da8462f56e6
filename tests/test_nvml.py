"""What NVML says of a board: settings, readings, what is not supported, and which board CUDA means."""

from types import SimpleNamespace
from typing import Any

import pytest

pynvml = pytest.importorskip("pynvml")
nvml = pytest.importorskip("studytool.engines.cudnn.nvml")

SM, MEMORY = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
ANSWERS: dict[str, Any] = {
    "nvmlInit": None,
    "nvmlSystemGetDriverVersion": "580.65",
    "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
    "nvmlDeviceGetClockInfo": lambda _handle, kind: {SM: 1410, MEMORY: 1215}[kind],
    "nvmlDeviceGetCurrentClocksThrottleReasons": 0x24,
    "nvmlDeviceGetPowerUsage": 251_000,
    "nvmlDeviceGetTemperature": lambda _handle, kind: {pynvml.NVML_TEMPERATURE_GPU: 41}[kind],
    "nvmlDeviceGetComputeRunningProcesses": ["one", "two"],
    "nvmlDeviceGetMigMode": (1, 0),
    "nvmlDeviceGetEccMode": (1, 0),
    "nvmlDeviceGetPersistenceMode": 1,
    "nvmlDeviceGetComputeMode": 3,
    "nvmlDeviceGetEnforcedPowerLimit": 400_000,
    "nvmlDeviceGetApplicationsClock": lambda _handle, kind: {SM: 1095, MEMORY: 1215}[kind],
    "nvmlDeviceGetMaxClockInfo": lambda _handle, kind: {SM: 1410, MEMORY: 1593}[kind],
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=40 << 30),
    "nvmlDeviceGetCount": 2,
    "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
}
"""What each function of NVML answers on a healthy A100, or the function itself."""

STATE = {"sm_mhz": 1410, "memory_mhz": 1215, "throttle": 36, "power_mw": 251_000, "temperature_c": 41, "processes": 2}
SETTINGS = {
    "mig": "1",
    "ecc": "1",
    "persistence": "1",
    "compute_mode": "3",
    "power_limit_mw": "400000",
    "application_sm_mhz": "1095",
    "most_sm_mhz": "1410",
}
READ_BY = {
    "nvmlDeviceGetClockInfo": {"sm_mhz", "memory_mhz"},
    "nvmlDeviceGetCurrentClocksThrottleReasons": {"throttle"},
    "nvmlDeviceGetPowerUsage": {"power_mw"},
    "nvmlDeviceGetTemperature": {"temperature_c"},
    "nvmlDeviceGetComputeRunningProcesses": {"processes"},
    "nvmlDeviceGetMigMode": {"mig"},
    "nvmlDeviceGetEccMode": {"ecc"},
    "nvmlDeviceGetPersistenceMode": {"persistence"},
    "nvmlDeviceGetComputeMode": {"compute_mode"},
    "nvmlDeviceGetEnforcedPowerLimit": {"power_limit_mw"},
    "nvmlDeviceGetApplicationsClock": {"application_sm_mhz"},
    "nvmlDeviceGetMaxClockInfo": {"most_sm_mhz"},
}


def answer(monkeypatch: pytest.MonkeyPatch, name: str, value: Any) -> None:
    """Let a function of NVML answer, or raise what is an error, also where a reader refers to it."""

    def function(*arguments: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value(*arguments) if callable(value) else value

    for readers in (nvml._READINGS, nvml._SETTINGS):
        for key, reader in [*readers.items()]:
            if reader is getattr(pynvml, name):
                monkeypatch.setitem(readers, key, function)
    monkeypatch.setattr(pynvml, name, function)


@pytest.fixture(autouse=True)
def _healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let NVML be there."""
    nvml.driver_version.cache_clear()
    monkeypatch.setattr(nvml, "driver_version", nvml.driver_version.__wrapped__)
    for name, value in ANSWERS.items():
        answer(monkeypatch, name, value)


def _missing(status: str) -> Any:
    return pynvml.NVMLError(getattr(pynvml, f"NVML_ERROR_{status}"))


def test_board_tells_settings_and_readings() -> None:
    """Settings are words, readings integers; a mode that is pending is not told, processes are counted."""
    board = nvml.Board("a")

    assert (board.settings(), board.state()) == (SETTINGS, STATE)
    assert (board.uuid, board.memory_bytes()) == ("GPU-a", 40 << 30)


def test_readings_are_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question reads the board anew."""
    board = nvml.Board("a")
    answer(monkeypatch, "nvmlDeviceGetPowerUsage", 99_000)

    assert board.state() == {**STATE, "power_mw": 99_000}


@pytest.mark.parametrize("status", ["NOT_SUPPORTED", "NO_PERMISSION", "GPU_IS_LOST", "UNKNOWN"])
@pytest.mark.parametrize("name", READ_BY)
def test_what_a_board_does_not_tell_is_left_out(monkeypatch: pytest.MonkeyPatch, name: str, status: str) -> None:
    """A board says nothing of what it does not have, as a MIG instance has no power, or what a container may not ask.

    A reading that comes later is not told either: all blocks have the same.
    """
    answer(monkeypatch, name, _missing(status))
    board = nvml.Board("a")
    left = {key: value for key, value in STATE.items() if key not in READ_BY[name]}

    assert board.settings() == {key: value for key, value in SETTINGS.items() if key not in READ_BY[name]}
    assert board.state() == left
    answer(monkeypatch, name, ANSWERS[name])
    assert (board.settings(), board.state()) == (SETTINGS, left)


@pytest.mark.parametrize("status", ["NOT_SUPPORTED", "NO_PERMISSION", "GPU_IS_LOST", "UNKNOWN"])
@pytest.mark.parametrize("name", [name for name, read in READ_BY.items() if read <= STATE.keys()])
def test_reading_that_is_not_given_now_is_told(monkeypatch: pytest.MonkeyPatch, name: str, status: str) -> None:
    """What a board could tell when it was opened it tells in every block, -1 where it does not now."""
    board = nvml.Board("a")
    answer(monkeypatch, name, _missing(status))

    assert board.state() == {**STATE, **dict.fromkeys(READ_BY[name], -1)}
    answer(monkeypatch, name, ANSWERS[name])
    assert board.state() == STATE


@pytest.mark.parametrize("name", ["nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo"])
def test_another_error_is_not_swallowed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A board without an identity or a memory is none."""
    answer(monkeypatch, name, _missing("GPU_IS_LOST"))

    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        nvml.Board("a").memory_bytes()


def test_defect_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what NVML itself says is no answer."""
    answer(monkeypatch, "nvmlDeviceGetPowerUsage", TypeError("no handle"))

    with pytest.raises(TypeError, match="no handle"):
        nvml.Board("a")


@pytest.mark.parametrize("known", ["GPU-1234", "MIG-1234"])
def test_board_is_found_by_either_prefix(monkeypatch: pytest.MonkeyPatch, known: str) -> None:
    """CUDA tells a UUID without its prefix: it is that of a whole board, or of a MIG instance."""
    asked: list[str] = []

    def by_uuid(uuid: str) -> str:
        asked.append(uuid)
        if uuid != known:
            raise _missing("NOT_FOUND")
        return uuid

    answer(monkeypatch, "nvmlDeviceGetHandleByUUID", by_uuid)

    assert nvml.open_board("1234").uuid == f"GPU-{known}"
    assert asked == ["GPU-1234", "MIG-1234"][: 1 + known.startswith("MIG")]


def test_unknown_board_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A UUID that NVML does not know is an error that names it."""
    answer(monkeypatch, "nvmlDeviceGetHandleByUUID", _missing("NOT_FOUND"))

    with pytest.raises(RuntimeError, match=r"\ANVML knows no device 1234\Z"):
        nvml.open_board("1234")


def test_error_in_the_search_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A board that NVML may not tell of is no board that there is not."""
    answer(monkeypatch, "nvmlDeviceGetHandleByUUID", _missing("NO_PERMISSION"))

    with pytest.raises(pynvml.NVMLError_NoPermission):
        nvml.open_board("1234")


def test_all_boards_are_listed() -> None:
    """Every board of the machine is told of, whether or not CUDA may use it."""
    assert [board.uuid for board in nvml.boards()] == ["GPU-handle 0", "GPU-handle 1"]


@pytest.mark.parametrize("ask", ["driver_version", "boards", "open_board"])
def test_machine_without_a_driver_is_an_error(monkeypatch: pytest.MonkeyPatch, ask: str) -> None:
    """Where there is no driver, whatever is asked is NVML's own error."""
    answer(monkeypatch, "nvmlInit", _missing("LIBRARY_NOT_FOUND"))

    with pytest.raises(pynvml.NVMLError_LibraryNotFound):
        getattr(nvml, ask)(*["1234"][: ask == "open_board"])


def test_driver_s_version() -> None:
    """The driver's version is text, as NVML tells it."""
    assert nvml.driver_version() == "580.65"
