"""Orders of legs and of cases."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from studytool import schedule


def _fours(orders: tuple[str, ...]) -> list[tuple[str, ...]]:
    return [orders[start : start + 4] for start in range(0, len(orders), 4)]


def _pairs(orders: tuple[str, ...]) -> list[tuple[str, str]]:
    return sorted(pair for order in orders for pair in itertools.pairwise(order))


@given(st.text(), st.text(), st.integers(0, 100), st.integers(1, 6))
def test_every_square_is_balanced(study: str, case: str, repeat: int, squares: int) -> None:
    """Over each four blocks every leg is once in each place, and once right after each other leg."""
    orders = schedule.block_orders(study, case, repeat, "eager-warm", 4 * squares)

    assert len(orders) == 4 * squares
    for square in _fours(orders):
        assert all(sorted(place) == list("0123") for place in zip(*square, strict=True))
        assert _pairs(square) == sorted(itertools.permutations("0123", 2))


def test_orders_are_pinned() -> None:
    """The orders of a known case are what they were when its records were made."""
    orders = schedule.block_orders("tiny", "ab" * 32, 2, "eager-warm", 8)

    assert orders == ("2031", "1302", "0123", "3210", "1302", "2031", "3210", "0123")


def test_orders_depend_on_every_argument() -> None:
    """Another study, case, repeat or regime has other orders; the same one has the same."""
    arguments = [("s", "c", 0, "r"), ("t", "c", 0, "r"), ("s", "d", 0, "r"), ("s", "c", 1, "r"), ("s", "c", 0, "q")]
    orders = {schedule.block_orders(*each, 24) for each in [*arguments, *arguments]}

    assert len(orders) == len(arguments)


def test_squares_differ() -> None:
    """One square's orders are not simply used again, and more blocks begin with the orders of fewer."""
    orders = schedule.block_orders("s", "c", 0, "r", 40)

    assert len(set(_fours(orders))) == 10
    assert schedule.block_orders("s", "c", 0, "r", 8) == orders[:8]


@pytest.mark.parametrize("blocks", [1, 2, 3, 5, 22])
def test_blocks_are_a_multiple_of_four(blocks: int) -> None:
    """A number of blocks that cannot balance is refused."""
    with pytest.raises(ValueError, match=f"^{blocks} blocks; expected a multiple of four$"):
        schedule.block_orders("s", "c", 0, "r", blocks)


@given(st.sets(st.text(), max_size=20), st.integers(0, 9))
def test_case_order_is_a_permutation(cases: set[str], repeat: int) -> None:
    """Each case is visited once, in an order that does not depend on the order in which they were given."""
    order = schedule.case_order("s", "train", repeat, sorted(cases))

    assert sorted(order) == sorted(cases)
    assert schedule.case_order("s", "train", repeat, sorted(cases, reverse=True)) == order


def test_case_order_differs_between_repeats() -> None:
    """Each repeat, split and study visits the cases in its own order."""
    cases = [f"{number:02x}" for number in range(32)]
    places = [("s", "train", 0), ("s", "train", 1), ("s", "holdout", 0), ("t", "train", 0)]
    orders = {tuple(schedule.case_order(*place, cases)) for place in places}

    assert len(orders) == 4


def test_case_order_is_pinned() -> None:
    """The order of known cases is what it was when their records were made."""
    assert schedule.case_order("tiny", "train", 0, list("abcdef")) == list("acebfd")
