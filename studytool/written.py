"""The checks of what is written: made again from the records, and held against the file byte for byte.

Each takes what one dtype's results hold, and returns its figure or raises, as `checks` says.
"""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from studytool import ledger, lines, results
from studytool.attempts import Job
from studytool.digest import sha256
from studytool.errors import CannotSayError, StudyError
from studytool.files import read_bytes
from studytool.found import Found
from studytool.freeze import first_difference
from studytool.metrics import ratio_text
from studytool.report import markdown, together


def study_json(found: Found) -> str:
    """Return that study.json is what the train records give; StudyError where it is not."""
    expected = found.train.data
    if not found.job.results.study_json.is_file():
        _absent(
            found, found.job.results.study_json, "apply", "`studytool time` writes it when the train split is complete"
        )
    _same(found.job, read_bytes(found.job.results.study_json), expected, found.job.results.study_json)
    return "recomputed from the train records, byte for byte"


def lines_txt(found: Found) -> str:
    """Return how many lines the records give; StudyError where lines.txt has others, or others were applied."""
    text = found.fitted.encode()
    _same(found.job, read_bytes(found.job.results.lines), text, found.job.results.lines)
    if sha256(text) != found.applied.body["lines"]:
        raise StudyError(f"{found.job.place.shown(found.job.results.lines)}: not the lines that were applied")
    applied, decide = found.applied.body, found.job.study.decide
    if (applied["margin_ppm"], applied["scope"]) != (decide.margin_ppm, decide.scope):
        made = f"margin {ratio_text(int(str(applied['margin_ppm'])))}, scope {applied['scope']}"
        raise StudyError(f"made with {made}; declared {ratio_text(decide.margin_ppm)}, {decide.scope}")
    return f"{text.count(10) - 1} lines regenerated, byte for byte"


def table_py(found: Found) -> str:
    """Return how many entries the table has; StudyError where it is not as it was applied last."""
    path = found.job.place.table
    shown = found.job.place.shown(path)
    own = found.fitted
    data = read_bytes(path)
    last = ledger.last(found.events, "apply")
    if last is None or sha256(data) != last.body["table"]:
        raise StudyError(f"{shown}:{_strange_line(found.job, data, own)}: not the table that was applied last")
    table = lines.read_table(data, shown)
    entries = lines.entries_digest(table, found.job.study.row, found.job.dtype)
    if {found.applied.body["entries"], last.body["entries"]} != {entries}:
        number = found.events.index(last) + 1
        raise StudyError(f"{found.job.place.shown(found.job.results.ledger)}:{number}: not the entries of {shown}")
    return f"{len(table.entries)} entries, as applied"


def _strange_line(job: Job, data: bytes, own: str) -> int:
    """Return the first line in which a table differs from what the lines of all dtypes make."""
    texts = {job.place.shown(job.results.lines): own.encode()}
    for dtype in job.study.dtypes:
        path = job.place.results(dtype).lines
        if dtype != job.dtype and path.is_file():
            texts[job.place.shown(path)] = read_bytes(path)
    expected = lines.Text({}, {})
    for shown, text in texts.items():
        expected = lines.insert(expected, lines.read_lines(text, shown)[1], shown)
    return first_difference(data, lines.table_text(expected).encode())


def score_json(found: Found) -> str:
    """Return that score.json is what the records give; StudyError where it is not."""
    if not found.job.results.score.is_file():
        _absent(found, found.job.results.score, "score", "run `studytool score`")
    expected = results.score_bytes(found.scored)
    _same(found.job, read_bytes(found.job.results.score), expected, found.job.results.score)
    return "every number recomputed from raw samples"


def report_md(found: Found) -> str:
    """Return that report.md is what the records give; StudyError where it is not."""
    if not found.job.results.report.is_file():
        _absent(found, found.job.results.report, "", "run `studytool report`")
    return _written(found.job, found.job.results.report, markdown.render(found.sources).encode())


def all_dtypes(all_found: Sequence[Found]) -> str:
    """Return that the report over all dtypes is what their records give; StudyError where it is not."""
    job = all_found[0].job
    return _written(job, job.place.report, together.render([found.sources for found in all_found]).encode())


def _written(job: Job, path: Path, expected: bytes) -> str:
    there = read_bytes(path)
    known = set(expected.splitlines(keepends=True))
    first, strange = 0, 0
    for number, line in enumerate(io.BytesIO(there), 1):
        first, strange = (first, strange) if line in known else (first or number, strange + 1)
    if strange:
        raise StudyError(f"{job.place.shown(path)}:{first}: no number stands behind {strange} lines")
    _same(job, there, expected, path)
    return "written again, byte for byte"


def _absent(found: Found, path: Path, told_by: str, command: str) -> NoReturn:
    """Raise for a file that is not there, or is no plain file: a FAIL where the ledger tells of what was made of it."""
    shown = found.job.place.shown(path)
    if path.is_symlink() or path.exists():
        raise StudyError(f"{shown}: not a plain file")
    event = ledger.last(found.events, told_by) if told_by else None
    if event is not None and (told_by != "apply" or ledger.last_apply(found.events, found.job.dtype)):
        raise StudyError(f"{shown}: not there; line {found.events.index(event) + 1} of the ledger rests on it")
    raise CannotSayError(f"{shown}: not there yet; {command}")


def _same(job: Job, there: bytes, expected: bytes, path: Path) -> None:
    if there != expected:
        raise StudyError(
            f"{job.place.shown(path)}:{first_difference(there, expected)}: differs from what the records give"
        )
