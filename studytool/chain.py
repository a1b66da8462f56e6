"""What the ledgers say of a study's results, held against the files that are there.

CannotSayError means that there is no answer yet, any other StudyError that a check fails; both say where.
"""

from studytool import digest, ledger
from studytool.attempts import Job
from studytool.errors import CannotSayError, RecordError, StudyError
from studytool.files import read_bytes
from studytool.layout import StudyPlace
from studytool.ledger import Event

Events = tuple[Event, ...]


def begun(place: StudyPlace, dtype: str) -> str:
    """Return what a ledger began with, after comparing it with the manifest that is there."""
    path = place.results(dtype).ledger
    shown = place.shown(path)
    events = ledger.read(path, shown)
    if not events or events[0].event != "frozen":
        raise StudyError(f"{shown}:1: expected the frozen manifest as the first event")
    data = read_bytes(place.manifest)
    if events[0].body["manifest"] != digest.sha256(data):
        marks, now = list(events[0].body["marks"]), digest.line_marks(data)  # type: ignore[arg-type]
        line = next((n for n, (a, b) in enumerate(zip(marks, now, strict=False), 1) if a != b), len(now))
        raise StudyError(f"{place.shown(place.manifest)}:{line}: changed since the ledger began")
    return f"{len(events)} events, chain intact, manifest sha256:{digest.sha256(data)[:12]}"


def told(job: Job, events: Events) -> str:
    """Return what a dtype's ledger begins with, after holding it against the other dtypes'."""
    own = _applied_to(events)
    for path in sorted(job.place.folder.glob("*/ledger.jsonl")):
        other = _applied_to(ledger.read(path, job.place.shown(path)))
        short, long = sorted((own, other), key=len)
        if long[len(long) - len(short) :] != short:
            names = job.place.shown(job.results.ledger), job.place.shown(path)
            raise StudyError(f"{names[0]}: tells of other tables than {names[1]}")
    return begun(job.place, job.dtype)


def _applied_to(events: Events) -> list[str]:
    """Return the tables that lines were applied to, in order: one ledger that began later tells the same end."""
    return [str(event.body["table"]) for event in events if event.event == "apply"]


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
    return ", ".join(dict.fromkeys(told)) or "none was recorded"


def sealed(job: Job, events: Events) -> str:
    """Return how many records files are as the ledger has them."""
    sealed = {str(e.body["file"]): str(e.body["sha256"]) for e in events if e.event == "session"}
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
    return f"{len(sealed)} files, chains intact"
