"""JSON → typed values, checked once where they enter: any fault is one line, and an unknown schema is refused."""

from typing import Protocol, TypeVar

import msgspec

from studytool.errors import StudyError
from studytool.model import SCHEMA


class Versioned(Protocol):
    """What every file's value has."""

    @property
    def schema(self) -> int:
        """Return the version of the file's format."""
        ...


V = TypeVar("V", bound=Versioned)


def decode(data: bytes | str, kind: type[V], where: str, noun: str, error: type[StudyError]) -> V:
    """Return the value of a kind in JSON; an error of the class given, which says where and that it is no `noun`."""
    try:
        value = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as fault:
        raise error(f"{where}: not a{'n' if noun[0] in 'aeiou' else ''} {noun}: {fault}") from None
    if value.schema != SCHEMA:
        raise error(f"{where}: schema {value.schema}; this version reads {SCHEMA}")
    return value
