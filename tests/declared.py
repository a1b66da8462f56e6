"""Studies drawn at random, that went the whole path on a simulated device whose cases may fail."""

import contextlib
import json
import os
import random
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import finished
import pytest
from benches import InlineProcess, inline, run

from studytool import editing, opening, pipeline, timing
from studytool.attempts import Job
from studytool.layout import StudyPlace
from studytool.measure import Measured, Request
from studytool.model import Split, Status
from studytool.pipes import Failed
from studytool.runtime import key

Json = dict[str, Any]
SIZES = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
OTHERS = (80, 112, 160, 320, 448, 640, 896, 1280)
COSTS = (
    ("s_kv * 1000", "s_kv * 500 + 64000"),
    ("s_kv * 1000", "s_kv * 500 + 64000"),
    ("s_kv * 1000", "s_kv * 600"),
    ("s_kv * 1000", "s_kv * 700 + s_kv % 128 * 9000"),
    ("90000 + s_kv * 333", "20000 + s_kv * 450"),
    ("s_kv * 700", "s_kv * 900"),
)
"""What a launch of both sides takes: frost leads from a size on, always, on the tile, up to a size, or nowhere."""

FAULTS = ("refused", "declined", "no_frost", "no_backend", "wrong_result", "error", "crashed", "timeout")
KILLERS = {"crashed": "ended by SIGKILL", "timeout": "no answer in time"}
"""Faults that end a process, which a worker that is none can only tell of."""


class Drawn(NamedTuple):
    """A declaration, and where timing was stopped: after how many lines of train and of the hold-out (0: never).

    `again` are the splits of which there is another attempt: of train and routing after a whole one, of the hold-out
    after one that was stopped, or a whole one.
    """

    text: str
    train_stop: int
    holdout_stop: int
    again: frozenset[Split]


class Worker(InlineProcess):
    """A worker that is not a process and tells of what would have ended one."""

    starts: ClassVar[list[str]] = []

    def ask(self, request: Request, timeout_s: int) -> Measured | Failed:
        """Return what the device measures, or what became of it."""
        assert self._engine is not None
        for name, said in KILLERS.items():
            if self._engine._holds(name, {**key.NEUTRAL, **request.case.fields}):
                return Failed(Status(name), said)
        try:
            return super().ask(request, timeout_s)
        except RuntimeError as error:
            return Failed(Status.ERROR, f"RuntimeError: {error}")


def _protocol(draw: random.Random) -> Json:
    regimes = ["eager-warm", "eager-cold", "replay-warm", "replay-cold"]
    found: Json = {
        "repeats": draw.choice([3, 3, 4]),
        "blocks": draw.choice([4, 8]),
        "regimes": draw.sample(regimes, draw.choice([1, 1, 1, 2])),
        "min_sample_ns": 20_000,
        "distributions": draw.choice([["normal"], ["normal", "uniform"]]),
    }
    if draw.random() < 0.25:
        found |= {"repeats": 9, "blocks": 4, "regimes": ["eager-warm"], "stop": {"half_width": 0.01}}
    return found


def _device(draw: random.Random, sizes: list[int]) -> Json:
    backend, frost = draw.choice(COSTS)
    found: Json = {"backend_ns": backend, "frost_ns": frost, "seed": draw.randint(0, 10**6)}
    found |= {"noise_ppm": draw.choice([0, 300, 2000, 30_000]), "process_ppm": draw.choice([0, 300, 1000])}
    for name in draw.sample(FAULTS, draw.choice([0, 0, 1, 2])):
        # a wrong result on the hold-out is a check that fails; other faults are only counted
        found[name] = f"s_kv == {draw.choice(sizes if name == 'wrong_result' else [*sizes, *OTHERS])}"
    return found


def drawn(seed: int) -> Drawn:
    """Return the study of a seed."""
    draw = random.Random(seed)
    dtypes = draw.sample(["bf16", "f16", "f32"], draw.choice([1, 1, 2, 3]))
    sizes, others = draw.sample(SIZES, draw.randint(2, 6)), draw.sample(OTHERS, draw.randint(1, 3))
    dims = draw.choice([[64], [64], [32, 64]])
    same: Json = {"h_q": 4, **draw.choice([{}, {}, {"mask": "br", "window": 40}])}
    splits: Json = {
        "train": {"grids": [same | {"s_kv": sizes, "d_qk": dims}]},
        "holdout": {"cases": [same | {"s_kv": others, "d_qk": dims[:1]}], "differs": ["s_kv"]},
    }
    if draw.random() < 0.7:  # with a bias no class has an entry; without, an entry may move the plan
        other = {"s_kv": draw.choice([300, 4096]), "d_qk": 64} | draw.choice([{"bias": "learned"}, {}])
        splits["routing"] = {"cases": [same | other]}
    gate = draw.sample(
        ["slower_beyond_noise == 0", "auto_over_default_geomean <= 1.02", "reached >= 1", "regret_auto_max <= 1.05"],
        draw.randint(1, 3),
    )
    if "routing" in splits and draw.random() < 0.5:
        gate.append("routing_changed == 0")
    decide: Json = {
        "margin": draw.choice([0, 0.02, 0.05]),
        "noise_limit": draw.choice([0.025, 0.1]),
        "min_support": draw.choice([1, 2, 4]),
        "scope": draw.choice(["box", "class"]),
        **draw.choice([{}, {"thresholds": ["from s_kv"]}, {"thresholds": ["from s_kv", "upto s_kv"]}]),
    }
    study = {
        "schema": 1,
        "name": "declared",
        "question": "Is anything said of it that is not so?",
        "engine": "simulated",
        "row": "open_engine",
        "base": draw.choice(["library", "backend"]),
        "device": {"cc": "host", "board": "any"},
        "op": draw.choice(["sdpa_fwd", "sdpa_bwd"]),
        "dtypes": dtypes,
        "class_key": draw.choice([["dtype", "bias"], ["dtype", "d_qk", "bias"], ["op", "dtype", "mask", "bias"]]),
        **draw.choice([{}, {}, {"guards": ["square"]}]),
        "splits": splits,
        "protocol": _protocol(draw),
        "decide": decide,
        "gate": gate,
        "simulated": _device(draw, sizes),
    }
    train_stop, holdout_stop = draw.choice([0, 0, 1, 4]), draw.choice([0, 0, 1, 2])
    again = frozenset(split for split in Split if draw.random() < 0.3)
    return Drawn(json.dumps(study, indent=1), train_stop, holdout_stop, again)


def make(one: Drawn, root: Path) -> StudyPlace:
    """Return the study after it went the whole path."""
    place, hooks = finished.declare(root, one.text, "declared"), finished.hooks()
    study = opening.open_study(place)
    pipeline.freeze_study(study, place, [])
    jobs = [opening.job_of(study, place, dtype, Split.TRAIN) for dtype in study.dtypes]
    with pytest.MonkeyPatch.context() as patch:
        inline(patch)
        patch.setattr(os, "fsync", lambda _handle: None)  # nobody looks at these files after a power cut
        patch.setattr("studytool.timing.WorkerProcess", Worker)
        if one.train_stop:
            _stopped(jobs[0], one.train_stop)
        for job in jobs:
            pipeline.time(job, hooks)
        if Split.TRAIN in one.again:
            pipeline.time(jobs[0], hooks, "the first was to warm the room")
        for job in jobs:
            pipeline.generate(job)
            editing.apply_lines(job.results.lines, place.table, hooks.now)
        if one.holdout_stop:
            _stopped(jobs[0]._replace(split=Split.HOLDOUT), one.holdout_stop)
        for split in sorted(one.again - {Split.TRAIN}):
            if split is Split.ROUTING or not one.holdout_stop:
                pipeline.time(jobs[0]._replace(split=split), hooks)
            pipeline.time(jobs[0]._replace(split=split), hooks, "somebody came in")
        timing.note_driver(jobs[-1], hooks.now, Path(__file__))
        pipeline.run(study, place, study.dtypes, hooks)
    return place


def _stopped(job: Job, after: int) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        run(job, stop_after=after)
