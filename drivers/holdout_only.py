"""The whole hold-out of a study whose train split was timed and fitted elsewhere, from scratch on this machine.

`python drivers/holdout_only.py STUDY --dtype all --deadline 1h --reason "the first host ended at its deadline"`. Before
anything is timed, the frozen files, the ledgers, the generator's output and the table are checked as a replay checks
them; the first run's hold-out lines, if any, stay beside the new attempt, unscored. A copy of this file and its digest
go into the study's records.
"""

from pathlib import Path

import click

from studytool import opening, pipeline, replay, reporting, timing
from studytool.attempts import Job
from studytool.cli.shared import PATH, budget_of, dtype_option, dtypes_of, judge, one_line, open_study
from studytool.cli.terminal import Command, hooks, now, printable
from studytool.errors import CannotSayError, CheckFailedError, StudyError
from studytool.model import Split
from studytool.report import markdown

FIRST = ("frozen files", "disjoint", "ledger", "drivers", "records sealed", "study.json", "lines", "table")
"""The checks of a replay that must be ok before a hold-out is worth timing."""


@click.command(cls=Command)
@click.argument("study", type=PATH)
@dtype_option
@click.option("--deadline", help="Do not begin a hold-out that cannot end in this time, such as 1h.")
@click.option("--reason", default="", help="Why the hold-out that was begun elsewhere is timed anew.")
def main(study: Path, dtype: str, deadline: str | None, reason: str) -> None:
    """Check what the first run of STUDY left, then time the hold-out, score and report."""
    one_line(reason)
    declared, place = open_study(study)
    dtypes = dtypes_of(declared, dtype)
    jobs = [opening.job_of(declared, place, name, Split.HOLDOUT) for name in dtypes]
    with hooks(budget_of(declared, deadline)) as outside:
        for job in jobs:
            timing.note_driver(job, now, Path(__file__))
        for check in replay.replay(declared, place, dtypes):
            if check.name in FIRST:
                outside.say(printable(f"{check.state:10}  {check.dtype:5}{check.name}: {check.figure}"))
                if check.state == replay.UNSAID:
                    raise CannotSayError(f"{check.name}: {check.figure}")
                if check.state != replay.OK:
                    raise CheckFailedError(f"the first run does not hold: {check.name}: {check.figure}")
        for job in jobs:
            outside.say(pipeline.time(job, outside, _reason(job, reason)))
            outside.say(pipeline.time(job._replace(split=Split.ROUTING), outside))
        scores = [pipeline.score(job, now) for job in jobs]
        for job in jobs:
            reporting.report(job)
        reporting.report_together(jobs)
    click.echo(markdown.result_table(scores))
    judge(scores)


def _reason(job: Job, reason: str) -> str:
    """Return the reason for a new attempt, "" where there is no other yet or the last is this command's own."""
    found = job.attempts()
    if not found or found[-1].files[-1].session.reason == reason != "":
        return ""
    if found[-1].missing and not reason:
        raise StudyError(
            f"{job.dtype} holdout: {found[-1].found} of {found[-1].planned} lines of another run; expected --reason"
        )
    return reason


if __name__ == "__main__":
    main()
