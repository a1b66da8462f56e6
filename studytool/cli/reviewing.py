"""The commands that decide and review: gen, apply, score, report, replay."""

import sys
from pathlib import Path

import click

from studytool.cli.shared import PATH, dtype_option, dtypes_of, judge, open_study, study_argument
from studytool.cli.terminal import Command, now, printable
from studytool.errors import CheckFailedError, StudyError


@click.command(cls=Command)
@click.argument("study_json", type=PATH)
@click.option("--margin", help="How much faster a lead must be, such as 0.05.  [default: the study's]")
@click.option(
    "--scope", type=click.Choice(["box", "class"]), help="Keep the measured box, or not.  [default: the study's]"
)
@click.option("--emit", "mode", flag_value="emit", default="emit", help="Print the lines (the default).")
@click.option("--explain", "mode", flag_value="explain", help="Print what became of each class, and why.")
@click.option("--json", "mode", flag_value="json", help="The same as JSON.")
@click.option("--check", type=PATH, help="Compare the lines with a file; exit 1 where they differ.")
def gen(study_json: Path, margin: str | None, scope: str | None, mode: str, check: Path | None) -> None:
    """Print the placement lines that a train summary decides."""
    from studytool import explain, results
    from studytool.files import read_bytes
    from studytool.freeze import first_difference
    from studytool.yamlnode import decimal_ppm

    found = results.study_json(read_bytes(study_json), str(study_json))
    decide = found.summary.decide
    try:
        margin_ppm = decide.margin_ppm if margin is None else decimal_ppm(margin, 0, 10**6)
    except ValueError as error:
        raise StudyError(f"--margin: {error}") from None
    fitted = results.lines_of(found, margin_ppm, scope or decide.scope)
    if check is not None:
        there = read_bytes(check)
        if there != fitted.text.encode():
            raise CheckFailedError(
                f"{check}:{first_difference(there, fitted.text.encode())}: not what {study_json} gives"
            )
        click.echo(f"{check}: as generated")
    elif mode == "json":
        click.echo(explain.explain_json(fitted).decode(), nl=False)
    else:
        click.echo(fitted.text if mode == "emit" else explain.explain_text(fitted), nl=False)
        if mode == "emit" and not any(outcome.line for outcome in fitted.outcomes):
            click.echo("no class gets an entry; --explain says why", err=True)


@click.command()
@click.argument("lines", type=PATH)
@click.option("--table", type=PATH, required=True, help="The table to put them into.")
def apply(lines: Path, table: Path) -> None:
    """Put emitted lines into a table, whole lines at a time."""
    from studytool import pipeline

    done = pipeline.apply_lines(lines, table, now)
    click.echo(f"{table}: {len(done.added)} added, {len(done.replaced)} replaced or removed, {done.kept} kept")


@click.command()
@study_argument
@dtype_option
def score(study: Path | None, dtype: str) -> None:
    """Write score.json from the hold-out's records, and hold it against the frozen gate."""
    from studytool import pipeline
    from studytool.model import Split
    from studytool.report import markdown

    declared, place = open_study(study)
    jobs = [pipeline.job_of(declared, place, name, Split.HOLDOUT) for name in dtypes_of(declared, dtype)]
    scores = [pipeline.score(job, now) for job in jobs]
    click.echo(markdown.result_table(scores))
    judge(scores)


@click.command()
@study_argument
@dtype_option
def report(study: Path | None, dtype: str) -> None:
    """Write report.md of a scored hold-out."""
    from studytool import pipeline
    from studytool.model import Split

    declared, place = open_study(study)
    for name in dtypes_of(declared, dtype):
        job = pipeline.job_of(declared, place, name, Split.HOLDOUT)
        pipeline.report(job)
        click.echo(click.format_filename(job.results.report))


@click.command()
@click.argument("path", type=PATH, required=False)
def replay(path: Path | None) -> None:
    """Check every hash, regenerate every line and recompute every number of a study, without the device.

    PATH is a folder studies/NAME or studies/NAME/DTYPE with frozen_cases/NAME beside studies.
    """
    from studytool import replay as replaying

    folder, only = path, ""
    if path is not None and path.name != "study.yaml" and (path.absolute().parent / "study.yaml").is_file():
        folder, only = path.absolute().parent, path.absolute().name
    declared, place = open_study(folder)
    if only and only not in declared.dtypes:
        raise StudyError(f"{path}: found {only}; expected a study's folder, or that of {', '.join(declared.dtypes)}")
    checks = replaying.replay(declared, place, (only,) if only else ())
    for check in checks:
        click.echo(printable(f"{check.state:10}  {check.dtype:5}{check.name}: {check.figure}"))
    sentence, code = replaying.conclusion(checks)
    click.echo(sentence)
    sys.exit(code)
