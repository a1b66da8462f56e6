"""report.html and against.html: all of report.md, plots with their numbers, one file that needs no network."""

import html.parser
import re
import shutil
from pathlib import Path
from typing import Any

import finished
import msgspec
import pytest
from commands import call

from studytool import ledger, opening, pipeline, reporting, results, rows
from studytool.attempts import Job
from studytool.layout import StudyPlace
from studytool.model import Split, Verdict
from studytool.report.sources import Sources

pytest.importorskip("matplotlib")
page = pytest.importorskip("studytool.report.html")
plots = pytest.importorskip("studytool.report.plots")


class Outline(html.parser.HTMLParser):
    """Collects what a page is made of: tags with their attributes, and the text of each heading and table cell."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        """Return the attributes of every such tag."""
        return [attrs for name, attrs in self.tags if name == tag]


def job_of(place: StudyPlace, dtype: str = "bf16") -> Job:
    """Return the job of a hold-out."""
    return opening.job_of(opening.open_study(place), place, dtype, Split.HOLDOUT)


def sources_of(place: StudyPlace, **changes: Any) -> Sources:
    """Return what the page of a finished study is written from."""
    job = job_of(place)
    train = results.train(job._replace(split=Split.TRAIN))
    found = results.sources_of(job, train, results.score_of(job, train), ledger.read(job.results.ledger))
    return found._replace(**changes)


def measured_of(place: StudyPlace) -> Any:
    """Return what was measured on the hold-out of a finished study."""
    job = job_of(place)
    files = results.complete_attempt(job).files
    return page.Measured(job.cases, [record for file in files for record in file.records], rows.rows(files))


@pytest.fixture(scope="module")
def text(made: StudyPlace) -> str:
    """Return the page of the finished study."""
    found: str = page.render(sources_of(made), measured_of(made))
    return found


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    """Return what that page is made of."""
    return Outline(text)


def test_same_study_same_bytes(made: StudyPlace, text: str) -> None:
    """Nothing in the page depends on when or where it is written."""
    assert page.render(sources_of(made), measured_of(made)) == text


def test_page_has_all_sections_of_the_report(made: StudyPlace, outline: Outline) -> None:
    """Every heading of report.md is one of the page, and coverage and the table of cases come behind them."""
    report = made.results("bf16").report.read_text(encoding="utf-8")
    heads = re.findall(r"^## (.+)$", report, re.MULTILINE)

    assert len(heads) == 12
    assert set(heads) <= set(outline.words)
    assert [attrs["id"] for attrs in outline.all("h2")][-2:] == ["coverage", "all-cases"]


def test_nothing_is_loaded(text: str, outline: Outline) -> None:
    """There is no reference to another file, and the page itself forbids any."""
    assert not [attrs for _, attrs in outline.tags if attrs.get("src")]
    assert not outline.all("link")
    assert {attrs["href"][0] for attrs in outline.all("a") if attrs["href"]} == {"#"}
    assert "default-src 'none'" in text
    assert not re.search(r"url\((?!#)", text)


def test_every_plot_has_its_numbers(made: StudyPlace, outline: Outline) -> None:
    """Each figure has a picture with a text for who does not see it, and a table with all of its numbers."""
    classes = len(sources_of(made).fit.outcomes)
    figures = [attrs for attrs in outline.all("div") if attrs.get("role") == "img"]

    assert len(outline.all("figure")) == len(outline.all("svg")) == len(figures) == len(outline.all("details"))
    assert len(figures) >= 2 + classes + 1 + 1
    assert all(attrs["aria-label"] for attrs in figures)


def test_numbers_of_a_class_are_its_cases(made: StudyPlace) -> None:
    """Behind the plot of a class stand its train and hold-out cases with the ratios of study.json and score.json."""
    sources = sources_of(made)
    cases = measured_of(made).cases
    for outcome, plot in zip(
        sources.fit.outcomes, plots.classes(sources.fit, sources.score, cases, 50_000), strict=True
    ):
        holdout = [case for case in sources.score["cases"] if case["class"] == list(outcome.class_key)]
        assert [row[1] for row in plot.rows] == [item.case.label for item in outcome.judged] + [
            case["label"] for case in holdout
        ]
        assert [row[0] for row in plot.rows].count("hold-out") == len(holdout)


def test_every_case_is_a_row(made: StudyPlace, outline: Outline) -> None:
    """The table of cases has each case of score.json, and each cell says what it is sorted by."""
    cases = sources_of(made).score["cases"]
    cells = [attrs for attrs in outline.all("td") if "data-by" in attrs]

    assert len(cells) == len(cases) * len(page._COLUMNS)
    assert all(case["label"] in outline.words for case in cases)
    assert all(re.fullmatch(r"-?\d+", str(c["data-by"])) for c in cells if c["class"] == "number")


def test_colours_are_those_of_the_page(text: str) -> None:
    """No stand-in colour is left in a plot, and text takes the colour of the page in both modes."""
    assert "#0102" not in text
    assert "currentColor" in text
    assert text.count("--series-0:") == 2


def test_what_a_study_says_cannot_act(tmp_path: Path) -> None:
    """Markup in a study's question, and in a reason, is shown and not run."""
    evil = "<script>alert(1)</script> <img src=x onerror=alert(1)> [x](javascript:alert(1))"
    yaml = finished.WHOLE_YAML.replace("From which length on does the open engine lead?", evil)
    place = finished.declare(tmp_path, yaml)
    pipeline.run(opening.open_study(place), place, ("bf16",), finished.hooks())
    found = Outline(page.render(sources_of(place), measured_of(place)))

    assert len(found.all("script")) == 1
    assert not found.all("img")
    assert not [attrs for attrs in found.all("a") if str(attrs["href"]).startswith("javascript")]


def test_device_states_are_drawn_where_there_are_any(made: StudyPlace) -> None:
    """Clock, power, temperature and throttled blocks are medians over blocks, absent where a device does not say."""
    records = measured_of(made).records
    states = {"clock_mhz": (1000, 1400, 1410), "blocks": {"power_mw": (250_000,), "throttle": (0, 4, 0)}}
    told = [msgspec.structs.replace(record, **states) for record in records]
    found = page._states(told)

    assert found["clock, MHz"][0] == 1400
    assert found["power, W"][0] == 250
    assert found["throttled, blocks"][0] == 1
    assert set(found["temperature, °C"]) == {None}


def test_report_writes_both(whole: StudyPlace) -> None:
    """`report` names both files; the page is replaced whole."""
    said = call("report", whole.folder, "--dtype", "bf16")

    assert said.code == 0
    assert said.out.split() == [str(whole.results("bf16").report), str(whole.results("bf16").page)]
    assert whole.results("bf16").page.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_without_the_extra_the_report_says_so(whole: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can draw, report.md is written and one line says what the page takes."""
    monkeypatch.setattr(reporting, "DRAWING", ("no_such_library",))
    said = call("report", whole.folder, "--dtype", "bf16")

    assert (said.code, said.err) == (0, "no report.html: pip install 'studytool[report]'\n")
    assert not whole.results("bf16").page.exists()


@pytest.fixture
def other(made: StudyPlace, tmp_path: Path) -> StudyPlace:
    """Return another run of the finished study, which gave the same."""
    root = tmp_path / "later"
    shutil.copytree(made.root, root)
    return StudyPlace(root, made.name)


def test_against_itself_nothing_differs(whole: StudyPlace, other: StudyPlace) -> None:
    """A run against a copy of itself: no class, verdict or ratio differs, and both files are named."""
    said = call("report", whole.folder, "--dtype", "bf16", "--against", other.folder)
    text = (whole.results("bf16").folder / "against.md").read_text(encoding="utf-8")

    assert said.code == 0
    assert [Path(path).name for path in said.out.split()] == ["against.md", "against.html"]
    assert "**0 of 1 classes have another entry or none; 0 of 6 train verdicts flip;" in text
    assert "frost / backend is 1.000 times what it was (geomean of 10 cases; 1.000 to 1.000)" in text
    assert "Board, versions, settings and measuring code are the same." in text


def test_against_names_what_moved(made: StudyPlace) -> None:
    """A ratio that moved is listed with both values, a verdict that flips with both verdicts, a class that changed."""
    against = pytest.importorskip("studytool.report.against")
    here = sources_of(made)
    outcome = here.fit.outcomes[0]
    (first, *rest) = outcome.judged
    flipped = outcome._replace(
        judged=(first._replace(ratio_ppm=2 * first.ratio_ppm, verdict=Verdict.LOSE), *rest), line=None, code="CONFLICT"
    )
    prints = here.fingerprint
    newer = msgspec.structs.replace(prints, versions={**prints.versions, "cudnn": "92800"})
    there = here._replace(fit=here.fit._replace(outcomes=(flipped, *here.fit.outcomes[1:])), fingerprint=newer)
    text = against.render(here, there, ("new", "old"))

    assert "**1 of 1 classes have another entry or none; 1 of 6 train verdicts flip;" in text
    assert "| cudnn |  | 92800 |" in text
    assert "| CONFLICT | CHANGED |" in text
    assert re.search(rf"\| train \| {re.escape(first.case.label)} \| .* \| 0\.500 \|", text)


def test_another_study_is_no_run_of_this_one(whole: StudyPlace, tmp_path: Path) -> None:
    """Only runs of one study.yaml are compared."""
    yaml = finished.WHOLE_YAML.replace("seed: 7", "seed: 8")
    place = finished.declare(tmp_path / "other", yaml)
    pipeline.run(opening.open_study(place), place, ("bf16",), finished.hooks())
    said = call("report", whole.folder, "--dtype", "bf16", "--against", place.folder)

    assert said.code == 2
    assert said.err == f"{place.study_yaml}: not the same study.yaml; expected another run of this study\n"
