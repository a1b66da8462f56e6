"""What plan lists of a described board say of a study, of a table, and of records, put together for the commands."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from studytool import attempts, freeze, grid, lines, outlook, stale, studyjson
from studytool.attempts import Attempt, Job
from studytool.engines.base import Order
from studytool.errors import StudyError
from studytool.files import read_bytes, write_atomic
from studytool.layout import StudyPlace
from studytool.model import LEGS, Case, Record, Split, Study
from studytool.planning import boards, libraries
from studytool.planning.boards import Board
from studytool.planning.deviceless import Planner, device_description
from studytool.planning.libraries import Libraries
from studytool.runtime import key, lookup
from studytool.stale import Judged, State, Witness
from studytool.studyjson import Summary

Progress = Callable[[int, int, str], None]


class Asked(NamedTuple):
    """What is asked for: a board by name or file, a cuDNN version or the installed one, and what is allowed."""

    board: str
    cudnn: str | None
    fetch: bool = False
    even_with_driver: bool = False

    def libraries(self) -> Libraries:
        """Return the libraries of the version; they are fetched where that was asked for."""
        return libraries.fetch(self.cudnn) if self.fetch and self.cudnn else libraries.find(self.cudnn)

    def planner(self, board: Board, base: str) -> Planner:
        """Return the process that plans."""
        return Planner(board, self.libraries(), base, even_with_driver=self.even_with_driver)


def plan(study: Study, place: StudyPlace, asked: Asked, progress: Progress) -> tuple[str, dict[str, Any]]:
    """Return what each split of a study would do on a board, as text and for machines; StudyError for other engines."""
    if study.engine != "cudnn":
        raise StudyError(f"{study.path}: engine is {study.engine}; only cudnn has plan lists to predict")
    board = boards.load(asked.board)
    table = attempts.table_in_force(place, Split.TRAIN)[1]
    with asked.planner(board, study.base) as planner:
        found = outlook.expect(study, grid.expand(study), planner, board, table, progress)
        return outlook.as_text(board, planner, found), outlook.as_json(study, board, planner, found)


class Stale(NamedTuple):
    """A table's lines under some versions, as text, and the worst state among them."""

    text: str
    worst: State


def stale_lines(
    path: Path, asked: Asked, versions: Sequence[str | None], base: str, summaries: Sequence[Summary]
) -> Stale:
    """Return a table's lines with their state under each version.

    With the train summaries of the study that made it, each line is judged by all of its cases, not by the one that it
    names, and the cases to time again are named too.
    """
    data = read_bytes(path)
    entries, table = lines.read_table(data, str(path)), lines.parse_table(data, str(path))
    board = boards.load(asked.board)
    witnesses, classes = _of_summaries(table, summaries)
    columns: dict[str, list[Judged]] = {}
    for version in versions:
        with asked._replace(cudnn=version).planner(board, base) as planner:
            name = version or str(planner.found.cudnn)
            columns[name] = stale.judge(table, entries, (str(path), board.cc), planner, witnesses)
    states = [item.state for column in columns.values() for item in column]
    worst = max(states, key=list(State).index, default=State.FRESH)
    return Stale(_stale_text(path, table, columns, classes), worst)


def _of_summaries(
    table: lookup.Table, summaries: Sequence[Summary]
) -> tuple[dict[lookup.Key, list[Witness]], dict[lookup.Key, list[Case]]]:
    """Return by key the cases that an entry leads, with the plans that they ran, and all cases of its class."""
    witnesses: dict[lookup.Key, list[Witness]] = {}
    classes: dict[lookup.Key, list[Case]] = {}
    for train in summaries:
        for case in train.cases:
            answer = lookup.explain(table, train.row, train.cc, case.fields, train.board)
            if answer.entry is None or answer.key is None:
                continue
            classes.setdefault(answer.key, []).append(_case(case.fields))
            if answer.code == "HIT":
                plans = {side: frozenset({case.plans[side]}) for side in stale.SIDES}
                witnesses.setdefault(answer.key, []).append(Witness(_case(case.fields), plans))
    return witnesses, classes


def _case(fields: Mapping[str, key.Value]) -> Case:
    return Case(**fields)  # type: ignore[arg-type]  # a summary's fields were checked to be a case's


def _stale_text(
    path: Path, table: lookup.Table, columns: Mapping[str, list[Judged]], cases: Mapping[lookup.Key, list[Case]]
) -> str:
    head = ["| line | class | " + " | ".join(f"cuDNN {name}" for name in columns) + " |"]
    head += ["| --- " * (2 + len(columns)) + "|"]
    told, again = [], []
    for judged in zip(*columns.values(), strict=True):
        words = " ".join(map(str, judged[0].key))
        head.append(f"| {judged[0].line} | {words} | " + " | ".join(item.state for item in judged) + " |")
        for name, item in zip(columns, judged, strict=True):
            told += [f"{path}:{item.line}: {item.state} under {name}: {item.detail}"] if item.detail else []
        if any(item.detail for item in judged):
            own = stale.again(table.entries[judged[0].key], cases.get(judged[0].key, []))
            again += [f"{path}:{judged[0].line}: time again {case.label}" for case in own]
    others = len(table.entries) - len(next(iter(columns.values())))
    left_out = [f"{others} lines are of another compute capability and were not asked for"] if others else []
    parts = [head, told, again, left_out]
    return "\n\n".join("\n".join(part) for part in parts if part)


def beside(study: Study, place: StudyPlace, dtypes: Sequence[str], asked: Asked | None) -> list[str]:
    """Return what `seen` says of each dtype that has results; without `asked`, why it can say nothing is a line."""
    told: list[str] = []
    for dtype in dtypes:
        if not place.results(dtype).records.is_dir():
            continue
        try:
            told += seen(Job(study, place, freeze.verify(study, place), dtype, Split.TRAIN), asked)
        except StudyError as error:
            if asked is not None:
                raise
            told.append(f"{dtype}: not compared with what is seen: {error}")
    return told


def seen(job: Job, asked: Asked | None) -> list[str]:
    """Return how the plans that records saw compare with those that are predicted for their board, as lines.

    What is not asked for, board or cuDNN, is that of the records' fingerprint. StudyError where it is not to be had.
    A difference is no fault: plan lists are predictions.
    """
    made = {split: job._replace(split=split).attempts() for split in job.study.splits}
    records = _first_records(job, made)
    if not records:
        return [f"{job.dtype}: no records to compare"]
    prints = next(own[0] for own in made.values() if own).files[0].session.fingerprint
    board = boards.load(asked.board) if asked and asked.board else boards.of_device_name(prints.board)
    if board is None:
        raise StudyError(f"no board here is called {prints.board}; expected --board")
    number = prints.versions.get("cudnn", "")
    if not (asked and asked.cudnn) and not (number.isascii() and number.isdigit()):
        raise StudyError(f"the records do not say which cuDNN ran, found {number!r}; expected --cudnn")
    version = asked.cudnn if asked and asked.cudnn else libraries.version_of(int(number))
    differing = []
    with Asked(board.name, version).planner(board, job.study.base) as planner:
        engine = planner.found.rows.get(job.study.row)
        for case, record in records.values():
            legs = outlook.legs_of(planner.plan(case), engine, Order(job.study.base, record.lookup))
            for leg in LEGS if record.order else ("auto", "default"):
                plan, own = legs[leg], record.legs[leg].plan
                if plan is None or own is None or plan.identity != own.identity:
                    names = f"planned {plan.name if plan else 'none'}, seen {own.name if own else 'none'}"
                    differing.append(f"{job.dtype} {record.split}: {case.label}: {leg}: {names}")
    count = f"{len(records)} cases planned for {board.name} under cuDNN {version}"
    return [f"{job.dtype}: {count}, {len(differing)} legs differ from what was seen", *differing]


def _first_records(job: Job, made: Mapping[Split, Sequence[Attempt]]) -> dict[str, tuple[Case, Record]]:
    """Return the first record that is ok of every case of the last attempts, by digest."""
    found: dict[str, tuple[Case, Record]] = {}
    for split, own in made.items():
        cases = job._replace(split=split).cases
        for file in own[-1].files if own else ():
            for record in file.records:
                if record.status == "ok":
                    found.setdefault(record.case, (cases[record.case], record))
    return found


def save_board(path: Path) -> str:
    """Write the description of the GPU that is here to a file, and return what was written."""
    if path.suffix != ".json":
        raise StudyError(f"--save-board: found {path}; expected a file NAME.json")
    board = boards.from_device(path.stem, device_description())
    write_atomic(path, boards.text(board).encode())
    return f"{path}: {board.device_name}, cc {board.cc}, {board.sm_count} SMs"


def summaries_of(study: Study, place: StudyPlace) -> list[Summary]:
    """Return the train summaries of the dtypes that a study has them of."""
    paths = [place.results(dtype).study_json for dtype in study.dtypes]
    return [studyjson.decode(read_bytes(path), str(path)) for path in paths if path.is_file()]
