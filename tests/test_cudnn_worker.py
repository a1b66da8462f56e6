"""The cuDNN engine in real worker processes, on a GPU that is not there: a study from end to end, and what goes wrong.

A sitecustomize.py puts the fake device in place before a worker runs; the process that asks has none.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import finished
import pytest
from benches import make_request, patch_worker
from commands import Said, call, tree
from factories import make_case

from studytool import opening, results
from studytool.attempts import Attempt, Job
from studytool.digest import sha256
from studytool.engines.base import Terms
from studytool.layout import StudyPlace
from studytool.measure import Measured
from studytool.model import LEGS, Record, Split, Status
from studytool.process import WorkerProcess

pytest.importorskip("cudnn")

FLAG = "CUDNN_FRONTEND_ENABLE_FROST_ENGINES"
BACKEND, SECOND, ROW = "5", "7", "20601"
"""Plans: the first two of the fixed backend, and the study's row."""

SITE = f"""
import json, os, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import fakecudnn
from studytool.engines.cudnn import bench
wanted = json.loads(os.environ["FAKE_GPU"])
_, fates = fakecudnn.install(setattr, tuple(wanted["cc"]), wanted["sm_count"])
fates.key_error |= set(wanted["key_error"])
fates.segfault |= set(wanted["segfault"])
fates.declines |= {{int(engine): reason for engine, reason in wanted["declines"].items()}}
bench.LEAST_FLUSH_BYTES = 0
bench.CudnnBench.flush_probe_ns = lambda *_: (2_000, 1_000)
"""
"""What workers run first; the device has no cache, so that a flush need not be large, and what it does is said."""

WHOLE_YAML = """\
schema: 1
name: bwd
question: Does the row lead small squares?
engine: cudnn
row: sdpa_bwd_sm80
base: backend
device: {cc: '8.0', board: any}
op: sdpa_bwd
dtypes: [bf16]
class_key: [dtype, d_qk, d_v, mask, heads]
guards: [square]
splits:
  train:
    grids:
      - {mask: br, d_qk: 64, h_q: 2, s_kv: [64, 96, 128], window: 16}
  holdout:
    grids:
      - {mask: br, d_qk: 64, h_q: 4, s_kv: [80, 112], window: 24}
    differs: [h_q, s_kv, window]
  routing:
    grids:
      - {mask: br, d_qk: 64, h_q: 2, s_q: 40, s_kv: [72, 104], window: 16}
protocol: {repeats: 3, blocks: 8, regimes: [eager-warm, replay-cold], min_sample_ns: 30000}
decide: {margin: 0.05, scope: class, min_support: 3, thresholds: [from s_kv]}
gate:
  - slower_beyond_noise == 0
  - regret_auto_max <= 1.01
  - routing_changed == 0
"""

WELL, KEY_ERROR, SEGFAULT, NO_ROW = 64, 72, 96, 48
"""Lengths of the faulty study; the row does not serve a single query."""

FAULTY_YAML = WHOLE_YAML.replace("eager-warm, replay-cold", "eager-warm").replace(
    "s_kv: [64, 96, 128], window: 16}",
    f"s_kv: [{WELL}, {KEY_ERROR}, {SEGFAULT}]}}\n      - {{d_qk: 64, h_q: 2, s_q: 1, s_kv: {NO_ROW}}}",
)
ENDS = {
    WELL: (Status.OK, ""),
    KEY_ERROR: (Status.ERROR, "KeyError: 576"),
    SEGFAULT: (Status.CRASHED, "ended by SIGSEGV"),
    NO_ROW: (Status.NO_FROST, "leg frost has no plan"),
}


def fake_gpu(folder: Path, patch: pytest.MonkeyPatch, **wanted: Any) -> None:
    """Let workers find a fake GPU: an A100 unless `cc` says otherwise, on whose graphs these fates are."""
    plain = {"cc": (8, 0), "sm_count": 108, "key_error": [], "segfault": [], "declines": {}}
    patch_worker(folder, patch, SITE)
    patch.setenv("FAKE_GPU", json.dumps({**plain, **wanted}))


def declared(root: Path, text: str) -> StudyPlace:
    """Return the place of a study that is declared and frozen."""
    place = finished.declare(root, text, "bwd")
    assert call("freeze", place.folder).code == 0
    return place


def job_of(place: StudyPlace, split: Split) -> Job:
    """Return the job of a split."""
    return opening.job_of(opening.open_study(place), place, "bf16", split)


def attempt_of(place: StudyPlace, split: Split) -> Attempt:
    """Return the only attempt at a split."""
    (attempt,) = job_of(place, split).attempts()
    return attempt


def records_of(place: StudyPlace, split: Split) -> list[Record]:
    """Return all records of a split."""
    return [record for file in attempt_of(place, split).files for record in file.records]


def ran(record: Record | Measured) -> dict[str, str]:
    """Return the plan of each leg that has one."""
    return {leg: found.plan.identity for leg, found in record.legs.items() if found.plan}


@pytest.fixture(name="timed", scope="module")
def _timed(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyPlace, dict[str, Said]]:
    """Return a study that went the whole path by commands, and how each of them ended; the switch is not set here."""
    place = declared(tmp_path_factory.mktemp("whole"), WHOLE_YAML)
    own = (place.folder, "--dtype", "bf16")
    results_of = place.results("bf16")
    with pytest.MonkeyPatch.context() as patch:
        fake_gpu(tmp_path_factory.mktemp("site"), patch)
        patch.delenv(FLAG, raising=False)
        said = {"train": call("time", *own)}
        said["gen"] = call("gen", results_of.study_json, "--margin", "0.05", "--emit")
        results_of.lines.write_text(said["gen"].out)
        said["apply"] = call("apply", results_of.lines, "--table", place.table)
        said["holdout"] = call("time", *own, "--split", "holdout")
        said["routing"] = call("time", *own, "--split", "routing")
        assert FLAG not in os.environ
    for name in ("score", "report"):
        said[name] = call(name, *own)
    return place, said | {"replay": call("replay", place.folder)}


@pytest.fixture(name="faulty", scope="module")
def _faulty(tmp_path_factory: pytest.TempPathFactory) -> tuple[StudyPlace, Said]:
    """Return a study whose train split was timed where graphs fail, and how that ended."""
    place = declared(tmp_path_factory.mktemp("faulty"), FAULTY_YAML)
    with pytest.MonkeyPatch.context() as patch:
        fates = {"key_error": [KEY_ERROR], "segfault": [SEGFAULT], "declines": {BACKEND: "no room"}}
        fake_gpu(tmp_path_factory.mktemp("site"), patch, **fates)
        return place, call("time", place.folder, "--dtype", "bf16")


@pytest.fixture(name="start")
def _start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a maker of workers on a fake GPU, which are stopped after the test."""
    made: list[WorkerProcess] = []

    def start(base: str, row: str, **wanted: Any) -> WorkerProcess:
        fake_gpu(tmp_path, monkeypatch, **wanted)
        made.append(WorkerProcess(Terms(engine="cudnn", row=row, base=base, simulated={})))
        return made[-1]

    yield start
    for one in made:
        one.stop()


# A study from end to end


def test_every_step_of_the_path_is_done(timed: tuple[StudyPlace, dict[str, Said]]) -> None:
    """Train, gen, apply, hold-out, routing, score, report and replay end well, and say how many lines there are."""
    place, said = timed

    assert {name: found.code for name, found in said.items()} == dict.fromkeys(said, 0)
    assert [said[name].out for name in ("train", "holdout", "routing")] == [
        "bf16 train: attempt 1, 18 of 18 lines\n",
        "bf16 holdout: attempt 1, 12 of 12 lines\n",
        "bf16 routing: attempt 1, 2 of 2 lines\n",
    ]
    assert "\nholds: " in said["replay"].out + said["replay"].err
    assert place.results("bf16").report.is_file()


def test_train_has_two_plans_and_holdout_the_row_in_auto(timed: tuple[StudyPlace, dict[str, Said]]) -> None:
    """Without an entry auto is the backend's first plan, with it the row; no record has another status than ok."""
    place, _ = timed
    train, holdout = (records_of(place, split) for split in (Split.TRAIN, Split.HOLDOUT))
    bare = {"backend": BACKEND, "frost": ROW, "auto": BACKEND, "default": BACKEND}

    assert {record.status for record in (*train, *holdout)} == {Status.OK}
    assert [(record.lookup, ran(record)) for record in train] == [(None, bare)] * 18
    assert [(record.lookup, ran(record)) for record in holdout] == [(True, {**bare, "auto": ROW})] * 12


def test_routing_is_planned_and_not_timed(timed: tuple[StudyPlace, dict[str, Said]]) -> None:
    """By the guard the routing cases have no entry, so that auto is the default; nothing is launched for them."""
    for record in records_of(timed[0], Split.ROUTING):
        assert (record.status, record.lookup) == (Status.OK, None)
        assert (ran(record)["auto"], ran(record)["default"]) == (BACKEND, BACKEND)
        assert (record.order, {leg.ns for leg in record.legs.values()}) == ((), {()})


def test_every_sample_and_every_block_is_kept(timed: tuple[StudyPlace, dict[str, Said]]) -> None:
    """Each leg has one device and one host time a block, and each block the board's readings before it."""
    for record in records_of(timed[0], Split.HOLDOUT):
        assert record.blocks == {
            "sm_mhz": (1410,) * 8,
            "throttle": (0,) * 8,
            "power_mw": (250_000,) * 8,
            "temperature_c": (40,) * 8,
            "processes": (1,) * 8,
            "floor_ns": (1,) * 8,
        }
        assert (record.clock_mhz, len(record.order)) == ((1410, 1410), 8)
        for leg in LEGS:
            found, cost_ns = record.legs[leg], 40_000 if ran(record)[leg] == ROW else 100_000
            assert (found.inner, found.ns) == (1, (cost_ns,) * 8)
            assert found.host_ns == (2_000,) * 8
            assert found.counters == {"gap": (0,) * 8}


def test_checks_tell_what_was_done_before_timing(timed: tuple[StudyPlace, dict[str, Said]]) -> None:
    """Numbers agree, planning is timed, and a replayed case tells its graphs' nodes and that the flush was seen."""
    records = records_of(timed[0], Split.HOLDOUT)

    for record in records:
        assert {"plan_ns", "took_ns", "legs_grad_ppb", "float64_grad_ppb", "steady"} <= record.checks.keys()
        replayed = {name: record.checks.get(name) for name in ("nodes_5", "nodes_20601", "flush_probe_ppm")}
        cold = record.regime == "replay-cold"
        assert [*replayed.values()] == ([1, 1, 2_000_000] if cold else [None] * 3)
    assert Counter(record.regime for record in records) == {"eager-warm": 6, "replay-cold": 6}
    assert sum("startup_ns" in record.checks for record in records) == 3


def test_the_fingerprint_is_that_of_the_gpu(timed: tuple[StudyPlace, dict[str, Said]]) -> None:
    """Board, memory and cc are the GPU's, its UUID is hashed; switch and SM count are settings, readings are told."""
    for split in Split:
        (file,) = attempt_of(timed[0], split).files
        prints = file.session.fingerprint

        assert (prints.board, prints.cc, prints.memory_bytes) == ("Fake GPU", "8.0", 40 << 30)
        assert (prints.uuid, prints.tick_ns) == (sha256(b"GPU-12345678-1234-1234-1234-123456789abc")[:16], 32)
        assert (prints.settings["frost_flag"], prints.settings["sm_count"]) == ("1", "108")
        assert {"cudnn", "cudnn_frontend", "cudnn_frontend_tree", "driver", "torch"} <= prints.versions.keys()
        assert prints.device["power_mw"] == "250000"


def test_the_score_finds_the_planted_times(timed: tuple[StudyPlace, dict[str, Said]]) -> None:
    """The row takes 40 us and the backend 100: the default's regret is 2.5, that of auto is 1, in both regimes."""
    found = json.loads(timed[0].results("bf16").score.read_bytes())
    metrics = found["metrics"]

    assert (found["verdict"], metrics["cases"], metrics["cases_timed"], metrics["reached"]) == ("PASS", 2, 2, 2)
    assert (metrics["regret_default_geomean"], metrics["regret_auto_max"]) == (2_500_000, 1_000_000)
    assert (metrics["auto_over_default_max"], metrics["routing_changed"]) == (400_000, 0)


# What goes wrong


@pytest.mark.whole
def test_the_run_goes_on_and_counts_add_up(faulty: tuple[StudyPlace, Said]) -> None:
    """A planner that raises, one that takes the process down and a row without plans cost their own lines only."""
    place, said = faulty
    attempt = attempt_of(place, Split.TRAIN)

    assert said[:2] == (0, "bf16 train: attempt 1, 12 of 12 lines (3 crashed, 3 error, 3 no_frost)\n")
    assert (attempt.found, attempt.planned, attempt.missing) == (12, 12, frozenset())
    assert set(Counter((record.case, record.repeat) for record in records_of(place, Split.TRAIN)).values()) == {1}


@pytest.mark.whole
def test_each_case_ends_as_its_fate_says(faulty: tuple[StudyPlace, Said]) -> None:
    """KeyError is an error with its text, SIGSEGV a crash, and no plan of the row is no_frost, in every repeat."""
    place, _ = faulty
    cases = job_of(place, Split.TRAIN).cases
    records = records_of(place, Split.TRAIN)
    words = [record.error.partition(": eng5")[0] for record in records]  # what of the backend declined is told too
    found = {(cases[r.case].s_kv, r.repeat): (r.status, said) for r, said in zip(records, words, strict=True)}

    assert found == {(s_kv, repeat): end for s_kv, end in ENDS.items() for repeat in (1, 2, 3)}


@pytest.mark.whole
def test_the_summary_has_each_case_s_status(faulty: tuple[StudyPlace, Said]) -> None:
    """study.json tells of every case how it ended, so that the counts are those of the frozen cases."""
    place, _ = faulty
    path = place.results("bf16").study_json
    summary = results.study_json(path.read_bytes(), str(path)).summary

    assert Counter(case.status for case in summary.cases) == Counter(status for status, _ in ENDS.values())


@pytest.mark.whole
def test_a_plan_that_does_not_build_is_recorded(faulty: tuple[StudyPlace, Said]) -> None:
    """Where the backend's first plan declines to build, its legs are the second one, and the record says why."""
    well = [record for record in records_of(faulty[0], Split.TRAIN) if record.status is Status.OK]

    assert len(well) == 3
    for record in well:
        assert ran(record) == {"backend": SECOND, "frost": ROW, "auto": SECOND, "default": SECOND}
        assert record.checks["declined_backend"] == "eng5: cudnnGraphNotSupportedError: no room"
        assert set(record.legs["frost"].ns) == {40_000}


def test_a_row_that_does_not_build_is_no_frost(start: Any) -> None:
    """A row whose plans all decline has no leg, and the reason is told; auto goes on to what the table's base has."""
    worker = start("backend", "sdpa_bwd_sm80", declines={BACKEND: "no room", ROW: "no kernel"})
    case = make_case(op="sdpa_bwd", mask="br", window=16, s_q=64, s_kv=64)
    asked = (make_request(case=case, base="backend", lookup=True), make_request(case=case, base="backend", orders=()))
    timed, routed = (worker.ask(request, 60) for request in asked)
    told = "sdpa_bwd_sm80: cudnnGraphNotSupportedError: no kernel"

    assert timed.status is Status.NO_FROST
    assert timed.error.startswith(f"leg frost has no plan: {told}")
    assert ran(timed) == ran(routed) == {"backend": SECOND, "auto": SECOND, "default": SECOND}
    assert routed.status is Status.OK
    assert (routed.checks["declined_frost"], routed.checks["declined_backend"]) == (
        told,
        "eng5: cudnnGraphNotSupportedError: no room",
    )


# The library's switch, and no GPU


def test_the_switch_is_off_for_base_library_though_it_is_on_here(monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    """A worker takes the switch out of its environment: with it, FROST's plan would be the library's first."""
    monkeypatch.setenv(FLAG, "1")
    worker = start("library", "sdpa_fwd_prefill_sm90", cc=(9, 0), sm_count=132)
    prints = worker.fingerprint()
    found = worker.ask(make_request(case=make_case(d_qk=384, d_v=384, mask="tl"), orders=()), 60)

    assert (prints.cc, prints.settings["frost_flag"], prints.settings["sm_count"]) == ("9.0", "", "132")
    assert (found.status, ran(found)["default"]) == (Status.OK, BACKEND)
    assert ran(found)["frost"].startswith("20517[")
    assert os.environ[FLAG] == "1"


def test_the_switch_is_on_for_base_backend_though_it_is_off_here(monkeypatch: pytest.MonkeyPatch, start: Any) -> None:
    """A worker sets the library's switch for a trail-only row, also where the process that asks has it off."""
    monkeypatch.setenv(FLAG, "0")
    prints = start("backend", "sdpa_bwd_sm80").fingerprint()

    assert prints.settings["frost_flag"] == "1"
    assert os.environ[FLAG] == "0"


def test_no_gpu_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU `time` says so in one line with what is needed and exits 2; nothing is written."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    place = declared(tmp_path, WHOLE_YAML)
    before = tree(tmp_path)
    said = call("time", place.folder, "--dtype", "bf16")

    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(
        r"engine cudnn cannot measure here: GPU: none[^;\n]*;"
        r" needed: an NVIDIA GPU with its driver, visible to this process\n",
        said.err,
    )
    assert tree(tmp_path) == before
