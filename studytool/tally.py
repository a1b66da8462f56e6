"""What a score counts: how cases ended, what the table reaches, what was never varied, what routing cases ran."""

from collections.abc import Mapping, Sequence

from studytool import rows
from studytool.jsonl import SessionFile
from studytool.model import LEGS, Case, Status
from studytool.rows import Row
from studytool.runtime import key

Json = dict[str, object]


def statuses(found: Sequence[Row], cases: Mapping[str, Case]) -> dict[str, int]:
    """Return how many cases ended how; the counts add up to the number of cases."""
    counts: dict[str, int] = {}
    for own in rows.by_case(found).values():
        status = str(rows.worst_status(own)[0])
        counts[status] = counts.get(status, 0) + 1
    if sum(counts.values()) != len(cases):
        raise ValueError(f"statuses of {sum(counts.values())} cases; expected {len(cases)}")
    return counts


def failed_cases(found: Sequence[Row], cases: Mapping[str, Case]) -> list[Json]:
    """Return the cases that no ratio speaks of, with the reason."""
    failed: list[Json] = []
    for digest, own in rows.by_case(found).items():
        status, error = rows.worst_status(own)
        if status is not Status.OK:
            failed.append({"case": digest, "label": cases[digest].label, "status": str(status), "error": error})
    return failed


def coverage(train: Sequence[Case], cases: Mapping[str, Case], found: Sequence[Row]) -> Json:
    """Return how many hold-out cases the table leads, trails or leaves, and the features that never varied."""
    answers = [own[0].lookup for own in rows.by_case(found).values()]
    facts = zip(*(key.facts(case.fields) for case in (*train, *cases.values())), strict=True)
    known = dict(zip(key.FACTS, map(set, facts), strict=True))
    constant = {name: known[name].pop() for name in key.FEATURES if len(known[name]) == 1}
    return {
        "leads": sum(answer is True for answer in answers),
        "trails": sum(answer is False for answer in answers),
        "abstains": sum(answer is None for answer in answers),
        "constant": constant,
    }


def routing_rows(files: Sequence[SessionFile], cases: Mapping[str, Case]) -> list[Json]:
    """Return per routing case the plans of auto and default, in the order of digests."""
    auto, default = LEGS.index("auto"), LEGS.index("default")
    return [
        {
            "case": row.case,
            "label": cases[row.case].label,
            "lookup": row.lookup,
            "auto": row.plans[auto],
            "default": row.plans[default],
            "auto_name": row.names[auto],
            "default_name": row.names[default],
            "status": row.status,
            "error": row.error,
        }
        for row in sorted(rows.rows(files), key=lambda row: row.case)
    ]


def moved(routing: Sequence[Json]) -> list[Json]:
    """Return the rows of routing cases that do not keep their plan."""
    return [row for row in routing if row["auto"] != row["default"] or row["status"] != Status.OK]
