"""The stop rule: when it looks, what it looks at, what stands in the records, and what a reader makes of it."""

import math
import re
from pathlib import Path

import benches
import finished
import numpy as np
import pytest
import stopping
from bad_records import chained, values_of
from commands import call, tree
from factories import STUDY_YAML, make_leg, make_record, make_study
from stopping import ended_by_significance, ended_by_width, looked, record_at, rewritten, small

from studytool import looks, schedule
from studytool.errors import RecordError
from studytool.model import LEGS, Protocol, Record, Status

PROTOCOL = Protocol(repeats=40, stop_half_width_ppm=10_000)
BOTH = Protocol(repeats=40, regimes=("eager-warm", "eager-cold"), stop_half_width_ppm=10_000)
RECORDS_NAME = "studies/tiny/bf16/records/train-01-001.jsonl"


def steady(count: int, spread: float = 0.001, **changes: object) -> list[Record]:
    """Return so many repeats, half of them this much below and half above a log ratio of -0.5."""
    return [record_at(n, -0.5 + spread * (-1) ** n, **changes) for n in range(1, count + 1)]


@pytest.mark.parametrize(("count", "due"), [(1, False), (3, False), (7, False), (8, True), (9, True), (40, True)])
def test_no_look_before_the_eighth_repeat(count: int, due: bool) -> None:
    """However narrow the interval is, the first look comes with the eighth repeat; without a rule there is none."""
    assert (looked(PROTOCOL, steady(count)) is not None) is due
    assert looked(Protocol(repeats=40), steady(count)) is None


def test_looks_come_after_whole_repeats() -> None:
    """With two regimes a look waits for the second of them."""
    cold = steady(9, regime="eager-cold")
    pairs = [record for pair in zip(steady(9), cold, strict=True) for record in pair]

    assert [looked(BOTH, pairs[:count]) is not None for count in range(14, 19)] == [False, False, True, False, True]


def test_the_widest_regime_counts() -> None:
    """A case goes on until all of its regimes are narrow, and the half width is that of the widest."""
    wide = steady(8, 0.05, regime="eager-cold")
    found = looked(BOTH, [*steady(8), *wide])
    alone = looked(PROTOCOL, wide)

    assert found is not None
    assert not found.stop
    assert alone == found


@pytest.mark.parametrize("at", [1, 8])
def test_a_case_that_is_not_ok_stops(at: int) -> None:
    """A line that did not end ok, in whichever repeat, ends its case at the next look."""
    found = steady(8, 0.5)
    found[at - 1] = record_at(at, 0.0, status=Status.DECLINED)

    assert looked(PROTOCOL, found[:7]) is None
    assert looked(PROTOCOL, found) == (0.0, True)


def test_the_half_width_is_that_of_the_interval() -> None:
    """It is the t interval of 96 % over repeats of the paired log ratio; at the limit the case stops."""
    values = [0.02, -0.01, 0.0, 0.03, 0.01, -0.02, 0.0, 0.01]
    records = [record_at(n, value) for n, value in enumerate(values, 1)]
    found = looked(PROTOCOL, records)
    half = 2.5168 * float(np.std(values, ddof=1)) / math.sqrt(8)
    stops = []
    for limit_ppm in (math.floor(half * 1e6) - 1, math.ceil(half * 1e6) + 1):
        again = looked(Protocol(repeats=40, stop_half_width_ppm=limit_ppm), records)
        stops.append(again is not None and again.stop)

    assert found is not None
    assert found.half_width == pytest.approx(half, rel=1e-4)
    assert stops == [False, True]


@pytest.mark.parametrize("shift", [-0.7, -0.05, 0.05, 0.7])
def test_the_width_alone_decides(monkeypatch: pytest.MonkeyPatch, shift: float) -> None:
    """Whatever the ratio is, a series stops at the same repeat."""
    random = np.random.default_rng(1)
    series = random.normal(0.0, 0.02, (50, 40))
    plain = [ended_by_width(PROTOCOL, values.tolist(), monkeypatch).repeats for values in series]
    moved = [ended_by_width(PROTOCOL, (values + shift).tolist(), monkeypatch).repeats for values in series]

    assert moved == plain
    assert len(set(plain)) > 5


def test_stopping_when_significant_finds_differences_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 400 series without a difference, who stops when zero is left out leads in over 12 %; the width rule does not.

    This is the negative control of the rule: the same series, the same looks.
    """
    series = np.random.default_rng(11).normal(0.0, 0.02, (400, 40))
    peeked = [ended_by_significance(values.tolist()) for values in series]
    ours = [ended_by_width(PROTOCOL, values.tolist(), monkeypatch) for values in series]

    assert np.mean([not found.covers(0.0) for found in peeked]) > 0.12
    assert np.mean([not found.covers(0.0) for found in ours]) < 0.08


@pytest.mark.parametrize(("spread", "seed"), [(0.005, 21), (0.012, 22), (0.02, 23), (0.05, 24)])
def test_the_interval_covers_the_truth(monkeypatch: pytest.MonkeyPatch, spread: float, seed: int) -> None:
    """Where series stop at once, on the way, or never, 93 to 97.5 % of the intervals of 96 % hold the truth."""
    truth = -0.2
    series = np.random.default_rng(seed).normal(truth, spread, (1000, 40))
    ended = [ended_by_width(PROTOCOL, values.tolist(), monkeypatch) for values in series]

    assert (PROTOCOL.confidence, Protocol().confidence) == (0.96, 0.95)
    assert 0.93 <= np.mean([found.covers(truth) for found in ended]) <= 0.975


def test_each_look_stands_in_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the eighth repeat on every line tells the half width and the decision; only a case's last line stops it."""
    stopping.mixed(monkeypatch)
    job = benches.make_job(tmp_path, text=small())
    attempt = benches.run(job)
    found = benches.records(job)
    last = stopping.repeats_of(found)
    quiet = {digest for digest, case in job.cases.items() if case.d_qk == 16}

    assert {last[digest] for digest in quiet} == {8}
    assert {last[digest] for digest in last.keys() - quiet} == {12}
    assert (attempt.found, attempt.planned) == (2 * 8 + 2 * 12, 2 * 8 + 2 * 12)
    for record in found:
        so_far = [r for r in found if r.case == record.case and r.repeat <= record.repeat]
        seen = looked(job.study.protocol, so_far)
        told = {name: value for name, value in record.checks.items() if name.startswith("look")}
        assert told == ({} if seen is None else seen.checks)
        assert told.keys() == (set() if record.repeat < 8 else {"look_half_width_ppm", "look_stop"})
        assert bool(told.get("look_stop")) == (record.case in quiet and record.repeat == 8)


def test_with_two_regimes_the_last_of_a_repeat_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look of a repeat is in its last regime's record, and a stop takes both regimes away."""
    stopping.mixed(monkeypatch)
    text = small(("blocks: 8", "blocks: 8, regimes: [eager-warm, replay-cold]"))
    job = benches.make_job(tmp_path, text=text)
    attempt = benches.run(job)
    with_look = {(r.regime, r.repeat >= 8) for r in benches.records(job) if "look_stop" in r.checks}

    assert with_look == {("replay-cold", True)}
    assert attempt.missing == frozenset()
    assert attempt.planned == 2 * (2 * 8 + 2 * 12)


def test_a_case_that_fails_is_measured_eight_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines of a case that an engine declines end with the first look."""
    stopping.mixed(monkeypatch)
    job = benches.make_job(tmp_path, text=small(("noise_ppm: 2000", "noise_ppm: 2000, declined: d_qk == 32")))
    benches.run(job)

    assert set(stopping.repeats_of(benches.records(job)).values()) == {8}


@pytest.mark.parametrize("lines", [1, 10, 29, 30, 32, 33, 34, 36, 40])
@pytest.mark.parametrize("torn", [b"", b'{"attempt":1,"ca'])
def test_killed_and_resumed_it_measures_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: int, torn: bytes
) -> None:
    """Killed after any line, also in the repeat of the first look, it ends with the lines of a run in one go."""
    stopping.mixed(monkeypatch)
    whole = benches.make_job(tmp_path / "whole", text=small())
    benches.run(whole)
    job = stopping.copied(whole, tmp_path / "killed", small(), lines, torn)
    benches.run(job)

    assert len(job.attempts()[-1].files) == 2
    assert stopping.told(job) == stopping.told(whole)


def test_killed_between_regimes_it_measures_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the two regimes of the repeat that stops a case, the look still comes with the second."""
    stopping.mixed(monkeypatch)
    text = small(("blocks: 8", "blocks: 8, regimes: [eager-warm, replay-cold]"))
    whole = benches.make_job(tmp_path / "whole", text=text)
    benches.run(whole)
    found = benches.records(whole)
    before = next(n for n, record in enumerate(found) if record.checks.get("look_stop"))  # its first regime is line n
    job = stopping.copied(whole, tmp_path / "killed", text, before + 1)
    benches.run(job)

    assert stopping.told(job) == stopping.told(whole)


@pytest.mark.parametrize("checks", [{"look_stop": 0}, {"look_half_width_ppm": 9}])
def test_a_changed_look_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: dict[str, int]) -> None:
    """A look that is not what the samples give is an error of file and line, although its chain is whole."""
    path, line = stopping.stopped_records(tmp_path, monkeypatch)
    rewritten(path, line, checks)

    with pytest.raises(RecordError, match=rf"\A{re.escape(RECORDS_NAME)}:{line}: sdpa_fwd bf16 [^\n]*: look "):
        benches.make_job(tmp_path).attempts()


def test_a_stop_that_the_rule_does_not_know_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A noisy case that was stopped by hand is an error of file and line: its interval was too wide."""
    path, _ = stopping.stopped_records(tmp_path, monkeypatch)
    values = values_of(path)
    line = next(n for n, v in enumerate(values, 1) if n > 1 and v["repeat"] == 9 and v["checks"]["look_stop"] == 0)
    case = values[line - 1]["case"]
    values[line - 1]["checks"]["look_stop"] = 1
    chained(path, [v for n, v in enumerate(values, 1) if n <= line or v["case"] != case])

    with pytest.raises(RecordError, match=rf"\A{re.escape(RECORDS_NAME)}:{line}: [^\n]*: look .* is not what the"):
        benches.make_job(tmp_path).attempts()


@pytest.mark.parametrize("checks", [{"look_stop": 1}, {"look_stop": 0}])
def test_a_line_after_its_stop_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checks: dict[str, int]
) -> None:
    """A case that was measured once more after it was stopped is an error of file and line."""
    path, line = stopping.stopped_records(tmp_path, monkeypatch)
    job, values = benches.make_job(tmp_path), values_of(path)
    stop = values[line - 1]
    orders = schedule.block_orders(job.study.sha256, stop["case"], 9, stop["regime"], 8)
    again = {**stop, "repeat": 9, "order": orders}
    chained(path, [*values, {**again, "checks": {**again["checks"], **checks}}])

    with pytest.raises(RecordError, match=rf"\A{re.escape(RECORDS_NAME)}:{len(values) + 1}: sdpa_fwd bf16 "):
        job.attempts()


def declared(stop: str, repeats: int = 8) -> str:
    """Return a small study with this stop rule and count of repeats."""
    return STUDY_YAML.replace("repeats: 3, blocks: 8", f"repeats: {repeats}, blocks: 8{stop}")


@pytest.mark.parametrize(
    ("stop", "half_width_ppm"),
    [
        ("", 0),
        (", stop: fixed", 0),
        (", stop: {half_width: 0.01}", 10_000),
        (", stop: {half_width: 1}", 1_000_000),
    ],
)
def test_study_file_declares_the_rule(stop: str, half_width_ppm: int) -> None:
    """A study says at which half width a case is done; fixed, and no word at all, mean every repeat."""
    assert make_study(declared(stop)).protocol.stop_half_width_ppm == half_width_ppm


@pytest.mark.parametrize(
    ("stop", "repeats", "message"),
    [
        ("{half_width: 0.01}", 7, "found stop with 7 repeats; expected at least 8, the first look"),
        ("significant", 8, "protocol.stop: found 'significant'; expected one of fixed"),
        ("{}", 8, "half_width"),
        ("{half_width: 0}", 8, "half_width"),
        ("{half_width: 0.00009}", 8, "half_width"),
        ("{half_width: 1.1}", 8, "half_width"),
        ("{width: 0.01}", 8, "width"),
        ("[fixed]", 8, "stop"),
        ("8", 8, "stop"),
    ],
)
def test_other_words_are_one_line(tmp_path: Path, stop: str, repeats: int, message: str) -> None:
    """A stop rule that is none, or that has too few repeats to look at, is one line with its place, and exit 2."""
    place = finished.declare(tmp_path, declared(f", stop: {stop}", repeats), "tiny")
    before = tree(tmp_path)
    said = call("freeze", place.folder)

    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"studies/tiny/study\.yaml:\d+: [^\n]+\n", said.err)
    assert message in said.err
    assert tree(tmp_path) == before


def test_looks_use_the_estimate_of_a_report() -> None:
    """What is looked at is the paired log ratio that is reported: the median of blocks, on a coarse clock the mean."""
    frost, backend = make_leg((8, 8, 8, 32), plan=5), make_leg((16,) * 4)
    record = make_record(legs={**dict.fromkeys(LEGS, backend), "frost": frost})

    assert looks.frost_over_backend(record, 0) == pytest.approx(math.log(0.5))
    assert looks.frost_over_backend(record, 1) == pytest.approx(math.log(14 / 16))
