"""From a case's label back to the case: what `Case.label` writes is read, and nothing else is."""

import contextlib
import re
from typing import Any

import pytest
from factories import make_case
from hypothesis import assume, given
from hypothesis import strategies as st

from studytool.labels import case_of
from studytool.model import OPS, Case
from studytool.possible import CHOICES, MOST, case_problem
from studytool.runtime import key

SIZES = st.integers(1, 10**6)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return a case that is possible, with any value in any of its fields."""
    h_kv, s_kv = draw(st.integers(1, 64)), draw(SIZES)
    values: dict[str, Any] = {name: draw(st.sampled_from(some)) for name, some in CHOICES.items()}
    values |= {name: draw(st.integers(0, most)) for name, most in MOST.items()}
    causal = values["mask"] != "none"
    case = Case(
        **values,
        b=draw(SIZES),
        h_q=h_kv * draw(st.integers(1, 16)),
        h_kv=h_kv,
        s_q=draw(st.one_of(st.just(s_kv), st.integers(1, s_kv) if causal else SIZES)),
        s_kv=s_kv,
        d_qk=(d_qk := draw(SIZES)),
        d_v=draw(st.one_of(st.just(d_qk), SIZES)),
        window=draw(st.one_of(st.just(0), SIZES)) if causal else 0,
    )
    assert case_problem(case) is None
    return case


@given(cases())
def test_the_label_of_a_case_gives_the_case(case: Case) -> None:
    """Every field of a case is in its label, and is read from there."""
    assert case_of(case.label) == case


@pytest.mark.parametrize("name", key.FIELDS)
def test_a_field_of_its_own_is_read(name: str) -> None:
    """A case that differs from a plain one in one field alone is read as that case."""
    values: dict[str, Any] = {"op": "sdpa_bwd", "dtype": "f16", "b": 3, "h_q": 8, "h_kv": 2, "mask": "tl", "window": 5}
    values |= {"layout": "thd", "bias": "learned", "dropout_pct": 99}
    value = values.get(name, 1)
    case = make_case(**{"mask": "tl" if name == "window" else "none", name: value})

    assert getattr(case_of(case.label), name) == value
    assert case_of(case.label) == case != make_case()


@given(st.text())
def test_any_text_is_no_label(text: str) -> None:
    """A text that is not a label is a ValueError with the text, on one line, and never another exception."""
    with pytest.raises(ValueError, match=re.escape(repr(text))) as caught:
        case_of(text)
    assert "\n" not in str(caught.value)


@given(cases(), st.data())
def test_a_label_with_a_changed_character_is_refused_or_is_another_case_s(case: Case, data: st.DataObject) -> None:
    """What is read from a text that is nearly a label has that very text for its label."""
    label = case.label
    place = data.draw(st.integers(0, len(label) - 1))
    put = data.draw(st.sampled_from(["", " ", "0", "7", "=", "/", "x", "\n", "\u0663", label[place] * 2]))
    near = label[:place] + put + label[place + 1 :]
    assume(near != label)
    found = None
    with contextlib.suppress(ValueError):
        found = case_of(near)

    assert found is None or found.label == near


NEAR = {
    "nothing": "",
    "no op": "bf16 b1 h4 d64 S128",
    "another op": "sdpa bf16 b1 h4 d64 S128",
    "another dtype": "sdpa_fwd f64 b1 h4 d64 S128",
    "no batch": "sdpa_fwd bf16 h4 d64 S128",
    "small s": "sdpa_fwd bf16 b1 h4 d64 s128",
    "another order": "sdpa_fwd bf16 b1 d64 h4 S128",
    "mask none": "sdpa_fwd bf16 b1 h4 d64 S128 none",
    "flag before the window": "sdpa_fwd bf16 b1 h4 d64 S128 tl sink=1 w5",
    "three heads": "sdpa_fwd bf16 b1 h4/2/1 d64 S128",
    "two spaces": "sdpa_fwd bf16 b1  h4 d64 S128",
    "space before": " sdpa_fwd bf16 b1 h4 d64 S128",
    "line end": "sdpa_fwd bf16 b1 h4 d64 S128\n",
    "minus": "sdpa_fwd bf16 b-1 h4 d64 S128",
    "size with a nought before it": "sdpa_fwd bf16 b01 h4 d64 S128",
    "heads told twice": "sdpa_fwd bf16 b1 h4/4 d64 S128",
    "digits of another script": "sdpa_fwd bf16 b\u0661 h4 d64 S128",
    "window 0": "sdpa_fwd bf16 b1 h4 d64 S128 tl w0",
    "more behind": "sdpa_fwd bf16 b1 h4 d64 S128 of the H200",
}


@pytest.mark.parametrize("text", NEAR.values(), ids=NEAR.keys())
def test_a_near_miss_is_refused(text: str) -> None:
    """A text that only looks like a label is refused in these words."""
    with pytest.raises(ValueError, match=rf"\A{re.escape(repr(text))} is not the label of a case\Z"):
        case_of(text)


PLAIN = "sdpa_fwd bf16 b1 h4 d64 S128"
IMPOSSIBLE = {
    "no batches": ("sdpa_fwd bf16 b0 h4 d64 S128", "b is 0; expected at least 1"),
    "heads": ("sdpa_fwd bf16 b1 h4/3 d64 S128", "h_q 4 is not a multiple of h_kv 3"),
    "window without a mask": (f"{PLAIN} w5", "window 5 without a causal mask; expected mask tl or br"),
    "more queries than keys": (
        "sdpa_fwd bf16 b1 h4 d64 S256/128 br",
        "s_q 256 exceeds s_kv 128 under a bottom-right mask or a window",
    ),
    "layout": (f"{PLAIN} layout=loose", "layout is 'loose'; expected one of dense, strided, broadcast, thd, paged"),
    "sink": (f"{PLAIN} sink=2", "sink is 2; expected 0 to 1"),
    "dropout": (f"{PLAIN} dropout_pct=100", "dropout_pct is 100; expected 0 to 99"),
}


@pytest.mark.parametrize(("text", "problem"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_an_impossible_case_is_refused(text: str, problem: str) -> None:
    """The label of a case that cannot be is refused with what is wrong in it."""
    with pytest.raises(ValueError, match=rf"\A{re.escape(f'{text!r}: {problem}')}\Z"):
        case_of(text)


STRANGE = ("speed=5", "sink=x", "op=sdpa_bwd", "b=2", "layout=thd layout=paged", "sink=1 sink=1", "sink=0", "mask=tl")


@pytest.mark.parametrize("rest", STRANGE)
def test_a_flag_that_no_label_has_is_refused(rest: str) -> None:
    """A flag that is unknown, no number, a field that stands elsewhere, twice, or neutral is in no label."""
    with pytest.raises(ValueError, match=re.escape(f"'{PLAIN} {rest}'")):
        case_of(f"{PLAIN} {rest}")


@pytest.mark.parametrize("op", OPS)
def test_each_op_is_read(op: str) -> None:
    """No op is taken for the beginning of another one."""
    assert case_of(make_case(op=op).label).op == op
