"""Documentation is true: README names every command and option, and its examples run."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import click
import fakecudnn
import pytest

import studytool
from studytool import errors
from studytool.cli import gen, main
from studytool.engines.cudnn import graphs, plans
from studytool.layout import StudyPlace
from studytool.model import Case

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def example(word: str) -> str:
    """Return README's Python example in which a word occurs."""
    blocks: list[str] = re.findall(r"```python\n(.+?)```", README, re.DOTALL)
    return next(block for block in blocks if word in block)


def commands() -> list[click.Command]:
    """Return every command of the tool."""
    return [main.commands[name] for name in sorted(main.commands)]


@pytest.mark.parametrize("command", commands(), ids=lambda command: str(command.name))
def test_every_command_and_option_is_in_the_readme(command: click.Command) -> None:
    """README's table names each command with each of its options, and the help says what the command does."""
    row = next((line for line in README.splitlines() if line.startswith(f"| `studytool {command.name} ")), "")
    options = {name for p in command.params if isinstance(p, click.Option) for name in p.opts if name.startswith("--")}

    assert command.help
    assert options - {name for name in options if name in row} == set()


def test_readme_names_no_command_that_is_not_there() -> None:
    """Every `studytool WORD` of README is a command or a path's part."""
    words = set(re.findall(r"^(?:\| `)?studytool ([a-z]+)", README, re.MULTILINE))

    assert words <= set(main.commands)


def test_the_generator_is_the_same_command_in_both_spellings() -> None:
    """`python gen.py` and `studytool gen` are one command."""
    assert main.commands["gen"] is gen


def test_readme_python_example_runs(made: StudyPlace) -> None:
    """The look-up example of README runs as it stands, on a table that is there."""
    script = example("explain").replace("studies/NAME/table.py", str(made.table))
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (found.returncode, found.stderr) == (0, "")


def test_readme_cudnn_example_runs(made: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example that applies a table to a graph runs as it stands, on a graph that the real planner plans."""
    monkeypatch.setenv(plans.FLAG, "")
    fakecudnn.install(monkeypatch.setattr)
    case = Case(
        op="sdpa_bwd",
        dtype="bf16",
        mask="br",
        window=512,
        b=4,
        h_q=48,
        h_kv=6,
        s_q=4096,
        s_kv=4096,
        d_qk=128,
        d_v=128,
    )
    plans.pin_flag("backend")
    graph = graphs.build(case).graph
    built: list[int] = []
    monkeypatch.setattr(type(graph), "build_plan_at_index", lambda _graph, index: built.append(index))
    monkeypatch.setattr(type(graph), "execute", lambda *_args, **_named: None)

    exec(  # the text is README's own
        example("choose").replace("studies/NAME/table.py", str(made.table)),
        {"graph": graph, "tensors": {}, "workspace": None, "handle": None},
    )
    assert [graph.plans[index].engine_id for index in built] == [fakecudnn.BACKEND[0].engine_id]


def test_the_drivers_of_readme_are_there() -> None:
    """The two commands that README begins with are files of the repository."""
    named = re.findall(r"^bash (\S+)", README, re.MULTILINE)

    assert named == ["drivers/demo.sh", ".ci/run"]
    assert all((ROOT / name).is_file() for name in named)


def test_the_changelog_has_the_version_or_unreleased() -> None:
    """CHANGELOG begins with what is unreleased, or with the package's version."""
    head = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert head is not None

    assert head.group(1) in {"Unreleased", studytool.__version__}


def error_classes() -> list[str]:
    """Return the names of all error classes but the root."""
    return [
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.StudyError) and value is not errors.StudyError
    ]


@pytest.mark.parametrize("name", error_classes())
def test_every_error_is_drawn_and_raised(name: str) -> None:
    """The tree in the docstring shows each class, and some module uses it."""
    used = any(
        isinstance(node, ast.Name) and node.id == name
        for path in (ROOT / "studytool").rglob("*.py")
        if path.name != "errors.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    )

    assert name in (errors.__doc__ or "")
    assert used
