"""Studies that stop early, that tell their costs, and a device on which some cases are noisier than others."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import benches
import finished
import msgspec
import numpy as np
import pytest
from bad_records import chained, values_of
from benches import InlineProcess
from factories import make_leg, make_record

from studytool import editing, looks, pipeline, results, stats
from studytool.attempts import Job
from studytool.looks import FIRST_LOOK, Look
from studytool.measure import Measured, Request
from studytool.model import LEGS, Protocol, Record, Split
from studytool.pipes import Failed

MIXED_YAML = """\
schema: 1
name: tiny
question: Which cases need all repeats?
engine: simulated
row: open_engine
base: library
device: {cc: host, board: any}
op: sdpa_fwd
dtypes: [bf16]
class_key: [dtype, d_qk]
splits:
  train:
    grids:
      - {s_kv: [64, 128, 256, 512, 1024, 2048], h_q: 4, d_qk: [16, 32, 64, 128]}
  holdout:
    cases:
      - {s_kv: [80, 320], h_q: 4, d_qk: 48}
protocol: {repeats: 40, blocks: 8, stop: {half_width: 0.01}}
decide: {margin: 0.05, noise_limit: 0.1, scope: class, thresholds: [from s_kv]}
gate: [slower_beyond_noise == 0]
simulated: {backend_ns: s_kv * 1000, frost_ns: s_kv * 500 + d_qk * 1200, noise_ppm: 2000}
"""
"""Quiet everywhere; d_qk 16 leads always, 32 from 128, 64 from 256, and 128 has three sizes that win, one too few."""

NOISY_PPM = {32: 30_000}
"""The process effect of the cases of a head dimension, which makes their repeats differ."""

SMALL = (
    ("[64, 128, 256, 512, 1024, 2048], h_q: 4, d_qk: [16, 32, 64, 128]", "[256, 512], h_q: 4, d_qk: [16, 32]"),
    ("repeats: 40", "repeats: 12"),
)
"""What makes a study of four cases and twelve repeats of the mixed one."""


class MixedProcess(InlineProcess):
    """A worker that is not a process, on a device whose repeats differ more in the cases of NOISY_PPM."""

    def ask(self, request: Request, timeout_s: int) -> Measured | Failed:
        """Return what the device measures with the noise of this case."""
        assert self._engine is not None
        self._engine.numbers["process_ppm"] = NOISY_PPM.get(request.case.d_qk, 0)
        return super().ask(request, timeout_s)


def mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `timing` measure on the device that is noisy in some cases."""
    benches.inline(monkeypatch)
    monkeypatch.setattr("studytool.timing.WorkerProcess", MixedProcess)


def small(*more: tuple[str, str]) -> str:
    """Return a study of four cases, two of them noisy, with these parts of its text replaced."""
    text = MIXED_YAML
    for old, new in (*SMALL, *more):
        assert old in text
        text = text.replace(old, new)
    return text


def without_stop(job: Job) -> Job:
    """Return the job with the same seeds and all repeats."""
    protocol = msgspec.structs.replace(job.study.protocol, stop_half_width_ppm=0)
    return job._replace(study=msgspec.structs.replace(job.study, protocol=protocol))


def spent_ns(job: Job) -> int:
    """Return the device time of all lines of a job."""
    return sum(int(record.checks["took_ns"]) for record in benches.records(job))


def outcomes(job: Job) -> dict[int, str]:
    """Return the rule and its bound, or the code, of each class by its head dimension."""
    decide = job.study.decide
    fitted = results.lines_of(results.train(job), decide.margin_ppm, decide.scope)
    return {
        int(found.class_key[3]): f"{found.line.rule} {found.line.bound}" if found.line else found.code
        for found in fitted.outcomes
    }


def repeats_of(records: Sequence[Record]) -> dict[str, int]:
    """Return the last repeat of each case."""
    last: dict[str, int] = {}
    for record in records:
        last[record.case] = max(record.repeat, last.get(record.case, 0))
    return last


def record_at(repeat: int, log_ratio: float, **changes: Any) -> Record:
    """Return the record of one repeat with this ln(frost/backend)."""
    frost_ns = round(1e9 * np.exp(log_ratio))
    legs = {**dict.fromkeys(LEGS, make_leg((10**9,) * 4)), "frost": make_leg((frost_ns,) * 4, plan=5)}
    return make_record(**{"repeat": repeat, "legs": legs, **changes})


def looked(protocol: Protocol, records: Sequence[Record]) -> Look | None:
    """Return the look at these records, measured with a clock of 1 ns."""
    return looks.look(protocol, records, [1] * len(records))


class Ended(NamedTuple):
    """A series of repeats where it was ended: how many there were, and the interval that they give."""

    repeats: int
    interval: stats.Interval

    def covers(self, truth: float) -> bool:
        """Return whether the truth is in the interval."""
        return self.interval.low <= truth <= self.interval.high


def ended_by_width(protocol: Protocol, values: Sequence[float], monkeypatch: pytest.MonkeyPatch) -> Ended:
    """Return where the stop rule ends a series of one value of ln(frost/backend) a repeat."""
    monkeypatch.setattr(looks, "frost_over_backend", lambda record, _tick_ns: values[record.repeat - 1])
    for count in range(FIRST_LOOK, len(values) + 1):
        found = looked(protocol, _RECORDS[:count])
        if found is not None and found.stop:
            return Ended(count, stats.interval(values[:count], protocol.confidence))
    return Ended(len(values), stats.interval(values, protocol.confidence))


_RECORDS = [make_record(repeat=repeat) for repeat in range(1, 41)]


def ended_by_significance(values: Sequence[float]) -> Ended:
    """Return where a series ends for who stops as soon as the interval of 95 % leaves out zero."""
    for count in range(FIRST_LOOK, len(values) + 1):
        found = Ended(count, stats.interval(values[:count]))
        if not found.covers(0.0):
            return found
    return Ended(len(values), stats.interval(values))


def copied(job: Job, root: Path, text: str, lines: int, torn: bytes = b"") -> Job:
    """Return a job below root whose train records are the first lines of another's, as a kill leaves them."""
    other = benches.make_job(root, text=text)
    source = job.results.session(Split.TRAIN, 1, 1).read_bytes().splitlines(keepends=True)
    path = other.results.session(Split.TRAIN, 1, 1)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(source[:lines]) + torn)
    return other


def rewritten(path: Path, line: int, checks: Mapping[str, int]) -> None:
    """Change the checks of one line of a records file and mend the chain behind it, as a forger would."""
    values = values_of(path)
    values[line - 1]["checks"].update(checks)
    chained(path, values)


def applied(job: Job) -> None:
    """Time what is missing of a job's train split and put its lines into the study's table."""
    pipeline.time(job, finished.hooks())
    pipeline.generate(job)
    editing.apply_lines(job.results.lines, job.place.table, finished.hooks().now)


def told(job: Job) -> list[tuple[object, ...]]:
    """Return what the lines of a job say, in the order of cases and repeats."""
    found = sorted(benches.records(job), key=lambda record: (record.case, record.repeat, record.regime))
    checks = [{name: value for name, value in record.checks.items() if name != "took_ns"} for record in found]
    return [(r.case, r.repeat, r.regime, r.legs, own) for r, own in zip(found, checks, strict=True)]


def stopped_records(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, int]:
    """Return the file of a finished train split and the number of the line that stops its first quiet case."""
    mixed(monkeypatch)
    job = benches.make_job(root, text=small())
    benches.run(job)
    line = next(n for n, record in enumerate(benches.records(job), 2) if record.checks.get("look_stop"))
    return job.results.session(Split.TRAIN, 1, 1), line


COSTS_YAML = """\
schema: 1
name: tiny
question: How long will it take?
engine: simulated
row: open_engine
base: library
device: {cc: host, board: any}
op: sdpa_fwd
dtypes: [bf16]
class_key: [dtype]
splits:
  train:
    grids:
      - {s_kv: [512, 1024, 2048, 4096], h_q: 4, d_qk: 64}
  holdout:
    cases:
      - {s_kv: [768, 1536, 4608], h_q: 4, d_qk: 64}
      - {s_kv: 1024, h_q: 6, d_qk: 48}
  routing:
    cases:
      - {s_kv: 1024, h_q: 4, d_qk: 64, bias: learned}
protocol: {repeats: 5, blocks: 8}
decide: {margin: 0.05, scope: class}
gate: [slower_beyond_noise == 0]
simulated:
  backend_ns: 20000 + b * h_q * s_q * s_kv * d_qk // 100
  frost_ns: 20000 + b * h_q * s_q * s_kv * d_qk // 118
  noise_ppm: 3000
  process_ppm: 2000
"""
"""Launches cost what their work is, seconds of virtual time; frost takes 0.85 times as long, and gets an entry."""
