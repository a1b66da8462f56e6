"""From a case's label back to the case."""

import re

import msgspec

from studytool.model import DTYPES, MASKS, OPS, Case
from studytool.possible import case_problem
from studytool.runtime import key

_LABEL = re.compile(
    rf"(?P<op>{'|'.join(OPS)}) (?P<dtype>{'|'.join(DTYPES)}) b(?P<b>\d+) h(?P<h_q>\d+)(/(?P<h_kv>\d+))?"
    r" d(?P<d_qk>\d+)(/(?P<d_v>\d+))? S(?P<s_q>\d+)(/(?P<s_kv>\d+))?"
    rf"( (?P<mask>{'|'.join(MASKS[1:])}))?( w(?P<window>\d+))?(?P<rest>( \w+=\w+)*)"
)


def case_of(label: str) -> Case:
    """Return the case that a label names, as `Case.label` writes it; ValueError for anything else."""
    match = _LABEL.fullmatch(label)
    if match is None:
        raise ValueError(f"{label!r} is not the label of a case")
    found = match.groupdict()
    rest = dict(part.split("=") for part in found.pop("rest").split())
    for name, same in (("h_kv", "h_q"), ("d_v", "d_qk"), ("s_kv", "s_q")):
        found[name] = found[name] or found[same]
    texts = {name: value for name, value in {**found, **rest}.items() if value is not None}
    try:
        fields = {name: int(value) if name in key.INTEGER_FIELDS else value for name, value in texts.items()}
        case = msgspec.convert(fields, Case)
    except ValueError as error:  # msgspec's own errors are some, too
        raise ValueError(f"{label!r}: {error}") from None
    if problem := case_problem(case):
        raise ValueError(f"{label!r}: {problem}")
    if case.label != label:
        raise ValueError(f"{label!r} is not the label of a case")
    return case
