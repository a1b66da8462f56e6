"""Settings and fixtures of all tests: no deadline, since a test never asserts a wall time."""

import itertools
import os
from pathlib import Path

import finished
import pytest
from hypothesis import settings
from sharing import SHARE, examples

from studytool.layout import StudyPlace

if "PYTEST_XDIST_WORKER" in os.environ:  # what a test starts is not traced: it is slow, and covered in process
    os.environ.pop("COVERAGE_PROCESS_CONFIG", None)

CAMPAIGNS = frozenset(
    f"test_{name}"
    for name in (
        "anchors",
        "benchmarks",
        "benchmarks_decide",
        "bundle_hostile",
        "bundle_replay",
        "contamination",
        "corpus",
        "costs",
        "cudnn_worker",
        "drivers",
        "durability",
        "fit_lines",
        "hosts",
        "hostile",
        "kill",
        "lookup_quick",
        "plain",
        "planted",
        "ray_boards",
        "reference_study",
        "regimes",
        "report_together",
        "tamper",
        "tutorial",
    )
)
"""Modules that do the same thing to hundreds of inputs, or whose work is done by other processes: `.ci/run` runs them
by themselves, without tracing lines."""


LONG = (
    "test_tutorial",
    "test_cudnn_worker",
    "test_benchmarks",
    "test_kill",
    "test_benchmarks_decide",
    "test_ray_boards",
)
"""Modules that are begun first, since a process that has one of them has little else."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of campaigns, leave out those that are not in the share, and begin with the long ones."""
    for item in items:
        if item.path.stem in CAMPAIGNS:
            item.add_marker("campaign")
    left_out: set[pytest.Item] = set()
    ordered = sorted(items, key=lambda item: item.nodeid)
    for _, own in itertools.groupby(ordered, key=lambda item: item.nodeid.split("[")[0]):
        left_out |= {item for number, item in enumerate(own) if number % SHARE}
    left_out |= {item for item in items if SHARE > 1 and item.get_closest_marker("whole")}
    config.hook.pytest_deselected(items=list(left_out))
    kept = [item for item in items if item not in left_out]
    items[:] = sorted(kept, key=lambda item: LONG.index(item.path.stem) if item.path.stem in LONG else len(LONG))


settings.register_profile("studytool", deadline=None, max_examples=examples(60))
settings.load_profile("studytool")


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished study that nobody may change."""
    return finished.finish(tmp_path_factory.mktemp("made"))


@pytest.fixture
def whole(made: StudyPlace, tmp_path: Path) -> StudyPlace:
    """Return a finished study of the test's own."""
    return finished.copy(made, tmp_path / "whole")
