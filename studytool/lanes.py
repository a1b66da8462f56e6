"""The lanes in which an attempt is measured side by side: shards, boards of a fleet, or none; files by lane."""

from typing import NamedTuple

from studytool.model import Split


class Shard(NamedTuple):
    """One of so many parts of a split, from 1 on, measured by itself: its cases, and all anchors."""

    number: int
    of: int

    @property
    def lane(self) -> str:
        """Return the name of the shard's lane."""
        return f"{self.number}of{self.of}"

    @classmethod
    def of_lane(cls, lane: str) -> "Shard | None":
        """Return the shard that a lane is, None for a board's lane or none."""
        number, found, of = lane.partition("of")
        return cls(int(number), int(of)) if found else None


def alike(one: str, other: str) -> bool:
    """Return whether two lanes can be of one attempt: shards of one number of them, boards of a fleet, or no lanes."""
    kinds = [shard.of if (shard := Shard.of_lane(lane)) else lane[:1] for lane in (one, other)]
    return kinds[0] == kinds[1]


def session_stem(split: Split, attempt: int, lane: str) -> str:
    """Return how the name of a session's records file begins; three digits or more follow, and `.jsonl`."""
    return f"{split}-{attempt:02d}-{lane}{'-' if lane else ''}"
