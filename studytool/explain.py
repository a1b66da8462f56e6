"""What became of each class and why, as rows, as text and as JSON."""

from collections.abc import Mapping

import msgspec

from studytool.fit import Fit
from studytool.judge import known_ratios
from studytool.lines import rule_text
from studytool.metrics import geomean_ppm, ratio_text
from studytool.model import Verdict
from studytool.runtime.lookup import Key

Kept = Mapping[Key, int | None]
"""Per class, without how many single cases its line decides the others as it does; see sensitivity."""


def explain_rows(found: Fit, kept: Kept | None = None) -> list[dict[str, object]]:
    """Return one mapping per class: counts of verdicts, the line or the code with its reason, and what is `kept`."""
    rows: list[dict[str, object]] = []
    for outcome in found.outcomes:
        counts = {str(v).lower(): sum(item.verdict is v for item in outcome.judged) for v in Verdict}
        line = outcome.line
        rows.append(
            {
                "class": list(outcome.class_key),
                "cases": len(outcome.judged),
                **counts,
                "geomean_ppm": geomean_ppm(ratios) if (ratios := known_ratios(outcome.judged)) else None,
                "rule": rule_text(line) or None,
                **({} if kept is None else {"kept": kept[outcome.class_key]}),
                "code": outcome.code or None,
                "detail": "; ".join(part for part in (line.comment if line else "", outcome.detail) if part),
            }
        )
    return rows


def explain_json(found: Fit, kept: Kept) -> bytes:
    """Return what became of each class as JSON."""
    return msgspec.json.format(msgspec.json.encode(explain_rows(found, kept)), indent=1) + b"\n"


def explain_text(found: Fit, kept: Kept) -> str:
    """Return what became of each class as aligned text, one line a class.

    `stable` 8/9: without one of its nine cases the line decides the others as it does, for eight of them.
    """
    head = ["class", "cases", "win", "neutral", "lose", "unclear", "geomean", "rule or code", "stable", "detail"]
    rows = [head]
    for row in explain_rows(found, kept):
        geomean = row["geomean_ppm"]
        rows.append(
            [
                " ".join(str(part) for part in row["class"][2:]),  # type: ignore[index]
                *(str(row[name]) for name in ("cases", "win", "neutral", "lose", "inconclusive")),
                ratio_text(geomean) if isinstance(geomean, int) else "n/a",
                str(row["rule"] or row["code"]),
                "" if row["kept"] is None else f"{row['kept']}/{row['cases']}",
                str(row["detail"]),
            ]
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "".join("  ".join(map(str.ljust, row, widths)).rstrip() + "\n" for row in rows)
