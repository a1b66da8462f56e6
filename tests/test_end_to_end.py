"""The whole path on the simulated engine: what the fit decided is what the table answers and what the score used."""

from pathlib import Path

import finished
from commands import call

from studytool import freeze, jsonl, lines, opening, pipeline, results
from studytool.fit import Fit
from studytool.layout import StudyPlace
from studytool.model import Split, Verdict
from studytool.runtime import lookup

ROOT = Path(__file__).resolve().parent.parent


def outcomes(place: StudyPlace, dtype: str) -> Fit:
    """Return what the fit decided for a dtype."""
    path = place.results(dtype).study_json
    study = opening.open_study(place)
    train = results.study_json(path.read_bytes(), "study.json")
    return results.lines_of(train, study.decide.margin_ppm, study.decide.scope)


def test_the_planted_truth_is_found(made: StudyPlace) -> None:
    """bf16 leads from the measured size at which the open engine wins by the margin; f16's windows leave no entry."""
    bf16, f16 = outcomes(made, "bf16").outcomes[0], outcomes(made, "f16").outcomes[0]

    assert bf16.line is not None
    assert (bf16.line.rule, bf16.line.axis, bf16.line.bound) == ("from", "s_kv", 256)
    assert (f16.line, f16.code) == (None, "CONFLICT")
    assert "window" in f16.detail or "mask" in f16.detail


def test_every_train_case_is_answered_as_the_fit_decided(made: StudyPlace) -> None:
    """A look-up in the applied table leads exactly the train cases in the region, and never one that loses."""
    table = lookup.load(made.table)
    for dtype in ("bf16", "f16"):
        for outcome in outcomes(made, dtype).outcomes:
            for item in outcome.judged:
                fields = dict(item.case.fields)
                answer = lookup.lookup(table, "open_engine", "sim-1", fields)
                inside = outcome.line is not None and int(fields["s_kv"]) >= outcome.line.bound

                assert answer is (True if inside else None)
                assert not (answer and item.verdict is Verdict.LOSE)


def test_every_hold_out_record_holds_the_answer_of_the_applied_table(made: StudyPlace) -> None:
    """What the score used is what the table says, and auto ran the plan that follows from it."""
    table = lookup.load(made.table)
    job = opening.job_of(opening.open_study(made), made, "bf16", Split.HOLDOUT)
    records = [record for file in jsonl.read_all(job.results.records, made.root) for record in file.records]
    holdout = [record for record in records if record.split is Split.HOLDOUT]

    assert {record.lookup for record in holdout} == {True, None}
    for record in holdout:
        plans = {leg: found.plan and found.plan.identity for leg, found in record.legs.items()}

        assert record.lookup is lookup.lookup(table, "open_engine", "sim-1", job.cases[record.case].fields)
        assert plans["auto"] == plans["frost" if record.lookup else "default"]


def test_the_same_study_gives_the_same_bytes(made: StudyPlace, tmp_path: Path) -> None:
    """A second run of a simulated study gives the same frozen files, study.json, lines and table, byte for byte."""
    again = finished.finish(tmp_path)
    for name in ("study.json", "lines.txt", "score.json", "report.md"):
        first, second = (place.results("bf16").folder / name for place in (made, again))

        assert first.read_bytes() == second.read_bytes()
    assert again.table.read_bytes() == made.table.read_bytes()
    assert again.manifest.read_bytes() == made.manifest.read_bytes()


def test_the_known_ratio_is_recovered(made: StudyPlace) -> None:
    """The measured ratio of every train case lies within its noise of the declared cost."""
    path = made.results("bf16").study_json
    for case in results.study_json(path.read_bytes(), "study.json").summary.cases:
        s_kv = int(case.fields["s_kv"])
        declared = (s_kv * 500 + 64_000) / (s_kv * 1000)
        found = case.regimes["eager-warm"].ratio_ppm / 1_000_000

        assert abs(found / declared - 1) < 0.006


def test_running_again_changes_nothing(whole: StudyPlace) -> None:
    """All steps done again find everything done: no new line, event or byte."""
    before = {path: path.read_bytes() for path in whole.root.rglob("*") if path.is_file()}
    pipeline.run(opening.open_study(whole), whole, ("bf16", "f16"), finished.hooks())
    after = {path: path.read_bytes() for path in whole.root.rglob("*") if path.is_file()}

    assert after == before


def test_the_shipped_table_is_an_empty_table() -> None:
    """studytool/runtime/table.py is what the tool itself writes, without entries until real boards were measured."""
    path = Path(lookup.__file__).with_name("table.py")

    assert path.read_text(encoding="utf-8") == lines.EMPTY


def test_the_committed_studies_are_frozen_as_declared() -> None:
    """The frozen files of the repository are those that their study.yaml makes."""
    root = Path(__file__).resolve().parent.parent
    for name in ("cpu_sdpa", "cpu_smoke"):
        place = StudyPlace(root, name)

        assert freeze.check(opening.open_study(place), place)[1] == []


def test_the_study_that_is_committed_with_its_records_holds() -> None:
    """The real study in studies/cpu_sdpa replays as it stands: its reports are those that this code writes."""
    place = StudyPlace(ROOT, "cpu_sdpa")
    said = call("replay", place.folder)

    assert said.code == 0, said.out
    assert place.page.is_file()
