"""The command that writes a study's samples for other tools: export."""

from pathlib import Path

import click

from studytool.cli.shared import PATH, dtype_option, dtypes_of, open_study, study_argument
from studytool.errors import StudyError


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@study_argument
@dtype_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["csv", "parquet", "nvbench-json"]),
    required=True,
    help="A row a sample, or a state a case, regime and leg as nvbench's tools read it.",
)
@click.option("-o", "--output", type=PATH, help="The file to write, replaced whole; - is stdout.  [default: -]")
@click.option(
    "--split",
    type=click.Choice(["train", "holdout", "routing", "all"]),
    default="all",
    show_default=True,
    help="Which of the study's splits to write.",
)
def export(study: Path | None, dtype: str, form: str, output: Path | None, split: str) -> None:
    """Write cases and samples of the last attempts, complete or not, for other tools."""
    from studytool import export as exporting
    from studytool.files import write_atomic
    from studytool.model import Split

    to_stdout = output is None or str(output) == "-"
    if form == "parquet" and to_stdout:
        raise StudyError("--format parquet: found no file to write; expected -o FILE")
    if output is not None and not output.name:
        raise StudyError(f"-o/--output: found {output}; expected the name of a file")
    declared, place = open_study(study)
    splits = list(Split) if split == "all" else [Split(split)]
    jobs = exporting.jobs(declared, place, dtypes_of(declared, dtype), splits)
    found = exporting.last_attempts(jobs)
    data = exporting.FORMATS[form](found)
    if output is None or to_stdout:
        click.echo(data, nl=False)
    else:
        write_atomic(output, data)
        click.echo(f"{click.format_filename(output)}: {len(data)} bytes")
    for line in exporting.remarks(jobs, found):
        click.echo(line, err=True)
