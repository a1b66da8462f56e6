"""A study as one archive: packed to the same bytes wherever that is done, and unpacked without trusting it.

An archive is a gzipped tar of plain files under `studies/NAME` and `frozen_cases/NAME`, sorted, without owners and
times. Whoever reads one does not know who wrote it: names, kinds, counts and sizes are held against limits while it is
read, and nothing is written but plain files below the folder that is given.
"""

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from studytool.digest import sha256
from studytool.errors import BundleError
from studytool.files import read_bytes, write_atomic
from studytool.freeze import Frozen, Manifest, manifest_of
from studytool.hosts import Traces
from studytool.layout import StudyPlace
from studytool.model import Study

MAX_FILES = 10_000
MAX_FILE_BYTES = 1 << 30
MAX_BYTES = 4 << 30
MAX_RATIO = 200
"""Most bytes that a byte of the archive may become; records become about 5, a bomb of zeros 1000."""

_READ_AT_ONCE = 1 << 20
_NAME = re.compile(r"(studies|frozen_cases)(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}){2,5}")


class Packed(NamedTuple):
    """What was packed: how many files and bytes, and the SHA-256 of the tar inside, which no compressor changes."""

    files: int
    total_bytes: int
    tar_sha256: str


def pack(study: Study, place: StudyPlace, frozen: Frozen, into: Path, *, keep_host: bool) -> Packed:
    """Write a study's archive. BundleError names the file and line that tell of the host, unless they are to be kept.

    The earlier studies that the hold-out was checked against are packed along, as far as their frozen cases are here.
    """
    paths = _paths(study, place, frozen)
    contents = {name: read_bytes(path, BundleError) for name, path in sorted(paths.items())}
    traces = Traces.here(place.root)
    for name, data in contents.items():
        if _NAME.fullmatch(name) is None:
            raise BundleError(f"{name}: cannot be packed; expected letters, digits, `_`, `.` and `-`, six parts deep")
        if not keep_host and (found := traces.first(data)):
            raise BundleError(f"{name}:{found}; --keep-host packs it nevertheless")
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in contents.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(data), 0o644
            tar.addfile(member, io.BytesIO(data))
    archive = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, archive, mtime=0) as deflated:
        deflated.write(body.getvalue())
    write_atomic(into, archive.getvalue())
    return Packed(len(contents), sum(map(len, contents.values())), sha256(body.getvalue()))


def _paths(study: Study, place: StudyPlace, frozen: Frozen) -> dict[str, Path]:
    """Return the files of a study that a replay reads, by their names relative to the root."""
    found = [place.study_yaml, place.manifest, *(place.frozen / name for name in frozen.manifest.files)]
    found += [place.table, *sorted((place.folder / "drivers").glob("*"))]
    for dtype in study.dtypes:
        results = place.results(dtype)
        found += [results.study_json, results.lines, results.score, results.report, results.ledger]
        found += sorted(results.records.glob("*.jsonl"))
    for earlier in frozen.manifest.disjoint_from:
        other = StudyPlace(place.root, earlier.name)
        if other.manifest.is_file() and sha256(read_bytes(other.manifest)) == earlier.sha256:
            found += [other.manifest, *(other.frozen / name for name in _manifest(other).files)]
    return {place.shown(path): path for path in found if path.is_symlink() or path.exists()}


def _manifest(place: StudyPlace) -> Manifest:
    return manifest_of(read_bytes(place.manifest), place.shown(place.manifest))


def unpack(archive: Path, into: Path) -> StudyPlace:
    """Return the place of the one study in an archive after writing its files below a folder that is empty.

    BundleError where the archive is not one that `pack` could have written; nothing outside of the folder is touched.
    """
    try:
        with gzip.open(archive, "rb") as inflated:
            stream = _Bounded(inflated, archive.stat().st_size)
            names = list(_extracted(stream, str(archive), into))
    except OSError as error:  # also what gzip says of bytes that are not its own
        raise BundleError(f"{archive}: cannot be read: {error.strerror or error}") from None
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BundleError(f"{archive}: not a gzipped tar: {error}") from None
    except _TooMuchError as error:
        raise BundleError(f"{archive}: {error}") from None
    studies = sorted({name.split("/")[1] for name in names if re.fullmatch(r"studies/[^/]+/study\.yaml", name)})
    if len(studies) != 1:
        raise BundleError(f"{archive}: holds {len(studies)} studies; expected one studies/NAME/study.yaml")
    return StudyPlace(into, studies[0])


class _TooMuchError(Exception):
    """An archive holds more than a study can."""


class _Bounded(io.RawIOBase):
    """A stream that refuses to give more than a study can need."""

    def __init__(self, inner: gzip.GzipFile, packed_bytes: int) -> None:
        self._inner, self._left = inner, min(MAX_BYTES, MAX_RATIO * packed_bytes)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _READ_AT_ONCE:
            raise _TooMuchError(f"a header of {size} bytes; expected plain files")
        data = self._inner.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _TooMuchError(f"inflates to more than {MAX_RATIO} times its size, or {MAX_BYTES} bytes")
        return data

    def tell(self) -> int:
        return self._inner.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        while whence == io.SEEK_SET and self._inner.tell() < offset:  # what is skipped counts, too
            if not self.read(min(_READ_AT_ONCE, offset - self._inner.tell())):
                break
        return self._inner.tell()


def _extracted(stream: _Bounded, where: str, into: Path) -> Iterator[str]:
    """Write the members of a tar, and return their names."""
    seen: set[str] = set()
    with tarfile.open(fileobj=stream, mode="r:") as tar:
        for number, member in enumerate(tar, 1):
            tar.members = []  # type: ignore[attr-defined]  # it would keep every header
            if number > MAX_FILES:
                raise BundleError(f"{where}: more than {MAX_FILES} files")
            if problem := _member_problem(member, seen):
                raise BundleError(f"{where}: member {number}, {member.name[:200]!r}: {problem}")
            seen.add(member.name)
            body = tar.extractfile(member)
            path = into / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                while body is not None and (data := body.read(_READ_AT_ONCE)):
                    file.write(data)
            if path.stat().st_size != member.size:
                raise BundleError(f"{where}: member {number}, {member.name!r}: is cut off")
            yield member.name


def _member_problem(member: tarfile.TarInfo, seen: set[str]) -> str:
    if not member.isreg() or member.issparse():
        return "not a plain file"
    if _NAME.fullmatch(member.name) is None:
        return "expected a name below studies/NAME or frozen_cases/NAME"
    if member.name in seen or any(other.startswith(f"{member.name}/") for other in seen):
        return "there twice"
    if member.size > MAX_FILE_BYTES:
        return f"{member.size} bytes; expected at most {MAX_FILE_BYTES}"
    return ""
