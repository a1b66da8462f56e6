"""Archives that nobody vouches for: whatever one holds, its replay ends with one line and leaves nothing behind."""

import bz2
import contextlib
import gzip
import io
import os
import random
import re
import stat
import subprocess
import sys
import tempfile
import threading
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import archives
import pytest
from archives import BLOCK, Packed, ended, extended, gz, header, member, padded, pax
from commands import Said, call
from hypothesis import given, settings
from hypothesis import strategies as st
from sharing import examples

from studytool import bundle
from studytool.errors import BundleError

TABLE = "studies/tiny/table.py"
"""A name that the small study, which was only frozen, has no member of."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    """Return the archive of a small study that was only frozen."""
    return archives.packed_tiny(tmp_path_factory.mktemp("packed"))


Replay = Callable[[bytes], Said]


@pytest.fixture
def replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """Return how the replay of an archive's bytes ends; it leaves nothing behind, wherever that might be."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def run(archive: bytes) -> Said:
        path = tmp_path / "study.tar.gz"
        path.write_bytes(archive)
        before = archives.listed(tmp_path)
        said = call("replay", path)

        assert archives.listed(tmp_path) == before
        assert str(temporary) not in said.out + said.err
        return said._replace(err=said.err.replace(f"{path}: ", "ARCHIVE: "))

    return run


def is_refused(said: Said, problem: str = "") -> bool:
    """Return whether an archive was refused with one line, which names it and holds this."""
    line = re.fullmatch(r"ARCHIVE: (.{1,400})\n", said.err)
    told = line is not None and line[1].isprintable() and re.search(problem, line[1]) is not None
    return (said.code, said.out) == (2, "") and told


def test_the_archive_that_is_spoiled_is_a_good_one(packed: Packed, replay: Replay) -> None:
    """Written by hand the archive has the bytes that `bundle` wrote, and its replay, of what is frozen, cannot say."""
    said = replay(packed.archive)

    assert ended(packed.parts) == gzip.decompress(packed.archive)
    assert (said.code, said.err) == (3, "")
    assert replay(gz(ended(packed.parts, member(TABLE, b"x")))).code == 3


# what is no gzipped tar


@pytest.mark.parametrize(
    "archive",
    [
        b"",
        b"\x1f",
        b"\x1f\x8b\x08",
        b"hello\n" * 100,
        bytes(5000),
        b"%PDF-1.7\n",
        gz(b""),
        gz(b"hello\n" * 1000),
        gz(bytes(range(256)) * 40),
        gz(gz(b"hello")),
        gz(bytes(BLOCK)),
        gz(bytes(archives.RECORD)),
        b"\x1f\x8b\x08\x08" + bytes(6) + b"a name without an end" * 100,
        b"\x1f\x8b\x08\x04" + bytes(6) + b"\xff\xff" + b"extra",
        b"\x1f\x8b\x07\x00" + bytes(60),
        b"\x1f\x8b\x08\x00" + bytes(6) + b"\xff" * 60,
    ],
    ids=lambda archive: f"{len(archive)} {archive[:4].hex()}",
)
def test_what_is_no_gzipped_tar_is_refused(replay: Replay, archive: bytes) -> None:
    """Bytes that are not gzip, not a tar, or a tar without members are refused."""
    assert is_refused(replay(archive))


def test_a_tar_that_is_not_gzipped_is_refused(packed: Packed, replay: Replay) -> None:
    """A plain tar, one that is packed by other means, and a zip file with the same members are no archives."""
    zipped = io.BytesIO()
    with zipfile.ZipFile(zipped, "w") as file:
        for name, data in packed.members.items():
            file.writestr(name, data)

    assert is_refused(replay(ended(packed.parts)), r"not a gzipped tar: ")
    assert is_refused(replay(zlib.compress(ended(packed.parts))), r"not a gzipped tar: ")
    assert is_refused(replay(bz2.compress(ended(packed.parts))), r"not a gzipped tar: ")
    assert is_refused(replay(zipped.getvalue()), r"not a gzipped tar: ")


def refuses(archive: bytes, folder: Path) -> bool:
    """Return whether an archive is refused, when it is unpacked in a folder that it does not leave."""
    with tempfile.TemporaryDirectory(dir=folder) as own:
        path, into = Path(own, "a"), Path(own, "in", "to")
        path.write_bytes(archive)
        into.mkdir(parents=True)
        refused = False
        try:
            bundle.unpack(path, into)
        except BundleError:
            refused = True
        outside = [found for found in Path(own).rglob("*") if into not in (found, *found.parents)]
        assert sorted(outside) == sorted([path, into.parent])
        return refused


def test_every_cut_is_refused(packed: Packed, tmp_path: Path) -> None:
    """An archive that ends after any multiple of 97 bytes is no archive."""
    cuts = range(0, len(packed.archive) - 100, 97)

    assert len(cuts) > 5
    assert [cut for cut in cuts if not refuses(packed.archive[:cut], tmp_path)] == []


def test_every_cut_near_the_end_is_refused(packed: Packed, tmp_path: Path) -> None:
    """An archive that lacks any of its last 100 bytes is no archive, though all of its members are there."""
    cuts = range(len(packed.archive) - 100, len(packed.archive))

    assert [cut for cut in cuts if not refuses(packed.archive[:cut], tmp_path)] == []


@pytest.mark.parametrize("at", range(-8, 0))
def test_a_wrong_checksum_is_refused(packed: Packed, replay: Replay, at: int) -> None:
    """An archive whose CRC or size, which stand at its end, do not agree with its content is refused."""
    changed = bytearray(packed.archive)
    changed[at] ^= 1

    assert is_refused(replay(bytes(changed)), r"not a gzipped tar: ")


def test_what_does_not_inflate_is_refused(packed: Packed, replay: Replay) -> None:
    """Deflated data that turn into noise within a member are refused."""
    deflating = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    sound = deflating.compress(packed.parts + header(TABLE, 1 << 20) + random.Random(7).randbytes(1 << 19))
    sound += deflating.flush(zlib.Z_SYNC_FLUSH)

    assert is_refused(replay(packed.archive[:10] + sound + b"\xff" * 60), r"not a gzipped tar: ")


def test_a_changed_byte_is_at_most_refused(packed: Packed, tmp_path: Path) -> None:
    """A byte that was changed anywhere in what is deflated, within a header or the data of a member, is no defect."""
    ends = []
    for at in range(10, len(packed.archive) - 8, 13):
        changed = bytearray(packed.archive)
        changed[at] ^= 0xFF
        ends.append(refuses(bytes(changed), tmp_path))

    assert sum(ends) > len(ends) // 2


@pytest.mark.parametrize(
    "behind",
    [b"garbage", bytes(100) + b"garbage", gz(b"hello"), gz(bytes(archives.RECORD)), gz(ended(member(TABLE)))],
    ids=["bytes", "zeros and bytes", "gzip", "gzipped zeros", "another archive"],
)
def test_what_stands_behind_the_archive_is_refused(packed: Packed, replay: Replay, behind: bytes) -> None:
    """Nothing follows the gzipped tar."""
    assert is_refused(replay(packed.archive + behind))


@pytest.mark.parametrize(
    "behind",
    [b"hello", member(TABLE), bytes(BLOCK) + b"hello", b"\xff" * 100_000],
    ids=["bytes", "a member", "a block and bytes", "many bytes"],
)
def test_what_stands_behind_the_tar_is_refused(packed: Packed, replay: Replay, behind: bytes) -> None:
    """Nothing but zeros follows the tar within the gzip."""
    assert is_refused(replay(gz(ended(packed.parts) + behind)))


@pytest.mark.parametrize("left", [0, 1, 2, 3, 19], ids=lambda left: f"{left} blocks")
def test_a_tar_ends_with_a_whole_record(packed: Packed, replay: Replay, left: int) -> None:
    """However many blocks the members leave of the last record, two of zeros and what fills a record follow."""
    size = -(len(packed.parts) + (left + 1) * BLOCK) % archives.RECORD
    body = ended(packed.parts, member(TABLE, bytes(size)))

    assert (len(packed.parts) + BLOCK + size + left * BLOCK) % archives.RECORD == 0
    assert replay(gz(body)).code == 3
    assert is_refused(replay(gz(body[:-BLOCK])))
    assert is_refused(replay(gz(body + bytes(BLOCK))))
    assert is_refused(replay(gz(body + bytes(archives.RECORD))))


@pytest.mark.parametrize("at", [-1, -BLOCK, -archives.RECORD // 2])
def test_what_fills_a_record_is_zeros(packed: Packed, replay: Replay, at: int) -> None:
    """No byte behind the members is anything but zero."""
    body = bytearray(ended(packed.parts, member(TABLE, bytes(-(len(packed.parts) + 2 * BLOCK) % archives.RECORD))))
    body[at] = 1

    assert is_refused(replay(gz(bytes(body))))


def test_what_fills_a_block_is_zeros(packed: Packed, replay: Replay) -> None:
    """No byte between the data of a member and the next header is anything but zero."""
    for data in (b"x" * 3, b"x" * 511):
        head, filled = header(TABLE, len(data)), data.ljust(BLOCK, b"y")

        assert is_refused(replay(gz(ended(packed.parts, head + filled))))
        assert replay(gz(ended(packed.parts, head + padded(data)))).code == 3


@pytest.mark.parametrize("pieces", [1, 2, 7, 0], ids=["bytes", "pairs", "sevens", "at once"])
def test_an_archive_is_read_in_any_pieces(
    packed: Packed, replay: Replay, monkeypatch: pytest.MonkeyPatch, pieces: int
) -> None:
    """Wherever a piece that is read at once ends, the archive is taken, and refused with more or less of it."""
    monkeypatch.setattr(bundle, "_AT_ONCE", pieces or len(packed.archive))

    assert replay(packed.archive).code == 3
    assert is_refused(replay(packed.archive + b"x"))
    assert is_refused(replay(packed.archive[:-1]))


def test_a_tar_without_its_end_is_refused(packed: Packed, replay: Replay) -> None:
    """A tar that ends after a member, or within its data or header, is not whole."""
    whole = packed.parts

    assert is_refused(replay(gz(whole)))
    assert is_refused(replay(gz(whole + header(TABLE, 2000) + b"short")))
    assert is_refused(replay(gz(whole + header(TABLE)[:300])))
    assert is_refused(replay(gz(whole + b"hello")))


def test_a_header_that_was_changed_is_refused(packed: Packed, replay: Replay) -> None:
    """A header with a wrong sum is not taken for the end of the tar, whichever it is."""
    starts = [0]
    for data in packed.members.values():
        starts.append(starts[-1] + BLOCK + len(padded(data)))
    for start in starts[:-1]:
        changed = bytearray(ended(packed.parts))
        changed[start + 100] ^= 1

        assert is_refused(replay(gz(bytes(changed)))), start


# names

NAMES: dict[str, str | bytes] = {
    "up": "../evil",
    "up from a study": "studies/tiny/../../../evil",
    "up within": "studies/tiny/../tiny/evil",
    "dot before": "./studies/tiny/evil",
    "dot within": "studies/./tiny/evil",
    "dot alone": ".",
    "dots alone": "..",
    "absolute": "/studies/tiny/evil",
    "twice absolute": "//studies/tiny/evil",
    "empty": "",
    "empty part": "studies//tiny/evil",
    "empty part below": "studies/tiny//evil",
    "empty last part": "studies/tiny/evil/",
    "backslashes": "studies\\tiny\\evil",
    "backslash": "studies/tiny/..\\evil",
    "drive": "C:/studies/tiny/evil",
    "drive alone": "C:evil",
    "drive within": "studies/tiny/C:evil",
    "stream": "studies/tiny/study.yaml:evil",
    "home": "~/evil",
    "line": "studies/tiny/ev\nil",
    "line at the end": "studies/tiny/table.py\n",
    "escape": "studies/tiny/\x1b[2Jevil",
    "tab": "studies/tiny/ev\til",
    "blank": "studies/tiny/ev il",
    "delete": "studies/tiny/evil\x7f",
    "letter": "studies/tiny/évil".encode(),
    "wide digit": "studies/tiny/\uff11evil".encode(),
    "right to left": "studies/tiny/\u202eevil".encode(),
    "no UTF-8": b"studies/tiny/\xff\xfe",
    "surrogate": b"studies/tiny/\xed\xa0\x80",
    "hidden": "studies/tiny/.evil",
    "option": "studies/tiny/-evil",
    "too deep": "studies/tiny/bf16/records/old/very/evil",
    "too shallow": "studies/evil",
    "root": "evil",
    "elsewhere": "tests/tiny/evil",
    "case": "Studies/tiny/evil",
    "like it": "studies2/tiny/evil",
    "before it": "x/studies/tiny/evil",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_a_name_that_bundle_would_not_write_is_refused(packed: Packed, replay: Replay, name: str | bytes) -> None:
    """A name is letters, digits, `_`, `.` and `-`, below studies/NAME or frozen_cases/NAME, whatever else there is."""
    assert is_refused(replay(gz(ended(member(name, b"evil"), packed.parts))), r"member 1, .*: expected a name below")


def test_a_long_name_is_refused(packed: Packed, replay: Replay) -> None:
    """A name has no part of more than 100 characters, and a message has not all of one."""
    prefix = ("studies/tiny/" + "a" * 140).encode()
    said = replay(gz(packed.among(member("evil", prefix=prefix))))
    far = replay(gz(ended(packed.parts, member("b" * 100, prefix=b"a" * 155))))
    longest = member("studies/tiny/" + "a" * 87)

    assert is_refused(said, r"expected a name below")
    assert is_refused(far, r"'a{155}/b{44}': expected a name below")
    assert replay(gz(packed.among(longest))).code == 3


@pytest.mark.parametrize("name", ["{root}/evil", "../../evil", "../evil", "studies/../../../evil"])
def test_nothing_is_written_elsewhere(packed: Packed, tmp_path: Path, name: str) -> None:
    """A name that leads out of the folder is refused before anything is made, also the folders on its way."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    archive = tmp_path / "study.tar.gz"
    path = name.format(root=tmp_path / "new").encode()
    cut = path.rindex(b"/")
    archive.write_bytes(gz(ended(packed.parts, member(path[cut + 1 :], b"evil", prefix=path[:cut]))))
    before = {name for name in archives.listed(tmp_path) if not name.startswith("a/b/")}
    with pytest.raises(BundleError, match="expected a name below"):
        bundle.unpack(archive, tmp_path / "a" / "b")

    assert {name for name in archives.listed(tmp_path) if not name.startswith("a/b/")} == before


# kinds

KINDS = {b"1": "hard link", b"2": "symbolic link", b"3": "device", b"4": "block device", b"5": "folder", b"6": "pipe"}
KINDS |= {b"S": "sparse", b"D": "GNU dump", b"M": "GNU continued", b"V": "GNU label", b"Z": "unknown"}


@pytest.mark.parametrize("kind", KINDS, ids=KINDS.values())
@pytest.mark.parametrize("link", [b"study.yaml", b"/etc/passwd", b"../../../evil", b""], ids=repr)
def test_what_is_no_plain_file_is_refused(packed: Packed, replay: Replay, kind: bytes, link: bytes) -> None:
    """A link, a device, a pipe, a folder, a sparse file or what nobody knows is refused, wherever it leads."""
    said = replay(gz(ended(packed.parts, header(TABLE, kind=kind, link=link))))

    assert is_refused(said, r"member \d+, 'studies/tiny/table\.py': not a plain file")


@pytest.mark.parametrize("target", [b".", b"../../..", b"/"])
def test_nothing_is_written_through_a_link(packed: Packed, replay: Replay, target: bytes) -> None:
    """A link is refused before what stands behind it."""
    link = header("studies/tiny/bf16", kind=b"2", link=target)
    archive = gz(packed.among(link, member("studies/tiny/bf16/evil", b"evil")))

    assert is_refused(replay(archive), r"'studies/tiny/bf16': not a plain file")


def test_a_folder_as_old_tars_have_it_is_refused(packed: Packed, replay: Replay) -> None:
    """A member whose name ends in a slash is no file, whatever its kind says."""
    for kind in (b"0", b"\0", b"7"):
        said = replay(gz(ended(packed.parts, header("studies/tiny/table.py/", kind=kind))))

        assert is_refused(said, r"not a plain file|expected a name below")


@pytest.mark.parametrize("mode", [b"0006777\0", b"0004755\0", b"0000000\0", b"7777777\0"])
def test_no_mode_reaches_the_disk(packed: Packed, tmp_path: Path, mode: bytes) -> None:
    """Modes of an archive are not those of files: nothing is executable, set-uid or unreadable."""
    (tmp_path / "study.tar.gz").write_bytes(gz(ended(packed.parts, member(TABLE, b"x", mode=mode))))
    with contextlib.suppress(BundleError):  # it may as well be refused
        bundle.unpack(tmp_path / "study.tar.gz", tmp_path / "into")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "into").rglob("*") if path.is_file()}

    assert {found & ~0o066 for found in modes} == {0o600}


# sizes

SIZES = {
    "negative": b"\xff" * 12,
    "negative block": b"\xff" * 10 + b"\xfe\x00",
    "octal with a sign": b"-0000000001\0",
    "base 256": b"\x80" + bytes(9) + b"\x02\x00",
    "8 EiB": b"\x80\0\0\0" + b"\x7f" + b"\xff" * 7,
    "the largest": b"\x80" + b"\xff" * 11,
    "the largest octal": b"77777777777\0",
    "more than there is": b"00000100000\0",
    "no number": b"zzzzzzzzzzz\0",
    "eights": b"88888888888\0",
    "fraction": b"0000001.000\0",
}


@pytest.mark.parametrize("size", SIZES.values(), ids=SIZES.keys())
def test_a_size_that_bundle_would_not_write_is_refused(packed: Packed, replay: Replay, size: bytes) -> None:
    """A size is an octal number of bytes that are there."""
    odd = header(TABLE, size)

    assert is_refused(replay(gz(ended(odd + bytes(BLOCK), packed.parts))))
    assert is_refused(replay(gz(ended(packed.parts, odd))))


# extended headers

DIGITS = "".join(random.Random(7).choices("0123456789", k=1 << 20)).encode()
EXTENDED = {
    "another name": pax(("path", "studies/tiny/table.py")),
    "a name outside": pax(("path", "../../evil")),
    "an absolute name": pax(("path", "/evil")),
    "a name of 300 characters": pax(("path", "studies/tiny/" + "a" * 287)),
    "a link's target": pax(("linkpath", "/etc/passwd")),
    "a time": pax(("mtime", "1.5")),
    "an owner": pax(("uname", "somebody"), ("uid", "0")),
    "a larger size": pax(("size", "1024")),
    "a huge size": pax(("size", str(1 << 62))),
    "a negative size": pax(("size", "-1024")),
    "no size": pax(("size", "x")),
    "a size of many digits": pax(("size", "9" * 5000)),
    "for all members": pax(("path", "studies/tiny/table.py"), kind=b"g"),
    "a comment for all": pax(("comment", "c0ffee"), kind=b"g"),
    "sparse 0.0": pax(("GNU.sparse.size", "5"), ("GNU.sparse.numblocks", "1"), ("GNU.sparse.offset", "0")),
    "sparse 0.1": pax(("GNU.sparse.map", "0,1,5,1"), ("GNU.sparse.size", "6"), ("GNU.sparse.name", "evil")),
    "sparse 0.1, no numbers": pax(("GNU.sparse.map", "a,b")),
    "sparse 1.0": pax(("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "9")),
    "sparse of no size": pax(("GNU.sparse.size", "a")),
    "an odd character set": extended(b"21 hdrcharset=\xff\xff\xff\xff\xff\n"),
    "a record of no length": extended(b"0 path=evil\n"),
    "a record of a huge length": extended(b"9" * 5000 + b" path=evil\n"),
    "no record": extended(b"hello"),
    "nothing": extended(b""),
    "a GNU name": extended(b"studies/tiny/table.py\0", b"L"),
    "a GNU name outside": extended(b"../../evil\0", b"L"),
    "a GNU name of 300 characters": extended(b"studies/tiny/" + b"a" * 287 + b"\0", b"L"),
    "a GNU link": extended(b"/etc/passwd\0", b"K"),
    "Solaris": extended(b"", b"X"),
    "1000 of them": pax(("mtime", "1")) * 1000,
    "1000 GNU names": extended(b"studies/tiny/table.py\0", b"L") * 1000,
    "1000 of both": (pax(("mtime", "1")) + extended(b"studies/tiny/table.py\0", b"L")) * 500,
    "2 GiB of pax": header("x", 1 << 31, b"x"),
    "2 GiB of pax for all": header("x", 1 << 31, b"g"),
    "2 GiB of name": header("x", 1 << 31, b"L"),
    "8 EiB of name": header("x", SIZES["8 EiB"], b"L"),
    "a negative name": header("x", SIZES["negative"], b"L"),
    "a negative pax": header("x", SIZES["negative block"], b"x"),
    "a map that goes on": header("studies/tiny/table.py", kind=b"S", at_482=b"\1"),
    "a map of no numbers": header("studies/tiny/table.py", kind=b"S", at_482=b"\1") + b"\1" * BLOCK,
    "a map of 42 blocks": header("studies/tiny/table.py", kind=b"S", at_482=b"\1")
    + (bytes(504) + b"\1" + bytes(7)) * 42,
}
"""Headers that say something of the member behind them; `bundle` writes none."""


WHERE: dict[str, Callable[[Packed, bytes], bytes]] = {
    "before all": lambda packed, head: ended(head, packed.parts),
    "before another": lambda packed, head: packed.among(head, member("studies/tiny/bf16/lines.txt")),
    "behind all": lambda packed, head: ended(packed.parts, head),
    "at the very end": lambda packed, head: packed.parts + head,
}


@pytest.mark.parametrize("where", WHERE.values(), ids=WHERE.keys())
@pytest.mark.parametrize("head", EXTENDED.values(), ids=EXTENDED.keys())
def test_an_extended_header_is_refused(
    packed: Packed, replay: Replay, head: bytes, where: Callable[[Packed, bytes], bytes]
) -> None:
    """What a header says of another one is not believed, also where the rest would be well."""
    assert is_refused(replay(gz(where(packed, head))))


BOUNDED = """\
import resource, sys, tempfile, time
from pathlib import Path
from studytool import bundle
from studytool.errors import StudyError
limit = int(time.process_time()) + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
with tempfile.TemporaryDirectory(dir=sys.argv[3]) as folder:
    try:
        bundle.unpack(Path(sys.argv[1]), Path(folder))
    except StudyError as error:
        print(error)
"""


def bounded(archive: Path, cpu_s: int) -> tuple[int, str]:
    """Return how unpacking ends and what it says in a process that may use so many seconds of its processor."""
    command = [sys.executable, "-c", BOUNDED, str(archive), str(cpu_s), str(archive.parent)]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    return ran.returncode, ran.stdout


def test_no_header_takes_long(packed: Packed, tmp_path: Path) -> None:
    """A header of a million digits, which is slow to search for a word, is refused in no time."""
    (tmp_path / "study.tar.gz").write_bytes(gz(ended(extended(DIGITS[: (1 << 20) - BLOCK]), packed.parts)))
    code, said = bounded(tmp_path / "study.tar.gz", 3)

    assert (code, said.count("\n")) == (0, 1)


# which members

CLASHES = {
    "the same twice": ("a", "a"),
    "a file where a folder is needed": ("a", "a/b"),
    "a folder where a file is": ("a/b", "a"),
    "a folder far below": ("a/b/c", "a"),
    "two that differ by case": ("a", "A"),
    "folders that differ by case": ("a/b", "A/b"),
    "a file and a folder that differ by case": ("a/b", "A"),
    "a folder and a file that differ by case": ("a", "A/b"),
    "folders of other files that differ by case": ("a/b", "A/c"),
}


@pytest.mark.parametrize("names", CLASHES.values(), ids=CLASHES.keys())
def test_members_that_are_in_each_other_s_way_are_refused(
    packed: Packed, replay: Replay, names: tuple[str, str]
) -> None:
    """No two members are one file, here or where letters have no case, and none is a folder of another."""
    pair = (member(f"studies/tiny/{name}", name.encode()) for name in names)

    assert is_refused(replay(gz(packed.among(*pair))))


def test_no_member_comes_in_place_of_another(packed: Packed, replay: Replay) -> None:
    """A second declaration is refused, not taken in place of the first one."""
    second = member("studies/tiny/study.yaml", packed.members["studies/tiny/study.yaml"])

    assert is_refused(replay(gz(ended(packed.parts, second))), r"there twice")


def test_members_are_sorted(packed: Packed, replay: Replay) -> None:
    """An archive whose members stand in another order than a bundle has them is not what `bundle` writes."""
    last = member("frozen_cases/a/b", b"")

    assert is_refused(replay(gz(ended(packed.parts, last))), r"stands behind .*; expected members sorted by name")


def test_there_is_one_study(packed: Packed, replay: Replay) -> None:
    """An archive without a study, or with two, is refused; frozen cases of others may be there."""
    frozen = {name: data for name, data in packed.members.items() if name.startswith("frozen_cases/")}
    other = member("studies/other/study.yaml", packed.members["studies/tiny/study.yaml"])

    assert is_refused(replay(gz(ended(archives.of(frozen)))), r"holds 0 studies; expected one studies/NAME/study\.yaml")
    assert is_refused(replay(gz(packed.among(other))), r"holds 2 studies; expected one studies/NAME/study\.yaml")
    assert is_refused(replay(gz(ended(member("studies/tiny/bf16/study.yaml")))), r"holds 0 studies")
    assert is_refused(replay(gz(ended(member("frozen_cases/tiny/study.yaml")))), r"holds 0 studies")
    assert replay(gz(ended(member("frozen_cases/other/MANIFEST.json"), packed.parts))).code == 3


def test_a_study_of_another_name_is_refused(packed: Packed, replay: Replay) -> None:
    """A declaration that does not have its folder's name is one line, which names the file as it is in the archive."""
    renamed = {name.replace("/tiny/", "/other/"): data for name, data in packed.members.items()}
    said = replay(gz(ended(archives.of(renamed))))

    assert said == Said(2, "", "studies/other/study.yaml:2: name: found tiny; expected the folder's name, other\n")


# how much

LIMITS: dict[str, Callable[[Packed], tuple[int, int]]] = {
    "MAX_FILES": lambda packed: (len(packed.members) - 1, len(packed.members)),
    "MAX_FILE_BYTES": lambda packed: (packed.largest - 1, packed.largest),
    "MAX_BYTES": lambda packed: (len(packed.parts) - 1, len(ended(packed.parts))),
    "MAX_RATIO": lambda packed: (
        (len(packed.parts) - 1) // len(packed.archive),
        len(ended(packed.parts)) // len(packed.archive) + 1,
    ),
}
"""For each limit a value with which the small study's archive is refused, and one with which it is taken."""


@pytest.mark.parametrize("limit", LIMITS)
def test_more_than_a_study_needs_is_refused(
    packed: Packed, replay: Replay, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    """Files, the largest of them, all bytes and their ratio to the archive's have limits; one below is too much."""
    less, enough = LIMITS[limit](packed)
    monkeypatch.setattr(bundle, limit, enough)

    assert replay(packed.archive).code == 3
    monkeypatch.setattr(bundle, limit, less)
    assert is_refused(replay(packed.archive), r"more than|expected at most")


def test_the_limits_are_those_of_studies() -> None:
    """The limits stand where a large study is far below and a small machine is not harmed."""
    assert (bundle.MAX_FILES, bundle.MAX_RATIO) == (10_000, 200)
    assert (bundle.MAX_FILE_BYTES, bundle.MAX_BYTES) == (1 << 30, 4 << 30)


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_bomb_is_refused(packed: Packed, replay: Replay, wrapped: bool) -> None:
    """Zeros that inflate a thousandfold are refused while they inflate, also where they are gzipped once more."""
    bomb = gz(ended(packed.parts, member(TABLE, bytes(64 << 20))))
    archive = gz(bomb) if wrapped else bomb

    assert len(archive) < 100_000
    assert is_refused(replay(archive), r"not a gzipped tar" if wrapped else r"inflates to more than 200 times its size")


def test_a_bomb_behind_the_members_is_refused(packed: Packed, replay: Replay) -> None:
    """Zeros behind the members that inflate a thousandfold are refused, too."""
    assert is_refused(replay(gz(ended(packed.parts) + bytes(64 << 20))))


def test_a_large_member_needs_little_memory(packed: Packed, tmp_path: Path) -> None:
    """A member is written as it is read, never held whole."""
    block = random.Random(7).randbytes(30_000)  # which deflates to a hundredth when it is repeated
    large = block * 1000
    (tmp_path / "study.tar.gz").write_bytes(gz(ended(packed.parts, member(TABLE, large))))
    tracemalloc.start()
    try:
        place = bundle.unpack(tmp_path / "study.tar.gz", tmp_path / "into")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert place.table.read_bytes() == large
    assert peak < 8 << 20


def test_a_promise_of_much_needs_no_memory(packed: Packed, tmp_path: Path) -> None:
    """A header that promises gigabytes, as data or as a name, is not believed before they are there."""
    for head in (header(TABLE, 1 << 30), *(EXTENDED[name] for name in ("2 GiB of pax", "2 GiB of name"))):
        (tmp_path / "study.tar.gz").write_bytes(gz(packed.parts + head))
        tracemalloc.start()
        try:
            with pytest.raises(BundleError):
                bundle.unpack(tmp_path / "study.tar.gz", Path(tempfile.mkdtemp(dir=tmp_path)))
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

        assert peak < 8 << 20


def test_too_many_members_are_refused_in_time(packed: Packed, tmp_path: Path) -> None:
    """10,001 members are one too many, and it does not take long to see it."""
    count = bundle.MAX_FILES - len(packed.members) + 1
    records = b"".join(header(f"studies/tiny/bf16/records/{number:05}.jsonl") for number in range(count))
    (tmp_path / "study.tar.gz").write_bytes(gz(packed.among(records)))
    code, said = bounded(tmp_path / "study.tar.gz", 10)

    assert (code, said) == (0, f"{tmp_path / 'study.tar.gz'}: more than 10000 files\n")


# what is not a file


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    """A pipe into which nobody writes is refused, like any archive that is no file."""
    pipe = tmp_path / "study.tar.gz"
    os.mkfifo(pipe)
    found: list[Said] = []
    thread = threading.Thread(target=lambda: found.append(call("replay", pipe)))
    thread.start()
    thread.join(5)
    waited = thread.is_alive()
    if waited:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    thread.join()

    assert not waited
    assert found[0][:2] == (2, "")
    assert found[0].err.count("\n") == 1


def test_what_is_not_there_or_may_not_be_read_is_one_line(tmp_path: Path) -> None:
    """A path of nothing is no study, and an archive that the system does not give is named."""
    missing = call("replay", tmp_path / "study.tar.gz")
    (tmp_path / "loop").symlink_to("loop")
    loop = call("replay", tmp_path / "loop")

    for said in (missing, loop):
        assert said[:2] == (2, "")
        assert said.err.count("\n") == 1


def test_what_the_system_refuses_is_one_line(packed: Packed, tmp_path: Path) -> None:
    """An archive that is not there, and a folder in which nothing can be made, are errors that name the archive."""
    path, into = tmp_path / "study.tar.gz", tmp_path / "into"
    into.mkdir()
    (into / "studies").touch()
    for error in ("No such file or directory", "Not a directory|File exists"):
        with pytest.raises(BundleError, match=rf"study\.tar\.gz: cannot be unpacked: (?:{error})\Z"):
            bundle.unpack(path, into)
        path.write_bytes(packed.archive)


# anything

EDITS = st.lists(
    st.tuples(
        st.integers(0, 1 << 20), st.sampled_from(["flip", "cut", "insert", "copy"]), st.binary(min_size=1, max_size=9)
    ),
    min_size=1,
    max_size=6,
)


def edited(data: bytes, edits: list[tuple[int, str, bytes]]) -> bytes:
    """Return data with bits flipped, bytes cut out, put in, or written over others."""
    for place, what, letters in edits:
        at = place % (len(data) + 1)
        if what == "flip":
            data = data[:at] + bytes(byte ^ letters[0] for byte in data[at : at + 1]) + data[at + 1 :]
        elif what == "cut":
            data = data[:at] + data[at + letters[0] :]
        else:
            data = data[:at] + letters + data[at + (len(letters) if what == "copy" else 0) :]
    return data


@given(edits=EDITS)
@settings(max_examples=examples(80))
def test_whatever_becomes_of_an_archive(
    packed: Packed, tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, str, bytes]]
) -> None:
    """An archive that was changed anywhere is refused or taken, and nothing is written elsewhere."""
    changed = edited(packed.archive, edits)

    assert refuses(changed, tmp_path_factory.getbasetemp()) or gzip.decompress(changed) == ended(packed.parts)


@given(edits=EDITS)
@settings(max_examples=examples(80))
def test_whatever_becomes_of_a_tar(
    packed: Packed, tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, str, bytes]]
) -> None:
    """A tar that was changed before it was gzipped is refused or taken, and nothing is written elsewhere."""
    refuses(gz(edited(ended(packed.parts), edits)), tmp_path_factory.getbasetemp())


WORDS = ["path", "size", "GNU.sparse.map", "GNU.sparse.size", "GNU.sparse.major", "GNU.sparse.minor", "hdrcharset"]
WORDS += ["linkpath", "mtime", "GNU.sparse.name", "GNU.sparse.realsize", "GNU.sparse.numblocks", "GNU.sparse.offset"]
VALUES = st.sampled_from(
    ["", "0", "1", "-1", "-512", "512", "a", "0,1", "1e9", "../evil", "/evil", TABLE, "9" * 30, "BINARY"]
)
BODIES = st.one_of(
    st.binary(max_size=40),
    st.lists(st.tuples(st.sampled_from(WORDS), VALUES), min_size=1, max_size=3).map(lambda found: pax(*found)[BLOCK:]),
)
HEADS = st.builds(
    header,
    st.sampled_from([TABLE, "x", "../evil", "/evil", "studies/tiny/study.yaml"]),
    st.one_of(st.integers(0, 1100), st.sampled_from([*SIZES.values()])),
    st.sampled_from([b"0", b"\0", b"1", b"2", b"5", b"6", b"7", b"L", b"K", b"S", b"x", b"g", b"X", b"V", b"M"]),
    link=st.sampled_from([b"", b"/evil", b"../evil"]),
    at_386=st.binary(max_size=100),
)
"""Headers with a right sum, in which anything else may be odd; at 386 GNU has the map of a sparse file."""


@given(heads=st.lists(st.tuples(HEADS, BODIES), min_size=1, max_size=4), first=st.booleans())
@settings(max_examples=examples(150))
def test_whatever_headers_there_are(
    packed: Packed, tmp_path_factory: pytest.TempPathFactory, heads: list[tuple[bytes, bytes]], first: bool
) -> None:
    """Headers of any kind and size, with any data, are refused or taken, and nothing is written elsewhere."""
    odd = b"".join(head + padded(body) for head, body in heads)
    refuses(gz(ended(odd, packed.parts) if first else ended(packed.parts, odd)), tmp_path_factory.getbasetemp())
