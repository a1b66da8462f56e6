"""The tensors of a case on the device: seeded, bound to a graph's ports, poisoned and read back.

A rotation has several sets of them, so that a launch need not find what the launch before it left in the caches.
"""

import math
from typing import Any

import torch

from studytool.engines.base import Arrays
from studytool.engines.cudnn.graphs import Graph, Port, lengths
from studytool.model import Case

_DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "i32": torch.int32}
MOST_COMPARED = 1 << 22
"""Values of an output that are brought to the host and compared; larger ones are sampled at even distances."""

_DRAWN = {"Q", "K", "V", "dO", "Sink"}


class Tensors:
    """The tensors of one set, by the names of a graph's ports."""

    def __init__(self, case: Case, graph: Graph, device: str) -> None:
        self._case, self._device = case, device
        self.inputs = {name: self._empty(port) for name, port in graph.inputs.items()}
        self.outputs = {name: self._empty(port) for name, port in graph.outputs.items()}
        self._write_lengths()

    def fill(self, seed: int, distribution: str) -> None:
        """Draw the inputs anew in place: standard normal, or uniform in [-1, 1), never zeros."""
        for name in {"O", "Stats"} & self.inputs.keys():  # a forward writes them, but no padded rows
            self.inputs[name].zero_()
        generator = torch.Generator(self._device).manual_seed(seed % 2**63)
        for name in sorted(_DRAWN & self.inputs.keys()):
            if distribution == "normal":
                self.inputs[name].normal_(generator=generator)
            else:
                self.inputs[name].uniform_(-1, 1, generator=generator)

    def poison(self) -> None:
        """Fill the outputs with NaN."""
        for tensor in self.outputs.values():
            tensor.fill_(float("nan"))

    def pack(self, graph: Graph) -> dict[Any, torch.Tensor]:
        """Return the buffer of every tensor that a graph binds, by the names that it shares with these."""
        own = {**self.inputs, **self.outputs}
        ports = {**graph.inputs, **graph.outputs}
        return {port.tensor: own[name] for name, port in ports.items()}

    def results(self) -> Arrays:
        """Return the outputs, without what padding hides, on the host."""
        return {name: compared(self._visible(name, tensor)) for name, tensor in self.outputs.items()}

    def _visible(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if name == "Stats":
            tensor = torch.where(tensor == float("-inf"), 0.0, tensor)
        if not self._case.padding or name == "dSink":
            return tensor
        keys = name in {"dK", "dV"}
        own = lengths(self._case, self._case.s_kv if keys else self._case.s_q)
        rows = torch.arange(tensor.shape[2])[None, :] < torch.tensor(own)[:, None]
        return torch.where(rows[:, None, :, None].to(self._device), tensor, 0.0)

    def _empty(self, port: Port) -> torch.Tensor:
        dtype = _DTYPES[self._case.dtype if port.dtype == "io" else port.dtype]
        return torch.empty_strided(port.shape, port.stride, dtype=dtype, device=self._device)

    def _write_lengths(self) -> None:
        case = self._case
        for side, size in (("q", case.s_q), ("kv", case.s_kv)):
            if (tensor := self.inputs.get(f"seq_len_{side}")) is not None:
                tensor.copy_(torch.tensor(lengths(case, size), dtype=tensor.dtype).reshape(tensor.shape))


def compared(tensor: torch.Tensor) -> Any:
    """Return a tensor's values as float64 on the host, at most MOST_COMPARED of them, at even distances.

    A value anywhere that is not finite takes the first place, so that no sample misses it.
    """
    step = -(-tensor.numel() // MOST_COMPARED)
    while math.gcd(step, tensor.shape[-1]) > 1:  # so that the samples fall on every column
        step += 1
    flat = tensor.reshape(-1)
    found = flat[::step].double().cpu()
    if not bool(torch.isfinite(flat).all()):
        found[0] = float("nan")
    return found.numpy()
