"""What NVML says of the board: facts that go into the fingerprint, and readings that go into every block."""

import functools
from collections.abc import Callable
from typing import Any

import pynvml

_SM, _MEMORY = pynvml.NVML_CLOCK_SM, pynvml.NVML_CLOCK_MEM
_READINGS: dict[str, Callable[[Any], Any]] = {
    "sm_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, _SM),
    "memory_mhz": lambda h: pynvml.nvmlDeviceGetClockInfo(h, _MEMORY),
    "throttle": pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,
    "power_mw": pynvml.nvmlDeviceGetPowerUsage,
    "temperature_c": lambda h: pynvml.nvmlDeviceGetTemperature(h, pynvml.NVML_TEMPERATURE_GPU),
    "processes": lambda h: len(pynvml.nvmlDeviceGetComputeRunningProcesses(h)),
}
"""Read before every block; `throttle` is NVML's bit mask of reasons, `processes` counts those that compute."""

_SETTINGS: dict[str, Callable[[Any], Any]] = {
    "mig": lambda h: pynvml.nvmlDeviceGetMigMode(h)[0],
    "ecc": lambda h: pynvml.nvmlDeviceGetEccMode(h)[0],
    "persistence": pynvml.nvmlDeviceGetPersistenceMode,
    "compute_mode": pynvml.nvmlDeviceGetComputeMode,
    "power_limit_mw": pynvml.nvmlDeviceGetEnforcedPowerLimit,
    "application_sm_mhz": lambda h: pynvml.nvmlDeviceGetApplicationsClock(h, _SM),
    "most_sm_mhz": lambda h: pynvml.nvmlDeviceGetMaxClockInfo(h, _SM),
}
"""Must be equal in sessions that are compared; 1 and 0 stand for on and off."""


class Board:
    """A board by its NVML handle; what it does not support is left out of what it says."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle
        self._supported = _read(_READINGS, handle).keys()
        self.uuid: str = pynvml.nvmlDeviceGetUUID(handle)

    def settings(self) -> dict[str, str]:
        """Return what must be equal in sessions that are compared."""
        return {name: str(value) for name, value in _read(_SETTINGS, self._handle).items()}

    def state(self) -> dict[str, int]:
        """Return the readings of this moment, -1 for one that the board supports and does not give now."""
        now = _read(_READINGS, self._handle)
        return {name: now.get(name, -1) for name in self._supported}

    def memory_bytes(self) -> int:
        """Return the board's memory."""
        return int(pynvml.nvmlDeviceGetMemoryInfo(self._handle).total)


def _read(readers: dict[str, Callable[[Any], Any]], handle: Any) -> dict[str, int]:
    found = {}
    for name, reader in readers.items():
        try:
            found[name] = int(reader(handle))
        except pynvml.NVMLError:  # not supported, or not allowed in a container
            continue
    return found


@functools.cache
def driver_version() -> str:
    """Return the driver's version; NVMLError where there is no driver."""
    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


def open_board(uuid: str) -> Board:
    """Return the board, or the MIG instance, that CUDA names by this UUID (without its prefix)."""
    driver_version()
    for prefix in ("GPU-", "MIG-"):
        try:
            return Board(pynvml.nvmlDeviceGetHandleByUUID(prefix + uuid))
        except pynvml.NVMLError_NotFound:
            continue
    raise RuntimeError(f"NVML knows no device {uuid}")


def boards() -> list[Board]:
    """Return all boards of the machine, whether or not CUDA may use them; NVMLError where there is no driver."""
    driver_version()
    return [Board(pynvml.nvmlDeviceGetHandleByIndex(index)) for index in range(pynvml.nvmlDeviceGetCount())]
