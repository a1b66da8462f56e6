"""The commands that measure: demo, freeze, time, run, doctor."""

import contextlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from studytool.cli.shared import (
    PATH,
    budget_of,
    dtype_option,
    dtypes_of,
    judge,
    one_line,
    open_study,
    page,
    shard_of,
    study_argument,
)
from studytool.cli.terminal import bar, command, hooks, printable
from studytool.errors import CheckFailedError, FrozenError, StudyError

if TYPE_CHECKING:
    from studytool.board_events import Boards
    from studytool.model import Study

split_option = click.option(
    "--split",
    type=click.Choice(["train", "holdout", "routing"]),
    default="train",
    show_default=True,
    help="Which of the study's cases.",
)


@click.command()
@click.option("--out", type=PATH, default=Path("studytool-demo"), show_default=True, help="Where to work.")
@click.option("--quick", is_flag=True, help="The small study: half a minute of timing.")
@click.option(
    "--engine",
    type=click.Choice(["torch_sdpa", "simulated"]),
    default="torch_sdpa",
    show_default=True,
    help="What to measure: this machine's CPU, or a device whose true times are known.",
)
def demo(out: Path, quick: bool, engine: str) -> None:
    """Run the whole path on this machine's own CPU engines, in a folder of its own."""
    from studytool import demo as showing

    name = "sim_demo" if engine == "simulated" else "cpu_smoke" if quick else "cpu_sdpa"
    with hooks() as outside:
        text, sentence, code = showing.demo(out, name, outside)
    click.echo(f"{text}\n\nReplay: {sentence}.")
    click.echo(f"Check it again: {command()} replay {out}/studies/{name}")
    if code == 1:
        click.echo("The demo ran to its end; what does not hold is for you to judge.", err=True)


@click.command()
@study_argument
@click.option("--exclude", multiple=True, type=PATH, help="MANIFEST.json of a study to share no case with.")
@click.option("--check", is_flag=True, help="Verify what is frozen; write nothing.")
@click.option("--plan", "board", help="First show what the cases would run on this board, as `studytool plan` does.")
@click.option("--cudnn", help="The cuDNN version that --plan asks.  [default: the one that is installed]")
def freeze(study: Path | None, exclude: tuple[Path, ...], check: bool, board: str | None, cudnn: str | None) -> None:
    """Write frozen_cases/NAME: cases, gate and their hashes, once and for all."""
    from studytool import freeze as freezing
    from studytool import pipeline

    if check and exclude:
        raise click.UsageError("--exclude is for freezing, --check for what is frozen")
    if check and board:
        raise click.UsageError("--plan is for freezing, --check for what is frozen")
    if cudnn and not board:
        raise click.UsageError("--cudnn is for --plan")
    declared, place = open_study(study)
    if board is not None:
        from studytool import predictions

        with bar("planning") as progress:
            click.echo(predictions.plan(declared, place, predictions.Asked(board, cudnn), progress)[0] + "\n")
    if check:
        found, problems = freezing.check(declared, place)
        if found is None:
            raise FrozenError(problems[0])
        if problems:
            raise CheckFailedError(problems[0])
        frozen = found
        click.echo(freezing.posted_line(frozen.manifest, frozen.sha256))
    else:
        click.echo(pipeline.freeze_study(declared, place, list(exclude)))


@click.command(name="time")
@study_argument
@dtype_option
@split_option
@click.option("--attempt", type=click.Choice(["new"]), help="Begin again beside the attempt that is there.")
@click.option("--reason", default="", help="Why a new attempt is made; it stands in its records.")
@click.option("--deadline", help="Stop in time, such as 45m; a hold-out that cannot end before it is not begun.")
@click.option("--plan", is_flag=True, help="Say how long it will take; measure nothing.")
@click.option("--prewarm", type=click.IntRange(1, 64), help="Compile kernels in so many processes before timing.")
@click.option("--shard", metavar="K/N", help="The K-th of N parts of the cases alone, for `merge-records`.")
@click.option("--ray", "address", metavar="ADDRESS|local", help="On the boards of this Ray cluster (extra ray).")
@click.option("--boards", type=click.IntRange(1, 4096), help="With --ray: on so many at most.  [default: all]")
def time_command(
    *,
    study: Path | None,
    dtype: str,
    split: str,
    attempt: str | None,
    reason: str,
    deadline: str | None,
    plan: bool,
    prewarm: int | None,
    shard: str | None,
    address: str | None,
    boards: int | None,
) -> None:
    """Time what is missing of a split; stopped at any moment, it goes on where it was."""
    from studytool import opening, pipeline
    from studytool.model import Split

    if (attempt is None) == bool(reason):
        raise click.UsageError("--attempt new and --reason go together")
    one_line(reason)
    declared, place = open_study(study)
    part = None if shard is None else shard_of(shard)
    if part is not None and plan:
        raise click.UsageError("--plan is for a whole split, --shard for a part of it")
    if address is None and boards is not None and not plan:
        raise click.UsageError("--boards goes with --ray, or with --plan")
    if address is not None and (part is not None or plan or prewarm):
        raise click.UsageError("--ray goes without --shard, --plan and --prewarm")
    budget = budget_of(declared, deadline)
    count = 0 if address is None else _connected(declared, address, boards)
    for name in dtypes_of(declared, dtype):
        job = opening.job_of(declared, place, name, Split(split))
        if plan:
            click.echo(pipeline.plan(job, boards or 1, budget))
            continue
        with hooks(budget) as outside:
            if prewarm is not None:
                outside.say(pipeline.prewarm(job, prewarm, outside))
            with _fleet(declared, count) as fleet:
                said = pipeline.time(job, outside, reason, part, fleet)
        click.echo(said)


def _connected(study: "Study", address: str, boards: int | None) -> int:
    """Return how many boards of a Ray cluster there are for a study; StudyError where Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise StudyError("--ray: Ray is not installed; pip install 'studytool[ray]'")
    from studytool import ray_boards

    with contextlib.redirect_stdout(sys.stderr):
        return ray_boards.connect(address, study.engine, boards)


@contextlib.contextmanager
def _fleet(study: "Study", count: int) -> "Iterator[Boards | None]":
    """Return so many boards of the cluster that was joined, None for none."""
    if not count:
        yield None
        return
    from studytool import ray_boards
    from studytool.process import terms_of

    with contextlib.redirect_stdout(sys.stderr):  # Ray prints what a lost node said
        boards = ray_boards.RayBoards(terms_of(study), count)
        try:
            yield boards
        finally:
            boards.stop()


@click.command(name="merge-records")
@click.argument("folders", type=PATH, nargs=-1, metavar="[DIR]...")
@dtype_option
@split_option
@click.option("--into", "study", type=PATH, help="The study's folder.  [default: around the current directory]")
def merge_records(folders: tuple[Path, ...], dtype: str, split: str, study: Path | None) -> None:
    """Join the shards of a split, which `time --shard` measured, into one attempt.

    Each DIR is a folder of the same study, on this machine or copied from another; shards that were measured in the
    study's own folder need none.
    """
    from studytool import opening, pipeline
    from studytool.layout import place_of
    from studytool.model import Split

    declared, place = open_study(study)
    jobs = [opening.job_of(declared, place, name, Split(split)) for name in dtypes_of(declared, dtype)]
    with hooks() as outside:
        said = pipeline.merge_records(jobs, [place_of(folder) for folder in folders], outside.now)
    click.echo("\n".join(said))


@click.command()
@study_argument
@dtype_option
@click.option("--deadline", help="Stop in time, such as 2h; a hold-out that cannot end before it is not begun.")
def run(study: Path | None, dtype: str, deadline: str | None) -> None:
    """Do every step of a study that is not done yet, from freeze to report."""
    from studytool import opening, pipeline
    from studytool.model import Split
    from studytool.report import markdown

    declared, place = open_study(study)
    names = dtypes_of(declared, dtype)
    with hooks(budget_of(declared, deadline)) as outside:
        scores = pipeline.run(declared, place, names, outside)
    click.echo(markdown.result_table(scores))
    for name in names:
        page(opening.job_of(declared, place, name, Split.HOLDOUT), err=True)
    judge(scores)


@click.command()
@study_argument
@click.option("--json", "as_json", is_flag=True, help="The same as JSON.")
@click.option("--save-board", type=PATH, help="Write the description of the GPU that is here, for `studytool plan`.")
def doctor(study: Path | None, as_json: bool, save_board: Path | None) -> None:
    """Say what this machine can measure and what is missing: for a study, or without one for each engine.

    With STUDY, exit 1 where something is missing.
    """
    from studytool import pipeline

    if save_board is not None:
        from studytool import predictions

        click.echo(predictions.save_board(save_board))
        return
    found = pipeline.doctor(None if study is None else open_study(study)[0])
    missing = [finding for findings in found.values() for finding in findings if finding.needed]
    if as_json:
        rows = {name: [[f.what, f.found, f.needed] for f in findings] for name, findings in found.items()}
        click.echo(json.dumps({"schema": 1, "engines": rows}, indent=1, sort_keys=True))
    else:
        for name, findings in found.items():
            for finding in findings:
                state, needed = ("MISSING", f"; needed: {finding.needed}") if finding.needed else ("ok", "")
                click.echo(printable(f"{state:7}  {name:10}  {finding.what}: {finding.found}{needed}"))
    if study is not None and missing:
        raise CheckFailedError(f"this machine cannot measure {study}: {missing[0].what}: {missing[0].found}")
