"""Legs x blocks → order, and the order of cases in a repeat. Pure functions of the study and the case."""

from studytool.digest import permutation, rank

WILLIAMS = ("0132", "1203", "2310", "3021")
"""A 4x4 Williams square: each leg once in each place, and once after each other leg (Williams 1949)."""


def block_orders(study: str, case: str, repeat: int, regime: str, blocks: int) -> tuple[str, ...]:
    """Return per block the leg indices in the order of timing, four to a balanced square.

    In each square the legs are relabelled and the rows shuffled by sha256 of the arguments, so every leg is
    equally often in each place and, within blocks, equally often after each other leg. `blocks` is a multiple
    of four.
    """
    if blocks % 4:
        raise ValueError(f"{blocks} blocks; expected a multiple of four")
    orders: list[str] = []
    for square in range(blocks // 4):
        seed = (study, case, repeat, regime, square)
        labels = permutation(4, *seed, "legs")
        rows = permutation(4, *seed, "rows")
        orders += ["".join(str(labels[int(leg)]) for leg in WILLIAMS[row]) for row in rows]
    return tuple(orders)


def case_order(study: str, split: str, repeat: int, cases: list[str]) -> list[str]:
    """Return the case digests in the order in which a repeat visits them, another one in each repeat."""
    return sorted(cases, key=lambda case: rank(study, split, repeat, case))
