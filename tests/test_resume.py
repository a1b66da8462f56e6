"""An attempt goes on where it was stopped, on the same machine with the same table, or it is begun anew."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from benches import InlineProcess, cells, inline, make_job, on_disk, planned, run, sealed, stopped, write_table

from studytool import ledger, rows, stats, timing
from studytool.costs import Budget
from studytool.errors import LedgerError, RecordError, StudyError
from studytool.freeze import Frozen
from studytool.model import Split
from studytool.progress import Progress


def test_complete_split_is_not_timed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call measures nothing, starts no process, and leaves every file as it was."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    run(job)
    before = {path: path.read_bytes() for path in job.place.folder.rglob("*") if path.is_file()}
    started = len(InlineProcess.starts)
    attempt = run(job)

    assert (attempt.number, len(attempt.files), len(InlineProcess.starts)) == (1, 1, started)
    assert {path: path.read_bytes() for path in job.place.folder.rglob("*") if path.is_file()} == before


def test_stopped_split_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop only the missing lines are measured, into a new file that is chained to the one before."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    stopped(job, 5)
    middle = job.attempts()[-1]
    whole = {path.name: path.read_bytes() for path in sorted(job.results.records.glob("*.jsonl"))}
    attempt = run(job)
    sessions = [file.session for file in attempt.files]

    assert (middle.found, len(middle.missing)) == (9, 9)
    assert [len(file.records) for file in attempt.files] == [4, 5, 9]
    assert cells(job) == planned(job)
    assert [session.session for session in sessions] == [1, 2, 3]
    assert [session.prev for session in sessions] == ["", *(file.sha256 for file in attempt.files[:-1])]
    for name, data in whole.items():
        assert (job.results.records / name).read_bytes() == data


def test_stopped_between_regimes_goes_on_with_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a case that was timed in one of two regimes, only the other one is measured."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    protocol = msgspec.structs.replace(job.study.protocol, regimes=("eager-warm", "another"))
    job = job._replace(study=msgspec.structs.replace(job.study, protocol=protocol))
    stopped(job, 3)
    attempt = run(job)

    assert [len(file.records) for file in attempt.files] == [3, 33]
    assert cells(job) == planned(job)


def test_new_attempt_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new attempt measures everything again, says why, and the interrupted one stays as it was."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    old = (job.results.records / "train-01-001.jsonl").read_bytes()
    attempt = run(job, reason="the fan failed")
    first, second = job.attempts()

    assert (attempt, second.number, second.found) == (second, 2, 18)
    assert (first.found, len(first.missing)) == (4, 14)
    assert [file.session.reason for file in (*first.files, *second.files)] == ["", "the fan failed"]
    assert second.files[0].session.prev == ""
    assert (job.results.records / "train-01-001.jsonl").read_bytes() == old
    assert on_disk(job) == sealed(job)


def test_stopped_new_attempt_goes_on_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a reason the last attempt goes on; with one, even a complete attempt is begun again."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    run(job)
    with pytest.raises(KeyboardInterrupt):
        run(job, reason="once more", stop_after=3)

    assert run(job).number == 2
    assert [(attempt.found, len(attempt.files)) for attempt in job.attempts()] == [(18, 1), (18, 2)]


@pytest.mark.parametrize("entry", ["", "always"])
def test_table_stays_within_an_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entry: str) -> None:
    """Once a hold-out is begun, other entries are refused; a new attempt takes them."""
    inline(monkeypatch)
    job = make_job(tmp_path, Split.HOLDOUT)
    write_table(job, entry)
    stopped(job, 2)
    write_table(job, "" if entry else "always")
    before = on_disk(job)

    with pytest.raises(
        StudyError, match=r"holdout attempt 1 has 2 of 6 lines .*another table; .* new --reason \.\.\.\Z"
    ):
        run(job)
    assert on_disk(job) == before
    assert run(job, reason="another table").number == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"board": "another"}, "board simulated device and another"),
        ({"cc": "sim-2"}, "cc sim-1 and sim-2"),
        ({"versions": {}}, "versions {.*} and {}"),
        ({"settings": {}}, "settings {.*} and {}"),
        ({"code": "0"}, "code [0-9a-f]{64} and 0"),
        ({"uuid": "another"}, "cases of another machine of that board"),
    ],
)
def test_other_machine_or_code_does_not_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    """A machine or code that cannot be compared with the attempt's first session is refused before it measures."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    before = on_disk(job)
    inline(monkeypatch, **change)

    with pytest.raises(StudyError, match=rf"train attempt 1 has 4 of 18 .*: {words}; .* new --reason \.\.\.\Z"):
        run(job)
    assert on_disk(job) == before
    assert run(job, reason="moved").found == 18
    assert job.attempts()[0].found == 4


def test_stopped_file_is_sealed_by_the_next_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every records file has one event with its hash, also the one whose process was killed before it wrote that."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    unsealed = sealed(job)
    timing.seal(job, lambda: "later")
    known = sealed(job)
    timing.seal(job, lambda: "later still")
    run(job)
    events = ledger.read(job.results.ledger)

    assert unsealed == {}
    assert known.keys() == {"train-01-001.jsonl"}
    assert sealed(job) == on_disk(job)
    assert [event.event for event in events] == ["frozen", "session", "session"]
    assert [event.body.get("lines") for event in events] == [None, 5, 15]
    assert events[0].body["manifest"] == job.frozen.sha256


def test_ledger_holds_to_its_manifest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where other cases are frozen than those that the ledger began with, nothing more is timed."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    other = job._replace(frozen=Frozen(job.frozen.manifest, "0" * 64, job.frozen.cases))

    with pytest.raises(LedgerError, match=r"bf16/ledger\.jsonl: the manifest is not the one that"):
        run(other)
    assert job.attempts()[0].found == 4


def test_progress_counts_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress counts the lines of this call, with the case that was just measured."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    steps: list[Progress] = []
    timing.time_split(job, lambda: "now", steps.append)
    records = job.attempts()[0].files[-1].records

    assert [step[:3] for step in steps] == [(n, 14, job.cases[r.case].label) for n, r in enumerate(records, 1)]
    assert len(steps) == 14
    assert all(step.ratio and step.noise is not None and step.left_ns is None for step in steps)


def test_progress_tells_ratio_noise_and_time_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ratio is that of the record just written, the noise that of aliased legs so far, the time the budget's."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    budget = Budget(10**15, None)
    steps: list[Progress] = []
    timing.time_split(job, lambda: "now", steps.append, budget=budget)
    file = job.attempts()[0].files[-1]
    found = rows.rows([file])
    apart = [abs(math.expm1(value)) for row in found for value in rows.aliased_in([row])]

    assert [step.ratio for step in steps] == [math.exp(rows.log_ratio(row, "frost", "backend")) for row in found]
    assert steps[-1].noise == stats.quantile(apart, 0.95)
    left = [step.left_ns or 0 for step in steps]
    assert left == sorted(left, reverse=True)
    assert left[-1] == budget.remaining_ns < left[0]


def _cut(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])


@pytest.mark.parametrize("lost", [1, 2, 40, -1])
def test_torn_line_is_dropped_and_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    """A last line that was torn by a loss of power is dropped; its case is measured again, whole, in a new file."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    path = job.results.records / "train-01-001.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    _cut(path, sum(map(len, lines)) - (lost if lost > 0 else len(lines[-1]) - 1))
    attempt = run(job)

    assert [len(file.records) for file in attempt.files] == [3, 15]
    assert attempt.files[0].torn == (len(lines[-1]) - lost if lost > 0 else 1)
    assert cells(job) == planned(job)
    assert on_disk(job) == sealed(job)


@pytest.mark.parametrize("keep", [0, 1, 200, -1])
@pytest.mark.parametrize("before", [0, 4])
def test_torn_first_line_bars_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, before: int) -> None:
    """A file whose very first line was torn is left alone: no number is used twice, and the chain goes past it."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    if before:
        stopped(job, before)
    stopped(job, 1)
    torn = max(job.results.records.glob("*.jsonl"))
    first = torn.read_bytes().index(b"\n")
    _cut(torn, first if keep < 0 else keep)
    attempt = run(job)
    again = run(job)

    assert [len(file.records) for file in attempt.files] == ([before] if before else []) + [18 - before]
    assert [file.session.session for file in attempt.files] == [*range(1, len(attempt.files) + 1)]
    assert attempt.files[-1].path.name == f"train-01-00{3 if before else 2}.jsonl"
    assert (again, cells(job)) == (attempt, planned(job))
    assert on_disk(job).keys() - sealed(job).keys() == {torn.name}


def test_torn_new_attempt_is_no_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new attempt of which not even the first line is whole was never begun: the one before it goes on."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    with pytest.raises(KeyboardInterrupt):
        run(job, reason="once more", stop_after=1)
    _cut(job.results.records / "train-02-001.jsonl", 100)

    assert run(job).number == 1
    assert run(job, reason="and again").number == 2
    assert [(attempt.number, attempt.found) for attempt in job.attempts()] == [(1, 18), (2, 18)]


def test_missing_file_breaks_the_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a session file in the middle was taken away, the attempt is not gone on with."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    stopped(job, 4)
    stopped(job, 4)
    (job.results.records / "train-01-001.jsonl").unlink()

    with pytest.raises(RecordError, match=r"train-01-002\.jsonl:1: does not follow the session file before it"):
        run(job)
