"""How long lines will take, by example and on a simulated device, and deadlines in wall and in virtual time."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import benches
import pytest
import stopping
from factories import make_case, make_record, make_session

from studytool import costs, pipeline
from studytool.attempts import Attempt, Cell
from studytool.costs import Budget
from studytool.grid import case_digest
from studytool.jsonl import SessionFile
from studytool.model import Case, Record, Split, Status

SMALL, LARGE, BETWEEN, SMALLER, LARGER = (make_case(s_q=s, s_kv=s) for s in (128, 512, 256, 32, 1024))
CASES = {case_digest(case): case for case in (SMALL, LARGE, BETWEEN, SMALLER, LARGER)}
MS = 1_000_000


def took(case: Case, ms: int, repeat: int = 1, **changes: Any) -> Record:
    """Return the record of a line that took so many milliseconds."""
    checks = {"took_ns": ms * MS, **changes.pop("checks", {})}
    return make_record(of=case, repeat=repeat, checks=checks, **changes)


def session_of(records: Sequence[Record]) -> SessionFile:
    """Return a records file of these lines."""
    return SessionFile(Path("train-01-001.jsonl"), make_session(), tuple(records), "", len(records) + 1, 0)


def predicted(
    records: Sequence[Record],
    *wanted: tuple[Case, int],
    regime: str = "eager-warm",
    more: Mapping[str, Case] | None = None,
) -> int | None:
    """Return the prediction in ns for these cases and repeats after these lines."""
    before = [Attempt(1, (session_of(records),), len(records), frozenset(), ())] if records else []
    cells: list[Cell] = [(case_digest(case), repeat, regime) for case, repeat in wanted]
    return costs.predict_ns(before, {**CASES, **(more or {})}, cells, frozenset())


KNOWN = [took(SMALL, 10), took(SMALL, 20, 2), took(LARGE, 240), took(LARGE, 240, 2)]
"""The small case takes 15 ms, and the large one, of sixteen times the work, sixteen times as much."""


def test_a_known_case_takes_what_it_took() -> None:
    """A case that was measured takes the mean of its lines, as often as it is wanted."""
    assert predicted(KNOWN, (SMALL, 3)) == 15 * MS
    assert predicted(KNOWN, (SMALL, 3), (SMALL, 4), (LARGE, 3)) == (15 + 15 + 240) * MS


def test_nothing_is_missing_takes_nothing() -> None:
    """No line takes no time, whether or not something is known."""
    assert predicted(KNOWN) == predicted([]) == 0


def test_a_case_between_two_sizes_lies_between_them_in_time() -> None:
    """Of four times the work, a case takes four times as long: the way between two sizes is straight in logs."""
    assert predicted(KNOWN, (BETWEEN, 1)) == pytest.approx(60 * MS, rel=1e-6)


def test_above_the_largest_the_time_grows_with_the_work() -> None:
    """Twice the length of the largest, which is four times the work, takes four times as long."""
    assert predicted(KNOWN, (LARGER, 1)) == pytest.approx(960 * MS, rel=1e-6)


def test_below_the_smallest_the_time_stays() -> None:
    """Less work than the smallest takes what the smallest took, since a line has costs of its own."""
    assert predicted(KNOWN, (SMALLER, 1)) == pytest.approx(15 * MS, rel=1e-6)


@pytest.mark.parametrize(
    "changes",
    [{"b": 4}, {"h_q": 16, "h_kv": 16}, {"s_q": 512}, {"s_kv": 512}, {"d_qk": 256, "d_v": 256}, {"d_qk": 448}],
)
def test_work_is_that_of_the_two_products(changes: dict[str, int]) -> None:
    """Batch, heads, lengths and head dimensions all count: four times the multiplications take four times as long."""
    case = make_case(**changes)

    assert predicted(KNOWN, (case, 1), more={case_digest(case): case}) == pytest.approx(60 * MS, rel=1e-6)


def test_nothing_known_gives_none() -> None:
    """Without lines of that op and regime there is no prediction, also where some of the lines could be predicted."""
    other = make_case(op="sdpa_bwd")
    more = {case_digest(other): other}

    assert predicted([], (SMALL, 1)) is None
    assert predicted(KNOWN, (other, 1), more=more) is None
    assert predicted(KNOWN, (SMALL, 1), (other, 1), more=more) is None
    assert predicted(KNOWN, (SMALL, 1), regime="eager-cold") is None


@pytest.mark.parametrize("bad", [make_record(of=SMALL), took(SMALL, 1, status=Status.DECLINED)])
def test_lines_that_were_not_timed_tell_nothing(bad: Record) -> None:
    """A line without a duration, or one that an engine declined at once, is no example of what a line takes."""
    assert predicted([bad], (SMALL, 2)) is None
    assert predicted([*KNOWN, bad], (SMALL, 3)) == 15 * MS


def test_starts_of_processes_are_counted() -> None:
    """Each repeat that is wanted starts a process, which takes the mean of the starts so far."""
    starting = [
        took(SMALL, 10, 1, checks={"startup_ns": 100 * MS}),
        took(SMALL, 10, 2, checks={"startup_ns": 300 * MS}),
    ]

    assert predicted(starting, (SMALL, 3)) == (10 + 200) * MS
    assert predicted(starting, (SMALL, 3), (SMALL, 4), (SMALL, 4)) == (3 * 10 + 2 * 200) * MS
    assert costs.took_ns(session_of(starting)) == (10 + 10 + 100 + 300) * MS


def test_all_attempts_are_examples() -> None:
    """What any attempt at any split measured counts, an interrupted one as well."""
    one = Attempt(1, (session_of([took(SMALL, 10)]),), 9, frozenset(), ())
    two = Attempt(2, (session_of([took(SMALL, 30)]), session_of([took(SMALL, 50, 2)])), 2, frozenset(), ())

    assert costs.predict_ns([one, two], CASES, [(case_digest(SMALL), 3, "eager-warm")], frozenset()) == 30 * MS


def test_a_budget_of_wall_time_runs_by_itself() -> None:
    """With a clock, what is left is the total less what has passed since the beginning, whatever lines took."""
    times = iter([1000, 1000, 1400, 2500])
    budget = Budget(1000, lambda: next(times))
    left = [budget.remaining_ns, budget.remaining_ns]
    budget.spend(10**9)

    assert [*left, budget.remaining_ns] == [1000, 600, -500]


def test_a_budget_of_virtual_time_is_spent_by_lines() -> None:
    """Without a clock, what is left is the total less what lines took."""
    budget = Budget(1000, None)
    left = [budget.remaining_ns]
    for took_ns in (400, 700):
        budget.spend(took_ns)
        left.append(budget.remaining_ns)

    assert left == [1000, 600, -100]


STOP = "repeats: 20, blocks: 8, stop: {half_width: 0.01}"


@pytest.mark.parametrize("frost", ["118", "1000"])
@pytest.mark.parametrize(("protocol", "repeats"), [("repeats: 5, blocks: 8", 5), (STOP, 8)])
def test_the_prediction_for_a_hold_out_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: str, repeats: int, frost: str
) -> None:
    """After the train split the hold-out is predicted within 15 % of what it takes, also where cases stop early."""
    benches.inline(monkeypatch)
    text = stopping.COSTS_YAML.replace("repeats: 5, blocks: 8", protocol).replace("118", frost)
    train = benches.make_job(tmp_path, text=text)
    stopping.applied(train)
    job = train._replace(split=Split.HOLDOUT)
    told = pipeline.plan(job)
    run = benches.run(job).files[0]
    predicted_ns, took_ns = run.session.predicted_ns, costs.took_ns(run)

    assert train.attempts()[-1].files[0].session.predicted_ns == 0
    assert len(run.records) == repeats * len(job.cases)
    assert took_ns == stopping.spent_ns(job)
    off = 0.25 if protocol == STOP else 0.15  # how many repeats the hold-out will need is a guess from train
    assert (1 - off) * took_ns <= predicted_ns <= (1 + off) * took_ns
    assert f"lines are missing, about {predicted_ns / 1e9:.1f} s; no run had a prediction yet" in told
    assert re.search(r"0 lines are missing, about 0\.0 s; the last run was predicted at ", pipeline.plan(job))


@pytest.mark.slow
@pytest.mark.whole
def test_same_outcomes_in_half_the_device_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On quiet and noisy cases the stop rule decides each class as all repeats do, in half of the device time."""
    stopping.mixed(monkeypatch)
    job = benches.make_job(tmp_path / "stop", text=stopping.MIXED_YAML)
    benches.run(job)
    full = stopping.without_stop(benches.make_job(tmp_path / "full", text=stopping.MIXED_YAML))
    benches.run(full)

    assert stopping.outcomes(job) == stopping.outcomes(full)
    assert stopping.outcomes(full) == {16: "always 0", 32: "from 128", 64: "from 256", 128: "SUPPORT"}
    assert len(benches.records(full)) == 24 * 40
    assert stopping.spent_ns(full) >= 2 * stopping.spent_ns(job)


def test_routing_lines_take_next_to_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Routing cases are planned and not timed, and are predicted so."""
    benches.inline(monkeypatch)
    train = benches.make_job(tmp_path, text=stopping.COSTS_YAML)
    stopping.applied(train)
    job = train._replace(split=Split.ROUTING)
    predicted_ns = costs.predict_job_ns(job, frozenset({(digest, 1, "eager-warm") for digest in job.cases}))
    benches.run(job)

    assert predicted_ns is not None
    assert predicted_ns <= 2 * stopping.spent_ns(job) + 10 * MS
