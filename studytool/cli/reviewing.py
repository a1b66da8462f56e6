"""The commands that decide and review: gen, apply, status, score, report, bundle, replay."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from studytool.cli.shared import PATH, dtype_option, dtypes_of, judge, open_study, page, study_argument
from studytool.cli.terminal import Command, now, printable
from studytool.errors import CheckFailedError, StudyError

if TYPE_CHECKING:
    from studytool.attempts import Job


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
@click.option(
    "--format", "form", type=click.Choice(["table", "bare"]), default="table", help="bare: key and rule alone."
)
@click.option("--sweep-margin", is_flag=True, help="With --explain: what each class gets at margins from 0.01 to 0.20.")
def gen(
    study_json: Path,
    margin: str | None,
    scope: str | None,
    mode: str,
    check: Path | None,
    form: str,
    sweep_margin: bool,
) -> None:
    """Print the placement lines that a train summary decides."""
    from studytool import explain, lines, results, sensitivity
    from studytool.files import read_bytes
    from studytool.yamlnode import decimal_ppm

    if sweep_margin and mode != "explain":
        raise click.UsageError("--sweep-margin goes with --explain")
    if form == "bare" and (mode != "emit" or check is not None):
        raise click.UsageError("--format bare goes with --emit")

    found = results.study_json(read_bytes(study_json), str(study_json))
    decide = found.summary.decide
    try:
        margin_ppm = decide.margin_ppm if margin is None else decimal_ppm(margin, 0, 10**6)
    except ValueError as error:
        raise StudyError(f"--margin: {error}") from None
    scope = scope or decide.scope
    fitted = results.lines_of(found, margin_ppm, scope)
    if check is not None:
        _check(check, fitted.text, study_json)
    elif mode == "emit":
        text = fitted.text if form == "table" else lines.bare_text([o.line for o in fitted.outcomes if o.line])
        click.echo(text, nl=False)
        if not any(outcome.line for outcome in fitted.outcomes):
            click.echo("no class gets an entry; --explain says why", err=True)
    elif sweep_margin:
        click.echo(sensitivity.sweep_text(sensitivity.sweep(found.summary, found.data, scope)), nl=False)
    else:
        kept = {o.class_key: sensitivity.kept(found.summary, o, margin_ppm, scope) for o in fitted.outcomes}
        as_json = mode == "json"
        click.echo(
            explain.explain_json(fitted, kept).decode() if as_json else explain.explain_text(fitted, kept), nl=False
        )


def _check(path: Path, expected: str, study_json: Path) -> None:
    """Say whether a file is what was generated; where it is not, print the difference and raise CheckFailedError."""
    import difflib

    from studytool.files import read_bytes
    from studytool.freeze import first_difference

    there = read_bytes(path)
    if there == expected.encode():
        click.echo(f"{path}: as generated")
        return
    old = there.decode("utf-8", errors="replace").splitlines()
    for line in difflib.unified_diff(old, expected.splitlines(), str(path), "generated", lineterm="", n=0):
        click.echo(printable(line))
    raise CheckFailedError(f"{path}:{first_difference(there, expected.encode())}: not what {study_json} gives")


@click.command()
@click.argument("lines", type=PATH)
@click.option("--table", type=PATH, required=True, help="The table to put them into.")
@click.option("--diff", is_flag=True, help="Say what would change, and for which frozen cases; write nothing.")
@click.option("--attest", is_flag=True, help="First show that each line decides some frozen case; exit 1 where not.")
def apply(lines: Path, table: Path, diff: bool, attest: bool) -> None:
    """Put emitted lines into a table, whole lines at a time."""
    from studytool import editing

    if attest:
        click.echo(editing.attest(lines, table))
    if diff:
        click.echo("\n".join(printable(line) for line in editing.preview(lines, table).split("\n")))
        return
    done = editing.apply_lines(lines, table, now)
    click.echo(f"{table}: {len(done.added)} added, {len(done.replaced)} replaced or removed, {done.kept} kept")


@click.command()
@click.argument("one", type=PATH)
@click.argument("other", type=PATH)
@click.option("--table", type=PATH, required=True, help="Where to write all of their entries.")
def merge(one: Path, other: Path, table: Path) -> None:
    """Put the tables of two studies into one; two entries for one class are an error."""
    from studytool import editing

    click.echo(editing.merge(one, other, table))


@click.command()
@study_argument
@click.option("--dtype", default="all", show_default=True, help="A dtype of the study, or all.")
@click.option("--json", "as_json", is_flag=True, help="The steps as JSON.")
def status(study: Path | None, dtype: str, as_json: bool) -> None:
    """Say where a study stands, step by step, and what to type next."""
    from studytool import status as standing

    declared, place = open_study(study)
    found = standing.status(declared, place, dtypes_of(declared, dtype))
    if as_json:
        click.echo(standing.as_json(found).decode(), nl=False)
    else:
        click.echo("\n".join(map(printable, standing.as_text(found).split("\n"))))


@click.command()
@study_argument
@dtype_option
@click.option("--json", "as_json", is_flag=True, help="Print what went into score.json, of each dtype.")
def score(study: Path | None, dtype: str, as_json: bool) -> None:
    """Write score.json from the hold-out's records, and hold it against the frozen gate."""
    from studytool import digest, opening, pipeline
    from studytool.model import Split
    from studytool.report import markdown

    declared, place = open_study(study)
    jobs = [opening.job_of(declared, place, name, Split.HOLDOUT) for name in dtypes_of(declared, dtype)]
    scores = [pipeline.score(job, now) for job in jobs]
    click.echo(digest.canonical(scores).decode() if as_json else markdown.result_table(scores))
    judge(scores)


@click.command()
@study_argument
@dtype_option
@click.option("--against", type=PATH, help="The folder of another run of the same frozen study, to compare with.")
def report(study: Path | None, dtype: str, against: Path | None) -> None:
    """Write report.md and report.html of a scored hold-out, or with --against the comparison of two runs.

    With --dtype all, those of each dtype and, in the study's folder, one over all of them.
    """
    from studytool import opening, reporting
    from studytool.model import Split

    declared, place = open_study(study)
    jobs = [opening.job_of(declared, place, name, Split.HOLDOUT) for name in dtypes_of(declared, dtype)]
    for job in jobs:
        if against is not None:
            other = opening.job_of(*open_study(against), job.dtype, Split.HOLDOUT)
            for path in reporting.compare(job, other, _run_names(job, other)):
                click.echo(click.format_filename(path))
            continue
        reporting.report(job)
        click.echo(click.format_filename(job.results.report))
        page(job)
    if against is None:
        for path in reporting.report_together(jobs):
            click.echo(click.format_filename(path))


def _run_names(job: "Job", other: "Job") -> tuple[str, str]:
    """Return what tells two runs apart: the last part in which their folders differ."""
    ours, theirs = (own.place.root.absolute().parts for own in (job, other))
    here, there = next(
        ((a, b) for a, b in zip(reversed(ours), reversed(theirs), strict=False) if a != b), ("this run", "the other")
    )
    return here, there


@click.command()
@study_argument
@click.option("-o", "--output", type=PATH, required=True, help="The archive to write, such as study.tar.gz.")
@click.option("--keep-host", is_flag=True, help="Pack it also where files tell of this machine, its user or its paths.")
def bundle(study: Path | None, output: Path, keep_host: bool) -> None:
    """Pack all that a replay of a study reads into one archive, the same bytes each time."""
    from studytool import bundle as bundling
    from studytool import freeze

    declared, place = open_study(study)
    packed = bundling.pack(declared, place, freeze.verify(declared, place), output, keep_host=keep_host)
    click.echo(printable(f"{output}: {packed.files} files, {packed.total_bytes} bytes, tar sha256:{packed.tar_sha256}"))


@click.command()
@click.argument("path", type=PATH, required=False)
@click.option("--expect", metavar="sha256:HEX", help="The manifest's hash that was posted before anything was timed.")
@click.option("--json", "as_json", is_flag=True, help="The check list as JSON.")
@click.option("--board", help="The board to predict plans for.  [default: the one of the records]")
@click.option("--cudnn", help="The cuDNN version to predict plans under.  [default: that of the records]")
def replay(path: Path | None, expect: str | None, as_json: bool, board: str | None, cudnn: str | None) -> None:
    """Check every hash, regenerate every line and recompute every number of a study, without the device.

    PATH is an archive that `bundle` wrote, or a folder studies/NAME or studies/NAME/DTYPE with frozen_cases/NAME beside
    studies.
    """
    import tempfile

    from studytool import bundle as bundling

    posted = None if expect is None else _posted(expect)
    if path is None or not path.is_file() or (_is_in_a_study(path) and not bundling.is_gzip(path)):
        _replay(path, posted, board, cudnn, as_json=as_json)
    with tempfile.TemporaryDirectory(prefix="studytool-") as folder:
        try:
            place = bundling.unpack(path, Path(folder))
            _replay(place.folder, posted, board, cudnn, as_json=as_json)
        except StudyError as error:
            raise type(error)(str(error).replace(f"{folder}/", "")) from None
        except OSError as error:
            name = str(error.filename or path).replace(f"{folder}/", "")
            raise StudyError(f"{name}: cannot be used: {error.strerror}") from None


def _is_in_a_study(path: Path) -> bool:
    return path.name == "study.yaml" or (path.absolute().parent / "study.yaml").is_file()


def _posted(text: str) -> str:
    match = re.fullmatch(r"sha256:([0-9a-f]{64})", text)
    if match is None:
        raise StudyError(
            f"--expect: found {text}; expected sha256: and 64 hexadecimal digits, as `freeze` printed them"
        )
    return match[1]


def _replay(path: Path | None, posted: str | None, board: str | None, cudnn: str | None, *, as_json: bool) -> NoReturn:
    """Print the check list of a folder and exit with what it says."""
    from studytool import replay as replaying

    folder, only = path, ""
    if path is not None and path.name != "study.yaml" and (path.absolute().parent / "study.yaml").is_file():
        folder, only = path.absolute().parent, path.absolute().name
    declared, place = open_study(folder)
    if only and only not in declared.dtypes:
        raise StudyError(f"{path}: found {only}; expected a study's folder, or that of {', '.join(declared.dtypes)}")
    if (board or cudnn) and declared.engine != "cudnn":
        raise StudyError(f"{declared.path}: engine is {declared.engine}; only cudnn has plan lists to predict")
    checks = replaying.replay(declared, place, (only,) if only else (), posted)
    planned: list[str] = []
    if declared.engine == "cudnn":
        from studytool import predictions

        asked = predictions.Asked(board or "", cudnn) if board or cudnn else None
        planned = list(predictions.beside(declared, place, (only,) if only else declared.dtypes, asked))
    sentence, code = replaying.conclusion(checks)
    if as_json:
        click.echo(replaying.as_json(checks, planned).decode(), nl=False)
        sys.exit(code)
    for check in checks:
        click.echo(printable(f"{check.state:10}  {check.dtype:5}{check.name}: {check.figure}"))
    for line in planned:
        click.echo(printable(f"{'planned':10}  {line}"))
    click.echo(sentence)
    sys.exit(code)
