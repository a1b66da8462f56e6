"""The commands: each parses, calls one function, prints. Results go to stdout, progress and warnings to stderr."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from studytool import __version__
from studytool.cli.terminal import Command, Group, command, hooks, now, printable
from studytool.errors import CannotSayError, CheckFailedError, FrozenError, StudyError

if TYPE_CHECKING:
    from studytool.costs import Budget
    from studytool.layout import StudyPlace
    from studytool.model import Study

_PATH = click.Path(path_type=Path, readable=False)  # what cannot be read is said in one line by who reads it
_study = click.argument("study", type=_PATH, required=False)
_dtype = click.option("--dtype", required=True, help="A dtype of the study, or all.")


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def main() -> None:
    """Measure, decide and prove which engine of a kernel library should lead for which graphs.

    STUDY is a folder ROOT/studies/NAME; by default the one around the current directory.
    """


@main.command()
@click.option("--out", type=_PATH, default=Path("studytool-demo"), show_default=True, help="Where to work.")
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
    from studytool import pipeline

    name = "sim_demo" if engine == "simulated" else "cpu_smoke" if quick else "cpu_sdpa"
    with hooks() as outside:
        text, sentence, code = pipeline.demo(out, name, outside)
    click.echo(f"{text}\n\nReplay: {sentence}.")
    click.echo(f"Check it again: {command()} replay {out}/studies/{name}")
    if code == 1:
        click.echo("The demo ran to its end; what does not hold is for you to judge.", err=True)


@main.command()
@_study
@click.option("--exclude", multiple=True, type=_PATH, help="MANIFEST.json of a study to share no case with.")
@click.option("--check", is_flag=True, help="Verify what is frozen; write nothing.")
def freeze(study: Path | None, exclude: tuple[Path, ...], check: bool) -> None:
    """Write frozen_cases/NAME: cases, gate and their hashes, once and for all."""
    from studytool import freeze as freezing
    from studytool import pipeline

    if check and exclude:
        raise click.UsageError("--exclude is for freezing, --check for what is frozen")
    declared, place = _open(study)
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


@main.command(name="time")
@_study
@_dtype
@click.option(
    "--split",
    type=click.Choice(["train", "holdout", "routing"]),
    default="train",
    show_default=True,
    help="Which of the study's cases to time.",
)
@click.option("--attempt", type=click.Choice(["new"]), help="Begin again beside the attempt that is there.")
@click.option("--reason", default="", help="Why a new attempt is made; it stands in its records.")
@click.option("--deadline", help="Stop in time, such as 45m; a hold-out that cannot end before it is not begun.")
@click.option("--plan", is_flag=True, help="Say how long it will take; measure nothing.")
def time_command(
    study: Path | None, dtype: str, split: str, attempt: str | None, reason: str, deadline: str | None, plan: bool
) -> None:
    """Time what is missing of a split; stopped at any moment, it goes on where it was."""
    from studytool import pipeline
    from studytool.model import Split

    if (attempt is None) == bool(reason):
        raise click.UsageError("--attempt new and --reason go together")
    if not reason.isprintable():  # also what the shell gives as bytes that are not UTF-8
        raise click.UsageError("--reason: expected printable text on one line")
    declared, place = _open(study)
    budget = _budget(declared, deadline)
    for name in _dtypes(declared, dtype):
        job = pipeline.job_of(declared, place, name, Split(split))
        if plan:
            click.echo(pipeline.plan(job))
            continue
        with hooks(budget) as outside:
            said = pipeline.time(job, outside, reason)
        click.echo(said)


@main.command(cls=Command)
@click.argument("study_json", type=_PATH)
@click.option("--margin", help="How much faster a lead must be, such as 0.05.  [default: the study's]")
@click.option(
    "--scope", type=click.Choice(["box", "class"]), help="Keep the measured box, or not.  [default: the study's]"
)
@click.option("--emit", "mode", flag_value="emit", default="emit", help="Print the lines (the default).")
@click.option("--explain", "mode", flag_value="explain", help="Print what became of each class, and why.")
@click.option("--json", "mode", flag_value="json", help="The same as JSON.")
@click.option("--check", type=_PATH, help="Compare the lines with a file; exit 1 where they differ.")
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


@main.command()
@click.argument("lines", type=_PATH)
@click.option("--table", type=_PATH, required=True, help="The table to put them into.")
def apply(lines: Path, table: Path) -> None:
    """Put emitted lines into a table, whole lines at a time."""
    from studytool import pipeline

    done = pipeline.apply_lines(lines, table, now)
    click.echo(f"{table}: {len(done.added)} added, {len(done.replaced)} replaced or removed, {done.kept} kept")


@main.command()
@_study
@_dtype
def score(study: Path | None, dtype: str) -> None:
    """Write score.json from the hold-out's records, and hold it against the frozen gate."""
    from studytool import pipeline
    from studytool.model import Split
    from studytool.report import markdown

    declared, place = _open(study)
    jobs = [pipeline.job_of(declared, place, name, Split.HOLDOUT) for name in _dtypes(declared, dtype)]
    scores = [pipeline.score(job, now) for job in jobs]
    click.echo(markdown.result_table(scores))
    _judge(scores)


@main.command()
@_study
@_dtype
def report(study: Path | None, dtype: str) -> None:
    """Write report.md of a scored hold-out."""
    from studytool import pipeline
    from studytool.model import Split

    declared, place = _open(study)
    for name in _dtypes(declared, dtype):
        job = pipeline.job_of(declared, place, name, Split.HOLDOUT)
        pipeline.report(job)
        click.echo(click.format_filename(job.results.report))


@main.command()
@_study
@_dtype
@click.option("--deadline", help="Stop in time, such as 2h; a hold-out that cannot end before it is not begun.")
def run(study: Path | None, dtype: str, deadline: str | None) -> None:
    """Do every step of a study that is not done yet, from freeze to report."""
    from studytool import pipeline
    from studytool.report import markdown

    declared, place = _open(study)
    with hooks(_budget(declared, deadline)) as outside:
        scores = pipeline.run(declared, place, _dtypes(declared, dtype), outside)
    click.echo(markdown.result_table(scores))
    _judge(scores)


@main.command()
@click.argument("path", type=_PATH, required=False)
def replay(path: Path | None) -> None:
    """Check every hash, regenerate every line and recompute every number of a study, without the device.

    PATH is a folder studies/NAME or studies/NAME/DTYPE with frozen_cases/NAME beside studies.
    """
    from studytool import replay as replaying

    folder, only = path, ""
    if path is not None and path.name != "study.yaml" and (path.absolute().parent / "study.yaml").is_file():
        folder, only = path.absolute().parent, path.absolute().name
    declared, place = _open(folder)
    if only and only not in declared.dtypes:
        raise StudyError(f"{path}: found {only}; expected a study's folder, or that of {', '.join(declared.dtypes)}")
    checks = replaying.replay(declared, place, (only,) if only else ())
    for check in checks:
        click.echo(printable(f"{check.state:10}  {check.dtype:5}{check.name}: {check.figure}"))
    sentence, code = replaying.conclusion(checks)
    click.echo(sentence)
    sys.exit(code)


def _open(path: Path | None) -> "tuple[Study, StudyPlace]":
    from studytool import pipeline
    from studytool.layout import find_study, place_of

    place = find_study(Path.cwd()) if path is None else place_of(path)
    return pipeline.open_study(place), place


def _budget(study: "Study", deadline: str | None) -> "Budget | None":
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


def _dtypes(study: "Study", asked: str) -> tuple[str, ...]:
    if asked != "all" and asked not in study.dtypes:
        raise StudyError(f"--dtype: found {asked}; expected {', '.join(study.dtypes)} or all")
    return study.dtypes if asked == "all" else (asked,)


def _judge(scores: "list[dict[str, Any]]") -> None:
    """Raise what a gate that fails, or has no answer, ends a command with."""
    verdicts = {found["verdict"] for found in scores}
    if "FAIL" in verdicts:
        raise CheckFailedError("the gate fails")
    if "CANNOT SAY" in verdicts:
        raise CannotSayError(
            "the gate cannot say: " + "; ".join(reason for found in scores for reason in found["open"])
        )
