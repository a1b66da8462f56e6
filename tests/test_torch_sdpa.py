"""PyTorch's two CPU attention engines: which kernel ran, what it computed, and what each declines."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from benches import FakeEngine, make_request, torch_bench, torch_case, torch_engine

from studytool import clock, measure
from studytool.engines.base import PlanError
from studytool.measure import Measured
from studytool.model import LEGS, Case, Status

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

MASKS: dict[str, dict[str, Any]] = {
    "none": {},
    "tl": {"mask": "tl"},
    "br": {"mask": "br", "s_q": 12},
    "window": {"mask": "br", "window": 5, "s_q": 12},
    "tl window": {"mask": "tl", "window": 5},
    "gqa": {"h_kv": 2},
    "gqa tl": {"h_kv": 1, "mask": "tl"},
    "gqa window": {"h_kv": 2, "mask": "br", "window": 3, "b": 2},
}


def _names(bench: Any) -> dict[str, str | None]:
    return {leg: plan and plan.name for leg, plan in bench.plans.items()}


def _run(bench: Any, case: Case) -> Measured:
    request = make_request(case=case, min_sample_ns=1, orders=make_request().orders[:4])
    return measure.run_case(FakeEngine(bench), clock.HostClock(), request)


@contextlib.contextmanager
def _dispatched() -> Iterator[set[str]]:
    """Return a set of the attention kernels that torch dispatches meanwhile, by names of our own."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if "flash_attention_for_cpu" in str(func):
                seen.add("FLASH_ATTENTION backward" if "backward" in str(func) else "FLASH_ATTENTION")
            if "softmax" in str(func):
                seen.add("MATH backward" if "backward" in str(func) else "MATH")
            return func(*args, **(kwargs or {}))

    seen: set[str] = set()
    with Mode():  # type: ignore[no-untyped-call]
        yield seen


@pytest.mark.parametrize("op", ["sdpa_fwd", "sdpa_fwd_bwd", "sdpa_bwd"])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("mask", MASKS)
def test_each_leg_runs_its_kernel_and_is_right(mask: str, dtype: str, op: str) -> None:
    """Backend runs FLASH_ATTENTION and frost MATH, forward and backward; all legs agree with float64."""
    case = torch_case(op=op, dtype=dtype, **MASKS[mask])
    bench = torch_bench(case)
    found = _run(bench, case)
    kinds = {"sdpa_fwd": ["o"], "sdpa_bwd": ["grad"], "sdpa_fwd_bwd": ["o", "grad"]}[op]

    assert (found.status, found.error) == (Status.OK, "")
    assert {f"{a}_{kind}_ppb" for a in ("legs", "float64") for kind in kinds} == found.checks.keys() - {
        "warmup_rounds",
        "steady",
        "trend_ppm",
    }
    for leg, name in _names(bench).items():
        with _dispatched() as seen, bench.armed(leg, "eager-warm") as launch:
            launch(1)
        kernels = {"sdpa_fwd": {name}, "sdpa_bwd": {f"{name} backward"}, "sdpa_fwd_bwd": {name, f"{name} backward"}}
        assert seen == kernels[op]
    assert _names(bench) == {**dict.fromkeys(LEGS, "FLASH_ATTENTION"), "frost": "MATH"}


@pytest.mark.parametrize("op", ["sdpa_fwd", "sdpa_bwd"])
def test_cold_regime_is_timed_as_well(op: str) -> None:
    """A case is timed with its caches flushed too, the same plans and numbers, and the flush is probed."""
    case = torch_case(op=op)
    request = make_request(case=case, regime="eager-cold", min_sample_ns=1, orders=make_request().orders[:4])
    found = measure.run_case(FakeEngine(torch_bench(case)), clock.HostClock(), request)

    assert (found.status, found.error) == (Status.OK, "")
    assert int(found.checks["flush_probe_ppm"]) > 0
    assert {leg: len(record.ns) for leg, record in found.legs.items()} == dict.fromkeys(LEGS, 4)


FLASH_REFUSES: dict[str, dict[str, Any]] = {
    "d_v": {"d_v": 32},
    "dropout": {"dropout_pct": 10},
    "learned": {"op": "sdpa_fwd_bwd", "bias": "learned"},
    "learned br": {"op": "sdpa_fwd_bwd", "bias": "learned", "mask": "br", "s_q": 12},
    "broadcast": {"h_kv": 1, "layout": "broadcast"},
    "strided": {"layout": "strided"},
}


@pytest.mark.parametrize("lookup", [None, True, False])
@pytest.mark.parametrize("name", FLASH_REFUSES)
def test_what_flash_refuses_runs_math(name: str, lookup: bool | None) -> None:
    """Where FLASH_ATTENTION takes no such case there is no backend leg, and torch's own pick is MATH."""
    case = torch_case(**FLASH_REFUSES[name])
    bench = torch_bench(case, lookup)
    with _dispatched() as seen, bench.armed("default", "eager-warm") as launch:
        launch(1)

    assert _names(bench) == {"backend": None, "frost": "MATH", "auto": "MATH", "default": "MATH"}
    assert {kernel.removesuffix(" backward") for kernel in seen} == {"MATH"}
    assert str(bench.notes["declined_backend"]).startswith("FLASH_ATTENTION: No available kernel")
    assert _run(bench, case).status is Status.NO_BACKEND
    assert measure.run_case(torch_engine(), clock.HostClock(), make_request(case=case, orders=())).status is Status.OK


@pytest.mark.parametrize("name", [name for name in FLASH_REFUSES if name != "dropout"])
def test_math_alone_is_right(name: str) -> None:
    """What only MATH runs agrees with float64 as well."""
    case = torch_case(dtype="f32", **FLASH_REFUSES[name])
    bench = torch_bench(case)
    found, reference = bench.outputs("default", "eager-warm"), bench.reference()
    errors = {output: measure.relative_error_ppb(found, reference, output) for output in reference}

    assert errors.keys() == ({"O"} if case.op == "sdpa_fwd" else {"O", "dQ", "dK", "dV"})
    assert all(error <= measure.TOLERANCE_PPB["f32"][output != "O"] for output, error in errors.items())


def test_mask_and_flag_are_refused_by_math() -> None:
    """A boolean mask beside a top-left causal flag is run by FLASH_ATTENTION alone, and MATH says why not."""
    case = torch_case(mask="tl", bias="bool")
    bench = torch_bench(case, lookup=True)
    found = _run(bench, case)

    assert _names(bench) == {**dict.fromkeys(LEGS, "FLASH_ATTENTION"), "frost": None}
    assert str(bench.notes["declined_frost"]).startswith("MATH: ")
    assert found.status is Status.NO_FROST
    assert (
        measure.relative_error_ppb(bench.outputs("auto", "eager-warm"), bench.reference(), "O")
        <= measure.TOLERANCE_PPB["bf16"][0]
    )


def test_case_that_neither_takes_is_refused_with_both_reasons() -> None:
    """A case that torch will not run at all is refused, in the words of both engines."""
    with pytest.raises(PlanError, match=r"\AFLASH_ATTENTION: [^\n]+; MATH: [^\n]+\Z") as caught:
        torch_bench(torch_case(h_kv=2, layout="broadcast"))

    assert caught.value.status is Status.REFUSED


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"layout": "thd"}, "thd"),
        ({"layout": "paged"}, "paged"),
        ({"padding": 1}, "padding"),
        ({"sink": 1}, "sink"),
        ({"stats": 1}, "stats"),
        ({"deterministic": 1}, "deterministic"),
        ({"dtype": "fp8"}, "fp8"),
    ],
)
def test_what_torch_does_not_have_is_declined(changes: dict[str, Any], name: str) -> None:
    """A feature that torch's attention does not have is declined by its name, never left out in silence."""
    with pytest.raises(PlanError, match=rf"\Atorch's SDPA has no {name}\Z") as caught:
        torch_bench(torch_case(**changes))

    assert caught.value.status is Status.DECLINED


@pytest.mark.parametrize("base", ["library", "backend"])
@pytest.mark.parametrize(("lookup", "auto"), [(None, "FLASH_ATTENTION"), (True, "MATH"), (False, "FLASH_ATTENTION")])
def test_entry_lifts_math(lookup: bool | None, auto: str, base: str) -> None:
    """With an entry that leads, auto runs MATH; without one or with one that trails, what torch picks."""
    case = torch_case()
    bench = torch_bench(case, lookup, base)
    with _dispatched() as seen, bench.armed("auto", "eager-warm") as launch:
        launch(1)

    assert seen == {auto}
    assert _names(bench) == {"backend": "FLASH_ATTENTION", "frost": "MATH", "auto": auto, "default": "FLASH_ATTENTION"}
    assert _run(bench, case).status is Status.OK


def test_default_is_left_to_torch() -> None:
    """Default is what torch picks by itself: where FLASH_ATTENTION is switched off, it is MATH."""
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        free = _names(torch_bench(torch_case()))
    finally:
        torch.backends.cuda.enable_flash_sdp(True)

    assert free["default"] == free["auto"] == "MATH"


def test_switch_thrown_later_is_noticed() -> None:
    """Where torch's own pick changes after the plans were named, the case is declined."""
    case = torch_case()
    bench = torch_bench(case)
    torch.backends.cuda.enable_flash_sdp(False)
    try:
        found = _run(bench, case)
        now = bench.current_plan("default")
    finally:
        torch.backends.cuda.enable_flash_sdp(True)

    assert (found.status, now.name) == (Status.DECLINED, "MATH")
    assert found.error == "leg auto is named FLASH_ATTENTION and ran MATH"


def test_silent_fallback_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where choosing one engine silently runs another, the proof says so and the case is not timed."""
    from studytool.engines import torch_sdpa

    monkeypatch.setattr(torch_sdpa, "sdpa_kernel", lambda _backend: contextlib.nullcontext())
    found = measure.run_case(torch_engine(), clock.HostClock(), make_request(case=torch_case()))

    assert (found.status, found.order) == (Status.DECLINED, ())
    assert found.error == "leg frost is named MATH and ran FLASH_ATTENTION"


@pytest.mark.parametrize("choice", [-1, 2, 3])
def test_unknown_choice_is_no_known_plan(monkeypatch: pytest.MonkeyPatch, choice: int) -> None:
    """Where torch would pick an engine that is neither of the two, no leg is taken to run one of them."""
    case = torch_case()
    bench = torch_bench(case)
    monkeypatch.setattr(torch, "_fused_sdp_choice", lambda *_, **__: choice)
    found = _run(bench, case)

    assert {bench.current_plan(leg).engine for leg in LEGS} == {choice}
    assert found.status is Status.DECLINED


def test_leg_that_computes_nothing_is_wrong() -> None:
    """A launch that leaves the outputs as they were is a wrong result, since they were NaN."""
    case = torch_case(op="sdpa_fwd_bwd")
    bench = torch_bench(case)
    bench.outputs("frost", "eager-warm")
    bench._step = lambda _leg: lambda: None

    assert _run(bench, case).status is Status.WRONG_RESULT


def test_process_is_pinned() -> None:
    """One thread, no 16-bit reduction in MATH, and what is pinned stands in the facts."""
    facts = torch_engine().facts()

    assert (torch.get_num_threads(), torch.get_num_interop_threads()) == (1, 1)
    assert {name: facts.settings[name] for name in ("threads", "interop_threads", "fp16_bf16_reduction_math")} == {
        "threads": "1",
        "interop_threads": "1",
        "fp16_bf16_reduction_math": "False",
    }
    assert facts.versions["torch"] == torch.__version__
    assert facts.cc.endswith(f"-{torch.backends.cpu.get_cpu_capability().lower()}")
    assert torch_engine().own_clock() is None


def test_engine_can_be_opened_twice() -> None:
    """A second engine in one process pins what is pinned already."""
    from studytool.engines import open_engine
    from studytool.engines.base import Terms

    first = torch_engine().facts()

    assert open_engine(Terms(engine="torch_sdpa", row="", base="library", simulated={})).facts() == first
