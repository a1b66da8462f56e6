"""What records saw beside what is predicted for their board, and a table's lines under versions side by side."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from controls import (
    BACKEND_PLAN,
    CLASSES,
    FEATURES,
    FROST_PLAN,
    OTHER_PLAN,
    WAS,
    StandIn,
    as_seen,
    both,
    for_mask,
    fresh_table,
    listed,
    plans_of,
    refused,
    seen_study,
    stand_in,
    table_of,
)
from factories import make_case_summary, make_summary

from studytool import freeze, lines, opening, predictions
from studytool.attempts import Job
from studytool.errors import StudyError
from studytool.layout import StudyPlace
from studytool.model import Case, Plan, Split, Status
from studytool.planning import boards, libraries
from studytool.planning.messages import Planned
from studytool.predictions import Asked

H200 = boards.load("h200")
Answer = Callable[[Case], Planned]


@pytest.fixture(name="place", scope="module")
def _place(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished cuDNN study with records of an H200."""
    return seen_study(tmp_path_factory.mktemp("seen"))


def beside(place: StudyPlace, asked: Asked | None, dtypes: Iterable[str] = ("bf16",)) -> list[str]:
    """Return what the predictions say beside the records of a study."""
    return predictions.beside(opening.open_study(place), place, [*dtypes], asked)


def here(patch: pytest.MonkeyPatch, answer: Answer) -> list[tuple[Any, ...]]:
    """Let cuDNN 9.27.0.42 be here, with a planner that answers so; `open_engine` is the row of engine 5."""
    patch.setattr(libraries, "version_of", {92700: "9.27.0.42"}.__getitem__)
    return stand_in(patch, StandIn(answer, row=5))


def test_what_is_seen_as_planned_is_one_line(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every leg ran what is predicted, one line counts the cases; board and version are those of the records."""
    opened = here(monkeypatch, as_seen)

    assert beside(place, None) == [
        "bf16: 12 cases planned for h200 under cuDNN 9.27.0.42, 0 legs differ from what was seen"
    ]
    assert opened == [("h200", "9.27.0.42", "library")]


def test_each_leg_that_ran_another_plan_is_a_line(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A difference names split, case, leg and both plans, also in the routing split, and is no error."""

    def other(case: Case) -> Planned:
        if case.s_kv == 512:
            return listed(OTHER_PLAN, Plan(engine=5, name="row"))
        return refused(Status.REFUSED, "invalid") if case.bias != "none" and case.s_kv == 128 else as_seen(case)

    here(monkeypatch, other)
    train, routed = (
        "bf16 train: sdpa_fwd bf16 b1 h4 d64 S512",
        "bf16 routing: sdpa_fwd bf16 b1 h4 d64 S128 bias=learned",
    )

    assert beside(place, None) == [
        "bf16: 12 cases planned for h200 under cuDNN 9.27.0.42, 5 legs differ from what was seen",
        *(f"{train}: {leg}: planned eng8, seen engine 1" for leg in ("backend", "auto", "default")),
        *(f"{routed}: {leg}: planned none, seen engine 1" for leg in ("auto", "default")),
    ]


def test_a_plan_with_other_knobs_is_another_plan(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are compared by id and knobs; their names say nothing."""
    here(monkeypatch, lambda _case: listed(Plan(engine=1, name="engine 1", knobs={"K": 1}), Plan(engine=5, name="x")))

    assert beside(place, None)[0].endswith(", 31 legs differ from what was seen")


def test_the_answer_that_was_looked_up_when_it_ran_is_applied(
    place: StudyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Auto is predicted with the look-up that the record holds, so that a lifted case is no difference."""
    here(monkeypatch, as_seen)
    job = job_of(place)
    made = {split: job._replace(split=split).attempts() for split in job.study.splits}
    lookups = {record.lookup for _, record in predictions._first_records(job, made).values()}

    assert lookups == {True, None}
    assert len(predictions.seen(job, None)) == 1


def job_of(place: StudyPlace) -> Job:
    """Return the train job of a study."""
    study = opening.open_study(place)
    return Job(study, place, freeze.verify(study, place), "bf16", Split.TRAIN)


def test_a_board_and_a_version_that_are_asked_for_are_taken(place: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is asked for takes the place of what the records name, each for itself."""
    opened = here(monkeypatch, as_seen)
    told = [beside(place, Asked(*asked))[0] for asked in (("b200", "9.28.1.4"), ("", "9.28.1.4"), ("b200", None))]

    assert opened == [
        ("b200", "9.28.1.4", "library"),
        ("h200", "9.28.1.4", "library"),
        ("b200", "9.27.0.42", "library"),
    ]
    assert [" ".join(line.split()[4:9]) for line in told] == [f"for {b} under cuDNN {v}," for b, v, _ in opened]


def test_a_board_from_a_file_is_asked_for(place: StudyPlace, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A board that stands in a file is planned for, as it is by `plan`."""
    path = tmp_path / "mine.json"
    path.write_text(boards.text(msgspec.structs.replace(H200, name="mine")))
    opened = here(monkeypatch, as_seen)
    beside(place, Asked(str(path), None))

    assert [name for name, _, _ in opened] == ["mine"]


def test_where_nothing_was_asked_for_and_nothing_can_be_said_a_line_says_why(
    monkeypatch: pytest.MonkeyPatch, place: StudyPlace, tmp_path: Path
) -> None:
    """A board that nobody described, and a cuDNN that is not here, are a line; where asked for, they are errors."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(libraries, "_installed", lambda: None)
    other = seen_study(tmp_path / "other", board="Voodoo 2")
    no_board = "no board here is called Voodoo 2; expected --board"
    no_cudnn = "no cuDNN 9.27.0.x is here; `studytool plan --board BOARD --cudnn VERSION --fetch` brings one"

    assert beside(other, None) == [f"bf16: not compared with what is seen: {no_board}"]
    assert beside(place, None) == [f"bf16: not compared with what is seen: {no_cudnn}"]
    for study, asked, message in (
        (other, Asked("", "9.27.0.42"), no_board),
        (place, Asked("h200", None), no_cudnn),
        (place, Asked("voodoo", None), "--board: found voodoo; expected "),
    ):
        with pytest.raises(StudyError, match=message):
            beside(study, asked)


def test_records_that_name_no_cudnn_are_a_line_too(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A fingerprint that does not tell cuDNN's version does not stop a replay."""
    here(monkeypatch, as_seen)
    place = seen_study(tmp_path, versions=())

    assert beside(place, None)[0].startswith("bf16: not compared with what is seen: ")


def test_a_dtype_without_records_has_no_line(place: StudyPlace) -> None:
    """What was not timed is not compared."""
    assert beside(place, None, ["f16"]) == []


# Versions side by side, and a study's cases

OLD, NEW = StandIn(both, cudnn=91900), StandIn(for_mask("tl", listed(OTHER_PLAN, FROST_PLAN)), cudnn=92801)


def test_versions_stand_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A column a version, then every line that is not fresh with what differs; the state is that of the worst."""
    path = tmp_path / "table.py"
    path.write_text(fresh_table())
    dead = StandIn(for_mask("br", listed(BACKEND_PLAN)))
    opened = stand_in(monkeypatch, {"9.19.0.56": OLD, "9.28.1.4": NEW, None: dead})
    found = predictions.stale_lines(path, Asked("h200", None), ["9.19.0.56", "9.28.1.4", None], "backend", [])
    stale_detail = f"{CLASSES['tl'].label}: backend was 7[KERNEL_CFG=2], is 8"

    assert found.worst == "DEAD"
    assert (
        found.text
        == f"""\
| line | class | cuDNN 9.19.0.56 | cuDNN 9.28.1.4 | cuDNN 92700 |
| --- | --- | --- | --- | --- |
| 13 | open_engine 9.0 sdpa_fwd bf16 br | FRESH | FRESH | DEAD |
| 14 | open_engine 9.0 sdpa_fwd bf16 none | FRESH | FRESH | FRESH |
| 15 | open_engine 9.0 sdpa_fwd bf16 tl | FRESH | STALE | FRESH |

{path}:13: DEAD under 92700: {CLASSES["br"].label}: no frost plan
{path}:15: STALE under 9.28.1.4: {stale_detail}"""
    )
    assert opened == [("h200", version, "backend") for version in ("9.19.0.56", "9.28.1.4", None)]
    assert OLD.entered == NEW.entered == dead.entered == 0


def test_a_fresh_table_and_an_empty_one_have_nothing_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where every line is fresh, or none is there, the table of states is all that is printed."""
    stand_in(monkeypatch, OLD)
    path = tmp_path / "table.py"
    for text, count in ((fresh_table(), 3), (lines.EMPTY, 0)):
        path.write_text(text)
        found = predictions.stale_lines(path, Asked("h200", None), ["9.19.0.56"], "backend", [])

        assert found.worst == "FRESH"
        assert len(found.text.splitlines()) == 2 + count


def test_a_line_of_another_compute_capability_is_not_judged_by_this_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plans of an A100 say nothing of a line that is keyed on 9.0: it is not called dead on their account."""
    path = tmp_path / "table.py"
    path.write_text(fresh_table())
    stand_in(monkeypatch, StandIn(lambda _case: listed(BACKEND_PLAN)))
    assert boards.load("a100-sxm4-40gb").cc == "8.0"

    assert predictions.stale_lines(path, Asked("a100-sxm4-40gb", None), [None], "backend", []).worst != "DEAD"


def test_a_study_adds_its_cases_and_names_those_to_time_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is judged by all of its cases, and one that is not fresh names the cases at its bound."""
    plans = plans_of("7[KERNEL_CFG=2]", "20601")
    measured = [
        make_case_summary(1_300_000 if level == 1 else 700_000, s_q=64 * level, s_kv=64 * level, plans=plans)
        for level in range(1, 6)
    ]
    train = make_summary(measured, cc="9.0", class_key=FEATURES)
    path = tmp_path / "table.py"
    path.write_text(table_of({"none": f"ev {WAS} {CLASSES['none'].label}"}, ("from", "s_kv", 128)))
    stand_in(monkeypatch, StandIn(lambda case: listed(OTHER_PLAN, FROST_PLAN) if case.s_kv == 320 else both(case)))
    alone, with_study = (
        predictions.stale_lines(path, Asked("h200", "9.28.1.4"), ["9.28.1.4"], "backend", summaries)
        for summaries in ([], [train])
    )

    assert alone.worst == "FRESH"
    assert with_study.worst == "STALE"
    assert with_study.text.split("\n\n")[1:] == [
        f"{path}:13: STALE under 9.28.1.4: sdpa_fwd bf16 b1 h4 d64 S320: backend was 7[KERNEL_CFG=2], is 8",
        f"{path}:13: time again sdpa_fwd bf16 b1 h4 d64 S128\n{path}:13: time again sdpa_fwd bf16 b1 h4 d64 S64",
    ]
