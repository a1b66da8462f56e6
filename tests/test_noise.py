"""The health of records: what disturbed them is found in its size, and each code begins at its limit."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from devices import health_of, log_ratio, measured
from factories import make_case, make_fingerprint, make_leg, make_record, make_session, write_session

from studytool import noise, rows, schedule, stats
from studytool.grid import case_digest
from studytool.model import LEGS, Record
from studytool.noise import Health
from studytool.stats import Interval

LIMIT = 0.025
CLEAN = Health(drift=0.0, carry=0.0, position=0.0, lag1=0.0, trend=0.0, ticks=200.0, probe=math.nan)
REPEATS = range(1, 6)
QUIET: dict[str, Any] = {"noise_ppm": 3000, "process_ppm": 5000, "drift_ppm": 10_000}
"""What any device does, and no code is for."""


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ticks": 100.0}, ""),
        ({"ticks": 99.9}, "TICK"),
        ({"trend": 0.025}, ""),
        ({"trend": 0.02501}, "UNSTEADY"),
        ({"trend": -0.025}, ""),
        ({"trend": -0.02501}, "UNSTEADY"),
        ({"probe": 1.05}, ""),
        ({"probe": 1.0499}, "CONTROL"),
        ({"drift": 0.0246}, ""),
        ({"drift": 0.0248}, "DRIFT"),
        ({"drift": -0.0246}, ""),
        ({"drift": -0.0248}, "DRIFT"),
        ({"lag1": 0.9, "position": 0.5, "carry": 0.5}, ""),  # these are told, and are no code of a case by itself
    ],
)
def test_code_begins_at_its_limit(changes: dict[str, float], code: str) -> None:
    """A health at the limit has no code, and just beyond it has its own; ln(1.025) is 0.02469."""
    assert noise.case_code([CLEAN._replace(**changes)] * 5, [], LIMIT) == code


@pytest.mark.parametrize(
    ("control", "code"),
    [([], ""), ([0.0246, -0.0246], ""), ([0.0248], "CONTROL"), ([0.0, -0.0248], "CONTROL")],
)
def test_control_is_the_ratio_of_legs_of_one_plan(control: list[float], code: str) -> None:
    """Legs of one plan that differ by more than the study's limit, either way, fail the control."""
    assert noise.case_code([CLEAN] * 5, control, LIMIT) == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [({"ticks": 99.0}, "TICK"), ({"probe": 1.0}, "CONTROL"), ({"trend": 0.3}, ""), ({"drift": 0.3}, "")],
)
def test_one_bad_repeat_is_enough_where_it_is_no_chance(changes: dict[str, float], code: str) -> None:
    """Ticks and probe must be well in every repeat; a trend or a drift of one repeat alone may be by chance."""
    assert noise.case_code([CLEAN, CLEAN._replace(**changes), CLEAN, CLEAN, CLEAN], [], LIMIT) == code


def test_first_code_is_the_one_that_spoils_the_others() -> None:
    """Where several things fail, the code is that of the first cause: too short, then unsteady, control, drift."""
    bad = {"ticks": 1.0, "trend": 0.5, "probe": 1.0, "drift": 0.5}
    said = []
    for name in bad:
        said.append(noise.case_code([CLEAN._replace(**bad)] * 5, [], LIMIT))
        bad = {**bad, name: CLEAN._asdict()[name]}

    assert said == ["TICK", "UNSTEADY", "CONTROL", "DRIFT"]
    assert noise.case_code([CLEAN._replace(**bad)] * 5, [], LIMIT) == ""


@pytest.mark.parametrize(
    ("effect", "found"),
    [
        ((0.03, 0.026, 0.034), True),
        ((0.03, 0.024, 0.036), False),
        ((0.03, -0.01, 0.07), False),
        ((-0.03, -0.034, -0.026), True),
        ((-0.03, -0.036, -0.024), False),
        ((0.02, 0.019, 0.021), False),
        ((0.03, -math.inf, math.inf), False),
    ],
)
def test_beyond_is_the_whole_interval(effect: tuple[float, float, float], found: bool) -> None:
    """An effect is beyond the limit when its whole interval is, on either side."""
    assert noise.beyond(Interval(*effect), 0.025) is found


@pytest.mark.parametrize("noise_ppm", [5000, 20_000, 40_000])
def test_white_noise_is_neither_unsteady_nor_drift(noise_ppm: int) -> None:
    """Noise alone, however large, has no trend after the warm-up and no drift, in all but a few of forty studies."""
    said = []
    for study in range(40):
        found = [
            health_of(measured(repeat=repeat, seed=100 * study + repeat, noise_ppm=noise_ppm)) for repeat in REPEATS
        ]
        said.append(noise.case_code(found, [], LIMIT))

    assert said.count("") >= 37


@pytest.mark.parametrize("blocks", [8, 24, 48])
def test_an_interrupted_sample_is_no_drift(blocks: int) -> None:
    """A sample that was interrupted does not make the ratio drift, however long it took."""
    assert _apart([1e9 * (3 if block == 1 else 1) for block in range(blocks)]).drift == 0.0


def test_clean_record_has_no_code() -> None:
    """Ordinary noise, process effects and a drift that both sides share leave a case without any code."""
    found = [measured(repeat=repeat, **QUIET) for repeat in REPEATS]
    pairs = [float(np.mean([log_ratio(one, "auto", "default") for one in found]))]

    assert noise.case_code([health_of(one) for one in found], pairs, LIMIT) == ""
    assert abs(np.mean([log_ratio(one) for one in found]) - math.log(0.5)) < 0.01


@pytest.mark.parametrize("carry_ppm", [20_000, 50_000, 100_000])
def test_carry_over_is_recovered(carry_ppm: int) -> None:
    """What frost does to the launch after it is found in its size, with an interval that leaves out zero."""
    found = [
        health_of(measured(repeat=repeat, carry_ppm=carry_ppm, min_sample_ns=50_000, **QUIET)) for repeat in REPEATS
    ]
    effect, truth = noise.carry_over([found]), math.log1p(carry_ppm / 1e6)

    assert effect is not None
    assert effect.center == pytest.approx(truth, rel=1 / 3)
    assert effect.low > 0
    assert np.mean([one.position for one in found]) < truth / 3


def test_no_carry_over_is_found_where_there_is_none() -> None:
    """Without one the carry-over is zero within its interval, whatever else disturbs the device."""
    found = [health_of(measured(repeat=repeat, min_sample_ns=50_000, **QUIET)) for repeat in REPEATS]
    effect = noise.carry_over([found, found])

    assert effect is not None
    assert effect.low < 0 < effect.high
    assert abs(effect.center) < 0.005


def test_carry_over_averages_cases_before_repeats() -> None:
    """The interval is over repeats, of which each is the mean of all cases; without records there is none."""
    found = [[CLEAN._replace(carry=carry) for carry in case] for case in ((0.01, 0.03, 0.05), (0.03, 0.05, 0.07))]

    assert noise.carry_over(found) == pytest.approx(stats.interval([0.02, 0.04, 0.06]))
    assert noise.carry_over([]) is None


def _record(times: Mapping[str, Sequence[float]], orders: Sequence[str], **checks: int) -> Record:
    legs = {leg: make_leg([round(ns) for ns in times[leg]], plan=5 if leg == "frost" else 1) for leg in LEGS}
    return make_record(legs=legs, order=tuple(orders), checks=dict(checks))


def _in_place(places: Sequence[float], repeat: int, noise_sd: float = 0.003) -> Record:
    """Return a record whose samples are slowed down by a factor of their place in the block."""
    random = np.random.default_rng(repeat)
    orders = schedule.block_orders("study", "case", repeat, "eager-warm", 24)
    times = {
        leg: [
            200_000 * places[order.index(str(number))] * math.exp(noise_sd * random.standard_normal())
            for order in orders
        ]
        for number, leg in enumerate(LEGS)
    }
    return _record(times, orders)


@pytest.mark.parametrize("places", [(1.03, 1.0, 1.0, 1.0), (1.0, 1.01, 1.02, 1.03), (1.0, 1.0, 1.0, 0.95)])
def test_position_effect_is_recovered(places: tuple[float, ...]) -> None:
    """What a place in the block costs is found in its size, and is not taken for carry-over."""
    found = [noise.health(_in_place(places, repeat), 1) for repeat in REPEATS]
    truth = math.log(max(places) / min(places))

    assert np.mean([one.position for one in found]) == pytest.approx(truth, rel=1 / 3)
    assert abs(np.mean([one.carry for one in found])) < truth / 3


def test_no_position_effect_is_found_where_there_is_none() -> None:
    """Without noise a place costs nothing, and neither does anything else."""
    found = noise.health(_in_place((1.0,) * 4, 1, 0.0), 1)

    assert found[:4] == pytest.approx((0.0, 0.0, 0.0, 0.0), abs=1e-9)


def _apart(frost: Sequence[float]) -> Health:
    """Return the health of a record whose frost leg takes these times, while the others stay the same."""
    count = len(frost)
    times: dict[str, Sequence[float]] = {**dict.fromkeys(LEGS, [1e9] * count), "frost": frost}
    return noise.health(_record(times, schedule.block_orders("s", "c", 1, "r", count)), 1)


def test_trend_of_the_ratio_is_drift_and_autocorrelation() -> None:
    """A ratio that changes steadily drifts by its whole change, and each value is like the one before it."""
    found = _apart([1e9 * math.exp(0.06 * block / 23) for block in range(24)])

    assert found.drift == pytest.approx(0.06, rel=0.05)
    assert found.lag1 == pytest.approx(0.875, abs=0.01)


def test_ratio_that_alternates_has_no_drift() -> None:
    """A ratio that goes up and down from block to block has a negative autocorrelation and hardly any drift."""
    found = _apart([1e9 * math.exp(0.01 * (-1) ** block) for block in range(24)])

    assert found.lag1 == pytest.approx(-1.0, abs=0.05)
    assert abs(found.drift) < 0.003


def test_independent_noise_has_no_autocorrelation() -> None:
    """The autocorrelation of noise is near zero on average, and never one."""
    found = [
        _apart((1e9 * np.exp(0.01 * np.random.default_rng(seed).standard_normal(24))).tolist()).lag1
        for seed in range(60)
    ]

    assert abs(np.mean(found) + 1 / 24) < 0.06
    assert max(np.abs(found)) < 0.8


def test_health_reads_the_checks_of_its_record() -> None:
    """Trend and probe are those that the record tells; ticks is the shortest sample of any leg in ticks."""
    legs = dict(make_record().legs) | {"auto": make_leg((200_000, 90_000, 200_000, 200_000))}
    found = noise.health(make_record(legs=legs, checks={"trend_ppm": -7000, "flush_probe_ppm": 1_200_000}), 1000)

    assert (found.trend, found.probe, found.ticks) == (-0.007, 1.2, 90.0)
    assert math.isnan(noise.health(make_record(), 1).probe)


def _codes(folder: Path, *records: Record) -> dict[rows.Cell, str]:
    session = make_session(fingerprint=make_fingerprint())
    cells = rows.timed_cells(rows.rows([write_session(folder / "train-01-001.jsonl", session, records)]))
    return rows.codes(cells, rows.aliased(cells), LIMIT)


@pytest.mark.parametrize(("scale", "code"), [(1.024, ""), (1.026, "CONTROL")])
def test_control_of_the_study_is_the_control_of_each_case(tmp_path: Path, scale: float, code: str) -> None:
    """A band above the limit spoils every case, also one whose own legs agree."""
    cases = [make_case(s_kv=64 * number) for number in range(1, 4)]
    slow = {leg: make_leg([round(200_000 * scale)] * 4) for leg in ("auto", "default")}
    records = [make_record(of=case, legs={**make_record().legs, **slow}) for case in cases[1:]]
    found = _codes(tmp_path, make_record(of=cases[0]), *records)

    assert found == {(case_digest(case), "eager-warm"): code for case in cases}


def test_without_a_control_no_case_is_well(tmp_path: Path) -> None:
    """Where no legs ran one plan there is no noise floor, and each case says CONTROL."""
    legs = {leg: make_leg(plan=number) for number, leg in enumerate(LEGS)}
    found = _codes(tmp_path, make_record(legs=legs))

    assert list(found.values()) == ["CONTROL"]


@pytest.mark.parametrize(("carry_ppm", "code"), [(15_000, ""), (100_000, "CARRY")])
def test_carry_over_of_the_study_is_that_of_each_case(tmp_path: Path, carry_ppm: int, code: str) -> None:
    """A carry-over above the limit spoils every case of the study; a smaller one is told and spoils none."""
    records = []
    for s_kv in (128, 256):
        for repeat in REPEATS:
            one = measured(
                repeat=repeat, carry_ppm=carry_ppm, min_sample_ns=1000, case=make_case(s_kv=s_kv), noise_ppm=1000
            )
            legs = {"legs": one.legs, "order": one.order, "checks": one.checks}
            records.append(make_record(of=make_case(s_kv=s_kv), repeat=repeat, **legs))
    found = _codes(tmp_path, *records)

    assert set(found.values()) == {code}


def test_one_plan_under_two_names_is_one_plan() -> None:
    """A leg of frost's engine and knobs under another name is no other plan, and pays no carry-over."""
    record = measured(repeat=1, carry_ppm=50_000, min_sample_ns=1000, noise_ppm=0)
    plan = record.legs["frost"].plan
    assert plan is not None
    found = []
    for name in (plan.name, "another name"):
        auto = msgspec.structs.replace(record.legs["auto"], plan=msgspec.structs.replace(plan, name=name))
        legs = {**record.legs, "auto": auto}
        found.append(noise.health(make_record(legs=legs, order=record.order, checks=record.checks), 1).carry)

    assert found[0] == found[1]
    assert found[0] != noise.health(make_record(legs=record.legs, order=record.order, checks=record.checks), 1).carry
