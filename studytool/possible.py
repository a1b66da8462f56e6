"""What the fields of a case may be, and what makes a case impossible."""

from studytool.model import DTYPES, MASKS, OPS, Case
from studytool.runtime import key

CHOICES: dict[str, tuple[str, ...]] = {
    "op": OPS,
    "dtype": DTYPES,
    "mask": MASKS,
    "layout": ("dense", "strided", "broadcast", "thd", "paged"),
    "bias": ("none", "bool", "learned"),
}
"""The values that the string fields of a case may have."""

MOST = {"padding": 1, "stats": 1, "sink": 1, "deterministic": 1, "dropout_pct": 99}
"""The largest values of fields that are no sizes."""


def case_problem(case: Case) -> str | None:
    """Return what makes a case impossible, found and expected, or None."""
    for name in sorted(key.INTEGER_FIELDS):
        value, least, most = getattr(case, name), int(name in key.GEOMETRY), MOST.get(name)
        if value < least or (most is not None and value > most):
            return f"{name} is {value}; expected " + (f"{least} to {most}" if most else f"at least {least}")
    for name, allowed in CHOICES.items():
        if getattr(case, name) not in allowed:
            return f"{name} is {getattr(case, name)!r}; expected one of {', '.join(allowed)}"
    if case.h_q % case.h_kv:
        return f"h_q {case.h_q} is not a multiple of h_kv {case.h_kv}"
    if case.window and case.mask == "none":
        return f"window {case.window} without a causal mask; expected mask tl or br"
    if case.s_q > case.s_kv and (case.mask == "br" or case.window):
        return f"s_q {case.s_q} exceeds s_kv {case.s_kv} under a bottom-right mask or a window"
    return None
