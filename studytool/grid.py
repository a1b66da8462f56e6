"""Study → Cases: grids crossed, constraints applied, samples drawn. Pure, and the same for ever.

Sampling owns its algorithm: candidates are ranked by sha256(seed, digest) within each class, and taken from the
classes in turn. A case's digest depends on the case alone, so an axis that gains a value changes none.
"""

import itertools
import math
from collections.abc import Iterator

import msgspec

from studytool import expression
from studytool.digest import canonical, rank, sha256
from studytool.errors import StudyFileError
from studytool.model import Case, Grid, Split, SplitSpec, Study
from studytool.possible import case_problem
from studytool.runtime import key

MAX_CASES = 200_000
MAX_COMBINATIONS = 200_000
_DEFAULTS: dict[str, int | str] = {"b": 1, "h_kv": "h_q", "s_q": "s_kv", "d_v": "d_qk"}
"""What a grid means when it does not say: one batch, MHA, square, one head dimension."""

_ENCODER = msgspec.json.Encoder(order="sorted")
"""Writes a case, which has no floats and no fields at their neutral value, as `digest.canonical` writes its fields."""


def case_line(case: Case) -> bytes:
    """Return the canonical line of a frozen case, without its line end."""
    return _ENCODER.encode(case)


def case_digest(case: Case) -> str:
    """Return the identity of a case: the SHA-256 of its canonical line."""
    return sha256(case_line(case))


def expand(study: Study) -> dict[Split, dict[str, Case]]:
    """Return per split the cases by digest, sorted by digest. StudyFileError for an impossible or empty grid."""
    return {split: _split(study, split, spec) for split, spec in study.splits.items()}


def differences_missing(study: Study, splits: dict[Split, dict[str, Case]]) -> list[str]:
    """Return per feature of holdout.differs what train and hold-out have in common, as lines; none is right."""
    lines = []
    for name in study.splits[Split.HOLDOUT].differs:
        train, holdout = (
            {key.feature(case.fields, name) for case in splits[split].values()}
            for split in (Split.TRAIN, Split.HOLDOUT)
        )
        if common := sorted(train & holdout, key=str):
            lines.append(f"{name} {', '.join(map(str, common))}")
    return lines


def _split(study: Study, split: Split, spec: SplitSpec) -> dict[str, Case]:
    found: dict[str, tuple[Case, int]] = {}
    for grid in spec.grids:
        for case in _grid_cases(study, grid, spec.where):
            digest = case_digest(case)
            if digest in found:
                raise _error(
                    study,
                    grid.line,
                    f"{split}: {case.label} stands already in the grid of line {found[digest][1]}",
                )
            found[digest] = (case, grid.line)
            if len(found) > MAX_CASES:
                raise _error(study, grid.line, f"{split}: more than {MAX_CASES} cases; expected fewer")
    cases = {digest: case for digest, (case, _) in found.items()}
    for dtype in study.dtypes:
        if split is not Split.ROUTING and not any(case.dtype == dtype for case in cases.values()):
            raise _error(study, spec.line, f"{split}: no case of dtype {dtype}; expected at least one")
    if not cases:
        raise _error(study, spec.line, f"{split}: no case is left; expected at least one")
    if spec.sample:
        cases = _sample(study, split, spec, cases)
    return dict(sorted(cases.items()))


def _error(study: Study, line: int, message: str) -> StudyFileError:
    return StudyFileError(f"{study.path}:{line}: {message}")


def _grid_cases(study: Study, grid: Grid, where: tuple[str, ...]) -> Iterator[Case]:
    axes: dict[str, tuple[int | str, ...]] = {"op": study.ops, "dtype": study.dtypes, **dict(grid.axes)}
    for name, default in _DEFAULTS.items():
        axes.setdefault(name, (default,))
    missing = [name for name in key.GEOMETRY if name not in axes]
    if missing:
        raise _error(study, grid.line, f"the grid has no {missing[0]}; expected {', '.join(key.GEOMETRY)}")
    combinations = math.prod(map(len, axes.values()))
    if combinations > MAX_COMBINATIONS:
        raise _error(study, grid.line, f"{combinations} combinations; expected at most {MAX_COMBINATIONS}")
    for values in itertools.product(*axes.values()):
        try:
            fields = _resolve(dict(zip(axes, values, strict=True)))
            kept = all(expression.holds(text, {**key.NEUTRAL, **fields}) for text in where)
        except ValueError as error:
            raise _error(study, grid.line, str(error)) from None
        if not kept:
            continue
        case = msgspec.convert(fields, Case)
        if problem := case_problem(case):
            raise _error(study, grid.line, f"{case.label}: {problem}")
        yield case


def _resolve(fields: dict[str, int | str]) -> dict[str, int | str]:
    """Return the fields with every expression replaced by its value."""
    waiting = {name: str(value) for name, value in fields.items() if name in key.INTEGER_FIELDS and type(value) is str}
    known = {name: value for name, value in fields.items() if name not in waiting}
    while waiting:
        ready = [
            name
            for name, text in waiting.items()
            if expression.names(text) <= known.keys() | key.NEUTRAL.keys() - waiting.keys()
        ]
        if not ready:
            raise ValueError(f"{', '.join(sorted(waiting))}: the expressions need each other or an absent field")
        for name in ready:
            known[name] = expression.integer(waiting.pop(name), {**key.NEUTRAL, **known})
    return known


def _sample(study: Study, split: Split, spec: SplitSpec, cases: dict[str, Case]) -> dict[str, Case]:
    drawn: dict[str, Case] = {}
    for dtype in study.dtypes:
        classes: dict[tuple[key.Value, ...], list[str]] = {}
        for digest, case in cases.items():
            if case.dtype == dtype:
                name = key.class_key(study.row, study.cc, study.class_key, case.fields)
                classes.setdefault(name, []).append(digest)
        count = sum(map(len, classes.values()))
        if 0 < count < spec.sample:
            raise _error(
                study,
                spec.line,
                f"{split}: sample {spec.sample} of {count} cases of dtype {dtype}; expected fewer",
            )
        queues = [sorted(classes[name], key=lambda d: rank(spec.seed, d)) for name in sorted(classes, key=canonical)]
        turns = [digest for turn in itertools.zip_longest(*queues) for digest in turn if digest is not None]
        drawn |= {digest: cases[digest] for digest in turns[: spec.sample]}
    return drawn
