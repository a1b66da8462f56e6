"""Files that are missing, empty, folders or unreadable; paths in any letters: it works, or there is one line."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import benches
import pytest
from commands import Said, call, tiny, tree
from test_cli_bad_input import process

from studytool.layout import StudyPlace

NAMES = [
    "studies/tiny/study.yaml",
    "studies/tiny/table.py",
    "studies/tiny/bf16/study.json",
    "studies/tiny/bf16/lines.txt",
    "studies/tiny/bf16/score.json",
    "studies/tiny/bf16/ledger.jsonl",
    "studies/tiny/bf16/records/holdout-01-001.jsonl",
    "frozen_cases/tiny/MANIFEST.json",
    "frozen_cases/tiny/gate.json",
    "frozen_cases/tiny/bf16.train.jsonl",
    "frozen_cases/tiny",
    "studies/tiny/bf16/records",
    "studies/tiny/bf16",
]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return the small study, run to its report, that nobody may change."""
    place = tiny(tmp_path_factory.mktemp("small"))
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        call("run", place.folder, "--dtype", "bf16")
    return place


def remove(path: Path) -> None:
    """Take a file or folder away."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_folder(path: Path) -> None:
    """Put a folder where a file is."""
    remove(path)
    path.mkdir()


def make_empty(path: Path) -> None:
    """Put an empty file where a file or a folder is."""
    remove(path)
    path.touch()


def make_noise(path: Path) -> None:
    """Put bytes that mean nothing where a file or a folder is."""
    remove(path)
    path.write_bytes(b"\xff\x00{\r\n[\xfe\n")


def commands_of(place: StudyPlace) -> list[list[object]]:
    """Return every command that reads a study, those that write the most last."""
    results = place.results("bf16")
    return [
        ["freeze", place.folder, "--check"],
        ["gen", results.study_json, "--check", results.lines],
        ["report", place.folder, "--dtype", "bf16"],
        ["replay", place.folder],
        ["apply", results.lines, "--table", place.table],
        ["run", place.folder, "--dtype", "bf16"],
    ]


@pytest.mark.parametrize("spoil", [remove, make_folder, make_empty, make_noise])
@pytest.mark.parametrize("name", NAMES)
def test_no_command_has_a_traceback(
    small: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, spoil: Callable[[Path], None]
) -> None:
    """Whatever stands in place of a file, each command ends with a known code, and an error is one line."""
    benches.inline(monkeypatch)
    shutil.copytree(small.root, tmp_path, dirs_exist_ok=True)
    place = StudyPlace(tmp_path, "tiny")
    spoil(tmp_path / name)
    for command in commands_of(place):
        said = call(*command)

        assert said.code in {0, 1, 2, 3}, command
        if said.code == 2:
            assert re.fullmatch(r"[^\n]+\n", said.err.split("lines\n")[-1]), command
        if said.code in {1, 3} and command[0] != "replay":
            assert re.fullmatch(r".+\n", said.err.split("removed\n")[-1].split("lines\n")[-1]), command


@pytest.mark.parametrize("name", NAMES)
def test_an_unreadable_file_is_one_line(small: StudyPlace, tmp_path: Path, name: str) -> None:
    """A file that may not be read is named by each command that needs it, without a traceback."""
    shutil.copytree(small.root, tmp_path, dirs_exist_ok=True)
    path = tmp_path / name
    path.chmod(0)
    if os.access(path, os.R_OK):
        pytest.skip("this user may read everything")
    said = [call(*command) for command in commands_of(StudyPlace(tmp_path, "tiny"))]
    path.chmod(0o755)

    assert {one.code for one in said} - {0}
    for one in said:
        assert one.code in {0, 1, 2, 3}
        assert one.code != 2 or re.fullmatch(r"[^\n]+\n", one.err.split("lines\n")[-1])


def test_what_the_system_refuses_is_one_line(small: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the system that names a file ends a command with one line; one that names none is a defect."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_file", refuse)

    assert call("freeze", small.folder, "--check") == (2, "", f"{small.manifest}: cannot be used: Permission denied\n")


NO_ENTRY = "no class gets an entry; --explain says why\n"
LETTERS = ["with space", "Ünïcödé ∞ и", "\u0131 \u0130 ß", "-dash", "a'b\"c", "$HOME;*"]


@pytest.mark.parametrize("letters", LETTERS)
def test_any_letters_in_a_path_work(small: StudyPlace, tmp_path: Path, letters: str) -> None:
    """A study below a folder of any name replays, and is told by its name."""
    root = tmp_path / letters
    shutil.copytree(small.root, root)
    place = StudyPlace(root, "tiny")

    assert call("replay", place.folder).code == 0
    assert call("report", place.folder, "--dtype", "bf16") == (
        0,
        f"{place.results('bf16').report}\n{place.results('bf16').page}\n",
        "",
    )
    assert call("gen", place.results("bf16").study_json) == (0, place.results("bf16").lines.read_text(), NO_ENTRY)


@pytest.mark.parametrize(
    ("locale", "folder"),
    [("C", "Ünïcödé İ".encode()), ("tr_TR.UTF-8", "Ünïcödé İ".encode()), ("C.UTF-8", b"not \xff UTF-8")],
    ids=repr,
)
def test_any_locale_works(small: StudyPlace, tmp_path: Path, locale: str, folder: bytes) -> None:
    """In any locale a path in any bytes gives the same result, and an error that is one line."""
    root = tmp_path / os.fsdecode(folder)
    shutil.copytree(small.root, root)
    place = StudyPlace(root, "tiny")
    environment = {"LC_ALL": locale, "PYTHONIOENCODING": "", "PYTHONUTF8": ""}
    call("report", place.folder, "--dtype", "bf16")
    before = tree(root)
    report = process("report", place.folder, "--dtype", "bf16", **environment)
    refused = process("freeze", place.folder, **environment)

    assert (report.code, report.err) == (0, "")
    assert re.search(r"/studies/tiny/bf16/report\.md\n.+/studies/tiny/bf16/report\.html\n$", report.out)
    assert refused[:2] == (2, "")
    assert re.fullmatch(r"[^\n]+/frozen_cases/tiny: is there already; frozen cases are never rewritten\n", refused.err)
    assert tree(root) == before


def test_the_same_bytes_in_any_locale(small: StudyPlace) -> None:
    """The generator prints the same bytes in any locale."""
    said = {process("gen", small.results("bf16").study_json, LC_ALL=name) for name in ("C", "tr_TR.UTF-8", "C.UTF-8")}

    assert said == {Said(0, small.results("bf16").lines.read_text(), NO_ENTRY)}
