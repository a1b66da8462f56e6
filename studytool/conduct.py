"""The checks of how a study was conducted: what was measured, in which order, with which table, and how it ended.

Each takes what one dtype's results hold, and returns its figure or raises, as `checks` says.
"""

import datetime as dt
from collections.abc import Iterator

from studytool import fingerprint, gate, jsonl, ledger, lines, results
from studytool.attempts import Attempt
from studytool.errors import CannotSayError, NotApplicableError, StudyError
from studytool.files import read_bytes
from studytool.found import Found
from studytool.layout import StudyPlace
from studytool.metrics import condition_text, metric_text
from studytool.model import Record, Split, Status
from studytool.runtime import lookup


def planned(found: Found) -> str:
    """Return how many lines each split has and what is unscored; StudyError where an attempt is not there."""
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


def comparable(found: Found) -> str:
    """Return which code measured all splits; StudyError where another machine, code or table measured one of them."""
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


def order(found: Found) -> str:
    """Return that the hold-out was timed with the table applied before it; StudyError where it was not."""
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


def attempts(found: Found) -> str:
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


def unseen(found: Found) -> str:
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


def lookups(found: Found) -> str:
    """Return how many records have the look-up and plan that the table says; StudyError at the first that has not."""
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
        if record.status is Status.OK and (problem := _auto_problem(record)):
            raise StudyError(f"{where}: {problem}")
    return f"{len(records)} records, each as the table says"


def _auto_problem(record: Record) -> str | None:
    """Return what auto ran that does not follow from the table's answer, found and expected, or None."""
    plans = {name: leg.plan.identity for name, leg in record.legs.items() if leg.plan}
    auto, frost = plans["auto"], plans.get("frost")
    if record.lookup is False:  # the row comes last, behind plans that are of neither side, too
        return f"auto ran the frost plan {frost}, which trails" if auto == frost and "backend" in plans else None
    other = "frost" if record.lookup else "default"
    return None if auto == plans.get(other) else f"auto ran {auto}; expected the {other} plan {plans.get(other)}"


def _scored_records(found: Found) -> Iterator[tuple[str, Record, Attempt]]:
    for split in (Split.HOLDOUT, Split.ROUTING):
        job = found.job._replace(split=split)
        if job.cases:
            attempt = results.complete_attempt(job)
            for file in attempt.files:
                name = job.place.shown(file.path)
                for number, record in enumerate(file.records, 2):
                    yield f"{name}:{number}", record, attempt


def routing(found: Found) -> str:
    """Return that the routing cases keep their plan; StudyError where one does not."""
    rows = found.scored["routing"]
    if not rows:
        raise NotApplicableError("no routing case was declared")
    if found.moved:
        first = found.moved[0]["label"]
        raise StudyError(f"{len(found.moved)} of {len(rows)} routing cases do not keep their plan, such as {first}")
    return f"{len(rows)} of {len(rows)} graphs that the table must leave alone keep their plan"


def numerics(found: Found) -> str:
    """Return that no result on the hold-out was wrong; StudyError at the first that was."""
    wrong = [where for where, record, _ in _scored_records(found) if record.status is Status.WRONG_RESULT]
    if wrong:
        raise StudyError(f"{wrong[0]}: wrong result ({len(wrong)} in all)")
    return "no wrong result on the hold-out"


def fresh(found: Found) -> str:
    """Return how often the hold-out was looked at with these entries; StudyError where it is spent."""
    state = ledger.freshness(found.events)
    if state.state != "FRESH":
        raise StudyError(f"SPENT, not out-of-sample: {state.reason}")
    return f"FRESH, {state.looks} looks with these entries"


def gate_passed(found: Found) -> str:
    """Return the conditions of a gate that is passed; StudyError where it fails, CannotSayError while it is open."""
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
