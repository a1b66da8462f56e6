"""A forger at work on a finished study: edits ledgers, mends chains, and makes anew what is made from the records."""

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bad_records import chained, values_of

from studytool import ledger, lines, opening, pipeline, results
from studytool.attempts import Job
from studytool.digest import canonical, digest, line_marks, sha256
from studytool.errors import StudyError
from studytool.layout import StudyPlace
from studytool.model import Split
from studytool.report import markdown, together

Json = dict[str, Any]
Tree = dict[str, bytes]
"""The bytes of each file by its name relative to the root."""


def tree_of(root: Path) -> Tree:
    """Return the files below a folder; a lock is no file of a study."""
    found = sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".time.lock")
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in found}


def put(root: Path, tree: Tree) -> None:
    """Let the files below a folder be these."""
    there = tree_of(root)
    for name in there.keys() - tree.keys():
        (root / name).unlink()
    for name, data in tree.items():
        if (root / name).is_dir():
            (root / name).rmdir()
        if there.get(name) != data:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)


def records(place: StudyPlace, name: str, dtype: str = "bf16") -> Path:
    """Return a records file, such as that of `holdout-01-001`."""
    return place.results(dtype).records / f"{name}.jsonl"


def edit(place: StudyPlace, name: str, change: Callable[[list[Json]], object], dtype: str = "bf16") -> None:
    """Change the values of a records file's lines and mend its chain."""
    path = records(place, name, dtype)
    values = values_of(path)
    change(values)
    chained(path, values)


def events_of(place: StudyPlace, dtype: str = "bf16") -> list[Json]:
    """Return the events of a ledger as JSON values."""
    return [json.loads(line) for line in place.results(dtype).ledger.read_bytes().splitlines()]


def write_events(place: StudyPlace, events: list[Json], dtype: str = "bf16") -> None:
    """Write a ledger of these events as they are, whatever their digests say."""
    place.results(dtype).ledger.write_bytes(b"".join(canonical(event) + b"\n" for event in events))


def rehashed(events: list[Json]) -> list[Json]:
    """Return the events with every digest made anew, so that the chain is whole."""
    found: list[Json] = []
    for event in events:
        linked = {**event, "prev": found[-1]["own"] if found else "", "own": ""}
        found.append({**linked, "own": digest(linked)})
    return found


def job_of(place: StudyPlace, split: Split = Split.HOLDOUT, dtype: str = "bf16") -> Job:
    """Return the job of a dtype's split."""
    return opening.job_of(opening.open_study(place), place, dtype, split)


def mend(place: StudyPlace, dtype: str = "bf16") -> None:
    """Mend the chain of every records file, and the links between the session files of an attempt."""
    before: dict[tuple[str, int], str] = {}
    for path in sorted(place.results(dtype).records.glob("*.jsonl")):
        values = values_of(path)
        attempt = values[0]["split"], values[0]["attempt"]
        values[0]["prev"] = before.get(attempt, "")
        before[attempt] = chained(path, values)


def tell(place: StudyPlace, dtype: str = "bf16") -> list[Json]:
    """Return a ledger's events, each telling of the files that are there, with no digest made anew."""
    own, events, table = place.results(dtype), events_of(place, dtype), lines.Text({}, {})
    row = opening.open_study(place).row
    for event in events:
        body, kind = event["body"], event["event"]
        if kind == "frozen":
            data = place.manifest.read_bytes()
            body |= {"manifest": sha256(data), "marks": line_marks(data)}
        elif kind == "session" and (own.records / body["file"]).is_file():
            data = (own.records / body["file"]).read_bytes()
            body |= {"sha256": sha256(data), "lines": data.count(b"\n")}
        elif kind == "apply":
            data = place.results(body["dtype"]).lines.read_bytes()
            table = lines.insert(table, lines.read_lines(data, "lines.txt")[1], "table.py")
            told = {"lines": sha256(data), "table": sha256(lines.table_text(table).encode())}
            body |= told | {"entries": lines.entries_digest(table, row, dtype)}
    if events and own.score.is_file():
        looks = [event for event in events if event["event"] == "score"]
        for event in looks[-1:]:
            event["body"] |= {"score": sha256(own.score.read_bytes())}
    return events


def decide(place: StudyPlace) -> None:
    """Make study.json, the lines and the table anew, and let hold-out and routing name that table."""
    study, table = opening.open_study(place), lines.Text({}, {})
    for dtype in study.dtypes:
        job = job_of(place, Split.TRAIN, dtype)
        job.results.study_json.write_bytes(results.train(job).data)
        pipeline.generate(job)
        table = lines.insert(table, lines.read_lines(job.results.lines.read_bytes(), "lines.txt")[1], "table.py")
    place.table.write_text(lines.table_text(table))
    for dtype in study.dtypes:
        told = {
            "table": sha256(place.table.read_bytes()),
            "entries": lines.entries_digest(table, study.row, dtype),
        }
        for path in place.results(dtype).records.glob("*.jsonl"):
            if not path.name.startswith("train"):
                values = values_of(path)
                chained(path, [values[0] | told, *values[1:]])


def say_together(place: StudyPlace) -> None:
    """Write the report over all dtypes anew, where there is one."""
    if not place.report.is_file():
        return
    all_sources = []
    for dtype in opening.open_study(place).dtypes:
        job = job_of(place, Split.HOLDOUT, dtype)
        train = results.train(job._replace(split=Split.TRAIN))
        events = ledger.read(job.results.ledger)
        all_sources.append(results.sources_of(job, train, results.score_of(job, train), events))
    place.report.write_text(together.render(all_sources))


def say(place: StudyPlace, dtype: str = "bf16") -> None:
    """Write score.json and report.md anew, and let the ledger's last look be at that score."""
    job = job_of(place, Split.HOLDOUT, dtype)
    train = results.train(job._replace(split=Split.TRAIN))
    scored = results.score_of(job, train)
    job.results.score.write_bytes(results.score_bytes(scored))
    write_events(place, rehashed(tell(place, dtype)), dtype)
    events = ledger.read(job.results.ledger)
    job.results.report.write_text(markdown.render(results.sources_of(job, train, scored, events)))


def forge(place: StudyPlace, *, train: bool = False) -> None:
    """Make all that follows from the records anew, as far as that can be done: chains, seals, ledgers, scores, reports.

    With `train` also what is decided from the train split, and whatever follows from that.
    """
    dtypes = opening.open_study(place).dtypes if train else ("bf16",)
    for dtype in dtypes:
        mend(place, dtype)
    if train:
        decide(place)
    for dtype in dtypes:
        write_events(place, rehashed(tell(place, dtype)), dtype)
        with contextlib.suppress(StudyError):  # what cannot be scored keeps its score
            say(place, dtype)
    if train:
        with contextlib.suppress(StudyError):
            say_together(place)
