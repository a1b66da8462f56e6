"""Which lines of a table `studytool stale` names, by the real plan lists of three versions of cuDNN.

The tables are those that the study's own rules fit to train cases whose plans are the ones planned under a version.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest
from a100 import SQUARE, class_of
from commands import Said, call
from factories import make_case_summary, make_regime, make_summary
from reallists import BOARDS, CASES, OLD, STUDY, VERSIONS, identity, square

from studytool import fit, lines, studyjson
from studytool.layout import StudyPlace
from studytool.model import Split
from studytool.runtime import key, lookup

pytest.importorskip("cudnn")
pytestmark = pytest.mark.xdist_group("planning_real")

NEW = VERSIONS[-1]


class Made(NamedTuple):
    """A study whose table was fitted to plans that are planned: which version's, by dtype."""

    place: StudyPlace
    table: lookup.Table
    evidence: dict[str, str]


def made(root: Path, **evidence: str) -> Made:
    """Return a copy of the A100 study with train summaries whose plans are those of a version, fitted and applied."""
    place = StudyPlace(root, SQUARE.name)
    place.folder.mkdir(parents=True)
    place.study_yaml.write_bytes(SQUARE.study_yaml.read_bytes())
    text = lines.Text({}, {})
    for dtype, version in evidence.items():
        cases = [item for item in square(version) if item.split is Split.TRAIN and item.case.dtype == dtype]
        measured = [
            make_case_summary(
                500_000,
                plans={leg: identity(item, "default" if leg == "auto" else leg) for leg in item.legs},
                regimes={name: make_regime(500_000) for name in STUDY.protocol.regimes},
                **item.case.fields,
            )
            for item in cases
        ]
        train = make_summary(
            measured,
            study=STUDY.name,
            dtype=dtype,
            row=STUDY.row,
            base=STUDY.base,
            cc=STUDY.cc,
            class_key=STUDY.class_key,
            guards=STUDY.guards,
            regimes=STUDY.protocol.regimes,
            decide=STUDY.decide,
        )
        data = studyjson.encode(train)
        place.results(dtype).folder.mkdir()
        place.results(dtype).study_json.write_bytes(data)
        fitted = fit.fit(train, data, STUDY.decide.margin_ppm, STUDY.decide.scope)
        text = lines.insert(text, lines.read_lines(fitted.text.encode(), "lines.txt")[1], "table.py")
    table = lines.table_text(text)
    place.table.write_text(table)
    return Made(place, lines.parse_table(table.encode(), "table.py"), evidence)


def stale(path: Path, *args: object) -> tuple[Said, dict[int, list[str]]]:
    """Return how `studytool stale` ended, and the states of each line of the table."""
    said = call("stale", path, "--board", BOARDS["8.0"], *args)
    rows = [line.strip("| ").split(" | ") for line in said.out.splitlines() if line.startswith("| ")][2:]
    return said, {int(row[0]): row[2:] for row in rows}


def differing(study: Made, version: str) -> set[int]:
    """Return the lines of which a train case has another first plan under a version than in its evidence."""
    now = {item.case: item for item in square(version)}
    found = set()
    for dtype, before in study.evidence.items():
        for item in square(before):
            own = study.table.entries[(STUDY.row, STUDY.cc, *class_of(STUDY, item.case))]
            if item.case.dtype == dtype and item.split is Split.TRAIN:
                legs = ("backend", "frost")
                found |= {own.line for leg in legs if identity(item, leg) != identity(now[item.case], leg)}
    return found


def alone(study: Made) -> Path:
    """Return a copy of a study's table that is in no study's folder."""
    path = study.place.root / "alone.py"
    path.write_bytes(study.place.table.read_bytes())
    return path


def test_a_table_is_fresh_under_the_version_that_it_was_made_with(tmp_path: Path) -> None:
    """All 16 lines of a table made from 9.19 evidence are fresh under 9.19, by their one case and by all of them."""
    study = made(tmp_path, bf16=OLD, f16=OLD)
    for path in (alone(study), study.place.table):
        said, states = stale(path, "--cudnn", OLD)

        assert (said.code, said.err) == (0, "")
        assert [*states.values()] == [["FRESH"]] * 16


def test_stale_names_exactly_the_lines_whose_first_plans_differ(tmp_path: Path) -> None:
    """Of a table made from evidence of two versions, each version finds the other one's lines stale, with both ids."""
    study = made(tmp_path, bf16=OLD, f16=NEW)
    found = {version: stale(alone(study), "--cudnn", version) for version in (OLD, NEW)}
    stale_lines = {
        version: {line for line, (state,) in states.items() if state == "STALE"}
        for version, (_, states) in found.items()
    }

    assert stale_lines == {version: differing(study, version) for version in (OLD, NEW)}
    assert [len(own) for own in stale_lines.values()] == [8, 8]
    assert {state for _, states in found.values() for (state,) in states.values()} == {"FRESH", "STALE"}
    assert [said.code for said, _ in found.values()] == [1, 1]
    told = [line for line in found[NEW][0].out.splitlines() if ": STALE under " in line]
    assert all("backend was 7[KERNEL_CFG=2" in line and ", is 7[KERNEL_CFG=2," in line for line in told)
    assert len(told) == 8


@pytest.mark.whole
def test_a_matrix_shows_three_versions(tmp_path: Path) -> None:
    """9.19, 9.27 and 9.28 stand side by side: the lines from 9.19 are fresh in the first column alone."""
    study = made(tmp_path, bf16=OLD, f16=VERSIONS[0])
    said, states = stale(alone(study), "--matrix", ",".join((OLD, *VERSIONS)))
    by_dtype = {entry_key[2]: states[entry.line] for entry_key, entry in study.table.entries.items()}

    assert said.code == 1
    assert said.out.startswith(f"| line | class | cuDNN {OLD} | cuDNN {VERSIONS[0]} | cuDNN {NEW} |\n")
    assert Counter(map(tuple, states.values())) == {("FRESH", "STALE", "STALE"): 8, ("STALE", "FRESH", "FRESH"): 8}
    assert by_dtype == {"bf16": ["FRESH", "STALE", "STALE"], "f16": ["STALE", "FRESH", "FRESH"]}


def test_with_the_study_the_fewest_cases_to_time_again_are_named(tmp_path: Path) -> None:
    """Each stale class, whose line has no bound, names its smallest and its largest train case; a fresh one none."""
    study = made(tmp_path, bf16=OLD, f16=NEW)
    said, states = stale(study.place.table, "--cudnn", NEW)
    expected_lines = []
    for line, (state,) in sorted(states.items()):
        own = [
            case
            for case in CASES[Split.TRAIN]
            if study.table.entries[(STUDY.row, STUDY.cc, *class_of(STUDY, case))].line == line
        ]
        ranked = sorted(own, key=lambda c: (key.axis_value(c.fields, "b*h_q*s_q*s_kv"), c.label))
        named = [ranked[0], ranked[-1]] if state == "STALE" else []
        expected_lines += [f"{study.place.table}:{line}: time again {case.label}" for case in named]

    assert {line for line, (state,) in states.items() if state == "STALE"} == differing(study, NEW)
    assert [line for line in said.out.splitlines() if ": time again " in line] == expected_lines
    assert len(expected_lines) == 16


def test_on_a_board_where_a_side_has_no_plan_lines_are_dead(tmp_path: Path) -> None:
    """A line whose row the library no longer offers is dead, which is more than stale."""
    study = made(tmp_path, bf16=NEW)
    text = study.place.table.read_text().replace('"sdpa_bwd_sm80"', '"sdpa_bwd_sm79"')
    path = tmp_path / "gone.py"
    path.write_text(text)
    said, states = stale(path, "--cudnn", NEW)

    assert said.code == 1
    assert [*states.values()] == [["DEAD"]] * 8
    assert said.out.count("no frost plan") == 8
