"""The benchmarks of the generator and of look-ups: their quick runs show what README.md says of the full ones."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from studytool.runtime import lookup

ROOT = Path(__file__).resolve().parent.parent
OURS, DEFAULT = "studytool", "always the default"
TREES = ("tree", "tree of any depth")
WORLDS, STATES = ("classes of a mask alike", "every class its own"), ("hidden", "declared")
CLASS, BOX, LIMIT, INLINE = (
    "studytool, scope class",
    "studytool, scope box",
    "dict, its key by class_key",
    "dict, its key written out",
)
pytestmark = [pytest.mark.slow, pytest.mark.whole, pytest.mark.xdist_group("benchmarks")]
Quality = dict[tuple[str, str, str], dict[str, Any]]


def _run(name: str, folder: Path) -> tuple[str, dict[str, Any]]:
    """Return what the quick run of a benchmark prints, and its JSON."""
    path = folder / "found.json"
    command = [sys.executable, f"benchmarks/{name}.py", "--quick", "--json", str(path)]
    ended = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, json.loads(path.read_bytes())


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Return the quick run of the generator's benchmark."""
    pytest.importorskip("sklearn")
    return _run("generate", tmp_path_factory.mktemp("generate"))


@pytest.fixture(scope="module")
def quality(generated: tuple[str, dict[str, Any]]) -> Quality:
    """Return what each method is worth, by world, state of declaration and method."""
    return {(row["classes"], row["feature"], row["method"]): row for row in generated[1]["quality"]}


@pytest.fixture(scope="module")
def looked_up(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """Return the quick run of the benchmark of look-ups."""
    return _run("lookup", tmp_path_factory.mktemp("lookup"))


def test_generator_prints_a_line_for_all_that_it_found(generated: tuple[str, dict[str, Any]], quality: Quality) -> None:
    """Each method is shown in each world, with the feature hidden and declared, once in all and once by kind."""
    printed, found = generated

    assert quality.keys() == {(w, s, m) for w in WORLDS for s in STATES for m in (OURS, *TREES, DEFAULT)}
    assert printed.count("\n| studytool ") + printed.count(" | studytool ") == 2 * len(WORLDS) * len(STATES) + 4
    assert printed.count("\n\n") == 2
    assert {row["cases"] for row in found["scale"]} == {100, 1000}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("world", WORLDS)
def test_no_case_is_lost_where_trees_lose_some(quality: Quality, world: str, state: str) -> None:
    """Ours makes no case of the hold-out slower than the default beyond the margin; every tree does."""
    assert quality[world, state, OURS]["lost"] == 0
    assert all(quality[world, state, tree]["lost"] > 0 for tree in TREES)


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("world", WORLDS)
def test_regret_is_that_of_trees_or_less(quality: Quality, world: str, state: str) -> None:
    """Not to lose a case costs at most 0.2 % of regret where classes are alike, and nothing where they are not."""
    ours, room = quality[world, state, OURS]["regret"], 1.002 if world == WORLDS[0] else 1

    assert ours <= room * min(quality[world, state, tree]["regret"] for tree in TREES)
    assert ours < quality[world, state, DEFAULT]["regret"]


def test_order_of_the_data_changes_trees_alone(quality: Quality) -> None:
    """The same measurements in another order make the same bytes of ours, and other trees."""
    for (_, _, method), row in quality.items():
        assert (row["bytes_changed"] > 0) is (method in TREES)


def test_feature_that_flips_the_winner_is_named(quality: Quality) -> None:
    """While it is hidden such classes are left alone; the conflict names it, and declared it decides every case."""
    for world in WORLDS:
        hidden, declared = (quality[world, state, OURS] for state in STATES)
        assert hidden["flip: regret"] == quality[world, "hidden", DEFAULT]["flip: regret"]
        assert declared["flip: regret"] == 1


def test_memory_of_a_fit_is_little(generated: tuple[str, dict[str, Any]]) -> None:
    """A fit adds little to what its cases take."""
    ours = [row for row in generated[1]["scale"] if row["method"] == OURS]

    assert all(row["peak_MiB"] - row["MiB_before"] < 16 for row in ours)


def test_look_ups_are_printed_with_their_ratios(looked_up: tuple[str, dict[str, Any]]) -> None:
    """Ours and the others stand in one table, each with its quantiles and its ratio to both dictionaries."""
    printed, found = looked_up
    rows = {row["what"]: row for row in found["lookups"]}

    assert {CLASS, BOX, LIMIT, INLINE} < rows.keys()
    assert len(rows) == 8 + bool(importlib.util.find_spec("cudnn"))
    assert all(f"| {what} |" in printed for what in rows)
    assert rows[LIMIT]["hit, warm / dict"] == rows[INLINE]["miss, warm / written out"] == 1
    for kind in ("hit, warm", "hit, cold", "miss, warm"):
        assert all(row[f"{kind} p50 ns"] <= row[f"{kind} p99 ns"] for row in rows.values())


@pytest.mark.parametrize("scope", [CLASS, BOX])
def test_look_up_is_within_four_dictionaries(looked_up: tuple[str, dict[str, Any]], scope: str) -> None:
    """A look-up takes at most four times what a dictionary takes whose key `class_key` makes of the same case."""
    (ours,) = (row for row in looked_up[1]["lookups"] if row["what"] == scope)

    assert all(ours[f"{kind} / dict"] < 4 for kind in ("hit, warm", "hit, cold", "miss, warm"))


def test_look_ups_keep_nothing(looked_up: tuple[str, dict[str, Any]]) -> None:
    """Distinct look-ups do not add a mebibyte, whether Python or the system counts."""
    fresh = looked_up[1]["fresh"]

    assert len(fresh) == 2
    assert all(row["look-ups"] >= 20_000 and row["import ms"] > 0 for row in fresh)
    assert all(row["resident KiB"] < 1024 and row["traced KiB"] < 64 for row in fresh)


def test_hits_hit_and_misses_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is timed as a hit is led by both tables, of 300 entries each, and what is timed as a miss has no entry."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    bench = importlib.import_module("lookup")
    for scope in ("class", "box"):
        table = lookup.parse(bench.table_text(scope), scope)
        answers = [
            {
                lookup.lookup(table, bench.ROW, bench.CC, case.fields, bench.BOARD)
                for case in bench.cases(dims, bench.SIZES)
            }
            for dims in (bench.DIMS, bench.OTHER_DIMS)
        ]
        assert len(table.entries) == 300
        assert answers == [{True}, {None}]
