"""study.json: the train summary that the generator reads. Self-contained, integers and strings only."""

import msgspec

from studytool import model
from studytool.decode import decode as decode_json
from studytool.digest import pretty
from studytool.errors import SummaryError
from studytool.model import LEGS, Decide, Status
from studytool.runtime import key, lookup


class RegimeSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One regime of a case: frost over backend with its 95 % interval, leg times per launch.

    `code` says what fails in its control (see noise), "" where nothing does.
    """

    repeats: int
    code: str
    ratio_ppm: int
    low_ppm: int
    high_ppm: int
    leg_ns: dict[str, int]


class CaseSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One train case: its fields and class, how it ended (the worst of its lines), and its regimes."""

    digest: str
    label: str
    fields: dict[str, key.Value]
    class_key: tuple[key.Value, ...] = msgspec.field(name="class")
    status: Status
    error: str
    plans: dict[str, str]
    regimes: dict[str, RegimeSummary]


class Summary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole of study.json. `measured` is what an entry's box says of library and board, by lookup.MEASURED.

    `records` is what jsonl.contents says of the train records, so that it is the same however they were shared out.
    `band_ppm` is exp(A/A band) - 1, -1 where no legs were aliased.
    """

    schema: int
    study: str
    study_sha256: str
    manifest_sha256: str
    dtype: str
    row: str
    base: str
    cc: str
    board: str
    versions: dict[str, str]
    measured: dict[str, int | str]
    code: str
    class_key: tuple[str, ...]
    guards: tuple[str, ...]
    regimes: tuple[str, ...]
    decide: Decide
    attempt: int
    records: str
    band_ppm: int
    cases: tuple[CaseSummary, ...]


def encode(summary: Summary) -> bytes:
    """Return the bytes of study.json: one line a member, one line a case."""
    return pretty(msgspec.to_builtins(summary))


def decode(data: bytes, where: str) -> Summary:
    """Return the summary in a file's bytes; SummaryError, one line, for anything else."""
    summary = decode_json(data, Summary, where, "study.json", SummaryError)
    if problem := _problem(summary):
        raise SummaryError(f"{where}: {problem}")
    return summary


def _problem(summary: Summary) -> str | None:
    for name in (*summary.class_key, *summary.guards):
        if name not in key.FEATURES:
            return f"found feature {name}; expected one of {', '.join(key.FEATURES)}"
    for axis, direction in summary.decide.thresholds:
        if not key.is_axis(axis) or direction not in {"from", "upto"}:
            return f"threshold {direction} {axis}; expected from or upto and a size axis"
    if summary.decide.scope not in model.SCOPES or summary.decide.margin_ppm < 0 or not summary.regimes:
        return f"no regimes, a negative margin, or a scope that is not one of {', '.join(model.SCOPES)}"
    if wrong := [name for name in summary.measured if name not in lookup.MEASURED]:
        return f"found {wrong[0]} among what was measured; expected names of {', '.join(lookup.MEASURED)}"
    digests = [case.digest for case in summary.cases]
    if len(set(digests)) != len(digests):
        return "a case is there twice"
    problems = ((case.digest, _case_problem(summary, case)) for case in summary.cases)
    return next((f"case {digest}: {problem}" for digest, problem in problems if problem), None)


def _case_problem(summary: Summary, case: CaseSummary) -> str | None:
    if not set(key.GEOMETRY) <= case.fields.keys() <= set(key.FIELDS):
        return f"fields {', '.join(case.fields)}; expected those of a case"
    if any(isinstance(case.fields[name], str) for name in case.fields.keys() & key.INTEGER_FIELDS):
        return "a text where an integer is expected"
    if case.class_key != key.class_key(summary.row, summary.cc, summary.class_key, case.fields):
        return f"class {case.class_key} is not that of its fields"
    if set(case.plans) != set(LEGS):
        return f"plans of {', '.join(case.plans)}; expected {', '.join(LEGS)}"
    for regime in case.regimes.values():
        if not 0 < regime.low_ppm <= regime.ratio_ppm <= regime.high_ppm:
            return f"ratio {regime.ratio_ppm} outside of its interval"
    return None
