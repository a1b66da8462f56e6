"""The simulated device: declared truths, the same samples from the same seed, and declared faults."""

import itertools
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benches import SIMULATED, inline, make_job, make_request, run, stopped
from factories import STUDY_YAML, make_case

from studytool import fingerprint, frame, measure, stats
from studytool.digest import sha256
from studytool.engines.base import Order, PlanError, Seeds
from studytool.engines.simulated import BACKEND, FROST, WHICH_BOARD, Simulated
from studytool.errors import StudyError
from studytool.measure import Measured
from studytool.model import LEGS, Fingerprint

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
        for found in (_measured(device, process_seed=seed) for seed in range(20))
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


def test_faults_hold_where_their_comparison_does() -> None:
    """A fault is for the cases of which its comparison holds; fields that a case leaves out are neutral."""
    device, asked = _device(refused="window == 0", declared=1), (Order("library", None), Seeds(1, 1), "normal")

    with pytest.raises(PlanError):
        device.prepare(make_case(), *asked)
    assert device.prepare(make_case(mask="tl", window=8), *asked).plans["frost"] == FROST


@pytest.mark.parametrize("lookup", [None, True, False])
@pytest.mark.parametrize(("fate", "kept"), [("no_frost", BACKEND), ("no_backend", FROST)])
def test_missing_side_leaves_the_other(lookup: bool | None, fate: str, kept: object) -> None:
    """Without one side, auto and default run the other, whatever the table says."""
    bench = _device(**{fate: "b == 1"}).prepare(make_case(), Order("library", lookup), Seeds(1, 1), "normal")

    assert (bench.plans["auto"], bench.plans["default"]) == (kept, kept)
    assert [leg for leg in LEGS if bench.plans[leg] is None] == [fate.removeprefix("no_")]


def test_leg_without_a_plan_cannot_be_timed() -> None:
    """Timing a leg that has no plan is an error, not a sample of another one."""
    bench = _device(no_frost="b == 1").prepare(make_case(), Order("library", None), Seeds(1, 1), "normal")

    with pytest.raises(KeyError, match="frost"), bench.armed("frost", "eager-warm"):
        pass


def test_facts_are_the_declaration() -> None:
    """Everything that is declared is among the settings, so that another truth is another machine."""
    facts = _device(noise_ppm=5).facts()

    assert facts.settings == {name: str(value) for name, value in {**SIMULATED, "noise_ppm": 5}.items()}
    assert (facts.cc, facts.board) == ("sim-1", "simulated device")


def test_virtual_time_is_what_everything_took() -> None:
    """The clock goes on over the cases of a process: building, warming up, flushing and timing all take their time."""
    device = _device(jit_ms=40)
    clock = device.own_clock()
    times = [clock.now_ns()]
    for regime in ("eager-warm", "eager-warm", "eager-cold"):
        _measured(device, regime=regime)
        times.append(clock.now_ns())
    first, second, cold = (after - before for before, after in itertools.pairwise(times))

    assert times[0] == 0
    assert first == second > 42_000_000 + 8 * 4 * 150_000
    assert cold > first + 8 * 4 * 100_000


def test_jit_is_build_time_and_no_sample() -> None:
    """What the frost side takes to be compiled stands in its build time, and its samples stay as they are."""
    slow, plain = (_measured(_device(jit_ms=jit_ms)) for jit_ms in (250, 0))

    assert {leg: slow.legs[leg].build_ns - plain.legs[leg].build_ns for leg in LEGS} == {
        **dict.fromkeys(LEGS, 0),
        "frost": 250_000_000,
    }
    assert _ns(slow) == _ns(plain)


BOARDS = {
    "unset": (None, "simulated device", ""),
    "empty": ("", "simulated device", ""),
    "a serial": ("A", "simulated device", "A"),
    "a model and a serial": ("H200:A", "H200", "A"),
    "a model alone": ("H200:", "H200", ""),
    "a serial behind no model": (":A", "simulated device", "A"),
    "a model with a colon": ("NVIDIA: H200:A", "NVIDIA: H200", "A"),
}
"""What the environment says of the board, the model that this is, and the serial."""


@pytest.mark.parametrize(("said", "model", "serial"), BOARDS.values(), ids=BOARDS)
def test_the_environment_says_which_board_it_is(
    monkeypatch: pytest.MonkeyPatch, said: str | None, model: str, serial: str
) -> None:
    """SERIAL or MODEL:SERIAL; what is not said is a simulated device whose serial is the machine's own id."""
    monkeypatch.delenv(WHICH_BOARD, raising=False)
    undeclared = _fingerprint()
    if said is not None:
        monkeypatch.setenv(WHICH_BOARD, said)
    facts, found = _device().facts(), _fingerprint()

    assert (facts.board, facts.uuid, facts.cc) == (model, serial, "sim-1")
    assert (found.board, found.uuid) == (model, sha256(serial.encode())[:16] if serial else undeclared.uuid)


def _fingerprint() -> Fingerprint:
    device = _device(**NOISY)
    return fingerprint.take(device, device.own_clock())


def test_boards_of_two_serials_are_comparable_and_give_the_same_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The serial changes nothing but the id, of which a hash alone is told: not what is measured, nor its seeds."""
    found = []
    for serial in ("serial-of-one", "serial-of-another"):
        monkeypatch.setenv(WHICH_BOARD, serial)
        found.append((_fingerprint(), _measured(_device(**NOISY))))
    (one, samples), (another, others) = found

    assert one.uuid != another.uuid
    assert msgspec.structs.replace(one, uuid=another.uuid) == another
    assert b"serial" not in msgspec.json.encode([one.uuid, another.uuid])
    assert fingerprint.comparable(one, another) is None
    assert samples == others
    assert len({*_ns(samples)["backend"]}) == 8


def test_boards_of_two_models_are_not_comparable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that was begun on one model does not go on on another one, though all else is the same."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    monkeypatch.setenv(WHICH_BOARD, "H200:A")
    one = _fingerprint()
    stopped(job, 3)
    monkeypatch.setenv(WHICH_BOARD, "B200:A")

    assert fingerprint.comparable(one, _fingerprint()) == "board H200 and B200"
    with pytest.raises(StudyError, match=r"3 of 18 lines from another state: board H200 and B200"):
        run(job)
    monkeypatch.setenv(WHICH_BOARD, "H200:A")
    assert run(job).found == 18
