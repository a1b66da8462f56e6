"""The benchmark of timers against known truths: its quick run shows what README.md says of the full one."""

import json
import math
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS, ROBIN = "studytool", "round robin, fixed order"
ROWS = [
    "no drift",
    "3 % drift",
    "3 % warm-up",
    "3 % throttle step",
    "0.5 % carry-over",
    "0.8 % process effect",
    "1 µs tick, 8.3 µs kernel",
    "noisy host, 7 %",
]
Found = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """Return the lines of a quick run by row and method."""
    path = tmp_path_factory.mktemp("benchmarks") / "timers.json"
    command = [sys.executable, "benchmarks/timer_truth.py", "--quick", "--no-cpu", "--json", str(path)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    table = json.loads(path.read_bytes()) if path.exists() else []

    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.count("\n") == len(table) + 2
    return {(line["row"], line["method"]): line for line in table}


pytestmark = pytest.mark.slow


@pytest.mark.whole
def test_every_row_has_every_method(found: Found) -> None:
    """Each nuisance is shown to ours and to five others, which saw as many studies."""
    methods = {method for _, method in found}

    assert len(methods) == 6
    assert found.keys() == {(row, method) for row in ROWS for method in methods}
    assert {line["studies"] for line in found.values()} == {128}


@pytest.mark.whole
@pytest.mark.parametrize("row", ROWS)
def test_ours_has_no_bias(found: Found, row: str) -> None:
    """The mean error is at most 0.05 %, or what chance leaves of the RMS error over so many studies."""
    line = found[row, OURS]
    chance = 3 * line["rms_pct"] / math.sqrt(line["studies"])

    assert abs(line["bias_pct"]) <= max(0.05, chance)


@pytest.mark.whole
@pytest.mark.parametrize("row", [row for row in ROWS if "noisy" not in row])
def test_ours_is_near_the_limit(found: Found, row: str) -> None:
    """The RMS error is at most 1.6 times that of as many paired blocks without the nuisance."""
    assert found[row, OURS]["over_limit"] <= 1.6


@pytest.mark.whole
def test_drift_is_a_fifth_of_the_best_leg_after_leg(found: Found) -> None:
    """Under drift, ours has at most a fifth of the error of the best method that times leg after leg."""
    others = [line["rms_pct"] for (row, method), line in found.items() if row == "3 % drift" and "leg after" in method]

    assert len(others) == 3
    assert found["3 % drift", OURS]["rms_pct"] <= min(others) / 5


@pytest.mark.whole
def test_no_lead_where_there_is_no_difference(found: Found) -> None:
    """No family of sixteen classes without a difference gets an entry, and a true difference of 10 % mostly does."""
    for row in ROWS:
        line = found[row, OURS]
        assert line["families"] >= 1
        assert line["false_families_pct"] == 0
        assert line["power_pct"] >= 85


@pytest.mark.whole
def test_a_fixed_order_takes_carry_over_for_a_difference(found: Found) -> None:
    """The negative control: in a fixed order, a carry-over of 0.5 % is a bias of more than 0.3 %."""
    assert abs(found["0.5 % carry-over", ROBIN]["bias_pct"]) > 0.3
    assert abs(found["0.5 % carry-over", OURS]["bias_pct"]) < 0.1


def test_host_planning_says_what_a_table_and_a_study_cost(tmp_path: Path) -> None:
    """The quick run prints both tables; naming a case's four legs costs little beside the library's planning."""
    path = tmp_path / "planning.json"
    command = [sys.executable, "benchmarks/host_planning.py", "--quick", "--json", str(path)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )

    assert ended.returncode == 0, ended.stderr
    price, study = json.loads(path.read_bytes())
    assert list(price["us"]) == ["graph planned", "graph planned, then choose()", "choose() alone", "look-up alone"]
    assert list(study["us"]) == ["library alone", "studytool, four legs named", "beyond the library, paired"]
    assert study["us"]["studytool, four legs named"][0] < 5 * study["us"]["library alone"][0]
    assert ended.stdout.startswith("cudnn frontend ")


def test_the_fleet_benchmark_loses_nothing_to_failures(tmp_path: Path) -> None:
    """Sixteen virtual boards that fail every few minutes still measure all lines; the longest first is balanced."""
    fleet = runpy.run_path(str(ROOT / "benchmarks" / "fleet.py"))
    row = fleet["measure"](tmp_path / "failing", 16, 240, 0.25, longest_first=True)
    calm = fleet["measure"](tmp_path / "calm", 16, 240, 1e6, longest_first=True)

    assert row.failures > 0
    assert row.lost > 0
    assert row.lines >= 240 * 5
    assert calm.lines == 240 * 5 + 15 * 4 * 5  # each of the other fifteen boards measures the four anchors, too
    assert calm.balance < 1.1
    assert (calm.failures, calm.lost) == (0, 0)
