"""The shards of a split, measured in folders of their own, joined into one attempt: all of each, or nothing."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from studytool import attempts, fingerprint, jsonl
from studytool.attempts import Job, Shard
from studytool.errors import CannotSayError, RecordError
from studytool.files import read_bytes, write_atomic
from studytool.jsonl import SessionFile
from studytool.layout import StudyPlace


class Source(NamedTuple):
    """One session file of a shard, where it was found."""

    file: SessionFile
    shard: Shard

    @property
    def shown(self) -> str:
        """Return how messages name the file."""
        return str(self.file.path)


def merge(job: Job, places: Sequence[StudyPlace]) -> list[Path]:
    """Write the records of every shard of a split beside one another, and return the files that were not there yet.

    `places` are the folders of the study in which shards were measured; the job's own may be one of them. RecordError
    where a shard is there twice, was measured elsewhere than the others, or is of another number of shards; it names
    both sides. CannotSayError where a shard is missing or not complete. Nothing is written then.
    """
    places = [place for place in places if place.folder.resolve() != job.place.folder.resolve()]
    others = [source for place in places for source in _sources(job, place)]
    known = {(source.file.path.name, source.file.sha256) for source in others}
    here = [source for source in _sources(job, job.place) if (source.file.path.name, source.file.sha256) not in known]
    sources = here + others  # without what an earlier merge, which may have been stopped, put here
    if not sources:
        raise CannotSayError(f"{job.dtype} {job.split}: no shard was measured in {_names([job.place, *places])}")
    last = max(source.file.session.attempt for source in sources)
    own = [source for source in sources if source.file.session.attempt == last]
    _check_alike(own)
    files = _once(own)
    of = own[0].shard.of
    root = Path(os.path.commonpath([file.path.parent for file in files]))
    (whole,) = attempts.load(job.study, files, root, job.split, job.cases)
    for number in range(1, of + 1):
        shard = Shard(number, of)
        mine = [source.shown for source in own if source.shard == shard]
        missing = attempts.missing_of(job, whole, shard)
        if missing and not mine:
            raise CannotSayError(
                f"{job.dtype} {job.split}: shard {number}/{of} is in none of {_names([job.place, *places])}"
            )
        if missing:
            planned = len(attempts.shard_cells(job, shard))
            raise CannotSayError(f"{mine[-1]}: shard {number}/{of} has {planned - len(missing)} of {planned} lines")
    return _written(job, files)


def _written(job: Job, files: Iterable[SessionFile]) -> list[Path]:
    written = []
    for file in files:
        path = job.results.records / file.path.name
        if not path.exists():
            write_atomic(path, read_bytes(file.path))
            written.append(path)
    return written


def _sources(job: Job, place: StudyPlace) -> list[Source]:
    """Return the shards' session files of a job's dtype and split in a place; RecordError for one of another study."""
    found = []
    for file in jsonl.read_all(place.results(job.dtype).records, place.root):
        session = file.session
        if session.split is not job.split or "of" not in session.lane:
            continue
        if (session.study, session.manifest, session.dtype) != (job.study.name, job.frozen.sha256, job.dtype):
            raise RecordError(f"{file.path}:1: of other frozen cases than {job.place.manifest}")
        number, _, of = session.lane.partition("of")
        found.append(Source(file, Shard(int(number), int(of))))
    return found


def _once(sources: Sequence[Source]) -> list[SessionFile]:
    """Return the session files by name; RecordError where two places have the same shard."""
    first: dict[Shard, Source] = {}
    for source in sources:
        other = first.setdefault(source.shard, source)
        if other.file.path.parent != source.file.path.parent:
            raise RecordError(
                f"{source.shown}: shard {source.shard.number}/{source.shard.of} is there twice; also in {other.shown}"
            )
    return sorted((source.file for source in sources), key=lambda file: file.path.name)


def _check_alike(sources: Sequence[Source]) -> None:
    """Raise RecordError for shards that were not measured alike, naming both."""
    first = sources[0]
    for source in sources[1:]:
        if source.shard.of != first.shard.of:
            raise RecordError(
                f"{source.shown}:1: shard {source.shard.number}/{source.shard.of}; {first.shown} is"
                f" {first.shard.number}/{first.shard.of}"
            )
        one, other = first.file.session, source.file.session
        if difference := fingerprint.comparable(one.fingerprint, other.fingerprint):
            raise RecordError(f"{source.shown}:1: not comparable with {first.shown}: {difference}")
        if one.entries != other.entries:
            raise RecordError(f"{source.shown}:1: timed with another table than {first.shown}")


def _names(places: Sequence[StudyPlace]) -> str:
    return ", ".join(str(place.folder) for place in places)
