"""`studytool status`: where a study stands, and a next command that brings it one step on, until all is done."""

import json
import re
import shlex
from pathlib import Path

import finished
from commands import call, tree

from studytool import editing, opening, pipeline
from studytool.layout import StudyPlace
from studytool.model import Split


def steps_of(place: StudyPlace, *options: str) -> dict[str, str]:
    """Return the state of each step by dtype and name."""
    found = json.loads(call("status", place.folder, "--json", *options).out)
    assert found["schema"] == 1
    return {f"{step['dtype']} {step['name']}".strip(): step["state"] for step in found["steps"]}


def next_command(place: StudyPlace) -> str:
    """Return the command that the last line names, "" where all is done."""
    last = call("status", place.folder).out.splitlines()[-1]
    return last.removeprefix("next: ") if last.startswith("next: ") else ""


def test_finished_study_is_done(made: StudyPlace) -> None:
    """All steps of a study that went the whole path are done, and nothing is written by asking."""
    before = tree(made.root)

    assert set(steps_of(made).values()) == {"done"}
    assert call("status", made.folder).out.splitlines()[-1] == "all is done; `studytool bundle` hands it over"
    assert tree(made.root) == before


def test_next_commands_lead_to_the_end(tmp_path: Path) -> None:
    """From a declaration on, the command that status names next, typed again and again, does the whole study."""
    place = finished.declare(tmp_path)
    typed: list[str] = []
    while command := next_command(place):
        assert len(typed) < 30
        typed.append(command)
        for part in command.split(" && "):
            words, _, output = part.partition(" > ")
            arguments = [re.sub(r"^(studies/|bf16\.txt|f16\.txt)", rf"{tmp_path}/\1", a) for a in shlex.split(words)]
            said = call(*arguments[1:])
            assert said.code == 0, (part, said.err)
            if output:
                (tmp_path / output).write_text(said.out, encoding="utf-8")

    names = [next(word for word in shlex.split(command)[1:] if not word.startswith("-")) for command in typed]
    assert names == ["freeze", *["time", "gen"] * 2, *["time", "time", "score", "report"] * 2, "report"]
    assert set(steps_of(place).values()) == {"done"}
    assert call("replay", place.folder).code == 0


def test_other_lines_after_the_score_are_a_step_and_no_error(made: StudyPlace, tmp_path: Path) -> None:
    """Where other lines were applied after the hold-out was timed, the list says so at the score, and exits 0."""
    place = finished.copy(made, tmp_path / "own")
    said = call("gen", place.results("bf16").study_json, "--margin", "0.99").out
    (tmp_path / "lines.txt").write_text(said, encoding="utf-8")
    assert call("apply", tmp_path / "lines.txt", "--table", place.table).code == 0
    found = call("status", place.folder, "--dtype", "bf16")

    assert found.code == 0
    assert "bf16 report" in found.out
    assert "timed with other entries than those applied" in found.out


def test_a_report_over_all_dtypes_that_is_old_is_open(made: StudyPlace, tmp_path: Path) -> None:
    """The last step of a study of several dtypes is their report together; a changed one is to be written again."""
    place = finished.copy(made, tmp_path / "own")
    place.report.write_bytes(place.report.read_bytes() + b"more\n")

    assert next_command(place) == "studytool report studies/whole --dtype all"
    assert "not what the records give now" in call("status", place.folder).out


def test_hold_out_waits_for_the_lines_of_all_dtypes(tmp_path: Path) -> None:
    """While the lines of one dtype are open, the other's hold-out waits: it is timed with the whole table."""
    place = finished.declare(tmp_path)
    study = opening.open_study(place)
    pipeline.freeze_study(study, place, [])
    for name in ("time", "lines"):
        job = opening.job_of(study, place, "bf16", Split.TRAIN)
        if name == "time":
            pipeline.time(job, finished.hooks())
        else:
            pipeline.generate(job)
            editing.apply_lines(job.results.lines, place.table, finished.hooks().now)
    both, alone = steps_of(place), steps_of(place, "--dtype", "bf16")

    assert (both["bf16 lines"], both["bf16 holdout"], both["f16 train"]) == ("done", "waits", "next")
    assert alone["bf16 holdout"] == "next"


def test_changed_records_open_what_rests_on_them(whole: StudyPlace) -> None:
    """A score that is not what the records give is open again, and so is the report behind it."""
    path = whole.results("bf16").score
    path.write_bytes(path.read_bytes().replace(b'"cases_timed":4', b'"cases_timed":5'))
    report = whole.results("bf16").report
    report.write_text(report.read_text(encoding="utf-8") + "More.\n", encoding="utf-8")
    said = call("status", whole.folder)

    assert [line.split()[0] for line in said.out.splitlines() if " bf16 " in line][-2:] == ["next", "waits"]
    assert said.out.count("not what the records give now") == 2


def test_status_of_what_was_changed_is_one_line(whole: StudyPlace) -> None:
    """Frozen cases that were changed end it as they end every command."""
    whole.gate.write_bytes(b"{}\n")
    said = call("status", whole.folder)

    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "gate.json:1: differs from what study.yaml makes" in said.err
