"""report.md: what it says of a study whose every sample is known, and that it says it from score.json."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import finished
import pytest
import scripted
from scripted import HOLDOUT, Timed

from studytool import editing, ledger, opening, reporting, results
from studytool.attempts import Job
from studytool.errors import CannotSayError, StudyError
from studytool.layout import StudyPlace
from studytool.metrics import METRICS, ratio_text
from studytool.model import Split
from studytool.report import markdown
from studytool.report.sources import Sources

GOLDEN = Path(__file__).parent / "golden" / "scripted"


def make(root: Path) -> StudyPlace:
    """Return a study that was scored in its second attempt at the hold-out; the first was stopped."""
    place = scripted.prepare(root)
    scripted.write(place, Split.HOLDOUT, lambda _case: Timed(), stop_after=5)
    scripted.write(place, Split.HOLDOUT, scripted.by_length(HOLDOUT), attempt=2)
    scripted.write(place, Split.ROUTING, lambda _case: Timed())
    scripted.score_of(place)
    return place


def job_at(place: StudyPlace) -> Job:
    """Return the job of the hold-out."""
    return opening.job_of(opening.open_study(place), place, "bf16", Split.HOLDOUT)


def sources_of(place: StudyPlace) -> Sources:
    """Return what the report of a study is written from."""
    seen: list[Sources] = []

    def keep(sources: Sources) -> str:
        seen.append(sources)
        return ""

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(markdown, "render", keep)
        job = job_at(place)
        train = results.train(job._replace(split=Split.TRAIN))
        markdown.render(results.sources_of(job, train, results.score_of(job, train), ledger.read(job.results.ledger)))
    return seen[0]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return the scripted study, scored and reported, that nobody may change."""
    found = make(tmp_path_factory.mktemp("report"))
    reporting.report(job_at(found))
    return found


@pytest.fixture(scope="module")
def sources(place: StudyPlace) -> Sources:
    """Return what its report is written from."""
    return sources_of(place)


def section(text: str, head: str) -> str:
    """Return one section of a report."""
    found = re.search(rf"^## {head}\n\n(.+?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found.group(1)


@pytest.mark.parametrize("name", ["report.md", "score.json", "lines.txt"])
def test_golden(place: StudyPlace, name: str) -> None:
    """The files of the scripted study are those that were looked at; UPDATE_GOLDEN=1 writes them, and skips."""
    data = (place.results("bf16").folder / name).read_bytes()
    if os.environ.get("UPDATE_GOLDEN") == "1":
        GOLDEN.mkdir(parents=True, exist_ok=True)
        (GOLDEN / name).write_bytes(data)
        pytest.skip(f"{name} was written; read the difference")

    assert data.decode() == (GOLDEN / name).read_text(encoding="utf-8")


def test_each_cell_of_the_result_is_a_metric_of_the_score() -> None:
    """The result table holds what score.json says, cell by cell, and computes nothing."""
    metrics = {name: number * 1_001_000 for number, name in enumerate(METRICS, 1)}
    score = {"dtype": "f16", "verdict": "PASS", "metrics": metrics}
    row = markdown.result_table([score]).splitlines()[2]
    shown = {name: ratio_text(value) for name, value in metrics.items()}

    assert [cell.strip() for cell in row.strip("|").split("|")] == [
        "f16",
        f"{metrics['cases_timed']} of {metrics['cases']}",
        f"{shown['regret_default_geomean']} ({shown['regret_default_max']})",
        f"{shown['regret_auto_geomean']} ({shown['regret_auto_max']})",
        f"{shown['auto_over_default_geomean']} ({shown['auto_over_default_min']}, {shown['auto_over_default_max']})",
        str(metrics["reached"]),
        str(metrics["slower_beyond_noise"]),
        "PASS",
    ]


def numbers(value: Any) -> Iterator[int]:
    """Return every integer of a JSON value."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from numbers(part)
    elif isinstance(value, int):
        yield value


@pytest.mark.parametrize("head", ["Result", "Notable cases", "Noise and control"])
def test_every_ratio_is_in_the_score(place: StudyPlace, head: str) -> None:
    """Each number with three decimals in the sections on the hold-out is an integer of score.json (or a band)."""
    folder = place.results("bf16").folder
    known = {ratio_text(abs(n)) for n in numbers(json.loads((folder / "score.json").read_bytes()))}
    known.add(ratio_text(json.loads((folder / "study.json").read_bytes())["band_ppm"]))
    said = set(re.findall(r"(?<![\d.])\d+\.\d{3}(?!\d)(?! ms)", section((folder / "report.md").read_text(), head)))

    assert said
    assert said - known == set()


def test_a_gate_shows_ratios_as_ratios(place: StudyPlace) -> None:
    """A condition on a ratio shows the value as a ratio, also when its bound is a whole number."""
    found = section((place.results("bf16").folder / "report.md").read_text(), "Result")

    assert "| `regret_auto_max <= 2` | 1.100 | holds |" in found
    assert "| `slower_beyond_noise == 0` | 1 | does not hold |" in found


def test_unscored_attempts_are_said(place: StudyPlace) -> None:
    """An attempt that was stopped is told with its count, in the section on how the hold-out was run."""
    found = section((place.results("bf16").folder / "report.md").read_text(), "How the hold-out was run")

    assert "- Unscored: holdout attempt 1 with 5 of 12 lines." in found
    assert "- Cases by status: 1 crashed, 3 ok." in found


def test_a_fresh_hold_out_is_called_fresh(place: StudyPlace) -> None:
    """Entries that did not change since the hold-out was looked at leave it FRESH."""
    text = (place.results("bf16").folder / "report.md").read_text()

    assert text.count("the hold-out is FRESH") == 1
    assert "SPENT" not in text


def test_a_spent_hold_out_is_called_spent(tmp_path: Path) -> None:
    """Entries that changed after a look make the report say, at its top and below, that it is not out-of-sample."""
    place = make(tmp_path)
    job = job_at(place)
    path = tmp_path / "other.txt"
    path.write_text(results.lines_of(results.train(job._replace(split=Split.TRAIN)), 50_000, "box").text)
    editing.apply_lines(path, place.table, finished.hooks().now)
    scripted.write(place, Split.HOLDOUT, lambda _case: Timed(frost=150_000), attempt=3)
    scripted.score_of(place)
    text = reporting.report(job_at(place))
    told = "SPENT, so this is not out-of-sample (line 8 of the ledger changed the entries after a look at the hold-out)"

    assert text.splitlines()[6].endswith(f"the hold-out is {told}.**")
    assert f"- The hold-out is {told}; per-case looks at it so far: 2." in text
    assert "Unscored: holdout attempt 2 with 12 of 12 lines" in text


def test_a_report_needs_the_score_of_its_records(tmp_path: Path) -> None:
    """A report of another score than that of the records is refused; without a score it cannot be said."""
    place = make(tmp_path)
    path = place.results("bf16").score
    path.write_bytes(path.read_bytes().replace(b'"cases_timed":3', b'"cases_timed":4'))
    with pytest.raises(StudyError, match=r"score\.json: not what the records give; run `studytool score` again$"):
        reporting.report(job_at(place))
    path.unlink()

    with pytest.raises(CannotSayError, match=r"score\.json: not there; run `studytool score`$"):
        reporting.report(job_at(place))
    assert not place.results("bf16").report.exists()


def test_few_repeats_are_said(sources: Sources) -> None:
    """With three repeats the report says that its intervals are too wide; with five it does not."""
    remark = "With fewer than 5 repeats the intervals are too wide to quote."
    five = sources._replace(score={**sources.score, "repeats": 5})

    assert remark in markdown.render(sources)
    assert remark not in markdown.render(five)


def test_what_has_no_value_is_not_a_number(sources: Sources) -> None:
    """Metrics without a value are n/a, a negative share keeps its sign, and empty sections say so."""
    metrics = dict.fromkeys(METRICS) | {"cases": 4, "cases_timed": 0, "reached": 0, "closed_gap": -500_000}
    empty = {**sources.score, "metrics": metrics, "cases": [], "routing": [], "intervals": {}, "gate": []}
    text = markdown.render(sources._replace(score=empty))

    assert "| bf16 | 0 of 4 | n/a (n/a) | n/a (n/a) | n/a (n/a, n/a) | 0 | n/a | FAIL |" in text
    assert "the entries close: -0.500." in text
    assert section(text, "Notable cases") == "No case was timed.\n\n"
    assert section(text, "Routing") == "No routing case was declared.\n\n"


def test_a_study_without_entries_says_so(sources: Sources) -> None:
    """A fit without lines is told as such, with the code of each class."""
    none = results.lines_of(results.Train(sources.summary, b""), 1_500_000, "class")
    text = markdown.render(sources._replace(fit=none))

    assert "leads in 0 of 1 classes;" in text
    assert "\n\nNo class gets an entry; the table stays as it is.\n\n" in section(text, "Change")
    assert "| bf16 | none | MARGIN | 0 / " in section(text, "Change")


def test_times_are_readable(sources: Sources) -> None:
    """Below a millisecond times are in µs, above it in ms."""
    case = {**sources.score["cases"][0], "leg_ns": {"auto": 999_999, "default": 1_234_567}}
    text = section(markdown.render(sources._replace(score={**sources.score, "cases": [case]})), "Notable cases")

    assert "1.234 ms by default, 999.9 µs with the entries" in text


def test_tables_are_tables(sources: Sources) -> None:
    """Every row of a table has as many cells as its head."""
    rows: list[str] = []
    for line in [*markdown.render(sources).splitlines(), ""]:
        if line.startswith("|"):
            rows.append(line)
        else:
            assert len({row.count("|") for row in rows}) <= 1
            rows = []
