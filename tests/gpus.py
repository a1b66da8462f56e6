"""The cuDNN engine on its fake device, as the tests of its benches open it; skipped where a library is missing."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from benches import make_request
from factories import make_case

from studytool import measure
from studytool.engines.base import Launch, Order, Sample, Seeds, Terms
from studytool.measure import Measured
from studytool.model import REGIMES, Case

torch = pytest.importorskip("torch")
cudnn = pytest.importorskip("cudnn")
fakecudnn = pytest.importorskip("fakecudnn")
bench_module = pytest.importorskip("studytool.engines.cudnn.bench")
plans = pytest.importorskip("studytool.engines.cudnn.plans")

FWD, BWD = 20508, 20601
REPLAY, COLD = REGIMES[2:], [regime for regime in REGIMES if regime.endswith("cold")]
OPS = {"sdpa_fwd": "sdpa_fwd_prefill_sm80", "sdpa_bwd": "sdpa_bwd_sm80"}


class Fake(NamedTuple):
    """The engine on its fake device, and what befalls its graphs."""

    engine: Any
    device: Any
    fates: Any

    def bench(self, case: Case, lookup: bool | None = None, base: str = "backend", seed: int = 7) -> Any:
        """Return a case made ready."""
        return self.engine.prepare(case, Order(base, lookup), Seeds(seed, 3), "normal")

    def run(self, case: Case, regime: str = "eager-warm", **changes: Any) -> Measured:
        """Return what becomes of a case that is timed in four blocks of short samples."""
        wanted = {"orders": make_request().orders[:4], "base": "backend", "min_sample_ns": 1, **changes}
        return measure.run_case(self.engine, self.engine.own_clock(), make_request(case=case, regime=regime, **wanted))


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Fake]]:
    """Return what opens the engine for a row, with a small flush; torch's small products wait for no other threads."""
    from studytool.engines.cudnn.engine import Cudnn

    monkeypatch.setenv(plans.FLAG, "1")
    monkeypatch.setattr(bench_module, "LEAST_FLUSH_BYTES", 1 << 12)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)

    def open_row(row: str, cc: tuple[int, int] = (8, 0)) -> Fake:
        device, fates = fakecudnn.install(monkeypatch.setattr, cc)
        device.l2_bytes = 1 << 12
        return Fake(Cudnn(Terms(engine="cudnn", row=row, base="backend", simulated={}), device), device, fates)

    yield open_row
    torch.set_num_threads(threads)


@pytest.fixture
def forward(opened: Callable[..., Fake]) -> Fake:
    """Return the engine with the forward row of cc 8.0."""
    return opened("sdpa_fwd_prefill_sm80")


@pytest.fixture
def backward(opened: Callable[..., Fake]) -> Fake:
    """Return the engine with the backward row of cc 8.0."""
    return opened("sdpa_bwd_sm80")


class ScriptedClock:
    """A clock that says what it is told to, and notes what it is asked to call before a launch."""

    def __init__(self, times_ns: list[int]) -> None:
        self.times_ns, self.before = iter(times_ns), list[Callable[[], None] | None]()

    def sample(self, launch: Launch, inner: int, before: Callable[[], None] | None = None) -> Sample:
        """Return the next time, after a launch."""
        self.before.append(before)
        if before is not None:
            before()
        launch(inner)
        return Sample(next(self.times_ns), None, {})


def small(**changes: Any) -> Case:
    """Return a case that plain attention runs in no time, with these fields changed."""
    return make_case(**{"h_q": 2, "h_kv": 2, "s_q": 24, "s_kv": 24, **changes})


def noted(patch: pytest.MonkeyPatch, owner: Any, name: str, note: Callable[..., None]) -> None:
    """Let a function be noted before it is called."""
    function = getattr(owner, name)

    def noting(*values: Any, **words: Any) -> Any:
        note(*values, **words)
        return function(*values, **words)

    patch.setattr(owner, name, noting)


def engines(found: Any) -> dict[str, int | None]:
    """Return the engine id of each leg of a bench or of what was measured."""
    named = found.plans if hasattr(found, "plans") else {leg: record.plan for leg, record in found.legs.items()}
    return {leg: plan and plan.engine for leg, plan in named.items()}
