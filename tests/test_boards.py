"""Boards as files: those that come with the package, what a device says of itself, and files that are no board."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from studytool import model
from studytool.errors import StudyError
from studytool.planning import boards
from studytool.planning.boards import FIELDS, FOLDER, SOURCES, Board

KNOWN = {
    "a100-pcie-40gb": ("8.0", 108, "NVIDIA A100-PCIE-40GB", 40),
    "a100-sxm4-40gb": ("8.0", 108, "NVIDIA A100-SXM4-40GB", 40),
    "a100-sxm4-80gb": ("8.0", 108, "NVIDIA A100-SXM4-80GB", 80),
    "b200": ("10.0", 148, "NVIDIA B200", 180),
    "h100-sxm": ("9.0", 132, "NVIDIA H100 80GB HBM3", 80),
    "h200": ("9.0", 132, "NVIDIA H200", 141),
    "rtx-pro-6000-blackwell": ("12.0", 188, "NVIDIA RTX PRO 6000 Blackwell", 96),
}
"""By name: compute capability, SMs, how the driver calls it (or begins to), memory in GB by the data sheet."""

EACH = pytest.mark.parametrize("name", boards.names())
A100 = boards.load("a100-sxm4-40gb")


def test_the_boards_that_come_with_the_package_are_those_that_people_rent() -> None:
    """At least these seven are there, and each file is a board."""
    assert KNOWN.keys() <= set(boards.names())
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.json" for name in boards.names()}


@pytest.mark.parametrize("name", KNOWN)
def test_a_board_is_what_its_maker_says(name: str) -> None:
    """Compute capability, SM count, the driver's name and the memory are the published ones."""
    cc, sm_count, device_name, memory_gb = KNOWN[name]
    board = boards.load(name)
    memory = board.fields["totalGlobalMem"].value

    assert (board.name, board.cc, board.sm_count) == (name, cc, sm_count)
    assert board.device_name.startswith(device_name)
    assert isinstance(memory, int)
    assert 0.97 * memory_gb * 10**9 <= memory <= 1.08 * memory_gb * 10**9


@EACH
def test_every_field_has_its_source(name: str) -> None:
    """A board has each field that cuDNN asks for, each with one of the sources, and not all are neutral."""
    board = boards.load(name)

    assert FIELDS.keys() <= board.fields.keys()
    assert {field.source for field in board.fields.values()} <= set(SOURCES)
    assert board.fields["multiProcessorCount"].source != "neutral"
    assert board.fields["deviceVer"].source != "neutral"


@EACH
def test_a_board_is_written_as_it_was_read(name: str, tmp_path: Path) -> None:
    """A file that is read and written again has the same bytes, and reads the same."""
    path = FOLDER / f"{name}.json"
    board = boards.read(path)
    again = tmp_path / path.name
    again.write_text(boards.text(board), encoding="utf-8")

    assert boards.text(board).encode() == path.read_bytes()
    assert boards.read(again) == board == boards.load(name)


@EACH
def test_the_description_is_plain_json_of_all_fields(name: str) -> None:
    """What cuDNN is given has every field's value, sorted, integers for flags and lists for sizes."""
    board = boards.load(name)
    described = json.loads(board.description())

    assert [*described] == sorted(board.fields)
    assert described["maxBlockSize"] == [1024, 1024, 64]
    assert all(type(value) in {int, str, list} for value in described.values())


@EACH
def test_a_board_is_found_by_the_name_that_a_driver_gives_it(name: str) -> None:
    """The name in a record's fingerprint leads to the board."""
    assert boards.of_device_name(boards.load(name).device_name) == boards.load(name)


@pytest.mark.parametrize("name", ["", "NVIDIA A100", "nvidia h200", "AMD Instinct MI300X", "h200"])
def test_no_board_is_guessed(name: str) -> None:
    """A name that is only near to one of the boards' leads to none."""
    assert boards.of_device_name(name) is None


@pytest.mark.parametrize(
    ("version", "cc"), [(750, "7.5"), (800, "8.0"), (890, "8.9"), (1000, "10.0"), (1030, "10.3"), (1210, "12.1")]
)
def test_the_compute_capability_is_read_from_the_number(version: int, cc: str) -> None:
    """Hundreds are the major version, tens the minor one."""
    fields = {**A100.fields, "deviceVer": msgspec.structs.replace(A100.fields["deviceVer"], value=version)}

    assert msgspec.structs.replace(A100, fields=fields).cc == cc


def test_a_device_s_own_description_is_a_board(tmp_path: Path) -> None:
    """Flags that a device tells as true and false are 1 and 0, lists are sizes, and the source is the device."""
    said = json.loads(A100.description()) | {"isTccDriver": False, "supportCoopLaunch": True}
    board = boards.from_device("here", json.dumps(dict(reversed(said.items()))))
    path = tmp_path / "here.json"
    path.write_text(boards.text(board), encoding="utf-8")

    assert (board.schema, board.name) == (model.SCHEMA, "here")
    assert {field.source for field in board.fields.values()} == {"read from device"}
    assert {name: field.value for name, field in board.fields.items()} == {
        name: field.value for name, field in A100.fields.items()
    }
    assert [type(board.fields[name].value) for name in ("isTccDriver", "maxGridSize")] == [int, tuple]
    assert boards.load(str(path)) == board
    assert re.findall(r'^  "(\w+)"', boards.text(board), re.MULTILINE) == sorted(board.fields)


Change = Callable[[dict[str, Any]], object]


def drop(name: str) -> Change:
    """Return what takes a field away."""
    return lambda board: board["fields"].pop(name)


def put(name: str, **members: Any) -> Change:
    """Return what changes members of a field."""
    return lambda board: board["fields"][name].update(members)


BAD: dict[str, tuple[Change, str]] = {
    "missing field": (drop("smCountOrigin"), "field smCountOrigin is missing"),
    "text for a number": (put("warpSize", value="32"), "field warpSize is '32'; expected int"),
    "number for a text": (put("deviceName", value=5), "field deviceName is 5; expected str"),
    "number for sizes": (put("maxGridSize", value=5), "field maxGridSize is 5; expected tuple"),
    "sizes for a number": (put("warpSize", value=[32]), "field warpSize is (32,); expected int"),
    "unknown source": (
        put("warpSize", source="hearsay"),
        "field warpSize has source 'hearsay'; expected one of read from device, data sheet, neutral",
    ),
    "schema 2": (lambda board: board.update(schema=2), "schema 2; this version reads 1"),
    "no schema": (lambda board: board.pop("schema"), "not a board: Object missing required field `schema`"),
    "unknown key": (lambda board: board.update(color="green"), "not a board: Object contains unknown field `color`"),
    "unknown key of a field": (
        put("warpSize", unit="threads"),
        "not a board: Object contains unknown field `unit` - at `$.fields[...]`",
    ),
    "no source": (
        lambda board: board["fields"]["warpSize"].pop("source"),
        "not a board: Object missing required field `source` - at `$.fields[...]`",
    ),
    "true for a number": (
        put("isTccDriver", value=True),
        "not a board: Expected `int | str | array`, got `bool` - at `$.fields[...].value`",
    ),
    "a fraction": (
        put("warpSize", value=32.5),
        "not a board: Expected `int | str | array`, got `float` - at `$.fields[...].value`",
    ),
    "texts for sizes": (
        put("maxGridSize", value=["1"]),
        "not a board: Expected `int`, got `str` - at `$.fields[...].value[0]`",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_board_is_one_line(tmp_path: Path, change: Change, message: str) -> None:
    """A file that is no board is refused with the file and what is wrong in it."""
    raw = json.loads((FOLDER / "h200.json").read_bytes())
    change(raw)
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(raw))

    with pytest.raises(StudyError, match=rf"\A{re.escape(f'{path}: {message}')}\Z"):
        boards.load(str(path))


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"[" * 100_000, b"null"])
def test_a_file_that_is_not_json_of_a_board_is_one_line(tmp_path: Path, data: bytes) -> None:
    """Whatever else a file holds, the error is one line that begins with the file."""
    path = tmp_path / "bad.json"
    path.write_bytes(data)

    with pytest.raises(StudyError, match=rf"\A{re.escape(str(path))}: not a board: [^\n]+\Z"):
        boards.load(str(path))


def test_a_folder_and_a_missing_file_are_one_line(tmp_path: Path) -> None:
    """What cannot be read as a file is told in the system's words."""
    (tmp_path / "folder.json").mkdir()

    for name, words in (("folder", "Is a directory"), ("none", "No such file or directory")):
        path = tmp_path / f"{name}.json"
        with pytest.raises(StudyError, match=rf"\A{re.escape(str(path))}: cannot be read: {words}\Z"):
            boards.load(str(path))


@pytest.mark.parametrize("name", ["a100", "H200", "h200.yaml", "", "../boards/h200"])
def test_an_unknown_name_lists_the_names(name: str) -> None:
    """A name that is no board's is told with all names that are."""
    expected = f"--board: found {name}; expected {', '.join(sorted(boards.names()))}, or a file NAME.json"

    with pytest.raises(StudyError, match=rf"\A{re.escape(expected)}\Z"):
        boards.load(name)


def test_a_board_of_the_package_comes_before_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the current folder takes the place of a board only by its whole name, suffix and all."""
    monkeypatch.chdir(tmp_path)
    other = Board(schema=1, name="h200", fields={**A100.fields})
    Path("h200.json").write_text(boards.text(other), encoding="utf-8")

    assert boards.load("h200").cc == "9.0"
    assert boards.load("h200.json") == other
