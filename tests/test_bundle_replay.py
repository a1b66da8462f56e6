"""Replaying an archive: as its folder is replayed, in place, without a trace of where that was."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import archives
import finished
import pytest
from archives import ended, gz
from commands import Said, call
from factories import STUDY_YAML

from studytool import bundle, freeze, opening
from studytool import replay as replaying
from studytool.digest import pretty, sha256
from studytool.errors import FrozenError, StudyError
from studytool.files import read_bytes
from studytool.layout import StudyPlace

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished study that nobody may change, disjoint from an earlier one that is packed along."""
    return archives.full_study(tmp_path_factory.mktemp("full"), "earlier")


@pytest.fixture(scope="module")
def archive(full: StudyPlace) -> Path:
    """Return the archive of the finished study."""
    path = full.root / "study.tar.gz"
    assert call("bundle", full.folder, "-o", path, "--keep-host").code == 0
    return path


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of temporary files, which is the test's own."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def replay(path: Path, temporary: Path, *args: object) -> Said:
    """Return how the replay of an archive ends; it leaves nothing behind and does not say where it was."""
    said = call("replay", path, *args)

    assert list(temporary.iterdir()) == []
    assert str(temporary) not in said.out + said.err
    return said


def lines_of(said: Said) -> list[str]:
    """Return the checks of a replay, without the one that looks at the other studies here, and the sentence."""
    return [line for line in said.out.splitlines() if "unseen hold-out" not in line][:-1]


def test_an_archive_replays_as_its_folder_does(full: StudyPlace, archive: Path, temporary: Path) -> None:
    """All checks of an archive are those of the folder, but that no other study is beside it."""
    said = replay(archive, temporary)
    there = call("replay", full.folder)

    assert (said.code, said.err) == (0, "")
    assert said.out.splitlines()[-1].startswith("holds: ")
    assert lines_of(said) == lines_of(there)
    assert "n/a         bf16 unseen hold-out: no other study is here" in said.out.splitlines()
    assert "ok          bf16 unseen hold-out: 1 other studies here measured none of its cases before" in there.out


def test_an_archive_replays_without_torch_and_pandas(archive: Path, tmp_path: Path) -> None:
    """A reviewer's interpreter in which torch and pandas cannot be imported replays an archive from anywhere."""
    (tmp_path / "temporary").mkdir()
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['pandas'] = None\n"
        f"from studytool.cli import main\nmain(['replay', {str(archive)!r}])"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    environment |= {"TMPDIR": str(tmp_path / "temporary"), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, cwd=tmp_path, env=environment
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.splitlines()[-1].startswith("holds: ")
    assert list((tmp_path / "temporary").iterdir()) == []
    assert str(tmp_path) not in ran.stdout


# what is told of one that does not hold

MEMBERS = [
    "frozen_cases/earlier/MANIFEST.json",
    "frozen_cases/earlier/bf16.train.jsonl",
    "frozen_cases/whole/MANIFEST.json",
    "frozen_cases/whole/bf16.holdout.jsonl",
    "frozen_cases/whole/gate.json",
    "studies/whole/bf16/ledger.jsonl",
    "studies/whole/bf16/lines.txt",
    "studies/whole/bf16/records/holdout-01-001.jsonl",
    "studies/whole/bf16/records/train-01-001.jsonl",
    "studies/whole/bf16/report.md",
    "studies/whole/bf16/score.json",
    "studies/whole/bf16/study.json",
    f"studies/whole/drivers/{sha256(archives.DRIVER)[:12]}-full_study.py",
    "studies/whole/study.yaml",
    "studies/whole/table.py",
]


def repacked(archive: Path, into: Path, changes: dict[str, bytes | None]) -> Path:
    """Return an archive whose members are changed so: other bytes, or None for none at all."""
    found: dict[str, bytes | None] = {**archives.members(archive.read_bytes()), **changes}
    into.write_bytes(gz(ended(archives.of({name: data for name, data in sorted(found.items()) if data is not None}))))
    return into


@pytest.mark.parametrize("name", MEMBERS)
def test_what_is_missing_is_named_relative_to_the_archive(
    archive: Path, tmp_path: Path, temporary: Path, name: str
) -> None:
    """Without a member the replay does not hold, cannot say or is refused, and tells no temporary path."""
    path = repacked(archive, tmp_path / "a", {name: None})
    said = replay(path, temporary)
    assert replay(path, temporary, "--json").code == said.code

    if name == "frozen_cases/earlier/MANIFEST.json":
        assert said.code == 0
        assert "; earlier sha256:" in said.out
        return
    assert said.code in {1, 2, 3}
    assert said.err.count("\n") == (said.code == 2)
    assert Path(name).name in said.out + said.err or "study.yaml" in name


@pytest.mark.parametrize("name", MEMBERS)
def test_what_was_changed_is_named_relative_to_the_archive(
    archive: Path, tmp_path: Path, temporary: Path, name: str
) -> None:
    """With a changed byte in any member the replay does not hold or is refused, and tells no temporary path."""
    data = archives.members(archive.read_bytes())[name]
    changed = data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    said = replay(repacked(archive, tmp_path / "a", {name: changed}), temporary)

    assert said.code in {1, 2}
    assert said.err.count("\n") == (said.code == 2)
    assert name in said.out + said.err


@pytest.mark.parametrize("name", MEMBERS)
def test_noise_in_place_of_a_member_is_told(archive: Path, tmp_path: Path, temporary: Path, name: str) -> None:
    """Bytes that mean nothing in place of a member are told, and no temporary path."""
    said = replay(repacked(archive, tmp_path / "a", {name: b"\xff\x00{\r\n[\xfe\x1b[2J\n"}), temporary)

    assert said.code in {1, 2}
    assert said.err.count("\n") == (said.code == 2)
    assert all(line.isprintable() for line in (said.out + said.err).splitlines())


FILES: dict[str, str] = {
    "a NUL": "a\0.jsonl",
    "a long name": "a" * 300 + ".jsonl",
    "a line": "a\nb.jsonl",
    "an escape": "\x1b[2J.jsonl",
    "a path": "../../../../etc/hostname.jsonl",
    "a folder": ".jsonl",
    "dots": "..jsonl",
}


@pytest.mark.parametrize("file", FILES.values(), ids=FILES.keys())
@pytest.mark.parametrize("study", ["earlier", "whole"])
def test_a_manifest_may_name_anything(archive: Path, tmp_path: Path, temporary: Path, study: str, file: str) -> None:
    """Whatever file a manifest in an archive names, that is a check that fails, on one line."""
    name = f"frozen_cases/{study}/MANIFEST.json"
    manifest = json.loads(archives.members(archive.read_bytes())[name])
    manifest["files"][file] = sha256(b"")
    said = replay(repacked(archive, tmp_path / "a", {name: pretty(manifest)}), temporary)

    assert (said.code, said.err) == (1, "")
    assert all(line.isprintable() for line in said.out.splitlines())


def test_what_is_no_file_s_name_cannot_be_read() -> None:
    """A name with a NUL is an error like any other of a file that cannot be read, of the kind asked for."""
    with pytest.raises(FrozenError, match=r"a\0b: cannot be read: "):
        read_bytes(Path("a\0b"), FrozenError)


def test_what_replay_is_asked_for_and_cannot_be_had_names_the_member(archive: Path, temporary: Path) -> None:
    """An error about the declaration names it as it is in the archive."""
    said = replay(archive, temporary, "--cudnn", "9.27.0.42")

    assert said == (2, "", "studies/whole/study.yaml: engine is simulated; only cudnn has plan lists to predict\n")


# what was posted


def posted(place: StudyPlace) -> str:
    """Return the hash that `freeze` told to post."""
    return f"sha256:{sha256(place.manifest.read_bytes())}"


def test_the_hash_that_was_posted_is_checked(full: StudyPlace, archive: Path, temporary: Path) -> None:
    """With the posted hash the check is ok, of archive and folder; without, it does not apply."""
    told = f"ok               posted beforehand: {posted(full)}"
    without = replay(archive, temporary)

    assert told in replay(archive, temporary, "--expect", posted(full)).out.splitlines()
    assert told in call("replay", full.folder, "--expect", posted(full)).out.splitlines()
    assert f"n/a              posted beforehand: no --expect was given; {posted(full)} agrees" in without.out
    assert without.code == 0


def test_another_hash_than_the_posted_one_fails(full: StudyPlace, archive: Path, temporary: Path) -> None:
    """A study that was frozen anew after its hash was posted does not hold."""
    other = f"sha256:{'0' * 64}"
    said = replay(archive, temporary, "--expect", other)
    failed = [line for line in said.out.splitlines() if line.startswith("FAIL")]

    assert (said.code, said.err) == (1, "")
    assert failed == [f"FAIL             posted beforehand: the manifest is {posted(full)}; posted was {other}"]
    assert said.out.splitlines()[-1].startswith("does not hold: 1 of ")


MALFORMED = ["", "sha256:", "0" * 64, f"sha256:{'0' * 63}", f"sha256:{'0' * 65}", f"sha256:{'A' * 64}"]
MALFORMED += [f"sha256:{'0' * 64}\n", f" sha256:{'0' * 64}", f"SHA256:{'0' * 64}", f"sha256:{'0' * 12}", "frozen whole"]


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_no_hash_is_refused(archive: Path, temporary: Path, text: str) -> None:
    """Anything but sha256: and 64 hexadecimal digits is one line, before anything is read."""
    for path in (archive, archive.parent / "nothing"):
        said = replay(path, temporary, "--expect", text)

        assert said[:2] == (2, "")
        assert said.err.startswith("--expect: found ")
        assert said.err.endswith("; expected sha256: and 64 hexadecimal digits, as `freeze` printed them\n")
        assert said.err.count("\n") == 1


# as JSON


def checks_of(told: dict[str, Any]) -> list[str]:
    """Return the checks of a JSON as the lines that they are without it."""
    return [f"{c['state']:10}  {c['dtype']:5}{c['name']}: {c['figure']}" for c in told["checks"]]


@pytest.mark.parametrize("args", [(), ("--expect", f"sha256:{'0' * 64}")], ids=["holds", "fails"])
def test_the_json_says_the_same(archive: Path, temporary: Path, args: tuple[str, ...]) -> None:
    """As JSON a replay has the same checks, sentence and exit code as without."""
    said = replay(archive, temporary, "--json", *args)
    plain = replay(archive, temporary, *args)
    told = json.loads(said.out)

    assert (said.code, said.err) == (plain.code, "")
    assert [*checks_of(told), told["says"]] == plain.out.splitlines()
    assert (told["exit"], told["planned"]) == (plain.code, [])
    assert set(told) == {"checks", "planned", "says", "exit"}
    assert {tuple(check) for check in told["checks"]} == {("dtype", "name", "state", "figure")}


def test_the_json_of_what_cannot_be_said(archive: Path, tmp_path: Path, temporary: Path) -> None:
    """Where a replay cannot say, its JSON says so, too; where it is refused there is none."""
    path = repacked(archive, tmp_path / "a", {"studies/whole/bf16/report.md": None})
    said = replay(path, temporary, "--json")
    told = json.loads(said.out)

    assert (said.code, told["exit"]) == (3, 3)
    assert told["says"] == replay(path, temporary).out.splitlines()[-1]
    assert replay(repacked(archive, path, {"studies/whole/study.yaml": None}), temporary, "--json").out == ""


def test_the_counts_of_the_sentence() -> None:
    """The sentence counts checks by their state: failed ones first, then those without an answer, then the rest."""
    checks = {state: replaying.Check("", "name", state, "figure") for state in ("ok", "FAIL", "cannot say", "n/a")}
    held = [checks["ok"], checks["ok"], checks["n/a"]]

    assert replaying.conclusion(held) == ("holds: 2 checks are ok, 1 do not apply", 0)
    assert replaying.conclusion([*held, checks["cannot say"]]) == (
        "cannot say: 1 of 4 checks have no answer yet",
        3,
    )
    assert replaying.conclusion([*held, checks["cannot say"], checks["FAIL"]]) == (
        "does not hold: 1 of 5 checks fail",
        1,
    )


# what is left behind


class _BoomError(Exception):
    """An error that nobody expects."""


REFUSALS: dict[str, Callable[[Path], Exception]] = {
    "the system": lambda path: PermissionError(13, "Permission denied", str(path)),
    "this tool": lambda path: StudyError(f"{path}: cannot be used: Permission denied"),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
def test_what_is_refused_is_named_relative_to_the_archive(
    archive: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[[Path], Exception]
) -> None:
    """An error about a file of the archive is one line that does not say where the file was."""

    def refuse(_study: object, place: StudyPlace, *_rest: object) -> Any:
        raise refusal(place.table)

    monkeypatch.setattr(replaying, "replay", refuse)

    assert replay(archive, temporary) == (2, "", "studies/whole/table.py: cannot be used: Permission denied\n")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), _BoomError(), OSError(28, "No space left")], ids=repr)
def test_nothing_is_left_when_a_replay_is_stopped(
    archive: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """After Ctrl-C, a defect or an error of the system the temporary folder, which was there and private, is gone."""
    seen: list[tuple[bool, int]] = []

    def stop(_study: object, place: StudyPlace, *_rest: object) -> Any:
        seen.append((place.table.is_file() and place.root.parent == temporary, place.root.stat().st_mode & 0o777))
        raise error

    monkeypatch.setattr(replaying, "replay", stop)
    if isinstance(error, _BoomError):
        with pytest.raises(_BoomError):
            call("replay", archive)
    else:
        said = call("replay", archive)
        assert (said.code, said.out) == (130 if isinstance(error, KeyboardInterrupt) else 2, "")
        assert said.err.count("\n") == 1
        assert str(temporary) not in said.err

    assert seen == [(True, 0o700)]
    assert list(temporary.iterdir()) == []


def test_nothing_is_left_when_unpacking_is_stopped(
    archive: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while an archive is unpacked leaves nothing."""

    def stop(_archive: Path, into: Path) -> StudyPlace:
        (into / "half").touch()
        raise KeyboardInterrupt

    monkeypatch.setattr(bundle, "unpack", stop)

    assert call("replay", archive).code == 130
    assert list(temporary.iterdir()) == []


def test_an_archive_of_any_name_is_told_on_one_line(archive: Path, tmp_path: Path, temporary: Path) -> None:
    """An archive may have any name that a file may have; an error that names it is one line."""
    for letters in ("line\nbreak", "esc\x1b[2J", os.fsdecode(b"not \xff UTF-8"), "study.yaml.tar.gz", "-x"):
        path = tmp_path / letters
        shutil.copy(archive, path)
        assert replay(path, temporary).code == 0
        path.write_bytes(b"no archive")
        said = replay(path, temporary)

        assert said[:2] == (2, "")
        assert said.err.rstrip("\n").isprintable()


# earlier studies


def disjoint_of(place: StudyPlace) -> tuple[str, str]:
    """Return what the replay of a folder says of what its hold-out is disjoint from."""
    checks = replaying.replay(opening.open_study(place), place)
    (found,) = [check for check in checks if check.name == "disjoint"]
    return found.state, found.figure


@pytest.fixture
def pair(tmp_path: Path) -> StudyPlace:
    """Return a frozen study whose hold-out was held against an earlier one that is beside it."""
    earlier = archives.earlier_study(tmp_path, "earlier")
    place = finished.declare(tmp_path)
    freeze.freeze(opening.open_study(place), place, [earlier.manifest], "c0ffee")
    return place


def test_an_earlier_study_that_is_here_is_checked_again(pair: StudyPlace, full: StudyPlace) -> None:
    """With the earlier study's cases beside it, the hold-out is held against them, and the study is named."""
    assert disjoint_of(pair) == ("ok", "train, hold-out and routing share no case; nor with earlier")
    assert disjoint_of(full) == disjoint_of(pair)


def test_an_earlier_study_that_is_not_here_is_told(pair: StudyPlace) -> None:
    """Without the earlier study's cases it is said which ones they were, and that they are not here."""
    hashed = sha256(StudyPlace(pair.root, "earlier").manifest.read_bytes())
    shutil.rmtree(pair.root / "frozen_cases" / "earlier")
    told = f"train, hold-out and routing share no case; earlier sha256:{hashed[:12]} is not here"

    assert disjoint_of(pair) == ("ok", told)


def test_an_earlier_study_that_was_frozen_again_is_not_the_one(pair: StudyPlace) -> None:
    """An earlier study with other cases than those of before fails the check, though none of them is shared."""
    before = sha256(StudyPlace(pair.root, "earlier").manifest.read_bytes())
    again = archives.earlier_study(pair.root, "earlier", STUDY_YAML.replace("[80, 144]", "[88, 144]"))
    after = sha256(again.manifest.read_bytes())

    assert disjoint_of(pair) == (
        "FAIL",
        f"frozen_cases/earlier/MANIFEST.json: sha256 {after}; held against was {before}",
    )


def test_an_earlier_study_that_took_a_hold_out_case_is_found(pair: StudyPlace) -> None:
    """An earlier study that was frozen again and has a hold-out case now fails the check, which names the case."""
    archives.earlier_study(pair.root, "earlier", archives.OVERLAPPING)
    state, figure = disjoint_of(pair)

    assert state == "FAIL"
    assert figure.endswith(": 1 holdout cases are in earlier, such as sdpa_fwd bf16 b2 h2 d64 S80")


def test_an_earlier_study_whose_cases_were_changed_is_found(pair: StudyPlace) -> None:
    """A changed file of frozen cases of the earlier study fails the check, with its hash and that of its manifest."""
    path = pair.root / "frozen_cases/earlier/bf16.train.jsonl"
    before = sha256(path.read_bytes())
    path.write_bytes(path.read_bytes().replace(b"512", b"520"))
    state, figure = disjoint_of(pair)

    assert state == "FAIL"
    assert figure.endswith(f"bf16.train.jsonl: sha256 {sha256(path.read_bytes())}; its manifest has {before}")


@pytest.mark.parametrize("name", ["bf16.train.jsonl", "MANIFEST.json"])
def test_an_earlier_study_s_file_is_named_relative_to_the_root(pair: StudyPlace, name: str) -> None:
    """A file of an earlier study that is not as it was is named like those of the study itself."""
    path = pair.root / "frozen_cases/earlier" / name
    path.write_bytes(b"not as it was\n")

    assert disjoint_of(pair)[1].startswith(f"frozen_cases/earlier/{name}:")


def test_an_earlier_study_of_another_name_is_not_the_one(pair: StudyPlace) -> None:
    """The manifest in the earlier study's place has to be of that name."""
    path = pair.root / "frozen_cases/earlier/MANIFEST.json"
    path.write_bytes(path.read_bytes().replace(b'"name": "earlier"', b'"name": "another"'))

    assert disjoint_of(pair)[0] == "FAIL"


F16_GRID = "      - {dtype: f16, s_kv: [96, 192, 384, 768, 1536], h_q: 8, d_qk: 64, mask: tl, window: s_kv // 2}\n"
HOLDOUT = "s_kv: [80, 320, 640, 1280], h_q: 2, d_qk: 64, b: 2"


def test_splits_that_share_a_case_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study that was frozen by hand, past the check, with a train case in the hold-out fails the check."""
    text = finished.WHOLE_YAML.replace(HOLDOUT, "s_kv: 64, h_q: 4, d_qk: 64")
    text = text.replace("    differs: [s_kv, h_q]\n", "").replace("dtypes: [bf16, f16]", "dtypes: [bf16]")
    place = finished.declare(tmp_path, text.replace(F16_GRID, ""))
    monkeypatch.setattr(freeze, "_check_disjoint", lambda _study, _cases: None)
    freeze.freeze(opening.open_study(place), place, [], "c0ffee")

    assert disjoint_of(place) == ("FAIL", "1 holdout cases are train cases, such as sdpa_fwd bf16 b1 h4 d64 S64")


PATHS = ["..", ".", "", "/etc", "../../etc", "a/b", "a\\b", "a\0b", "A", "1a", "a-b", "a" * 65, "a\n", "é", "_a", "a b"]


@pytest.mark.parametrize("name", PATHS, ids=repr)
@pytest.mark.parametrize("own", [True, False], ids=["own", "earlier"])
def test_a_manifest_has_names_of_studies(pair: StudyPlace, name: str, own: bool) -> None:
    """A manifest whose own name, or that of an earlier study, is a path or anything else is none."""
    found = json.loads(pair.manifest.read_bytes())
    changed = {"name": name} if own else {"disjoint_from": [{"name": name, "sha256": "0" * 64}]}
    data = pretty({**found, **changed})
    with pytest.raises(FrozenError) as caught:
        freeze.manifest_of(data, "shown")
    pair.manifest.write_bytes(data)
    said = call("replay", pair.folder)

    assert str(caught.value) == f"shown:1: not a manifest: found study {name!r}; expected a study's name"
    assert said.code == 1
    assert "FAIL             frozen files: frozen_cases/whole/MANIFEST.json:1: not a manifest: " in said.out


def test_a_manifest_with_names_of_studies_is_one(pair: StudyPlace) -> None:
    """Names as studies have them are taken, up to 64 letters."""
    found = json.loads(pair.manifest.read_bytes())
    for name in ("a", "a" * 64, "sdpa_bwd_sm80"):
        earlier = [{"name": name, "sha256": "0" * 64}]
        manifest = freeze.manifest_of(pretty({**found, "name": name, "disjoint_from": earlier}), "shown")

        assert (manifest.name, manifest.disjoint_from[0].name) == (name, name)


def test_a_replay_reads_no_study_that_a_manifest_leads_to(archive: Path, tmp_path: Path, temporary: Path) -> None:
    """An archive whose manifest names a path as an earlier study is not followed there."""
    name = "frozen_cases/whole/MANIFEST.json"
    manifest = json.loads(archives.members(archive.read_bytes())[name])
    manifest["disjoint_from"] = [{"name": f"../../../{tmp_path.name}", "sha256": "0" * 64}]
    (tmp_path / "MANIFEST.json").write_text("secret")
    said = replay(repacked(archive, tmp_path / "a", {name: pretty(manifest)}), temporary)

    assert (said.code, said.err) == (1, "")
    assert "not a manifest: found study '../../../" in said.out
    assert "secret" not in said.out
