"""Replay a study: every hash, every regenerated line, every number, without the device. A check list comes back."""

from collections.abc import Callable, Container, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from studytool import chain, checks, freeze, ledger, written
from studytool.attempts import Job, Kept
from studytool.errors import CannotSayError, NotApplicableError, StudyError
from studytool.found import Found
from studytool.freeze import Frozen
from studytool.layout import StudyPlace
from studytool.model import Split, Study

OK, FAIL, UNSAID, NOT_APPLICABLE = "ok", "FAIL", "cannot say", "n/a"


class Check(NamedTuple):
    """One line of the check list: `state` is ok, FAIL, cannot say or n/a; `figure` is what was found."""

    dtype: str
    name: str
    state: str
    figure: str


def replay(study: Study, place: StudyPlace, only: tuple[str, ...] = (), posted: str | None = None) -> list[Check]:
    """Return the check list of a study and of each dtype that has results (or of those asked for).

    `posted` is the manifest's SHA-256 that was posted before anything was timed. Figures name files relative to the
    study's root.
    """
    found = _checks(study, place, only, posted)
    return [check._replace(figure=check.figure.replace(f"{place.root}/", "")) for check in found]


def _checks(study: Study, place: StudyPlace, only: tuple[str, ...], posted: str | None) -> list[Check]:
    frozen, problems = freeze.check(study, place)
    found = [Check("", "frozen files", FAIL, problem) for problem in problems]
    dtypes = only or tuple(d for d in study.dtypes if place.results(d).folder.is_dir())
    if frozen is None:
        return [*found, *(_guarded(dtype, "ledger", partial(chain.begun, place, dtype)) for dtype in dtypes)]
    if not problems:
        counts = ", ".join(f"{count} {split}" for split, count in sorted(frozen.manifest.counts.items()))
        found.append(Check("", "frozen files", OK, f"{len(frozen.manifest.files)} files, {counts}"))
    found.append(_guarded("", "posted beforehand", lambda: _posted(frozen, posted)))
    found.append(_guarded("", "disjoint", lambda: freeze.disjoint(frozen, place)))
    if not dtypes:
        return [*found, Check("", "results", UNSAID, "no dtype has results")]
    missing = [dtype for dtype in study.dtypes if dtype not in dtypes and not only]
    found += [Check(dtype, "results", UNSAID, "declared, and no results are there") for dtype in missing]
    results = [_opened(Job(study, place, frozen, dtype, Split.HOLDOUT, Kept())) for dtype in dtypes]
    for own in results:
        found += [own] if isinstance(own, Check) else _dtype_checks(own)
    if len(study.dtypes) > 1 and not only:
        last = _guarded("", "report of all dtypes", partial(_together, place, results, missing))
        found.append(_said_once(last, {check.figure for check in found}))
    return found


def conclusion(found: list[Check]) -> tuple[str, int]:
    """Return the sentence that a replay ends with, and its exit code."""
    failed = sum(check.state == FAIL for check in found)
    unsaid = sum(check.state == UNSAID for check in found)
    if failed:
        return f"does not hold: {failed} of {len(found)} checks fail", 1
    if unsaid:
        return f"cannot say: {unsaid} of {len(found)} checks have no answer yet", 3
    known = sum(check.state == OK for check in found)
    return f"holds: {known} checks are ok, {len(found) - known} do not apply", 0


def as_json(found: list[Check], planned: list[str]) -> bytes:
    """Return a check list, what it ends with, and what is planned for cuDNN, as JSON."""
    sentence, code = conclusion(found)
    told = {"checks": [check._asdict() for check in found], "planned": planned, "says": sentence, "exit": code}
    return msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n"


def _guarded(dtype: str, name: str, run: Callable[[], str]) -> Check:
    try:
        return Check(dtype, name, OK, run())
    except NotApplicableError as error:
        return Check(dtype, name, NOT_APPLICABLE, str(error))
    except CannotSayError as error:
        return Check(dtype, name, UNSAID, str(error))
    except StudyError as error:
        return Check(dtype, name, FAIL, str(error))


def _posted(frozen: Frozen, posted: str | None) -> str:
    if posted is None:
        raise NotApplicableError(
            f"no --expect was given; sha256:{frozen.sha256} agrees with the records, whenever both were made"
        )
    if posted != frozen.sha256:
        raise StudyError(f"the manifest is sha256:{frozen.sha256}; posted was sha256:{posted}")
    return f"sha256:{posted}"


def _opened(job: Job) -> Found | Check:
    """Return what the checks of a dtype share, or the check that fails where its ledger cannot be read."""
    try:
        return Found(job, ledger.read(job.results.ledger, job.place.shown(job.results.ledger)))
    except StudyError as error:
        return Check(job.dtype, "ledger", FAIL, str(error))


def _together(place: StudyPlace, results: Sequence[Found | Check], missing: Sequence[str]) -> str:
    if not (place.report.exists() or place.report.is_symlink()):
        raise NotApplicableError(f"{place.shown(place.report)}: was not written")
    found = [own for own in results if isinstance(own, Found)]
    if missing or len(found) < len(results):
        raise CannotSayError(f"{place.shown(place.report)}: not before each dtype has its results")
    return written.all_dtypes(found)


def _dtype_checks(found: Found) -> Iterator[Check]:
    job = found.job
    said: set[str] = set()
    for name, run in checks.CHECKS:
        check = _guarded(job.dtype, name, partial(run, found))
        yield _said_once(check, said)
        said.add(check.figure)


def _said_once(check: Check, said: Container[str]) -> Check:
    """Return a check, with no answer yet where it fails by what was said before."""
    again = check.state == FAIL and check.figure in said
    return check._replace(state=UNSAID, figure="not before what fails above is mended") if again else check
