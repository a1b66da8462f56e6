"""What the commands share with the terminal: one line for an error, the time, progress with ETA."""

import contextlib
import datetime as dt
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from studytool.errors import StudyError

if TYPE_CHECKING:
    from rich.progress import ProgressColumn, Task

    from studytool.costs import Budget
    from studytool.pipeline import Hooks
    from studytool.progress import Progress


QUIET_S = 30
"""Off a terminal, progress is a line as often as this."""


MOST_CHARACTERS = 700
"""The longest text that is printed whole on one line."""


class OneLine:
    """Ends a command with one line and the error's exit code, in this one place."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except StudyError as error:
            message, code = str(error), error.exit_code
        except KeyboardInterrupt:
            message, code = "stopped; what was recorded is kept, and the same command goes on", 130
        except BrokenPipeError:  # who reads has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise click.exceptions.Exit(141) from None
        except OSError as error:  # where a file is only looked for, such as in a folder that may not be entered
            message, code = f"{error.filename or 'a file'}: cannot be used: {error.strerror}", StudyError.exit_code
        click.echo(printable(message), err=True)
        raise click.exceptions.Exit(code)


def printable(text: str) -> str:
    """Return a text as one line in which nothing acts on the terminal: a name from a bad file may hold anything."""
    if len(text) > MOST_CHARACTERS:
        text = f"{text[: MOST_CHARACTERS - 200]} ... {len(text) - MOST_CHARACTERS + 300} characters ... {text[-100:]}"
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


class Group(OneLine, click.Group):
    """A group of commands whose errors are one line."""


class Command(OneLine, click.Command):
    """A command of its own whose errors are one line."""


def command() -> str:
    """Return how this program was called: by its name where the shell finds it, else so that it can be typed again."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return "python -m studytool"
    return "studytool" if shutil.which("studytool") == str(called.absolute()) else str(called)


def now() -> str:
    """Return the time as text, in UTC."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


@contextlib.contextmanager
def hooks(budget: "Budget | None" = None) -> "Iterator[Hooks]":
    """Return hooks whose progress is a bar with ETA on a terminal, and now and then a line elsewhere."""
    from rich import console, progress

    from studytool.pipeline import Hooks

    screen = console.Console(stderr=True)
    columns = [progress.TextColumn("{task.description}"), progress.BarColumn(), progress.MofNCompleteColumn()]
    columns += [_rate(), progress.TimeRemainingColumn(), progress.TextColumn("{task.fields[told]}")]
    with progress.Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal) as bar:
        tasks: dict[str, progress.TaskID] = {}

        told = {"at": time.monotonic()}

        def advance(name: str, step: "Progress") -> None:
            if bar.disable and time.monotonic() - told["at"] >= QUIET_S:
                told["at"] = time.monotonic()
                click.echo(f"{name}: {step.done} of {step.total} lines, {seen(step)}", err=True)
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=step.total, told="")
            bar.update(tasks[name], completed=step.done, total=step.total, told=seen(step))

        def say(text: str) -> None:
            click.echo(text, err=True)

        yield Hooks(now, advance, say, budget)


def seen(step: "Progress") -> str:
    """Return what a step of a measurement says: ratio, noise so far, time before the deadline, and the case."""
    parts = [] if step.ratio is None else [f"frost/backend {step.ratio:.3f}"]
    parts += [] if step.noise is None else [f"A/A {100 * step.noise:.1f} %"]
    parts += [] if step.left_ns is None else [f"{max(0, step.left_ns) / 60e9:.0f} min left"]
    return ", ".join([*parts, step.label])


def _rate() -> "ProgressColumn":
    """Return a column that says how many lines are measured in a minute."""
    from rich import progress, text

    class Rate(progress.ProgressColumn):
        def render(self, task: "Task") -> text.Text:
            return text.Text(f"{60 * task.speed:.0f}/min" if task.speed else "")

    return Rate()


@contextlib.contextmanager
def bar(what: str) -> "Iterator[Callable[[int, int, str], None]]":
    """Return how to tell progress: done, of how many, at what; shown on a terminal alone."""
    from rich import console, progress

    screen = console.Console(stderr=True)
    with progress.Progress(console=screen, transient=True, disable=not screen.is_terminal) as shown:
        task = shown.add_task(what, total=None)
        yield lambda done, total, _label: shown.update(task, completed=done, total=total)
