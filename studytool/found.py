"""What the checks of one dtype share: its job, its ledger, and what its records give, computed once."""

from functools import cached_property
from typing import Any

from studytool import ledger, results, tally
from studytool.attempts import Job
from studytool.errors import CannotSayError
from studytool.ledger import Event
from studytool.model import Split
from studytool.report.sources import Sources
from studytool.results import Train


class Found:
    """What the checks of one dtype share; summary and score are recomputed once, from the records."""

    def __init__(self, job: Job, events: tuple[Event, ...]) -> None:
        self.job, self.events = job, events

    @cached_property
    def train(self) -> Train:
        """Return the train summary."""
        return results.train(self.job._replace(split=Split.TRAIN))

    @cached_property
    def applied(self) -> Event:
        """Return the event by which the dtype's lines went into the table last."""
        own = ledger.last_apply(self.events, self.job.dtype)
        if own is None:
            raise CannotSayError("no lines of this dtype were applied yet")
        return own

    @cached_property
    def fitted(self) -> str:
        """Return the text of the lines that the records give with the margin and scope of those applied."""
        body = self.applied.body
        return results.lines_of(self.train, int(str(body["margin_ppm"])), str(body["scope"])).text

    @cached_property
    def scored(self) -> dict[str, Any]:
        """Return the score."""
        return results.score_of(self.job, self.train)

    @cached_property
    def sources(self) -> Sources:
        """Return what a report is written from."""
        return results.sources_of(self.job, self.train, self.scored, self.events)

    @property
    def moved(self) -> list[dict[str, Any]]:
        """Return the routing cases that do not keep their plan."""
        return tally.moved(self.scored["routing"])
