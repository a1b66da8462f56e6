"""Records → frames → summary, from hand-written records with known answers."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from factories import (
    make_case,
    make_fingerprint,
    make_leg,
    make_record,
    make_session,
    make_study,
    write_session,
)

from studytool import frame, jsonl, rows, studyjson, summary
from studytool.attempts import Attempt
from studytool.grid import case_digest
from studytool.jsonl import SessionFile
from studytool.model import LEGS, LegRecord, Plan, Record, Status

CASE, OTHER = make_case(), make_case(s_kv=256)
BLOCKS = 4


def _file(folder: Path, *records: Record, tick_ns: int = 1) -> SessionFile:
    session = make_session(fingerprint=make_fingerprint(tick_ns=tick_ns))
    return write_session(folder / "train-01-001.jsonl", session, records)


def _table(folder: Path, *records: Record, tick_ns: int = 1) -> pd.DataFrame:
    return frame.repeats([_file(folder, *records, tick_ns=tick_ns)])


def _rows(folder: Path, *records: Record) -> list[rows.Row]:
    return rows.rows([_file(folder, *records)])


def _cells(folder: Path, *records: Record) -> dict[rows.Cell, list[rows.Row]]:
    return rows.timed_cells(_rows(folder, *records))


def _record(scale: dict[str, float], plans: dict[str, int] | None = None, **changes: Any) -> Record:
    """Return a record whose legs take 200 us a sample times their scale; all but frost are plan 1."""
    plans = {"frost": 5} | (plans or {})
    legs = {leg: make_leg([round(200_000 * scale.get(leg, 1.0))] * BLOCKS, plan=plans.get(leg, 1)) for leg in LEGS}
    return make_record(legs=legs, **changes)


def test_row_of_a_record(tmp_path: Path) -> None:
    """A record becomes a row: medians per launch, plans, log ratios below 0 where the first leg is faster, aliases."""
    (row,) = _table(tmp_path, make_record(lookup=True)).to_dict("records")

    assert [row[name] for name in ("case", "repeat", "regime", "status")] == [case_digest(CASE), 1, "eager-warm", "ok"]
    assert [row[f"{leg}_ns"] for leg in LEGS] == [100_000, 50_000, 100_000, 100_000]
    assert [row[f"{leg}_plan"] for leg in LEGS] == ["1", "5", "1", "1"]
    assert row["ln_backend_frost"] == pytest.approx(math.log(2))
    assert row["ln_frost_auto"] == pytest.approx(-math.log(2))
    assert row["ln_auto_default"] == 0
    assert [row[f"alias_{a}_{b}"] for a, b in rows.PAIRS] == [False, True, True, False, False, True]


@pytest.mark.parametrize("answers", [[True, False, None], [True, False], [None]])
def test_lookup_keeps_its_three_answers(tmp_path: Path, answers: list[bool | None]) -> None:
    """True, False and None stay what they are, and do not become numbers."""
    table = _table(tmp_path, *(make_record(repeat=n, lookup=answer) for n, answer in enumerate(answers, 1)))

    assert table["lookup"].dtype == object
    assert [value is answer for value, answer in zip(table["lookup"], answers, strict=True)] == [True] * len(answers)


def test_failed_record_has_no_times(tmp_path: Path) -> None:
    """A record that is not ok has its status and error, its plans as far as there are any, and no number."""
    legs = {"backend": make_leg(()), "frost": make_leg((), plan=5)}
    (row,) = _table(tmp_path, make_record(status=Status.CRASHED, error="signal 11", legs=legs)).to_dict("records")

    assert (row["status"], row["error"], row["backend_plan"], row["auto_plan"]) == ("crashed", "signal 11", "1", "")
    assert all(math.isnan(row[f"ln_{a}_{b}"]) for a, b in rows.PAIRS)
    assert all(math.isnan(row[f"{leg}_ns"]) for leg in LEGS)


def test_tick_of_the_session_decides_the_estimator(tmp_path: Path) -> None:
    """Where the clock is coarse for the shortest sample, ratios come from means; leg times stay medians."""
    legs = dict(make_record().legs) | {"frost": make_leg((100_000, 100_000, 100_000, 400_000), plan=5)}
    fine, coarse = (_table(tmp_path / str(tick_ns), make_record(legs=legs), tick_ns=tick_ns) for tick_ns in (200, 201))

    assert fine["ln_backend_frost"][0] == pytest.approx(math.log(2))
    assert coarse["ln_backend_frost"][0] == pytest.approx(math.log(200 / 175))
    assert fine["frost_ns"][0] == coarse["frost_ns"][0] == 50_000


@pytest.mark.parametrize("tick_ns", [1, 10_000])
def test_ratios_of_one_record_are_those_of_its_row(tmp_path: Path, tick_ns: int) -> None:
    """What is told of a line while it is measured is what its row says later; a line without samples says nothing."""
    record = make_record(legs={leg: make_leg((100_000 + 7 * n, 90_000, 110_000, 95_000)) for n, leg in enumerate(LEGS)})
    (row,) = rows.rows([_file(tmp_path, record, tick_ns=tick_ns)])

    assert tuple(rows.log_ratios(record, tick_ns).values()) == row.ln
    assert tuple(rows.log_ratios(record, tick_ns)) == rows.PAIRS
    assert rows.log_ratios(make_record(status=Status.CRASHED), tick_ns) == {}


@pytest.mark.parametrize(("host", "bound"), [((), False), ((90_000,) * 4, False), ((110_000,) * 4, True)])
def test_host_bound(tmp_path: Path, host: tuple[int, ...], bound: bool) -> None:
    """A record is host bound when any leg's host time exceeds its device time."""
    legs = dict(make_record().legs) | {"frost": make_leg((100_000,) * 4, plan=5, host_ns=host)}
    (row,) = _table(tmp_path, make_record(legs=legs)).to_dict("records")

    assert row["host_bound"] is bound


@pytest.mark.parametrize(("gaps", "bound"), [((0, 0, 0, 0), False), ((0, 1, 0, 0), True)])
def test_a_gap_that_a_clock_could_not_avoid_is_host_bound(tmp_path: Path, gaps: tuple[int, ...], bound: bool) -> None:
    """A single sample with the host's time in it is enough."""
    leg = make_leg((100_000,) * 4, plan=5, host_ns=(90_000,) * 4, counters={"gap": gaps})
    (row,) = _table(tmp_path, make_record(legs=dict(make_record().legs) | {"frost": leg})).to_dict("records")

    assert row["host_bound"] is bound


def test_steady_unless_the_record_says_otherwise(tmp_path: Path) -> None:
    """A record that did not settle says so."""
    table = _table(tmp_path, make_record(), make_record(repeat=2, checks={"steady": 0}))

    assert table["steady"].tolist() == [True, False]


def test_control_is_found_by_plan(tmp_path: Path) -> None:
    """Legs that ran one plan are the control, whatever they are called: here frost leads and auto follows it."""
    scale = {"frost": 0.5, "auto": 0.51}
    cells = _cells(tmp_path, _record(scale, {"auto": 5}), _record(scale, {"auto": 5}, repeat=2))

    assert rows.control(rows.aliased(cells)) == pytest.approx([0.0, math.log(0.5 / 0.51)])


def test_control_looks_at_knobs_and_not_at_names(tmp_path: Path) -> None:
    """One plan under two names is a control; one engine with other knobs is another plan."""
    plans = [
        Plan(engine=7, name="a", knobs={"x": 1, "y": 2}),
        Plan(engine=7, name="b", knobs={"y": 2, "x": 1}),
        Plan(engine=7, name="a", knobs={"x": 1, "y": 3}),
        Plan(engine=7, name="a"),
    ]
    legs = {leg: LegRecord(plan=plan, inner=1, ns=(9,) * BLOCKS) for leg, plan in zip(LEGS, plans, strict=True)}
    file = _file(tmp_path, make_record(legs=legs))
    table = frame.repeats([file])

    assert [pair for pair in rows.PAIRS if table[f"alias_{pair[0]}_{pair[1]}"].all()] == [("backend", "frost")]
    assert rows.control(rows.aliased(rows.timed_cells(rows.rows([file])))) == [0.0]


def test_control_needs_one_plan_in_all_repeats(tmp_path: Path) -> None:
    """Legs that ran one plan in one repeat and two in another are no control."""
    other = {"backend": 1, "auto": 2, "default": 3}
    cells = _cells(tmp_path, _record({}), _record({}, other, repeat=2), _record({"auto": 1.02}, of=OTHER))

    assert rows.control(rows.aliased(cells)) == pytest.approx([-math.log(1.02), 0.0, math.log(1.02)])


def test_control_is_per_case_and_regime(tmp_path: Path) -> None:
    """Repeats are averaged within a case and regime, and failed lines count for nothing."""
    cells = _cells(
        tmp_path,
        _record({"auto": 1.02}, {"default": 9}),
        _record({"auto": 1.04}, {"default": 9}, repeat=2),
        _record({"auto": 1.10}, {"default": 9}, regime="cold"),
        make_record(status=Status.TIMEOUT, repeat=3),
    )

    assert sorted(rows.control(rows.aliased(cells))) == pytest.approx([-math.log(1.10), -math.log(1.02 * 1.04) / 2])


def test_band_is_the_95th_percentile_of_the_control(tmp_path: Path) -> None:
    """The band is taken over |ln| of all aliased pairs: here of 20 values 0.001, 0.002, ... 0.020."""
    records = []
    for number in range(1, 21):
        auto = round(10**9 * math.exp(number / 1000 * (-1) ** number))
        legs = {"auto": make_leg([auto] * BLOCKS), "default": make_leg(plan=9), "frost": make_leg(plan=5)}
        legs["backend"] = make_leg([10**9] * BLOCKS)
        records.append(make_record(legs=legs, of=make_case(s_kv=64 * number)))

    assert rows.band(rows.aliased(_cells(tmp_path, *records))) == pytest.approx(0.01905)


def test_no_alias_no_band(tmp_path: Path) -> None:
    """Four legs with four plans have no control, and so has no record at all."""
    plans = {"backend": 1, "auto": 2, "default": 3}

    assert rows.band(rows.aliased(_cells(tmp_path, _record({}, plans)))) is None
    assert rows.band({}) is None


def test_interval_of_a_pair_has_a_sign(tmp_path: Path) -> None:
    """ln(a/b) is below 0 where a is faster; the pair the other way round is its mirror, bounds exchanged."""
    records = [_record({"frost": scale}, repeat=n) for n, scale in enumerate((0.4, 0.5, 0.625), 1)]
    found = _rows(tmp_path, *records)
    one, other = (rows.pair_interval(found, *pair, 0.95) for pair in (("frost", "backend"), ("backend", "frost")))
    half = 4.302652729911275 * math.log(1.25) / math.sqrt(3)

    assert one == pytest.approx((math.log(0.5), math.log(0.5) - half, math.log(0.5) + half))
    assert other == (-one.center, -one.high, -one.low)


def test_leg_time_is_a_median_of_medians(tmp_path: Path) -> None:
    """A leg's time is the median over repeats of the median over blocks, per launch."""
    blocks = [(2, 4, 6, 1000), (20, 40, 60, 80), (200, 400, 600, 800)]
    records = [
        make_record(repeat=n, legs=dict(make_record().legs) | {"frost": make_leg(ns, plan=5)})
        for n, ns in enumerate(blocks, 1)
    ]

    assert rows.leg_ns(_rows(tmp_path, *records), "frost") == 25.0


def _summarise(folder: Path, *records: Record) -> studyjson.Summary:
    cases = {case_digest(case): case for case in (CASE, OTHER)}
    file = _file(folder, *records)
    return summary.summarise(make_study(), "m", "bf16", Attempt(3, (file,), 6, frozenset(), ()), cases)


def test_summary_rounds_once(tmp_path: Path) -> None:
    """A summary has ratio and interval in ppm, leg times in whole ns, plans, class and the digests it rests on."""
    records = [_record({"frost": scale}, repeat=n) for n, scale in enumerate((0.4, 0.5, 0.625), 1)]
    others = [_record({}, repeat=n, of=OTHER) for n in (1, 2, 3)]
    found = _summarise(tmp_path, *others, *records)
    case = next(case for case in found.cases if case.digest == case_digest(CASE))
    half = 4.302652729911275 * math.log(1.25) / math.sqrt(3)
    low, high = (round(0.5 * math.exp(side * half) * 1e6) for side in (-1, 1))

    assert case.regimes == {
        "eager-warm": studyjson.RegimeSummary(
            repeats=3,
            code="",
            ratio_ppm=500_000,
            low_ppm=low,
            high_ppm=high,
            leg_ns={"backend": 100_000, "frost": 50_000, "auto": 100_000, "default": 100_000},
        )
    }
    assert (case.label, case.fields) == (CASE.label, CASE.fields)
    assert case.class_key == ("open_engine", "host", "sdpa_fwd", "bf16", "none")
    assert case.plans == {"backend": "1", "frost": "5", "auto": "1", "default": "1"}
    assert (found.attempt, found.band_ppm, found.dtype, found.study) == (3, 0, "bf16", "tiny")
    assert found.records == jsonl.contents([*records, *others])
    assert studyjson.decode(studyjson.encode(found), "study.json") == found


def test_summary_keeps_the_worst_status(tmp_path: Path) -> None:
    """A case with a line that is not ok ends as its first bad line did, and keeps the regimes that were timed."""
    bad = [
        make_record(repeat=3, status=Status.CRASHED, error="c", of=OTHER),
        make_record(repeat=2, status=Status.TIMEOUT, error="t", of=OTHER),
    ]
    found = _summarise(tmp_path, *(_record({}, repeat=n) for n in (1, 2, 3)), *bad, _record({}, of=OTHER))
    states = {case.label: (case.status, case.error, [r.repeats for r in case.regimes.values()]) for case in found.cases}

    assert states == {CASE.label: ("ok", "", [3]), OTHER.label: ("timeout", "t", [1])}


@pytest.mark.parametrize("leg", LEGS)
def test_leg_keeps_its_plan_in_all_repeats(tmp_path: Path, leg: str) -> None:
    """A case whose leg ran another plan in another repeat is declined, with both plans, and keeps its times."""
    changed = [_record({}, {leg: 7 if n == 2 else 3}, repeat=n, of=OTHER) for n in (1, 2, 3)]
    found = _summarise(tmp_path, *(_record({}, repeat=n) for n in (1, 2, 3)), *changed)
    states = {case.label: (case.status, case.error, [r.repeats for r in case.regimes.values()]) for case in found.cases}

    assert states == {
        CASE.label: ("ok", "", [3]),
        OTHER.label: ("declined", f"leg {leg} ran plans 3 and 7 in different repeats", [3]),
    }


def test_changed_plan_comes_after_a_bad_line(tmp_path: Path) -> None:
    """Where a line is not ok its status counts, whatever plans the legs ran."""
    crashed = make_record(repeat=3, status=Status.CRASHED, error="signal 11")
    found = _rows(tmp_path, _record({}), _record({}, {"auto": 2}, repeat=2), crashed)

    assert rows.worst_status(found) == (Status.CRASHED, "signal 11")


@pytest.mark.parametrize(
    ("scale", "plans", "ppm"), [(1.0, {}, 0), (1.02, {}, 20_000), (1.0, {"auto": 2, "default": 3}, -1)]
)
def test_summary_has_the_band(tmp_path: Path, scale: float, plans: dict[str, int], ppm: int) -> None:
    """The band is told as a share in ppm, and as -1 where there was no control."""
    records = [_record({"auto": scale}, plans, repeat=n, of=case) for n in (1, 2, 3) for case in (CASE, OTHER)]

    assert _summarise(tmp_path, *records).band_ppm == ppm


def test_worst_status_goes_by_repeat_and_regime(tmp_path: Path) -> None:
    """Of several bad lines the first repeat counts, and within it the first regime by name."""
    lines = [(2, "a", Status.ERROR), (1, "b", Status.TIMEOUT), (1, "a", Status.CRASHED), (3, "a", Status.REFUSED)]
    records = [make_record(repeat=n, regime=regime, status=status, error=regime) for n, regime, status in lines]
    found = _rows(tmp_path, *records, make_record(repeat=4))

    assert rows.worst_status(found) == (Status.CRASHED, "a")
    assert rows.worst_status([row for row in found if row.status is Status.OK]) == (Status.OK, "")
