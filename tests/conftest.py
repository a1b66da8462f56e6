"""Settings and fixtures of all tests: no deadline, since a test never asserts a wall time."""

import os
from pathlib import Path

import finished
import pytest
from hypothesis import settings

from studytool.layout import StudyPlace

if "PYTEST_XDIST_WORKER" in os.environ:  # what a test starts is not traced: it is slow, and covered in process
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

CAMPAIGNS = {
    f"test_{name}" for name in ["bundle_hostile", "contamination", "corpus", "durability", "hostile", "plain", "tamper"]
}
"""Modules that do the same thing to hundreds of inputs; `.ci/run` runs them by themselves, without tracing lines."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of campaigns."""
    for item in items:
        if item.path.stem in CAMPAIGNS:
            item.add_marker("campaign")


settings.register_profile("studytool", deadline=None, max_examples=60)
settings.load_profile("studytool")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished study that nobody may change."""
    return finished.finish(tmp_path_factory.mktemp("made"))


@pytest.fixture
def whole(made: StudyPlace, tmp_path: Path) -> StudyPlace:
    """Return a finished study of the test's own."""
    return finished.copy(made, tmp_path / "whole")
