"""The checks of a replay, in order: each takes what one dtype's results hold, and returns its figure or raises.

CannotSayError means that there is no answer yet, any other StudyError that the check fails; both say where.
"""

from collections.abc import Callable

from studytool import chain, conduct, written
from studytool.found import Found

CHECKS: list[tuple[str, Callable[[Found], str]]] = [
    ("ledger", lambda found: chain.told(found.job, found.events)),
    ("drivers", lambda found: chain.drivers(found.job, found.events)),
    ("records sealed", lambda found: chain.sealed(found.job, found.events)),
    ("planned lines", conduct.planned),
    ("study.json", written.study_json),
    ("lines", written.lines_txt),
    ("table", written.table_py),
    ("one kind of machine", conduct.comparable),
    ("hold-out after the fit", conduct.order),
    ("hold-out attempts", conduct.attempts),
    ("unseen hold-out", conduct.unseen),
    ("look-ups", conduct.lookups),
    ("routing", conduct.routing),
    ("numerics", conduct.numerics),
    ("score.json", written.score_json),
    ("report.md", written.report_md),
    ("fresh hold-out", conduct.fresh),
    ("gate", conduct.gate_passed),
]
"""The checks in the order in which a reviewer reads them."""
