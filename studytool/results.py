"""The steps that turn records into files: study.json, score.json, report.md. `replay` compares; other steps write."""

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from studytool import fit, ledger, lines, rows, score, studyjson, summary, tally
from studytool.attempts import Attempt, Job
from studytool.digest import pretty
from studytool.errors import CannotSayError, StudyError
from studytool.model import Case, Record, Split
from studytool.report.sources import Sources
from studytool.studyjson import Summary


class Train(NamedTuple):
    """The train summary as value and as the bytes of study.json."""

    summary: Summary
    data: bytes


def complete_attempt(job: Job) -> Attempt:
    """Return the last attempt at a split; CannotSayError, with the count, when it is not complete."""
    found = job.attempts()
    if not found:
        raise CannotSayError(f"{job.split}: nothing is measured yet; run `studytool time --split {job.split}`")
    last = found[-1]
    if last.missing:
        raise CannotSayError(
            f"{job.split} attempt {last.number} is incomplete: {last.found} of {last.planned} lines;"
            f" run `studytool time --split {job.split} --dtype {job.dtype}` to go on"
        )
    return last


def train(job: Job) -> Train:
    """Return the train summary of the last attempt; `job` is that of the train split."""
    found = summary.summarise(job.study, job.frozen.sha256, job.dtype, complete_attempt(job), job.cases)
    return Train(found, studyjson.encode(found))


def lines_of(found: Train, margin_ppm: int, scope: str) -> fit.Fit:
    """Return the fit of a train summary."""
    return fit.fit(found.summary, found.data, margin_ppm, scope)


def score_of(job: Job, found: Train) -> dict[str, Any]:
    """Return the content of score.json; `job` is that of the hold-out."""
    holdout = complete_attempt(job)
    routing_job = job._replace(split=Split.ROUTING)
    routing = complete_attempt(routing_job) if routing_job.cases else None
    scored = {Split.TRAIN: found.summary.attempt, Split.HOLDOUT: holdout.number}
    scored |= {Split.ROUTING: routing.number} if routing else {}
    inputs = score.Inputs(
        study=job.study,
        dtype=job.dtype,
        manifest_sha256=job.frozen.sha256,
        summary=found.summary,
        holdout=holdout,
        holdout_cases=job.cases,
        routing=routing,
        routing_cases=routing_job.cases,
        unscored=(),
    )
    others = [
        (split, attempt)
        for split, number in scored.items()
        for attempt in job._replace(split=split).attempts()
        if attempt.number != number
    ]
    return score.score(inputs._replace(unscored=[_unscored(inputs, *other) for other in others]))


def _unscored(inputs: score.Inputs, split: Split, attempt: Attempt) -> score.Unscored:
    """Return an attempt that is not scored, with what the gate would say of a whole one with the same entries."""
    reason = attempt.files[0].session.reason
    same = attempt.files[0].session.entries == inputs.holdout.files[0].session.entries
    if split is Split.TRAIN or attempt.missing or not same:
        return score.Unscored(split, attempt, "", reason)
    if split is Split.ROUTING:
        kept = not tally.moved(tally.routing_rows(attempt.files, inputs.routing_cases))
        return score.Unscored(split, attempt, "PASS" if kept else "FAIL", reason)
    return score.Unscored(split, attempt, str(score.score(inputs._replace(holdout=attempt))["verdict"]), reason)


def score_bytes(found: dict[str, Any]) -> bytes:
    """Return the bytes of score.json."""
    return pretty(found)


def sources_of(job: Job, found: Train, scored: dict[str, Any], events: tuple[ledger.Event, ...]) -> Sources:
    """Return what a report is written from; the ledger counts up to its last look at the hold-out."""
    looked = max((number for number, event in enumerate(events, 1) if event.event == "score"), default=0)
    applied = ledger.last_apply(events, job.dtype)
    if applied is None:
        raise CannotSayError(f"{job.dtype}: no lines were applied; run gen.py and `studytool apply`")
    holdout = complete_attempt(job)
    freshness = ledger.freshness(events[:looked])
    if freshness.state == "FRESH" and holdout.files[0].session.entries != applied.body["entries"]:
        raise StudyError(f"{job.place.shown(holdout.files[0].path)}:1: timed with other entries than those applied")
    fitted = lines_of(found, int(str(applied.body["margin_ppm"])), str(applied.body["scope"]))
    return Sources(
        study=job.study,
        summary=found.summary,
        fit=fitted,
        header=header_of(fitted.text),
        score=json.loads(json.dumps(scored)),
        freshness=freshness,
        sessions=[(file.path.name, file.session.started, len(file.records)) for file in holdout.files],
        fingerprint=holdout.files[0].session.fingerprint,
    )


def page_of(job: Job, sources: Sources) -> str:
    """Return report.html of one dtype; ImportError where the extra `report` is not installed."""
    from studytool.report import html  # noqa: PLC0415 - plots are heavy, and an extra

    return html.render(sources, html.Measured(*_measured(job)))


def page_together_of(jobs: Sequence[Job], all_sources: Sequence[Sources]) -> str:
    """Return report.html of a study; ImportError where the extra `report` is not installed."""
    from studytool.report import html  # noqa: PLC0415 - plots are heavy, and an extra

    return html.render_together(all_sources, [html.Measured(*_measured(job)) for job in jobs])


def _measured(job: Job) -> tuple[dict[str, Case], list[Record], list[rows.Row]]:
    """Return a hold-out's cases, and its records as they are and in numbers."""
    files = complete_attempt(job).files
    return job.cases, [record for file in files for record in file.records], rows.rows(files)


def against_of(here: Sources, there: Sources, names: tuple[str, str]) -> str:
    """Return against.html: two runs of one study; ImportError where the extra `report` is not installed."""
    from studytool.report import html  # noqa: PLC0415 - plots are heavy, and an extra

    return html.compare(here, there, names)


def study_json(data: bytes, where: str) -> Train:
    """Return the train summary in the bytes of a study.json."""
    return Train(studyjson.decode(data, where), data)


def header_of(text: str) -> lines.Header:
    """Return the header of a lines file's text."""
    return lines.read_lines(text.encode(), "lines")[0]
