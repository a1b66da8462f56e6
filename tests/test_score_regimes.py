"""A study of two regimes that disagree: verdict and score are those of the worse one, and the report has both."""

import json
from typing import Any

import pytest
from benches import inline, run
from commands import call
from devices import trained

from studytool.attempts import Job
from studytool.score import BETTER_HIGH

REGIMES = ("eager-cold", "eager-warm")
YAML = """\
schema: 1
name: tiny
question: Which regime is the worse one?
engine: simulated
row: open_engine
base: library
device: {cc: host, board: any}
op: sdpa_fwd
dtypes: [bf16]
class_key: [dtype]
splits:
  train:
    grids:
      - {s_kv: [256, 512, 768, 1024, 1280], h_q: 4, d_qk: 64}
  holdout:
    cases:
      - {s_kv: [320, 640, 960], h_q: 4, d_qk: 64}
protocol: {repeats: 3, blocks: 8, regimes: [eager-warm, eager-cold]}
decide: {margin: 0.05, scope: class, thresholds: [from s_kv]}
gate:
  - slower_beyond_noise == 0
simulated: {backend_ns: s_kv * 1000, frost_ns: s_kv * 500, miss_ns_per_mib: 400000, noise_ppm: 1000, host_ns: 2500}
"""


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Return the hold-out, timed, scored and reported."""
    found = trained(tmp_path_factory.mktemp("regimes"), YAML)
    with pytest.MonkeyPatch.context() as patch:
        inline(patch)
        run(found)
    call("score", found.place.folder, "--dtype", "bf16")
    call("report", found.place.folder, "--dtype", "bf16")
    return found


@pytest.fixture(scope="module")
def score(job: Job) -> dict[str, Any]:
    """Return the score."""
    found: dict[str, Any] = json.loads(job.results.score.read_bytes())
    return found


def test_each_regime_has_its_own_numbers(score: dict[str, Any]) -> None:
    """What the caches cost makes the engines more alike when they are cold, and each regime says so by itself."""
    cold, warm = (score["regimes"][regime] for regime in REGIMES)

    assert warm["auto_over_default_geomean"] == pytest.approx(500_000, rel=0.01)
    assert 550_000 < cold["auto_over_default_geomean"] < 800_000
    assert warm["regret_default_geomean"] > 1.2 * cold["regret_default_geomean"]


def test_the_worse_regime_counts(score: dict[str, Any]) -> None:
    """A metric is the worst of the regimes: the highest, but of the closed gap and the minimum the lowest."""
    names = set.intersection(*(set(score["regimes"][regime]) for regime in REGIMES))
    both = {name: [score["regimes"][regime][name] for regime in REGIMES] for name in names}

    assert {
        "regret_default_geomean",
        "regret_auto_max",
        "auto_over_default_geomean",
        "closed_gap",
    } <= names | BETTER_HIGH
    for name, values in both.items():
        assert score["metrics"][name] == (min if name in BETTER_HIGH else max)(values)
    assert score["metrics"]["auto_over_default_geomean"] == score["regimes"]["eager-cold"]["auto_over_default_geomean"]
    assert score["metrics"]["regret_default_geomean"] == score["regimes"]["eager-warm"]["regret_default_geomean"]


def test_a_case_is_counted_once(score: dict[str, Any]) -> None:
    """Counts are of cases, though each case is listed once in each regime."""
    assert (score["metrics"]["cases"], score["metrics"]["cases_timed"], score["metrics"]["inconclusive"]) == (3, 3, 0)
    assert sorted(case["regime"] for case in score["cases"]) == ["eager-cold"] * 3 + ["eager-warm"] * 3
    assert score["statuses"] == {"ok": 3}


def test_the_verdict_is_that_of_the_worse_regime(job: Job) -> None:
    """The train summary has both regimes of each case, and the line is written for the ratio of the worse one."""
    cases = json.loads(job.results.study_json.read_bytes())["cases"]
    worst = max(case["regimes"]["eager-cold"]["ratio_ppm"] for case in cases)

    assert all(set(case["regimes"]) == set(REGIMES) for case in cases)
    assert all(r["code"] == "" and r["repeats"] == 3 for case in cases for r in case["regimes"].values())
    assert f" worst {worst / 1e6:.3f} " in job.results.lines.read_text(encoding="utf-8")


def test_the_report_has_a_row_for_each_regime(job: Job, score: dict[str, Any]) -> None:
    """The report tells regret, ratio and host time of each regime, from score.json."""
    text = job.results.report.read_text(encoding="utf-8")
    rows = [line for line in text.partition("## Regimes")[2].partition("##")[0].splitlines() if "eager-" in line]

    assert [row.split("|")[1].strip() for row in rows] == [*REGIMES]
    for row, regime in zip(rows, REGIMES, strict=True):
        ratio = score["regimes"][regime]["auto_over_default_geomean"]
        assert f"| {ratio / 1e6:.3f} | 2.5 µs / 2.5 µs | 0 |" in row
