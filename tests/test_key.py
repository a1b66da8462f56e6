"""Class keys: the one way from a case to the tuple that an entry is keyed on."""

from typing import Any

import pytest
from factories import make_case, make_fields
from hypothesis import given
from hypothesis import strategies as st

from studytool.model import MASKS
from studytool.runtime import key


@pytest.mark.parametrize(
    ("name", "changes", "value"),
    [
        ("mask", {}, "none"),
        ("mask", {"mask": "br"}, "br"),
        ("mask", {"mask": "tl", "window": 8}, "tl+window"),
        ("heads", {"h_q": 4, "h_kv": 4}, "mha"),
        ("heads", {"h_q": 1, "h_kv": 1}, "mha"),
        ("heads", {"h_q": 4, "h_kv": 2}, "gqa"),
        ("heads", {"h_q": 4, "h_kv": 1}, "mqa"),
        ("tile", {"s_kv": 256}, "on"),
        ("tile", {"s_kv": 255}, "off"),
        ("square", {"s_q": 128}, 1),
        ("square", {"s_q": 127}, 0),
        ("window_binds", {}, 0),
        ("window_binds", {"window": 127}, 1),
        ("window_binds", {"window": 128}, 0),
        ("phase", {"s_q": 128}, "square"),
        ("phase", {"s_q": 1, "s_kv": 1}, "square"),
        ("phase", {"s_q": 1}, "decode"),
        ("phase", {"s_q": 2}, "short"),
        ("phase", {"s_q": 16}, "short"),
        ("phase", {"s_q": 17}, "chunk"),
        ("phase", {"s_q": 129}, "chunk"),
        ("s_kv", {"s_kv": 99}, 99),
        ("layout", {}, "dense"),
        ("layout", {"layout": "thd"}, "thd"),
        ("padding", {}, 0),
    ],
)
def test_feature(name: str, changes: dict[str, Any], value: int | str) -> None:
    """Each feature has its value on both sides of each of its bounds."""
    assert key.feature(make_fields(**changes), name) == value


@given(st.sampled_from(key.FEATURES), st.sampled_from(MASKS), st.integers(0, 300), st.integers(1, 300))
def test_neutral_and_absent_are_one(name: str, mask: str, window: int, s_q: int) -> None:
    """A field that stands there at its neutral value has the same features as one that is left out."""
    short = make_case(mask=mask, window=window, s_q=s_q).fields

    assert key.feature({**key.NEUTRAL, **short}, name) == key.feature(short, name)


@pytest.mark.parametrize("name", ["head", "", "board"])
def test_unknown_feature_is_an_error(name: str) -> None:
    """A name that is no feature has no value."""
    with pytest.raises(KeyError):
        key.feature(make_fields(), name)


def test_class_key_is_in_the_order_of_the_row() -> None:
    """A key is the row, the compute capability, and the features in the order in which the row has them."""
    case = make_fields(mask="br", window=96, h_kv=1)

    assert key.class_key("r", "8.0", ("dtype", "mask", "heads"), case) == ("r", "8.0", "bf16", "br+window", "mqa")
    assert key.class_key("r", "8.0", ("heads", "d_qk"), case) == ("r", "8.0", "mqa", 64)
    assert key.class_key("r", "8.0", (), case) == ("r", "8.0")


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
def test_axis_is_a_product(b: int, h_kv: int, s_kv: int) -> None:
    """The size on a joined axis is the product of its fields, in any order."""
    case = make_fields(b=b, h_kv=h_kv, s_kv=s_kv)

    assert key.axis_value(case, "s_kv") == s_kv
    assert key.axis_value(case, "b*h_kv*s_kv") == b * h_kv * s_kv == key.axis_value(case, "s_kv*b*h_kv")


def test_axis_reads_absent_fields_as_neutral() -> None:
    """An absent field has its neutral size."""
    assert key.axis_value(make_fields(), "window") == 0


@pytest.mark.parametrize("value", ["128", None, 1.5, True])
def test_axis_refuses_what_is_no_integer(value: Any) -> None:
    """A size that is not an integer is an error, not a product of texts."""
    with pytest.raises(TypeError, match=r"^s_kv is .*, not an integer$"):
        key.axis_value(make_fields(s_kv=value), "s_kv")


@pytest.mark.parametrize(
    ("axis", "truth"),
    [
        ("s_kv", True),
        ("b*s_kv", True),
        ("window", True),
        ("mask", False),
        ("square", False),
        ("", False),
        ("b*", False),
        ("b * s_kv", False),
        ("b*dtype", False),
    ],
)
def test_is_axis(axis: str, truth: bool) -> None:
    """An axis is an integer field, or some joined by a star, and nothing else."""
    assert key.is_axis(axis) is truth


def test_names_fit_together() -> None:
    """Flags and predicates are features, flags are fields with a neutral value, and every derived name is a feature."""
    assert set(key.FLAGS) < key.NEUTRAL.keys()
    assert set(key.PREDICATES) < set(key.DERIVED)
    assert set(key.FEATURES) == set(key.FIELDS) | set(key.DERIVED)
    assert set(key.INTEGER_FIELDS) < set(key.FIELDS)
    assert len(set(key.FIELDS)) == len(key.FIELDS)


@given(st.sampled_from(key.PREDICATES), st.integers(0, 300), st.integers(1, 300))
def test_predicates_are_0_or_1(name: str, window: int, s_q: int) -> None:
    """A predicate has no third value."""
    assert key.feature(make_fields(window=window, s_q=s_q), name) in {0, 1}
