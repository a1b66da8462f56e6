"""The engine of `engine: cudnn`: one handle and one stream for all legs of all cases of a process."""

import json
from importlib import metadata
from pathlib import Path
from typing import Any

import cudnn
import torch

from studytool.digest import tree_digest
from studytool.engines.base import Bench, Clock, Facts, Order, Seeds, Terms
from studytool.engines.cudnn import nvml, plans
from studytool.engines.cudnn.bench import CudnnBench, Tools
from studytool.engines.cudnn.cuda_clock import CudaClock
from studytool.engines.cudnn.device import Device
from studytool.model import Case


class Cudnn:
    """The library on one device; the row of the study decides which FROST plans its frost leg has."""

    def __init__(self, terms: Terms, device: Device) -> None:
        self._terms, self._device = terms, device
        self._handle: Any = cudnn.create_handle()
        cudnn.set_stream(self._handle, device.stream)
        self._tools = Tools(device, self._handle, plans.row_engine(terms.row))

    def facts(self) -> Facts:
        """Return the GPU as board; the frontend's own sources are among the versions, by their digest."""
        here = plans.current_device()
        described = json.loads(cudnn.create_device_properties(0).serialize())
        package = Path(cudnn.__file__).parent
        sources = [*package.rglob("*.py"), *package.glob("*.so")]
        board = self._device.board
        return Facts(
            cc=here.cc,
            board=here.board,
            versions={
                "cudnn": str(cudnn.backend_version()),
                "cudnn_frontend": str(cudnn.__version__),
                "cudnn_frontend_tree": tree_digest(sources, package)[:16],
                "cutlass_dsl": metadata.version("nvidia-cutlass-dsl"),
                "torch": str(torch.__version__),
                "cuda": str(torch.version.cuda),
                "driver": nvml.driver_version(),
            },
            settings={
                "frost_flag": plans.flag(),
                "replay_expected": "0",
                "sm_count": str(described["multiProcessorCount"]),
                "l2_bytes": str(self._device.l2_bytes),
                **board.settings(),
            },
            uuid=board.uuid,
            memory_bytes=board.memory_bytes(),
            device={name: str(value) for name, value in board.state().items()},
        )

    def own_clock(self) -> Clock:
        """Return the clock of CUDA events."""
        return CudaClock(self._device)

    def prepare(self, case: Case, order: Order, seeds: Seeds, distribution: str) -> Bench:
        """Return the case planned and its legs' plans built; tensors are made when something is first launched."""
        return CudnnBench(case, order, seeds.case, distribution, self._tools)
