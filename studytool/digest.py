"""Canonical JSON, SHA-256, and orders that are pure functions of a seed. No library's random stream is used."""

import hashlib
import io
import itertools
import json
from pathlib import Path


def canonical(value: object) -> bytes:
    """Return the one JSON spelling of a value: sorted keys, no spaces, UTF-8. TypeError for a float.

    Floats are refused since their text is not the same everywhere; ratios are integers in parts per million.
    """
    _refuse_floats(value)
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def pretty(value: dict[str, object]) -> bytes:
    """Return canonical JSON with one member a line, and one element a line in lists and maps of structures.

    For files that people read and compare by lines. TypeError for a float.
    """
    members = [f"{canonical(name).decode()}: {_block(value[name])}" for name in sorted(value)]
    return ("{\n " + ",\n ".join(members) + "\n}\n").encode("utf-8")


def _block(value: object) -> str:
    if isinstance(value, list | tuple) and value and all(isinstance(part, dict | list | tuple) for part in value):
        return "[\n  " + ",\n  ".join(canonical(part).decode() for part in value) + "\n ]"
    if isinstance(value, dict) and value and all(isinstance(part, dict) for part in value.values()):
        parts = (f"{canonical(name).decode()}: {canonical(value[name]).decode()}" for name in sorted(value))
        return "{\n  " + ",\n  ".join(parts) + "\n }"
    return canonical(value).decode()


def _refuse_floats(value: object) -> None:
    waiting = [value]
    for part in waiting:  # which grows meanwhile
        kind = type(part)
        if kind is str or kind is int:
            continue
        if isinstance(part, float):
            raise TypeError(f"{part!r} is a float; canonical JSON holds integers and strings")
        if isinstance(part, dict):
            waiting += part.keys()
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part


def sha256(data: bytes) -> str:
    """Return the SHA-256 of bytes in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def digest(value: object) -> str:
    """Return the SHA-256 of the canonical JSON of a value."""
    return sha256(canonical(value))


def rank(*parts: object) -> str:
    """Return a hexadecimal rank that depends on all parts and on nothing else: sort by it to shuffle."""
    return sha256("\x1f".join(str(part) for part in parts).encode("utf-8"))


def permutation(n: int, *parts: object) -> tuple[int, ...]:
    """Return a permutation of range(n) that depends on the parts alone."""
    return tuple(sorted(range(n), key=lambda i: rank(*parts, i)))


def tree_digest(paths: list[Path], root: Path) -> str:
    """Return one SHA-256 over files and their names relative to root, in the order of the names."""
    named = sorted((path.relative_to(root).as_posix(), sha256(path.read_bytes())) for path in paths)
    return digest(named)


def line_marks(data: bytes, most: int | None = None) -> list[str]:
    """Return a short hash per line of a file, by which a changed line can be named."""
    return [sha256(line)[:8] for line in itertools.islice(io.BytesIO(data), most)]
