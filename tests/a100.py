"""A cuDNN study as it is frozen, and the table that its generator emits for ratios that a test makes up."""

from collections.abc import Callable, Iterable
from pathlib import Path

from factories import make_case_summary, make_regime, make_summary

from studytool import fit, freeze, lines, opening
from studytool.layout import StudyPlace
from studytool.model import Case, Split, Study
from studytool.runtime import key, lookup
from studytool.studyjson import Summary

ROOT = Path(__file__).resolve().parent.parent
SQUARE = StudyPlace(ROOT, "sdpa_bwd_sm80_square")
BOARD = "Board"
Cases = dict[Split, list[Case]]


def frozen(place: StudyPlace) -> tuple[Study, Cases]:
    """Return a study and its frozen cases by split, which are those that it declares."""
    study = opening.open_study(place)
    return study, {split: list(cases.values()) for split, cases in freeze.verify(study, place).cases.items()}


def class_of(study: Study, case: Case) -> lookup.Key:
    """Return the features that a case's class is made of."""
    return tuple(key.feature(case.fields, name) for name in study.class_key)


def summary_of(study: Study, train: Iterable[Case], ratio_ppm: Callable[[Case], int]) -> Summary:
    """Return the train summary of a study when each case has this ratio in every regime."""
    measured = [
        make_case_summary(
            ratio_ppm(case),
            regimes={name: make_regime(ratio_ppm(case)) for name in study.protocol.regimes},
            **case.fields,
        )
        for case in train
    ]
    return make_summary(
        measured,
        study=study.name,
        row=study.row,
        base=study.base,
        cc=study.cc,
        board=BOARD,
        class_key=study.class_key,
        guards=study.guards,
        regimes=study.protocol.regimes,
        decide=study.decide,
    )


def emitted(study: Study, train: Iterable[Case], ratio_ppm: Callable[[Case], int]) -> lines.Text:
    """Return the lines that the study's own rules make of train when each case has this ratio in every regime."""
    decide = study.decide
    found = fit.fit(summary_of(study, train, ratio_ppm), b"study.json", decide.margin_ppm, decide.scope)
    return lines.read_lines(found.text.encode(), "lines.txt")[1]


def parsed(text: lines.Text) -> lookup.Table:
    """Return the table that holds these lines, as the runtime reads it."""
    return lookup.parse(lines.table_text(text).encode(), "table.py")


def table_of(study: Study, train: Iterable[Case], ratio_ppm: Callable[[Case], int]) -> lookup.Table:
    """Return the table of what is `emitted`."""
    return parsed(emitted(study, train, ratio_ppm))
