"""A study as one archive: packed to the same bytes wherever that is done, and unpacked without trusting it.

An archive is a gzipped tar of plain files under `studies/NAME` and `frozen_cases/NAME`, sorted, without owners and
times. Whoever reads one does not know who wrote it: names, kinds, counts and sizes are held against limits while it is
read, and nothing is written but plain files below the folder that is given.
"""

import gzip
import io
import itertools
import re
import tarfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from studytool import ledger
from studytool.digest import sha256
from studytool.errors import BundleError
from studytool.files import read_bytes, write_atomic
from studytool.freeze import Frozen, manifest_of
from studytool.hosts import Traces
from studytool.layout import StudyPlace
from studytool.model import Study

MAX_FILES = 10_000
MAX_FILE_BYTES = 1 << 30
MAX_BYTES = 4 << 30
MAX_RATIO = 200
"""Most bytes that a byte of the archive may become; records become about 5, a bomb of zeros 1000."""

_BLOCK, _RECORD, _AT_ONCE = 512, 10_240, 1 << 20
_NAME = re.compile(r"(studies|frozen_cases)(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,98}){2,5}")


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
    if into.resolve() in {path.resolve() for path in paths.values()}:
        raise BundleError(f"{into}: is a file of the study; expected another name for the archive")
    contents = {name: _plain(path, name) for name, path in sorted(paths.items())}
    traces = Traces.here(place.root)
    for name, data in contents.items():
        if not keep_host and (found := traces.first(data)):
            raise BundleError(f"{name}:{found}; --keep-host packs it nevertheless")
    body = io.BytesIO()
    with tarfile.open(fileobj=body, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in contents.items():
            tar.addfile(_member(name, len(data)), io.BytesIO(data))
    archive = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, archive, mtime=0) as deflated:
        deflated.write(body.getvalue())
    packed, total = archive.getvalue(), len(body.getvalue())
    if len(contents) > MAX_FILES or total > min(MAX_BYTES, MAX_RATIO * len(packed)):
        raise BundleError(f"{place.folder}: {len(contents)} files, {total} bytes: more than a replay would take")
    write_atomic(into, packed)
    return Packed(len(contents), sum(map(len, contents.values())), sha256(body.getvalue()))


def _member(name: str, size: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size, 0o644
    return member


def _plain(path: Path, name: str) -> bytes:
    if _NAME.fullmatch(name) is None:
        raise BundleError(f"{name}: cannot be packed; expected letters, digits, `_`, `.` and `-`, six parts deep")
    if path.is_symlink() or not path.is_file():
        raise BundleError(f"{name}: cannot be packed; expected a plain file")
    data = read_bytes(path, BundleError)
    if len(data) > MAX_FILE_BYTES:
        raise BundleError(f"{name}: {len(data)} bytes; expected at most {MAX_FILE_BYTES}")
    return data


def _paths(study: Study, place: StudyPlace, frozen: Frozen) -> dict[str, Path]:
    """Return the files of a study that a replay reads, by their names relative to the root."""
    found = [place.study_yaml, place.manifest, *(place.frozen / name for name in frozen.manifest.files)]
    found += [place.table, place.report]
    for dtype in study.dtypes:
        results = place.results(dtype)
        started = (event.body for event in ledger.read(results.ledger) if event.event == "driver")
        found += [place.driver(str(body["name"]), str(body["sha256"])) for body in started]
        found += [results.study_json, results.lines, results.score, results.report, results.ledger]
        found += sorted(results.records.glob("*.jsonl"))
    for earlier in frozen.manifest.disjoint_from:
        other = StudyPlace(place.root, earlier.name)
        if other.manifest.is_file() and sha256(read_bytes(other.manifest)) == earlier.sha256:
            manifest = manifest_of(read_bytes(other.manifest), place.shown(other.manifest))
            found += [other.manifest, *(other.frozen / name for name in manifest.files)]
    return {place.shown(path): path for path in found if path.is_symlink() or path.exists()}


def unpack(archive: Path, into: Path) -> StudyPlace:
    """Return the place of the one study in an archive after writing its files below a folder that is empty.

    BundleError where the archive is not one that `pack` could have written; nothing outside of the folder is touched.
    """
    try:
        with archive.open("rb") as file:
            names = list(_extracted(_Inflated(file, archive.stat().st_size), into))
    except OSError as error:
        raise BundleError(f"{archive}: cannot be unpacked: {error.strerror}") from None
    except zlib.error as error:
        raise BundleError(f"{archive}: not a gzipped tar: {error}") from None
    except _OddError as error:
        raise BundleError(f"{archive}: {error}") from None
    studies = sorted({name.split("/")[1] for name in names if re.fullmatch(r"studies/[^/]+/study\.yaml", name)})
    if len(studies) != 1:
        raise BundleError(f"{archive}: holds {len(studies)} studies; expected one studies/NAME/study.yaml")
    return StudyPlace(into, studies[0])


def is_gzip(path: Path) -> bool:
    """Return whether a file begins as a gzip file does."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


class _OddError(Exception):
    """An archive is not what `pack` writes."""


class _Inflated:
    """What a gzip file inflates to, read piece by piece; _OddError beyond what a study needs, or at its end."""

    def __init__(self, file: IO[bytes], packed_bytes: int) -> None:
        self._file, self._left = file, min(MAX_BYTES, MAX_RATIO * packed_bytes)
        self._inflater = zlib.decompressobj(wbits=31)

    def read(self, count: int) -> bytes:
        """Return the next `count` bytes."""
        parts = []
        while count:
            if not (data := self._some(count)):
                raise _OddError("not a gzipped tar: is cut off")
            parts.append(data)
            count -= len(data)
        return b"".join(parts)

    def end(self) -> None:
        """Check that nothing follows."""
        if self._some(1) or self._inflater.unused_data or self._file.read(1):
            raise _OddError("not a gzipped tar: something stands behind it")

    def _some(self, most: int) -> bytes:
        """Return up to so many bytes, b"" at the end of the gzip member."""
        while not self._inflater.eof:
            packed = self._inflater.unconsumed_tail or self._file.read(_AT_ONCE)
            data = self._inflater.decompress(packed, most)
            self._left -= len(data)
            if self._left < 0:
                raise _OddError(f"inflates to more than {MAX_RATIO} times its size, or to more than {MAX_BYTES} bytes")
            if data:
                return data
            if not packed and not self._inflater.eof:
                raise _OddError("not a gzipped tar: is cut off")
        return b""


def _extracted(stream: _Inflated, into: Path) -> Iterator[str]:
    """Write the members of a tar, and return their names."""
    seen: dict[str, str] = {}
    total, number, before = 0, 0, ""
    while (block := stream.read(_BLOCK)) != bytes(_BLOCK):
        number += 1
        if number > MAX_FILES:
            raise _OddError(f"more than {MAX_FILES} files")
        name, size = _header(block, number)
        _note(seen, name)
        if name < before:
            raise _OddError(f"{name}: stands behind {before}; expected members sorted by name")
        before, path = name, into / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            for start in range(0, size, _AT_ONCE):
                file.write(stream.read(min(_AT_ONCE, size - start)))
        padding = -size % _BLOCK
        if stream.read(padding) != bytes(padding):
            raise _OddError(f"not a gzipped tar: member {number} does not end in zeros")
        total += _BLOCK + size + padding
        yield name
    rest = -(total + _BLOCK) % _RECORD
    if rest < _BLOCK:
        rest += _RECORD
    if stream.read(rest) != bytes(rest):
        raise _OddError("not a gzipped tar: something stands behind its members")
    stream.end()


def _header(block: bytes, number: int) -> tuple[str, int]:
    """Return name and size of a member; _OddError for a header that is not, byte for byte, what `pack` writes."""
    base, prefix = block[:100].rstrip(b"\0"), block[345:500].rstrip(b"\0")
    name = (prefix + b"/" + base if prefix else base).decode("latin-1")
    where = f"member {number}, {_shown(name)}"
    if block[257:263] != b"ustar\0":
        raise _OddError(f"not a gzipped tar: {where}: expected a USTAR header")
    if block[156:157] != tarfile.REGTYPE:
        raise _OddError(f"{where}: not a plain file")
    if _NAME.fullmatch(name) is None:
        raise _OddError(f"{where}: expected a name below studies/NAME or frozen_cases/NAME")
    digits = block[124:135]
    if re.fullmatch(rb"[0-7]{11}", digits) is None or int(digits, 8) > MAX_FILE_BYTES:
        raise _OddError(f"{where}: its size is {digits!r}; expected at most {MAX_FILE_BYTES} bytes")
    size = int(digits, 8)
    if block != _member(name, size).tobuf(tarfile.USTAR_FORMAT):
        raise _OddError(f"{where}: not a gzipped tar as `bundle` writes it: another header")
    return name, size


def _shown(name: str) -> str:
    """Return a member's name as an error message quotes it, however long and odd it is."""
    return repr(name[:200]) if name.isascii() and name.isprintable() else ascii(name[:40])


def _note(seen: dict[str, str], name: str) -> None:
    """Add a file and its folders to what was seen; _OddError where it is there, here or where letters have no case."""
    *folders, last = itertools.accumulate(name.split("/"), "{}/{}".format)
    if last.lower() in seen:
        raise _OddError(f"{name}: there twice")
    for folder in folders:
        if seen.setdefault(folder.lower(), f"{folder}/") != f"{folder}/":
            raise _OddError(f"{name}: there twice, as a file and as a folder, or in two spellings")
    seen[last.lower()] = last
