"""The gate: conditions that were frozen with the cases, held against the metrics of a score."""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from studytool.metrics import Condition

_HOLDS: dict[str, Callable[[int, int], bool]] = {"<=": operator.le, ">=": operator.ge, "==": operator.eq}


class Checked(NamedTuple):
    """One condition with the value that was found; `holds` is None where there is no value."""

    condition: Condition
    value: int | None
    holds: bool | None


def check(conditions: Sequence[Condition], metrics: Mapping[str, int | None]) -> tuple[Checked, ...]:
    """Return each condition with its value and whether it holds."""
    found = []
    for condition in conditions:
        value = metrics[condition.metric]
        holds = None if value is None else _HOLDS[condition.op](value, condition.value)
        found.append(Checked(condition, value, holds))
    return tuple(found)


def verdict(checked: Sequence[Checked]) -> str:
    """Return PASS, FAIL (a condition does not hold) or CANNOT SAY (one has no value)."""
    if any(item.holds is False for item in checked):
        return "FAIL"
    return "CANNOT SAY" if any(item.holds is None for item in checked) else "PASS"
