"""How much of the tests is run: all, unless STUDYTOOL_SHARE says that there is little time."""

import os

SHARE = int(os.environ.get("STUDYTOOL_SHARE", "1"))
"""Of each test with many inputs every so many-th is run, and none that is marked `whole`."""


def examples(most: int) -> int:
    """Return how many inputs are drawn for a test that would have `most`."""
    return max(10, most // SHARE)
