"""What tells of the machine that measured: its name, its user, its paths. Records and archives do without."""

import getpass
import platform
import re
from pathlib import Path
from typing import NamedTuple

_PATH = re.compile(r"(?<![\w./-])(?:/[^\s/'\"`:,;()\[\]<>]+)+/([^\s/'\"`:,;()\[\]<>]+)")
_HOMES = re.compile(rb"/(?:home|Users|root|scratch|mnt|media)/[^\s\"'\\]{1,80}")


def without_paths(text: str) -> str:
    """Return a text in which each absolute path is only its last part: `/a/b/c.py:3` is `c.py:3`."""
    return _PATH.sub(r"\1", text)


class Traces(NamedTuple):
    """The words that tell of the host at hand."""

    words: tuple[tuple[str, bytes], ...]

    @classmethod
    def here(cls, root: Path) -> "Traces":
        """Return those of this machine and of the folder that a study is in."""
        named = {"the folder of the study": str(root), "the home directory": str(Path.home())}
        words = {what: text.encode() for what, text in named.items() if len(text) > 1}
        for what, text in (("the machine's name", platform.node()), ("the user's name", _user())):
            if len(text) > 3:  # a shorter one, or one that every machine has, is found everywhere
                words[what] = text.encode()
        return cls(tuple(words.items()))

    def first(self, data: bytes) -> str:
        """Return the line, and what it tells, of the first trace of a host in a file; "" where there is none."""
        for number, line in enumerate(data.split(b"\n"), 1):
            for what, word in self.words:
                if re.search(rb"(?<![\w-])" + re.escape(word) + rb"(?![\w-])", line):
                    return f"{number}: found {what}, {word.decode(errors='replace')!r}"
            if found := _HOMES.search(line):
                return f"{number}: found a path of the host, {found[0].decode(errors='replace')!r}"
        return ""


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError, ImportError):  # no name for this number
        return ""
    return "" if name in {"root", "user", "admin", "ubuntu"} else name
