"""Where a study stands, and what to type next."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from studytool import freeze, ledger, lines, results
from studytool.attempts import Attempt, Job, missing_of, planned_cells
from studytool.digest import sha256
from studytool.errors import CannotSayError, StudyError
from studytool.files import read_bytes
from studytool.lanes import Shard
from studytool.layout import StudyPlace
from studytool.model import SCHEMA, Split, Study
from studytool.report import markdown, together

DONE, OPEN, WAITING = "done", "next", "waits"


class Step(NamedTuple):
    """One step of a study: `state` is done, next (it can be done now) or waits; `command` does it."""

    dtype: str
    name: str
    state: str
    detail: str
    command: str


def status(study: Study, place: StudyPlace, dtypes: Sequence[str]) -> list[Step]:
    """Return the steps in order; FrozenError where what is frozen is not what study.yaml makes.

    Lines of all dtypes are applied before any hold-out is timed, so that each is timed with the whole table.
    """
    if not place.frozen.exists():
        return [Step("", "freeze", OPEN, "nothing is frozen yet", f"studytool freeze studies/{place.name}")]
    frozen = freeze.verify(study, place)
    found = [Step("", "freeze", DONE, freeze.posted_line(frozen.manifest, frozen.sha256), "")]
    own = {dtype: list(_steps(Job(study, place, frozen, dtype, Split.TRAIN))) for dtype in dtypes}
    ready = all(step.state == DONE for steps in own.values() for step in steps if step.name in {"train", "lines"})
    for steps in own.values():
        told = False
        for step in steps:
            later = told or (step.name not in {"train", "lines"} and not ready)
            state = step.state if step.state == DONE else WAITING if later else OPEN
            told = told or state == OPEN
            found.append(step._replace(state=state))
    if len(study.dtypes) > 1 and set(dtypes) == set(study.dtypes):
        found.append(_together([Job(study, place, frozen, dtype, Split.TRAIN) for dtype in study.dtypes], found))
    return found


def _together(jobs: Sequence[Job], found: Sequence[Step]) -> Step:
    """Return whether the report over all dtypes is there, and what the records give now."""
    place = jobs[0].place
    command = f"studytool report studies/{place.name} --dtype all"
    if any(step.state != DONE for step in found):
        return Step("", "report", WAITING, "that of all dtypes", command)
    all_sources = []
    for job in jobs:
        train, holdout = results.train(job), job._replace(split=Split.HOLDOUT)
        scored = results.score_of(holdout, train)
        all_sources.append(results.sources_of(holdout, train, scored, ledger.read(job.results.ledger)))
    expected = together.render(all_sources).encode()
    same = place.report.is_file() and read_bytes(place.report) == expected
    told = "that of all dtypes" if same else "that of all dtypes is not what the records give now, or not there"
    return Step("", "report", DONE if same else OPEN, told, command)


def _steps(job: Job) -> Iterator[Step]:
    """Return the steps of one dtype, as if each could be done now."""
    yield _timed(job)
    yield _lines(job)
    yield _timed(job._replace(split=Split.HOLDOUT))
    if job._replace(split=Split.ROUTING).cases:
        yield _timed(job._replace(split=Split.ROUTING))
    yield from _scored(job)


def _timed(job: Job) -> Step:
    attempts = job.attempts()
    planned = len(planned_cells(job.study, job.split, job.cases))
    last = attempts[-1] if attempts else None
    found, planned = (last.found, last.planned) if last else (0, planned)
    detail = f"{found} of {planned} lines" + (f", attempt {last.number}" if last and last.number > 1 else "")
    place = f"studies/{job.place.name}"
    asked = f"--dtype {job.dtype} --split {job.split}"
    shards = [shard for lane in last.lanes if (shard := Shard.of_lane(lane))] if last else []
    if last is not None and shards:
        return _sharded(job, last, shards[0].of, detail, f"{place} {asked}")
    command = f"studytool time {place} {asked}"
    return Step(job.dtype, str(job.split), DONE if last and not last.missing else OPEN, detail, command)


def _sharded(job: Job, last: Attempt, of: int, detail: str, asked: str) -> Step:
    """Return where a split stands that is measured in shards: each whole, and then merged."""
    left = [number for number in range(1, of + 1) if missing_of(job, last, Shard(number, of))]
    if left:
        told = f"{detail}; of {of} shards not whole: {', '.join(map(str, left))}"
        command = f"studytool time {asked} --shard {left[0]}/{of}"
        return Step(job.dtype, str(job.split), OPEN, told, command)
    sealed = ledger.sealed(ledger.read(job.results.ledger))
    merged = all(file.path.name in sealed for file in last.read)
    told = detail if merged else f"{detail}; the {of} shards are not merged"
    command = f"studytool merge-records --into {asked}"
    return Step(job.dtype, str(job.split), DONE if merged else OPEN, told, command)


def _lines(job: Job) -> Step:
    folder = f"studies/{job.place.name}"
    path, applied = job.results.lines, ledger.last_apply(ledger.read(job.results.ledger), job.dtype)
    made = (
        f"studytool gen {folder}/{job.dtype}/study.json > {job.dtype}.txt &&"
        f" studytool apply {job.dtype}.txt --table {folder}/table.py"
    )
    if applied is None or not path.is_file() or sha256(read_bytes(path)) != applied.body["lines"]:
        return Step(job.dtype, "lines", OPEN, "none are applied", made)
    header, text = lines.read_lines(read_bytes(path), job.place.shown(path))
    if header.study_json != sha256(read_bytes(job.results.study_json)):
        return Step(job.dtype, "lines", OPEN, "those applied are of an earlier study.json", made)
    return Step(job.dtype, "lines", DONE, f"{len(text.entries)} entries", "")


def _scored(job: Job) -> Iterator[Step]:
    """Return whether score and report are there, and what the records give now."""
    place, holdout = job.results, job._replace(split=Split.HOLDOUT)
    events = ledger.read(place.ledger)
    expected: dict[Path, bytes] = {}
    verdict, problem = "", ""
    try:
        train = results.train(job)
        scored = results.score_of(holdout, train)
        expected[place.score] = results.score_bytes(scored)
        verdict = f"the gate says {scored['verdict']}; the hold-out is {ledger.freshness(events).state}"
        expected[place.report] = markdown.render(results.sources_of(holdout, train, scored, events)).encode()
    except CannotSayError:  # a split is not complete, and says so by itself
        pass
    except StudyError as error:
        problem = str(error)
    for name, path, detail in (("score", place.score, verdict), ("report", place.report, place.report.name)):
        same = path.is_file() and read_bytes(path) == expected.get(path)
        told = detail if same else problem or ("not what the records give now" if path.is_file() else "not there")
        command = f"studytool {name} studies/{job.place.name} --dtype {job.dtype}"
        yield Step(job.dtype, name, DONE if same else OPEN, told, command)


def as_text(found: Sequence[Step]) -> str:
    """Return the steps as text, one a line, and the command to type next."""
    told = [f"{step.state:5}  {step.dtype:5}{step.name:8}  {step.detail}".rstrip() for step in found]
    return "\n".join([*told, "", *_next(found)])


def _next(found: Sequence[Step]) -> list[str]:
    open_steps = [step for step in found if step.state == OPEN]
    return [f"next: {open_steps[0].command}" if open_steps else "all is done; `studytool bundle` hands it over"]


def as_json(found: Sequence[Step]) -> bytes:
    """Return the steps as JSON."""
    told = {"schema": SCHEMA, "steps": [step._asdict() for step in found]}
    return msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n"
