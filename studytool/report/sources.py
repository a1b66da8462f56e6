"""What a report is written from."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from studytool.fit import Fit
from studytool.ledger import Freshness
from studytool.lines import Header
from studytool.model import Fingerprint, Study
from studytool.studyjson import Summary

Score = Mapping[str, Any]
"""The content of a score.json."""


class Sources(NamedTuple):
    """What a report is written from."""

    study: Study
    summary: Summary
    fit: Fit
    header: Header
    score: Score
    freshness: Freshness
    sessions: Sequence[tuple[str, str, int]]
    fingerprint: Fingerprint
