"""The simulated device: declared truths, the same samples from the same seed, and declared faults."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benches import SIMULATED, inline, make_job, make_request, run
from factories import STUDY_YAML, make_case

from studytool import frame, measure, stats
from studytool.engines.base import Order, PlanError
from studytool.engines.simulated import BACKEND, FROST, Simulated
from studytool.measure import Measured
from studytool.model import LEGS, SIMULATED_FAULTS, Status

NOISY = {"noise_ppm": 20_000, "process_ppm": 10_000}


def _device(**changes: Any) -> Simulated:
    return Simulated({**SIMULATED, **changes})


def _measured(device: Simulated, **changes: Any) -> Measured:
    return measure.run_case(device, device.own_clock(), make_request(**changes))


def _ns(found: Measured) -> dict[str, tuple[int, ...]]:
    return {leg: record.ns for leg, record in found.legs.items()}


def test_same_seed_gives_same_samples() -> None:
    """Two devices that are declared alike give the same samples for the same request."""
    one, other = (_measured(_device(**NOISY)) for _ in range(2))

    assert one == other
    assert len({*one.legs["backend"].ns}) == 8


def test_samples_do_not_depend_on_what_was_timed_before() -> None:
    """A case has the same samples in a process that timed others before, as in one that begins with it."""
    fresh, used = _device(**NOISY, tick_ns=40), _device(**NOISY, tick_ns=40)
    for s_kv in (64, 999):
        _measured(used, case=make_case(s_kv=s_kv), seed=s_kv)

    assert _measured(used) == _measured(fresh)


@pytest.mark.parametrize("changes", [{"seed": 8}, {"declared": 1}])
def test_other_seed_gives_other_samples(changes: dict[str, int]) -> None:
    """The seed of the request and that of the study both decide the samples."""
    first = _measured(_device(**NOISY))
    second = _measured(_device(**NOISY, seed=changes.get("declared", 0)), seed=changes.get("seed", 7))

    assert not set(_ns(first)["backend"]) & set(_ns(second)["backend"])


def test_time_without_noise_is_what_is_declared() -> None:
    """Without noise, a launch of each leg takes its plan's declared time to the nanosecond."""
    found = _measured(_device(), case=make_case(s_kv=100), lookup=True)

    assert {leg: {ns / record.inner for ns in record.ns} for leg, record in found.legs.items()} == {
        "backend": {100_000.0},
        "frost": {50_000.0},
        "auto": {50_000.0},
        "default": {100_000.0},
    }


def test_clock_ticks() -> None:
    """Times are multiples of the declared tick, and samples are long enough for it."""
    clock = _device(tick_ns=1000).own_clock()
    found = _measured(_device(tick_ns=1000, **NOISY))

    assert clock.tick_ns == 1000
    assert {ns % 1000 for values in _ns(found).values() for ns in values} == {0}
    assert min(_ns(found)["frost"]) >= 150_000


def test_process_effect_is_kept_for_a_repeat() -> None:
    """An effect of the process moves a plan's time from repeat to repeat and stays within one."""
    device = _device(process_ppm=10_000)
    times = [
        {ns / record.inner for record in (found.legs["backend"], found.legs["default"]) for ns in record.ns}
        for found in (_measured(device, seed=seed) for seed in range(20))
    ]
    centers = [math.log(max(values) / 128_000) for values in times]

    assert all(max(values) / min(values) < 1 + 1e-4 for values in times)
    assert 0.005 < math.sqrt(sum(center**2 for center in centers) / 20) < 0.02


def test_noise_has_the_declared_width() -> None:
    """The standard deviation of ln(time) per sample is the declared one."""
    orders = make_request().orders * 25
    found = _measured(_device(noise_ppm=20_000), orders=orders)
    logs = [math.log(ns / found.legs["backend"].inner / 128_000) for ns in _ns(found)["backend"]]

    assert len(logs) == 200
    assert abs(sum(logs) / 200) < 0.005
    assert 0.017 < math.sqrt(sum(log**2 for log in logs) / 200) < 0.023


TRUTH = "simulated: {backend_ns: s_kv * 1000, frost_ns: s_kv * 500 + 64000"


@pytest.mark.parametrize(("noise", "off"), [("", 0.001), (", noise_ppm: 10000, process_ppm: 2000", 0.015)])
def test_declared_ratio_is_recovered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, noise: str, off: float) -> None:
    """What is measured of a declared ratio is that ratio, and legs of one plan have a ratio of one."""
    inline(monkeypatch)
    job = make_job(tmp_path, text=STUDY_YAML.replace(TRUTH, TRUTH + noise))
    table = frame.repeats(run(job).files)
    cases = {
        (job.cases[str(digest)].s_kv): (
            stats.interval(group["ln_backend_frost"].tolist()).center,
            stats.interval(group["ln_auto_default"].tolist()).center,
        )
        for digest, group in table.groupby("case")
    }

    assert len(cases) == 6
    for s_kv, (found, control) in cases.items():
        assert abs(found - math.log(s_kv * 1000 / (s_kv * 500 + 64_000))) < off
        assert abs(control) < off


FATES = {
    Status.CRASHED: "s_kv == 64",
    Status.TIMEOUT: "s_kv == 128",
    Status.ERROR: "s_kv == 256",
    Status.WRONG_RESULT: "s_kv == 512",
    Status.REFUSED: "s_kv == 96",
    Status.DECLINED: "s_kv == 160",
    Status.NO_FROST: "s_kv == 32",
    Status.NO_BACKEND: "s_kv == 48",
}
WORDS = {
    Status.OK: "",
    Status.CRASHED: "ended by SIGKILL",
    Status.TIMEOUT: "no answer in 1 s",
    Status.ERROR: "RuntimeError: the simulated engine has a defect",
    Status.WRONG_RESULT: "legs_o_ppb is 500000000; expected at most 12000000",
    Status.REFUSED: "the simulated engine says refused",
    Status.DECLINED: "the simulated engine says declined",
    Status.NO_FROST: "leg frost has no plan",
    Status.NO_BACKEND: "leg backend has no plan",
}


def test_every_fault_costs_its_lines_and_not_the_run(tmp_path: Path) -> None:
    """Each declared fault gives its status and words, in every repeat; the other cases are timed all the same."""
    faults = "".join(f", {status}: {text}" for status, text in FATES.items())
    text = STUDY_YAML.replace("+ 64000}", f"+ 64000{faults}}}").replace("[64,", "[16, 24, 32, 48, 64,")
    job = make_job(tmp_path, text=text.replace("blocks: 8", "blocks: 8, case_timeout_s: 1"))
    attempt = run(job)
    records = [record for file in attempt.files for record in file.records]
    counts = Counter(record.status for record in records)

    assert (len(job.cases), attempt.found, attempt.missing) == (10, 30, frozenset())
    assert counts == {Status.OK: 6, **dict.fromkeys(FATES, 3)}
    assert {(record.status, record.error) for record in records} == {*WORDS.items()}
    for record in records:
        expected = next(
            (status for status, text in FATES.items() if text.endswith(f" {job.cases[record.case].s_kv}")), "ok"
        )
        assert record.status == expected
        assert bool(record.order) is (expected == "ok")


def test_every_fault_has_an_example() -> None:
    """The study above declares every fault that there is."""
    assert {str(status) for status in FATES} == set(SIMULATED_FAULTS)


def test_faults_hold_where_their_comparison_does() -> None:
    """A fault is for the cases of which its comparison holds; fields that a case leaves out are neutral."""
    device = _device(refused="window == 0", declared=1)

    with pytest.raises(PlanError):
        device.prepare(make_case(), Order("library", None), 1, "normal")
    assert device.prepare(make_case(mask="tl", window=8), Order("library", None), 1, "normal").plans["frost"] == FROST


@pytest.mark.parametrize("lookup", [None, True, False])
@pytest.mark.parametrize(("fate", "kept"), [("no_frost", BACKEND), ("no_backend", FROST)])
def test_missing_side_leaves_the_other(lookup: bool | None, fate: str, kept: object) -> None:
    """Without one side, auto and default run the other, whatever the table says."""
    bench = _device(**{fate: "b == 1"}).prepare(make_case(), Order("library", lookup), 1, "normal")

    assert (bench.plans["auto"], bench.plans["default"]) == (kept, kept)
    assert [leg for leg in LEGS if bench.plans[leg] is None] == [fate.removeprefix("no_")]


def test_leg_without_a_plan_cannot_be_timed() -> None:
    """Timing a leg that has no plan is an error, not a sample of another one."""
    bench = _device(no_frost="b == 1").prepare(make_case(), Order("library", None), 1, "normal")

    with pytest.raises(ValueError, match="leg frost has no plan"), bench.armed("frost"):
        pass


def test_facts_are_the_declaration() -> None:
    """Everything that is declared is among the settings, so that another truth is another machine."""
    facts = _device(noise_ppm=5).facts()

    assert facts.settings == {name: str(value) for name, value in {**SIMULATED, "noise_ppm": 5}.items()}
    assert (facts.cc, facts.board) == ("sim-1", "simulated device")
