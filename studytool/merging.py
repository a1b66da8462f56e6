"""The shards of a split, measured in folders of their own, joined into one attempt: all of each, or nothing."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from studytool import attempts, fingerprint, jsonl
from studytool.attempts import Attempt, Job
from studytool.errors import CannotSayError, RecordError
from studytool.files import read_bytes, write_atomic
from studytool.jsonl import SessionFile
from studytool.lanes import Shard
from studytool.layout import StudyPlace


class Source(NamedTuple):
    """One session file of a shard, where it was found."""

    file: SessionFile
    shard: Shard

    @property
    def shown(self) -> str:
        """Return how messages name the file."""
        return str(self.file.path)


class Joined(NamedTuple):
    """The session files of a split's shards, of all attempts, that are to be in the folder of a job."""

    job: Job
    files: tuple[SessionFile, ...]


def join(job: Job, places: Sequence[StudyPlace]) -> Joined:
    """Return the session files of a split's shards, once each shard of the last attempt is there, whole and alike.

    `places` are the folders of the study in which shards were measured; the job's own may be one of them. RecordError
    where a shard is there twice, was measured elsewhere than the others, or is of another number of shards; it names
    both sides. CannotSayError where a shard is missing or not complete. Nothing is written.
    """
    for place in places:
        if not place.study_yaml.is_file():
            raise RecordError(f"{place.folder}: not there; expected a folder of study {job.study.name}")
        if place.name != job.study.name:
            raise RecordError(f"{place.folder}: of study {place.name}; expected a folder of study {job.study.name}")
    others = {place.folder.resolve(): place for place in places}
    others.pop(job.place.folder.resolve(), None)
    there = [source for place in others.values() for source in _sources(job, place)]
    known = {(source.file.path.name, source.file.sha256) for source in there}
    here = [source for source in _sources(job, job.place) if (source.file.path.name, source.file.sha256) not in known]
    sources = here + there  # without what an earlier merge, which may have been stopped, put here
    searched = ", ".join(str(place.folder) for place in (job.place, *others.values()))
    if not sources:
        raise CannotSayError(f"{job.dtype} {job.split}: no shard was measured in {searched}")
    files = []
    for number in sorted({source.file.session.attempt for source in sources}):
        own = [source for source in sources if source.file.session.attempt == number]
        _check_alike(own)
        files += _once(own)
        for other in job.attempts():
            if other.number == number and (strange := [f for f in other.read if Shard.of_lane(f.session.lane) is None]):
                raise RecordError(
                    f"{strange[0].path}: attempt {number} was begun without shards; {own[0].shown} has one"
                )
    root = Path(os.path.commonpath([file.path.parent for file in files]))
    _check_whole(job, attempts.load(job.study, files, root, job.split, job.cases)[-1], sources, searched)
    return Joined(job, tuple(files))


def write(joined: Joined) -> int:
    """Copy the files that are not in the job's folder yet, and return how many those were."""
    copied = 0
    for file in joined.files:
        path = joined.job.results.records / file.path.name
        if not path.exists() or jsonl.read(path) is None:  # not even its first line is whole
            write_atomic(path, read_bytes(file.path))
            copied += 1
    return copied


def _check_whole(job: Job, last: Attempt, sources: Sequence[Source], searched: str) -> None:
    """Raise CannotSayError for a shard of the last attempt that is missing, or has not all of its lines."""
    own = [source for source in sources if source.file.session.attempt == last.number]
    of = own[0].shard.of
    for number in range(1, of + 1):
        shard = Shard(number, of)
        if not (missing := attempts.missing_of(job, last, shard)):
            continue
        mine = [source.shown for source in own if source.shard == shard]
        if mine:
            planned = len(attempts.shard_cells(job, shard))
            raise CannotSayError(f"{mine[-1]}: shard {number}/{of} has {planned - len(missing)} of {planned} lines")
        before = [source.shown for source in sources if source.shard == shard]
        if before:
            raise CannotSayError(f"{before[-1]}: shard {number}/{of} was not begun anew; {own[0].shown} was")
        raise CannotSayError(f"{job.dtype} {job.split}: shard {number}/{of} is in none of {searched}")


def _sources(job: Job, place: StudyPlace) -> list[Source]:
    """Return the shards' session files of a job's dtype and split in a place; RecordError for one of another study."""
    try:
        files = jsonl.read_all(place.results(job.dtype).records, place.root)
    except RecordError as error:
        shown = str(error)
        raise RecordError(shown if shown.startswith(str(place.root)) else f"{place.root}/{shown}") from None
    found = []
    for file in files:
        session = file.session
        shard = Shard.of_lane(session.lane)
        if session.split is not job.split or shard is None:
            continue
        if (session.study, session.manifest, session.dtype) != (job.study.name, job.frozen.sha256, job.dtype):
            raise RecordError(f"{file.path}:1: of other frozen cases than {job.place.manifest}")
        found.append(Source(file, shard))
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
        if one.reason != other.reason:
            raise RecordError(f"{source.shown}:1: begun for another reason than {first.shown}")
        if one.entries != other.entries:
            raise RecordError(f"{source.shown}:1: timed with another table than {first.shown}")
