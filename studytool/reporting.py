"""The steps that write reports: of one dtype, its page, over all dtypes of a study, and of two runs side by side."""

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from studytool import ledger, results
from studytool.attempts import Job
from studytool.errors import CannotSayError, StudyError
from studytool.files import read_bytes, write_atomic
from studytool.model import Split
from studytool.opening import check_entries
from studytool.report import against, markdown, together
from studytool.report.sources import Sources

DRAWING = ("jinja2", "markdown_it", "matplotlib")
"""What report.html needs: the extra `report`."""


def report(job: Job) -> str:
    """Write report.md and return it; it is written from the records, and its numbers are those of score.json."""
    text = markdown.render(_sources(job))
    write_atomic(job.results.report, text.encode())
    return text


def page(job: Job) -> bool:
    """Write report.html, and return whether what draws it is installed: the extra `report`."""
    if not drawable():
        return False
    write_atomic(job.results.page, results.page_of(job, _sources(job)).encode())
    return True


def report_together(jobs: Sequence[Job]) -> list[Path]:
    """Write the report over all dtypes of a study, and its page where the extra `report` is installed.

    Nothing is written for a study of one dtype, whose own report is all there is, or where `jobs` are not of all.
    """
    if not len(jobs) == len(jobs[0].study.dtypes) > 1:
        return []
    place, all_sources = jobs[0].place, [_sources(job) for job in jobs]
    written = {place.report: together.render(all_sources)}
    if drawable():
        written[place.page] = results.page_together_of(jobs, all_sources)
    return _write(written)


def compare(job: Job, other: Job, names: tuple[str, str]) -> list[Path]:
    """Write against.md, and against.html where the extra `report` is installed, for two runs of one frozen study."""
    if job.study.sha256 != other.study.sha256:
        raise StudyError(f"{other.place.study_yaml}: not the same study.yaml; expected another run of this study")
    here, there = (_sources(own) for own in (job, other))
    folder = job.results.folder
    written = {folder / "against.md": against.render(here, there, names)}
    if drawable():
        written[folder / "against.html"] = results.against_of(here, there, names)
    return _write(written)


def _write(texts: Mapping[Path, str]) -> list[Path]:
    for path, text in texts.items():
        write_atomic(path, text.encode())
    return list(texts)


def drawable() -> bool:
    """Return whether what draws a page is installed: the extra `report`."""
    return all(map(importlib.util.find_spec, DRAWING))


def _sources(job: Job) -> Sources:
    """Return what a report is written from; an error where score.json is not what the records give."""
    found = results.train(job._replace(split=Split.TRAIN))
    scored = results.score_of(job, found)
    if not job.results.score.exists():
        raise CannotSayError(f"{job.results.score}: not there; run `studytool score`")
    check_entries(job)
    if read_bytes(job.results.score) != results.score_bytes(scored):
        raise StudyError(f"{job.results.score}: not what the records give; run `studytool score` again")
    return results.sources_of(job, found, scored, ledger.read(job.results.ledger))
