"""The score of records whose every sample is known: each metric is what a person computes by hand."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
import scripted
from scripted import FROST, HOLDOUT, SCRIPTED_YAML, Timed

from studytool import results
from studytool.digest import canonical
from studytool.errors import CannotSayError
from studytool.layout import StudyPlace
from studytool.metrics import METRICS
from studytool.model import Split, Status


def ppm(value: float) -> int:
    """Return a ratio in parts per million."""
    return round(value * 1_000_000)


@pytest.fixture(scope="module")
def score(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the score of the scripted hold-out."""
    return scripted.scored(tmp_path_factory.mktemp("score"))


# Of the three cases that were timed (80 stays, 320 gains, 640 loses by its entry), in this order:
BY_HAND = {
    "cases": 4,
    "cases_timed": 3,
    "reached": 2,
    "inconclusive": 0,
    "regret_backend_geomean": ppm((1 * 2 * 1) ** (1 / 3)),
    "regret_frost_geomean": ppm((1.5 * 1 * 1.1) ** (1 / 3)),
    "regret_default_geomean": ppm((1.01 * 2 * 1) ** (1 / 3)),
    "regret_default_max": 2_000_000,
    "regret_auto_geomean": ppm((1 * 1 * 1.1) ** (1 / 3)),
    "regret_auto_max": 1_100_000,
    "auto_over_default_geomean": ppm((1 / 1.01 * 0.5 * 1.1) ** (1 / 3)),
    "auto_over_default_min": 500_000,
    "auto_over_default_max": 1_100_000,
    "slower_beyond_noise": 1,
    "routing_changed": 0,
    "band": 10_000,  # two of seven pairs of legs that ran one plan differ by 1.01
    "spread_median": ppm(0.02 / 1.01),
    "spread_p90": ppm(0.04 / 1.02),
    "spread_max": ppm(0.04 / 1.02),
    "control_min": ppm(1 / 1.01),
    "control_max": 1_000_000,
    "closed_gap": ppm(1 - math.log(1.1) / math.log(1.65)),  # frost was the better fixed choice by the train split
}


@pytest.mark.parametrize("name", METRICS)
def test_each_metric_is_the_one_computed_by_hand(score: dict[str, Any], name: str) -> None:
    """Every metric that a gate may name equals what the samples give on paper."""
    assert score["metrics"][name] == BY_HAND[name]


def test_the_scripted_truth_is_told(score: dict[str, Any]) -> None:
    """Statuses, coverage, repeats, attempts and the gate are those of the script."""
    assert score["statuses"] == {"ok": 3, "crashed": 1}
    assert {name: score["coverage"][name] for name in ("leads", "trails", "abstains")} == {
        "leads": 2,
        "trails": 0,
        "abstains": 2,
    }
    assert (score["repeats"], score["attempts"]) == (3, {"train": 1, "holdout": 1, "routing": 1})
    assert [row["holds"] for row in score["gate"]] == [False, True, True, True]
    assert (score["verdict"], score["unscored"]) == ("FAIL", [])


def test_coverage_names_what_never_varied(score: dict[str, Any]) -> None:
    """Features with one value over train and hold-out are listed, those that varied are not."""
    constant = score["coverage"]["constant"]

    assert {"b": 1, "dtype": "bf16", "h_q": 4, "mask": "none", "square": 1}.items() <= constant.items()
    assert not {"s_kv", "s_q"} & constant.keys()


def test_a_case_tells_its_legs(score: dict[str, Any]) -> None:
    """Each timed case has the medians, plans, regrets and spreads of its legs."""
    case = next(case for case in score["cases"] if case["case"] == scripted.digest_at(640))

    assert case["leg_ns"] == {"backend": 102_000, "frost": 112_200, "auto": 112_200, "default": 102_000}
    assert case["plans"] == {"backend": "1", "frost": "5", "auto": "5", "default": "1"}
    assert case["regret_ppm"] == {"backend": 1_000_000, "frost": 1_100_000, "auto": 1_100_000, "default": 1_000_000}
    assert (case["frost_over_backend_ppm"], case["auto_over_default_ppm"]) == (1_100_000, [1_100_000] * 3)
    assert set(case["spread_ppm"].values()) == {ppm(0.04 / 1.02)}
    assert case["lookup"] is True


def test_the_same_records_give_the_same_bytes(score: dict[str, Any], tmp_path: Path) -> None:
    """A study made anew from the same samples has the same score.json, to the byte."""
    again = scripted.scored(tmp_path)

    assert results.score_bytes(again) == results.score_bytes(score)
    assert b"." not in canonical(score["metrics"]) + canonical(score["intervals"])


def test_intervals_hold_their_geomean(score: dict[str, Any]) -> None:
    """A bootstrap interval lies between the extreme cases and around the geometric mean."""
    for name, (low, high) in score["intervals"].items():
        assert low <= score["metrics"][name] <= high
    assert score["intervals"]["auto_over_default_geomean"][0] >= 500_000
    assert score["intervals"]["auto_over_default_geomean"][1] <= 1_100_000


def test_without_entries_auto_is_the_default(tmp_path: Path) -> None:
    """An empty table leaves auto the default plan: both regrets are equal, nothing is slower, all cases abstain."""
    table = {s_kv: Timed(backend=200_000, auto=200_000, default=200_000) for s_kv in HOLDOUT}
    found = scripted.scored(tmp_path, table, fitted=scripted.slow_train)
    metrics = found["metrics"]

    assert metrics["regret_auto_geomean"] == metrics["regret_default_geomean"] == 2_000_000
    assert (metrics["auto_over_default_geomean"], metrics["slower_beyond_noise"]) == (1_000_000, 0)
    assert found["coverage"]["abstains"] == 4


def test_the_oracle_has_regret_one(tmp_path: Path) -> None:
    """Where auto runs the faster engine of every case, its regret is 1 and the whole gap is closed."""
    table = {
        80: Timed(frost=150_000),
        320: Timed(backend=200_000, default=200_000, auto_plan=FROST, lookup=True),
        640: Timed(backend=300_000, default=300_000, auto_plan=FROST, lookup=True),
        1280: Timed(frost=120_000),
    }
    metrics = scripted.scored(tmp_path, table)["metrics"]

    assert (metrics["regret_auto_geomean"], metrics["regret_auto_max"], metrics["closed_gap"]) == (1_000_000,) * 3
    assert metrics["regret_default_geomean"] == ppm(6 ** (1 / 4))


def test_a_gap_within_the_noise_is_not_quoted(tmp_path: Path) -> None:
    """Where the fixed choice is as good as the oracle, there is no share to close."""
    metrics = scripted.scored(tmp_path, {s_kv: Timed(frost=100_500, default=101_000) for s_kv in HOLDOUT})["metrics"]

    assert metrics["closed_gap"] is None
    assert (metrics["regret_frost_geomean"], metrics["band"]) == (1_005_000, 10_000)


def test_the_fixed_choice_is_the_train_split_s(tmp_path: Path) -> None:
    """Where frost loses on the train split, the gap is that of always-backend, whatever the hold-out says."""
    table = {s_kv: Timed(backend=200_000, default=200_000, auto_plan=FROST) for s_kv in HOLDOUT} | {80: Timed()}
    metrics = scripted.scored(tmp_path, table, fitted=scripted.slow_train)["metrics"]

    assert metrics["regret_frost_geomean"] == 1_000_000
    assert metrics["closed_gap"] == 1_000_000


def quiet(length: int) -> dict[int, Timed]:
    """Return 24 cases whose legs do not differ, but the one of this length, whose auto takes 1.3 times as long."""
    return {s_kv: Timed() for s_kv in range(16, 400, 16)} | {length: Timed(auto=130_000)}


QUIET_YAML = SCRIPTED_YAML.replace("[80, 320, 640, 1280]", "{from: 16, to: 384, step: 16}").replace(
    "[64, 128, 256, 512, 1024, 2048], h_q: 4", "[64, 128, 256, 512, 1024, 2048], h_q: 2"
)


@pytest.mark.parametrize(
    ("changes", "counted"),
    [
        ({"auto_plan": FROST}, 1),
        ({}, 0),
        ({"auto_plan": FROST, "auto_factors": (0.8, 1.0, 1.2)}, 0),
        ({"auto_plan": FROST, "auto": 99_000}, 0),
    ],
    ids=["another plan", "the same plan", "within its interval", "faster"],
)
def test_slower_is_counted_only_where_an_entry_did_it(tmp_path: Path, changes: dict[str, Any], counted: int) -> None:
    """A case is slower beyond noise when its plan changed, it is above the band, and its interval is above 1."""
    table = quiet(208)
    table[208] = msgspec.structs.replace(table[208], **changes)
    metrics = scripted.scored(tmp_path, table, QUIET_YAML)["metrics"]

    assert (metrics["band"], metrics["closed_gap"]) == (0, None)
    assert metrics["slower_beyond_noise"] == counted


def test_slower_within_the_band_is_not_counted(tmp_path: Path) -> None:
    """A case that another plan makes slower by less than legs of one plan differ is no loss."""
    table = HOLDOUT | {640: Timed(frost=100_900, auto=100_900, auto_plan=FROST, lookup=True)}
    metrics = scripted.scored(tmp_path, table)["metrics"]

    assert (metrics["band"], metrics["auto_over_default_max"]) == (10_000, 1_009_000)
    assert metrics["slower_beyond_noise"] == 0


def test_statuses_add_up_to_the_cases(tmp_path: Path) -> None:
    """Each case has one status, the first that is not ok; a case that is not ok in one repeat is not timed."""
    table = HOLDOUT | {
        80: Timed(ended={1: Status.ERROR, 2: Status.CRASHED}),
        320: Timed(ended={3: Status.TIMEOUT}, lookup=False),
    }
    found = scripted.scored(tmp_path, table)

    assert found["statuses"] == {"ok": 1, "error": 1, "timeout": 1, "crashed": 1}
    assert (found["metrics"]["cases"], found["metrics"]["cases_timed"], len(found["cases"])) == (4, 1, 1)
    assert (found["coverage"]["leads"], found["coverage"]["trails"], found["coverage"]["abstains"]) == (1, 1, 2)


def test_no_timed_case_cannot_be_said(tmp_path: Path) -> None:
    """Where every case failed, the metrics of times have no value and the gate has no verdict."""
    found = scripted.scored(tmp_path, {s_kv: Timed(ended={1: Status.CRASHED}) for s_kv in HOLDOUT})

    assert found["metrics"]["cases_timed"] == 0
    assert found["metrics"]["slower_beyond_noise"] is None
    assert (found["verdict"], found["intervals"], found["cases"]) == ("CANNOT SAY", {}, [])


@pytest.mark.parametrize(
    "changed", [Timed(auto_plan=FROST), Timed(ended={1: Status.ERROR})], ids=["another plan", "failed"]
)
def test_a_routing_case_that_changes_is_counted(tmp_path: Path, changed: Timed) -> None:
    """A routing case whose plan changed, or that could not be planned, counts against the gate."""
    place = scripted.prepare(tmp_path)
    scripted.write(place, Split.HOLDOUT, scripted.by_length(HOLDOUT))
    scripted.write(place, Split.ROUTING, scripted.by_length({128: changed, 256: Timed()}))
    found = scripted.score_of(place)

    assert found["metrics"]["routing_changed"] == 1
    assert found["gate"][3]["holds"] is False
    assert len(found["routing"]) == 2


def test_unscored_attempts_are_listed(tmp_path: Path) -> None:
    """An interrupted attempt stays in the score with its count; the last attempt alone is scored."""
    place = scripted.prepare(tmp_path)
    scripted.write(place, Split.HOLDOUT, lambda _case: Timed(auto=500_000), stop_after=5)
    scripted.write(place, Split.HOLDOUT, scripted.by_length(HOLDOUT), attempt=2)
    scripted.write(place, Split.ROUTING, lambda _case: Timed())
    found = scripted.score_of(place)

    assert found["unscored"] == [
        {"split": "holdout", "attempt": 1, "lines": 5, "planned": 12, "verdict": "", "reason": ""}
    ]
    assert found["attempts"]["holdout"] == 2
    assert found["metrics"] == BY_HAND


def test_an_incomplete_hold_out_is_not_scored(tmp_path: Path) -> None:
    """With lines missing there is no score, and the error says how many are there."""
    place = scripted.prepare(tmp_path)
    scripted.write(place, Split.HOLDOUT, scripted.by_length(HOLDOUT), stop_after=11)

    with pytest.raises(CannotSayError, match=r"^holdout attempt 1 is incomplete: 11 of 12 lines; run `studytool time"):
        scripted.score_of(place)
    assert not place.results("bf16").score.exists()


def test_scoring_twice_is_one_look(tmp_path: Path) -> None:
    """The ledger notes a look once per score: the same records scored again add nothing."""
    scripted.scored(tmp_path)
    place = StudyPlace(tmp_path, "scripted")
    before = place.results("bf16").ledger.read_bytes()
    scripted.score_of(place)

    assert place.results("bf16").ledger.read_bytes() == before
    assert before.count(b'"event":"score"') == 1
