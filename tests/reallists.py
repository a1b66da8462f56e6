"""The real plan lists of the studies' cases, planned once for all tests of a process.

They need the library's frontend and versions of cuDNN in the cache; a test whose version is not there is skipped with
what to type.
"""

import functools

import pytest
from a100 import SQUARE, frozen, table_of

from studytool import freeze, opening, outlook
from studytool.errors import StudyError
from studytool.layout import StudyPlace
from studytool.model import Split
from studytool.outlook import Expected
from studytool.planning import boards, libraries
from studytool.planning.deviceless import Planner
from studytool.planning.libraries import Libraries
from studytool.runtime import lookup

OLD, VERSIONS = "9.19.0.56", ("9.27.0.42", "9.28.1.4")
STUDY, CASES = frozen(SQUARE)
TABLE = table_of(STUDY, CASES[Split.TRAIN], lambda _: 500_000)
"""The table in which every class leads."""

ROW = 20601
BOARDS = {"8.0": "a100-sxm4-40gb", "9.0": "h200", "10.0": "b200", "12.0": "rtx-pro-6000-blackwell"}


@functools.cache
def expected(place: StudyPlace, board: str, version: str, *, table: bool) -> list[Expected]:
    """Return what a study's cases would run on a board under a version, each planned once."""
    study = opening.open_study(place)
    cases, here = freeze.verify(study, place).cases, boards.load(board)
    with Planner(here, wanted(version), study.base) as planner:
        return outlook.expect(study, cases, planner, here, TABLE if table else lookup.EMPTY, lambda *_: None)


def square(version: str) -> list[Expected]:
    """Return what the A100 study's cases would run with the table in which every class leads."""
    return expected(SQUARE, BOARDS["8.0"], version, table=True)


def identity(item: Expected, leg: str) -> str:
    """Return the id of a leg's plan, which must be there."""
    plan = item.legs[leg]
    assert plan is not None
    return plan.identity


def wanted(version: str) -> Libraries:
    """Return the libraries of a cuDNN version, or skip the test with what says that they are not here."""
    try:
        return libraries.find(version)
    except StudyError as error:
        pytest.skip(str(error))
