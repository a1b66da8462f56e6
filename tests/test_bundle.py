"""Packing: the same study gives the same bytes, which hold what a replay reads and nothing else."""

import gzip
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import archives
import benches
import finished
import pytest
from commands import Said, call, tiny

from studytool import bundle, opening, timing
from studytool.digest import pretty, sha256
from studytool.errors import LedgerError
from studytool.layout import StudyPlace
from studytool.model import Split

DRIVER = f"studies/whole/drivers/{sha256(archives.DRIVER)[:12]}-full_study.py"
RESULTS = ["ledger.jsonl", "lines.txt", "records/holdout-01-001.jsonl", "records/routing-01-001.jsonl"]
RESULTS += ["records/train-01-001.jsonl", "report.md", "score.json", "study.json"]
CASES = ["holdout.jsonl", "routing.jsonl", "train.jsonl"]


def frozen_names(name: str, *dtypes: str) -> list[str]:
    """Return the names of a study's frozen files."""
    names = ["MANIFEST.json", "gate.json", *(f"{dtype}.{cases}" for dtype in dtypes for cases in CASES)]
    return [f"frozen_cases/{name}/{file}" for file in names]


WHOLE = [*frozen_names("whole", "bf16", "f16"), "studies/whole/study.yaml", "studies/whole/table.py", DRIVER]
WHOLE += ["studies/whole/report.md"]
WHOLE += [f"studies/whole/{dtype}/{name}" for dtype in ("bf16", "f16") for name in RESULTS]
"""The files of the whole study that a replay reads."""


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished study that nobody may change, disjoint from two earlier ones, of which one changed since."""
    place = archives.full_study(tmp_path_factory.mktemp("full"), "earlier", "changed")
    archives.earlier_study(place.root, "changed", archives.OVERLAPPING)
    return place


@pytest.fixture
def own(full: StudyPlace, tmp_path: Path) -> StudyPlace:
    """Return a finished study of the test's own."""
    return finished.copy(full, tmp_path / "own")


def pack(place: StudyPlace, into: Path, *args: object) -> bytes:
    """Return the archive of a study, whatever it tells of this machine."""
    assert call("bundle", place.folder, "-o", into, "--keep-host", *args).code == 0
    return into.read_bytes()


def refused(place: StudyPlace, into: Path) -> str:
    """Return the line by which a study is not packed; what was there before, which may be nothing, is untouched."""
    before = archives.listed(into.parent)
    said = call("bundle", place.folder, "-o", into, "--keep-host")

    assert (said.code, said.out) == (2, "")
    assert said.err.count("\n") == 1
    assert archives.listed(into.parent) == before
    return said.err


# the same bytes


def elsewhere(place: StudyPlace, root: Path) -> StudyPlace:
    """Return a copy whose files came to be in another order, with other modes and times."""
    found = sorted((path for path in place.root.rglob("*") if path.is_file()), reverse=True)
    for number, path in enumerate(found):
        copy = root / path.relative_to(place.root)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
        copy.chmod(0o700)
        os.utime(copy, (10**9, 10**9 + number))
    return StudyPlace(root, place.name)


def test_the_same_study_is_the_same_bytes_anywhere(full: StudyPlace, tmp_path: Path) -> None:
    """Neither folder, user, time, order of files, modes, umask, locale nor hash seed change a byte."""
    first = pack(full, tmp_path / "first.tar.gz")
    place = elsewhere(full, tmp_path / "elsewhere")
    code = "import os, sys\nos.umask(0o077)\nfrom studytool.cli import main\nmain(sys.argv[1:])"
    names = dict.fromkeys(("USER", "LOGNAME", "USERNAME"), "somebody")
    environment = {"TZ": "Asia/Kolkata", "LC_ALL": "C", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "7", **names}
    args = ["bundle", place.folder, "-o", tmp_path / "other.tar.gz", "--keep-host"]
    subprocess.run([sys.executable, "-c", code, *map(str, args)], check=True, env={**os.environ, **environment})

    assert pack(full, tmp_path / "again.tar.gz") == first
    assert (tmp_path / "other.tar.gz").read_bytes() == first


def test_what_is_unpacked_is_packed_to_the_same_bytes(full: StudyPlace, tmp_path: Path) -> None:
    """Unpacking an archive and packing what it held gives the archive."""
    first = pack(full, tmp_path / "first.tar.gz")
    place = bundle.unpack(tmp_path / "first.tar.gz", tmp_path / "unpacked")

    assert place == StudyPlace(tmp_path / "unpacked", "whole")
    assert pack(place, tmp_path / "again.tar.gz") == first


def test_an_archive_tells_neither_times_nor_owners(own: StudyPlace, tmp_path: Path) -> None:
    """The gzip header has no time and no name; the tar is USTAR, sorted, plain, of nobody, at time 0 and mode 0644."""
    long = tmp_path / ("a" * 80)
    long.write_text("#!/bin/sh\n")
    job = opening.job_of(opening.open_study(own), own, "bf16", Split.TRAIN)
    timing.note_driver(job, finished.hooks().now, long)
    archive = pack(own, tmp_path / "study.tar.gz")
    body = gzip.decompress(archive)
    names = sorted(archives.members(archive))
    expected = [f"studies/whole/drivers/{sha256(long.read_bytes())[:12]}-{long.name}", *WHOLE]

    assert archive[:8] == b"\x1f\x8b\x08\x00" + bytes(4)  # no flags: no name, no comment; then the time
    assert set(expected) < set(names)
    assert max(map(len, names)) > 100  # so that a name needs the prefix that USTAR has for it
    at = 0
    for name, data in sorted(archives.members(archive).items()):
        block = body[at : at + archives.BLOCK]
        cut = max(0, len(name) - 100)
        cut = name.index("/", cut - 1) if cut else 0
        prefix, base = (name[:cut], name[cut + 1 :]) if cut else ("", name)

        assert block == archives.header(base, len(data), prefix=prefix.encode())
        at += archives.BLOCK + len(archives.padded(data))
    assert body[at:].strip(b"\0") == b""
    assert len(body) % archives.RECORD == 0


def test_what_was_packed_is_told(full: StudyPlace, tmp_path: Path) -> None:
    """The line that is printed has the number of files, their bytes, and the hash of the tar, which is what it says."""
    into = tmp_path / "study.tar.gz"
    said = call("bundle", full.folder, "-o", into, "--keep-host")
    archive = into.read_bytes()
    found = archives.members(archive)
    told = f"{len(found)} files, {sum(map(len, found.values()))} bytes, tar sha256:{sha256(gzip.decompress(archive))}"

    assert said == Said(0, f"{into}: {told}\n", "")


def test_the_study_is_found_from_within(full: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an argument it is the study around the current directory that is packed."""
    first = pack(full, tmp_path / "first.tar.gz")
    monkeypatch.chdir(full.results("bf16").records)

    assert call("bundle", "-o", tmp_path / "again.tar.gz", "--keep-host").code == 0
    assert (tmp_path / "again.tar.gz").read_bytes() == first


def test_an_archive_may_lie_in_the_folder_of_its_study(own: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed and replayed from within the study's folder, an archive there holds, and does not hold itself."""
    monkeypatch.chdir(own.folder)
    for _ in range(2):
        assert call("bundle", "-o", "study.tar.gz", "--keep-host").code == 0
        said = call("replay", "study.tar.gz")

        assert (said.code, said.err) == (0, "")
        assert said.out.splitlines()[-1].startswith("holds: ")
    assert "studies/whole/study.tar.gz" not in archives.members((own.folder / "study.tar.gz").read_bytes())


@pytest.mark.parametrize("name", ["line\nbreak.tar.gz", os.fsdecode(b"not \xff UTF-8.tar.gz")], ids=["line", "bytes"])
def test_any_name_of_an_archive_is_told_on_one_line(full: StudyPlace, tmp_path: Path, name: str) -> None:
    """An archive may have any name that a file may have; what is printed is one line."""
    said = call("bundle", full.folder, "-o", tmp_path / name, "--keep-host")

    assert (said.code, said.err, said.out.count("\n")) == (0, "", 1)
    assert (tmp_path / name).is_file()


# what is in it

LYING_AROUND = [
    "notes.txt",
    "studies/notes.txt",
    "studies/whole/notes.txt",
    "studies/whole/study.yaml~",
    "studies/whole/.study.yaml.swp",
    "studies/whole/#table.py#",
    "studies/whole/.table.py.77.new",
    "studies/whole/.git/config",
    "studies/whole/__pycache__/table.pyc",
    "studies/whole/study.tar.gz",
    "studies/whole/f32/records/train-01-001.jsonl",
    "studies/whole/bf16/report.md.orig",
    "studies/whole/bf16/.score.json.77.new",
    "studies/whole/bf16/records/notes.txt",
    "studies/whole/bf16/records/train-01-001.jsonl~",
    "studies/whole/bf16/records/.train-01-001.jsonl.swp",
    "studies/whole/bf16/records/.train-01-001.jsonl.77.new",
    "studies/another/study.yaml",
    "frozen_cases/notes.txt",
    "frozen_cases/another/MANIFEST.json",
    "frozen_cases/whole/notes.txt",
    "frozen_cases/whole/bf16.train.jsonl.orig",
    "frozen_cases/whole/.MANIFEST.json.77.new",
    "frozen_cases/.whole.77/MANIFEST.json",
    "frozen_cases/earlier/notes.txt",
]


def put(root: Path, name: str) -> None:
    """Put a file there that no replay reads."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"lies around\n")


def test_an_archive_holds_the_study_and_the_earlier_cases_alone(own: StudyPlace, tmp_path: Path) -> None:
    """An archive has the study's files, and the cases of an earlier study that is still the one it was held against.

    Nothing that lies around in the folders is packed.
    """
    for name in LYING_AROUND:
        put(own.root, name)
    found = archives.members(pack(own, tmp_path / "study.tar.gz"))

    assert sorted(found) == sorted([*WHOLE, *frozen_names("earlier", "bf16")])
    assert found == {name: (own.root / name).read_bytes() for name in found}


@pytest.mark.parametrize("name", ["notes.txt", "full_study.py~", ".full_study.py.swp", "__pycache__/full_study.pyc"])
def test_only_drivers_that_were_started_are_packed(own: StudyPlace, tmp_path: Path, name: str) -> None:
    """What lies around beside the drivers, which a replay does not read, neither is packed nor keeps others out."""
    first = pack(own, tmp_path / "first.tar.gz")
    put(own.folder / "drivers", name)

    assert pack(own, tmp_path / "again.tar.gz") == first


READS = """\
import json, os, sys
found = set()
def note(event, args):
    if event == "open" and isinstance(args[0], str):
        found.add(os.path.relpath(args[0], sys.argv[1]))
sys.addaudithook(note)
from studytool.cli import main
try:
    main(["replay", sys.argv[1] + "/studies/whole"])
except SystemExit as end:
    assert end.code == 0, end.code
print(json.dumps(sorted(name for name in found if not name.startswith(".."))))
"""


def test_an_archive_holds_what_a_replay_opens(own: StudyPlace, tmp_path: Path) -> None:
    """Every file that a replay opens is in the archive, and of the others only the gate of the earlier study."""
    pack(own, tmp_path / "study.tar.gz")
    place = bundle.unpack(tmp_path / "study.tar.gz", tmp_path / "unpacked")
    for name in LYING_AROUND:
        if not (place.root / name).exists() and "another" not in name and not name.endswith(".new"):
            put(place.root, name)
    ran = subprocess.run([sys.executable, "-c", READS, place.root], check=True, capture_output=True, text=True)
    read = json.loads(ran.stdout.splitlines()[-1])

    assert sorted([*read, "frozen_cases/earlier/gate.json"]) == sorted(archives.members(pack(own, tmp_path / "a")))


def test_a_study_that_was_only_frozen_is_packed(tmp_path: Path) -> None:
    """Before anything was timed, an archive holds the declaration and what was frozen; its replay cannot say yet."""
    place = tiny(tmp_path / "tiny")
    call("freeze", place.folder)
    found = archives.members(pack(place, tmp_path / "study.tar.gz"))
    said = call("replay", tmp_path / "study.tar.gz")

    assert sorted(found) == sorted([*frozen_names("tiny", "bf16"), "studies/tiny/study.yaml"])
    assert (said.code, said.err) == (3, "")
    assert "cannot say       results: no dtype has results" in said.out


def test_a_study_that_was_only_trained_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the train split alone an archive holds its records and study.json; its replay cannot say yet."""
    benches.inline(monkeypatch)
    place = tiny(tmp_path / "tiny")
    call("freeze", place.folder)
    call("time", place.folder, "--dtype", "bf16")
    found = archives.members(pack(place, tmp_path / "study.tar.gz"))
    said = call("replay", tmp_path / "study.tar.gz")
    timed = [f"studies/tiny/bf16/{name}" for name in ("ledger.jsonl", "records/train-01-001.jsonl", "study.json")]

    assert sorted(found) == sorted([*frozen_names("tiny", "bf16"), "studies/tiny/study.yaml", *timed])
    assert (said.code, said.err) == (3, "")


def test_a_study_that_was_not_frozen_is_not_packed(tmp_path: Path) -> None:
    """Without frozen cases, or with others than study.yaml makes, there is nothing to pack: one line."""
    place = tiny(tmp_path / "tiny")
    not_there = refused(place, tmp_path / "study.tar.gz")
    call("freeze", place.folder)
    place.gate.write_bytes(place.gate.read_bytes().replace(b"1.02", b"1.03"))

    assert not_there == "frozen_cases/tiny/MANIFEST.json: not there; expected `studytool freeze` to have been run\n"
    assert refused(place, tmp_path / "study.tar.gz").startswith("frozen_cases/tiny/gate.json:")


def test_earlier_cases_that_are_elsewhere_are_not_packed(own: StudyPlace, tmp_path: Path) -> None:
    """Where the earlier study's frozen cases are not here, the study is packed without them."""
    shutil.rmtree(own.root / "frozen_cases/earlier")

    assert sorted(archives.members(pack(own, tmp_path / "study.tar.gz"))) == sorted(WHOLE)


@pytest.mark.parametrize("name", ["{root}/secret.jsonl", "../../secret.jsonl", "{outside}/secret.jsonl"])
def test_an_earlier_manifest_draws_in_no_file_from_elsewhere(tmp_path: Path, name: str) -> None:
    """A manifest that names a file that is not beside it packs nothing from there: one line, and no archive."""
    place, into = tiny(tmp_path / "root"), tmp_path / "study.tar.gz"
    earlier = archives.earlier_study(place.root, "earlier")
    for folder in (tmp_path, place.root, earlier.frozen):
        (folder / "secret.jsonl").write_text("secret\n")
    files = {name.format(root=place.root, outside=tmp_path): sha256(b"secret\n")}
    earlier.manifest.write_bytes(pretty({**json.loads(earlier.manifest.read_bytes()), "files": files}))
    call("freeze", place.folder, "--exclude", earlier.manifest)  # which may refuse it already
    said = call("bundle", place.folder, "-o", into, "--keep-host")

    assert (said.code, said.err.count("\n")) == (2, 1)
    assert not into.exists()


# what cannot be packed


def a_symlink(path: Path) -> None:
    """Put a link to another file, which has the same bytes, where a file is."""
    beside = path.with_name("beside")
    path.replace(beside)
    path.symlink_to(beside)


def a_dangling_link(path: Path) -> None:
    """Put a link to nothing where a file is."""
    path.unlink()
    path.symlink_to("nothing")


def a_fifo(path: Path) -> None:
    """Put a pipe where a file is; whoever reads it all the same gets nothing."""
    path.unlink()
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(b"",), daemon=True).start()


def a_folder(path: Path) -> None:
    """Put a folder where a file is."""
    path.unlink()
    path.mkdir()


PLACES = ["table.py", DRIVER.removeprefix("studies/whole/"), "bf16/records/train-01-001.jsonl", "f16/report.md"]


@pytest.mark.parametrize("spoil", [a_symlink, a_dangling_link, a_fifo, a_folder])
@pytest.mark.parametrize("name", PLACES)
def test_what_is_no_plain_file_is_not_packed(
    own: StudyPlace, tmp_path: Path, name: str, spoil: Callable[[Path], None]
) -> None:
    """A link, a pipe or a folder in place of a file is named in one line; an archive that is there stays as it is."""
    spoil(own.folder / name)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old.tar.gz").write_bytes(b"an archive of before")

    try:
        assert name in refused(own, tmp_path / "out/new.tar.gz")
        assert name in refused(own, tmp_path / "out/old.tar.gz")
    finally:
        if spoil is a_fifo:
            os.close(os.open(own.folder / name, os.O_RDONLY | os.O_NONBLOCK))  # which ends the one that writes


@pytest.mark.parametrize(
    "name", ["train copy.jsonl", ".#train-01-001.jsonl", "-.jsonl", "é.jsonl", "a" * 94 + ".jsonl"]
)
def test_records_of_an_odd_name_are_not_packed(own: StudyPlace, tmp_path: Path, name: str) -> None:
    """A replay reads whatever ends in .jsonl; what no archive may have as a name is told, not left out."""
    put(own.results("bf16").records, name)
    (tmp_path / "out").mkdir()
    told = refused(own, tmp_path / "out" / "study.tar.gz")

    assert told.startswith(f"studies/whole/bf16/records/{name}: cannot be packed; expected ")


@pytest.mark.parametrize("name", ["studies/whole/f16/report.md", "frozen_cases/earlier/bf16.train.jsonl"])
def test_what_may_not_be_read_is_not_packed(
    own: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file that may not be read is named in one line; an archive that is there stays as it is."""
    real = Path.read_bytes

    def read(path: Path) -> bytes:
        if path == own.root / name:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", read)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/old.tar.gz").write_bytes(b"an archive of before")

    assert refused(own, tmp_path / "out/new.tar.gz").endswith(f"{name}: cannot be read: Permission denied\n")
    assert refused(own, tmp_path / "out/old.tar.gz").endswith(f"{name}: cannot be read: Permission denied\n")


def test_where_an_archive_cannot_be_written_is_one_line(full: StudyPlace, tmp_path: Path) -> None:
    """A folder, or what is below a file, is no place for an archive; nothing is left there."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()

    assert refused(full, tmp_path / "folder").endswith("/folder: cannot be written: Is a directory\n")
    before = archives.listed(tmp_path)
    said = call("bundle", full.folder, "-o", tmp_path / "file" / "study.tar.gz", "--keep-host")
    assert (said.code, said.err.count("\n"), archives.listed(tmp_path)) == (2, 1, before)


@pytest.mark.parametrize("letters", ["a" * 80, "a" * 81, "a" * 100, "a"], ids=["80", "81", "100", "1"])
def test_any_driver_that_can_be_kept_is_packed(own: StudyPlace, tmp_path: Path, letters: str) -> None:
    """A script whose copy the study keeps, whatever its name, does not keep the study from being packed."""
    script = tmp_path / letters
    script.write_text("#!/bin/sh\n")
    job = opening.job_of(opening.open_study(own), own, "bf16", Split.TRAIN)
    try:
        timing.note_driver(job, finished.hooks().now, script)
    except LedgerError:
        assert len(letters) > 80
        return
    found = archives.members(pack(own, tmp_path / "study.tar.gz"))

    assert f"studies/whole/drivers/{sha256(script.read_bytes())[:12]}-{letters}" in found


@pytest.mark.parametrize(
    ("limit", "value"), [("MAX_FILES", 5), ("MAX_FILE_BYTES", 1000), ("MAX_BYTES", 20_000), ("MAX_RATIO", 2)]
)
def test_what_no_replay_would_take_is_not_packed(
    full: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    """The limits that an archive is held against when it is read hold when it is written, too."""
    monkeypatch.setattr(bundle, limit, value)

    assert refused(full, tmp_path / "study.tar.gz")


@pytest.mark.parametrize("name", ["study.yaml", "table.py", "bf16/ledger.jsonl"])
def test_an_archive_takes_no_file_s_place(own: StudyPlace, name: str) -> None:
    """A file of the study is not overwritten by the archive that would hold it."""
    assert refused(own, own.folder / name).endswith(": is a file of the study; expected another name for the archive\n")
