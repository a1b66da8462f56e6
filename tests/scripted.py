"""A finished study whose every sample is written down here, so that each number of its score is known by hand."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import finished
import msgspec
import pytest
from factories import ORDERS, make_fingerprint, make_leg, make_record, make_session

import studytool
from studytool import attempts, editing, freeze, jsonl, lines, opening, pipeline, results, schedule, timing
from studytool.digest import sha256
from studytool.grid import case_digest
from studytool.layout import StudyPlace
from studytool.model import LEGS, Case, Record, Split, Status
from studytool.runtime import key

SCRIPTED_YAML = """\
schema: 1
name: scripted
question: Are the numbers right?
engine: simulated
row: open_engine
base: library
device: {cc: host, board: any}
op: sdpa_fwd
dtypes: [bf16]
class_key: [dtype, mask]
splits:
  train:
    grids:
      - {s_kv: [64, 128, 256, 512, 1024, 2048], h_q: 4, d_qk: 64}
  holdout:
    cases:
      - {s_kv: [80, 320, 640, 1280], h_q: 4, d_qk: 64}
  routing:
    cases:
      - {s_kv: [128, 256], h_q: 4, d_qk: 64, bias: learned}
protocol: {repeats: 3, blocks: 4}
decide: {margin: 0.05, scope: class, thresholds: [from s_kv]}
gate:
  - slower_beyond_noise == 0
  - auto_over_default_geomean <= 1.02
  - regret_auto_max <= 2
  - routing_changed == 0
simulated: {backend_ns: s_kv * 1000, frost_ns: s_kv * 500 + 64000}
"""
"""Train: frost takes half as long from 256 on, and as long below. Hold-out: see HOLDOUT."""

BACKEND, FROST = 1, 5
"""The ids of the two plans."""


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """One case: ns per launch of each leg, the plans of auto and default, a factor per repeat, how repeats ended."""

    backend: int = 100_000
    frost: int = 100_000
    auto: int = 100_000
    default: int = 100_000
    auto_plan: int = BACKEND
    default_plan: int = BACKEND
    lookup: bool | None = None
    factors: tuple[float, ...] = (1.0, 1.0, 1.0)
    auto_factors: tuple[float, ...] = (1.0, 1.0, 1.0)
    ended: Mapping[int, Status] = {}


HOLDOUT = {
    80: Timed(frost=150_000, default=101_000, factors=(1.0, 1.01, 1.02)),
    320: Timed(backend=200_000, default=200_000, auto_plan=FROST, lookup=True),
    640: Timed(frost=110_000, auto=110_000, auto_plan=FROST, lookup=True, factors=(1.0, 1.02, 1.04)),
    1280: Timed(ended={2: Status.CRASHED}),
}
"""By s_kv: one that stays, one that gains, one that the entry makes slower, one that crashed once."""


def line_of(case: Case, timed: Timed, repeat: int, session: Any) -> Record:
    """Return the record of one case and repeat; each sample is two launches."""
    status = timed.ended.get(repeat, Status.OK)
    routing = session.split is Split.ROUTING
    plans = {"backend": BACKEND, "frost": FROST, "auto": timed.auto_plan, "default": timed.default_plan}
    legs = {}
    for leg in LEGS:
        factor = timed.factors[repeat - 1] * (timed.auto_factors[repeat - 1] if leg == "auto" else 1.0)
        ns = () if routing else (round(2 * getattr(timed, leg) * factor),) * len(ORDERS)
        legs[leg] = make_leg(ns, plan=plans[leg])
    bare = status is not Status.OK
    return make_record(
        of=case,
        split=session.split,
        repeat=repeat,
        attempt=session.attempt,
        status=status,
        class_key=key.class_key("open_engine", "host", ("dtype", "mask"), case.fields),
        lookup=timed.lookup,
        legs={} if bare else legs,
        order=() if bare or routing else ORDERS,
        error="ended by SIGKILL" if bare else "",
    )


Script = Callable[[Case], Timed]


def by_length(table: Mapping[int, Timed]) -> Script:
    """Return the script that finds a case's times by its s_kv."""
    return lambda case: table[case.s_kv]


def write(
    place: StudyPlace, split: Split, script: Script, attempt: int = 1, stop_after: int = 0, **changes: Any
) -> Path:
    """Write the one session of an attempt as the script says, seal it, and return its file."""
    job = opening.job_of(opening.open_study(place), place, "bf16", split)
    data, _ = attempts.table_in_force(place, split)
    session = make_session(
        study=job.study.name,
        manifest=job.frozen.sha256,
        split=split,
        attempt=attempt,
        table=sha256(data),
        entries=lines.entries_digest(lines.read_table(data, "table.py"), "open_engine", "bf16"),
        reason="" if attempt == 1 else "the board was busy",
        fingerprint=make_fingerprint(),
        **changes,
    )
    repeats = 1 if split is Split.ROUTING else job.study.protocol.repeats
    planned = [(case, repeat) for repeat in range(1, repeats + 1) for case in job.cases.values()]
    path = job.results.session(split, attempt, 1)
    with jsonl.Writer(path, session) as writer:
        for case, repeat in planned[: stop_after or None]:
            record = line_of(case, script(case), repeat, session)
            if record.order:
                asked = (job.study.sha256, record.case, repeat, record.regime, len(ORDERS))
                record = msgspec.structs.replace(record, order=schedule.block_orders(*asked))
            writer.append(record)
    timing.seal(job, finished.hooks().now)
    return path


def train(case: Case) -> Timed:
    """Return a train case: frost takes half as long from 256 on."""
    return Timed(frost=50_000 if case.s_kv >= 256 else 100_000)


def slow_train(case: Case) -> Timed:
    """Return a train case of which frost loses all."""
    return Timed(frost=150_000 + case.s_kv)


def prepare(root: Path, text: str = SCRIPTED_YAML, fitted: Script = train) -> StudyPlace:
    """Return a study that is frozen, trained and applied, whose hold-out is still to be timed."""
    place = finished.declare(root, text, "scripted")
    study = opening.open_study(place)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studytool, "__version__", "0.0.0")
        freeze.freeze(study, place, [], "")
    write(place, Split.TRAIN, fitted)
    job = opening.job_of(study, place, "bf16", Split.TRAIN)
    job.results.study_json.write_bytes(results.train(job).data)
    pipeline.generate(job)
    editing.apply_lines(job.results.lines, place.table, finished.hooks().now)
    return place


def scored(
    root: Path, table: Mapping[int, Timed] = HOLDOUT, text: str = SCRIPTED_YAML, fitted: Script = train
) -> dict[str, Any]:
    """Return the score of a study with this hold-out."""
    place = prepare(root, text, fitted)
    write(place, Split.HOLDOUT, by_length(table))
    write(place, Split.ROUTING, lambda _case: Timed())
    return score_of(place)


def score_of(place: StudyPlace) -> dict[str, Any]:
    """Return the score of a study, and write it."""
    job = opening.job_of(opening.open_study(place), place, "bf16", Split.HOLDOUT)
    return pipeline.score(job, finished.hooks().now)


def case_at(s_kv: int) -> Case:
    """Return the hold-out case of this length."""
    return Case(op="sdpa_fwd", dtype="bf16", b=1, h_q=4, h_kv=4, s_q=s_kv, s_kv=s_kv, d_qk=64, d_v=64)


def digest_at(s_kv: int) -> str:
    """Return the digest of the hold-out case of this length."""
    return case_digest(case_at(s_kv))
