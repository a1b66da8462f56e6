"""The cuDNN engine: FROST rows against the closed backend, through the frontend's public calls.

`choose` is for users: it applies a table to a graph of theirs.
"""

from studytool.engines.cudnn.plans import Device, choose

__all__ = ["Device", "choose"]
