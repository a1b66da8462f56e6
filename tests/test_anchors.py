"""Anchors: cases that every board measures, and what is said where boards disagree on them."""

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import benches
import finished
import forger
import numpy as np
import pytest
from bad_records import chained, values_of
from commands import Said, call
from factories import STUDY_YAML, make_case, make_leg, make_record, make_study
from hypothesis import given
from hypothesis import strategies as st

from studytool import attempts, boards, editing, opening, pipeline, replay, reporting, results, stats, studyfile
from studytool.boards import Anchor
from studytool.engines.simulated import WHICH_BOARD
from studytool.errors import StudyFileError
from studytool.grid import case_digest
from studytool.layout import StudyPlace
from studytool.model import LEGS, Case, Record, Split
from studytool.report import control

Lanes = Mapping[str, Sequence[tuple[Record, int]]]
BAND = 0.01
CASES = [make_case(s_kv=s_kv) for s_kv in (64, 128, 256)]


def record(case: Case, repeat: int, log_ratio: float, **changes: Any) -> Record:
    """Return the record of a case in a repeat with this ln(frost/backend)."""
    legs = dict.fromkeys(LEGS, make_leg((10**9,) * 4)) | {
        "frost": make_leg((round(1e9 * math.exp(log_ratio)),) * 4, plan=5)
    }
    return make_record(**{"of": case, "repeat": repeat, "legs": legs} | changes)


def lanes_of(ratios: Mapping[str, Sequence[Sequence[float]]], **changes: Any) -> Lanes:
    """Return the records of anchors by lane: of each lane a row of repeats for each of CASES, its ln(frost/backend)."""
    return {
        lane: [
            (record(case, repeat, value, **changes), 1)
            for case, row in zip(CASES, rows, strict=False)
            for repeat, value in enumerate(row, 1)
        ]
        for lane, rows in ratios.items()
    }


def drawn(seed: int, effects: Mapping[str, float], noise: float = 0.004, repeats: int = 5) -> Lanes:
    """Return anchors of boards with these effects, each with noise of its own in every repeat."""
    dice = np.random.default_rng(seed)
    truths = dice.normal(-0.3, 0.2, len(CASES))
    return lanes_of(
        {
            lane: [[truth + effect + dice.normal(0, noise) for _ in range(repeats)] for truth in truths]
            for lane, effect in effects.items()
        }
    )


# Arithmetic


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 4])
def test_boards_without_an_effect_agree(seed: int, count: int) -> None:
    """Boards that differ by noise within the band alone are never told apart."""
    found = boards.compare(drawn(seed, {f"{n}of{count}": 0.0 for n in range(1, count + 1)}), BAND, 0.95)

    assert found.apart == []
    assert len(found.anchors) == 3


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("effect", [0.04, -0.04])
def test_a_board_with_an_effect_is_told(seed: int, effect: float) -> None:
    """Of four boards the one that is far off is named, and no other, whichever way it is off."""
    lanes = drawn(seed, {"1of4": 0.0, "2of4": 0.0, "3of4": effect, "4of4": 0.0})
    found = boards.compare(lanes, 0.025, 0.95)

    assert found.apart == ["3of4"]
    assert found.offsets["eager-warm"]["3of4"].center == pytest.approx(effect, abs=0.01)
    assert found.offsets["eager-warm"]["1of4"].center == pytest.approx(-effect / 3, abs=0.01)


def test_an_offset_is_the_whole_difference_of_two_boards() -> None:
    """Of two boards each is off the other by all of their difference: the mean over anchors, over the repeats."""
    lanes = lanes_of({"a": [[0.1, 0.3], [0.2, 0.2]], "b": [[0.0, 0.1], [0.1, 0.0]]})
    off = boards.compare(lanes, BAND, 0.95).offsets["eager-warm"]
    expected = stats.interval([0.1, 0.2], 0.95)

    assert off["a"] == pytest.approx(expected, abs=1e-8)
    assert off["b"] == pytest.approx((-expected.center, -expected.high, -expected.low), abs=1e-8)


@given(
    st.lists(
        st.lists(st.lists(st.floats(-1, 1), min_size=3, max_size=3), min_size=2, max_size=2), min_size=2, max_size=5
    ),
    st.randoms(use_true_random=False),
)
def test_offsets_depend_on_no_order_and_sum_to_nothing(values: list[list[list[float]]], dice: Any) -> None:
    """Offsets of all lanes sum to zero, and are the same whatever order lanes and anchors are in."""
    names = [f"{n}of9" for n in range(1, len(values) + 1)]
    own = [
        Anchor(
            str(case),
            "eager-warm",
            {name: dict(enumerate(rows[case])) for name, rows in zip(names, values, strict=True)},
        )
        for case in range(2)
    ]
    off = boards.offsets(own, 0.95)["eager-warm"]
    shuffled = list(names)
    dice.shuffle(shuffled)
    other = [Anchor(a.case, a.regime, {name: a.ratios[name] for name in shuffled}) for a in reversed(own)]

    assert sum(one.center for one in off.values()) == pytest.approx(0, abs=1e-9)
    for name, one in boards.offsets(other, 0.95)["eager-warm"].items():
        assert one == pytest.approx(off[name], abs=1e-9)


def test_only_what_all_lanes_measured_is_compared() -> None:
    """An anchor that a lane lacks, or a repeat, is left out; without any in all lanes there is no offset."""
    full = {1: 0.1, 2: 0.1, 3: 0.1}
    own = [
        Anchor("a", "warm", {"x": full, "y": {1: 0.2, 2: 0.2}}),
        Anchor("b", "warm", {"x": full}),
        Anchor("a", "cold", {"x": full}),
        Anchor("c", "cold", {"y": full}),
    ]
    off = boards.offsets(own, 0.95)

    assert set(off) == {"warm"}
    assert off["warm"]["y"] == pytest.approx((0.1, 0.1, 0.1))
    assert boards.disagreeing(off, 0.05) == ["x", "y"]


def test_each_regime_is_compared_by_itself() -> None:
    """A board that is off in one regime alone is off; anchors come in the order of digest and regime."""
    warm = lanes_of({"a": [[0.0] * 3], "b": [[0.0] * 3]})
    cold = lanes_of({"a": [[0.0] * 3], "b": [[0.2] * 3]}, regime="eager-cold")
    found = boards.compare({lane: [*warm[lane], *cold[lane]] for lane in warm}, BAND, 0.95)

    assert found.offsets["eager-warm"]["b"].center == 0
    assert found.offsets["eager-cold"]["b"].center == pytest.approx(0.2, abs=1e-8)
    assert found.apart == ["a", "b"]
    assert [(one.case, one.regime) for one in found.anchors] == [
        (case_digest(CASES[0]), "eager-cold"),
        (case_digest(CASES[0]), "eager-warm"),
    ]


def test_an_anchor_that_failed_in_a_lane_is_left_out() -> None:
    """An anchor of which only one lane has samples says nothing of boards."""
    lanes = lanes_of({"a": [[0.0] * 3], "b": [[0.2] * 3]})
    failed = [(make_record(of=CASES[0], repeat=r, status="crashed", error="ended by SIGKILL"), 1) for r in (1, 2, 3)]
    found = boards.compare({**lanes, "b": failed}, BAND, 0.95)

    assert (found.anchors, found.offsets, found.apart) == ([], {}, [])


@pytest.mark.parametrize(
    ("low", "center", "high", "band", "apart"),
    [
        (0.011, 0.02, 0.03, 0.01, True),
        (0.009, 0.02, 0.03, 0.01, False),
        (0.01, 0.02, 0.03, 0.01, False),
        (-0.03, -0.02, -0.011, 0.01, True),
        (-0.03, -0.02, -0.009, 0.01, False),
        (-0.5, 0.0, 0.5, 0.01, False),
        (0.001, 0.002, 0.003, None, True),
        (0.0, 0.0, 0.0, None, False),
    ],
)
def test_a_board_is_off_with_its_whole_interval(
    low: float, center: float, high: float, band: float | None, apart: bool
) -> None:
    """A board disagrees when all of its interval is beyond the A/A band; without a band, beyond zero."""
    found = {"eager-warm": {"3of4": stats.Interval(center, low, high)}}

    assert boards.disagreeing(found, band) == (["3of4"] if apart else [])


def test_one_board_has_none_to_be_compared_with() -> None:
    """Records of one lane, or of none, say nothing of boards."""
    alone = lanes_of({"a": [[0.0] * 3] * 3})

    assert boards.compare({}, BAND, 0.95) == boards.compare(alone, BAND, 0.95) == boards.Compared([], {}, [])


# Which records count


SHARED_YAML = (
    finished.WHOLE_YAML.replace("[bf16, f16]", "[bf16]")
    .replace("blocks: 8}", "blocks: 8, anchors: 3}")
    .replace(
        "      - {dtype: f16, s_kv: [96, 192, 384, 768, 1536], h_q: 8, d_qk: 64, mask: tl, window: s_kv // 2}\n", ""
    )
    .replace("h_q: 4, d_qk: 64}\n  holdout", "h_q: [4, 8], d_qk: 64}\n  holdout")
    .replace(
        "{s_kv: 512, h_q: 4, d_qk: 64, bias", "{s_kv: [96, 192, 256, 384, 512, 768, 1024, 2048], h_q: 4, d_qk: 64, bias"
    )
)
"""Twelve train and four hold-out cases, of which three each are anchors; of each split two shards have some."""

APART_YAML = SHARED_YAML.replace("seed: 7", "seed: 7\n  board_ppm: 20000")
"""On a device of which boards differ far more than its noise."""


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every worker be in this process."""
    benches.inline(monkeypatch)


def frozen(root: Path, text: str = SHARED_YAML) -> StudyPlace:
    """Return the place of a study that is frozen below root."""
    place = finished.declare(root, text)
    pipeline.freeze_study(opening.open_study(place), place, [])
    return place


def time(place: StudyPlace, *more: object, board: str = "") -> Said:
    """Return how timing on a board ended."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WHICH_BOARD, board)
        return call("time", place.folder, "--dtype", "bf16", *more)


def in_shards(place: StudyPlace, names: Sequence[str], split: Split = Split.TRAIN) -> None:
    """Measure a split in as many shards as there are boards, and merge them."""
    for number, board in enumerate(names, 1):
        assert time(place, "--split", split, "--shard", f"{number}/{len(names)}", board=board).code == 0
    assert call("merge-records", "--into", place.folder, "--dtype", "bf16", "--split", split).code == 0


def walk(place: StudyPlace, train: Sequence[str], holdout: Sequence[str]) -> dict[str, Any]:
    """Take a study to its report, train and hold-out each on these boards, and return its score."""
    job, hooks = forger.job_of(place, Split.TRAIN), finished.hooks()
    for split, names in ((Split.TRAIN, train), (Split.HOLDOUT, holdout), (Split.ROUTING, ["one"])):
        if len(names) > 1:
            in_shards(place, names, split)
        else:
            assert time(place, "--split", split, board=names[0]).code == 0
        if split is Split.TRAIN:
            pipeline.generate(job)
            editing.apply_lines(job.results.lines, place.table, hooks.now)
    scored = pipeline.score(job._replace(split=Split.HOLDOUT), hooks.now)
    reporting.report(job._replace(split=Split.HOLDOUT))
    return dict(json.loads(json.dumps(scored)))


def failing(place: StudyPlace) -> dict[str, str]:
    """Return what a replay finds wrong, or cannot say, by check."""
    found = replay.replay(opening.open_study(place), place)
    return {check.name: check.figure for check in found if check.state in {replay.FAIL, replay.UNSAID}}


def test_anchors_are_counted_once(tmp_path: Path) -> None:
    """However many lanes measured an anchor, it is as many planned lines as any case, and study.json has it once."""
    place = frozen(tmp_path)
    in_shards(place, ["one", "two", "three"])
    (attempt,) = forger.job_of(place, Split.TRAIN).attempts()
    summary = results.train(forger.job_of(place, Split.TRAIN)).summary

    assert sum(len(file.records) for file in attempt.read) == 36 + 2 * 9
    assert sum(len(file.records) for file in attempt.files) == attempt.planned == attempt.found == 36
    assert {regime.repeats for case in summary.cases for regime in case.regimes.values()} == {3}
    assert {lane: len(own) for lane, own in attempt.anchored.items()} == {"1of3": 9, "2of3": 9, "3of3": 9}


def test_what_anchors_are_follows_from_the_study(tmp_path: Path) -> None:
    """Train and hold-out have as many anchors as declared, other ones in each; routing has none."""
    job = forger.job_of(frozen(tmp_path), Split.TRAIN)
    found = {split: attempts.anchors_of(job.study, split, job._replace(split=split).cases) for split in Split}

    assert [len(found[split]) for split in Split] == [3, 3, 0]
    assert found[Split.TRAIN] < job.cases.keys()


def counted(place: StudyPlace) -> dict[str, set[str]]:
    """Return the lanes whose records of each anchor count."""
    job = forger.job_of(place, Split.TRAIN)
    anchors = attempts.anchors_of(job.study, job.split, job.cases)
    found: dict[str, set[str]] = {}
    for file in job.attempts()[-1].files:
        for one in file.records:
            if one.case in anchors:
                found.setdefault(one.case, set()).add(file.session.lane)
    return found


def test_the_lane_with_most_lines_of_an_anchor_counts(tmp_path: Path) -> None:
    """Of an anchor the records of one lane count: of those with most lines of it, the first by name."""
    place = frozen(tmp_path)
    for number in (1, 2):
        assert time(place, "--shard", f"{number}/2", board=str(number)).code == 0
    job = forger.job_of(place, Split.TRAIN)
    alike = counted(place)
    (case, *others) = sorted(attempts.anchors_of(job.study, job.split, job.cases))
    path = job.results.session(Split.TRAIN, 1, 1, "1of2")
    values = values_of(path)
    chained(path, [value for value in values if (value.get("case"), value.get("repeat")) != (case, 2)])
    fewer = counted(place)

    assert alike == {case: {"1of2"}, **{other: {"1of2"} for other in others}}
    assert fewer == {case: {"2of2"}, **{other: {"1of2"} for other in others}}
    assert job.attempts()[-1].missing == frozenset()


# Boards that agree, and boards that do not


@pytest.mark.parametrize("seed", range(20))
def test_simulated_boards_without_an_effect_are_not_told_apart(tmp_path: Path, seed: int) -> None:
    """Shards of boards that are alike give no case the code BOARDS, whatever the device's noise is."""
    place = frozen(tmp_path, SHARED_YAML.replace("seed: 7", f"seed: {seed}"))
    in_shards(place, ["one", "two"])
    found = results.train(forger.job_of(place, Split.TRAIN)).summary

    assert not [case for case in found.cases for own in case.regimes.values() if own.code == "BOARDS"]


@pytest.mark.parametrize("names", [["one", "two"], ["one", "two", "three"]])
def test_train_boards_that_disagree_decide_nothing(tmp_path: Path, names: list[str]) -> None:
    """Where one board is off by more than the band, every train case has the code BOARDS, and no line is emitted."""
    place = frozen(tmp_path, APART_YAML)
    in_shards(place, names)
    job = forger.job_of(place, Split.TRAIN)
    summary = results.study_json(job.results.study_json.read_bytes(), "study.json").summary
    fitted = results.lines_of(results.train(job), job.study.decide.margin_ppm, job.study.decide.scope)

    assert {own.code for case in summary.cases for own in case.regimes.values()} == {"BOARDS"}
    assert len(summary.cases) == 12
    assert [(outcome.line, outcome.code) for outcome in fitted.outcomes] == [(None, "NOISE")]
    assert pipeline.generate(job).count("\n") == 1


def test_the_same_boards_without_anchors_are_believed(tmp_path: Path) -> None:
    """Without anchors nothing tells of it: this is why there are anchors."""
    place = frozen(tmp_path, APART_YAML.replace(", anchors: 3", ""))
    in_shards(place, ["one", "two"])
    summary = results.train(forger.job_of(place, Split.TRAIN)).summary

    assert {own.code for case in summary.cases for own in case.regimes.values()} == {""}


def test_one_board_of_many_is_not_off_itself(tmp_path: Path) -> None:
    """Where one board measures all shards, its effect does not make it disagree."""
    place = frozen(tmp_path, APART_YAML)
    in_shards(place, ["one", "one", "one"])
    summary = results.train(forger.job_of(place, Split.TRAIN)).summary

    assert {own.code for case in summary.cases for own in case.regimes.values()} == {""}


def test_hold_out_boards_that_disagree_cannot_pass(tmp_path: Path) -> None:
    """A hold-out of boards that disagree is CANNOT SAY with the reason; score exits 3, and a replay says so."""
    place = frozen(tmp_path, APART_YAML)
    scored = walk(place, ["one"], ["one", "two"])
    said = call("score", place.folder, "--dtype", "bf16")
    found = scored["boards"]
    report = place.results("bf16").report.read_text()
    reason = "BOARDS: anchors of 1of2, 2of2 are off those of the others"

    assert (scored["verdict"], scored["open"]) == ("CANNOT SAY", [reason])
    assert {case["code"] for case in scored["cases"]} == {"BOARDS"}
    assert said.code == 3
    assert said.err == f"the gate cannot say: {reason}\n"
    assert found["apart"] == ["1of2", "2of2"]
    assert "**BOARDS: 1of2, 2of2 off the others.**" in report
    assert failing(place).keys() == {"gate"}
    assert failing(place)["gate"].startswith(reason)


def test_hold_out_that_fails_on_boards_that_disagree_does_not_fail(tmp_path: Path) -> None:
    """A gate that would fail on boards that disagree cannot be said either."""
    place = frozen(
        tmp_path, APART_YAML.replace("auto_over_default_geomean <= 1.02", "auto_over_default_geomean <= 0.01")
    )
    scored = walk(place, ["one"], ["one", "two"])

    assert [item["holds"] for item in scored["gate"]].count(False) == 1
    assert scored["verdict"] == "CANNOT SAY"


# What score and report say


def test_a_score_tells_of_its_boards(tmp_path: Path) -> None:
    """`boards` in score.json: ids, lanes, anchors with their ratio in each lane, and offsets as ratios in ppm."""
    place = frozen(tmp_path, SHARED_YAML)
    scored = walk(place, ["one", "two"], ["three", "four"])
    job = forger.job_of(place)
    anchors = sorted(attempts.anchors_of(job.study, job.split, job.cases))
    found = scored["boards"]
    lanes = {lane: own[0].session.fingerprint.uuid for lane, own in job.attempts()[-1].lanes.items()}
    ratios = {case["case"]: case["frost_over_backend_ppm"] for case in scored["cases"]}

    assert scored["verdict"] == "PASS"
    assert failing(place) == {}
    assert found["lanes"] == lanes
    assert set(lanes) == {"1of2", "2of2"}
    assert found["boards"] == sorted(lanes.values())
    assert [one["case"] for one in found["anchors"]] == anchors
    assert [one["label"] for one in found["anchors"]] == [job.cases[case].label for case in anchors]
    for one in found["anchors"]:
        assert one["frost_over_backend_ppm"] == dict.fromkeys(lanes, ratios[one["case"]])
    assert found["offsets_ppm"] == {"eager-warm": dict.fromkeys(lanes, [1_000_000] * 3)}
    assert (found["apart"], found["neighbours"]) == ([], 0)


def test_a_score_of_one_board(made: StudyPlace) -> None:
    """A hold-out of one machine is on one board, without lanes and anchors, and the report says just that."""
    found = json.loads(made.results("bf16").score.read_bytes())["boards"]

    assert len(found["boards"]) == 1
    assert {name: value for name, value in found.items() if name != "boards"} == {
        "lanes": {},
        "neighbours": 0,
        "anchors": [],
        "offsets_ppm": {},
        "apart": [],
    }
    assert control.boards({"boards": found}) == "- Measured on 1 board."
    assert "- Measured on 1 board.\n" in made.results("bf16").report.read_text()


def of_boards(**changes: Any) -> dict[str, Any]:
    """Return the boards of a score: two of them, in two lanes, which agree on one anchor."""
    found = {
        "boards": ["aa", "bb"],
        "lanes": {"1of2": "aa", "2of2": "bb"},
        "neighbours": 0,
        "anchors": [
            {
                "case": "c",
                "label": "label",
                "regime": "warm",
                "frost_over_backend_ppm": {"1of2": 700_000, "2of2": 710_000},
            }
        ],
        "offsets_ppm": {"warm": {"1of2": [990_000, 980_000, 999_000], "2of2": [1_010_000, 1_001_000, 1_020_000]}},
        "apart": [],
    }
    return {"boards": {**found, **changes}}


def test_a_report_shows_the_anchors() -> None:
    """A report says how many boards, that they agree, and shows each anchor's ratio and offset by lane."""
    assert control.boards(of_boards()) == (
        "- Measured on 2 boards, in 2 lanes side by side. Anchors, which each lane measured, agree within the band.\n"
        "\n"
        "frost / backend of the anchors:\n"
        "\n"
        "| lane | board | label, warm | over the others, warm |\n"
        "| --- | --- | --- | --- |\n"
        "| 1of2 | `aa` | 0.700 | 0.990 (0.980 to 0.999) |\n"
        "| 2of2 | `bb` | 0.710 | 1.010 (1.001 to 1.020) |\n"
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"apart": ["1of2"]}, "in 2 lanes side by side. **BOARDS: 1of2 off the others.**\n"),
        ({"neighbours": 3}, "side by side; on one host at most 3 others measured beside one. Anchors, which "),
        ({"boards": ["aa"]}, "- Measured on 1 board, in 2 lanes side by side. Anchors"),
        ({"offsets_ppm": {}}, "| 2of2 | `bb` | 0.710 |\n"),
        ({"offsets_ppm": {"warm": {"1of2": [1, 1, 1]}}}, "| 2of2 | `bb` | 0.710 | n/a |\n"),
    ],
)
def test_a_report_says_what_boards_do(changes: dict[str, Any], words: str) -> None:
    """A report names who is off, tells of neighbours on a host, and shows what is there where something is missing."""
    assert words in control.boards(of_boards(**changes))


def test_a_report_without_anchors_says_so() -> None:
    """Where no case was measured in more than one lane, nothing shows that boards agree: it is said."""
    assert control.boards(of_boards(anchors=[], offsets_ppm={})) == (
        "- Measured on 2 boards, in 2 lanes side by side."
        " No case was measured in more than one lane: nothing shows that they agree."
    )


def test_a_whole_report_without_anchors(tmp_path: Path) -> None:
    """The report of a hold-out in shards without anchors has that sentence, and a replay of it holds."""
    place = frozen(tmp_path, SHARED_YAML.replace(", anchors: 3", ""))
    scored = walk(place, ["one", "two"], ["one", "two"])
    text = place.results("bf16").report.read_text()

    assert scored["verdict"] == "PASS"
    assert "- Measured on 2 boards, in 2 lanes side by side. No case was measured in more than one lane: " in text
    assert failing(place) == {}


# The declaration


@pytest.mark.parametrize(
    ("text", "count"), [("blocks: 8", 0), *((f"blocks: 8, anchors: {n}", n) for n in (0, 1, 1000))]
)
def test_anchors_are_declared(text: str, count: int) -> None:
    """There are as many anchors as declared, and none by default."""
    assert make_study(STUDY_YAML.replace("blocks: 8", text)).protocol.anchors == count


@pytest.mark.parametrize("value", ["-1", "1001", "many", "1.5", "[1]", "true", ""])
def test_anchors_that_cannot_be_are_one_line(value: str) -> None:
    """A number of anchors that cannot be is one line with file, line and what was found."""
    text = STUDY_YAML.replace("blocks: 8", f"blocks: 8, anchors: {value}")
    line = next(number for number, own in enumerate(text.splitlines(), 1) if "anchors" in own)
    with pytest.raises(StudyFileError) as caught:
        studyfile.parse(text.encode(), "study.yaml", "tiny")

    assert str(caught.value).startswith(f"study.yaml:{line}: protocol.anchors")
    assert "\n" not in str(caught.value)


def test_more_anchors_than_cases_are_all(tmp_path: Path) -> None:
    """Where more anchors are declared than there are cases, every board measures all of them."""
    place = frozen(tmp_path, SHARED_YAML.replace("anchors: 3", "anchors: 1000"))
    in_shards(place, ["one", "two"])
    (attempt,) = forger.job_of(place, Split.TRAIN).attempts()

    assert [sum(len(file.records) for file in own) for own in attempt.lanes.values()] == [36, 36]
    assert attempt.found == attempt.planned == 36
    assert list(itertools.chain.from_iterable(attempt.anchored)) != []
