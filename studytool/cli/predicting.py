"""The commands that plan for a GPU that is not here: plan, stale."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from studytool.cli.shared import PATH, open_study, study_argument
from studytool.cli.terminal import bar, printable
from studytool.errors import CheckFailedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from studytool.predictions import Asked

_options = (
    click.option("--board", required=True, help="A board that comes with the package, or a file BOARD.json."),
    click.option("--cudnn", help="A version such as 9.27.0.42.  [default: the one that is installed]"),
    click.option("--fetch", is_flag=True, help="Let pip put that version into the cache first: 0.5 GB to download."),
    click.option("--even-with-driver", is_flag=True, help="Also where an NVIDIA driver is at work."),
)


def _predicting(command: "Callable[..., Any]") -> "Callable[..., Any]":
    for option in reversed(_options):
        command = option(command)
    return command


@click.command()
@study_argument
@_predicting
@click.option("--json", "as_json", is_flag=True, help="Every case, for machines.")
def plan(study: Path | None, board: str, cudnn: str | None, fetch: bool, even_with_driver: bool, as_json: bool) -> None:
    """Say what a cuDNN study's cases would run on a board that is not here."""
    from studytool import predictions

    declared, place = open_study(study)
    asked = predictions.Asked(board, cudnn, fetch, even_with_driver)
    _say_size(asked)
    with bar("planning") as progress:
        text, found = predictions.plan(declared, place, asked, progress)
    click.echo(json.dumps(found, indent=1, sort_keys=True) if as_json else text)


@click.command()
@click.argument("table", type=PATH)
@_predicting
@click.option("--study", type=PATH, help="The study that made the lines.  [default: the one TABLE is in]")
@click.option("--matrix", help="Several versions side by side, such as 9.19.0.56,9.28.1.4, in place of --cudnn.")
def stale(
    table: Path,
    board: str,
    cudnn: str | None,
    fetch: bool,
    even_with_driver: bool,
    study: Path | None,
    matrix: str | None,
) -> None:
    """Say which lines of a table rest on plans that cuDNN no longer picks; exit 1 where one does.

    A line is FRESH, STALE (a side picks another plan) or DEAD (a side has none).
    """
    from studytool import predictions
    from studytool.layout import study_beside

    if matrix is not None and cudnn is not None:
        raise click.UsageError("--matrix and --cudnn both name versions")
    asked = predictions.Asked(board, cudnn, fetch, even_with_driver)
    beside = study_beside(table)
    folder = study or (beside.folder if beside else None)
    declared, place = (None, None) if folder is None else open_study(folder)
    summaries = predictions.summaries_of(declared, place) if declared and place else []
    versions: list[str | None] = [*matrix.split(",")] if matrix else [cudnn]
    _say_size(asked)
    found = predictions.stale_lines(table, asked, versions, declared.base if declared else "backend", summaries)
    click.echo("\n".join(printable(line) for line in found.text.split("\n")))
    if found.worst != "FRESH":
        raise CheckFailedError(f"{table}: not every line is FRESH")


def _say_size(asked: "Asked") -> None:
    """Say how much a fetch takes before it begins."""
    from studytool.planning import libraries

    if asked.fetch:
        click.echo(f"fetching where it is not here yet: {libraries.SIZE}", err=True)
