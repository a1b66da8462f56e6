"""What a score counts: how cases ended, what the table reaches, what was never varied, what routing cases ran."""

from collections.abc import Mapping, Sequence

import pandas as pd

from studytool import frame
from studytool.jsonl import SessionFile
from studytool.model import Case, Status
from studytool.runtime import key
from studytool.summary import worst_status

Json = dict[str, object]


def statuses(table: pd.DataFrame, cases: Mapping[str, Case]) -> dict[str, int]:
    """Return how many cases ended how; the counts add up to the number of cases."""
    counts: dict[str, int] = {}
    for _, group in table.groupby("case", sort=True):
        status = str(worst_status(group)[0])
        counts[status] = counts.get(status, 0) + 1
    if sum(counts.values()) != len(cases):
        raise ValueError(f"statuses of {sum(counts.values())} cases; expected {len(cases)}")
    return counts


def failed_cases(table: pd.DataFrame, cases: Mapping[str, Case]) -> list[Json]:
    """Return the cases that no ratio speaks of, with the reason."""
    found: list[Json] = []
    for digest, group in table.groupby("case", sort=True):
        status, error = worst_status(group)
        if status is not Status.OK:
            found.append({"case": digest, "label": cases[str(digest)].label, "status": str(status), "error": error})
    return found


def coverage(train: Sequence[Case], cases: Mapping[str, Case], table: pd.DataFrame) -> Json:
    """Return how many hold-out cases the table leads, trails or leaves, and the features that never varied."""
    answers = table.drop_duplicates("case")["lookup"].tolist()
    fields = [case.fields for case in (*train, *cases.values())]
    constant: Json = {}
    for name in key.FEATURES:
        values = {key.feature(case, name) for case in fields}
        if len(values) == 1:
            constant[name] = values.pop()
    return {
        "leads": sum(answer is True for answer in answers),
        "trails": sum(answer is False for answer in answers),
        "abstains": sum(answer is None for answer in answers),
        "constant": constant,
    }


def routing_rows(files: Sequence[SessionFile], cases: Mapping[str, Case]) -> list[Json]:
    """Return per routing case the plans of auto and default, in the order of digests."""
    table = frame.repeats(files).sort_values("case")
    return [
        {
            "case": row["case"],
            "label": cases[row["case"]].label,
            "lookup": row["lookup"],
            "auto": row["auto_plan"],
            "default": row["default_plan"],
            "auto_name": row["auto_name"],
            "default_name": row["default_name"],
            "status": row["status"],
            "error": row["error"],
        }
        for row in table.to_dict("records")
    ]
