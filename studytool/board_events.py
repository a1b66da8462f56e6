"""What a driver asks of the boards of a fleet, and what comes from them."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from studytool.measure import Measured, Request
from studytool.pipes import Failed
from studytool.worker import Opened


class Came(NamedTuple):
    """A board came: what its worker found, or "" and the reason why none could be opened; where it is."""

    board: int
    opened: Opened | None
    problem: str
    host: str


class Answered(NamedTuple):
    """A board answered one repeat of its cases, each line by what was measured or how it failed."""

    board: int
    found: Sequence[Measured | Failed]
    startup_ns: int


class Lost(NamedTuple):
    """A board is gone, with all that it had not answered."""

    board: int
    reason: str


class Boards(Protocol):
    """Boards, by number, that are asked and answer in their own time."""

    def ask(self, board: int, requests: Sequence[Request], timeout_s: int) -> None:
        """Have a board measure these one after the other, in a fresh process."""

    def next(self) -> Came | Answered | Lost | None:
        """Return what happens next, waiting for it; None when no board is there and none can come."""
