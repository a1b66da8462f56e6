"""What several commands share: the study they are about, its dtypes, a deadline, and what a gate ends them with."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from studytool.errors import CannotSayError, CheckFailedError, StudyError

if TYPE_CHECKING:
    from studytool.attempts import Job
    from studytool.costs import Budget
    from studytool.lanes import Shard
    from studytool.layout import StudyPlace
    from studytool.model import Study

PATH = click.Path(path_type=Path, readable=False)  # what cannot be read is said in one line by who reads it
study_argument = click.argument("study", type=PATH, required=False)
dtype_option = click.option("--dtype", required=True, help="A dtype of the study, or all.")


def open_study(path: Path | None) -> "tuple[Study, StudyPlace]":
    """Return the study at a path, or the one around the current directory, and its place."""
    from studytool import opening
    from studytool.layout import find_study, place_of

    place = find_study(Path.cwd()) if path is None else place_of(path)
    return opening.open_study(place), place


def budget_of(study: "Study", deadline: str | None) -> "Budget | None":
    """Return the budget of a deadline such as 45m; a simulated device spends virtual time."""
    import time

    from studytool.costs import Budget

    if deadline is None:
        return None
    match = re.fullmatch(r"([0-9]{1,6})([smh])", deadline)
    if match is None:
        raise StudyError(f"--deadline: found {deadline}; expected a number of s, m or h, such as 45m")
    seconds = int(match.group(1)) * {"s": 1, "m": 60, "h": 3600}[match.group(2)]
    return Budget(seconds * 10**9, None if study.engine == "simulated" else time.monotonic_ns)


def shard_of(text: str) -> "Shard":
    """Return the shard that a text such as 3/16 names; StudyError for another text."""
    from studytool.lanes import Shard

    match = re.fullmatch(r"([0-9]{1,3})/([0-9]{1,3})", text)
    shard = Shard(int(match[1]), int(match[2])) if match else Shard(0, 0)
    if not 1 <= shard.number <= shard.of:
        raise StudyError(f"--shard: found {text}; expected a part and their number, from 1/N to N/N, such as 3/16")
    return shard


def dtypes_of(study: "Study", asked: str) -> tuple[str, ...]:
    """Return the dtypes that are asked for; StudyError for one that the study has not."""
    if asked != "all" and asked not in study.dtypes:
        raise StudyError(f"--dtype: found {asked}; expected {', '.join(study.dtypes)} or all")
    return study.dtypes if asked == "all" else (asked,)


def one_line(reason: str) -> str:
    """Return a reason that goes into records; StudyError for one that is not printable on one line."""
    if not reason.isprintable():  # also what the shell gives as bytes that are not UTF-8
        raise StudyError("--reason: expected printable text on one line")
    return reason


def page(job: "Job", *, err: bool = False) -> None:
    """Write the page of a report and name it, on stderr if so asked, or say what it takes."""
    from studytool import reporting

    if reporting.page(job):
        click.echo(click.format_filename(job.results.page), err=err)
    else:
        click.echo(f"no {job.results.page.name}: pip install 'studytool[report]'", err=True)


def judge(scores: "list[dict[str, Any]]") -> None:
    """Raise what a gate that fails, or has no answer, ends a command with."""
    verdicts = {found["verdict"] for found in scores}
    if "FAIL" in verdicts:
        raise CheckFailedError("the gate fails")
    if "CANNOT SAY" in verdicts:
        raise CannotSayError(
            "the gate cannot say: " + "; ".join(reason for found in scores for reason in found["open"])
        )
