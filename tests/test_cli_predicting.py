"""The commands that plan for a GPU that is not here, as people type them: plan and stale."""

import json
import re
from pathlib import Path

import finished
import pytest
from commands import call, tiny, tree
from controls import (
    BACKEND_PLAN,
    CLASSES,
    CUDNN_ROW,
    CUDNN_YAML,
    FROST_PLAN,
    OTHER_PLAN,
    StandIn,
    both,
    for_mask,
    fresh_table,
    listed,
    plans_of,
    stand_in,
    table_of,
)
from factories import make_case, make_case_summary, make_summary

from studytool import studyjson
from studytool.errors import DeviceError
from studytool.layout import StudyPlace
from studytool.model import Case
from studytool.planning import boards, libraries
from studytool.planning.libraries import SIZE


@pytest.fixture(name="place")
def _place(tmp_path: Path) -> StudyPlace:
    """Return a cuDNN study that is declared and not frozen."""
    return finished.declare(tmp_path, CUDNN_YAML, "scripted")


@pytest.fixture(name="nothing", autouse=True)
def _nothing(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no cuDNN be here, neither fetched nor installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    monkeypatch.setattr(libraries, "_installed", lambda: None)


# plan


def test_plan_prints_the_outlook(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plan says on stdout what each split would do, and writes nothing; the study's base is what is planned with."""
    opened = stand_in(monkeypatch, StandIn(both))
    before = tree(place.root)
    said = call("plan", place.folder, "--board", "h200", "--cudnn", "9.27.0.42")

    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("h200, cuDNN 92700, frontend 1.32.0: predictions, nothing ran\n")
    assert "| bf16 | train | 6 | 6 |\n| bf16 | holdout | 4 | 4 |\n| bf16 | routing | 2 | 2 |\n" in said.out
    assert opened == [("h200", "9.27.0.42", "library")]
    assert tree(place.root) == before


def test_plan_says_the_same_for_machines(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """--json has every case with its legs; it is the same bytes each time."""
    stand_in(monkeypatch, StandIn(both))
    said = [call("plan", place.folder, "--board", "h200", "--json") for _ in range(2)]
    found = json.loads(said[0].out)

    assert said[0] == said[1]
    assert (found["study"], found["board"], len(found["cases"])) == ("scripted", "h200", 12)
    assert {case["legs"]["frost"]["plan"] for case in found["cases"]} == {"20601"}


def test_plan_applies_the_table_of_the_study(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that is there decides what auto runs."""
    stand_in(monkeypatch, StandIn(both))
    table = table_of({"none": "ev"}).replace('("op", "dtype", "mask")', '("dtype", "mask")')
    table = table.replace('"9.0", "sdpa_fwd", ', '"9.0", ').replace("open_engine", CUDNN_ROW)
    place.table.write_text(table)
    cases = json.loads(call("plan", place.folder, "--board", "h200", "--json").out)["cases"]

    assert {(case["split"], case["legs"]["auto"]["plan"]) for case in cases} == {
        ("train", "20601"),
        ("holdout", "20601"),
        ("routing", "7[KERNEL_CFG=2]"),
    }


NOT_HERE = f"cuDNN 9.27.0.42 is not here; `studytool plan --board BOARD --cudnn 9.27.0.42 --fetch` brings it ({SIZE})"
NAMES = ", ".join(boards.names())
BAD_PLANS = {
    "unknown board": (["--board", "h300"], f"--board: found h300; expected {NAMES}, or a file NAME.json"),
    "no such file": (["--board", "none.json"], "none.json: cannot be read: No such file or directory"),
    "no version": (["--board", "h200", "--cudnn", "9"], "--cudnn: found 9; expected a version of nvidia-cudnn-cu13"),
    "not fetched": (["--board", "h200", "--cudnn", "9.27.0.42"], NOT_HERE),
    "not installed": (["--board", "h200"], "no nvidia-cudnn-cu13 is installed; expected --cudnn VERSION ("),
    "bad board before the library": (
        ["--board", "h300", "--cudnn", "9.27.0.42"],
        f"--board: found h300; expected {NAMES}, or a file NAME.json",
    ),
}


@pytest.mark.parametrize(("args", "message"), BAD_PLANS.values(), ids=BAD_PLANS.keys())
def test_a_plan_that_cannot_be_made_is_one_line(
    place: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    """What is wrong is one line on stderr with exit code 2, for plan and for stale, and nothing is written."""
    table = tmp_path / "table.py"
    table.write_text(fresh_table())
    monkeypatch.chdir(tmp_path)
    before = tree(tmp_path)
    for command, path in (("plan", place.folder), ("stale", table)):
        said = call(command, path, *args)

        assert (said.code, said.out) == (2, "")
        assert said.err.startswith(message)
        assert said.err.count("\n") == 1
    assert tree(tmp_path) == before


def test_plan_is_for_cudnn_alone(tmp_path: Path) -> None:
    """A study of another engine has no plan lists to predict, which is one line."""
    said = call("plan", tiny(tmp_path).folder, "--board", "h200")

    assert said == (
        2,
        "",
        "studies/tiny/study.yaml: engine is simulated; only cudnn has plan lists to predict\n",
    )


def test_a_planner_that_fails_is_one_line(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands in the way of planning is told in its words, with exit code 2."""

    def fail(_case: Case) -> None:
        raise DeviceError("cuDNN 9.27.0.42 cannot plan here: it ended\n\x1b[31mtwice")

    stand_in(monkeypatch, StandIn(fail))  # type: ignore[arg-type]
    said = call("plan", place.folder, "--board", "h200")

    assert said == (2, "", "cuDNN 9.27.0.42 cannot plan here: it ended\\n\\x1b[31mtwice\n")


def test_a_fetch_says_its_size_before_it_begins(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --fetch the size is on stderr before pip is started; without it, pip never is."""
    told: list[str] = []

    def fetch(version: str) -> libraries.Libraries:
        told.append(version)
        raise DeviceError("the network is down")

    monkeypatch.setattr(libraries, "fetch", fetch)
    without = call("plan", place.folder, "--board", "h200", "--cudnn", "9.27.0.42")
    fetched = call("plan", place.folder, "--board", "h200", "--cudnn", "9.27.0.42", "--fetch")

    assert without.err == NOT_HERE + "\n"
    assert fetched == (2, "", f"fetching where it is not here yet: {SIZE}\nthe network is down\n")
    assert told == ["9.27.0.42"]


# stale


def test_stale_exits_1_where_a_line_is_not_fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """States go to stdout; all fresh exits 0, and one that is not exits 1 with a line that says so."""
    path = tmp_path / "table.py"
    path.write_text(fresh_table())
    stand_in(monkeypatch, StandIn(both))
    fresh = call("stale", path, "--board", "h200", "--cudnn", "9.27.0.42")
    stand_in(monkeypatch, StandIn(for_mask("tl", listed(OTHER_PLAN, FROST_PLAN))))
    changed = call("stale", path, "--board", "h200", "--cudnn", "9.28.1.4")

    assert (fresh.code, fresh.err, fresh.out.count("FRESH")) == (0, "", 3)
    assert (changed.code, changed.err) == (1, f"{path}: not every line is FRESH\n")
    assert changed.out.splitlines()[-1] == (
        f"{path}:15: STALE under 9.28.1.4: {CLASSES['tl'].label}: backend was 7[KERNEL_CFG=2], is 8"
    )


def test_matrix_and_cudnn_are_bad_usage(tmp_path: Path) -> None:
    """Both name versions: one or the other."""
    said = call("stale", tmp_path / "t.py", "--board", "h200", "--cudnn", "9.27.0.42", "--matrix", "9.28.1.4")

    assert (said.code, said.out) == (2, "")
    assert "--matrix and --cudnn both name versions" in said.err


def test_a_matrix_has_a_column_a_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The versions stand in the order in which they were asked for."""
    path = tmp_path / "table.py"
    path.write_text(fresh_table())
    old, new = StandIn(lambda _case: listed(BACKEND_PLAN)), StandIn(both)
    stand_in(monkeypatch, {"9.28.1.4": new, "9.19.0.56": old})
    said = call("stale", path, "--board", "h200", "--matrix", "9.28.1.4,9.19.0.56")

    assert said.code == 1
    assert said.out.splitlines()[0] == "| line | class | cuDNN 9.28.1.4 | cuDNN 9.19.0.56 |"
    assert [line.split(" | ")[2:] for line in said.out.splitlines()[2:5]] == [["FRESH", "DEAD |"]] * 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (table_of({"none": "ev 5"}), ":13: its evidence names no plans; expected a line made by this version's gen.py"),
        ("SCHEMA = 1\n", ":1: found SCHEMA; expected SCHEMA, ROWS, TABLE"),
        (None, ": cannot be read: No such file or directory"),
    ],
    ids=["no plans", "no table", "no file"],
)
def test_a_table_that_cannot_be_judged_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    """A line without plans in its evidence, and what is no table, are told with file and line, and exit code 2."""
    stand_in(monkeypatch, StandIn(both))
    path = tmp_path / "table.py"
    if text is not None:
        path.write_text(text)

    assert call("stale", path, "--board", "h200") == (2, "", f"{path}{message}\n")


def test_stale_takes_the_cases_of_the_study_whose_table_it_is(
    place: StudyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The study around the table is taken unless --study names another; its base and its cases are."""
    plans = plans_of("7[KERNEL_CFG=2]", "20601")
    measured = [make_case_summary(s_q=s, s_kv=s, plans=plans) for s in (64, 128, 256)]
    train = make_summary(measured, study="scripted", cc="9.0", class_key=("op", "dtype", "mask"))
    place.results("bf16").folder.mkdir()
    place.results("bf16").study_json.write_bytes(studyjson.encode(train))
    place.table.write_text(table_of({"none": f"ev plans 7[KERNEL_CFG=2] | 20601 at {make_case().label}"}))
    elsewhere = place.root / "table.py"
    elsewhere.write_bytes(place.table.read_bytes())
    changed = StandIn(lambda case: both(case) if case.s_kv == 128 else listed(OTHER_PLAN, FROST_PLAN))
    opened = stand_in(monkeypatch, changed)
    around, named = (
        call("stale", *args, "--board", "h200") for args in ([place.table], [elsewhere, "--study", place.folder])
    )
    alone = call("stale", elsewhere, "--board", "h200")

    assert [said.code for said in (around, named, alone)] == [1, 1, 0]
    assert around.out == named.out.replace(str(elsewhere), str(place.table))
    assert re.findall(r"time again (.+)", around.out) == [make_case(s_q=s, s_kv=s).label for s in (64, 256)]
    assert [base for _, _, base in opened] == ["library", "library", "backend"]
