"""What tells of the machine that measured: its name, its user, its paths. Records and archives do without."""

import getpass
import os
import platform
import re
from pathlib import Path
from typing import NamedTuple

_PART = r"[^\s/'\"`:,;()\[\]<>]+"
_BEGINS = r"(?:(?<=file://)|(?<![\w.~/:-])|(?<=:)(?!//)|(?<=[\s'\"]-[A-Z])|(?<=^-[A-Z]))"
_PATH = re.compile(rf"{_BEGINS}(?:/+{_PART})+/+({_PART})", re.MULTILINE)
_HOMES = re.compile(rb"(?:(?<![\w.~/-])|(?<=-[A-Z]))/(?:home|Users|root|scratch|mnt|media)/[^\s\"'\\]{1,80}")
_EVERYBODY = {"root", "user", "admin", "ubuntu", "localhost"}
"""Names that many machines and users have."""


def without_paths(text: str) -> str:
    """Return a text in which each absolute path is only its last part: `/a/b/c.py:3` is `c.py:3`."""
    return _PATH.sub(r"\1", text)


class Traces(NamedTuple):
    """The words that tell of the host at hand, each with what it is; folders come before names."""

    words: tuple[tuple[str, bytes], ...]

    @classmethod
    def here(cls, root: Path) -> "Traces":
        """Return those of this machine, its user, and the folder that a study is in."""
        folders = {"the folder of the study": [str(root), os.path.realpath(root)], "the home directory": _homes()}
        names = {"the machine's name": [platform.node(), platform.node().split(".")[0]], "the user's name": _users()}
        words = [(what, os.fsencode(text)) for what, own in folders.items() for text in own if len(text) > 1]
        for what, own in names.items():
            words += [(what, os.fsencode(text)) for text in own if len(text) > 3 and text not in _EVERYBODY]
        return cls(tuple(dict.fromkeys(words)))

    def first(self, data: bytes) -> str:
        """Return the line, and what it tells, of the first trace of a host in a file; "" where there is none."""
        for number, line in enumerate(data.split(b"\n"), 1):
            for what, word in self.words:
                before = rb"" if word.startswith(b"/") else rb"(?<![\w-])"
                if re.search(before + re.escape(word) + rb"(?![\w-])", line):
                    return f"{number}: found {what}, {word.decode(errors='replace')!r}"
            if found := _HOMES.search(line):
                return f"{number}: found a path of the host, {found[0].decode(errors='replace')!r}"
        return ""


def _homes() -> list[str]:
    try:
        return [str(Path.home())]
    except RuntimeError:  # there is none
        return []


def _users() -> list[str]:
    try:
        return [getpass.getuser()]
    except (KeyError, OSError, ImportError):  # no name for this number
        return []
