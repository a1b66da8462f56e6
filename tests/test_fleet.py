"""One driver for many boards: who gets which case, what becomes of boards that are lost, and what is written when."""

import contextlib
import importlib.util
import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import benches
import finished
import msgspec
import pytest
import stopping
from commands import call
from factories import STUDY_YAML, watch_disk
from stopping import small

from studytool import (
    attempts,
    costs,
    editing,
    fingerprint,
    fleet,
    jsonl,
    ledger,
    measure,
    pipeline,
    replay,
    reporting,
    timing,
)
from studytool.attempts import Attempt, Job
from studytool.board_events import Answered, Boards, Came, Lost
from studytool.costs import Budget
from studytool.engines.base import Finding
from studytool.engines.simulated import WHICH_BOARD, Simulated
from studytool.errors import CannotSayError, DeviceError, StudyError
from studytool.grid import case_digest
from studytool.measure import Measured, Request
from studytool.model import Split, Status
from studytool.pipes import Failed
from studytool.process import terms_of
from studytool.waiting import MOST_CASES, MOST_LOSSES, SHARES
from studytool.worker import Opened

WIDE_YAML = STUDY_YAML.replace("h_q: 4, d_qk: 64}", "h_q: [4, 6, 8], d_qk: 64}", 1)
"""Fourteen train cases: twelve without a mask, two with one."""

LINES = 42
ANCHORED_YAML = WIDE_YAML.replace("blocks: 8}", "blocks: 8, anchors: 2}")
NOW = "2024-01-01T00:00:00+00:00"


class Cluster:
    """Boards in this process, each a simulated device, of which some are lost when they are asked so many times.

    `serials` names the boards by number. `fates` says what happens in place of a board's n-th answer: it is `lost`, or
    lost and comes `back` with the next number. A board that is asked for a case of `killers` is lost. With dice, what
    is due happens in any order, else in turn.
    """

    def __init__(
        self,
        job: Job,
        serials: Sequence[str] = ("one",),
        fates: Mapping[tuple[int, int], str] | None = None,
        killers: frozenset[str] = frozenset(),
        dice: random.Random | None = None,
    ) -> None:
        self.job, self.killers, self.dice = job, killers, dice
        self.serials, self.fates = dict(enumerate(serials, 1)), fates or {}
        self.hosts: dict[int, str] = {}
        self.opened: dict[int, Callable[[Opened], Opened]] = {}
        self.problems: dict[int, str] = {}
        self.asked: list[tuple[int, Sequence[Request]]] = []
        self.answers: Counter[int] = Counter()
        self.due = [("come", number) for number in self.serials]
        self.waits: dict[int, Sequence[Request]] = {}
        self.timeouts: set[int] = set()

    def ask(self, board: int, requests: Sequence[Request], timeout_s: int) -> None:
        """Note what a board is asked for, which is answered later."""
        assert board not in self.waits, "asked while it was at work"
        self.asked.append((board, requests))
        self.timeouts.add(timeout_s)
        self.waits[board] = requests
        self.due.append(("answer", board))

    def next(self) -> Came | Answered | Lost | None:
        """Return what happens next."""
        if not self.due:
            return None
        what, board = self.due.pop(self.dice.randrange(len(self.due)) if self.dice else 0)
        return self._came(board) if what == "come" else self._answered(board)

    def _came(self, board: int) -> Came:
        host = self.hosts.get(board, f"host {board}")
        if board in self.problems:
            return Came(board, None, self.problems[board], host)
        engine = self._engine(board)
        found = Opened(findings=(), fingerprint=fingerprint.take(engine, engine.own_clock()))
        return Came(board, self.opened[board](found) if board in self.opened else found, "", host)

    def _answered(self, board: int) -> Answered | Lost:
        self.answers[board] += 1
        requests = self.waits.pop(board)
        fate = self.fates.get((board, self.answers[board]), "")
        if fate == "back":
            again = max(self.serials) + 1
            self.serials[again] = self.serials[board]
            self.due.append(("come", again))
        if fate or any(case_digest(request.case) in self.killers for request in requests):
            return Lost(board, "the node is gone")
        engine = self._engine(board)
        return Answered(board, [self.measured(engine, request) for request in requests], 0)

    def measured(self, engine: Simulated, request: Request) -> Measured | Failed:
        """Return what a board answers."""
        timer = engine.own_clock()
        begin = timer.now_ns()
        found = measure.run_case(engine, timer, request)
        return msgspec.structs.replace(found, took_ns=timer.now_ns() - begin)

    def _engine(self, board: int) -> Simulated:
        with mock.patch.dict("os.environ", {WHICH_BOARD: self.serials[board]}):
            return Simulated(terms_of(self.job.study).simulated)


class Ended(NamedTuple):
    """How a fleet ended: the attempt, and what was said of boards."""

    attempt: Attempt
    said: list[str]


def run(
    job: Job,
    boards: Boards,
    reason: str = "",
    stop_after: int = 0,
    error: type[BaseException] = KeyboardInterrupt,
    budget: Budget | None = None,
) -> Ended:
    """Return how a fleet ended; the error after so many cases, as if the driver was stopped."""
    said: list[str] = []
    cases = iter(range(1, 10**6))

    def progress(_step: Any) -> None:
        if next(cases) == stop_after:
            raise error

    return Ended(fleet.time_split(job, boards, lambda: NOW, progress, said.append, reason, budget), said)


def lone(root: Path, text: str) -> bytes:
    """Return the study.json of one machine."""
    job = benches.make_job(root, text=text)
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        pipeline.time(job, finished.hooks())
    return job.results.study_json.read_bytes()


def study_json(job: Job) -> bytes:
    """Return the study.json of records that are there."""
    pipeline.time(job, finished.hooks(), boards=Cluster(job, ()))
    return job.results.study_json.read_bytes()


def whole(job: Job) -> None:
    """Check that each planned line is there once, with a whole chain, and that the ledger knows every file."""
    assert benches.cells(job) == benches.planned(job)
    assert job.attempts()[-1].missing == frozenset()
    assert benches.on_disk(job) == benches.sealed(job)


def failing(job: Job) -> list[str]:
    """Return what a replay finds wrong."""
    found = replay.replay(job.study, job.place)
    return [f"{check.name}: {check.figure}" for check in found if check.state == replay.FAIL]


def lane(job: Job, serial: str) -> str:
    """Return the lane of a board."""
    with mock.patch.dict("os.environ", {WHICH_BOARD: serial}):
        engine = Simulated(terms_of(job.study).simulated)
    return f"b{fingerprint.take(engine, engine.own_clock()).uuid}"


def lanes_of(job: Job) -> dict[str, set[str]]:
    """Return the lanes that have lines of each case."""
    found: dict[str, set[str]] = {}
    for file in job.attempts()[-1].read:
        for record in file.records:
            found.setdefault(record.case, set()).add(file.session.lane)
    return found


# What many boards measure is what one does


@pytest.mark.parametrize("text", [WIDE_YAML, ANCHORED_YAML], ids=["without anchors", "anchors"])
@pytest.mark.parametrize("count", [1, 4])
def test_a_fleet_gives_what_one_machine_gives(tmp_path: Path, text: str, count: int) -> None:
    """One board or four, with and without anchors: the bytes of study.json are those of one machine."""
    job = benches.make_job(tmp_path / "fleet", text=text)
    serials = [str(number) for number in range(count)]
    said = pipeline.time(job, finished.hooks(), boards=Cluster(job, serials))

    assert said == f"bf16 train: attempt 1, {LINES} of {LINES} lines"
    assert job.results.study_json.read_bytes() == lone(tmp_path / "lone", text)
    assert set(job.attempts()[0].lanes) == {lane(job, serial) for serial in serials}
    whole(job)


def test_all_lines_of_a_case_are_of_one_board(tmp_path: Path) -> None:
    """Cases are shared out, never the repeats of a case; each repeat of what a board has is one request."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "abc")
    run(job, boards)
    asked = [(board, {case_digest(request.case) for request in requests}) for board, requests in boards.asked]

    assert {len(lanes) for lanes in lanes_of(job).values()} == {1}
    assert {lane for lanes in lanes_of(job).values() for lane in lanes} == {lane(job, name) for name in "abc"}
    for board, cases in asked:
        assert [(board, cases)] * 3 == [one for one in asked if one[1] & cases]
    assert boards.timeouts == {job.study.protocol.case_timeout_s}


def weights_of(job: Job) -> dict[str, float]:
    """Return how long each case will take, as far as its size tells."""
    return dict(costs.weights(job, {case: [(case, 1, "eager-warm")] for case in job.cases}).cases)


def parcels(boards: Cluster, weights: Mapping[str, float]) -> list[list[float]]:
    """Return the weights of the cases of each parcel, in the order in which they were handed out."""
    found: dict[frozenset[str], list[float]] = {}
    for _, requests in boards.asked:
        cases = frozenset(case_digest(request.case) for request in requests)
        found.setdefault(cases, sorted((weights[case] for case in cases), reverse=True))
    return list(found.values())


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_longest_go_first(tmp_path: Path, count: int) -> None:
    """No case that is handed out is longer than one that was handed out before it."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards, weights = Cluster(job, [str(number) for number in range(count)]), weights_of(job)
    run(job, boards)
    handed = [weight for parcel in parcels(boards, weights) for weight in parcel]

    assert handed == sorted(weights.values(), reverse=True)
    assert len(set(handed)) > 5


def test_what_lines_took_says_which_are_long(tmp_path: Path) -> None:
    """Where lines were measured before, the longest is what took the longest, and not what is largest."""
    text = WIDE_YAML.replace("backend_ns: s_kv * 1000", "backend_ns: 100000000 // s_kv")
    job = benches.make_job(tmp_path, text=text)
    took = {r.case: int(r.checks["took_ns"]) for file in run(job, Cluster(job)).attempt.files for r in file.records}
    boards = Cluster(job, "a")
    run(job, boards, reason="again")
    parcel = parcels(boards, took)

    assert [max(own) for own in parcel] == sorted((max(own) for own in parcel), reverse=True)
    assert parcel[0][0] > 2 * parcel[-1][-1]


def test_a_board_takes_a_share_of_what_waits(tmp_path: Path) -> None:
    """A board takes at most MOST_CASES at once, and but for a single one no more than its share of what waits."""
    job = benches.make_job(tmp_path, text=STUDY_YAML.replace("[64, 128, 256, 512]", "{from: 512, to: 620, step: 1}"))
    boards, weights = Cluster(job, "ab"), weights_of(job)
    run(job, boards)
    found = parcels(boards, weights)
    left, at_work = sum(map(sum, found)), 1  # the first board is at work before the second comes
    for parcel in found:
        assert len(parcel) == 1 or sum(parcel) <= left / (SHARES * at_work) + 1e-6
        left -= sum(parcel)
        at_work = 2

    assert max(map(len, found)) == MOST_CASES
    assert len(found[-1]) == 1
    whole(job)


def test_a_board_is_asked_in_the_study_s_own_order(tmp_path: Path) -> None:
    """What a worker is asked for is what it would be asked for on one machine: orders, seeds, look-up."""
    job = benches.make_job(tmp_path / "fleet", text=WIDE_YAML)
    boards = Cluster(job, "ab")
    run(job, boards)
    other = benches.make_job(tmp_path / "lone", text=WIDE_YAML)
    asked: list[Request] = []
    real = benches.InlineProcess.ask

    def ask(self: benches.InlineProcess, request: Request, timeout_s: int) -> Measured | Failed:
        asked.append(request)
        return real(self, request, timeout_s)

    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        patch.setattr(benches.InlineProcess, "ask", ask)
        benches.run(other)

    def by_seed(requests: Sequence[Request]) -> list[Request]:
        return sorted(requests, key=lambda request: request.seed)

    assert by_seed([request for _, requests in boards.asked for request in requests]) == by_seed(asked)


def test_a_failure_is_a_line(tmp_path: Path) -> None:
    """A worker that crashes, hangs or has a defect costs one line, with its status, as on one machine."""

    class Frail(Cluster):
        def measured(self, engine: Simulated, request: Request) -> Measured | Failed:
            failed = request.case.s_kv == 160
            return (
                Failed(Status.CRASHED, "ended by SIGKILL in /a/b/c.py") if failed else super().measured(engine, request)
            )

    job = benches.make_job(tmp_path, text=WIDE_YAML)
    said = pipeline.time(job, finished.hooks(), boards=Frail(job, "ab"))

    assert said == f"bf16 train: attempt 1, {LINES} of {LINES} lines (3 crashed)"
    assert {r.error for r in benches.records(job) if r.status is not Status.OK} == {"ended by SIGKILL in c.py"}
    whole(job)


def test_routing_and_holdout_are_shared_out(tmp_path: Path) -> None:
    """The whole path over a fleet holds in a replay, but for what its gate cannot say."""
    job = benches.make_job(tmp_path, text=ANCHORED_YAML)
    hooks = finished.hooks()
    for split in Split:
        own = job._replace(split=split)
        pipeline.time(own, hooks, boards=Cluster(own, "ab"))
        if split is Split.TRAIN:
            pipeline.generate(job)
            editing.apply_lines(job.results.lines, job.place.table, hooks.now)
    holdout = job._replace(split=Split.HOLDOUT)
    scored = pipeline.score(holdout, hooks.now)
    reporting.report(holdout)

    assert failing(job) == []
    assert len(scored["boards"]["boards"]) == 2
    assert set(scored["boards"]["lanes"]) == {lane(job, "a"), lane(job, "b")}


# Boards that may not work


def test_a_board_that_cannot_measure_takes_no_work(tmp_path: Path) -> None:
    """A board on which something is missing, or no engine opens, is named with what is missing; others go on."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "abc")
    missing = (Finding("GPU", "an A100"), Finding("driver", "440", "450 or later"))
    boards.opened[1] = lambda _found: Opened(findings=missing, fingerprint=None)
    boards.problems[2] = "engine simulated cannot be opened here: no such device"
    ended = run(job, boards)

    assert ended.said == [
        "board 1 on host 1 takes no work: driver: 440; needed: 450 or later",
        "board 2 on host 2 takes no work: engine simulated cannot be opened here: no such device",
    ]
    assert {board for board, _ in boards.asked} == {3}
    assert set(ended.attempt.lanes) == {lane(job, "c")}
    whole(job)


def changed(**fields: Any) -> Callable[[Opened], Opened]:
    """Return what changes the fingerprint that a board opens with."""

    def change(found: Opened) -> Opened:
        assert found.fingerprint is not None
        return msgspec.structs.replace(found, fingerprint=msgspec.structs.replace(found.fingerprint, **fields))

    return change


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"board": "OTHER"}, "board simulated device and OTHER"),
        ({"code": "0"}, "code [0-9a-f]{64} and 0"),
        ({"cc": "sim-2"}, "cc sim-1 and sim-2"),
        ({"versions": {}}, "versions {.*} and {}"),
        ({"settings": {}}, "settings {.*} and {}"),
    ],
)
def test_a_board_of_another_kind_takes_no_work(tmp_path: Path, fields: dict[str, Any], words: str) -> None:
    """A board of another model, or with other code, than the first one is named with both; others go on."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "abc")
    boards.opened[2] = changed(**fields)
    ended = run(job, boards)
    (said,) = ended.said

    assert re.fullmatch(f"board 2 on host 2 takes no work: not comparable with the first board: {words}", said)
    assert {board for board, _ in boards.asked} == {1, 3}
    whole(job)


def test_a_board_unlike_those_of_the_attempt_takes_no_work(tmp_path: Path) -> None:
    """A fleet that goes on is held against the attempt's records, not only against the first board to come."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    with pytest.raises(KeyboardInterrupt):
        run(job, Cluster(job, "a"), stop_after=3)
    boards = Cluster(job, ["OTHER:b", "a"])
    ended = run(job, boards)

    assert len(ended.said) == 1
    assert ended.said[0].startswith(
        "board 1 on host 1 takes no work: train attempt 1 has 9 of 42 lines from another state: "
    )
    assert {board for board, _ in boards.asked} == {2}
    whole(job)


def test_a_device_is_the_one_that_the_study_asks_for(tmp_path: Path) -> None:
    """A board that is not the study's takes no work."""
    job = benches.make_job(tmp_path, text=WIDE_YAML.replace("board: any", "board: RIGHT"))
    ended = run(job, Cluster(job, ["WRONG:1", "RIGHT:2"]))

    assert ended.said == [
        f"board 1 on host 1 takes no work: {job.study.path}: device.board is RIGHT; this machine has WRONG"
    ]
    whole(job)


def test_one_board_takes_work_once(tmp_path: Path) -> None:
    """Two workers that have the same board, of which one id is left, do not disturb each other: the second is named."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "aab")
    ended = run(job, boards)
    uuid = lane(job, "a").removeprefix("b")

    assert ended.said == [f"board 2 on host 2 takes no work: simulated device {uuid} is at work already"]
    assert {board for board, _ in boards.asked} == {1, 3}
    whole(job)


# Boards that are lost


@pytest.mark.parametrize("after", [1, 2, 3])
def test_what_a_lost_board_had_begun_is_dropped(tmp_path: Path, after: int) -> None:
    """A board that is lost before it ended its first cases leaves nothing, whatever repeats it had answered."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "ab", {(2, after): "lost"})
    ended = run(job, boards)
    count = len({case_digest(request.case) for board, requests in boards.asked if board == 2 for request in requests})

    assert ended.said == [f"board 2 on host 2 is lost: the node is gone; {count} cases go back"]
    assert count >= 1
    assert set(ended.attempt.lanes) == {lane(job, "a")}
    assert study_json(job) == lone(tmp_path / "lone", WIDE_YAML)
    whole(job)


def test_a_board_lost_later_keeps_what_was_written(tmp_path: Path) -> None:
    """The cases that a board ended before it was lost stay as they are, and are not measured again."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "ab", {(2, 5): "lost"})
    run(job, boards)
    own = [{case_digest(r.case) for r in requests} for board, requests in boards.asked if board == 2]
    others = {case_digest(r.case) for board, requests in boards.asked if board == 1 for r in requests}
    lanes = lanes_of(job)

    assert {case for case, found in lanes.items() if found == {lane(job, "b")}} == own[0]
    assert not own[0] & others
    assert own[3] < others
    whole(job)


def test_a_board_that_comes_back_goes_on_in_its_lane(tmp_path: Path) -> None:
    """A board that was lost after it wrote comes back: its second session follows its first, and nothing is double."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    ended = run(job, Cluster(job, "ab", {(2, 5): "back"}))
    first, second = ended.attempt.lanes[lane(job, "b")]

    assert (first.session.session, second.session.session) == (1, 2)
    assert (first.session.prev, second.session.prev) == ("", first.sha256)
    assert first.records
    assert second.records
    assert failing(job) == []
    whole(job)


def test_a_board_that_comes_back_before_it_wrote_begins_its_lane(tmp_path: Path) -> None:
    """A board that was lost before it wrote anything comes back as a new one."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    ended = run(job, Cluster(job, "ab", {(2, 1): "back"}))

    assert [file.session.session for file in ended.attempt.lanes[lane(job, "b")]] == [1]
    whole(job)


def test_when_all_boards_are_lost_it_says_what_is_missing(tmp_path: Path) -> None:
    """Without a board the driver says how many lines are missing; the same call goes on with just those."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    with pytest.raises(DeviceError) as caught:
        run(job, Cluster(job, "ab", {(1, 5): "lost", (2, 4): "lost"}))
    there = len(benches.records(job))
    assert str(caught.value) == (
        f"no board is left that could go on: {LINES - there} of {LINES} lines are missing; the same command goes on"
    )
    boards = Cluster(job, "c")
    run(job, boards)

    assert 0 < there < LINES
    assert sum(len(requests) for _, requests in boards.asked) == LINES - there
    whole(job)


def test_without_any_board_nothing_is_written(tmp_path: Path) -> None:
    """Where no board comes, one line says so, and there are no records."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    with pytest.raises(
        DeviceError, match=rf"\Ano board is left that could go on: {LINES} of {LINES} lines are missing; "
    ):
        run(job, Cluster(job, ()))

    assert not job.results.records.exists()


def test_a_case_that_was_lost_with_three_boards_is_left_out(tmp_path: Path) -> None:
    """A case with which three boards were lost is named and tried no more; all others are measured."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    killer = max(job.cases, key=lambda case: job.cases[case].s_kv * job.cases[case].h_q)
    boards = Cluster(job, "abcde", killers=frozenset([killer]))
    said: list[str] = []
    with pytest.raises(DeviceError, match=rf"could go on: 3 of {LINES} lines are missing; the same command goes on\Z"):
        fleet.time_split(job, boards, lambda: NOW, lambda _step: None, said.append)

    assert said[-1] == f"{job.cases[killer].label}: was lost with {MOST_LOSSES} boards, and is left out"
    assert sum("is lost: the node is gone; " in line for line in said) == 3
    assert {record.case for record in benches.records(job)} == job.cases.keys() - {killer}
    run(job, Cluster(job, "a"))  # it was not the case
    whole(job)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_is_lost_each_planned_line_is_there_once(tmp_path: Path, seed: int) -> None:
    """Boards are lost and come back, the driver is killed, all in any order: at the end each line is there once."""
    dice = random.Random(seed)
    job = benches.make_job(tmp_path, text=ANCHORED_YAML if seed % 2 else WIDE_YAML)
    for _ in range(8):
        serials = "abcd"[: dice.randint(1, 4)]
        fates = {
            (dice.randint(1, 5), dice.randint(1, 9)): dice.choice(["lost", "back"]) for _ in range(dice.randint(0, 4))
        }
        boards = Cluster(job, serials, fates, dice=random.Random(dice.random()))
        with contextlib.suppress(KeyboardInterrupt, DeviceError):
            run(job, boards, stop_after=dice.choice([0, 1, 2, 5]))
    run(job, Cluster(job, "abcd", dice=dice))

    whole(job)
    assert failing(job) == []
    assert study_json(job) == lone(tmp_path / "lone", ANCHORED_YAML if seed % 2 else WIDE_YAML)


# The driver stopped, and a deadline


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("after", [1, 2, 6, 13])
def test_a_driver_that_was_stopped_goes_on(tmp_path: Path, error: type[BaseException], after: int) -> None:
    """A driver that ends between two cases has those before on disk; the same call measures the others, and seals."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    with pytest.raises(error):
        run(job, Cluster(job, "ab"), stop_after=after, error=error)
    there = len(benches.records(job))
    unsealed = benches.sealed(job)
    boards = Cluster(job, "abc")
    run(job, boards)

    assert (there, unsealed) == (3 * after, {})
    assert sum(len(requests) for _, requests in boards.asked) == LINES - there
    assert failing(job) == []
    assert study_json(job) == lone(tmp_path / "lone", WIDE_YAML)
    whole(job)


def test_a_torn_write_is_gone_on_with_on_its_board(tmp_path: Path) -> None:
    """Of a case whose write was torn by a loss of power, its own board measures what is missing, no other."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    with pytest.raises(KeyboardInterrupt):
        run(job, Cluster(job, "a"), stop_after=2)
    (path,) = job.results.records.glob("*.jsonl")
    path.write_bytes(path.read_bytes()[:-7])
    case = benches.records(job)[-1].case
    with pytest.raises(DeviceError, match=rf" 1 of 37 lines are missing, some begun on {lane(job, 'a')};"):
        run(job, Cluster(job, "b"))
    boards = Cluster(job, "ba")
    run(job, boards)

    assert [(board, case_digest(r.case), r.seed) for board, requests in boards.asked for r in requests] == [
        (2, case, boards.asked[0][1][0].seed)
    ]
    whole(job)


class Counted(Cluster):
    """A cluster that notes how much of a budget was left when a board was asked for its first repeat."""

    budget: Budget
    first_at: list[int]

    def ask(self, board: int, requests: Sequence[Request], timeout_s: int) -> None:
        """Note what is left."""
        cases = {case_digest(request.case) for request in requests}
        if all(cases != {case_digest(r.case) for r in before} for _, before in self.asked):
            self.first_at.append(self.budget.remaining_ns)
        super().ask(board, requests, timeout_s)


def test_nothing_is_handed_out_after_a_deadline(tmp_path: Path) -> None:
    """When a deadline is past, boards end what they have, and get no more; the same command goes on."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    full = Cluster(job, "ab")
    took = sum(
        int(r.checks["took_ns"])
        for r in run(benches.make_job(tmp_path / "all", text=WIDE_YAML), full).attempt.files[0].records
    )
    boards = Counted(job, "ab")
    boards.budget, boards.first_at = Budget(took // 4, None), []
    hooks = finished.hooks()._replace(budget=boards.budget)
    with pytest.raises(CannotSayError) as caught:
        pipeline.time(job, hooks, boards=boards)
    there = len(benches.records(job))

    assert str(caught.value) == (
        f"bf16 train: the deadline came after {there} of {LINES} lines; the same command goes on"
    )
    assert 0 < there < LINES
    assert boards.budget.remaining_ns <= 0 < min(boards.first_at)
    assert sum(len(requests) for _, requests in boards.asked) == there  # what was begun was ended
    assert benches.on_disk(job) == benches.sealed(job)
    run(job, Cluster(job, "ab"))
    whole(job)


def test_only_one_driver_at_a_time(tmp_path: Path) -> None:
    """While a study is timed, a fleet is refused, and the other way round."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "a")
    with timing.alone(job.place), pytest.raises(StudyError, match="another process is at work on this study"):
        run(job, boards)

    assert boards.asked == []


def test_a_fleet_and_a_lone_run_do_not_mix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that a fleet began is not gone on with by one machine or a shard, nor the other way round."""
    benches.inline(monkeypatch)
    job, other = (
        benches.make_job(tmp_path / "fleet", text=WIDE_YAML),
        benches.make_job(tmp_path / "lone", text=WIDE_YAML),
    )
    with pytest.raises(KeyboardInterrupt):
        run(job, Cluster(job, "ab"), stop_after=2)
    benches.stopped(other, 4)
    before = benches.on_disk(job), benches.on_disk(other)
    said = [call("time", job.place.folder, "--dtype", "bf16", *more) for more in ((), ("--shard", "1/2"))]
    words = f"bf16 train attempt 1: 6 of {LINES} lines are there, begun with --ray; found "
    with pytest.raises(StudyError) as caught:
        run(other, Cluster(other, "ab"))

    assert said == [(2, "", f"{words}without --shard\n"), (2, "", f"{words}with --shard 1/2\n")]
    assert str(caught.value) == (
        f"bf16 train attempt 1: 4 of {LINES} lines are there, begun without --shard; found with --ray"
    )
    assert (benches.on_disk(job), benches.on_disk(other)) == before
    assert run(other, Cluster(other, "ab"), reason="on many boards").attempt.number == 2


def test_a_complete_split_is_not_measured_again(tmp_path: Path) -> None:
    """Another call on a complete split asks no board and changes no file, however it was measured."""
    job = benches.make_job(tmp_path, text=ANCHORED_YAML)
    run(job, Cluster(job, "ab"))
    before = benches.on_disk(job), ledger.read(job.results.ledger)
    boards = Cluster(job, "abc")
    run(job, boards)

    assert boards.asked == []
    assert (benches.on_disk(job), ledger.read(job.results.ledger)) == before


def test_a_new_attempt_over_a_fleet(tmp_path: Path) -> None:
    """A new attempt measures everything again in lanes of its own, says why, and leaves the old one."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    run(job, Cluster(job, "ab"))
    before = benches.on_disk(job)
    attempt = run(job, Cluster(job, "ab"), reason="the fan failed").attempt

    assert (attempt.number, attempt.found, {file.session.reason for file in attempt.files}) == (
        2,
        LINES,
        {"the fan failed"},
    )
    assert before.items() <= benches.on_disk(job).items()
    assert {file.session.prev for file in attempt.files} == {""}


# The stop rule and anchors


STOPPED_YAML = small(("noise_ppm: 2000", "noise_ppm: 18000"))


def test_the_stop_rule_over_a_fleet(tmp_path: Path) -> None:
    """A case is measured until its interval is narrow, on its board; it stops where it does on one machine."""
    job = benches.make_job(tmp_path / "fleet", text=STOPPED_YAML)
    ended = run(job, Cluster(job, "abc"))
    last = stopping.repeats_of(benches.records(job))

    assert len(set(last.values())) > 1
    assert min(last.values()) >= 8
    assert study_json(job) == lone(tmp_path / "lone", STOPPED_YAML)
    assert ended.attempt.found == ended.attempt.planned == sum(last.values())
    assert failing(job) == []


def test_the_stop_rule_goes_on_over_a_fleet(tmp_path: Path) -> None:
    """Stopped between cases, and with a board lost in the middle, the stop rule gives what it gives on one machine."""
    job = benches.make_job(tmp_path / "fleet", text=STOPPED_YAML)
    with pytest.raises(KeyboardInterrupt):
        run(job, Cluster(job, "ab", {(1, 9): "back"}), stop_after=1)
    run(job, Cluster(job, "cab", {(1, 10): "lost"}))

    assert study_json(job) == lone(tmp_path / "lone", STOPPED_YAML)
    assert failing(job) == []


@pytest.mark.parametrize("stop", [False, True])
def test_every_board_measures_the_anchors(tmp_path: Path, stop: bool) -> None:
    """Each board measures all anchors before anything else; they are counted once."""
    text = STOPPED_YAML.replace("blocks: 8", "blocks: 8, anchors: 2") if stop else ANCHORED_YAML
    job = benches.make_job(tmp_path, text=text)
    boards = Cluster(job, "abc")
    steps: list[Any] = []
    fleet.time_split(job, boards, lambda: NOW, steps.append, lambda _said: None)
    anchors = attempts.anchors_of(job.study, job.split, job.cases)
    first: dict[int, set[str]] = {}
    for board, requests in boards.asked:
        first.setdefault(board, {case_digest(request.case) for request in requests})
    attempt = job.attempts()[0]

    assert first == dict.fromkeys((1, 2, 3), anchors)
    assert {case: len(lanes) for case, lanes in lanes_of(job).items()} == {
        case: 3 if case in anchors else 1 for case in job.cases
    }
    assert attempt.missing == frozenset()
    assert benches.cells(job).total() == attempt.found == attempt.planned
    assert steps[-1].done == steps[-1].total
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert failing(job) == []


def test_a_board_goes_on_with_its_anchors(tmp_path: Path) -> None:
    """A board of which an anchor is there already measures the other one alone."""
    job = benches.make_job(tmp_path, text=ANCHORED_YAML)
    with pytest.raises(KeyboardInterrupt):
        run(job, Cluster(job, "a"), stop_after=1)
    done = {record.case for record in benches.records(job)}
    boards = Cluster(job, "a")
    run(job, boards)
    anchors = attempts.anchors_of(job.study, job.split, job.cases)

    assert {case_digest(request.case) for request in boards.asked[0][1]} == anchors - done
    whole(job)


# What is written


def test_a_case_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All lines of a case are one write and one sync; a board's session is one more, and comes with its first case."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "ab")
    timing.begun(job)
    seen = watch_disk(monkeypatch)
    at_case: list[int] = []
    fleet.time_split(job, boards, lambda: NOW, lambda _step: at_case.append(len(seen)), lambda _said: None)
    writes = [one for one in seen[: at_case[-1]] if one.startswith("write")]

    assert Counter(writes) == {"write 3": len(job.cases), "write 1": 2}
    for end in at_case:
        assert seen[end - 2 : end] == ["write 3", "sync"]


def test_boards_on_one_host_are_neighbours(tmp_path: Path) -> None:
    """A session says how many other boards were at work on its host; comparing does not look at it."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    boards = Cluster(job, "abcd")
    boards.hosts |= {1: "x", 2: "x", 3: "x", 4: "y"}
    attempt = run(job, boards).attempt
    found = {name: own[0].session.fingerprint.device["neighbours"] for name, own in attempt.lanes.items()}

    assert found == {lane(job, "a"): "2", lane(job, "b"): "2", lane(job, "c"): "2", lane(job, "d"): "0"}


def test_a_session_says_what_its_lane_is(tmp_path: Path) -> None:
    """A board's records are in files of its own, named by its lane; its id is a hash, and not its serial number."""
    job = benches.make_job(tmp_path, text=WIDE_YAML)
    attempt = run(job, Cluster(job, ["serial-a", "serial-b"])).attempt

    assert {file.path.name for file in attempt.files} == {f"train-01-{name}-001.jsonl" for name in attempt.lanes}
    assert all(jsonl.read(file.path) == file for file in attempt.read)
    assert not any(b"serial-" in file.path.read_bytes() for file in attempt.files)


# The command


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Job:
    """Return a job of which all but the last six lines are measured, which take virtual hours."""
    benches.inline(monkeypatch)
    job = benches.make_job(
        tmp_path, text=WIDE_YAML.replace("s_kv * 1000", "s_kv * 30000000").replace("s_kv * 500", "s_kv * 15000000")
    )
    benches.stopped(job, LINES - 6)
    return job


def test_plan_tells_how_long_on_how_many_boards(planned: Job) -> None:
    """`--plan --boards N --deadline T` tells the time on one board and on each of N, and how many boards it takes."""
    predicted_ns = costs.predict_job_ns(planned, planned.attempts()[-1].missing)
    assert predicted_ns is not None
    begin = f"bf16 train: 6 lines are missing, about {predicted_ns / 1e9:.1f} s"
    end = "; no run had a prediction yet\n"
    time = ("time", planned.place.folder, "--dtype", "bf16", "--plan")
    on_four = f" on one board, {predicted_ns / 4 / 1e9:.1f} s on each of 4"
    needed = -(-predicted_ns // (60 * 10**9))

    assert call(*time) == (0, f"{begin}{end}", "")
    assert call(*time, "--boards", "1") == (0, f"{begin}{end}", "")
    assert call(*time, "--boards", "4", "--deadline", "999h") == (
        0,
        f"{begin}{on_four}; 1 board for the deadline{end}",
        "",
    )
    assert call(*time, "--boards", "4", "--deadline", "1m") == (
        0,
        f"{begin}{on_four}; {needed} boards for the deadline{end}",
        "",
    )
    assert needed > 1
    assert predicted_ns > 10**12


def test_ray_that_is_not_installed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, `--ray` is one line that says how to install it, exit 2; nothing is written."""
    job = benches.make_job(tmp_path)
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "ray" else real(name, *more))
    said = call("time", job.place.folder, "--dtype", "bf16", "--ray", "local")

    assert said == (2, "", "--ray: Ray is not installed; pip install 'studytool[ray]'\n")
    assert not job.results.folder.exists()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--boards", "2"), "Error: --boards goes with --ray, or with --plan\n"),
        (("--ray", "local", "--plan"), "Error: --ray goes without --shard, --plan and --prewarm\n"),
        (("--ray", "local", "--prewarm", "2"), "Error: --ray goes without --shard, --plan and --prewarm\n"),
        (
            ("--ray", "local", "--boards", "0"),
            "Error: Invalid value for '--boards': 0 is not in the range 1<=x<=4096.\n",
        ),
        (("--plan", "--boards", "4097"), "Error: Invalid value for '--boards': 4097 is not in the range 1<=x<=4096.\n"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, more: tuple[str, ...], words: str) -> None:
    """What does not go with `--ray` is bad usage, before a cluster is looked for."""
    job = benches.make_job(tmp_path)
    said = call("time", job.place.folder, "--dtype", "bf16", *more)

    assert (said.code, said.out) == (2, "")
    assert said.err.endswith(words)


def one_after_the_other(boards: Cluster) -> Cluster:
    """Return boards of which the next one comes when those before it are gone."""
    later, boards.due, real = boards.due[1:], boards.due[:1], boards.next

    def next_event() -> Any:
        if not boards.due and later:
            boards.due.append(later.pop(0))
        return real()

    boards.next = next_event  # type: ignore[method-assign]
    return boards


def test_an_anchor_that_was_lost_with_three_boards_is_left_out(tmp_path: Path) -> None:
    """An anchor with which three boards were lost is handed out no more; all other cases are measured."""
    job = benches.make_job(tmp_path, text=ANCHORED_YAML)
    killer = min(attempts.anchors_of(job.study, job.split, job.cases))
    with pytest.raises(DeviceError):
        run(job, one_after_the_other(Cluster(job, "abcdefgh", killers=frozenset([killer]))))

    assert {record.case for record in benches.records(job)} == job.cases.keys() - {killer}


def test_only_the_killer_is_left_out(tmp_path: Path) -> None:
    """Cases that were lost together with the one that kills boards go out alone, and are measured."""
    job = benches.make_job(tmp_path, text=STUDY_YAML.replace("[64, 128, 256, 512]", "{from: 512, to: 600, step: 8}"))
    killer = max(job.cases, key=lambda case: job.cases[case].s_kv)
    boards = Cluster(job, [str(number) for number in range(20)], killers=frozenset([killer]))
    with pytest.raises(DeviceError):
        run(job, one_after_the_other(boards))

    assert {record.case for record in benches.records(job)} == job.cases.keys() - {killer}
