"""The whole path in a folder of its own, on a study that comes with the package, and what is worth reading of it."""

from pathlib import Path

import studytool
from studytool import freeze, lines, pipeline, replay, results
from studytool.errors import StudyFileError
from studytool.files import read_bytes, write_atomic
from studytool.layout import StudyPlace
from studytool.model import Split, Study
from studytool.opening import job_of, open_study
from studytool.pipeline import Hooks
from studytool.report import markdown
from studytool.runtime import lookup


def bundled_study(name: str) -> Path:
    """Return the study.yaml of a study that comes with the package, from the checkout or the installed package."""
    package = Path(studytool.__file__).parent
    for root in (package, package.parent):
        path = root / "studies" / name / "study.yaml"
        if path.is_file():
            return path
    raise StudyFileError(f"study {name} does not come with this installation")


def demo(out: Path, name: str, hooks: Hooks) -> tuple[str, str, int]:
    """Run a bundled study in a folder of its own; return what to print, the replay's sentence and its exit code.

    Run again in the same folder, it goes on where it was stopped.
    """
    place = StudyPlace(out.absolute(), name)
    source = read_bytes(bundled_study(name))
    if not place.study_yaml.exists():
        write_atomic(place.study_yaml, source)
    elif read_bytes(place.study_yaml) != source:
        raise StudyFileError(f"{place.study_yaml}: another study is there; expected an empty folder as --out")
    study = open_study(place)
    scores = pipeline.run(study, place, study.dtypes, hooks)
    sentence, code = replay.conclusion(replay.replay(study, place))
    text = "\n\n".join(
        [
            "Hold-out, regret geomean (max); applied / default geomean (min, max):",
            markdown.result_table(scores),
            "Lines in the table:",
            "\n".join(_table_lines(place)) or "    none: no class leads by the margin on this machine",
            "Classes without an entry:",
            "\n".join(_codes(study, place)) or "    none",
            "Look-ups:",
            "\n".join(_look_ups(study, place)),
            f"Files: {place.folder} and {place.frozen}",
        ]
    )
    return text, sentence, code


def _table_lines(place: StudyPlace) -> list[str]:
    return list(lines.read_table(read_bytes(place.table), str(place.table)).entries.values())


def _codes(study: Study, place: StudyPlace) -> list[str]:
    found = []
    for dtype in study.dtypes:
        path = place.results(dtype).study_json
        train = results.study_json(read_bytes(path), str(path))
        fitted = results.lines_of(train, study.decide.margin_ppm, study.decide.scope)
        found += [
            f"    {' '.join(str(part) for part in outcome.class_key[2:])}: {outcome.code}, {outcome.detail}"
            for outcome in fitted.outcomes
            if outcome.line is None
        ]
    return found


def _look_ups(study: Study, place: StudyPlace) -> list[str]:
    """Return three look-ups with their reasons: one of each code in turn."""
    table = lines.parse_table(read_bytes(place.table), str(place.table))
    frozen = freeze.verify(study, place)
    prints = job_of(study, place, study.dtypes[0], Split.TRAIN).attempts()[-1].files[0].session.fingerprint
    answers: dict[str, list[str]] = {}
    for split in (Split.HOLDOUT, Split.ROUTING):
        for case in frozen.cases.get(split, {}).values():
            answer = lookup.explain(table, study.row, prints.cc, case.fields, prints.board)
            word = {True: "True (the row leads)", False: "False (it trails)", None: "None (the order stays)"}
            detail = f" {answer.detail}" if answer.detail else ""
            entry = f", line {answer.entry.line}" if answer.entry else ""
            answers.setdefault(answer.code, []).append(
                f"    {case.label}: {word[answer.verdict]}, {answer.code}{detail}{entry}"
            )
    turns = [texts[turn] for turn in range(3) for texts in answers.values() if turn < len(texts)]
    return turns[:3]
