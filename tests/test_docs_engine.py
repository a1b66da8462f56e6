"""docs/engine.md is true: its engine, put into a copy of the package as the page says, runs a study to its replay."""

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from test_architecture import LEVEL, ROOT

from studytool import jsonl
from studytool.engines import base
from studytool.jsonl import SessionFile
from studytool.model import LEGS, Split, Status

PAGE = (ROOT / "docs" / "engine.md").read_text(encoding="utf-8")
MODULE, STUDY = "studytool/engines/numpy_orders.py", "studies/orders/study.yaml"
Done = subprocess.CompletedProcess[str]


def block(path: str) -> str:
    """Return the block of the page whose first line names a file, without that line."""
    found = re.search(rf"^```\w+\n# {re.escape(path)}\n(.+?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


class Edit(NamedTuple):
    """One edit of the page: whole lines of a file, and those that take their place."""

    path: str
    old: list[str]
    new: list[str]


def edits() -> list[Edit]:
    """Return the edits of the page."""
    return [
        Edit(body.partition("\n")[0], *([line[1:] for line in side.splitlines()] for side in pair))
        for body in re.findall(r"^```diff\n(.+?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        for pair in re.findall(r"((?:^-.*\n)+)((?:^\+.*\n)+)", body, re.MULTILINE)
    ]


class Studied(NamedTuple):
    """What a contributor has who followed the page: the folder, and what three commands ended with."""

    root: Path
    doctor: Done
    run: Done
    replay: Done


@pytest.fixture(scope="module")
def studied(tmp_path_factory: pytest.TempPathFactory) -> Studied:
    """Return what comes of the study of the page, in a copy of the package that was edited as the page says."""
    root = tmp_path_factory.mktemp("contributor")
    shutil.copytree(ROOT / "studytool", root / "studytool", ignore=shutil.ignore_patterns("__pycache__"))
    (root / MODULE).write_text(block(MODULE), encoding="utf-8")
    for path, old, new in edits():
        lines = (root / path).read_text(encoding="utf-8").split("\n")
        places = [place for place in range(len(lines)) if lines[place : place + len(old)] == old]
        assert len(places) == 1, f"{path} has {old} {len(places)} times"
        lines[places[0] : places[0] + len(old)] = new
        (root / path).write_text("\n".join(lines), encoding="utf-8")
    (root / STUDY).parent.mkdir(parents=True)
    (root / STUDY).write_text(block(STUDY), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}

    def typed(*words: str) -> Done:
        return subprocess.run(
            [sys.executable, "-P", "-m", "studytool", *words],
            cwd=root,
            env=kept | {"PYTHONPATH": str(root)},
            capture_output=True,
            text=True,
            check=False,
        )

    return Studied(
        root,
        typed("doctor", "studies/orders"),
        typed("run", "studies/orders", "--dtype", "f32"),
        typed("replay", "studies/orders"),
    )


@pytest.mark.slow
def test_a_study_with_the_engine_goes_the_whole_path(studied: Studied) -> None:
    """The study of the page runs and replays. Times are real, so that no winner and no gate is asserted."""
    failed = [line for line in studied.replay.stdout.splitlines() if line.startswith("FAIL") and " gate:" not in line]

    assert (studied.doctor.returncode, "MISSING" in studied.doctor.stdout) == (0, False)
    assert "f32 train: attempt 1, 15 of 15 lines (3 declined)" in studied.run.stderr
    assert "f32 holdout: attempt 1, 6 of 6 lines\n" in studied.run.stderr
    assert (failed, studied.replay.stderr) == ([], "")
    assert "every number recomputed from raw samples" in studied.replay.stdout


@pytest.mark.slow
def test_its_records_say_which_order_ran(studied: Studied) -> None:
    """Each leg ran the plan that the page names, with the outputs checked; grouped heads are declined."""
    folder = studied.root / "studies/orders/f32/records"
    train = [file for file in jsonl.read_all(folder, studied.root) if file.session.split is Split.TRAIN]

    assert plans(train) == {("WHOLE", "SLABS", "WHOLE", "WHOLE")}
    compared = [record.checks for file in train for record in file.records if record.order]
    assert all(0 < int(checks["float64_o_ppb"]) < 2_000 for checks in compared)
    declined = [record.error for file in train for record in file.records if record.status is Status.DECLINED]
    assert declined == ["numpy_orders knows plain attention with equal heads alone"] * 3


def plans(files: list[SessionFile]) -> set[tuple[str, ...]]:
    """Return the names of the plans of the four legs, of all records with samples."""
    found = set()
    for record in (record for file in files for record in file.records if record.order):
        named = [record.legs[leg].plan for leg in LEGS]
        found.add(tuple(plan.name if plan else "" for plan in named))
    return found


def test_the_module_is_as_the_house_wants_it() -> None:
    """The module of the page passes the repository's lint and format, and imports only from layers above engines."""
    for words in (["check"], ["format", "--check"]):
        found = subprocess.run(
            [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(ROOT / MODULE), "-"],
            input=block(MODULE),
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert found.returncode == 0, found.stdout + found.stderr
    imported = [node.module or "" for node in ast.walk(ast.parse(block(MODULE))) if isinstance(node, ast.ImportFrom)]
    units = {name.split(".")[1] for name in imported if name.startswith("studytool.")}

    assert units == {"engines", "model", "runtime"}
    assert {unit for unit in units if LEVEL[unit] > LEVEL["engines"]} == set()


def members(protocol: Callable[..., object]) -> set[str]:
    """Return the names that a Protocol asks for."""
    return {name for name in vars(protocol) if not name.startswith("_")}


def test_every_member_of_the_protocols_is_explained() -> None:
    """The page's table names all that an engine and a bench are asked for, and its module has all of it."""
    table = PAGE.partition("## What an engine answers")[2].partition("\n## ")[0]
    names = members(base.Engine) | members(base.Bench)

    assert len(names) == 14
    assert {name for name in names if not re.search(rf"\b{name}\b", table)} == set()
    assert {name for name in names if not re.search(rf"(def {name}\(|self\.{name}\b)", block(MODULE))} == set()
