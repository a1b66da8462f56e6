"""Grids become cases, the same for ever."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from factories import STUDY_YAML, make_case, make_study
from hypothesis import given
from hypothesis import strategies as st

from studytool import grid, studyfile
from studytool.digest import sha256
from studytool.errors import StudyFileError
from studytool.model import Case, Grid, Split, SplitSpec, Study
from studytool.runtime import key

STUDIES = Path(__file__).parent.parent / "studies"
SIZES = ("b", "h_q", "s_kv", "d_qk")
_AXES = st.fixed_dictionaries({name: st.sets(st.integers(1, 50), min_size=1, max_size=3) for name in SIZES})


def _study(spec: dict[str, Any], *axes: dict[str, Any]) -> Study:
    """Return a study whose train split has these grids; an axis that is no tuple has one value."""
    grids = tuple(
        Grid(line=line, axes=tuple((k, v if isinstance(v, tuple) else (v,)) for k, v in each.items()))
        for line, each in enumerate(axes, start=1)
    )
    return make_study(splits={Split.TRAIN: SplitSpec(line=9, grids=grids, **spec)})


def _train(*axes: dict[str, Any], **spec: Any) -> dict[str, Case]:
    """Return the train cases of these grids."""
    return grid.expand(_study(spec, *axes))[Split.TRAIN]


@given(_AXES)
def test_size_is_the_product_of_the_axes(axes: dict[str, set[int]]) -> None:
    """A grid has one case for each combination of its values, sorted by digest, each under its own digest."""
    cases = _train({name: tuple(sorted(values)) for name, values in axes.items()})

    assert len(cases) == math.prod(map(len, axes.values()))
    assert list(cases) == sorted(cases)
    assert all(grid.case_digest(case) == digest for digest, case in cases.items())


@given(_AXES, st.sampled_from(SIZES), st.integers(51, 99))
def test_digests_outlive_a_longer_axis(axes: dict[str, set[int]], name: str, more: int) -> None:
    """An axis that gains a value adds cases and changes the digest of none."""
    before = _train({each: tuple(values) for each, values in axes.items()})
    after = _train({each: (more, *values) if each == name else tuple(values) for each, values in axes.items()})

    assert before.items() < after.items()


@given(st.permutations(SIZES), st.permutations((16, 32, 48)))
def test_order_of_axes_and_values_does_not_matter(names: list[str], values: list[int]) -> None:
    """The same axes in another order are the same cases."""
    axes: dict[str, tuple[int, ...]] = {"b": (1, 2), "h_q": (3,), "s_kv": tuple(values), "d_qk": (64, 32)}

    assert _train({name: axes[name] for name in names}) == _train(axes | {"s_kv": (16, 32, 48)})


def test_digest_is_pinned() -> None:
    """The canonical line and the digest of a case are what they were when cases were first frozen."""
    case = make_case(mask="br", window=96)
    line = (
        b'{"b":1,"d_qk":64,"d_v":64,"dtype":"bf16","h_kv":4,"h_q":4,"mask":"br","op":"sdpa_fwd","s_kv":128,'
        b'"s_q":128,"window":96}'
    )

    assert grid.case_line(case) == line
    assert grid.case_digest(case) == sha256(line)
    assert grid.case_digest(case)[:16] == "e46d5fee5a2576ee"


def test_defaults_of_a_grid() -> None:
    """A grid that does not say has one batch, as many key heads, a square shape and one head dimension."""
    (case,) = _train({"s_kv": 128, "h_q": 4, "d_qk": 64}).values()

    assert case == make_case(b=1, h_q=4, h_kv=4, s_q=128, s_kv=128, d_qk=64, d_v=64)


@pytest.mark.parametrize(
    "names", [("s_kv", "s_q", "window", "d_qk"), ("window", "s_q", "d_qk", "s_kv"), ("d_qk", "window", "s_q", "s_kv")]
)
def test_expressions_resolve_in_any_order(names: tuple[str, ...]) -> None:
    """Expressions may use one another, in whichever order they stand."""
    axes = {"s_kv": 1024, "s_q": "s_kv // 4", "window": "s_q // 2 - 1", "d_qk": "window + 1 + padding", "h_q": 4}
    (case,) = _train({"mask": "tl", "h_q": 4} | {name: axes[name] for name in names}).values()

    assert (case.s_kv, case.s_q, case.window, case.d_qk) == (1024, 256, 127, 128)


@pytest.mark.parametrize(
    ("axes", "names"),
    [
        ({"s_kv": "s_kv + 1"}, "s_kv, s_q"),
        ({"s_kv": "s_q"}, "s_kv, s_q"),
        ({"s_kv": 64, "b": "window", "window": "padding", "padding": "b"}, "b, padding, window"),
    ],
)
def test_circles_are_errors(axes: dict[str, Any], names: str) -> None:
    """Expressions that need each other are refused by name, not followed for ever."""
    with pytest.raises(StudyFileError) as caught:
        _train({"h_q": 4, "d_qk": 64} | axes)

    assert str(caught.value) == f"study.yaml:1: {names}: the expressions need each other or an absent field"


def test_constraints_see_absent_fields_as_neutral() -> None:
    """A constraint keeps the cases for which it holds, and reads an absent field at its neutral value."""
    axes = {"s_kv": (64, 128, 256), "h_q": 4, "d_qk": 64}

    assert {case.s_kv for case in _train(axes, where=("s_kv > 64",)).values()} == {128, 256}
    assert len(_train(axes, where=("window == 0", "mask == 'none'"))) == 3


def test_impossible_cases_may_be_constrained_away() -> None:
    """A case that a constraint drops need not be possible."""
    cases = _train({"s_kv": 64, "h_q": (2, 3, 4), "h_kv": 2, "d_qk": 64}, where=("h_q % h_kv == 0",))

    assert {case.h_q for case in cases.values()} == {2, 4}


def test_each_dtype_needs_a_case() -> None:
    """A dtype that no train case has is an error, while routing may do without."""
    study = make_study(
        STUDY_YAML.replace("dtypes: [bf16]", "dtypes: [bf16, f16]").replace("layout: s", "dtype: f16, layout: s")
    )
    bare = make_study(STUDY_YAML.replace("dtypes: [bf16]", "dtypes: [bf16, f16]").replace("mask: tl", "dtype: f16"))
    only = msgspec.structs.replace(
        bare, splits={Split.TRAIN: SplitSpec(line=13, grids=bare.splits[Split.TRAIN].grids[1:])}
    )

    assert {case.dtype for case in grid.expand(study)[Split.ROUTING].values()} == {"f16"}
    with pytest.raises(StudyFileError, match=r"^study\.yaml:13: train: no case of dtype bf16; expected at least one$"):
        grid.expand(only)


def test_too_many_cases_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A split may hold so many cases and not one more."""
    monkeypatch.setattr(grid, "MAX_CASES", 3)
    axes = {"h_q": 4, "d_qk": 64}

    assert len(_train(axes | {"s_kv": (1, 2, 3)})) == 3
    with pytest.raises(StudyFileError, match=r"^study\.yaml:1: train: more than 3 cases; expected fewer$"):
        _train(axes | {"s_kv": (1, 2, 3, 4)})


WIDE = {"s_kv": tuple(range(64, 1024, 64)), "h_q": (2, 4), "d_qk": 64, "mask": ("none", "tl")}


def test_sample_is_pinned() -> None:
    """A sample holds the very cases that it held when it was first drawn."""
    cases = _train(WIDE, sample=6, seed=7)

    assert [digest[:12] for digest in cases] == [
        "46233a9bf86d",
        "c6f28d836fd1",
        "ded0196e101a",
        "e6d44740da95",
        "e8d1b4210003",
        "ef158191f35d",
    ]


def test_sample_depends_on_the_seed() -> None:
    """Another seed draws other cases, of which none was not there before, and the same seed the same."""
    everything, one, other = _train(WIDE), _train(WIDE, sample=9, seed=1), _train(WIDE, sample=9, seed=2)

    assert one != other
    assert one == _train(WIDE, sample=9, seed=1)
    assert one.items() < everything.items()
    assert other.items() < everything.items()


@given(st.integers(1, 60), st.integers(0, 2**53))
def test_sample_is_balanced(sample: int, seed: int) -> None:
    """Classes differ by at most one case as long as each has some left."""
    cases = _train(WIDE, sample=sample, seed=seed)
    counts = Counter(case.mask for case in cases.values())

    assert len(cases) == sample
    assert abs(counts["none"] - counts["tl"]) <= 1


def test_small_class_is_taken_whole() -> None:
    """A class with few cases gives them all, and the others make up for it."""
    cases = _train({**WIDE, "mask": "none"}, {"s_kv": 64, "h_q": 2, "d_qk": 64, "mask": "tl"}, sample=9, seed=3)

    assert Counter(case.mask for case in cases.values()) == {"none": 8, "tl": 1}


@pytest.mark.parametrize(
    ("name", "counts"), [("cpu_sdpa", (54, 36, 8)), ("cpu_smoke", (12, 6, 2))], ids=["cpu_sdpa", "cpu_smoke"]
)
def test_studies_expand(name: str, counts: tuple[int, ...]) -> None:
    """The studies that ship expand to what they say, and their hold-out differs as declared."""
    study = studyfile.read(STUDIES / name / "study.yaml", "study.yaml")
    splits = grid.expand(study)

    assert tuple(len(splits[split]) for split in (Split.TRAIN, Split.HOLDOUT, Split.ROUTING)) == counts
    assert study.splits[Split.HOLDOUT].differs != ()
    assert grid.differences_missing(study, splits) == []
    assert not splits[Split.TRAIN].keys() & splits[Split.HOLDOUT].keys()
    for feature in study.splits[Split.HOLDOUT].differs:
        seen = [{key.feature(case.fields, feature) for case in splits[split].values()} for split in study.splits]
        assert not seen[0] & seen[1]


def test_common_values_are_named() -> None:
    """A feature that was to differ and does not is named with the values that both splits have."""
    study = make_study(STUDY_YAML.replace("{s_kv: [80, 144], h_q: 2", "{s_kv: [80, 128, 64], h_q: 2"))

    assert grid.differences_missing(study, grid.expand(study)) == ["s_kv 128, 64"]
