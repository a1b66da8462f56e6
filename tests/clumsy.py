"""Changes to a finished study that nobody took pains with: of each file a byte, a number, a line, its end, its name."""

from collections.abc import Callable
from typing import NamedTuple

from studytool.digest import sha256
from studytool.layout import StudyPlace

DRIVER = b"import sys\n\nprint(1, file=sys.stderr)\nprint(2, file=sys.stderr)\n"
DRIVER_NAME = "full_study.py"
FOLDER = "studies/whole/bf16"
RECORDS = f"{FOLDER}/records"
FROZEN = "frozen_cases/whole"

FILES = {
    "study.yaml": "studies/whole/study.yaml",
    "table.py": "studies/whole/table.py",
    "driver": f"studies/whole/drivers/{sha256(DRIVER)[:12]}-{DRIVER_NAME}",
    "MANIFEST.json": f"{FROZEN}/MANIFEST.json",
    "gate.json": f"{FROZEN}/gate.json",
    **{f"{split} cases": f"{FROZEN}/bf16.{split}.jsonl" for split in ("train", "holdout", "routing")},
    **{f"{split} records": f"{RECORDS}/{split}-01-001.jsonl" for split in ("train", "holdout", "routing")},
    "ledger": f"{FOLDER}/ledger.jsonl",
    "study.json": f"{FOLDER}/study.json",
    "lines.txt": f"{FOLDER}/lines.txt",
    "score.json": f"{FOLDER}/score.json",
    "report.md": f"{FOLDER}/report.md",
}
"""The files that a replay of bf16 reads, by what they are called here."""

WHOLE_ONLY = frozenset({"study.yaml", "driver"})
"""Files of which nothing but one hash is kept, so that a change can be named by the file alone.

So can events that are gone from the end of a ledger: a chain has no end.
"""

Names = tuple[str, ...]


class Change(NamedTuple):
    """What is done to a study; it returns the words of which one must stand where the check fails.

    `state` is what the check says: FAIL, unless something is gone of which nothing tells that it was there. `dtypes`
    are replayed.
    """

    act: Callable[[StudyPlace], Names]
    state: str = "FAIL"
    dtypes: tuple[str, ...] = ("bf16",)


Lines = list[bytes]
Edited = tuple[bytes, range]
"""The bytes after an edit, and the numbers of the lines that may be named."""


def _whole(lines: Lines) -> list[int]:
    """Return the numbers of the lines that are not empty."""
    return [number for number, line in enumerate(lines, 1) if line.strip()]


def _flipped(lines: Lines, number: int) -> Edited:
    line = bytearray(lines[number - 1])
    line[(len(line) - 1) // 2] ^= 1
    return b"".join([*lines[: number - 1], bytes(line), *lines[number:]]), range(number, number + 1)


def first_byte(lines: Lines) -> Edited:
    """Flip a bit in the first line."""
    return _flipped(lines, _whole(lines)[0])


def middle_byte(lines: Lines) -> Edited:
    """Flip a bit in a line in the middle."""
    return _flipped(lines, _whole(lines)[len(_whole(lines)) // 2])


def last_byte(lines: Lines) -> Edited:
    """Flip a bit in the last line."""
    return _flipped(lines, _whole(lines)[-1])


def number(lines: Lines) -> Edited:
    """Raise the first digit in the second half of the file by one."""
    start = len(b"".join(lines[: len(lines) // 2]))
    data = bytearray(b"".join(lines))
    place = next((n for n in range(start, len(data)) if data[n : n + 1].isdigit()), None)
    place = next(n for n in range(len(data)) if data[n : n + 1].isdigit()) if place is None else place
    data[place] = ord("0") + (data[place] - ord("0") + 1) % 10
    line = bytes(data[:place]).count(b"\n") + 1
    return bytes(data), range(line, line + 1)


def taken_out(lines: Lines) -> Edited:
    """Take a line in the middle out."""
    chosen = _whole(lines)[len(_whole(lines)) // 2]
    return b"".join([*lines[: chosen - 1], *lines[chosen:]]), range(max(1, chosen - 1), chosen + 2)


def last_taken_out(lines: Lines) -> Edited:
    """Take the last line off."""
    return b"".join(lines[:-1]), range(max(1, len(lines) - 1), len(lines) + 1)


def first_taken_out(lines: Lines) -> Edited:
    """Take the first line off."""
    return b"".join(lines[1:]), range(1, 2)


def doubled(lines: Lines) -> Edited:
    """Let a line in the middle stand there twice."""
    chosen = _whole(lines)[len(_whole(lines)) // 2]
    return b"".join([*lines[:chosen], *lines[chosen - 1 :]]), range(max(1, chosen - 1), chosen + 2)


def turned(lines: Lines) -> Edited:
    """Let two lines beside each other change places."""
    chosen = next(n for n in range(len(lines) - 1, 0, -1) if lines[n - 1] != lines[n])
    swapped = [*lines[: chosen - 1], lines[chosen], lines[chosen - 1], *lines[chosen + 1 :]]
    return b"".join(swapped), range(max(1, chosen - 1), chosen + 2)


def cut(lines: Lines) -> Edited:
    """Cut the file within a line in the middle."""
    chosen = _whole(lines)[len(_whole(lines)) // 2]
    line = lines[chosen - 1]
    return b"".join([*lines[: chosen - 1], line[: len(line) // 2]]), range(max(1, chosen - 1), chosen + 1)


def cut_between(lines: Lines) -> Edited:
    """Cut the second half of the lines off."""
    kept = max(1, len(lines) // 2)
    return b"".join(lines[:kept]), range(kept, kept + 2)


def appended(lines: Lines) -> Edited:
    """Put a line behind the last."""
    return b"".join([*lines, b"# checked\n"]), range(len(lines), len(lines) + 2)


def torn_appended(lines: Lines) -> Edited:
    """Put half a line behind the last."""
    return b"".join([*lines, b"0"]), range(len(lines), len(lines) + 2)


def empty_appended(lines: Lines) -> Edited:
    """Put an empty line behind the last."""
    return b"".join([*lines, b"\n"]), range(len(lines), len(lines) + 2)


def space(lines: Lines) -> Edited:
    """Put a space before the end of a line in the middle."""
    chosen = _whole(lines)[len(_whole(lines)) // 2]
    line = lines[chosen - 1].rstrip(b"\n") + b" \n"
    return b"".join([*lines[: chosen - 1], line, *lines[chosen:]]), range(chosen, chosen + 1)


EDITS = (
    first_byte,
    middle_byte,
    last_byte,
    number,
    taken_out,
    first_taken_out,
    last_taken_out,
    doubled,
    turned,
    cut,
    cut_between,
    appended,
    torn_appended,
    empty_appended,
    space,
)
"""Each takes the lines of a file, with their ends."""

MORE_LINES = frozenset({"turned", "cut_between"})
"""Edits that a file of one line cannot have."""


def _edit(name: str, change: Callable[[Lines], Edited]) -> Change:
    driver = name == "ledger" and change is last_taken_out

    def act(place: StudyPlace) -> Names:
        path = place.root / FILES[name]
        before = path.read_bytes()
        data, numbers = change(before.splitlines(keepends=True))
        assert data != before
        path.write_bytes(data)
        if driver:
            return (f"{FILES['driver']}: no ledger has it",)
        if name in WHOLE_ONLY or (name == "ledger" and change is cut_between):
            return (f"{FILES[name]}:",)
        return tuple(f"{FILES[name]}:{number}:" for number in numbers) + tuple(f"or line {n}:" for n in numbers)

    return Change(act, "FAIL")


def _gone(name: str, *, renamed: bool) -> Change:
    def act(place: StudyPlace) -> Names:
        path = place.root / FILES[name]
        if renamed:
            path.rename(path.with_name(path.name.replace("01-001", "01-002") if "01-001" in path.name else "old"))
        else:
            path.unlink()
        return (f"{FILES[name]}:",) if name != "report.md" else ("report.md: not there yet",)

    return Change(act, "cannot say" if name == "report.md" else "FAIL")


def _emptied(name: str) -> Change:
    def act(place: StudyPlace) -> Names:
        (place.root / FILES[name]).write_bytes(b"")
        return (f"{FILES[name]}:",)

    return Change(act)


def _folder(name: str) -> Change:
    def act(place: StudyPlace) -> Names:
        (place.root / FILES[name]).unlink()
        (place.root / FILES[name]).mkdir()
        return (f"{FILES[name]}:",)

    return Change(act)


def _exchanged(one: str, other: str) -> Change:
    def act(place: StudyPlace) -> Names:
        first, second = (place.root / name for name in (one, other))
        data = first.read_bytes(), second.read_bytes()
        assert data[0] != data[1]
        second.write_bytes(data[0])
        first.write_bytes(data[1])
        # a ledger that is another's is whole in itself: that its seals are not those of the files is what can be said
        return f"{one}:", f"{other}:", *(("(the ledger has another hash)",) if one == FILES["ledger"] else ())

    return Change(act)


def _other_dtype(name: str) -> str:
    return name.replace("/bf16", "/f16")


def _nothing_left(place: StudyPlace) -> Names:
    """Take ledger and records away: what was made from them is there, and nothing to hold it against."""
    own = place.results("bf16")
    for path in (own.ledger, *own.records.iterdir()):
        path.unlink()
    return (f"{FILES['ledger']}: nothing stands in it",)


def clumsy() -> dict[str, Change]:
    """Return all of them by name."""
    found = {
        f"{name}, {change.__name__}": _edit(name, change)
        for name in FILES
        for change in EDITS
        if name != "routing cases" or change.__name__ not in MORE_LINES
    }
    found |= {f"{name}, removed": _gone(name, renamed=False) for name in FILES}
    found |= {f"{name}, renamed": _gone(name, renamed=True) for name in FILES}
    found |= {f"{name}, emptied": _emptied(name) for name in FILES}
    found |= {f"{name}, a folder in its place": _folder(name) for name in FILES}
    found["ledger and records, removed"] = Change(_nothing_left, "cannot say")
    both = [name for name in FILES if "/bf16" in FILES[name]]
    found |= {f"{name} <-> f16's": _exchanged(FILES[name], _other_dtype(FILES[name])) for name in both}
    pairs = [
        ("train cases", "holdout cases"),
        ("train records", "holdout records"),
        ("holdout records", "routing records"),
        ("study.json", "score.json"),
        ("table.py", "lines.txt"),
        ("MANIFEST.json", "gate.json"),
    ]
    return found | {f"{one} <-> {other}": _exchanged(FILES[one], FILES[other]) for one, other in pairs}
