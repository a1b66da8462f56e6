"""docs/house.md shows the house as it is: its rows, every module, and which modules write files."""

import ast
import re
from pathlib import Path

from test_architecture import LAYERS, LEVEL, PACKAGE, modules, own_units, unit

PAGE = (PACKAGE.parent / "docs" / "house.md").read_text(encoding="utf-8")


def told() -> list[tuple[int, str]]:
    """Return the modules that the page has a sentence on, each with the row under which it stands, from 0."""
    found: list[tuple[int, str]] = []
    row = -1
    for line in PAGE.splitlines():
        if heading := re.fullmatch(r"Row (\d+)", line):
            row = int(heading[1]) - 1
        elif bullet := re.match(r"- `([\w/]+\.py)`: \S", line):
            found.append((row, bullet[1]))
    return found


def test_every_module_has_one_sentence() -> None:
    """Each module of the package is named once, and none that is not there."""
    assert sorted(name for _, name in told()) == [path.as_posix() for path in sorted(modules())]


def test_modules_stand_in_their_rows() -> None:
    """Each module stands under the row of its unit, the rows in their order, names sorted within a row."""
    found = told()

    assert [(row, name) for row, name in found if row != LEVEL[unit(Path(name))]] == []
    assert found == sorted(found)


def test_the_picture_has_the_rows() -> None:
    """The picture shows the units of each row as the test of the architecture has them."""
    rows = re.findall(r"^ row +(\d+) +(.+)$", PAGE, re.MULTILINE)

    assert [int(number) for number, _ in rows] == list(range(1, len(LAYERS) + 1))
    assert [set(units.split(" · ")) for _, units in rows] == LAYERS


def writes(path: Path) -> bool:
    """Return whether a module makes or changes files by itself: by what it calls."""
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            words = {value.value for value in node.args if isinstance(value, ast.Constant)}
            if name in {"write_atomic", "write_text", "write_bytes", "Writer"} or (
                name == "open" and words & {"w", "wb", "xb"}
            ):
                return True
        if isinstance(node, ast.Attribute) and node.attr == "O_CREAT":
            return True
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"shutil.rmtree", "shutil.copytree"}:
            return True
    return False


def test_every_writer_is_in_the_table_of_files() -> None:
    """The modules that the table names as writers are those that call for a file to be written, but for `files`."""
    section = PAGE.partition("## Who may write which file")[2].partition("\n## ")[0]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    named = {name for row in rows for name in re.findall(r"`([a-z_/]+)`", row[1])}
    known = {path.with_suffix("").as_posix() for path in modules()}

    assert named & known - {"results"} == {path.with_suffix("").as_posix() for path in modules() if writes(path)} - {
        "files"
    }


def test_the_paths_that_the_page_names_are_imports() -> None:
    """Deciding and checking import nothing that measures, also not through others."""
    sentence = re.search(r"The last two import nothing of (.+?):", PAGE, re.DOTALL)
    assert sentence is not None
    measuring = set(re.findall(r"`(\w+)`", sentence[1]))
    assert measuring == {"timing", "process", "worker", "measure"}

    for start in ("fit", "summary", "apply", "replay"):
        assert reached(start) & measuring == set(), start
    assert reached("pipeline") >= measuring


def reached(start: str) -> set[str]:
    """Return the units that a unit imports, itself and through others."""
    seen: set[str] = set()
    left = {start}
    while left:
        seen |= left
        left = {other for path in modules() if unit(path) in left for other in own_units(path)} - seen
    return seen
