"""Legs x blocks → order, and the order of cases in a repeat. Pure functions of the study and the case."""

import hashlib
import itertools
from collections.abc import Iterable

from studytool.digest import rank

WILLIAMS = ("0132", "1203", "2310", "3021")
"""A 4x4 Williams square: each leg once in each place, and once after each other leg (Williams 1949)."""

_PERMUTATIONS = tuple(itertools.permutations(range(4)))
_SQUARES = tuple(
    tuple("".join(str(labels[int(leg)]) for leg in WILLIAMS[row]) for row in rows)
    for labels, rows in itertools.product(_PERMUTATIONS, repeat=2)
)
"""All squares: the legs relabelled and the rows shuffled in each way."""

_SQUARES_A_DIGEST = 4


def block_orders(study: str, case: str, repeat: int, regime: str, blocks: int) -> tuple[str, ...]:
    """Return per block the leg indices in the order of timing, four to a balanced square.

    In each square the legs are relabelled and the rows shuffled by sha256 of the arguments, eight bytes of it a square,
    so every leg is equally often in each place and, within blocks, equally often after each other leg. `blocks` is a
    multiple of four.
    """
    if blocks % 4:
        raise ValueError(f"{blocks} blocks; expected a multiple of four")
    orders: list[str] = []
    for number in range(-(-blocks // 4 // _SQUARES_A_DIGEST)):
        drawn = hashlib.sha256("\x1f".join(map(str, (study, case, repeat, regime, number))).encode()).digest()
        for place in range(0, 8 * _SQUARES_A_DIGEST, 8):
            orders += _SQUARES[int.from_bytes(drawn[place : place + 8], "big") % len(_SQUARES)]
    return tuple(orders[:blocks])


def shard_of(case: str, shards: int) -> int:
    """Return in which of so many shards, from 1 on, a case is: by its digest alone."""
    return int(case[:15], 16) % shards + 1


def anchors(study: str, split: str, cases: Iterable[str], count: int) -> frozenset[str]:
    """Return the cases, as many as that, which every board measures."""
    return frozenset(sorted(cases, key=lambda case: rank(study, "anchor", split, case))[:count])


def case_order(study: str, split: str, repeat: int, cases: list[str]) -> list[str]:
    """Return the case digests in the order in which a repeat visits them, another one in each repeat."""
    return sorted(cases, key=lambda case: rank(study, split, repeat, case))
