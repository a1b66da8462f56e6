"""The CUDA device as the cuDNN engine uses it: one stream, events, a queue that can be filled, captured graphs.

Everything here needs a GPU; what it is used for is in `cuda_clock` and `bench`, which tests run on a device of theirs.
"""

import ctypes
import time
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch

from studytool.engines.cudnn.nvml import Board, open_board

_CALIBRATION_CYCLES = 4_000_000
_SETTLE_SPINS = 50


class Moment(Protocol):
    """A point on the stream."""

    def since_ns(self, earlier: Any) -> int:
        """Return the device time from another moment to this one; both are past."""
        ...


class Capture(NamedTuple):
    """A captured graph: what launches it, and how many nodes it holds."""

    replay: Callable[[], None]
    nodes: int


class Device(Protocol):
    """A device whose current stream is the only one that is used."""

    name: str
    """The name of torch's device, such as `cuda`."""

    l2_bytes: int
    stream: int
    board: Board

    def host_ns(self) -> int:
        """Return the host's clock."""
        ...

    def moment(self) -> Moment:
        """Return the moment at which the stream gets here."""
        ...

    def spin(self, ns: int) -> None:
        """Keep the stream busy for about so long, from a kernel that touches no memory."""
        ...

    def synchronize(self) -> None:
        """Wait until the stream is done."""
        ...

    def capture(self, launch: Callable[[], None]) -> Capture:
        """Return what a launch enqueues, captured and not run."""
        ...

    def release(self) -> None:
        """Give back memory that nothing uses."""
        ...


class CudaMoment:
    """A CUDA event on the current stream."""

    def __init__(self) -> None:
        self._event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def since_ns(self, earlier: "CudaMoment") -> int:
        """Return the time between the two events; the driver tells milliseconds."""
        elapsed_ms = float(earlier._event.elapsed_time(self._event))  # noqa: SLF001 - of its own kind
        return round(elapsed_ms * 1e6)


class CudaDevice:
    """The first CUDA device that is visible, with a stream of its own that this process works on from here."""

    name = "cuda"

    def __init__(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.set_stream(stream)
        self._stream, self.stream = stream, int(stream.cuda_stream)
        self.properties = torch.cuda.get_device_properties(0)
        self.l2_bytes = int(self.properties.L2_cache_size)
        self.board = open_board(str(self.properties.uuid))
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._ns_per_cycle = 1.0
        for _ in range(_SETTLE_SPINS):  # until the clocks have risen
            self.spin(_CALIBRATION_CYCLES)
        begin = self.moment()
        self.spin(_CALIBRATION_CYCLES)
        end = self.moment()
        self.synchronize()
        self._ns_per_cycle = end.since_ns(begin) / _CALIBRATION_CYCLES

    def host_ns(self) -> int:
        """Return the host's performance counter."""
        return time.perf_counter_ns()

    def moment(self) -> CudaMoment:
        """Return an event recorded on the stream."""
        return CudaMoment()

    def spin(self, ns: int) -> None:
        """Launch the kernel that counts cycles."""
        cycles = max(1, round(ns / self._ns_per_cycle))
        torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]  # noqa: SLF001 - torch's own tests fill a queue so

    def synchronize(self) -> None:
        """Wait for the stream."""
        self._stream.synchronize()

    def capture(self, launch: Callable[[], None]) -> Capture:
        """Return the graph that torch captures, with its nodes counted by the driver before the capture ends."""
        graph = torch.cuda.CUDAGraph()
        self.synchronize()
        with torch.cuda.graph(graph, stream=self._stream):
            launch()
            nodes = self._nodes_so_far()
        return Capture(graph.replay, nodes)

    def release(self) -> None:
        """Empty torch's cache, so that the next case does not depend on the sizes of the one before."""
        self.synchronize()
        torch.cuda.empty_cache()

    def _nodes_so_far(self) -> int:
        """Return how many nodes the capture in progress holds (cuStreamGetCaptureInfo_v2, cuGraphGetNodes)."""
        status, number, graph = ctypes.c_int(), ctypes.c_uint64(), ctypes.c_void_p()
        count, edges = ctypes.c_size_t(), ctypes.c_size_t()
        code = self._driver.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(self.stream),
            ctypes.byref(status),
            ctypes.byref(number),
            ctypes.byref(graph),
            None,
            ctypes.byref(edges),
        )
        code = code or self._driver.cuGraphGetNodes(graph, None, ctypes.byref(count))
        if code:
            raise RuntimeError(f"the driver cannot tell what was captured: CUDA error {code}")
        return count.value


def open_device() -> Device:
    """Return the CUDA device; RuntimeError where there is none."""
    return CudaDevice()
