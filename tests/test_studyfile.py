"""study.yaml becomes a Study, or one line that says where and what is wrong."""

from pathlib import Path

import msgspec
import pytest
from bad_studies import BAD
from factories import STUDY_YAML, make_study
from hypothesis import given
from hypothesis import strategies as st

from studytool import grid, studyfile, yamlnode
from studytool.engine_terms import SIMULATED_NUMBERS
from studytool.errors import StudyFileError
from studytool.metrics import Condition
from studytool.model import Decide, Protocol, Split, Threshold


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD.keys())
def test_bad_study_is_one_line(old: str, new: str, message: str) -> None:
    """Each fault of study.yaml is one line: file, line, what was found and what was expected."""
    assert STUDY_YAML.count(old) == 1
    with pytest.raises(StudyFileError) as caught:
        grid.expand(make_study(STUDY_YAML.replace(old, new)))

    assert str(caught.value) == f"study.yaml:{message}"
    assert len(str(caught.value).splitlines()) == 1


def test_not_utf8_names_the_line() -> None:
    """Bytes that are not UTF-8 are an error that names their line."""
    data = STUDY_YAML.encode().replace(b"library", b"libr\xe4ry")

    with pytest.raises(StudyFileError, match=r"^s\.yaml:6: not UTF-8$"):
        studyfile.parse(data, "s.yaml", "tiny")


@pytest.mark.parametrize("data", [b"", b"# nothing but a comment\n"])
def test_empty_file_is_an_error(data: bytes) -> None:
    """A file without a document is no study."""
    with pytest.raises(StudyFileError, match=r"^s\.yaml:1: found nothing; expected a study$"):
        studyfile.parse(data, "s.yaml", "tiny")


@pytest.mark.parametrize(("data", "found"), [(b"7", "7"), (b"text", "'text'"), (b"[1]", "a list")])
def test_no_mapping_is_an_error(data: bytes, found: str) -> None:
    """A document that is not a mapping is no study."""
    with pytest.raises(StudyFileError) as caught:
        studyfile.parse(data, "s.yaml", "tiny")

    assert str(caught.value) == f"s.yaml:1: found {found}; expected a mapping"


@given(st.binary(max_size=60) | st.text("{}[]:,-&*!?|>'\"%@#\n\t a1", max_size=60).map(str.encode))
def test_any_bytes_are_one_line(data: bytes) -> None:
    """Whatever bytes stand in study.yaml, the error is one line that begins with file and line."""
    with pytest.raises(StudyFileError, match=r"\As\.yaml:[1-9]\d*: .+\Z") as caught:
        studyfile.parse(data, "s.yaml", "tiny")

    assert len(str(caught.value).splitlines()) == 1


def test_small_study_is_read_whole() -> None:
    """Every part of study.yaml arrives in the study, ratios in parts per million."""
    study = make_study()

    assert (study.path, study.name, study.engine, study.row, study.base) == (
        "study.yaml",
        "tiny",
        "simulated",
        "open_engine",
        "library",
    )
    assert (study.cc, study.board, study.ops, study.dtypes) == ("host", "any", ("sdpa_fwd",), ("bf16",))
    assert study.question == "Which engine leads?"
    assert study.class_key == ("op", "dtype", "mask")
    assert study.protocol == Protocol(repeats=3, blocks=8)
    assert study.decide == Decide(margin_ppm=50_000, thresholds=(Threshold("s_kv", "from"),))
    assert study.gate == (
        Condition("slower_beyond_noise", "==", 0),
        Condition("auto_over_default_geomean", "<=", 1_020_000),
    )
    assert study.splits[Split.HOLDOUT].differs == ("s_kv", "d_qk")
    assert study.splits[Split.TRAIN].line == 13
    assert [grid.line for grid in study.splits[Split.TRAIN].grids] == [14, 15]


def test_optional_parts_have_defaults() -> None:
    """Device, protocol, decide and routing may be left out."""
    text = STUDY_YAML.replace("device: {cc: host, board: any}\n", "").replace("protocol: {repeats: 3, blocks: 8}\n", "")
    text = text.replace("decide: {margin: 0.05, thresholds: [from s_kv]}\n", "")
    text = text.replace(text[text.index("  routing:") : text.index("gate:")], "")
    study = make_study(text)

    assert (study.cc, study.board, study.protocol, study.decide) == ("host", "any", Protocol(), Decide())
    assert list(study.splits) == [Split.TRAIN, Split.HOLDOUT]
    assert study.guards == ()


def test_simulated_device_is_read() -> None:
    """A simulated device has costs, faults where there are any, and plain numbers with defaults."""
    study = make_study(STUDY_YAML.replace("{backend_ns", "{noise_ppm: 300, crashed: s_kv == 64, backend_ns"))

    assert study.simulated == {
        "backend_ns": "s_kv * 1000",
        "frost_ns": "s_kv * 500 + 64000",
        "crashed": "s_kv == 64",
        **SIMULATED_NUMBERS,
        "noise_ppm": 300,
    }


def test_digest_is_that_of_the_bytes() -> None:
    """A comment changes the digest of a study, though not what it asks."""
    plain, commented = make_study(), make_study(STUDY_YAML + "# why\n")

    assert commented.sha256 != plain.sha256
    assert msgspec.structs.replace(commented, sha256=plain.sha256) == plain


def test_range_holds_its_end() -> None:
    """A range goes from its first value to its last, both included where the step meets it."""
    study = make_study(STUDY_YAML.replace("[96, 160]", "{from: 96, to: 160, step: 32}"))

    assert dict(study.splits[Split.TRAIN].grids[1].axes)["s_kv"] == (96, 128, 160)


def test_read_takes_the_name_of_the_folder(tmp_path: Path) -> None:
    """A study is read from a file whose folder bears its name, and from no other."""
    for name in ("tiny", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "study.yaml").write_text(STUDY_YAML)

    assert studyfile.read(tmp_path / "tiny" / "study.yaml", "study.yaml") == make_study()
    with pytest.raises(StudyFileError, match=r"^x:2: name: found tiny; expected the folder's name, other$"):
        studyfile.read(tmp_path / "other" / "study.yaml", "x")


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    """A study.yaml that is not there is an error that names it."""
    with pytest.raises(StudyFileError, match=r"tiny/study\.yaml: cannot be read: No such file or directory$"):
        studyfile.read(tmp_path / "tiny" / "study.yaml", "study.yaml")


@given(st.integers(0, 10**12))
def test_decimals_are_exact(ppm: int) -> None:
    """A decimal with six places is read back as the very number of parts per million."""
    text = f"{ppm // 10**6}.{ppm % 10**6:06d}"

    assert yamlnode.decimal_ppm(text, 0, 10**12) == ppm


@pytest.mark.parametrize(
    ("text", "ppm"), [("1", 10**6), ("0.05", 50_000), (".5", 500_000), ("1.", 10**6), ("2.5e-1", 250_000), ("-0", 0)]
)
def test_decimals_by_example(text: str, ppm: int) -> None:
    """Decimals are taken in each way in which YAML writes them."""
    assert yamlnode.decimal_ppm(text, 0, 10**6) == ppm


@pytest.mark.parametrize("text", ["0.999999", "2.000001"])
def test_decimal_bounds_are_exact(text: str) -> None:
    """A millionth beyond a bound is refused, and the bounds themselves are not."""
    with pytest.raises(ValueError, match=f"^found {text}; expected 1 to 2$"):
        yamlnode.decimal_ppm(text, 10**6, 2 * 10**6)

    assert [yamlnode.decimal_ppm(bound, 10**6, 2 * 10**6) for bound in ("1", "2")] == [10**6, 2 * 10**6]
