"""The two cuDNN studies ask what they say: classes, counts, ranges and controls, and what their entries could reach."""

import itertools
from collections import Counter
from collections.abc import Iterable

import pytest
from a100 import BOARD, ROOT, SQUARE, Cases, class_of, table_of

from studytool import freeze, grid, ledger, opening
from studytool.digest import sha256
from studytool.layout import StudyPlace
from studytool.metrics import condition_text
from studytool.model import Case, Split, Study
from studytool.runtime import key, lookup

ENVELOPE = StudyPlace(ROOT, "sdpa_fwd_sm90_envelope")
BOTH = pytest.mark.parametrize("place", [SQUARE, ENVELOPE], ids=lambda place: str(place.name))
DTYPES = ("bf16", "f16")


def opened(place: StudyPlace) -> tuple[Study, Cases]:
    """Return a study and its cases by split."""
    study = opening.open_study(place)
    return study, {split: list(cases.values()) for split, cases in grid.expand(study).items()}


def values(cases: Iterable[Case], name: str) -> set[key.Value]:
    """Return the values that a feature has in these cases."""
    return {key.feature(case.fields, name) for case in cases}


def ends(cases: Iterable[Case], name: str) -> tuple[int, int]:
    """Return the smallest and the largest value of a field in these cases."""
    found = [int(getattr(case, name)) for case in cases]
    return min(found), max(found)


def answers(study: Study, table: lookup.Table, cases: Iterable[Case]) -> Counter[str]:
    """Return how often the table gives each answer: its code, and what the code is about."""
    found = (lookup.explain(table, study.row, study.cc, case.fields, BOARD) for case in cases)
    return Counter(f"{answer.code} {answer.detail}".strip() for answer in found)


def flops(case: Case) -> int:
    """Return the operations of a causal forward: two products, of which the mask leaves half."""
    return 2 * case.b * case.h_q * case.s_q * case.s_kv * case.d_qk


# Both studies


@BOTH
def test_what_is_frozen_is_what_the_study_declares(place: StudyPlace) -> None:
    """Every file of frozen_cases is, byte for byte, the one that study.yaml makes, with the hash in the manifest."""
    study, cases = opened(place)
    frozen = freeze.verify(study, place)

    assert frozen.manifest.counts == {str(split): len(found) for split, found in cases.items()}


@BOTH
def test_no_case_is_in_two_splits(place: StudyPlace) -> None:
    """Hold-out and routing share no case with train or with each other, and hold-out differs as declared."""
    study = opening.open_study(place)
    splits = grid.expand(study)

    assert not any(one.keys() & other.keys() for one, other in itertools.combinations(splits.values(), 2))
    assert grid.differences_missing(study, splits) == []


@BOTH
def test_both_dtypes_are_asked_the_same(place: StudyPlace) -> None:
    """A case of one dtype has a twin of the other in its split."""
    _, cases = opened(place)

    for found in cases.values():
        shapes = [{tuple({**c.fields, "dtype": ""}.items()) for c in found if c.dtype == dtype} for dtype in DTYPES]
        assert shapes[0] == shapes[1]


@BOTH
def test_only_squares_are_trained_on(place: StudyPlace) -> None:
    """Squareness is the guard, and every train case passes it."""
    study, cases = opened(place)

    assert study.guards == ("square",)
    assert values(cases[Split.TRAIN], "square") == {1}


# The A100 study


def test_the_sixteen_classes_are_filled_evenly() -> None:
    """Dtype x d64, d128 x MHA, GQA x tile make 16 classes: 16 train, 8 hold-out and 2 routing cases in each."""
    study, cases = opened(SQUARE)
    classes = {
        (dtype, d, d, "br+window", heads, tile)
        for dtype, d, heads, tile in itertools.product(DTYPES, (64, 128), ("mha", "gqa"), ("on", "off"))
    }

    assert len(classes) == 16
    for split, count in ((Split.TRAIN, 16), (Split.HOLDOUT, 8), (Split.ROUTING, 2)):
        assert Counter(class_of(study, case) for case in cases[split]) == dict.fromkeys(classes, count)


def test_the_counts_are_the_published_ones() -> None:
    """128 train, 64 hold-out and 16 routing cases per dtype: 416 hold-out lines, were there three repeats."""
    _, cases = opened(SQUARE)

    assert {split: Counter(case.dtype for case in found) for split, found in cases.items()} == {
        Split.TRAIN: {"bf16": 128, "f16": 128},
        Split.HOLDOUT: {"bf16": 64, "f16": 64},
        Split.ROUTING: {"bf16": 16, "f16": 16},
    }
    assert len(cases[Split.HOLDOUT]) * 3 + len(cases[Split.ROUTING]) == 416


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_ranges_are_the_published_ones(dtype: str) -> None:
    """Batches, lengths and windows reach both ends of what was published, in train and in hold-out."""
    _, cases = opened(SQUARE)
    train, holdout = ([c for c in cases[split] if c.dtype == dtype] for split in (Split.TRAIN, Split.HOLDOUT))

    assert [ends(train, name) for name in ("b", "s_kv", "window")] == [(1, 32), (128, 16250), (16, 2048)]
    assert [ends(holdout, name) for name in ("b", "s_kv", "window")] == [(1, 24), (128, 16484), (24, 8000)]


def test_windows_bind_and_do_not_bind_in_every_split() -> None:
    """A window wider than S, as the published hold-out has, occurs in train too, since an entry holds for it."""
    _, cases = opened(SQUARE)

    assert [values(cases[split], "window_binds") for split in Split] == [{0, 1}] * 3


def test_holdout_is_square_and_routing_is_not() -> None:
    """All that is timed is square; every routing case has fewer queries than keys."""
    _, cases = opened(SQUARE)

    assert values(cases[Split.HOLDOUT], "square") == {1}
    assert all(case.s_q < case.s_kv for case in cases[Split.ROUTING])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("split", "label"),
    [
        (Split.HOLDOUT, "b24 h28/4 d128 S128 br w8000"),
        (Split.HOLDOUT, "b12 h48/6 d128 S16484 br w96"),
        (Split.ROUTING, "b12 h40/8 d64 S128/8960 br w8000"),
    ],
)
def test_the_quoted_cases_are_there(split: Split, label: str, dtype: str) -> None:
    """The slowest case, the one with the largest time saved, and the q < kv one that lost are asked again."""
    _, cases = opened(SQUARE)

    assert f"sdpa_bwd {dtype} {label}" in {case.label for case in cases[split]}


def test_holdout_has_other_sizes_than_train() -> None:
    """Heads and windows are all new; of batches and lengths, only the published ends b 1 and S 128 come again."""
    study, cases = opened(SQUARE)
    train, holdout = cases[Split.TRAIN], cases[Split.HOLDOUT]

    assert study.splits[Split.HOLDOUT].differs == ("h_q", "h_kv", "window")
    assert values(train, "b") & values(holdout, "b") == {1}
    assert values(train, "s_kv") & values(holdout, "s_kv") == {128}


def test_every_case_fits_an_a100_of_40_gb() -> None:
    """Q, O, dO, dQ in 16 bit and dQ in 32 bit, K, V, dK, dV in 16 bit: none needs more than 20 GB."""
    _, cases = opened(SQUARE)
    found = [12 * c.b * c.h_q * c.s_q * c.d_qk + 8 * c.b * c.h_kv * c.s_kv * c.d_qk for s in cases.values() for c in s]

    assert 10 * 10**9 < max(found) < 20 * 10**9


def test_where_the_row_always_wins_each_class_gets_an_entry() -> None:
    """Sixteen `always` entries, as published; all of hold-out is led, and by the guard none of routing."""
    study, cases = opened(SQUARE)
    table = table_of(study, cases[Split.TRAIN], lambda _: 500_000)

    assert Counter(entry.rule for entry in table.entries.values()) == {"always": 16}
    assert answers(study, table, cases[Split.HOLDOUT]) == {"HIT": 128}
    assert answers(study, table, cases[Split.ROUTING]) == {"GUARD square": 32}


def test_where_the_row_wins_from_a_length_on_the_class_is_cut_there() -> None:
    """A row that loses below a length leads from the next one on, in each of the sixteen classes."""
    study, cases = opened(SQUARE)
    table = table_of(study, cases[Split.TRAIN], lambda case: 500_000 if case.s_kv >= 700 else 1_300_000)

    assert {(entry.rule, entry.axis) for entry in table.entries.values()} == {("from", "s_kv")}
    assert len(table.entries) == 16
    assert min(entry.bound for entry in table.entries.values()) == 700


def test_the_a100_study_is_timed_as_said() -> None:
    """Five repeats of 16 blocks, eager and warm, with both distributions; nothing is declared of cc but 8.0."""
    study, _ = opened(SQUARE)
    protocol = study.protocol

    assert (study.engine, study.row, study.base, study.cc) == ("cudnn", "sdpa_bwd_sm80", "backend", "8.0")
    assert (protocol.repeats, protocol.blocks, protocol.regimes) == (5, 16, ("eager-warm",))
    assert (protocol.distributions, protocol.case_timeout_s) == (("normal", "uniform"), 600)
    assert (study.decide.margin_ppm, study.decide.max_regret_ppm) == (50_000, 1_100_000)


def test_the_a100_gate_asks_for_the_published_outcome() -> None:
    """Nothing slower beyond noise, routing as the rule says, and a regret that the default order would not pass."""
    study, _ = opened(SQUARE)

    assert [condition_text(condition) for condition in study.gate] == [
        "slower_beyond_noise == 0",
        "auto_over_default_geomean <= 1",
        "regret_auto_geomean <= 1.02",
        "regret_auto_max <= 1.1",
        "routing_changed == 0",
    ]


# The H200 study


def test_the_envelope_s_counts() -> None:
    """Per dtype 12 train cases, 12 hold-out cases with 3 controls, and 8 routing cases; train fills four classes."""
    study, cases = opened(ENVELOPE)

    assert {split: Counter(case.dtype for case in found) for split, found in cases.items()} == {
        Split.TRAIN: {"bf16": 12, "f16": 12},
        Split.HOLDOUT: {"bf16": 15, "f16": 15},
        Split.ROUTING: {"bf16": 8, "f16": 8},
    }
    assert Counter(class_of(study, case) for case in cases[Split.TRAIN]) == dict.fromkeys(
        itertools.product(DTYPES, ("tl",), ("mha", "gqa")), 6
    )


def test_the_envelope_s_dimensions_and_lengths() -> None:
    """Train has six dimensions in each class, hold-out others beside and outside of them, at other lengths."""
    study, cases = opened(ENVELOPE)
    classes = {class_of(study, case) for case in cases[Split.TRAIN]}
    dims = [sorted(c.d_qk for c in cases[Split.TRAIN] if class_of(study, c) == name) for name in classes]

    assert dims == [[320, 344, 384, 408, 432, 448]] * 4
    assert values(cases[Split.TRAIN], "s_kv") == {1000, 1024, 2048, 3000, 4096}
    assert values(cases[Split.HOLDOUT], "d_qk") - values(cases[Split.TRAIN], "d_qk") == {288, 352, 416, 480, 512}
    assert values(cases[Split.HOLDOUT], "s_kv") == {1536, 2560, 5000}
    assert study.splits[Split.HOLDOUT].differs == ("b", "h_q", "h_kv", "s_kv")


def test_every_square_of_the_envelope_is_a_fair_amount_of_work() -> None:
    """Between 0.2 and 1 TFLOP: long enough to time, short enough for ten minutes."""
    _, cases = opened(ENVELOPE)
    squares = [c for split in (Split.TRAIN, Split.HOLDOUT) for c in cases[split] if c.s_q == c.s_kv]

    assert len(squares) == 24 + 28
    assert all(2 * 10**11 <= flops(case) <= 10**12 for case in squares)


def test_the_controls_are_in_the_holdout() -> None:
    """Per dtype two exact-512 squares and one decode of 64 rows."""
    _, cases = opened(ENVELOPE)
    controls = [case for case in cases[Split.HOLDOUT] if case.d_qk == 512]

    assert Counter((c.mask, c.s_q == c.s_kv) for c in controls) == {("tl", True): 4, ("none", False): 2}
    assert [c.b * c.h_q for c in controls if c.s_q == 1] == [64, 64]


def test_where_the_row_wins_everywhere_half_of_the_holdout_is_reached() -> None:
    """The gate has an answer: 6 of 12 cases are led, the rest is outside by d or S; the controls reach nothing."""
    study, cases = opened(ENVELOPE)
    table = table_of(study, cases[Split.TRAIN], lambda _: 500_000)

    assert Counter(entry.rule for entry in table.entries.values()) == {"always": 4}
    assert answers(study, table, (c for c in cases[Split.HOLDOUT] if c.d_qk != 512)) == {
        "HIT": 2 * 6,
        "BOX d_qk": 2 * 4,
        "BOX s_q": 2 * 2,
    }
    assert "HIT" not in answers(study, table, (c for c in cases[Split.HOLDOUT] if c.d_qk == 512))


def test_no_routing_case_of_the_envelope_is_led() -> None:
    """Each is kept out by what it is there for: the guard, a feature, its dimensions, or a class without an entry."""
    study, cases = opened(ENVELOPE)
    table = table_of(study, cases[Split.TRAIN], lambda _: 500_000)

    assert answers(study, table, cases[Split.ROUTING]) == {
        "GUARD square": 2,  # chunk: the entry would hold but for the guard
        "FEATURE layout": 4,  # thd, paged
        "FEATURE sink": 2,
        "BOX d_qk": 4,  # 256, and 512 with d_v 256
        "NOKEY": 4,  # no mask: dense and decode
    }


def test_where_the_row_wins_from_a_dimension_on_the_class_is_cut_there() -> None:
    """A row that loses below d 384 gets entries from there on, and hold-out cases reach them in each class."""
    study, cases = opened(ENVELOPE)
    table = table_of(study, cases[Split.TRAIN], lambda case: 500_000 if case.d_qk >= 384 else 1_300_000)
    reached = [c for c in cases[Split.HOLDOUT] if lookup.lookup(table, study.row, study.cc, c.fields, BOARD)]

    assert {(e.rule, e.axis, e.bound) for e in table.entries.values()} == {("from", "d_qk", 384)}
    assert {class_of(study, case) for case in reached} == {class_of(study, case) for case in cases[Split.TRAIN]}


def test_the_envelope_is_timed_as_said() -> None:
    """Cold, eagerly and replayed; the library's own order is the base, and no entry holds outside of its box."""
    study, _ = opened(ENVELOPE)

    assert (study.engine, study.row, study.base, study.cc) == ("cudnn", "sdpa_fwd_prefill_sm90", "library", "9.0")
    assert (study.protocol.repeats, study.protocol.regimes) == (5, ("eager-cold", "replay-cold"))
    assert (study.decide.scope, study.decide.margin_ppm, study.decide.max_regret_ppm) == ("box", 50_000, 1_030_000)


def test_the_envelope_s_gate() -> None:
    """Faster in all, nothing slower beyond noise, and routing as it was."""
    study, _ = opened(ENVELOPE)

    assert [condition_text(condition) for condition in study.gate] == [
        "slower_beyond_noise == 0",
        "auto_over_default_geomean <= 0.999",
        "routing_changed == 0",
    ]


def test_what_was_done_with_a_study_was_done_with_what_is_frozen_now() -> None:
    """Each ledger of the studies here began with the manifest that is there: a study frozen anew has no way on."""
    for path in sorted((ROOT / "studies").glob("*/*/ledger.jsonl")):
        begun = ledger.last(ledger.read(path), "frozen")
        manifest = ROOT / "frozen_cases" / path.parent.parent.name / "MANIFEST.json"

        assert begun is not None
        assert begun.body["manifest"] == sha256(manifest.read_bytes()), path
