"""What the ledgers say of a study's results, held against the files that are there.

CannotSayError means that there is no answer yet, any other StudyError that a check fails; both say where.
"""

import itertools
import re

from studytool import digest, ledger
from studytool.attempts import Job
from studytool.errors import CannotSayError, RecordError, StudyError
from studytool.files import read_bytes
from studytool.layout import StudyPlace
from studytool.ledger import Event
from studytool.model import Split

Events = tuple[Event, ...]


def begun(place: StudyPlace, dtype: str) -> str:
    """Return what a ledger began with, after comparing it with the manifest that is there."""
    path = place.results(dtype).ledger
    shown = place.shown(path)
    events = ledger.read(path, shown)
    if not events and not any(place.results(dtype).records.glob("*.jsonl")):
        raise CannotSayError(f"{shown}: nothing stands in it yet")
    if not events or events[0].event != "frozen":
        raise StudyError(f"{shown}:1: expected the frozen manifest as the first event")
    data = read_bytes(place.manifest)
    if events[0].body["manifest"] != digest.sha256(data):
        marks = list(events[0].body["marks"])  # type: ignore[arg-type]
        now = digest.line_marks(data, len(marks) + 1)
        line = next((n for n, (a, b) in enumerate(zip(marks, now, strict=False), 1) if a != b), len(now))
        raise StudyError(f"{place.shown(place.manifest)}:{line}: changed since the ledger began")
    return f"{len(events)} events, chain intact, manifest sha256:{digest.sha256(data)[:12]}"


def told(job: Job, events: Events) -> str:
    """Return what a dtype's ledger begins with, after holding it against itself and the other dtypes'."""
    shown = job.place.shown(job.results.ledger)
    begun_with = begun(job.place, job.dtype)
    if events[0].body["marks"] != digest.line_marks(read_bytes(job.place.manifest)):
        raise StudyError(f"{shown}:1: its marks are not those of the manifest")
    seen: set[str] = set()
    for number, (before, event) in enumerate(itertools.pairwise(events), 2):
        if event.event == "frozen":
            raise StudyError(f"{shown}:{number}: frozen a second time")
        if event.event == "session" and (file := str(event.body["file"])) in seen:
            raise StudyError(f"{shown}:{number}: {file} is there twice")
        if event.event == before.event != "driver" and event.body == before.body:  # which may be started again
            raise StudyError(f"{shown}:{number}: says what line {number - 1} says")
        seen |= {str(event.body["file"])} if event.event == "session" else set()
    _order(job, events, shown)
    _same_tables(job, events, shown)
    return begun_with


def _order(job: Job, events: Events, shown: str) -> None:
    """Raise where the train split was sealed after the lines of the dtype were applied, or a look came too early."""
    applied = [n for n, e in enumerate(events, 1) if e.event == "apply" and e.body["dtype"] == job.dtype]
    looks = [n for n, e in enumerate(events, 1) if e.event == "score"]
    for number, event in enumerate(events, 1):
        file = str(event.body.get("file", ""))
        if file.startswith(f"{Split.TRAIN}-") and applied and number > applied[-1]:
            raise StudyError(f"{shown}:{number}: {file} was finished after its lines were applied")
        if event.event == "session" and looks and number > looks[-1] and not file.startswith(f"{Split.TRAIN}-"):
            kind = StudyError if file.split("-")[1:2] == ["01"] else CannotSayError  # a first one is scored whole
            raise kind(f"{shown}:{number}: {file} was finished after the last score")
    if job.results.score.is_file():
        scored = digest.sha256(read_bytes(job.results.score))
        if not looks or events[looks[-1] - 1].body["score"] != scored:
            line = looks[-1] if looks else len(events)
            raise StudyError(f"{shown}:{line}: not the score that is in {job.place.shown(job.results.score)}")


def _same_tables(job: Job, events: Events, shown: str) -> None:
    """Raise where another dtype's ledger tells of other lines or tables: one that began later tells the same end."""
    own = _applied(events)
    for path in sorted(job.place.folder.glob("*/ledger.jsonl")):
        other = _applied(ledger.read(path, job.place.shown(path)))
        short, long = sorted((own, other), key=len)
        if long[len(long) - len(short) :] != short:
            raise StudyError(f"{shown}: tells of other tables than {job.place.shown(path)}")


def _applied(events: Events) -> list[dict[str, object]]:
    """Return what was applied, in order, but for what is of the ledger's own dtype."""
    return [
        {name: value for name, value in event.body.items() if name != "entries"}
        for event in events
        if event.event == "apply"
    ]


def drivers(job: Job, events: Events) -> str:
    """Return which scripts were started; StudyError where the copy that was kept of one is not what was started."""
    told = []
    for event in events:
        if event.event == "driver":
            name, sha256 = str(event.body["name"]), str(event.body["sha256"])
            path = job.place.driver(name, sha256)
            if path.is_symlink() or not path.is_file() or digest.sha256(read_bytes(path)) != sha256:
                raise StudyError(f"{job.place.shown(path)}: not the script that was started, sha256:{sha256[:12]}")
            told.append(f"{name} sha256:{sha256[:12]}")
    known = {
        job.place.driver(str(event.body["name"]), str(event.body["sha256"])).name
        for path in job.place.folder.glob("*/ledger.jsonl")
        for event in ledger.read(path, job.place.shown(path))
        if event.event == "driver"
    }
    for path in sorted((job.place.folder / "drivers").glob("[!.]*")):
        if re.fullmatch(r"[0-9a-f]{12}-.+", path.name) and path.name not in known:
            kind = StudyError if ledger.last(events, "score") else CannotSayError  # one may be stopped as it begins
            raise kind(f"{job.place.shown(path)}: no ledger has it")
    return ", ".join(dict.fromkeys(told)) or "none was recorded"


def sealed(job: Job, events: Events) -> str:
    """Return how many records files are as the ledger has them."""
    sealed = {str(e.body["file"]): str(e.body["sha256"]) for e in events if e.event == "session"}
    counts = {str(e.body["file"]): (n, e.body["lines"]) for n, e in enumerate(events, 1) if e.event == "session"}
    present = {path.name: path for path in sorted(job.results.records.glob("*.jsonl"))}
    if missing := sorted(sealed.keys() - present.keys()):
        raise StudyError(f"{job.place.shown(job.results.records)}/{missing[0]}: in the ledger and not there")
    files = {file.path.name: file for file in job.files()}
    for name, path in present.items():
        file = files.get(name)
        if file is None:
            if name in sealed:
                raise StudyError(f"{job.place.shown(path)}:1: changed after it was written")
            continue
        if name not in sealed and ledger.last(events, "score") is None:
            raise CannotSayError(f"{job.place.shown(path)}: not in the ledger yet; was `studytool time` stopped?")
        if name not in sealed:
            raise StudyError(f"{job.place.shown(path)}: not in the ledger")
        if file.sha256 != sealed[name]:
            line = file.lines + bool(file.torn)
            raise RecordError(
                f"{job.place.shown(path)}:{line}: changed after it was written (the ledger has another hash)"
            )
        number, lines = counts[name]
        if lines != file.lines:
            raise StudyError(
                f"{job.place.shown(job.results.ledger)}:{number}: {lines} lines of {name}; it has {file.lines}"
            )
    return f"{len(sealed)} files, chains intact"
