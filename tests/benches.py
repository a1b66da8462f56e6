"""Fakes for what is timed: a clock and a bench that follow a script, and a worker that is not a process."""

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from factories import STUDY_YAML, make_case

from studytool import attempts, fingerprint, freeze, ledger, lines, measure, opening, schedule
from studytool.attempts import Attempt, Job
from studytool.digest import sha256
from studytool.engine_terms import SIMULATED_NUMBERS
from studytool.engines.base import Arrays, Bench, Clock, Engine, Facts, Launch, Order, PlanError, Sample, Seeds, Terms
from studytool.engines.simulated import BACKEND, FROST, Simulated
from studytool.layout import StudyPlace
from studytool.measure import Measured, Request
from studytool.model import LEGS, Case, Fingerprint, Plan, Record, Split
from studytool.pipes import Failed
from studytool.timing import time_split

NUMBERS = np.arange(1.0, 9.0)
SIMULATED: dict[str, int | str] = {
    "backend_ns": "s_kv * 1000",
    "frost_ns": "s_kv * 500",
    **SIMULATED_NUMBERS,
}
"""A device without noise on which the frost leg takes half the time."""


class FakeClock:
    """A clock that benches advance; a sample also says how many were taken before it."""

    def __init__(self, tick_ns: int = 1) -> None:
        self.tick_ns, self.at_ns, self.taken = tick_ns, 0, 0

    def sample(self, launch: Launch, inner: int, before: Callable[[], None] | None = None) -> Sample:
        """Return the time by which the launch advanced this clock."""
        if before is not None:
            before()
        begin = self.at_ns
        launch(inner)
        self.taken += 1
        return Sample(self.at_ns - begin, None, {"call": self.taken})

    def settle(self) -> None:
        """Do nothing."""

    def now_ns(self) -> int:
        """Return the time to which benches advanced this clock."""
        return self.at_ns

    def mhz(self) -> tuple[int, ...]:
        """Return a clock rate that tells how many samples were taken before it was read."""
        return (self.taken,)

    def state(self) -> dict[str, int]:
        """Return how many samples were taken before this."""
        return {"taken": self.taken}


class FakeBench:
    """A bench whose launches cost what `cost(leg, inner, number of this launch from 0)` says."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.plans: dict[str, Plan | None] = {"backend": BACKEND, "frost": FROST, "auto": BACKEND, "default": BACKEND}
        self.build_ns = {leg: 10 + index for index, leg in enumerate(LEGS)}
        self.cost: Callable[[str, int, int], int] = lambda _leg, inner, _number: 1000 * inner
        self.notes: dict[str, int | str] = {}
        self.launched: list[tuple[str, int]] = []
        self.proofs: list[str] = []
        self.current: Callable[[str], Plan | None] = self.plans.__getitem__
        self.proven: Callable[[str], Plan | None] = self.plans.__getitem__
        self.results: dict[str, Arrays] = {leg: {"O": NUMBERS.copy()} for leg in LEGS}
        self.truth: Arrays | None = {"O": NUMBERS.copy()}
        self.probe_ns = (2000, 1000)
        self.events: list[str] = []

    @contextlib.contextmanager
    def armed(self, leg: str, regime: str) -> Iterator[Launch]:
        """Return a context with a launch that is noted and advances the clock."""

        def launch(inner: int) -> None:
            self.clock.at_ns += self.cost(leg, inner, len(self.launched))
            self.launched.append((leg, inner))
            self.events.append(f"{leg} {inner}")

        self.events.append(f"{regime}: {leg}")
        yield launch

    def granule(self, regime: str) -> int:  # noqa: ARG002
        """Return 1."""
        return 1

    def flush(self) -> None:
        """Note it, and let as much time pass as no launch takes."""
        self.clock.at_ns += 7_000_000
        self.events.append("flush")

    def flush_probe_ns(self, clock: Clock) -> tuple[int, int]:
        """Return `probe_ns`; it is noted, and with which clock it was asked for."""
        self.events.append("probe" if clock is self.clock else "probe by another clock")
        return self.probe_ns

    def current_plan(self, leg: str) -> Plan:
        """Return what `current` says."""
        plan = self.current(leg)
        assert plan is not None
        return plan

    def proven_plan(self, leg: str) -> Plan | None:
        """Return what `proven` says."""
        self.proofs.append(leg)
        return self.proven(leg)

    def outputs(self, leg: str, regime: str) -> Arrays:
        """Return the leg's arrays, whose regime is noted."""
        self.events.append(f"{regime}: outputs of {leg}")
        return self.results[leg]

    def reference(self) -> Arrays | None:
        """Return the truth."""
        return self.truth


class FakeEngine:
    """An engine that has one bench, or an error in place of it, and keeps what it was asked for."""

    def __init__(self, bench: Bench | PlanError) -> None:
        self.bench, self.asked, self.seeds = bench, [Order("", None)], [Seeds(0, 0)]

    def facts(self) -> Facts:
        """Return plain facts."""
        return Facts(cc="fake-1", board="fake", versions={"fake": "1"}, settings={"threads": "1"})

    def own_clock(self) -> Clock | None:
        """Return None."""
        return None

    def prepare(self, case: Case, order: Order, seeds: Seeds, distribution: str) -> Bench:  # noqa: ARG002
        """Return the bench, or raise the error."""
        self.asked.append(order)
        self.seeds.append(seeds)
        if isinstance(self.bench, PlanError):
            raise self.bench
        return self.bench


def make_request(**changes: Any) -> Request:
    """Return the request to time a small case in eight blocks, with these changed."""
    wanted: dict[str, Any] = {
        "case": make_case(),
        "regime": "eager-warm",
        "orders": schedule.block_orders("study", "case", 1, "eager-warm", 8),
        "base": "library",
        "lookup": None,
        "seed": 7,
        "process_seed": 3,
        "distribution": "normal",
        "min_sample_ns": 150_000,
    }
    return Request(**{**wanted, **changes})


class InlineProcess:
    """Stands in for WorkerProcess: a fresh simulated device in this process at each start."""

    changes: ClassVar[dict[str, Any]] = {}
    starts: ClassVar[list[str]] = []

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._engine: Simulated | None = None
        self.startup_ns = 0

    def fingerprint(self) -> Fingerprint:
        """Return this process's fingerprint with `changes`."""
        if self._engine is None:
            self.start()
        engine = Simulated(self._terms.simulated)
        return msgspec.structs.replace(fingerprint.take(engine, engine.own_clock()), **self.changes)

    def start(self) -> None:
        """Make a fresh device."""
        self.starts.append(self._terms.engine)
        self._engine = Simulated(self._terms.simulated)

    def ask(self, request: Request, timeout_s: int) -> Measured | Failed:  # noqa: ARG002
        """Return what the device measures, and how long that took on its clock."""
        assert self._engine is not None
        timer = self._engine.own_clock()
        begin = timer.now_ns()
        measured = measure.run_case(self._engine, timer, request)
        return msgspec.structs.replace(measured, took_ns=timer.now_ns() - begin)

    def stop(self) -> None:
        """Forget the device."""
        self._engine = None


def inline(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let `timing` measure in this process, on a machine whose fingerprint has these fields changed."""
    monkeypatch.setattr(InlineProcess, "changes", changes)
    monkeypatch.setattr(InlineProcess, "starts", [])
    monkeypatch.setattr("studytool.timing.WorkerProcess", InlineProcess)


def make_job(root: Path, split: Split = Split.TRAIN, text: str = STUDY_YAML, dtype: str = "bf16") -> Job:
    """Return a job of a study that is written and frozen below root, unless it stands there already."""
    place = StudyPlace(root, "tiny")
    if not place.study_yaml.exists():
        place.folder.mkdir(parents=True)
        place.study_yaml.write_text(text)
        freeze.freeze(opening.open_study(place), place, [], "")
    return opening.job_of(opening.open_study(place), place, dtype, split)


def run(job: Job, reason: str = "", stop_after: int = 0) -> Attempt:
    """Return the attempt after timing; KeyboardInterrupt after some lines, as if somebody had stopped it."""

    def progress(step: Any) -> None:
        if step.done == stop_after:
            raise KeyboardInterrupt

    return time_split(job, lambda: "2024-01-01T00:00:00+00:00", progress, reason)


def stopped(job: Job, after: int) -> None:
    """Time a job until it is stopped after some lines."""
    with contextlib.suppress(KeyboardInterrupt):
        run(job, stop_after=after)
        pytest.fail("it was not stopped")


def patch_worker(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    """Let every worker process run this source before it does anything else."""
    (folder / "sitecustomize.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(folder))


def as_engine(engine: Engine) -> Engine:
    """Return the engine; what is passed here is checked to be one."""
    return engine


def records(job: Job) -> list[Record]:
    """Return all records of a job, in the order of attempts and files."""
    return [record for attempt in job.attempts() for file in attempt.files for record in file.records]


def cells(job: Job) -> Counter[attempts.Cell]:
    """Return how often each line of a job is there."""
    return Counter((record.case, record.repeat, record.regime) for record in records(job))


def planned(job: Job) -> Counter[attempts.Cell]:
    """Return each planned line of a job once."""
    return Counter(attempts.planned_cells(job.study, job.split, job.cases))


def sealed(job: Job) -> dict[str, str]:
    """Return the hash of each records file that the ledger knows, by name."""
    events = ledger.read(job.results.ledger)
    return {str(e.body["file"]): str(e.body["sha256"]) for e in events if e.event == "session"}


def on_disk(job: Job) -> dict[str, str]:
    """Return the hash of each records file that there is, by name."""
    return {path.name: sha256(path.read_bytes()) for path in job.results.records.glob("*.jsonl")}


def write_table(job: Job, rule: str = "") -> None:
    """Write the study's table: empty, or with one entry for its bf16 cases without a mask."""
    text = lines.Text({}, {})
    if rule:
        key = ("open_engine", "sim-1", "sdpa_fwd", "bf16", "none")
        line = lines.render(lines.Line(key, rule, "", 0, {}, "evidence"))
        text = lines.Text({"open_engine": ("op", "dtype", "mask")}, {key: line})
    job.place.table.write_text(lines.table_text(text))


@functools.cache
def torch_engine() -> Any:
    """Return torch's engine, which pins this process."""
    from studytool.engines.torch_sdpa import TorchSdpa

    return TorchSdpa()


def torch_case(**changes: Any) -> Case:
    """Return a case that torch runs in no time, with these fields changed."""
    sizes = {"s_q": 24, "s_kv": 24, "d_qk": 16, "d_v": 16}
    return make_case(**{**sizes, **changes})


def torch_bench(case: Case, lookup: bool | None = None, base: str = "library", **changes: Any) -> Any:
    """Return the case made ready by torch's engine."""
    asked = {"seeds": Seeds(changes.pop("seed", 5), 1), "distribution": "normal", **changes}
    return torch_engine().prepare(case, Order(base, lookup), **asked)
