"""The steps in order, each writing what it found: freeze, time, gen, apply, time, score, report, replay."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from studytool import costs, editing, fleet, freeze, ledger, lines, merging, process, reporting, results, timing
from studytool import prewarm as prewarming
from studytool.attempts import Attempt, Job, missing_of, planned_cells, shard_cells
from studytool.board_events import Boards
from studytool.costs import Budget
from studytool.digest import sha256
from studytool.engines.base import Finding, Terms
from studytool.errors import CannotSayError
from studytool.files import read_bytes, write_atomic
from studytool.lanes import Shard
from studytool.layout import StudyPlace
from studytool.model import ENGINES, Split, Study
from studytool.opening import check_entries, job_of
from studytool.progress import Progress
from studytool.sessions import Now


class Hooks(NamedTuple):
    """What the outside gives the steps: the time as text, where progress goes, and a line for each step begun."""

    now: Now
    progress: Callable[[str, Progress], None]
    say: Callable[[str], None]
    budget: Budget | None = None


def freeze_study(study: Study, place: StudyPlace, exclude: list[Path]) -> str:
    """Freeze the study's cases and return the line to post."""
    return freeze.freeze(study, place, exclude, git_commit(place.root))


def git_commit(folder: Path) -> str:
    """Return the commit that a folder's checkout is at, "" outside of one."""
    git = shutil.which("git")
    if git is None:
        return ""
    command = [git, "-C", str(folder), "rev-parse", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    return found.stdout.strip() if found.returncode == 0 else ""


def time(
    job: Job, hooks: Hooks, new_attempt: str = "", shard: Shard | None = None, boards: Boards | None = None
) -> str:
    """Measure what is missing of a split, write study.json after the train split, and return what there is now.

    CannotSayError where the deadline came first. Of a shard its own lines alone are measured, and study.json is written
    when all are merged. With boards, those of a fleet measure, and not this machine.
    """
    if not job.cases:
        return f"{job.dtype} {job.split}: no cases"
    name = f"{job.dtype} {job.split}"
    _check_records(job)
    if not new_attempt:
        check_entries(job)

    progress = partial(hooks.progress, name)
    if boards is not None:
        attempt = fleet.time_split(job, boards, hooks.now, progress, hooks.say, new_attempt, hooks.budget)
    else:
        attempt = timing.time_split(job, hooks.now, progress, new_attempt, hooks.budget, shard)
    if shard is not None:
        planned, missing = len(shard_cells(job, shard)), len(missing_of(job, attempt, shard))
        told = f"{planned - missing} of {planned} lines"
        if missing:
            raise CannotSayError(
                f"{name}, shard {shard.number}/{shard.of}: the deadline came after {told}; the same command goes on"
            )
        return f"{name}, shard {shard.number}/{shard.of}: attempt {attempt.number}, {told}"
    if attempt.missing:
        raise CannotSayError(
            f"{name}: the deadline came after {attempt.found} of {attempt.planned} lines; the same command goes on"
        )
    if job.split is Split.TRAIN:
        write_atomic(job.results.study_json, results.train(job).data)
    return f"{name}: attempt {attempt.number}, {attempt.found} of {attempt.planned} lines{_not_ok(attempt)}"


def merge_records(jobs: Sequence[Job], places: Sequence[StudyPlace], now: Now) -> list[str]:
    """Join the shards of each job's split, measured in these places, into one attempt, and return what there is now."""
    told = []
    for joined in [merging.join(job, places) for job in jobs]:  # all are whole before the first is copied
        job = joined.job
        with timing.alone(job.place):
            copied = merging.write(joined)
        _check_records(job)
        timing.seal(job, now, lanes=True)
        attempt = job.attempts()[-1]
        if job.split is Split.TRAIN:
            write_atomic(job.results.study_json, results.train(job).data)
        shards, boards = len(attempt.lanes), len({file.session.fingerprint.uuid for file in attempt.files})
        told.append(
            f"{job.dtype} {job.split}: attempt {attempt.number}, {attempt.found} of {attempt.planned} lines from"
            f" {shards} shards on {boards} boards, {copied} files copied{_not_ok(attempt)}"
        )
    return told


def _not_ok(attempt: Attempt) -> str:
    """Return how many lines did not end ok, by status, as the end of a sentence."""
    statuses = [str(record.status) for file in attempt.files for record in file.records if record.status != "ok"]
    counts = ", ".join(f"{statuses.count(status)} {status}" for status in sorted(set(statuses)))
    return f" ({counts})" if counts else ""


def prewarm(job: Job, processes: int, hooks: Hooks) -> str:
    """Compile what a split will launch in so many processes at once, and return how the cases ended."""
    if not job.cases:
        return f"{job.dtype} {job.split}: no cases"
    name = f"{job.dtype} {job.split}"
    with timing.alone(job.place):
        ended = prewarming.prewarm(
            job, processes, lambda step: hooks.progress(f"{name}, compiling", step), hooks.budget
        )
    told = ", ".join(f"{count} {status}" for status, count in sorted(ended.items()))
    return f"{name}: compiled in up to {processes} processes, {told}"


def doctor(study: Study | None) -> dict[str, tuple[Finding, ...]]:
    """Return per engine what is found here of all that it needs: for a study its own, without one all of them.

    Without a study cuDNN is asked for the plans of any row, with its opt-in rows switched on.
    """
    if study is not None:
        return {study.engine: process.examine(process.terms_of(study))}
    asked = [Terms(engine=name, row="", base="backend", simulated={}) for name in ENGINES if name != "simulated"]
    return {terms.engine: process.examine(terms) for terms in asked}


def plan(job: Job, boards: int = 1, budget: Budget | None = None) -> str:
    """Return how long what is missing of a split will take, and how far the last run's prediction was off.

    On several boards at once, and on how many it ends within a budget; both without what is lost at the end, when not
    all have something to do.
    """
    found = job.attempts()
    missing = found[-1].missing if found else frozenset(planned_cells(job.study, job.split, job.cases))
    predicted_ns = costs.predict_job_ns(job, missing)
    told = "an unknown time, since nothing like it was measured yet"
    if predicted_ns is not None:
        told = f"about {predicted_ns / 1e9:.1f} s"
        told += f" on one board, {predicted_ns / boards / 1e9:.1f} s on each of {boards}" if boards > 1 else ""
        if budget is not None and budget.remaining_ns > 0:
            needed = -(-predicted_ns // budget.remaining_ns)
            told += f"; {max(1, needed)} board{'s' if needed > 1 else ''} for the deadline"
    text = f"{job.dtype} {job.split}: {len(missing)} lines are missing, {told}"
    ended = [attempt.files[-1] for attempt in found if not attempt.missing]
    runs = [file for file in ended if file.session.predicted_ns]
    if not runs:
        return f"{text}; no run had a prediction yet"
    before_ns, took_ns = runs[-1].session.predicted_ns, costs.took_ns(runs[-1])
    off = (before_ns / took_ns - 1) * 100 if took_ns else 0.0
    return (
        f"{text}; the last run was predicted at {before_ns / 1e9:.1f} s and took {took_ns / 1e9:.1f} s ({off:+.0f} %)"
    )


def _check_records(job: Job) -> None:
    """Raise for records that do not belong together, before the ledger, which only grows, is told of them."""
    for split in job.study.splits:
        job._replace(split=split).attempts()


def generate(job: Job) -> str:
    """Write lines.txt with the study's own margin and scope, apply it, and return its text."""
    found = results.study_json(read_bytes(job.results.study_json), str(job.results.study_json))
    text = results.lines_of(found, job.study.decide.margin_ppm, job.study.decide.scope).text
    write_atomic(job.results.lines, text.encode())
    return text


def score(job: Job, now: Now) -> dict[str, Any]:
    """Write score.json, which is a per-case look at the hold-out that the ledger notes, and return it."""
    _check_records(job)
    check_entries(job)
    timing.seal(job, now)
    with timing.alone(job.place):
        scored = results.score_of(job, results.train(job._replace(split=Split.TRAIN)))
        data = results.score_bytes(scored)
        looked = [event for event in ledger.read(job.results.ledger) if event.event in {"score", "apply"}]
        if not looked or looked[-1].body.get("score") != sha256(data):  # a look with other entries is another look
            ledger.append(job.results.ledger, now(), "score", {"score": sha256(data)})
        write_atomic(job.results.score, data)
    return scored


def run(study: Study, place: StudyPlace, dtypes: Sequence[str], hooks: Hooks) -> list[dict[str, Any]]:
    """Do all steps that are not done yet for these dtypes, and return their scores."""
    if not place.frozen.exists():
        hooks.say(freeze_study(study, place, []))
    jobs = [job_of(study, place, dtype, Split.TRAIN) for dtype in dtypes]
    for job in jobs:
        hooks.say(time(job, hooks))
    for job in jobs:
        if _applied(job):
            continue
        generate(job)
        changed = editing.apply_lines(job.results.lines, place.table, hooks.now)
        hooks.say(f"{job.dtype} lines: {len(changed.added)} added, {len(changed.replaced)} replaced or removed")
    for job in jobs:
        hooks.say(time(job._replace(split=Split.HOLDOUT), hooks))
        hooks.say(time(job._replace(split=Split.ROUTING), hooks))
    holdouts = [job._replace(split=Split.HOLDOUT) for job in jobs]
    scores = [score(job, hooks.now) for job in holdouts]
    for job in holdouts:
        reporting.report(job)
    reporting.report_together(holdouts)
    return scores


def _applied(job: Job) -> bool:
    """Return whether lines that this study.json gave were applied, with whatever margin they were made."""
    path, own = job.results.lines, ledger.last_apply(ledger.read(job.results.ledger), job.dtype)
    if own is None or not path.is_file() or sha256(read_bytes(path)) != own.body["lines"]:
        return False
    header, _ = lines.read_lines(read_bytes(path), str(path))
    return header.study_json == sha256(read_bytes(job.results.study_json))
