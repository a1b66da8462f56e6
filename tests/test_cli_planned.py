"""Planning within other commands: freeze --plan, doctor --save-board, and what replay says of plans."""

import json
import re
from pathlib import Path
from typing import Any

import finished
import pytest
from commands import call, tiny, tree
from controls import CUDNN_YAML, StandIn, as_seen, both, listed, seen_study, stand_in

from studytool import predictions
from studytool.layout import StudyPlace
from studytool.model import Plan
from studytool.planning import boards, libraries

A100 = boards.load("a100-sxm4-40gb")


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> StudyPlace:
    """Return a cuDNN study that is declared and not frozen."""
    return finished.declare(tmp_path, CUDNN_YAML, "scripted")


@pytest.fixture(autouse=True)
def _nothing(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no cuDNN be here, neither fetched nor installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(libraries, "_installed", lambda: None)


# freeze --plan


def test_freeze_shows_the_outlook_and_freezes(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --plan the outlook is printed before the line to post, and what is frozen is the same as without it."""
    opened = stand_in(monkeypatch, StandIn(both))
    outlook = call("plan", place.folder, "--board", "h200")
    said = call("freeze", place.folder, "--plan", "h200", "--cudnn", "9.27.0.42")
    posted = call("freeze", place.folder, "--check")

    assert said == (0, f"{outlook.out}\n{posted.out}", "")
    assert posted.out.startswith("frozen scripted sha256:")
    assert opened == [("h200", version, "library") for version in (None, "9.27.0.42")]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["h300"], "--board: found h300; expected "),
        (["h200"], "no nvidia-cudnn-cu13 is installed; expected --cudnn VERSION"),
        (["h200", "--cudnn", "9.27.0.42"], "cuDNN 9.27.0.42 is not here; `studytool plan --board BOARD --cudnn "),
    ],
)
def test_where_planning_fails_nothing_is_frozen(place: StudyPlace, args: list[str], message: str) -> None:
    """A board or library that is not to be had is one line, and no file is written."""
    before = tree(place.root)
    said = call("freeze", place.folder, "--plan", *args)

    assert (said.code, said.out) == (2, "")
    assert said.err.startswith(message)
    assert said.err.count("\n") == 1
    assert tree(place.root) == before
    assert not place.frozen.exists()


def test_what_freeze_tells_to_type_can_be_typed(place: StudyPlace) -> None:
    """Where the version is not here, the line names a command that has the options that it names."""
    args = ("freeze", place.folder, "--plan", "h200", "--cudnn", "9.27.0.42")
    command = re.search(r"`studytool (\w+) ([^`]+)`", call(*args).err)

    assert command is not None
    options = re.findall(r"--\w+", command[2])
    assert options == ["--board", "--cudnn", "--fetch"]
    assert all(option in call(command[1], "--help").out for option in options)


def test_a_study_of_another_engine_is_not_planned_and_not_frozen(tmp_path: Path) -> None:
    """Only cuDNN has plan lists; the study is left as it was."""
    place = tiny(tmp_path)
    said = call("freeze", place.folder, "--plan", "h200")

    assert said == (2, "", "studies/tiny/study.yaml: engine is simulated; only cudnn has plan lists to predict\n")
    assert not place.frozen.exists()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--check", "--plan", "h200"], "--plan is for freezing, --check for what is frozen"),
        (["--cudnn", "9.27.0.42"], "--cudnn is for --plan"),
    ],
)
def test_planning_what_is_frozen_is_bad_usage(place: StudyPlace, args: list[str], message: str) -> None:
    """The options belong to freezing, and --cudnn to --plan."""
    said = call("freeze", place.folder, *args)

    assert (said.code, said.out) == (2, "")
    assert message in said.err


# doctor --save-board


def test_without_a_gpu_saving_a_board_is_one_line(tmp_path: Path) -> None:
    """Where cuDNN finds no GPU, the line has its last words; no file is written."""
    if libraries.driver_is_loaded():
        pytest.skip("an NVIDIA driver is at work here")
    said = call("doctor", "--save-board", tmp_path / "here.json")

    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"no GPU is here that cuDNN describes: \S[^\n]*\n", said.err)
    assert [*tmp_path.iterdir()] == []


def test_a_saved_board_is_one_that_plan_takes(
    place: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a device says of itself is saved under the file's name, and is planned for by that file."""
    said_of_itself = json.loads(A100.description()) | {"isTccDriver": False, "deviceName": "NVIDIA A100-SXM4-40GB"}
    monkeypatch.setattr(predictions, "device_description", lambda: json.dumps(said_of_itself) + "\n")
    opened = stand_in(monkeypatch, StandIn(both))
    path = tmp_path / "rented.json"
    saved = call("doctor", "--save-board", path)
    planned = call("plan", place.folder, "--board", path)

    assert saved == (0, f"{path}: NVIDIA A100-SXM4-40GB, cc 8.0, 108 SMs\n", "")
    assert (planned.code, planned.err) == (0, "")
    assert planned.out.startswith("rented, cuDNN 92700")
    assert {field.source for field in boards.load(str(path)).fields.values()} == {"read from device"}
    assert opened == [("rented", None, "library")]


def test_a_board_is_saved_as_json_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of another name could not be planned for, and is refused before the device is asked."""
    monkeypatch.setattr(predictions, "device_description", lambda: pytest.fail("the device was asked"))
    path = tmp_path / "here.yaml"

    assert call("doctor", "--save-board", path) == (2, "", f"--save-board: found {path}; expected a file NAME.json\n")


def test_a_device_that_leaves_a_field_out_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `plan` would refuse is not written: another cuDNN may say less of a device than is needed here."""
    described = {name: value for name, value in json.loads(A100.description()).items() if name != "warpSize"}
    monkeypatch.setattr(predictions, "device_description", lambda: json.dumps(described))
    said = call("doctor", "--save-board", tmp_path / "here.json")

    assert (said.code, said.out) == (2, "")
    assert "warpSize" in said.err
    assert [*tmp_path.iterdir()] == []


# replay


@pytest.fixture(name="seen", scope="module")
def _seen(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished cuDNN study with records of an H200."""
    return seen_study(tmp_path_factory.mktemp("seen"))


def planned_lines(out: str) -> list[str]:
    """Return what a replay says of plans."""
    return [line.removeprefix("planned     ") for line in out.splitlines() if line.startswith("planned ")]


def without_plans(out: str) -> list[str]:
    """Return what a replay says of all else."""
    return [line for line in out.splitlines() if not line.startswith("planned ")]


def test_replay_says_what_is_planned_and_ends_as_it_would_without(
    seen: StudyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists that agree, that differ and that are not to be had are lines; the check list and the exit code stay."""
    nothing = call("replay", seen.folder)
    monkeypatch.setattr(libraries, "version_of", {92700: "9.27.0.42"}.__getitem__)
    found = [nothing]
    for answer in (as_seen, lambda _case: listed(Plan(engine=9, name="eng9"))):
        stand_in(monkeypatch, StandIn(answer, row=5))
        found.append(call("replay", seen.folder))
    summary = "bf16: 12 cases planned for h200 under cuDNN 9.27.0.42, {} legs differ from what was seen"

    assert [said.code for said in found] == [0, 0, 0]
    assert [said.err for said in found] == ["", "", ""]
    assert without_plans(found[0].out) == without_plans(found[1].out) == without_plans(found[2].out)
    (why,) = planned_lines(nothing.out)
    assert why.startswith("bf16: not compared with what is seen: no cuDNN 9.27.0.x is here; `studytool plan ")
    assert planned_lines(found[1].out) == [summary.format(0)]
    assert planned_lines(found[2].out)[0] == summary.format(44)
    assert len(planned_lines(found[2].out)) == 45
    assert all(
        "planned eng9, seen engine" in line or "planned none, seen" in line for line in planned_lines(found[2].out)[1:]
    )


def test_a_replay_that_fails_fails_with_plans_too(
    seen: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plans as seen do not make up for a check that does not hold."""
    place = finished.copy(seen, tmp_path / "copy")
    place.results("bf16").score.write_text("{}\n")
    stand_in(monkeypatch, StandIn(as_seen, row=5))
    said = call("replay", place.folder, "--cudnn", "9.27.0.42")

    assert said.code == 1
    assert planned_lines(said.out)[0].endswith("0 legs differ from what was seen")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--board", "h300"], "--board: found h300; expected "),
        (
            ["--cudnn", "9.27.0.42"],
            "cuDNN 9.27.0.42 is not here; `studytool plan --board BOARD --cudnn 9.27.0.42 --fetch` brings it",
        ),
        (["--board", "b200"], "no cuDNN 9.27.0.x is here; `studytool plan "),
    ],
)
def test_what_replay_is_asked_for_and_cannot_be_had_is_an_error(
    seen: StudyPlace, args: list[str], message: str
) -> None:
    """A board or version that was typed must be there: one line on stderr, exit code 2."""
    said = call("replay", seen.folder, *args)

    assert said.code == 2
    assert said.err.startswith(message)
    assert said.err.count("\n") == 1


def test_what_replay_tells_to_type_can_be_typed(seen: StudyPlace) -> None:
    """Where the version is not here, the line names a command that has the options that it names."""
    command = re.search(r"`studytool (\w+) ([^`]+)`", planned_lines(call("replay", seen.folder).out)[0])

    assert command is not None
    assert all(option in call(command[1], "--help").out for option in re.findall(r"--\w+", command[2]))


@pytest.mark.parametrize("args", [["--board", "h200"], ["--cudnn", "9.27.0.42"]])
def test_another_engine_has_no_plans_to_predict(made: StudyPlace, args: list[Any]) -> None:
    """Asked of a study that is not cuDNN's, that is one line; unasked, replay does not speak of plans."""
    said = call("replay", made.folder, *args)

    assert (said.code, planned_lines(said.out)) == (2, [])
    assert said.err == "studies/whole/study.yaml: engine is simulated; only cudnn has plan lists to predict\n"
    assert planned_lines(call("replay", made.folder).out) == []
