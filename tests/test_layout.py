"""Where the files of a study are."""

from pathlib import Path

import pytest

from studytool.errors import StudyFileError
from studytool.layout import StudyPlace, find_study, place_of
from studytool.model import Split


def test_places_of_a_study() -> None:
    """Every file of a study stands where the design says."""
    place = StudyPlace(Path("/r"), "tiny")
    found = [place.study_yaml, place.table, place.manifest, place.gate, place.cases("bf16", Split.HOLDOUT)]

    assert [path.as_posix() for path in found] == [
        "/r/studies/tiny/study.yaml",
        "/r/studies/tiny/table.py",
        "/r/frozen_cases/tiny/MANIFEST.json",
        "/r/frozen_cases/tiny/gate.json",
        "/r/frozen_cases/tiny/bf16.holdout.jsonl",
    ]


def test_places_of_results() -> None:
    """Every result of a dtype stands in that dtype's folder."""
    results = StudyPlace(Path("/r"), "tiny").results("f16")
    found = [results.study_json, results.lines, results.score, results.report, results.ledger]

    assert [path.relative_to("/r/studies/tiny/f16").as_posix() for path in found] == [
        "study.json",
        "lines.txt",
        "score.json",
        "report.md",
        "ledger.jsonl",
    ]


def test_sessions_sort_as_they_were_made() -> None:
    """The names of records files sort by split, attempt and session, beyond nine as well."""
    results = StudyPlace(Path("/r"), "tiny").results("f16")
    found = [results.session(Split.TRAIN, *number) for number in ((1, 1), (1, 2), (1, 10), (2, 1), (10, 1))]

    assert found[0] == Path("/r/studies/tiny/f16/records/train-01-001.jsonl")
    assert sorted(found) == found


@pytest.mark.parametrize(
    "path",
    [
        "/r/studies/tiny",
        "/r/studies/tiny/",
        "/r/studies/tiny/study.yaml",
        "/r/studies/other/../tiny",
        "/r/studies/other/../tiny/study.yaml",
    ],
)
def test_place_of_folder_or_declaration(path: str) -> None:
    """A study is named by its folder or by its study.yaml, whichever way the path goes there."""
    assert place_of(Path(path)) == StudyPlace(Path("/r"), "tiny")


@pytest.mark.parametrize("path", ["/r/tiny", "/r/studies", "/r/studies/tiny/bf16", "/study.yaml"])
def test_place_outside_studies_is_an_error(path: str) -> None:
    """A path that is not a folder right below studies is no study."""
    with pytest.raises(StudyFileError) as caught:
        place_of(Path(path))

    assert str(caught.value) == f"{path}: found outside a studies folder; expected ROOT/studies/NAME/study.yaml"


@pytest.mark.parametrize("start", ["studies/tiny", "studies/tiny/bf16/records", "studies/tiny/bf16/.."])
def test_find_from_a_folder_below(tmp_path: Path, start: str) -> None:
    """The study is found from its folder and from any folder below it."""
    (tmp_path / "studies/tiny/bf16/records").mkdir(parents=True)
    (tmp_path / "studies/tiny/study.yaml").write_text("")

    assert find_study(tmp_path / start) == StudyPlace(tmp_path, "tiny")


def test_find_from_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path is taken from the folder that one stands in."""
    (tmp_path / "studies/tiny").mkdir(parents=True)
    (tmp_path / "studies/tiny/study.yaml").write_text("")
    monkeypatch.chdir(tmp_path / "studies/tiny")

    assert find_study(Path()) == place_of(Path()) == place_of(Path("study.yaml")) == StudyPlace(tmp_path, "tiny")


def test_find_needs_a_declaration(tmp_path: Path) -> None:
    """A folder below studies that has no study.yaml is no study."""
    (tmp_path / "studies/tiny").mkdir(parents=True)

    with pytest.raises(StudyFileError, match=r"^no study here; expected a STUDY argument or a folder below"):
        find_study(tmp_path / "studies/tiny")
