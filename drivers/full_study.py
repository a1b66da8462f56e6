"""A whole study on this machine under one deadline: train, gen, apply, hold-out, routing, score, report.

`python drivers/full_study.py STUDY --dtype all --deadline 2h`. Stopped at any moment, the same command goes on. A copy
of this file and its digest go into the study's records.
"""

from pathlib import Path

import click

from studytool import opening, pipeline, timing
from studytool.cli.shared import PATH, budget_of, dtype_option, dtypes_of, judge, open_study
from studytool.cli.terminal import Command, hooks, now
from studytool.model import Split
from studytool.report import markdown


@click.command(cls=Command)
@click.argument("study", type=PATH)
@dtype_option
@click.option("--deadline", help="Stop in time, such as 2h; a hold-out that cannot end before it is not begun.")
@click.option("--prewarm", type=click.IntRange(1, 64), help="Compile kernels in so many processes before timing.")
@click.option("--caller", type=PATH, help="The script that started this one, to be kept in the records too.")
def main(study: Path, dtype: str, deadline: str | None, prewarm: int | None, caller: Path | None) -> None:
    """Run every step of STUDY that is not done yet."""
    declared, place = open_study(study)
    dtypes = dtypes_of(declared, dtype)
    with hooks(budget_of(declared, deadline)) as outside:
        if not place.frozen.exists():
            outside.say(pipeline.freeze_study(declared, place, []))
        for job in [opening.job_of(declared, place, name, Split.TRAIN) for name in dtypes]:
            for script in (caller, Path(__file__)):
                if script is not None:
                    timing.note_driver(job, now, script)
            for split in declared.splits if prewarm else ():
                outside.say(pipeline.prewarm(job._replace(split=split), prewarm or 1, outside))
        scores = pipeline.run(declared, place, dtypes, outside)
    click.echo(markdown.result_table(scores))
    judge(scores)


if __name__ == "__main__":
    main()
