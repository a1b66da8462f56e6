"""The checks of a replay: each takes what one dtype's results hold, and returns its figure or raises.

CannotSayError means that there is no answer yet, any other StudyError that the check fails; both say where.
"""

import datetime as dt
import io
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from studytool import chain, fingerprint, gate, jsonl, ledger, lines, results, score
from studytool.attempts import Attempt, Job
from studytool.digest import sha256
from studytool.errors import CannotSayError, NotApplicableError, StudyError
from studytool.files import read_bytes
from studytool.freeze import first_difference
from studytool.layout import StudyPlace
from studytool.ledger import Event
from studytool.metrics import condition_text, metric_text, ratio_text
from studytool.model import Record, Split, Status
from studytool.report import markdown, together
from studytool.report.sources import Sources
from studytool.results import Train
from studytool.runtime import lookup


class Found:
    """What the checks of one dtype share; summary and score are recomputed once, from the records."""

    def __init__(self, job: Job, events: tuple[Event, ...]) -> None:
        self.job, self.events = job, events

    @cached_property
    def train(self) -> Train:
        """Return the train summary."""
        return results.train(self.job._replace(split=Split.TRAIN))

    @cached_property
    def applied(self) -> Event:
        """Return the event by which the dtype's lines went into the table last."""
        own = ledger.last_apply(self.events, self.job.dtype)
        if own is None:
            raise CannotSayError("no lines of this dtype were applied yet")
        return own

    @cached_property
    def fitted(self) -> str:
        """Return the text of the lines that the records give with the margin and scope of those applied."""
        body = self.applied.body
        return results.lines_of(self.train, int(str(body["margin_ppm"])), str(body["scope"])).text

    @cached_property
    def scored(self) -> dict[str, Any]:
        """Return the score."""
        return results.score_of(self.job, self.train)

    @cached_property
    def sources(self) -> Sources:
        """Return what a report is written from."""
        return results.sources_of(self.job, self.train, self.scored, self.events)

    @property
    def moved(self) -> list[dict[str, Any]]:
        """Return the routing cases that do not keep their plan."""
        return score.moved(self.scored["routing"])


def _comparable(found: Found) -> str:
    job = found.job
    train, *others = (
        results.complete_attempt(own).files[0]
        for own in (job._replace(split=split) for split in job.study.splits)
        if own.cases
    )
    for other in others:
        where = f"{job.place.shown(other.path)}:1"
        if difference := fingerprint.comparable(train.session.fingerprint, other.session.fingerprint):
            raise StudyError(f"{where}: not comparable with the train split: {difference}")
        if other.session.entries != others[0].session.entries:
            raise StudyError(f"{where}: timed with other entries than {others[0].path.name}")
    return f"one board model, one code: {train.session.fingerprint.code[:12]}"


def _planned(found: Found) -> str:
    parts = []
    for split in found.job.study.splits:
        job = found.job._replace(split=split)
        if job.cases:
            attempt = results.complete_attempt(job)
            others = [a for a in job.attempts() if a.number != attempt.number]
            numbers = [a.number for a in job.attempts()]
            if numbers != list(range(1, len(numbers) + 1)):
                missing = min(set(range(1, len(numbers) + 1)) - set(numbers))
                raise StudyError(f"{split} attempt {missing} is not there; found {', '.join(map(str, numbers))}")
            rest = "".join(f", unscored attempt {a.number}: {a.found} of {a.planned}" for a in others)
            parts.append(f"{split} {attempt.planned}{rest}")
    return "each once: " + "; ".join(parts)


def _study_json(found: Found) -> str:
    expected = found.train.data
    if not found.job.results.study_json.is_file():
        _absent(
            found, found.job.results.study_json, "apply", "`studytool time` writes it when the train split is complete"
        )
    _same(found.job, read_bytes(found.job.results.study_json), expected, found.job.results.study_json)
    return "recomputed from the train records, byte for byte"


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


def _lines(found: Found) -> str:
    text = found.fitted.encode()
    _same(found.job, read_bytes(found.job.results.lines), text, found.job.results.lines)
    if sha256(text) != found.applied.body["lines"]:
        raise StudyError(f"{found.job.place.shown(found.job.results.lines)}: not the lines that were applied")
    applied, decide = found.applied.body, found.job.study.decide
    if (applied["margin_ppm"], applied["scope"]) != (decide.margin_ppm, decide.scope):
        made = f"margin {ratio_text(int(str(applied['margin_ppm'])))}, scope {applied['scope']}"
        raise StudyError(f"made with {made}; declared {ratio_text(decide.margin_ppm)}, {decide.scope}")
    return f"{text.count(10) - 1} lines regenerated, byte for byte"


def _table(found: Found) -> str:
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
    texts = [own.encode()]
    for dtype in job.study.dtypes:
        path = job.place.results(dtype).lines
        if dtype != job.dtype and path.is_file():
            texts.append(read_bytes(path))
    expected = lines.Text({}, {})
    for text in texts:
        expected = lines.insert(expected, lines.read_lines(text, "lines")[1], "lines")
    return first_difference(data, lines.table_text(expected).encode())


def _order(found: Found) -> str:
    first = results.complete_attempt(found.job).files[0]
    shown = found.job.place.shown(first.path)
    timed = [n for n, e in enumerate(found.events) if e.event == "session" and e.body["file"] == first.path.name]
    applied = [n for n, e in enumerate(found.events) if e.event == "apply" and e.body["dtype"] == found.job.dtype]
    before = [n for n in applied if timed and n < timed[0]]
    if not before:
        raise StudyError(f"{shown}: timed before the lines were applied")
    for number in (before[-1], applied[-1]):
        if first.session.entries != found.events[number].body["entries"]:
            raise StudyError(f"{shown}:1: timed with other entries than those of the ledger's line {number + 1}")
    tables = [e.body["table"] for e in found.events[: timed[0]] if e.event == "apply"]
    if first.session.table != tables[-1]:
        raise StudyError(f"{shown}:1: timed with another table than the one applied last before it")
    return "timed with the applied table"


def _scored_records(found: Found) -> Iterator[tuple[str, Record, Attempt]]:
    for split in (Split.HOLDOUT, Split.ROUTING):
        job = found.job._replace(split=split)
        if job.cases:
            attempt = results.complete_attempt(job)
            for file in attempt.files:
                name = job.place.shown(file.path)
                for number, record in enumerate(file.records, 2):
                    yield f"{name}:{number}", record, attempt


def _lookups(found: Found) -> str:
    job = found.job
    records = list(_scored_records(found))
    table = lines.parse_table(read_bytes(job.place.table), job.place.shown(job.place.table))
    cases = {digest: case for split in found.job.frozen.cases.values() for digest, case in split.items()}
    for where, record, attempt in records:
        prints = attempt.files[0].session.fingerprint
        case = cases[record.case]
        answer = lookup.lookup(table, job.study.row, prints.cc, case.fields, prints.board)
        if answer is not record.lookup:
            raise StudyError(f"{where}: look-up {record.lookup}; the table says {answer} of {case.label}")
        plans = {name: leg.plan.identity if leg.plan else None for name, leg in record.legs.items()}
        other = "frost" if answer else "default"
        if answer is not False and record.status is Status.OK and plans["auto"] != plans[other]:
            raise StudyError(f"{where}: auto ran {plans['auto']}; expected the {other} plan {plans[other]}")
    return f"{len(records)} records, each as the table says"


def _attempts(found: Found) -> str:
    """Return the attempts at the hold-out; one that did not pass with the same entries is not passed over."""
    told = []
    passed = {Split.HOLDOUT: found.scored["verdict"], Split.ROUTING: "FAIL" if found.moved else "PASS"}
    for split in (split for split in passed if str(split) in found.scored["attempts"]):
        number = found.scored["attempts"][split]
        rows = [row for row in found.scored["unscored"] if row["split"] == split]
        why = found.scored["reasons"].get(f"{split} attempt {number}", "no reason")
        for row in rows:
            if row["verdict"] == "FAIL" and passed[split] == "PASS":
                raise StudyError(
                    f"timed again until it passed: {split} attempt {row['attempt']} says FAIL, attempt {number} PASS,"
                    f" with the same entries ({why})"
                )
            whole = f"whole, {row['verdict'] or 'other entries'}"
            state = whole if row["lines"] == row["planned"] else f"{row['lines']} of {row['planned']} lines"
            reason = f" (made because: {row['reason']})" if row["reason"] else ""
            told.append(f"{split} attempt {row['attempt']}: {state}{reason}")
        told += [f"attempt {number} was made because: {why}"] if rows else []
    return "; ".join(told) or "the first attempt is the only one"


def _unseen(found: Found) -> str:
    """Return that no other study here measured a hold-out case before this one did."""
    job = found.job
    began = results.complete_attempt(job).files[0].session.started
    others = sorted(
        path for path in (job.place.root / "studies").glob("*/study.yaml") if path.parent != job.place.folder
    )
    if not others:
        raise NotApplicableError("no other study is here")
    for place in (StudyPlace(job.place.root, path.parent.name) for path in others):
        for file in jsonl.read_all(place.results(job.dtype).records, job.place.root):
            seen = sorted({record.case for record in file.records if record.order} & job.cases.keys())
            if seen and not _is_later(file.session.started, began):
                raise StudyError(
                    f"{job.place.shown(file.path)}: measured {len(seen)} hold-out cases before, such as"
                    f" {job.cases[seen[0]].label}"
                )
    return f"{len(others)} other studies here measured none of its cases before"


def _is_later(one: str, other: str) -> bool:
    """Return whether a time is later than another, as far as both can be read; what cannot is not later."""
    try:
        return dt.datetime.fromisoformat(one) > dt.datetime.fromisoformat(other)
    except (ValueError, TypeError):  # no times, or one without its zone
        return False


def _routing(found: Found) -> str:
    rows = found.scored["routing"]
    if not rows:
        raise NotApplicableError("no routing case was declared")
    if found.moved:
        first = found.moved[0]["label"]
        raise StudyError(f"{len(found.moved)} of {len(rows)} routing cases do not keep their plan, such as {first}")
    return f"{len(rows)} of {len(rows)} graphs that the table must leave alone keep their plan"


def _numerics(found: Found) -> str:
    wrong = [where for where, record, _ in _scored_records(found) if record.status is Status.WRONG_RESULT]
    if wrong:
        raise StudyError(f"{wrong[0]}: wrong result ({len(wrong)} in all)")
    return "no wrong result on the hold-out"


def _score(found: Found) -> str:
    if not found.job.results.score.is_file():
        _absent(found, found.job.results.score, "score", "run `studytool score`")
    expected = results.score_bytes(found.scored)
    _same(found.job, read_bytes(found.job.results.score), expected, found.job.results.score)
    return "every number recomputed from raw samples"


def _report(found: Found) -> str:
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


def _fresh(found: Found) -> str:
    state = ledger.freshness(found.events)
    if state.state != "FRESH":
        raise StudyError(f"SPENT, not out-of-sample: {state.reason}")
    return f"FRESH, {state.looks} looks with these entries"


def _gate(found: Found) -> str:
    checked = gate.check(found.job.study.gate, found.scored["metrics"])
    told = "; ".join(
        f"{condition_text(item.condition)}: {metric_text(item.condition.metric, item.value)}" for item in checked
    )
    verdict = found.scored["verdict"]
    if verdict == "FAIL":
        raise StudyError(f"FAIL: {told}")
    if verdict != "PASS":
        raise CannotSayError("; ".join([*found.scored["open"], told]))
    return f"PASS: {told}"


CHECKS: list[tuple[str, Callable[[Found], str]]] = [
    ("ledger", lambda found: chain.told(found.job, found.events)),
    ("drivers", lambda found: chain.drivers(found.job, found.events)),
    ("records sealed", lambda found: chain.sealed(found.job, found.events)),
    ("planned lines", _planned),
    ("study.json", _study_json),
    ("lines", _lines),
    ("table", _table),
    ("one kind of machine", _comparable),
    ("hold-out after the fit", _order),
    ("hold-out attempts", _attempts),
    ("unseen hold-out", _unseen),
    ("look-ups", _lookups),
    ("routing", _routing),
    ("numerics", _numerics),
    ("score.json", _score),
    ("report.md", _report),
    ("fresh hold-out", _fresh),
    ("gate", _gate),
]
"""The checks in the order in which a reviewer reads them."""
