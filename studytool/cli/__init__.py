"""The commands: each parses, calls one function, prints. Results go to stdout, progress and warnings to stderr."""

import click

from studytool import __version__
from studytool.cli import exporting, measuring, predicting, reviewing
from studytool.cli.reviewing import gen
from studytool.cli.terminal import Group

__all__ = ["gen", "main"]


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Measure, decide and prove which engine of a kernel library should lead for which graphs.

    STUDY is a folder ROOT/studies/NAME; by default the one around the current directory.
    """


for _command in (
    measuring.demo,
    measuring.freeze,
    measuring.time_command,
    measuring.merge_records,
    reviewing.gen,
    reviewing.apply,
    reviewing.merge,
    reviewing.status,
    reviewing.score,
    reviewing.report,
    measuring.run,
    measuring.doctor,
    predicting.plan,
    predicting.stale,
    exporting.export,
    reviewing.bundle,
    reviewing.replay,
):
    main.add_command(_command)
