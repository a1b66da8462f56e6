"""PyTorch's two CPU attention engines: FLASH_ATTENTION (the backend leg, torch's own pick) and MATH (the frost leg).

What each serves, how to prove which kernel ran, and the traps are measured in the project's CPU study: a single
backend in `sdpa_kernel` selects, a list does not reorder; `torch._fused_sdp_choice` predicts, dispatch proves.
"""

import contextlib
import ctypes
import functools
import platform
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from studytool.engines.base import Arrays, Bench, Clock, Facts, Launch, Order, PlanError, Seeds, leg_plans
from studytool.engines.torch_inputs import DTYPES, draw, float64_result, generator_of, inputs_of, visible_keys
from studytool.model import LEGS, Case, Plan, Status

FLASH = Plan(engine=1, name="FLASH_ATTENTION")
MATH = Plan(engine=0, name="MATH")
_BACKENDS = {FLASH.identity: SDPBackend.FLASH_ATTENTION, MATH.identity: SDPBackend.MATH}
_REFERENCE_LIMIT = 1 << 22
"""Cases with at most this many attention scores are compared with a float64 reference."""

_ALLOCATOR_PIN_BYTES = 30 << 20
"""Freeing one block of this size raises glibc's mmap threshold; below it every large temporary would page-fault."""


_FLUSH_BYTES = 256 << 20
_PROBE_BYTES = 1 << 20


class TorchSdpa:
    """The engine of `engine: torch_sdpa`; making it pins threads, allocator and flags of this process."""

    def __init__(self) -> None:
        torch.set_num_threads(1)
        if torch.get_num_interop_threads() != 1:
            torch.set_num_interop_threads(1)  # torch takes this once a process
        torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(False)
        torch.empty(_ALLOCATOR_PIN_BYTES, dtype=torch.uint8).fill_(1)

    def facts(self) -> Facts:
        """Return torch's versions, the pins, and the instruction set as cc, such as `x86-avx2`."""
        machine = {"x86_64": "x86", "aarch64": "arm", "arm64": "arm"}.get(platform.machine(), platform.machine())
        return Facts(
            cc=f"{machine}-{torch.backends.cpu.get_cpu_capability().lower()}",
            board=None,
            versions={"torch": str(torch.__version__), "torch_git": torch.version.git_version or "unknown"},
            settings={
                "threads": str(torch.get_num_threads()),
                "interop_threads": str(torch.get_num_interop_threads()),
                "fp16_bf16_reduction_math": str(torch._C._get_math_sdp_allow_fp16_bf16_reduction()),  # noqa: SLF001
                "allocator_pin_bytes": str(_ALLOCATOR_PIN_BYTES if hasattr(ctypes.CDLL(None), "mallopt") else 0),
            },
        )

    def own_clock(self) -> Clock | None:
        """Return None: the host's clock is the device's."""
        return None

    def prepare(self, case: Case, order: Order, seeds: Seeds, distribution: str) -> Bench:
        """Return the case made ready; PlanError REFUSED where neither takes it, DECLINED for a feature unknown."""
        unknown = [name for name in ("padding", "stats", "sink", "deterministic") if getattr(case, name)]
        unknown += [case.layout] if case.layout in {"thd", "paged"} else []
        unknown += [case.dtype] if case.dtype not in DTYPES else []
        if unknown:
            raise PlanError(Status.DECLINED, f"torch's SDPA has no {unknown[0]}")
        return _TorchBench(case, order, seeds.case, distribution)


class _TorchBench:
    """A case with its tensors; legs differ in the one backend that is allowed while they run."""

    def __init__(self, case: Case, order: Order, seed: int, distribution: str) -> None:
        self._case = case
        tensors, self._kwargs = inputs_of(case, seed, distribution)
        self._qkv, self._inputs = (tensors[0], tensors[1], tensors[2]), tensors
        self._grad_output = draw(
            (case.b, case.h_q, case.s_q, case.d_v), case.dtype, generator_of(seed + 1), distribution
        )
        self._result: tuple[torch.Tensor, ...] = ()
        self._saved: dict[str, torch.Tensor] = {}
        served, times = [], {}
        self.notes: dict[str, int | str] = {}
        for leg, plan in (("backend", FLASH), ("frost", MATH)):
            start = time.perf_counter_ns()
            reason = self._try(plan)
            times[plan.identity] = time.perf_counter_ns() - start
            served += [plan] if reason is None else []
            self.notes |= {f"declined_{leg}": f"{plan.name}: {reason}"} if reason else {}
        if not served:
            raise PlanError(Status.REFUSED, "; ".join(map(str, self.notes.values())))
        library = self._prove(None)
        if library is None:
            raise PlanError(Status.DECLINED, "torch's own pick ran neither FLASH_ATTENTION nor MATH")
        natural = [library, *(plan for plan in served if plan != library)]
        frost = [plan for plan in served if plan == MATH]
        self.plans = leg_plans(order, natural, [plan for plan in served if plan == FLASH], frost)
        self.build_ns = {leg: times[plan.identity] if plan else 0 for leg, plan in self.plans.items()}
        free = {"default"} if order.lookup is not None else {"auto", "default"}
        self._pinned = {leg: None if order.base == "library" and leg in free else self.plans[leg] for leg in LEGS}

    @contextlib.contextmanager
    def armed(self, leg: str, regime: str) -> Iterator[Launch]:  # noqa: ARG002 - torch's CPU launches are all eager
        """Return a context with the leg's backend allowed; default (and auto without an entry) is left to torch."""
        with self._allow(self._pinned[leg]):
            yield self._launcher(leg)

    def granule(self, regime: str) -> int:  # noqa: ARG002 - alike in all
        """Return 1."""
        return 1

    def flush(self) -> None:
        """Write a buffer that no CPU's caches hold."""
        _flush_buffer().add_(1)

    def flush_probe_ns(self, clock: Clock) -> tuple[int, int]:
        """Return the time of a sum over 1 MiB after a flush, and again at once."""
        probe = torch.ones(_PROBE_BYTES // 4)

        def read(_inner: int) -> None:
            probe.sum()

        read(1)
        return clock.sample(read, 1, self.flush).ns, clock.sample(read, 1).ns

    def current_plan(self, leg: str) -> Plan:
        """Return what torch says that it would pick for this leg now."""
        with self._allow(self._pinned[leg]):
            choice = int(torch._fused_sdp_choice(*self._qkv, **self._kwargs))  # noqa: SLF001 - there is no public one
        return next((plan for plan in (FLASH, MATH) if plan.engine == choice), Plan(engine=choice, name="another"))

    def proven_plan(self, leg: str) -> Plan | None:
        """Return the kernel that dispatch saw when the leg was run."""
        return self._prove(self._pinned[leg])

    def outputs(self, leg: str, regime: str) -> Arrays:
        """Return O and the gradients of one run of the leg, from outputs that were NaN before it."""
        self._result = tuple(torch.full((1,), float("nan")) for _ in range(4))
        with self.armed(leg, regime) as launch:
            launch(1)
        names = ("dQ", "dK", "dV") if self._case.op == "sdpa_bwd" else ("O", "dQ", "dK", "dV")
        return {name: out.detach().double().numpy() for name, out in zip(names, self._result, strict=False)}

    def reference(self) -> Arrays | None:
        """Return the float64 result of plain matrix products and softmax, None above the limit or with dropout."""
        case = self._case
        if case.b * case.h_q * case.s_q * case.s_kv > _REFERENCE_LIMIT or case.dropout_pct:
            return None
        extra = self._kwargs["attn_mask"]
        seen = visible_keys(case)
        bias = None
        if extra is not None and extra.dtype == torch.bool:
            seen = extra if seen is None else seen & extra
        elif extra is not None:
            bias = extra.detach().double()
        return float64_result(case, self._qkv, self._grad_output, seen, bias=bias)

    def _allow(self, plan: Plan | None) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if plan is None else sdpa_kernel(_BACKENDS[plan.identity])

    def _launcher(self, leg: str) -> Launch:
        if self._case.op == "sdpa_bwd" and leg not in self._saved:
            self._saved[leg] = self._forward()
        run = self._step(leg)

        def launch(inner: int) -> None:
            for _ in range(inner):
                run()

        return launch

    def _forward(self) -> torch.Tensor:
        out: torch.Tensor = F.scaled_dot_product_attention(*self._qkv, **self._kwargs)
        return out

    def _step(self, leg: str) -> Callable[[], None]:
        inputs, grad_output = self._inputs, self._grad_output

        def forward() -> None:
            self._result = (self._forward(),)

        def both() -> None:
            out = self._forward()
            self._result = (out, *torch.autograd.grad(out, inputs, grad_output))

        def backward() -> None:
            self._result = torch.autograd.grad(self._saved[leg], inputs, grad_output, retain_graph=True)

        return {"sdpa_fwd": forward, "sdpa_fwd_bwd": both, "sdpa_bwd": backward}[self._case.op]

    def _try(self, plan: Plan) -> str | None:
        """Return why torch will not run the case with this engine, None when it ran."""
        with warnings.catch_warnings(record=True) as caught, self._allow(plan):
            warnings.simplefilter("always")
            try:
                self._step_once()
            except RuntimeError as error:
                said = [str(warning.message).split("(Triggered")[0].strip() for warning in caught]
                return " ".join([str(error).splitlines()[0], *said])
        return None

    def _step_once(self) -> None:
        out = self._forward()
        if self._case.op != "sdpa_fwd":
            torch.autograd.grad(out, self._inputs, self._grad_output)

    def _prove(self, plan: Plan | None) -> Plan | None:
        with self._allow(plan), _Recorder() as recorder:
            self._step_once()
        if any("flash_attention_for_cpu" in name for name in recorder.names):
            return FLASH
        return MATH if any("softmax" in name for name in recorder.names) else None


@functools.cache
def _flush_buffer() -> torch.Tensor:
    return torch.zeros(_FLUSH_BYTES, dtype=torch.uint8)


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Keeps the names of the operators that were dispatched."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))
