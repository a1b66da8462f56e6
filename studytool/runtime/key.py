"""Class keys: from the fields of a graph to the tuple that a table entry is keyed on. The only maker of keys.

A case is a mapping from field names to integers and strings. `GEOMETRY` fields are always there; a field of
`NEUTRAL` that is absent has its neutral value. Feature names are the field names and those of `DERIVED`.
"""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

Value = int | str
Case = Mapping[str, Value]

GEOMETRY = ("op", "dtype", "b", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v")
"""Fields that every attention graph has: heads h, sequence lengths s, head dimensions d of query/key and value."""

NEUTRAL: dict[str, Value] = {
    "mask": "none",  # none, tl (causal, top-left aligned), br (causal, bottom-right aligned)
    "window": 0,  # keys that a query sees to its left, itself included; 0: all
    "layout": "dense",  # dense, strided (last dimension not contiguous), broadcast (shared K/V heads), thd, paged
    "bias": "none",  # none, bool (an extra boolean mask), learned (an additive bias with a gradient)
    "padding": 0,  # 1: per-sequence lengths below s_q and s_kv
    "stats": 0,  # 1: the forward also writes softmax statistics
    "sink": 0,  # 1: an attention sink per head
    "dropout_pct": 0,  # dropout probability in percent
    "deterministic": 0,  # 1: a run-to-run reproducible backward is asked for
}
"""Fields that a graph may leave out, with the value that they then have."""

FLAGS = ("layout", "bias", "padding", "stats", "sink", "dropout_pct", "deterministic")
"""Features of a graph that a table must know by name: unkeyed and unboxed, they send a case to `None`."""

FIELDS = (*GEOMETRY, *NEUTRAL)
INTEGER_FIELDS = frozenset(
    {"b", "h_q", "h_kv", "s_q", "s_kv", "d_qk", "d_v", "window", "padding", "stats", "sink"}
    | {"dropout_pct", "deterministic"}
)


DERIVED = ("mask", "heads", "tile", "square", "window_binds", "phase")
"""Features that are computed from fields, by `derived`; `mask` takes the place of the field of that name."""

PREDICATES = ("square", "window_binds")
"""Features that are 0 or 1, which a study may name as guards."""

FACTS = (*GEOMETRY, *DERIVED, "window", *FLAGS)
"""All features, in the order in which `facts` returns them."""

PLACES = {name: place for place, name in enumerate(FACTS)}
FEATURES = tuple(sorted(FACTS))


_geometry = operator.itemgetter(*GEOMETRY)
_deriving = operator.itemgetter("h_q", "h_kv", "s_q", "s_kv", "mask", "window")
_others = operator.itemgetter("window", *FLAGS)
_WINDOWED = {mask: f"{mask}+window" for mask in ("tl", "br")}


def _int(case: Case, name: str) -> int:
    value = case[name] if name in case else NEUTRAL[name]
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}, not an integer")
    return value


def derived(h_q: int, h_kv: int, s_q: int, s_kv: int, mask: str, window: int) -> tuple[Value, ...]:
    """Return the features of DERIVED, in its order."""
    square = s_q == s_kv
    return (
        (_WINDOWED.get(mask) or f"{mask}+window") if window else mask,  # none, tl, br, each with +window
        "mha" if h_q == h_kv else "mqa" if h_kv == 1 else "gqa",
        "off" if s_kv % 128 else "on",  # whether s_kv is on the 128-key tile
        1 if square else 0,
        1 if 0 < window < s_kv else 0,  # 1 when the window is narrower than the keys
        "square" if square else "decode" if s_q == 1 else "short" if s_q <= 16 else "chunk",
    )


def facts(case: Case) -> tuple[Value, ...]:
    """Return all features of a well-typed case, in the order of FACTS; KeyError for an absent field of GEOMETRY."""
    whole: dict[str, Any] = {**NEUTRAL, **case}
    return (*_geometry(whole), *derived(*_deriving(whole)), *_others(whole))


def feature(case: Case, name: str) -> Value:
    """Return the value of one feature of a case; KeyError for a name that is no feature or an absent field."""
    if name in DERIVED:
        return facts(case)[PLACES[name]]
    return case[name] if name in case else NEUTRAL[name]


def class_key(row: str, cc: str, features: Sequence[str], case: Case) -> tuple[Value, ...]:
    """Return the class key of a case: the row, the compute capability, and the features in the row's order."""
    known = facts(case)
    return (row, cc, *[known[PLACES[name]] for name in features])


def axis_value(case: Case, axis: str) -> int:
    """Return the size of a case on an axis: an integer field, or a product such as `b*h_kv*s_kv`."""
    value = 1
    for name in axis.split("*"):
        value *= _int(case, name)
    return value


def is_axis(axis: str) -> bool:
    """Return whether a name is a size axis: at most four integer fields joined by `*`."""
    names = axis.split("*")
    return len(names) <= 4 and all(name in INTEGER_FIELDS for name in names)
