"""Studies that are packed, and archives as anybody may have made them: their headers are written byte by byte."""

import gzip
import io
import shutil
import tarfile
from pathlib import Path
from typing import NamedTuple

import benches
import finished
import pytest
from commands import call, tiny
from factories import STUDY_YAML

from studytool import freeze, opening, pipeline, timing
from studytool.layout import StudyPlace
from studytool.model import Split

BLOCK, RECORD = 512, 10_240
"""A tar is made of blocks, and padded to records."""

FIELDS = {"name": 0, "mode": 100, "uid": 108, "gid": 116, "size": 124, "mtime": 136, "sum": 148, "kind": 156}
FIELDS |= {"link": 157, "magic": 257, "uname": 265, "gname": 297, "devmajor": 329, "devminor": 337, "prefix": 345}
"""Where each field of a header begins; each ends where the next one begins, the last one at 500."""


def header(name: str | bytes, size: int | bytes = 0, kind: bytes = b"0", **changes: bytes) -> bytes:
    """Return a header with a right sum; `changes` are fields as bytes, and `at_N` whatever stands at byte N."""
    fields = {
        "name": name.encode() if isinstance(name, str) else name,
        "mode": b"0000644\0",
        "uid": b"0000000\0",
        "gid": b"0000000\0",
        "size": b"%011o\0" % size if isinstance(size, int) else size,
        "mtime": b"00000000000\0",
        "kind": kind,
        "magic": b"ustar\x0000",
        **changes,
    }
    block = bytearray(BLOCK)
    for field, data in fields.items():
        at = FIELDS[field] if field in FIELDS else int(field.removeprefix("at_"))
        block[at : at + len(data)] = data
    assert len(block) == BLOCK
    return summed(bytes(block))


def summed(block: bytes) -> bytes:
    """Return a header with its sum put right."""
    blank = block[: FIELDS["sum"]] + b" " * 8 + block[FIELDS["kind"] :]
    return block[: FIELDS["sum"]] + b"%06o\0 " % sum(blank) + block[FIELDS["kind"] :]


def padded(data: bytes, unit: int = BLOCK) -> bytes:
    """Return data with zeros up to the next whole block."""
    return data + bytes(-len(data) % unit)


def member(name: str | bytes, data: bytes = b"", **changes: bytes) -> bytes:
    """Return a member: its header and its padded data."""
    return header(name, len(data), **changes) + padded(data)


def ended(*parts: bytes) -> bytes:
    """Return these parts as a whole tar."""
    return padded(b"".join(parts) + bytes(2 * BLOCK), RECORD)


def gz(data: bytes) -> bytes:
    """Return bytes gzipped as `bundle` does it."""
    return gzip.compress(data, mtime=0)


def members(archive: bytes) -> dict[str, bytes]:
    """Return what is in an archive by name, in order."""
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive))) as tar:
        read = ((info.name, tar.extractfile(info)) for info in tar)
        return {name: file.read() for name, file in read if file is not None}


def of(found: dict[str, bytes]) -> bytes:
    """Return members as parts of a tar, as `bundle` writes them."""
    return b"".join(member(name, data) for name, data in found.items())


def pax(*records: tuple[str, str], kind: bytes = b"x") -> bytes:
    """Return a pax header with these records for the member behind it."""
    return extended(b"".join(_record(*record) for record in records), kind)


def extended(body: bytes, kind: bytes = b"x") -> bytes:
    """Return an extended header (`x`, `g`, or `L` and `K` as GNU has them) with this body."""
    return header("extended", len(body), kind) + padded(body)


def _record(key: str, value: str) -> bytes:
    text = f" {key}={value}\n".encode()
    size = len(text)
    while len(str(size)) + len(text) != size:
        size = len(str(size)) + len(text)
    return str(size).encode() + text


class Packed(NamedTuple):
    """A small study that was only frozen, as `bundle` packs it: the archive, and its members."""

    archive: bytes
    members: dict[str, bytes]

    @property
    def parts(self) -> bytes:
        """Return the members as parts of a tar."""
        return of(self.members)

    def among(self, *odd: bytes) -> bytes:
        """Return the tar with other parts between what is frozen and study.yaml, where most names have their place."""
        *frozen, last = (of({name: data}) for name, data in self.members.items())
        return ended(*frozen, *odd, last)

    @property
    def largest(self) -> int:
        """Return the bytes of the largest member."""
        return max(map(len, self.members.values()))


def packed_tiny(root: Path) -> Packed:
    """Return the small study packed below an empty root."""
    place = tiny(root)
    archive = root / "tiny.tar.gz"
    assert call("freeze", place.folder).code == 0
    assert call("bundle", place.folder, "-o", archive, "--keep-host").code == 0
    return Packed(archive.read_bytes(), members(archive.read_bytes()))


OVERLAPPING = STUDY_YAML.replace(
    "{s_kv: [96, 160], h_q: 4, h_kv: 2, d_qk: 64, mask: tl}", "{s_kv: 80, h_q: 2, d_qk: 64, b: 2}"
)
OVERLAPPING = OVERLAPPING.replace("s_kv: [80, 144]", "s_kv: [88, 144]")
"""The small study with one train case, which the hold-out of the whole study has, too."""


def earlier_study(root: Path, name: str, text: str = STUDY_YAML) -> StudyPlace:
    """Return a study of that name that was frozen, in place of the one that is there."""
    place = StudyPlace(root, name)
    for folder in (place.folder, place.frozen):
        shutil.rmtree(folder, ignore_errors=True)
    finished.declare(root, text.replace("name: tiny", f"name: {name}"), name)
    freeze.freeze(opening.open_study(place), place, [], "c0ffee")
    return place


DRIVER = b"#!/usr/bin/env python3\nprint('started')\n"


def full_study(root: Path, *earlier: str) -> StudyPlace:
    """Return a study that went the whole path, started by a driver, disjoint from earlier ones that are here, too."""
    manifests = [earlier_study(root, name).manifest for name in earlier]
    place = finished.declare(root)
    study = opening.open_study(place)
    freeze.freeze(study, place, manifests, "c0ffee")
    driver = root / "full_study.py"
    driver.write_bytes(DRIVER)
    job = opening.job_of(study, place, "bf16", Split.TRAIN)
    timing.note_driver(job, finished.hooks().now, driver)
    driver.unlink()
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        pipeline.run(study, place, ("bf16", "f16"), finished.hooks())
    return place


def listed(root: Path) -> dict[str, bytes | str]:
    """Return everything below a folder: a file's bytes, a link's target, and what else there is by its kind."""
    found: dict[str, bytes | str] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = "folder" if path.is_dir() else "special"
    return found
