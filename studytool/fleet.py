"""One split over many boards: each takes the next cases from one driver, which alone writes records.

Boards come and go as they like. All lines of a case are measured on one board and written at once; what a board that
is lost had begun is dropped, and goes to another. Who starts boards, and carries requests to them, is not said here.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from studytool import attempts, costs, fingerprint, jsonl, sessions, timing
from studytool.attempts import Attempt, Cell, Job
from studytool.board_events import Answered, Boards, Came, Lost
from studytool.costs import Budget
from studytool.errors import DeviceError, StudyError
from studytool.jsonl import SessionFile
from studytool.lanes import session_stem
from studytool.model import Record, Session
from studytool.progress import Progress
from studytool.sessions import Applied, History, Now, Run
from studytool.waiting import MOST_LOSSES, Waiting


class _Parcel(NamedTuple):
    """What a board has at once: cases, their lines that are missing, by repeat, and the records so far."""

    cases: tuple[str, ...]
    left: set[Cell]
    records: dict[str, list[Record]]


class _Board:
    """A board at work: its lane, the one writer of it, and what it has."""

    def __init__(self, run: Run, header: Session, host: str) -> None:
        self.run, self.header, self.prints, self.host = run, header, header.fingerprint, host
        self.history = History(run.job.study, run.files, self.prints.tick_ns)
        self.writer: jsonl.Writer | None = None
        self.parcel: _Parcel | None = None
        self.asked: list[tuple[Cell, bool | None]] = []
        self.done: set[str] = set()

    def close(self) -> None:
        """Close the records file, if there is one."""
        if self.writer is not None:
            self.writer.close()


def time_split(
    job: Job,
    boards: Boards,
    now: Now,
    progress: Callable[[Progress], None],
    say: Callable[[str], None],
    new_attempt: str = "",
    budget: Budget | None = None,
) -> Attempt:
    """Return the attempt after every missing line of it was measured on some board, or the budget was spent.

    As `timing.time_split`, with a lane of records for each board. DeviceError when no board is left before the end;
    what was recorded is kept, and the same call goes on.
    """
    with timing.alone(job.place):
        timing.begun(job)
        run = sessions.plan_run(job, now, progress, new_attempt, budget, "b")
        driver = _Driver(run, boards, say)
        try:
            driver.drive()
        finally:
            driver.close()
        timing.seal_held(job, now, lanes=True)
        return sessions.attempt_of(run)


class _Driver:
    """Hands out what is missing of a run, and writes what comes back."""

    def __init__(self, run: Run, boards: Boards, say: Callable[[str], None]) -> None:
        self._run, self._boards, self._say = run, boards, say
        job = run.job
        self._table: Applied = sessions.applied(job)
        self._anchors = attempts.anchors_of(job.study, job.split, job.cases)
        self._cells: dict[str, set[Cell]] = {}
        for cell in run.missing:
            self._cells.setdefault(cell[0], set()).add(cell)
        self._bound = self._begun_on()
        own = self._cells.keys() - self._bound.keys() - self._anchors
        self._waiting = Waiting(own, costs.weights(job, self._cells), job.study.protocol.repeats)
        self._left = len(run.missing)
        self._teller = run.teller()
        self._at_work: dict[int, _Board] = {}
        self._wrote: set[str] = set()
        self._first = run.current.files[0].session.fingerprint if run.current else None
        if run.current is not None:
            kept = tuple(_needed(file, run.job, self._anchors) for file in run.current.read)
            self._run = run._replace(current=run.current._replace(files=kept[:1], read=kept))

    def drive(self) -> None:
        """Run until nothing is missing, or no board can go on."""
        while self._left or any(board.parcel for board in self._at_work.values()):
            event = self._boards.next()
            if event is None:
                break
            if isinstance(event, Came):
                self._came(event)
            elif isinstance(event, Lost):
                self._lost(event)
            else:
                self._answered(event)
            for number, board in self._at_work.items():
                if board.parcel is None and not self._is_over():
                    self._hand_out(number, board)
            if self._is_over() and not any(board.parcel for board in self._at_work.values()):
                return
        if self._left and not self._is_over():
            lanes = sorted({lane for case, lane in self._bound.items() if case in self._cells})
            begun = f", some begun on {', '.join(lanes)}" if lanes else ""
            raise DeviceError(
                f"no board is left that could go on: {self._left} of {len(self._run.missing)} lines are missing{begun};"
                " the same command goes on"
            )

    def close(self) -> None:
        """Close every records file."""
        for board in self._at_work.values():
            board.close()

    def _is_over(self) -> bool:
        budget = self._run.budget
        return budget is not None and budget.remaining_ns <= 0

    def _begun_on(self) -> dict[str, str]:
        """Return the cases of which some lines are there already, with the lane that has to go on with them."""
        files = self._run.current.read if self._run.current else ()
        return {
            record.case: file.session.lane
            for file in files
            for record in file.records
            if record.case in self._cells and record.case not in self._anchors
        }

    def _came(self, event: Came) -> None:
        try:
            self._at_work[event.board] = self._admitted(event)
        except StudyError as error:
            self._say(f"board {event.board} on {event.host} takes no work: {error}")

    def _admitted(self, event: Came) -> _Board:
        """Return a board that may work; StudyError for one that cannot, or is not like the others."""
        if event.opened is None:
            raise DeviceError(event.problem)
        for finding in event.opened.findings:
            if finding.needed:
                raise DeviceError(f"{finding.what}: {finding.found}; needed: {finding.needed}")
        prints = event.opened.fingerprint
        assert prints is not None
        lane = f"b{prints.uuid}"
        if any(board.run.lane == lane for board in self._at_work.values()):
            raise DeviceError(f"{prints.board} {prints.uuid} is at work already")
        run = self._run._replace(lane=lane)
        if lane in self._wrote:  # it was lost, and is here again
            run = run._replace(current=self._lane_of(run))
        sessions.check_device(run, prints, self._table)
        if self._first is not None and (difference := fingerprint.comparable(self._first, prints)):
            raise DeviceError(f"not comparable with the first board: {difference}")
        self._first = self._first or prints
        return _Board(run, sessions.header(run, prints, self._table), event.host)

    def _lane_of(self, run: Run) -> Attempt:
        """Return what the lane of a run has on disk now, of records only what is needed."""
        job = run.job
        paths = job.results.records.glob(f"{session_stem(job.split, run.number, run.lane)}*.jsonl")
        files = [file for file in map(jsonl.read, sorted(paths)) if file is not None]
        kept = tuple(_needed(file, job, self._anchors) for file in files)
        return Attempt(run.number, kept, 0, frozenset(), kept)

    def _lost(self, event: Lost) -> None:
        board = self._at_work.pop(event.board, None)
        if board is None:
            self._say(f"board {event.board} is lost: {event.reason}")
            return
        back = board.parcel.cases if board.parcel else ()
        self._say(f"board {event.board} on {board.host} is lost: {event.reason}; {len(back)} cases go back")
        for case in back:
            if not self._waiting.lose(case):
                self._say(f"{self._run.job.cases[case].label}: was lost with {MOST_LOSSES} boards, and is left out")
            elif case not in self._bound and case not in self._anchors:
                self._waiting.put_back(case)
        board.close()

    def _hand_out(self, number: int, board: _Board) -> None:
        """Give a board that has nothing its anchors, the cases that it began, or a share of what waits."""
        lane, cells = board.run.lane, self._cells
        begun = {case: cells[case] for case, of in self._bound.items() if of == lane and case in cells}
        taken: dict[str, set[Cell]] = {}
        if self._waiting or begun or self._anchors & cells.keys():  # else there is nothing that anchors would vouch for
            taken = self._waiting.one_by_one(self._anchors_of(board))
        if not taken:
            taken = self._waiting.one_by_one(begun)
        if not taken and self._waiting:
            taken = {case: cells[case] for case in self._waiting.share(len(self._at_work))}
        if taken:
            board.parcel = _Parcel(tuple(taken), set().union(*taken.values()), {case: [] for case in taken})
            self._ask(number, board)

    def _anchors_of(self, board: _Board) -> dict[str, set[Cell]]:
        """Return the lines of anchors that a board lacks: all of them, unless its lane has them."""
        job = self._run.job
        wanted = attempts.planned_cells(job.study, job.split, {case: job.cases[case] for case in self._anchors})
        missing: dict[str, set[Cell]] = {}
        for cell in attempts.lacking(wanted, board.run.files):
            if cell[0] not in board.done:
                missing.setdefault(cell[0], set()).add(cell)
        return missing

    def _ask(self, number: int, board: _Board) -> None:
        """Have a board measure the next repeat of what it has."""
        job, parcel = self._run.job, board.parcel
        assert parcel is not None
        repeat = min(repeat for _, repeat, _ in parcel.left)
        cells = sessions.visits(job, repeat, parcel.left)
        board.asked = [(cell, sessions.answer_of(job, board.prints, self._table, cell[0])) for cell in cells]
        requests = [sessions.request_of(job, answer, cell) for cell, answer in board.asked]
        self._boards.ask(number, requests, job.study.protocol.case_timeout_s)

    def _answered(self, event: Answered) -> None:
        board, job = self._at_work[event.board], self._run.job
        parcel = board.parcel
        assert parcel is not None
        startup_ns = event.startup_ns
        for (cell, answer), found in zip(board.asked, event.found, strict=True):
            record = sessions.record_of(job, board.header, answer, cell, found, startup_ns)
            looked = board.history.look(record)
            parcel.records[cell[0]].append(msgspec.structs.replace(record, checks={**record.checks, **looked}))
            startup_ns = 0
            parcel.left.discard(cell)
            if looked.get("look_stop"):
                parcel.left.difference_update({other for other in parcel.left if other[0] == cell[0]})
        if parcel.left:
            self._ask(event.board, board)
            return
        board.parcel = None
        for case in parcel.cases:
            self._write(board, case, parcel.records[case])

    def _write(self, board: _Board, case: str, records: Sequence[Record]) -> None:
        """Write all lines of a case in one write, which is on disk when this returns."""
        if board.writer is None:
            hosts = [other.host for other in self._at_work.values()]
            device = {**board.prints.device, "neighbours": str(hosts.count(board.host) - 1)}
            prints = msgspec.structs.replace(board.prints, device=device)
            header = msgspec.structs.replace(board.header, fingerprint=prints)
            board.writer = jsonl.Writer(sessions.path(board.run), header)
            self._wrote.add(board.run.lane)
        board.writer.append(*records)
        board.done.add(case)
        budget = self._run.budget
        if budget is not None:
            budget.spend(sum(int(record.checks.get("took_ns", 0)) for record in records) // len(self._at_work))
        counted = self._cells.pop(case, None)
        if counted is not None:
            self._left -= len(counted)
        self._teller.tell(records[-1], board.prints.tick_ns, self._left)


def _needed(file: SessionFile, job: Job, anchors: frozenset[str]) -> SessionFile:
    """Return a file with the records that a driver needs: all for the stop rule, else those of anchors."""
    if job.study.protocol.stop_half_width_ppm:
        return file
    return file._replace(records=tuple(record for record in file.records if record.case in anchors))
