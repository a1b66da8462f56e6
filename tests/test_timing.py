"""A split is timed line by line: what is missing, by fresh processes, into files that are chained and sealed."""

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from benches import InlineProcess, cells, inline, make_job, on_disk, planned, records, run, write_table
from factories import STUDY_YAML

from studytool import schedule, timing
from studytool.digest import sha256
from studytool.errors import CannotSayError, DeviceError, StudyError
from studytool.measure import Measured, Request
from studytool.model import Split, Status
from studytool.pipes import Failed
from studytool.process import WorkerProcess


class _Spy(WorkerProcess):
    """A worker process that notes which process answered which case."""

    asked: ClassVar[list[tuple[int, str, bool | None]]] = []

    def ask(self, request: Request, timeout_s: int) -> Measured | Failed:
        found = super().ask(request, timeout_s)
        assert self._pipe._process is not None
        self.asked.append((self._pipe._process.pid, request.case.label, request.lookup))
        return found


def test_each_repeat_is_a_fresh_process_in_another_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly the planned lines are there, once; each repeat is one new process that visits all cases in its order."""
    monkeypatch.setattr(_Spy, "asked", [])
    monkeypatch.setattr(timing, "WorkerProcess", _Spy)
    job = make_job(tmp_path)
    attempt = run(job)
    found = records(job)
    pids = list(dict.fromkeys(pid for pid, _, _ in _Spy.asked))
    visits = [[label for pid, label, _ in _Spy.asked if pid == one] for one in pids]

    assert (attempt.number, attempt.planned, attempt.found, len(attempt.files)) == (1, 18, 18, 1)
    assert cells(job) == planned(job)
    assert [len(visit) for visit in visits] == [6, 6, 6]
    assert len({tuple(visit) for visit in visits}) == 3
    assert [label for visit in visits for label in visit] == [job.cases[record.case].label for record in found]
    assert {record.status for record in found} == {Status.OK}
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_orders_and_inputs_are_the_study_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker is asked for follows from study, case and repeat: orders, seed, distribution, shortest sample."""
    asked: list[tuple[Request, int]] = []
    real = InlineProcess.ask

    def ask(self: InlineProcess, request: Request, timeout_s: int) -> Any:
        asked.append((request, timeout_s))
        return real(self, request, timeout_s)

    inline(monkeypatch)
    monkeypatch.setattr(InlineProcess, "ask", ask)
    extra = "blocks: 8, distributions: [normal, uniform], min_sample_ns: 777, case_timeout_s: 9"
    job = make_job(tmp_path, text=STUDY_YAML.replace("blocks: 8", extra))
    run(job)
    found = records(job)

    assert [record.order for record in found] == [request.orders for request, _ in asked]
    for record, (request, timeout_s) in zip(found, asked, strict=True):
        assert record.order == schedule.block_orders(job.study.sha256, record.case, record.repeat, "eager-warm", 8)
        assert request.distribution == ("normal", "uniform", "normal")[record.repeat - 1]
        assert (request.min_sample_ns, request.base, timeout_s) == (777, "library", 9)
    assert len({request.seed for request, _ in asked}) == 18


@pytest.mark.parametrize("split", [Split.HOLDOUT, Split.ROUTING])
def test_holdout_needs_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, split: Split) -> None:
    """Before there is a table, hold-out and routing cannot be timed, and nothing is written or begun."""
    inline(monkeypatch)
    job = make_job(tmp_path, split)

    with pytest.raises(CannotSayError, match=r"studies/tiny/table\.py: not there; expected gen\.py and"):
        run(job)
    assert InlineProcess.starts == []
    assert not job.results.records.exists()


def test_holdout_is_timed_with_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an entry, auto runs the row's plan and the record has the table's answer; the session has its hash."""
    inline(monkeypatch)
    job = make_job(tmp_path, Split.HOLDOUT)
    write_table(job, "always")
    attempt = run(job)

    assert {record.lookup for record in records(job)} == {True}
    assert {record.legs["auto"].plan == record.legs["frost"].plan for record in records(job)} == {True}
    assert attempt.files[0].session.table == sha256(job.place.table.read_bytes())
    assert attempt.found == 6


def test_routing_is_planned_once_and_not_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A routing case has one line, in the first repeat, with plans and without samples."""
    inline(monkeypatch)
    job = make_job(tmp_path, Split.ROUTING)
    write_table(job)
    attempt = run(job)
    record = records(job)[0]

    assert (attempt.planned, attempt.found, record.repeat, record.order) == (1, 1, 1, ())
    assert record.legs["auto"].plan == record.legs["default"].plan is not None
    assert all(leg.ns == () for leg in record.legs.values())


@pytest.mark.parametrize(("name", "found"), [("cc", "sim-1"), ("board", "simulated device")])
def test_device_is_the_one_that_the_study_asks_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, found: str
) -> None:
    """A study that names a device is timed on that device and on no other."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    wrong = job._replace(study=msgspec.structs.replace(job.study, **{name: "A100"}))

    with pytest.raises(DeviceError, match=rf"study\.yaml: device\.{name} is A100; this machine has {found}\Z"):
        run(wrong)
    assert on_disk(job) == {}
    assert run(job._replace(study=msgspec.structs.replace(job.study, **{name: found}))).found == 18


def test_only_one_process_times_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a study is timed, another call is refused with one line; afterwards it is not."""
    inline(monkeypatch)
    job = make_job(tmp_path)
    with (
        timing.alone(job.place),
        pytest.raises(StudyError, match=r"studies/tiny: another process is at work on this study"),
    ):
        run(job)

    assert run(job).found == 18


def test_lock_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    """Where the lock's file cannot be written, one line says so."""
    job = make_job(tmp_path)
    (job.place.folder / ".time.lock").mkdir()

    with pytest.raises(StudyError, match=r"\A[^\n]*studies/tiny: cannot be written: [A-Z][^\n]*\Z"):
        run(job)
