"""Calling the commands in tests: how one ended, and what it left on disk."""

import json
from pathlib import Path
from typing import NamedTuple

import finished
from click.testing import CliRunner
from factories import STUDY_YAML

from studytool.cli import main
from studytool.digest import sha256
from studytool.layout import StudyPlace
from studytool.report import markdown


class Said(NamedTuple):
    """How a command ended: exit code, stdout, stderr."""

    code: int
    out: str
    err: str


def call(*args: object) -> Said:
    """Return how the command ended; an exception that it does not catch is the test's."""
    found = CliRunner().invoke(main, [str(arg) for arg in args], catch_exceptions=False)
    return Said(found.exit_code, found.stdout, found.stderr)


def tree(root: Path) -> dict[str, str]:
    """Return the digest of every file below root by name; a lock is no file of a study."""
    files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".time.lock")
    return {path.relative_to(root).as_posix(): sha256(path.read_bytes()) for path in files}


def tiny(root: Path) -> StudyPlace:
    """Return the small study, declared and not frozen."""
    return finished.declare(root, STUDY_YAML, "tiny")


def scores(place: StudyPlace, *dtypes: str) -> str:
    """Return the table of results that the score files give."""
    return markdown.result_table([json.loads(place.results(d).score.read_bytes()) for d in dtypes]) + "\n"
