"""The library against a second, plain implementation: on random studies both say the same of the same records."""

import ast
import contextlib
import functools
import json
import math
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import finished
import msgspec
import numpy as np
import plain
import pytest
import scripted
from benches import InlineProcess, inline, run
from factories import ORDERS
from scripted import BACKEND, FROST, Timed

from studytool import editing, fit, freeze, jsonl, looks, noise, opening, pipeline, replay, results, stats
from studytool.attempts import Job
from studytool.engine_terms import SIMULATED_FAULTS
from studytool.engines import simulated
from studytool.engines.base import Order, leg_plans
from studytool.engines.simulated import OTHER
from studytool.layout import StudyPlace
from studytool.measure import Measured, Request
from studytool.metrics import METRICS
from studytool.model import Plan, Split, Status, Study
from studytool.pipes import Failed
from studytool.runtime import key

STUDIES = range(100)
ON_TILE = (128, 256, 384, 512, 640, 1024, 1280, 1536, 2048)
OFF_TILE = (64, 80, 96, 144, 192, 250, 320, 700, 1000)
MARGINS = (0, 50_000, 200_000)
Json = dict[str, Any]
KILLERS = {"crashed": "ended by SIGKILL", "timeout": "no answer in 1 s"}
"""The faults that a process which is none cannot have, and what is said of one that had it."""


class Mishaps(NamedTuple):
    """What else befalls a study: chances, per case, repeat and regime, that a line is not what the device measured."""

    fails: float = 0.0
    other_plan: float = 0.0
    interrupted: float = 0.0
    trend: float = 0.0
    ramp: float = 0.0
    short: float = 0.0
    row_leads: bool = False
    stopped_after: int = 0
    again: int = 0


class Drawn(NamedTuple):
    """A study that was drawn: its text, how many repeats it has in place of the declared ones, and its mishaps."""

    text: str
    repeats: int
    mishaps: Mishaps


def _gate(draw: random.Random) -> list[str]:
    """Return up to five conditions, on any of the metrics."""
    small = {"band", "spread_median", "spread_p90", "spread_max", "closed_gap"}
    limits = {name: f"{draw.randint(1, 30) / 1000:g}" for name in small}
    limits |= {name: str(draw.choice([0, 0, 1, 4])) for name, unit in METRICS.items() if unit == "count"}
    chosen = draw.sample(sorted(METRICS), draw.randint(1, 5))
    ratio = f"{draw.randint(990, 1200) / 1000:g}"
    return [f"{name} {draw.choice(['<=', '<=', '>=', '=='])} {limits.get(name, ratio)}" for name in chosen]


COSTS = (
    ("s_kv * 1000", "s_kv * 500 + 64000"),
    ("s_kv * 1000", "s_kv * 400 + 200000"),
    ("s_kv * 1000", "s_kv * 850"),
    ("s_kv * 1000", "s_kv * 600 + s_kv % 128 * 9000"),
    ("s_kv * 1000", "s_kv * 600 + s_kv % 128 * 1260"),
    ("s_kv * 1000", "s_kv * 600 + s_kv % 128 * 2100"),
    ("s_kv * 700 + d_qk * 900", "s_kv * 400 + d_qk * 2500"),
    ("90000 + s_kv * 333", "20000 + s_kv * 450"),
    ("160000 + s_kv * 333", "60000 + s_kv * 450"),
    ("s_kv * 900", "s_kv * 903"),
    ("s_kv * 700", "s_kv * 900"),
    ("s_kv * 800", "40000 + s_kv * 850"),
)
"""What a launch of both sides takes: frost leads from a size on, always, on the tile, up to a size, or nowhere."""

DISTURBANCES: dict[str, list[int]] = {
    "drift_ppm": [3000, 50_000],
    "drift_ms": [3, 100],
    "trend_ppm_per_s": [20_000, 2_000_000],
    "warmup_ppm": [100_000, 1_000_000],
    "throttle_ppm": [200_000],
    "throttle_every_ms": [5],
    "throttle_ms": [2, 30],
    "power_ppm": [20_000],
    "carry_ppm": [20_000, 60_000],
    "host_ns": [700, 400_000],
    "miss_ns_per_mib": [100_000],
    "jit_ms": [2],
}


def _device(draw: random.Random, sizes: list[int], *, calm: bool, exchanged: bool) -> dict[str, int | str]:
    """Return the costs of both sides, what disturbs the device, and, where it is not calm, faults, each of one size."""
    backend, frost = draw.choice(COSTS)[:: -1 if exchanged else 1]
    found: dict[str, int | str] = {"backend_ns": backend, "frost_ns": frost, "seed": draw.randint(0, 10**6)}
    found["tick_ns"] = draw.choice([1, 1, 1, 32, 500, 1000])
    if calm:
        noise, process = draw.choice([0, 100, 300, 2000]), draw.choice([300, 1000, 20_000])
        return found | {"tick_ns": 1, "noise_ppm": noise, "process_ppm": process}
    if draw.random() < 0.9:
        found["noise_ppm"] = draw.choice([100, 300, 300, 2000, 2000, 2000, 30_000])
        found["process_ppm"] = draw.choice([0, 300, 300, 1000, 10_000])
    found |= {name: draw.choice(values) for name, values in DISTURBANCES.items() if draw.random() < 0.1}
    faults = draw.sample(SIMULATED_FAULTS, draw.choice([0, 0, 0, 1, 2]))
    return found | {name: f"s_kv == {draw.choice(sizes)}" for name in faults}


def _mishaps(draw: random.Random, often: float, *, row_leads: bool) -> Mishaps:
    chances = {"fails": 0.05, "other_plan": 0.05, "interrupted": 0.3, "trend": 1.0, "ramp": 1.0, "short": 0.3}
    return Mishaps(
        **{name: chance for name, chance in chances.items() if draw.random() < often},
        row_leads=row_leads,
        stopped_after=draw.choice([0, 0, 0, 1, 5]),
        again=draw.choice([0, 0, 0, 0, 2, 99]),
    )


def _splits(draw: random.Random, sizes: list[int], others: list[int]) -> Json:
    """Return two to eight train cases and one to four of the hold-out; mostly some of routing."""
    dims = draw.choice([[64], [64], [32, 64]] if len(sizes) <= 4 else [[64]])
    same: Json = {"h_q": 4, **draw.choice([{}, {}, {"mask": "br", "window": 100}])}
    holdout = same | {"s_kv": others, "d_qk": draw.choice([dims, [64]]), "b": draw.choice([1, 1, 1, 2])}
    if len(holdout["d_qk"]) == 2:
        holdout["s_kv"] = others[:2]
    found: Json = {
        "train": {"grids": [same | {"s_kv": sizes, "d_qk": dims}]},
        "holdout": {"cases": [holdout]},
    }
    if draw.random() < 0.6:
        found["routing"] = {"cases": [{"s_kv": draw.sample(sizes, 2), "h_q": 4, "d_qk": 64, "bias": "learned"}]}
    return found


def _protocol(draw: random.Random, repeats: int) -> Json:
    regimes = ["eager-warm", "eager-cold", "replay-warm", "replay-cold"]
    found: Json = {
        "repeats": max(3, repeats),
        "blocks": draw.choice([4, 8] if repeats > 6 else [4, 8, 12, 16]),
        "regimes": draw.sample(regimes, draw.choice([1, 1, 2])),
        "min_sample_ns": draw.choice([20_000, 60_000, 150_000]),
    }
    return found | ({"stop": {"half_width": draw.choice([0.001, 0.01, 0.05])}} if repeats > 6 else {})


def _decide(draw: random.Random) -> Json:
    found: Json = {
        "margin": draw.choice([0, 0.02, 0.02, 0.05, 0.123456]),
        "noise_limit": draw.choice([0.025, 0.025, 0.025, 0.1, 0.003]),
        "min_support": draw.choice([1, 2, 3, 3, 4]),
        "scope": draw.choice(["box", "class", "class"]),
    }
    if draw.random() < 0.3:
        found["max_regret"] = draw.choice([1, 1.01, 1.2])
    ways = draw.choice([["from s_kv", "upto s_kv"], ["upto d_qk*s_q", "from b*s_kv"]])
    count = draw.choice([0, 1, 2, 2])
    return found | ({"thresholds": draw.sample(ways, count)} if count else {})


def drawn(seed: int) -> Drawn:
    """Return the study of a seed; one or two repeats, which cannot be declared, stand in place of three."""
    draw = random.Random(seed)
    calm, row_leads = seed % 2 == 0, seed % 3 == 0  # of the calm ones enough get entries
    one, other = draw.choice([(ON_TILE, OFF_TILE), (ON_TILE[::2] + OFF_TILE[::2], ON_TILE[1::2] + OFF_TILE[1::2])])
    sizes, others = draw.sample(one, draw.randint(5 if calm else 2, 7)), draw.sample(other, draw.randint(1, 4))
    repeats = draw.choice([3, 3, 4, 5, 6] if calm else [1, 2, 3, 4, 5, draw.choice([8, 9, 10])])
    study = {
        "schema": 1,
        "name": "drawn",
        "question": "Do both say the same?",
        "engine": "simulated",
        "row": "open_engine",
        "base": draw.choice(["library", "backend"]),
        "device": {"cc": "host", "board": "any"},
        "op": draw.choice(["sdpa_fwd", "sdpa_bwd"]),
        "dtypes": [draw.choice(["bf16", "f16"])],
        "class_key": draw.choice([["dtype"], ["dtype"], ["dtype", "d_qk"], ["op", "dtype", "mask", "tile"]]),
        **draw.choice([{}, {}, {}, {}, {"guards": ["square"]}, {"guards": "window_binds"}]),
        "splits": _splits(draw, sizes, others),
        "protocol": _protocol(draw, repeats),
        "decide": _decide(draw),
        "gate": _gate(draw),
        "simulated": _device(draw, sizes + others, calm=calm, exchanged=row_leads),
    }
    return Drawn(json.dumps(study, indent=1), repeats, _mishaps(draw, 0.0 if calm else 0.18, row_leads=row_leads))


class DrawnProcess(InlineProcess):
    """A worker that is not a process, with the mishaps of the study at hand."""

    mishaps: ClassVar[Mishaps] = Mishaps()
    shift: ClassVar[int] = 0

    def ask(self, request: Request, timeout_s: int) -> Measured | Failed:
        """Return what the device measures, or what became of it."""
        assert self._engine is not None
        request = msgspec.structs.replace(request, seed=request.seed + self.shift)
        fields = {**key.NEUTRAL, **request.case.fields}
        for name, said in KILLERS.items():
            if self._engine._holds(name, fields):
                return Failed(Status(name), said)
        try:
            found = super().ask(request, timeout_s)
        except (RuntimeError, MemoryError) as error:
            return Failed(Status.ERROR, f"{type(error).__name__}: {error}")
        assert isinstance(found, Measured)
        return self._befallen(found, random.Random(f"{request.seed}/{request.regime}")) if found.order else found

    def _befallen(self, found: Measured, draw: random.Random) -> Measured | Failed:
        odds = dict(zip(Mishaps._fields, self.mishaps, strict=True))
        befalls = {name: draw.random() < chance for name, chance in odds.items()}
        if befalls["fails"]:
            return Failed(draw.choice([Status.CRASHED, Status.TIMEOUT, Status.ERROR]), "it was not its day")
        legs, checks = dict(found.legs), dict(found.checks)
        if befalls["other_plan"]:
            leg = draw.choice(sorted(legs))
            legs[leg] = msgspec.structs.replace(legs[leg], plan=OTHER)
        if befalls["interrupted"]:
            leg, place = draw.choice(sorted(legs)), draw.randrange(len(found.order))
            ns = [*legs[leg].ns]
            ns[place] *= draw.randint(2, 9)
            legs[leg] = msgspec.structs.replace(legs[leg], ns=tuple(ns))
        if befalls["ramp"]:
            ns = [round(value * (1 + 0.1 * number / len(found.order))) for number, value in enumerate(legs["frost"].ns)]
            legs["frost"] = msgspec.structs.replace(legs["frost"], ns=tuple(ns))
        if befalls["short"]:
            ns = [max(1, value // 4) for value in legs["auto"].ns]
            legs["auto"] = msgspec.structs.replace(legs["auto"], ns=tuple(ns))
        if befalls["trend"]:
            checks |= {"trend_ppm": draw.randint(120_000, 200_000), "steady": 0}
        return msgspec.structs.replace(found, legs=legs, checks=checks)


def _row_first(order: Order, _library: object, backend: list[Plan], frost: list[Plan]) -> dict[str, Plan | None]:
    """Return the plans of the legs where the library itself lists the row first."""
    return leg_plans(order, [*frost, *backend], backend, frost)


class Made(NamedTuple):
    """A study that went its way: where it is, and what the plain implementation is told of it."""

    study: Study
    place: StudyPlace
    declared: plain.Settings

    @property
    def dtype(self) -> str:
        """Return its first dtype."""
        return self.study.dtypes[0]

    def job(self, split: Split) -> Job:
        """Return the job of a split."""
        return opening.job_of(self.study, self.place, self.dtype, split)

    def plainly(self) -> tuple[Json, Json]:
        """Return what study.json and score.json should say."""
        where = self.place.root, self.place.name, self.dtype, self.declared
        summary = plain.study_json(*where)
        return summary, plain.score_json(*where, summary)

    def told(self) -> tuple[Json, Json]:
        """Return what study.json and score.json say."""
        own = self.place.results(self.dtype)
        return json.loads(own.study_json.read_bytes()), json.loads(own.score.read_bytes())


def make(one: Drawn, root: Path) -> Made:
    """Return a study after it was timed and scored."""
    place = finished.declare(root, one.text, "drawn")
    study = opening.open_study(place)
    study = msgspec.structs.replace(study, protocol=msgspec.structs.replace(study.protocol, repeats=one.repeats))
    freeze.freeze(study, place, [], "")
    made = Made(study, place, plain.settings(one.text)._replace(repeats=one.repeats))
    with pytest.MonkeyPatch.context() as patch:
        inline(patch)
        patch.setattr(os, "fsync", lambda _handle: None)  # nobody looks at these files after a power cut
        patch.setattr("studytool.timing.WorkerProcess", DrawnProcess)
        patch.setattr(DrawnProcess, "mishaps", one.mishaps)
        if one.mishaps.row_leads:
            patch.setattr(simulated, "leg_plans", _row_first)
        _go(made, one.mishaps, patch)
    return made


def _go(made: Made, mishaps: Mishaps, patch: pytest.MonkeyPatch) -> None:
    hooks = finished.hooks()
    train, holdout, routing = map(made.job, Split)
    if mishaps.stopped_after:
        _stopped(train, mishaps.stopped_after)
    pipeline.time(train, hooks)
    pipeline.generate(train)
    editing.apply_lines(train.results.lines, made.place.table, hooks.now)
    if mishaps.again:
        _stopped(holdout, mishaps.again)
        patch.setattr(DrawnProcess, "shift", 1)
        pipeline.time(holdout, hooks, "the first was stopped")
    pipeline.time(holdout, hooks)
    pipeline.time(routing, hooks)
    pipeline.score(holdout, hooks.now)


def _stopped(job: Job, after: int) -> None:
    """Time a job until it is stopped after some lines, or ends before."""
    with contextlib.suppress(KeyboardInterrupt):
        run(job, stop_after=after)


class Fitted(NamedTuple):
    """What the library decides of each class at a margin."""

    margin: int
    outcomes: tuple[fit.Outcome, ...]


class Found(NamedTuple):
    """A study, and what both implementations say of it."""

    made: Made
    summary: Json
    score: Json
    plain_summary: Json
    plain_score: Json

    def fits(self) -> list[Fitted]:
        """Return what the library decides at the study's own margin and at some others."""
        own = self.made.place.results(self.made.dtype).study_json
        read = results.study_json(own.read_bytes(), "study.json")
        margins = sorted({self.made.declared.margin, *MARGINS})
        return [Fitted(m, results.lines_of(read, m, "box").outcomes) for m in margins]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Found]:
    """Return what gives the study of a seed, made once."""

    @functools.cache
    def of(seed: int) -> Found:
        made = make(drawn(seed), tmp_path_factory.mktemp(f"drawn{seed}"))
        return Found(made, *made.told(), *made.plainly())

    return of


def _part(whole: Json, of: Json) -> Json:
    """Return the members of a file that are numbers or are counted, decided or chosen by numbers."""
    return {name: whole[name] for name in of}


TEXTS = {"schema", "study", "dtype", "manifest_sha256", "reasons", "boards"}
"""The members of score.json that no number is behind."""


@pytest.mark.slow
@pytest.mark.parametrize("seed", STUDIES)
def test_both_say_the_same(seed: int, found: Callable[[int], Found]) -> None:
    """Each number, code, status and verdict of study.json and score.json is the plain one, to the last bit."""
    one = found(seed)

    assert _part(one.summary, one.plain_summary) == one.plain_summary
    assert _part(one.score, one.plain_score) == one.plain_score
    assert one.score.keys() - one.plain_score.keys() == TEXTS


@pytest.mark.slow
@pytest.mark.parametrize("seed", STUDIES)
def test_both_decide_the_same(seed: int, found: Callable[[int], Found]) -> None:
    """At each margin every case gets the plain verdict, and every class the plain entry or code."""
    one = found(seed)
    for margin, outcomes in one.fits():
        for theirs, ours in zip(outcomes, plain.outcomes(one.plain_summary, one.made.declared, margin), strict=True):
            line = theirs.line
            says = ours.pop("says", None)

            assert ours == {
                "class": [*theirs.class_key],
                "verdicts": {item.case.digest: [item.verdict, item.ratio_ppm] for item in theirs.judged},
                "code": theirs.code,
            } | ({"rule": line.rule, "axis": line.axis, "bound": line.bound} if line else {})
            assert says == (line and line.comment[: len(str(says))])


@pytest.mark.slow
@pytest.mark.parametrize("seed", STUDIES)
def test_replay_finds_what_was_written(seed: int, found: Callable[[int], Found]) -> None:
    """What a replay recomputes of these records is what the files say, which is what the plain implementation says."""
    made = found(seed).made
    states = {check.name: check.state for check in replay.replay(made.study, made.place)}

    assert {states[name] for name in ("planned lines", "study.json", "lines", "score.json")} == {replay.OK}


@pytest.mark.slow
@pytest.mark.whole
def test_what_can_happen_happens(found: Callable[[int], Found]) -> None:
    """Among the studies every status, code, verdict and kind of rule is met, and what a score leaves unsaid."""
    seen: dict[str, Counter[Any]] = {name: Counter() for name in ("status", "code", "verdict", "rule", "metric")}
    for one in map(found, STUDIES):
        seen["status"].update(case["status"] for case in one.summary["cases"])
        seen["status"].update(one.score["statuses"])
        seen["code"].update(own["code"] for case in one.summary["cases"] for own in case["regimes"].values())
        seen["verdict"][one.score["verdict"]] += 1
        seen["metric"].update(name for name, value in one.score["metrics"].items() if value)
        seen["metric"].update(f"no {name}" for name, value in one.score["metrics"].items() if value is None)
        seen["metric"].update(f"lookup {case['lookup']}" for case in one.score["cases"])
        seen["metric"].update({"unscored": len(one.score["unscored"]), "two": len(one.score["regimes"]) > 1})
        for _, outcomes in one.fits():
            seen["rule"].update(outcome.line.rule if outcome.line else outcome.code for outcome in outcomes)
            seen["verdict"].update(item.verdict for outcome in outcomes for item in outcome.judged)

    met = {name: (+counts).keys() for name, counts in seen.items()}
    assert met["status"] == {str(status) for status in Status} - {"unresolvable"}
    assert met["code"] == {"", "TICK", "UNSTEADY", "CONTROL", "DRIFT", "CARRY"}
    assert met["verdict"] == {"PASS", "FAIL", "CANNOT SAY", "WIN", "LOSE", "NEUTRAL", "INCONCLUSIVE"}
    assert met["rule"] >= {"always", "from", "upto", "never", "FAILED", "NOISE", "CONFLICT", "SUPPORT", "MARGIN"}
    assert met["rule"] & {"never_from", "never_upto"}
    assert met["metric"] >= {*METRICS, "no closed_gap", "no spread_max", "unscored", "two"}
    assert met["metric"] >= {"lookup True", "lookup False", "lookup None"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3, 7, 8])
def test_numbers_agree_before_they_are_rounded(seed: int, found: Callable[[int], Found]) -> None:
    """Of each record the ratio, drift, carry-over and position effect agree to 1e-12, the autocorrelation to 1e-9."""
    made, count = found(seed).made, 0
    for path in sorted(made.place.results(made.dtype).records.glob("*.jsonl")):
        file = jsonl.read(path)
        assert file is not None
        session, *lines = map(json.loads, path.read_bytes().splitlines())
        tick_ns = session["fingerprint"]["tick_ns"]
        for record, line in zip(file.records, lines, strict=True):
            ours = plain.read_line(line, tick_ns).timed
            if ours is not None:
                theirs, ratio = noise.health(record, tick_ns), looks.frost_over_backend(record, tick_ns)
                count += 1
                for one, other in (
                    (ours.drift, theirs.drift),
                    (ours.carry, theirs.carry),
                    (ours.position, theirs.position),
                    (ours.trend, theirs.trend),
                    (float(ours.ticks), theirs.ticks),
                    (-ours.ratios["backend", "frost"], ratio),
                ):
                    assert math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12)
                assert math.isclose(ours.lag1, theirs.lag1, abs_tol=1e-9)  # a quotient of differences of logs

    assert count > 5


@pytest.mark.slow
def test_looks_are_those_of_the_stop_rule(found: Callable[[int], Found]) -> None:
    """Each record says of its look what the plain rule says, and nothing is measured behind the one that stops."""
    looked = Counter[int]()
    for one in map(found, [seed for seed in STUDIES if drawn(seed).repeats >= looks.FIRST_LOOK]):
        declared = one.made.declared
        for split in ("train", "holdout"):
            attempt = plain.read_attempts(one.made.place.root, "drawn", one.made.dtype, split)[-1]
            for own in plain.by_case(attempt.lines).values():
                due, last = plain.looks(own, declared)
                said = {line.repeat: {n: v for n, v in line.checks.items() if n.startswith("look_")} for line in own}
                looked.update(look["look_stop"] for look in due.values())

                assert {repeat: look for repeat, look in said.items() if look} == due
                assert max(said) == (last or declared.repeats)

    assert min(looked[0], looked[1]) > 5


def _close_call(draw: random.Random) -> Timed:
    """Return a hold-out case whose legs are within some percent of each other, in repeats that differ as much."""
    lifted = draw.random() < 0.6
    backend, frost = (100_000 + draw.randint(-2500, 2500) for _ in range(2))
    return Timed(
        backend=backend,
        frost=frost,
        auto=(frost if lifted else backend) + draw.randint(-300, 300),
        default=backend + draw.randint(-300, 300),
        auto_plan=FROST if lifted else BACKEND,
        lookup=lifted or None,
        factors=(1.0, draw.uniform(0.9, 1.1), draw.uniform(0.9, 1.1)),
        auto_factors=(1.0, *draw.choices([0.99, 0.998, 1.0, 1.0, 1.0, 1.002], k=2)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_both_say_the_same_of_close_calls(seed: int, tmp_path: Path) -> None:
    """Where what is slower is hardly beyond the noise, and a gap hardly beyond the band, both still say the same."""
    draw = random.Random(seed)
    score = scripted.scored(tmp_path, {s_kv: _close_call(draw) for s_kv in scripted.HOLDOUT})
    where = tmp_path, "scripted", "bf16", plain.settings(scripted.SCRIPTED_YAML)
    ours = plain.score_json(*where, plain.study_json(*where))

    assert _part(json.loads(results.score_bytes(score)), ours) == ours


QUIET: Json = {
    "schema": 1,
    "name": "drawn",
    "question": "What does one sample change?",
    "engine": "simulated",
    "row": "open_engine",
    "base": "library",
    "op": "sdpa_fwd",
    "dtypes": ["bf16"],
    "class_key": ["dtype"],
    "splits": {
        "train": {"cases": [{"s_kv": [256, 512], "h_q": 4, "d_qk": 64}]},
        "holdout": {"cases": [{"s_kv": 320, "h_q": 4, "d_qk": 64}]},
    },
    "protocol": {"repeats": 3, "blocks": 4},
    "gate": ["slower_beyond_noise == 0"],
}
"""A study of one hold-out case, to which a device is added."""


def _quiet(device: Json, repeats: int = 3, **changes: Json) -> Drawn:
    changed = {name: QUIET.get(name, {}) | members for name, members in changes.items()}
    return Drawn(json.dumps(QUIET | changed | {"simulated": device}), repeats, Mishaps())


@pytest.mark.parametrize(("split", "legs"), [("holdout", plain.LEGS), ("train", ("backend", "frost"))])
def test_one_sample_that_is_changed_makes_a_difference(split: str, legs: Sequence[str], tmp_path: Path) -> None:
    """To change one sample of a record by 10 % makes the plain implementation say something else than the files."""
    device = {"backend_ns": "s_kv * 1000", "frost_ns": "s_kv * 700", "noise_ppm": 3000, "tick_ns": 1000}
    made = make(_quiet(device, repeats=1), tmp_path)
    told = made.told()
    path = made.job(Split(split)).results.session(Split(split), 1, 1)
    session, *lines = map(json.loads, path.read_bytes().splitlines())

    assert all(_part(theirs, ours) == ours for theirs, ours in zip(told, made.plainly(), strict=True))
    for leg in legs:
        for block in range(4):
            was = lines[0]["legs"][leg]["ns"][block]
            lines[0]["legs"][leg]["ns"][block] = was * 11 // 10
            path.write_text("".join(json.dumps(line) + "\n" for line in (session, *lines)), encoding="utf-8")
            lines[0]["legs"][leg]["ns"][block] = was
            summary, score = made.plainly()

            if split == "train":
                assert [case["regimes"] for case in summary["cases"]] != [case["regimes"] for case in told[0]["cases"]]
            else:
                assert (summary["cases"], score["health"] == told[1]["health"]) == (told[0]["cases"], False)


def test_a_ratio_that_never_changes_has_no_autocorrelation(tmp_path: Path) -> None:
    """Where every block has the same ratio, the autocorrelation is 0, whatever the number of blocks."""
    made = make(_quiet({"backend_ns": "s_kv * 1000", "frost_ns": "s_kv * 100"}, protocol={"blocks": 12}), tmp_path)

    assert made.plainly()[1]["health"]["lag1_median_ppm"] == 0
    assert made.told()[1]["health"]["lag1_median_ppm"] == 0


def test_a_limit_of_zero_lets_a_device_without_any_noise_pass(tmp_path: Path) -> None:
    """Where nothing differs at all, nothing is beyond a noise limit of 0."""
    device = {"backend_ns": "s_kv * 1000", "frost_ns": "s_kv * 700"}
    made = make(_quiet(device, decide={"noise_limit": 0}), tmp_path)
    plainly, told = (
        {own["regimes"]["eager-warm"]["code"] for own in said[0]["cases"]} for said in (made.plainly(), made.told())
    )

    assert plainly == {""}
    assert told == {""}


# What the plain implementation itself says of numbers that are known


def test_the_plain_implementation_stands_alone() -> None:
    """It imports the standard library, and yaml for study.yaml."""
    tree = ast.parse(Path(plain.__file__).read_text(encoding="utf-8"))
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    assert {name.split(".")[0] for name in names} - sys.stdlib_module_names == {"yaml"}
    assert not {node for node in ast.walk(tree) if isinstance(node, ast.Call) and "import" in ast.dump(node.func)}


T_QUANTILES = {
    (1, 0.95): math.tan(0.475 * math.pi),
    (1, 0.5): 1.0,
    (2, 0.5): math.sqrt(2 / 3),
    (2, 0.95): 4.302652729749464,
    (3, 0.95): 3.182446305283708,
    (4, 0.95): 2.7764451051977987,
    (9, 0.95): 2.262157162798205,
    (30, 0.95): 2.0422724563012373,
}
"""By degrees of freedom and confidence, as tables and closed forms have them."""


@pytest.mark.parametrize(("dof", "confidence"), T_QUANTILES)
def test_t_quantile_is_that_of_the_tables(dof: int, confidence: float) -> None:
    """Half of what is outside of the confidence lies above the quantile."""
    assert math.isclose(plain.t_quantile(dof, confidence), T_QUANTILES[dof, confidence], rel_tol=1e-13)


@pytest.mark.parametrize("confidence", [0.95, 0.96])
def test_intervals_agree(confidence: float) -> None:
    """Mean and t interval of up to sixty repeats agree to 1e-12 of their width."""
    draw = random.Random(1)
    for count in range(1, 61):
        values = [draw.gauss(0.3, 0.01) for _ in range(count)]
        theirs, ours = stats.interval(values, confidence), plain.interval(values, confidence)

        assert all(
            one == other or math.isclose(one, other, rel_tol=1e-12) for one, other in zip(theirs, ours, strict=True)
        )


def test_an_interval_by_hand() -> None:
    """Of 1, 2 and 3 the mean is 2, the deviation 1, and the half width 4.3027 over the root of three."""
    center, low, high = plain.interval([1.0, 2.0, 3.0])

    assert center == 2
    assert math.isclose(high - 2, 4.302652729749464 / math.sqrt(3))
    assert math.isclose(2 - low, high - 2)
    assert plain.interval([1.5]) == (1.5, -math.inf, math.inf)


RAW = {
    0: (11749869230777074271, 4976686463289251617, 755828109848996024, 304881062738325533),
    1234: (18016930633132456890, 7013373421822782593, 17030886991259909300, 4827373169039523470),
    2**60 - 1: (11970658410673472754, 803921344217110749, 14237501067069070363, 10603428594080439402),
}
"""The first raw outputs of PCG64 by seed."""


@pytest.mark.parametrize("seed", RAW)
def test_the_stream_is_that_of_pcg64(seed: int) -> None:
    """Seeded alike, the plain stream is the known one, and numpy's."""
    stream = plain.pcg64(seed)
    first = tuple(next(stream) for _ in range(1000))

    assert first[:4] == RAW[seed]
    assert [*first] == np.random.PCG64(seed).random_raw(1000).tolist()


def test_bootstrap_intervals_agree() -> None:
    """Classes of one to five cases, drawn again from the same stream, have the same interval."""
    draw = random.Random(2)
    for seed in range(5):
        groups = [[draw.gauss(0, 1) for _ in range(draw.randint(1, 5))] for _ in range(draw.randint(1, 4))]
        theirs, ours = stats.bootstrap_mean(groups, seed), plain.bootstrap(groups, seed)

        assert all(math.isclose(one, other, rel_tol=1e-12) for one, other in zip(theirs, ours, strict=True))
    assert plain.bootstrap([[7.0], [7.0, 7.0]], 1) == (7, 7)


def test_quantiles_and_medians_by_hand() -> None:
    """They lie between neighbours; fractions stay exact."""
    assert plain.quantile([3.0, 1.0, 2.0], 50) == plain.median([3.0, 1.0, 2.0]) == 2
    assert plain.quantile([Fraction(0), Fraction(1)], 90) == Fraction(9, 10)
    assert plain.quantile([4.0], 95) == 4
    assert plain.median([Fraction(1, 3), Fraction(2, 3)]) == Fraction(1, 2)


def test_equations_are_solved_exactly() -> None:
    """Two unknowns have their fractions, and one that nothing says anything of is 0."""
    assert plain.solve([[2, 1], [1, 3]], [3, 5]) == [Fraction(4, 5), Fraction(7, 5)]
    assert plain.solve([[0, 0], [0, 3]], [0, 5]) == [0, Fraction(5, 3)]
    assert plain.solve([[1, 1], [1, 1]], [2, 2]) == [2, 0]


def _record(logs: dict[str, list[float]]) -> Json:
    """Return a record of four blocks with samples of two launches, of which frost and auto ran one plan."""
    plans = {"backend": 1, "frost": 5, "auto": 5, "default": 1}
    legs = {
        leg: {
            "plan": {"engine": plans[leg], "name": leg, "knobs": {}},
            "inner": 2,
            "ns": [round(2e12 * math.exp(value)) for value in values],
            "host_ns": [],
            "counters": {},
        }
        for leg, values in logs.items()
    }
    return {"legs": legs, "order": ORDERS, "checks": {"trend_ppm": 1500}}


def test_planted_effects_are_found() -> None:
    """What a leg, a place and frost's plan before another add to ln(time) is found in a record of nothing else."""
    logs: dict[str, list[float]] = {leg: [] for leg in plain.LEGS}
    for block, order in enumerate(ORDERS):
        for place, leg in enumerate(map(int, order)):
            after = place > 0 and int(order[place - 1]) in {1, 2} and leg in {0, 3}
            logs[plain.LEGS[leg]].append([0.0, -0.7, -0.7, 0.0][leg] + 0.01 * place + 0.03 * after + 0.5 * block)
    found = plain.sum_up(_record(logs), 1)

    assert math.isclose(found.carry, 0.03, rel_tol=1e-9)
    assert math.isclose(found.position, 0.03, rel_tol=1e-9)
    assert math.isclose(found.trend, 0.0015)


def test_a_record_by_hand() -> None:
    """Medians of paired ratios, of legs, the drift between halves, and the autocorrelation of what is left."""
    still = [0.0] * 4
    found = plain.sum_up(_record({"backend": still, "frost": [0.1, 0.2, 0.3, 0.8], "auto": still, "default": still}), 1)

    assert math.isclose(found.ratios["backend", "frost"], -0.25)
    assert found.ratios["backend", "auto"] == 0
    assert math.isclose(found.leg_ns["frost"], 1e12 * (math.exp(0.2) + math.exp(0.3)) / 2)
    assert math.isclose(found.drift, 2 * (3 / 4) * (0.55 - 0.15))
    assert math.isclose(found.lag1, (0.25 * 0.15 + 0.15 * 0.05 - 0.05 * 0.45) / (0.25**2 + 0.15**2 + 0.05**2 + 0.45**2))
    assert found.ticks == 2 * 10**12


def test_a_coarse_clock_has_means_taken() -> None:
    """Where the tick is more than 0.2 % of a sample, the ratio is that of the means."""
    logs = {leg: [0.0] * 4 for leg in plain.LEGS} | {"frost": [0.0, 0.0, 0.0, math.log(5)]}

    assert plain.sum_up(_record(logs), 4 * 10**9).ratios["backend", "frost"] == 0
    assert math.isclose(plain.sum_up(_record(logs), 4 * 10**9 + 1).ratios["backend", "frost"], -math.log(2))


def _judged(ratio: int, high: int, *, exchanged: bool = False, **changes: Any) -> tuple[str, int]:
    regime = {"repeats": 3, "code": "", "ratio_ppm": ratio, "low_ppm": 2 * ratio - high, "high_ppm": high} | changes
    case = {"status": changes.get("status", "ok"), "regimes": {"eager-warm": regime}}
    declared = plain.settings(json.dumps(QUIET))
    found = plain.judge({"band_ppm": 10_000}, case, declared, 250_000, exchanged=exchanged)
    return found.verdict, found.ratio


def test_verdicts_by_hand() -> None:
    """At a margin of a quarter a case wins up to 0.8, and loses above one and the band; exchanged, by reciprocals."""
    assert _judged(800_000, 900_000) == ("WIN", 800_000)
    assert _judged(800_001, 900_000)[0] == _judged(800_000, 1_000_000)[0] == "NEUTRAL"
    assert _judged(1_010_000, 1_020_000)[0] == "NEUTRAL"
    assert _judged(1_010_001, 1_020_000)[0] == "LOSE"
    assert _judged(800_000, 900_000, repeats=2)[0] == _judged(800_000, 900_000, code="TICK")[0] == "INCONCLUSIVE"
    assert _judged(800_000, 900_000, status="crashed") == ("LOSE", 0)
    assert _judged(1_250_000, 1_300_000, exchanged=True) == ("WIN", 800_000)
    assert _judged(800_000, 900_000, exchanged=True) == ("LOSE", 1_250_000)


def test_geometric_means_are_rounded_down() -> None:
    """The root of a product of integers is exact where there is one."""
    assert plain.root_of([2, 8]) == 4
    assert plain.root_of([2, 7]) == 3
    assert plain.root_of([1_000_000]) == 1_000_000
    assert plain.root_of([]) == 0
