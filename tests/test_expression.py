"""Integer expressions and comparisons over the fields of a case."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studytool import expression

FIELDS: dict[str, int | str] = {"s_kv": 100, "s_q": 7, "dtype": "bf16"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("s_kv", 100),
        ("12", 12),
        ("s_kv // 8", 12),
        ("s_kv % s_q", 2),
        ("s_kv - s_q * 2 + 1", 87),
        ("(s_kv - s_q) * 2", 186),
        ("s_q - s_kv", -93),
        ("5 + 3 * (s_q < s_kv)", 8),
        ("5 + 3 * (dtype == 'f16')", 5),
    ],
)
def test_integer(text: str, value: int) -> None:
    """Sums, products, floor quotients and remainders of fields and integers have Python's value."""
    assert expression.integer(text, FIELDS) == value


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("s_q < s_kv", True),
        ("s_q > s_kv", False),
        ("s_kv >= 100", True),
        ("s_kv > 100", False),
        ("s_kv <= 100", True),
        ("s_kv < 100", False),
        ("0 < s_q < s_kv", True),
        ("0 < s_kv < s_q", False),
        ("s_kv < 0 < 5", False),
        ("dtype == 'bf16'", True),
        ("dtype != 'bf16'", False),
        ("s_kv == s_q * 14 + 2", True),
    ],
)
def test_holds(text: str, truth: bool) -> None:
    """Comparisons of integers and texts, also chained, hold as in Python."""
    assert expression.holds(text, FIELDS) is truth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nobody", "`nobody` is not a field that is known here"),
        ("dtype", "`dtype` is not an integer"),
        ("'7'", "`'7'` is not an integer"),
        ("s_kv // 0", "division by zero"),
        ("s_kv % (s_q - 7)", "division by zero"),
        ("dtype * 2", "only fields, integers, + - * // % and comparisons can be used"),
        ("s_kv / 2", "only fields, integers, + - * // % and comparisons can be used"),
        ("s_kv ** 2", "only fields, integers, + - * // % and comparisons can be used"),
        ("s_kv << 2", "only fields, integers, + - * // % and comparisons can be used"),
        ("-s_kv", "only fields, integers, + - * // % and comparisons can be used"),
        ("1.5", "only fields, integers, + - * // % and comparisons can be used"),
        ("True", "only fields, integers, + - * // % and comparisons can be used"),
        ("s_q < s_kv", "`s_q < s_kv` is not an integer"),
        ("2 * (s_q < dtype)", "`s_q < dtype` compares what cannot be compared"),
        ("max(s_q, 2)", "only fields, integers, + - * // % and comparisons can be used"),
        ("s_kv.real", "only fields, integers, + - * // % and comparisons can be used"),
        ("__import__('os').getpid()", "only fields, integers, + - * // % and comparisons can be used"),
        ("s_kv //", "`s_kv //` is not an expression"),
        ("", "`` is not an expression"),
        ("s_kv = 2", "`s_kv = 2` is not an expression"),
        ("(s_kv\n+ 1)", "'(s_kv\\n+ 1)' is not an expression on one line"),
        ("s_kv\x00", "'s_kv\\x00' is not an expression on one line"),
        ("1 +" * 67 + "1", "an expression of 202 characters; expected at most 200"),
        ("(" * 199, f"`{'(' * 199}` is not an expression"),
    ],
)
def test_integer_says_what_is_wrong(text: str, message: str) -> None:
    """Anything but integer arithmetic over known fields is refused in one line, and never evaluated."""
    with pytest.raises(ValueError, match=r".*") as caught:
        expression.integer(text, FIELDS)

    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s_kv", "`s_kv` is not a comparison"),
        ("s_q < 2 or s_kv < 3", "`s_q < 2 or s_kv < 3` is not a comparison"),
        ("dtype < 3", "`dtype < 3` compares what cannot be compared"),
        ("s_kv in dtype", "`s_kv in dtype` compares what cannot be compared"),
        ("s_kv is s_kv", "`s_kv is s_kv` compares what cannot be compared"),
        ("s_kv < nobody", "`nobody` is not a field that is known here"),
    ],
)
def test_holds_says_what_is_wrong(text: str, message: str) -> None:
    """Anything but one comparison is refused in one line."""
    with pytest.raises(ValueError, match=r".*") as caught:
        expression.holds(text, FIELDS)

    assert str(caught.value) == message


def test_longest_expression_is_taken() -> None:
    """An expression of two hundred characters still has its value."""
    assert expression.integer("s_q" + " " * 193 + "+ 10", FIELDS) == 17


def test_names_are_those_that_are_read() -> None:
    """The names of an expression are its fields, not its texts."""
    assert expression.names("s_kv // 4 + s_q < other * 'text'") == {"s_kv", "s_q", "other"}


@pytest.mark.parametrize("text", ["s_kv / 2", "-s_q", "f(s_q)", "s_q < 2 or s_kv < 3", "s_q if s_kv else 2", "[s_q]"])
def test_names_of_what_cannot_be_used(text: str) -> None:
    """An expression that could never have a value is refused before it is given fields."""
    with pytest.raises(ValueError, match=r"^only fields, integers, \+ - \* // % and comparisons can be used$"):
        expression.names(text)


def test_comparisons_are_told_from_values() -> None:
    """A comparison is one as a whole, not by a sign that stands somewhere in it."""
    assert expression.is_comparison("0 < s_q < s_kv")
    assert not expression.is_comparison("s_q + 2")
    assert not expression.is_comparison("'<'")


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_quotient_and_remainder_belong_together(s_kv: int, s_q: int) -> None:
    """Floor quotient times divisor plus remainder is the dividend."""
    fields = {"s_kv": s_kv, "s_q": s_q}

    assert expression.integer("s_kv // s_q * s_q + s_kv % s_q", fields) == s_kv


@given(st.integers(), st.integers())
def test_comparisons_are_mirrored(left: int, right: int) -> None:
    """Exchanging both sides and turning the sign tells the same."""
    fields = {"s_kv": left, "s_q": right}

    assert expression.holds("s_kv < s_q", fields) is expression.holds("s_q > s_kv", fields)
    assert expression.holds("s_kv <= s_q", fields) is not expression.holds("s_kv > s_q", fields)


@given(st.text(max_size=30))
def test_any_text_is_a_value_or_a_reason(text: str) -> None:
    """Any text at all either has an integer value or is refused with a ValueError of one line."""
    try:
        outcome: object = expression.integer(text, FIELDS)
    except ValueError as error:
        outcome = str(error)

    assert type(outcome) is int or len(str(outcome).splitlines()) == 1
