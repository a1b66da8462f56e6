"""What the pages show of a terminal is true: their commands are run, and what they print is compared word for word.

In a block of kind `console`, a line that begins with `$ ` is a command for bash; the lines up to the next one are what
it prints, in which `...` on a line of its own stands for any lines and within a line for any text. Another block whose
first line is `# PATH` is a file that the reader saves. Everything happens in one folder, in the order of the page;
it has the `drivers` of this repository in it, as a checkout has.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(path.name for path in DOCS.glob("*.md") if "\n```console\n" in path.read_text(encoding="utf-8"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Command(NamedTuple):
    """One command of a page, and the lines that it should print."""

    text: str
    expected: list[str]


class Saved(NamedTuple):
    """A file that the reader saves."""

    path: str
    text: str


def steps(page: str) -> Iterator[Command | Saved]:
    """Return what a page asks its reader to do, in order."""
    for kind, body in BLOCK.findall(page):
        first, _, _ = body.partition("\n")
        if kind == "console":
            yield from commands(body)
        elif match := re.fullmatch(r"# ([\w./-]+\.\w+)", first):
            yield Saved(match[1], body)


def commands(body: str) -> Iterator[Command]:
    """Return the commands of a console block."""
    command: Command | None = None
    for line in body.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command
            command = Command(line.removeprefix("$ "), [])
        else:
            assert command is not None, f"a console block begins with {line!r}; expected a command"
            command.expected.append(line)
    assert command is not None, "a console block without a command"
    yield command


def pattern(expected: list[str]) -> str:
    """Return the expression that matches what a command should print."""
    lines = (
        r"(?:[^\n]*\n)*?" if line == "..." else "[^\n]*?".join(map(re.escape, line.split("..."))) + "\n"
        for line in expected
    )
    return "".join(lines)


def typed(text: str, folder: Path) -> tuple[str, int]:
    """Return what bash prints for a command, and its exit code."""
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", text],
        cwd=folder,
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        encoding="utf-8",
    )
    return found.stdout, found.returncode


def _environment() -> dict[str, str]:
    dropped = ("COVERAGE", "PYTHONPATH", "FORCE_COLOR", "TTY_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return kept | {"PYTHON": sys.executable, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"}


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_its_reader_sees(name: str, tmp_path: Path) -> None:
    """Each command of a page ends with code 0 and prints what the page shows."""
    (tmp_path / "drivers").symlink_to(DOCS.parent / "drivers")
    for step in steps((DOCS / name).read_text(encoding="utf-8")):
        if isinstance(step, Saved):
            (tmp_path / step.path).write_text(step.text, encoding="utf-8")
            continue
        printed, code = typed(step.text, tmp_path)
        assert code == 0, f"$ {step.text}\n{printed}exit code {code}"
        matches = re.fullmatch(pattern(step.expected), printed) is not None
        assert matches, f"$ {step.text}\n{printed}expected\n" + "\n".join(step.expected)


def test_the_tutorial_goes_the_whole_path() -> None:
    """The tutorial has each step of a study, in the order of the path."""
    page = (DOCS / "tutorial.md").read_text(encoding="utf-8")
    told = [step.text for step in steps(page) if isinstance(step, Command)]
    path = [
        *("studytool freeze", "studytool time", "studytool gen", "studytool apply"),
        *("--split holdout", "--split routing", "studytool score", "studytool report"),
        *("studytool bundle", "studytool replay"),
    ]
    places = [next(place for place, text in enumerate(told) if word in text) for word in path]

    assert places == sorted(places)
    assert {"terminal.md", "tutorial.md"} <= set(PAGES)


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        (["one", "two"], "one\ntwo\n", True),
        (["one"], "one\ntwo\n", False),
        (["one", "..."], "one\ntwo\nthree\n", True),
        (["...", "three"], "one\ntwo\nthree\n", True),
        (["...", "two"], "one\ntwo\nthree\n", False),
        (["o... 5", "two"], "one 12345\ntwo\n", False),
        (["o...5", "two"], "one 12345\ntwo\n", True),
        (["o...two"], "one\ntwo\n", False),
        (["one."], "ones\n", False),
        ([], "", True),
        ([], "one\n", False),
    ],
)
def test_dots_stand_for_what_is_left_out(expected: list[str], printed: str, same: bool) -> None:
    """`...` on a line of its own stands for any lines, within a line for any text of it, and nothing else does."""
    assert (re.fullmatch(pattern(expected), printed) is not None) is same
