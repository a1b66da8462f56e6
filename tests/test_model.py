"""Cases: what they are called and which are impossible."""

from typing import Any

import msgspec
import pytest
from factories import make_case
from hypothesis import given
from hypothesis import strategies as st

from studytool import model
from studytool.digest import canonical
from studytool.grid import case_line
from studytool.model import Case, Plan
from studytool.possible import CHOICES, case_problem
from studytool.runtime import key

DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(Case) if not field.required}
_CHANGES = st.fixed_dictionaries(
    {},
    optional={
        "mask": st.sampled_from(model.MASKS),
        "window": st.integers(0, 200),
        "layout": st.sampled_from(CHOICES["layout"]),
        "padding": st.integers(0, 1),
        "s_q": st.integers(1, 200),
    },
)


@pytest.mark.parametrize(
    ("changes", "label"),
    [
        ({}, "sdpa_fwd bf16 b1 h4 d64 S128"),
        (
            {"op": "sdpa_bwd", "b": 12, "h_q": 48, "h_kv": 6, "d_qk": 128, "d_v": 128, "s_q": 16484, "s_kv": 16484}
            | {"mask": "br", "window": 96},
            "sdpa_bwd bf16 b12 h48/6 d128 S16484 br w96",
        ),
        ({"d_qk": 192, "s_q": 1}, "sdpa_fwd bf16 b1 h4 d192/64 S1/128"),
        ({"dtype": "f16", "mask": "tl"}, "sdpa_fwd f16 b1 h4 d64 S128 tl"),
        (
            {"layout": "thd", "dropout_pct": 10, "deterministic": 1},
            "sdpa_fwd bf16 b1 h4 d64 S128 layout=thd dropout_pct=10 deterministic=1",
        ),
    ],
)
def test_label(changes: dict[str, Any], label: str) -> None:
    """A case is called as engineers write it: shared sizes once, neutral features not at all."""
    assert make_case(**changes).label == label


@given(_CHANGES, _CHANGES)
def test_labels_tell_cases_apart(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two cases have one label just when they are one case."""
    cases = make_case(**one), make_case(**other)

    assert (cases[0].label == cases[1].label) is (cases[0] == cases[1])


def test_fields_are_those_of_the_runtime() -> None:
    """A case has the fields that a look-up knows, and no other."""
    assert set(Case.__struct_fields__) == set(key.FIELDS)


def test_defaults_are_the_neutral_values() -> None:
    """A field that may be left out has, by itself, the value that a look-up takes it to have."""
    assert key.NEUTRAL == DEFAULTS


def test_types_are_those_of_the_runtime() -> None:
    """The integer fields of a case are those that a look-up takes to be integers."""
    integers = {field.name for field in msgspec.structs.fields(Case) if field.type is int}

    assert integers == key.INTEGER_FIELDS


@pytest.mark.parametrize("name", key.NEUTRAL)
def test_neutral_fields_are_left_out(name: str) -> None:
    """A field at its neutral value stands neither in the fields nor in the canonical line of a case."""
    plain, said = make_case(), make_case(**{name: key.NEUTRAL[name]})

    assert name not in said.fields
    assert f'"{name}"'.encode() not in case_line(said)
    assert case_line(said) == case_line(plain)


@given(_CHANGES)
def test_case_reads_back(changes: dict[str, Any]) -> None:
    """A case that is read back from its line is the same case; the line is the canonical JSON of its fields."""
    case = make_case(**changes)

    assert msgspec.json.decode(case_line(case), type=Case) == case
    assert case_line(case) == canonical(case.fields)


def test_unknown_field_is_refused() -> None:
    """A canonical line with a field that a case does not have is no case."""
    with pytest.raises(msgspec.ValidationError, match="unknown field `color`"):
        msgspec.json.decode(case_line(make_case())[:-1] + b',"color":1}', type=Case)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        *[({name: 0}, f"{name} is 0; expected at least 1") for name in ("b", "h_q", "h_kv", "s_q", "s_kv", "d_v")],
        ({"window": -1}, "window is -1; expected at least 0"),
        ({"op": "sdpa"}, "op is 'sdpa'; expected one of sdpa_fwd, sdpa_bwd, sdpa_fwd_bwd"),
        ({"mask": "left"}, "mask is 'left'; expected one of none, tl, br"),
        ({"bias": "some"}, "bias is 'some'; expected one of none, bool, learned"),
        ({"h_q": 4, "h_kv": 3}, "h_q 4 is not a multiple of h_kv 3"),
        ({"h_q": 2, "h_kv": 4}, "h_q 2 is not a multiple of h_kv 4"),
        ({"window": 8}, "window 8 without a causal mask; expected mask tl or br"),
        ({"s_q": 129, "mask": "br"}, "s_q 129 exceeds s_kv 128 under a bottom-right mask or a window"),
        ({"s_q": 129, "mask": "tl", "window": 8}, "s_q 129 exceeds s_kv 128 under a bottom-right mask or a window"),
        ({"dropout_pct": 100}, "dropout_pct is 100; expected 0 to 99"),
    ],
)
def test_impossible_case(changes: dict[str, Any], problem: str) -> None:
    """What makes a case impossible is said, with what was found and expected."""
    assert case_problem(make_case(**changes)) == problem


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"h_kv": 1},
        {"s_q": 128, "mask": "br"},
        {"s_q": 129, "mask": "tl"},
        {"s_q": 129},
        {"s_q": 1, "mask": "br", "window": 1},
        {"mask": "tl", "window": 500},
        {"dropout_pct": 99},
    ],
)
def test_possible_case(changes: dict[str, Any]) -> None:
    """A case just inside the bounds is possible."""
    assert case_problem(make_case(**changes)) is None


def test_plan_identity_is_blind_to_the_order_of_knobs() -> None:
    """A plan is its engine and its knobs by name; how it is called does not count."""
    one, other = (Plan(engine=7, name=n, knobs=k) for n, k in (("a", {"k27": 0, "k2": 1}), ("b", {"k2": 1, "k27": 0})))

    assert one.identity == other.identity == "7[k2=1,k27=0]"
    assert Plan(engine=5, name="a").identity == "5"
