"""Class keys: from the fields of a graph to the tuple that a table entry is keyed on. The only maker of keys.

A case is a mapping from field names to integers and strings. `GEOMETRY` fields are always there; a field of
`NEUTRAL` that is absent has its neutral value. Feature names are the field names and those of `DERIVED`.
"""

import operator
from collections.abc import Callable, Mapping, Sequence

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


def _mask(case: Case) -> Value:
    mask = case.get("mask", "none")
    return f"{mask}+window" if case.get("window") else mask


def _heads(case: Case) -> str:
    if case["h_q"] == case["h_kv"]:
        return "mha"
    return "mqa" if case["h_kv"] == 1 else "gqa"


def _tile(case: Case) -> str:
    return "off" if case["s_kv"] % 128 else "on"


def _square(case: Case) -> int:
    return int(case["s_q"] == case["s_kv"])


def _window_binds(case: Case) -> int:
    return int(0 < _int(case, "window") < _int(case, "s_kv"))


def _phase(case: Case) -> str:
    s_q = _int(case, "s_q")
    if s_q == case["s_kv"]:
        return "square"
    if s_q == 1:
        return "decode"
    return "short" if s_q <= 16 else "chunk"


DERIVED: dict[str, Callable[[Case], Value]] = {
    "mask": _mask,  # none, tl, br, each with +window
    "heads": _heads,  # mha, gqa, mqa
    "tile": _tile,  # whether s_kv is on the 128-key tile: on, off
    "square": _square,  # 1 when s_q == s_kv
    "window_binds": _window_binds,  # 1 when the window is narrower than the keys
    "phase": _phase,  # square, decode (s_q 1), short (s_q 2-16), chunk
}
"""Features that are computed from fields; `mask` takes the place of the field of that name."""

PREDICATES = ("square", "window_binds")
"""Features that are 0 or 1, which a study may name as guards."""

FEATURES = tuple(sorted({*FIELDS, *DERIVED}))


def _int(case: Case, name: str) -> int:
    value = case.get(name, NEUTRAL.get(name))
    if type(value) is not int:
        raise TypeError(f"{name} is {value!r}, not an integer")
    return value


def getter(name: str) -> Callable[[Case], Value]:
    """Return what reads one feature of a case; KeyError for a name that is no feature."""
    if name in DERIVED:
        return DERIVED[name]
    if name in GEOMETRY:
        return operator.itemgetter(name)
    neutral = NEUTRAL[name]
    return lambda case: case.get(name, neutral)


def feature(case: Case, name: str) -> Value:
    """Return the value of one feature of a case; KeyError for a name that is no feature or an absent field."""
    maker = DERIVED.get(name)
    if maker is not None:
        return maker(case)
    return case[name] if name in case else NEUTRAL[name]


def class_key(row: str, cc: str, features: Sequence[str], case: Case) -> tuple[Value, ...]:
    """Return the class key of a case: the row, the compute capability, and the features in the row's order."""
    return (row, cc, *(feature(case, name) for name in features))


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
