"""The report over all dtypes of a study: what it says of each, what it says once, and that a replay writes it again."""

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import archives
import benches
import finished
import forger
import msgspec
import pytest
from commands import call
from factories import STUDY_YAML
from test_report import section

from studytool import ledger, opening, pipeline, replay, reporting, results
from studytool.attempts import Job
from studytool.layout import StudyPlace
from studytool.metrics import ratio_text
from studytool.model import Split
from studytool.report import together
from studytool.report.sources import Sources

DTYPES = ("bf16", "f16")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a study of two dtypes that went the whole path, which nobody may change; its bf16 alone gets an entry."""
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        return finished.finish(tmp_path_factory.mktemp("both"))


@pytest.fixture
def own(both: StudyPlace, tmp_path: Path) -> StudyPlace:
    """Return a copy of that study."""
    return finished.copy(both, tmp_path / "own")


def jobs_of(place: StudyPlace) -> list[Job]:
    """Return the jobs of a study's hold-outs."""
    return [forger.job_of(place, Split.HOLDOUT, dtype) for dtype in opening.open_study(place).dtypes]


def sources_of(place: StudyPlace) -> list[Sources]:
    """Return what the report over all dtypes is written from."""
    found = []
    for job in jobs_of(place):
        train = results.train(job._replace(split=Split.TRAIN))
        found.append(results.sources_of(job, train, results.score_of(job, train), ledger.read(job.results.ledger)))
    return found


@pytest.fixture(scope="module")
def sources(both: StudyPlace) -> list[Sources]:
    """Return what the report of that study is written from."""
    return sources_of(both)


def score_of(place: StudyPlace, dtype: str) -> dict[str, Any]:
    """Return what score.json of a dtype says."""
    found: dict[str, Any] = json.loads(place.results(dtype).score.read_bytes())
    return found


def with_score(sources: Sources, **changes: Any) -> Sources:
    """Return what a report is written from with members of its score changed."""
    return sources._replace(score={**sources.score, **changes})


def rendered(sources: Sequence[Sources], head: str) -> list[str]:
    """Return the lines of one section of the report."""
    return section(together.render(sources), head).strip().split("\n")


# What it says


def test_what_is_there_is_what_is_rendered(both: StudyPlace, sources: list[Sources]) -> None:
    """`run` wrote the report; it depends on nothing else than what the reports of the dtypes are written from."""
    assert both.report.read_text(encoding="utf-8") == together.render(sources) == together.render(sources_of(both))


def test_each_dtype_is_a_line_of_one_table(both: StudyPlace) -> None:
    """The cells of a dtype's line are metrics of its score, its verdict is the gate's."""
    table = section(both.report.read_text(encoding="utf-8"), "Result").split("\n\n")[0].split("\n")

    assert len(table) == 2 + len(DTYPES)
    for dtype, line in zip(DTYPES, table[2:], strict=True):
        score = score_of(both, dtype)
        ratios = {name: ratio_text(value) for name, value in score["metrics"].items() if name.startswith(RATIOS)}
        assert line == (
            f"| {dtype} | 4 of 4"
            f" | {ratios['regret_default_geomean']} ({ratios['regret_default_max']})"
            f" | {ratios['regret_auto_geomean']} ({ratios['regret_auto_max']})"
            f" | {ratios['auto_over_default_geomean']}"
            f" ({ratios['auto_over_default_min']}, {ratios['auto_over_default_max']})"
            f" | {score['metrics']['reached']} | {score['metrics']['slower_beyond_noise']} | {score['verdict']} |"
        )
    assert table[2].startswith("| bf16 | 4 of 4 | ")
    assert [line.rsplit(" | ", 3)[1] for line in table[2:]] == ["3", "0"]


RATIOS = ("regret_default", "regret_auto", "auto_over_default", "spread", "band", "control")
"""How the metrics begin that are ratios and that the tables show."""


def test_intervals_name_their_dtypes(both: StudyPlace, sources: list[Sources]) -> None:
    """Of each dtype's geomean the interval follows the table; where none could be made it is n/a."""
    told = []
    for dtype in DTYPES:
        low, high = score_of(both, dtype)["intervals"]["auto_over_default_geomean"]
        told.append(f"{dtype} {ratio_text(low)} to {ratio_text(high)}")
    bf16, f16 = sources
    text = both.report.read_text(encoding="utf-8")

    assert f" 95 % intervals of that geomean, classes and then cases drawn again: {', '.join(told)}. " in text
    assert f" cases drawn again: {told[0]}, f16 n/a to n/a. " in together.render([bf16, with_score(f16, intervals={})])


def test_small_gains_are_counted_over_all_dtypes(both: StudyPlace, sources: list[Sources]) -> None:
    """Of the cases that an entry leads, in any dtype, those are counted that gain less than the margin."""
    led = [case for case in score_of(both, "bf16")["cases"] if case["lookup"]]
    small = [case | {"lookup": True, "auto_over_default_ppm": [960_000] * 3} for case in led[:2]]
    bf16, f16 = sources
    told = "Of {} cases that an entry leads {} gain less than the margin.\n"

    assert all(case["auto_over_default_ppm"][0] < 950_000 for case in led)
    assert told.format(3, 0) in together.render(sources)
    assert told.format(5, 2) in together.render([bf16, with_score(f16, cases=small)])
    easy = f16._replace(header=msgspec.structs.replace(f16.header, margin_ppm=40_000))
    assert told.format(5, 0) in together.render([bf16, with_score(easy, cases=small)])  # each by its own margin


def test_the_gate_has_a_column_for_each_dtype(sources: list[Sources]) -> None:
    """A condition stands once, with what was found for each dtype and whether it holds there."""
    bf16, f16 = sources
    slower, geomean, routing = f16.score["gate"]
    gate = [slower | {"value": 3, "holds": False}, geomean | {"value": None, "holds": None}, routing]
    table = section(together.render([bf16, with_score(f16, gate=gate)]), "Result").strip().split("\n\n")[-1]
    found = ratio_text(bf16.score["metrics"]["auto_over_default_geomean"])

    assert table.split("\n") == [
        "| frozen gate | bf16 | f16 |",
        "| --- | --- | --- |",
        "| `slower_beyond_noise == 0` | 0 (holds) | 3 (does not hold) |",
        f"| `auto_over_default_geomean <= 1.02` | {found} (holds) | n/a (cannot be said) |",
        "| `routing_changed == 0` | 0 (holds) | 0 (holds) |",
    ]


def test_the_answer_names_each_dtype(sources: list[Sources]) -> None:
    """The question is followed by an answer for each dtype, or one for all that have the same."""
    question, answers = together.render(sources).split("\n## ")[0].rstrip().split("\n\n")[-2:]
    bf16 = sources[0]
    alike = together.render([bf16, bf16._replace(score={**bf16.score, "dtype": "f16"})]).split("\n## ")[0]
    told = [
        r"- bf16: `open_engine` leads in 1 of 1 classes; 3 of 4 hold-out cases reach an entry; .*"
        r"; the gate says PASS; the hold-out is FRESH\.",
        r"- f16: `open_engine` leads in 0 of 1 classes; nothing is claimed; the gate says PASS; the hold-out is FRESH.",
    ]

    assert question == bf16.study.question
    assert all(map(re.fullmatch, told, answers.split("\n")))
    assert answers.count("\n") == 1
    assert alike.rstrip().rsplit("\n\n", 1)[1].startswith("- bf16, f16: `open_engine` leads in 1 of 1 classes; ")
    assert alike.count(" leads in ") == 1


def test_what_all_dtypes_share_is_said_once(sources: list[Sources]) -> None:
    """An item of all dtypes stands once and without a name; one of some names them."""
    unmeasured, provenance = rendered(sources, "Not measured"), rendered(sources, "Provenance")

    assert unmeasured[0] == "- Other boards than simulated device; other versions than those below."
    assert [line for line in unmeasured if " outside of train's: " in line] == [
        f"- {dtype}: Sizes outside of train's: b 1-1, h_q {heads}, h_kv {heads}, s_q 64-2048, s_kv 64-2048, d_qk 64-64,"
        f" d_v 64-64{window}."
        for dtype, heads, window in (("bf16", "4-4", ""), ("f16", "4-8", ", window 0-768"))
    ]
    assert [line for line in unmeasured if "Regimes" in line] == ["- Regimes other than eager-warm."]
    assert [line.split(":")[0] for line in provenance] == [
        "- Board",
        "- Versions",
        "- Settings",
        "- Measuring code",
        "- Frozen manifest",
    ]
    assert together.render(sources).count("each leg timed once a block") == 1


def test_what_one_dtype_has_of_its_own_names_it(sources: list[Sources]) -> None:
    """Where another board measured one of the dtypes, both boards stand there with their dtypes, the rest once."""
    bf16, f16 = sources
    other = f16._replace(fingerprint=msgspec.structs.replace(f16.fingerprint, board="Another"))
    text = together.render([bf16, other])

    assert [line.split(",")[0] for line in rendered([bf16, other], "Provenance") if "Board" in line] == [
        "- bf16: Board: simulated device",
        "- f16: Board: Another",
    ]
    assert "\n- f16: Other boards than Another; " in text
    assert "\n- bf16: Other boards than simulated device; " in text
    assert text.count("\n- Versions: ") == 1


def test_lines_of_all_dtypes_stand_together(sources: list[Sources]) -> None:
    """The entries are those of the dtypes' lines.txt in the study's order, counted over the classes of all."""
    bf16, f16 = sources
    (entry,) = (line.strip() for line in bf16.fit.text.splitlines()[1:])
    twice = rendered([bf16, f16._replace(fit=bf16.fit)], "Change")
    none = rendered([f16, f16._replace(score={**f16.score, "dtype": "bf16"})], "Change")

    found = rendered(sources, "Change")
    rows = [line for line in found if line.startswith("| ")]

    assert found[0] == "1 of 2 classes get an entry."
    assert found[found.index("```python") : found.index("```")] == ["```python", entry]
    assert rows[0].startswith("| dtype | d_qk | entry or code | ")
    assert [line.split(" | ")[:3] for line in rows[2:]] == [
        ["| bf16", "64", "from s_kv 256"],
        ["| f16", "64", "CONFLICT"],
    ]
    assert [line.split(" | ")[5] for line in rows[2:]] == ["4", "4"]
    assert (twice[0], twice.count(entry)) == ("2 of 2 classes get an entry.", 2)
    assert none[0] == "0 of 2 classes get an entry."
    assert "```python" not in none


def test_other_margins_are_told(sources: list[Sources]) -> None:
    """Where the lines of the dtypes were made with different margins, both stand there, once each."""
    bf16, f16 = sources
    other = f16._replace(header=msgspec.structs.replace(f16.header, margin_ppm=100_000))

    last, alike = rendered([bf16, other], "Change")[-1], rendered(sources, "Change")[-1]

    assert re.findall(r"Made with [^.]*\.\d+[^.]*(?:\.\d+[^.]*)?\.", last) == [
        "Made with margin 0.050, scope class.",
        "Made with margin 0.100, scope class; **declared were 0.050, class**.",
    ]
    assert alike.count("Made with ") == 1


def test_notable_cases_are_those_of_all_dtypes(both: StudyPlace, sources: list[Sources]) -> None:
    """The slowest case, the one that saves most and the one of the largest regret are sought over all dtypes."""
    cases = [case for dtype in DTYPES for case in score_of(both, dtype)["cases"]]
    slowest = max(cases, key=lambda case: case["auto_over_default_ppm"][0])
    regret = max(cases, key=lambda case: case["regret_ppm"]["auto"])
    saved = max(cases, key=lambda case: case["leg_ns"]["default"] - case["leg_ns"]["auto"])
    told = [
        f"- Highest applied / default: {ratio_text(slowest['auto_over_default_ppm'][0])}, {slowest['label']}: ",
        f"- Largest time saved: {saved['label']}: ",
        f"- Largest regret with the entries: {ratio_text(regret['regret_ppm']['auto'])}, {regret['label']}: ",
    ]
    found = rendered(sources, "Notable cases")[:3]

    assert [line[: len(start)] for line, start in zip(found, told, strict=True)] == told
    assert {case["label"].split()[1] for case in (saved, regret)} == {"bf16", "f16"}
    assert rendered([with_score(own, cases=[]) for own in sources], "Notable cases") == ["No case was timed."]


def test_noise_is_a_line_for_each_dtype(both: StudyPlace, sources: list[Sources]) -> None:
    """Spreads, control and both bands are those of the dtype's score and summary; failing cases are named."""
    bf16, f16 = sources
    broken = [f16.score["cases"][0] | {"code": "NOISY"}, *f16.score["cases"][1:]]
    found = rendered([bf16, with_score(f16, cases=broken)], "Noise and control")
    expected = []
    for own, fails in zip(sources, ("none", f"{broken[0]['label']} NOISY"), strict=True):
        metrics = score_of(both, own.score["dtype"])["metrics"]
        ratios = {name: ratio_text(value) for name, value in metrics.items() if name.startswith(RATIOS)}
        band, control = ratio_text(own.summary.band_ppm), f"{ratios['control_min']} to {ratios['control_max']}"
        spreads = [ratios[f"spread_{what}"] for what in ("median", "p90", "max")]
        expected.append(f"| {' | '.join([own.score['dtype'], *spreads, control, ratios['band'], band, fails])} |")

    assert found[2:] == expected


ROUTED = {
    "as it is": (lambda _score: {}, "| f16 | 0 of 0 | 4 of 4 | 1 of 1 | 0 |"),
    "a plan moved": (
        lambda score: {"routing": [score["routing"][0] | {"auto": "20001"}]},
        "| f16 | 0 of 0 | 4 of 4 | 0 of 1 | 0 |",
    ),
    "a case that did not run": (
        lambda score: {"routing": [score["routing"][0] | {"status": "crashed"}]},
        "| f16 | 0 of 0 | 4 of 4 | 0 of 1 | 0 |",
    ),
    "no routing": (lambda _score: {"routing": []}, "| f16 | 0 of 0 | 4 of 4 | 0 of 0 | 0 |"),
    "one of two that lead did not run the row": (
        lambda score: {
            "cases": [
                score["cases"][0] | {"lookup": True},
                score["cases"][1] | {"lookup": True, "plans": score["cases"][1]["plans"] | {"auto": "20001"}},
                *score["cases"][2:],
            ]
        },
        "| f16 | 1 of 2 | 2 of 2 | 1 of 1 | 0 |",
    ),
    "one without an entry ran another plan": (
        lambda score: {
            "cases": [
                score["cases"][0] | {"plans": score["cases"][0]["plans"] | {"auto": "20001"}},
                *score["cases"][1:],
            ]
        },
        "| f16 | 0 of 0 | 3 of 4 | 1 of 1 | 0 |",
    ),
}
"""What is another in the score of f16, and the line of f16 in the table of routing."""


@pytest.mark.parametrize(("change", "line"), ROUTED.values(), ids=ROUTED)
def test_routing_is_counted_for_each_dtype(
    sources: list[Sources], change: Callable[[Mapping[str, Any]], dict[str, Any]], line: str
) -> None:
    """Of each dtype it is told how many cases ran what they should, and how many routing cases an entry could lead."""
    bf16, f16 = sources
    assert {case["plans"]["auto"] for case in f16.score["cases"]} == {"5[k1=0]"}

    assert rendered([bf16, with_score(f16, **change(f16.score))], "Routing")[2:] == [
        "| bf16 | 3 of 3 | 1 of 1 | 1 of 1 | 1 |",
        line,
    ]


def test_how_the_hold_out_was_run_names_the_dtypes(sources: list[Sources]) -> None:
    """Dtypes that ran alike share an item; an unscored attempt or a spent hold-out is told of the dtype that has it."""
    bf16, f16 = sources
    unscored = {"split": "holdout", "attempt": 1, "lines": 5, "planned": 12, "verdict": "", "reason": ""}
    again = with_score(f16, unscored=[unscored], reasons={"holdout attempt 2": "it rained"})
    spent = bf16._replace(freshness=ledger.Freshness("SPENT", "it was seen", 2))

    alike = "- bf16, f16: 4 ok; the hold-out is FRESH; per-case looks at it: 1."
    seen = "the hold-out is SPENT, so this is not out-of-sample (it was seen); per-case looks at it: 2."

    assert rendered(sources, HOW)[0] == alike
    assert [line for line in rendered([bf16, again], HOW) if "Measured on" not in line] == [
        alike,
        "- f16: Unscored: holdout attempt 1 with 5 of 12 lines.",
        "- f16: holdout attempt 2 was made because: it rained.",
    ]
    assert f"- bf16: 4 ok; {seen}" in rendered([spent, f16], HOW)
    assert "- f16: 4 ok; the hold-out is FRESH; per-case looks at it: 1." in rendered([spent, f16], HOW)


HOW = "How the hold-out was run"


def test_tables_are_tables(sources: list[Sources]) -> None:
    """Every row of a table has as many cells as its head."""
    tables = [part.split("\n") for part in re.split(r"\n\n+", together.render(sources)) if part.startswith("|")]

    assert len(tables) == 5
    assert all(len({row.count("|") for row in rows}) == 1 for rows in tables)


# When it is written


def test_a_study_of_one_dtype_has_no_report_over_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written beside the report of the only dtype, nothing more is printed, and a replay seeks nothing."""
    benches.inline(monkeypatch)
    monkeypatch.setattr(reporting, "DRAWING", ("no_such_library",))
    place = finished.declare(tmp_path, STUDY_YAML, "tiny")
    pipeline.run(opening.open_study(place), place, ("bf16",), finished.hooks())

    assert reporting.report_together(jobs_of(place)) == []
    assert call("report", place.folder, "--dtype", "all").out == f"{place.results('bf16').report}\n"
    assert not place.report.exists()
    assert together_of(place) is None


def test_less_than_all_dtypes_write_no_report_over_all(own: StudyPlace) -> None:
    """With the job of one of two dtypes nothing is written, and what was there stays."""
    place, jobs = own, jobs_of(own)
    place.report.write_text("kept", encoding="utf-8")

    assert reporting.report_together(jobs[:1]) == reporting.report_together(jobs[1:]) == []
    assert place.report.read_text(encoding="utf-8") == "kept"


def test_without_the_extra_the_text_alone_is_written(own: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing can draw, report.md over all dtypes is written, and no page."""
    before = own.report.read_bytes()
    for path in (own.report, own.page):
        path.unlink(missing_ok=True)
    monkeypatch.setattr(reporting, "DRAWING", ("no_such_library",))

    assert reporting.report_together(jobs_of(own)) == [own.report]
    assert own.report.read_bytes() == before
    assert not own.page.exists()


def test_report_of_all_dtypes_names_its_files_last(own: StudyPlace) -> None:
    """`report --dtype all` writes and prints the files of each dtype, then those over all; `--dtype bf16` its own."""
    pytest.importorskip("matplotlib")
    before = own.report.read_bytes(), own.page.read_bytes()
    for path in (own.report, own.page):
        path.unlink()
    one = call("report", own.folder, "--dtype", "bf16")
    alone = own.report.exists() or own.page.exists()
    every = call("report", own.folder, "--dtype", "all")
    of_each = [str(path) for d in DTYPES for path in (own.results(d).report, own.results(d).page)]

    assert (one.code, one.out.split("\n")) == (0, [*of_each[:2], ""])
    assert not alone
    assert (every.code, every.out.split("\n")) == (0, [*of_each, str(own.report), str(own.page), ""])
    assert (own.report.read_bytes(), own.page.read_bytes()) == before


def test_a_comparison_of_runs_writes_no_report_over_all(own: StudyPlace, tmp_path: Path) -> None:
    """`report --dtype all --against OTHER` compares dtype by dtype, and leaves the report over all as it is."""
    other = finished.copy(own, tmp_path / "other")
    own.report.unlink()
    said = call("report", own.folder, "--dtype", "all", "--against", other.folder)

    assert said.code == 0
    assert {Path(path).name.split(".")[0] for path in said.out.split()} == {"against"}
    assert not own.report.exists()


# What a replay says of it


def together_of(place: StudyPlace, only: tuple[str, ...] = ()) -> replay.Check | None:
    """Return what a replay says of the report over all dtypes; None where it says nothing."""
    found = [check for check in replay.replay(opening.open_study(place), place, only) if check.name == CHECK]
    assert [check.dtype for check in found] == [""] * len(found)
    return found[0] if found else None


CHECK = "report of all dtypes"
SHOWN = "studies/whole/report.md"


def test_replay_writes_the_report_over_all_again(own: StudyPlace) -> None:
    """It is the last of the checks, ok with the file, and does not apply without it or to a replay of one dtype."""
    last = replay.replay(opening.open_study(own), own)[-1]
    of_one = together_of(own, ("bf16",))
    own.report.unlink()
    without = together_of(own)

    assert last == replay.Check("", CHECK, replay.OK, "written again, byte for byte")
    assert of_one is None
    assert without == replay.Check("", CHECK, replay.NOT_APPLICABLE, f"{SHOWN}: was not written")


def _edited(old: str, new: str) -> Callable[[list[str]], int]:
    """Return what replaces a text in the line that has it first, and returns that line's number."""

    def edit(lines: list[str]) -> int:
        number = next(number for number, line in enumerate(lines) if old in line)
        lines[number] = lines[number].replace(old, new, 1)
        return number + 1

    return edit


def _added(line: str) -> Callable[[list[str]], int]:
    def edit(lines: list[str]) -> int:
        lines.insert(6, line)
        return 7

    return edit


def _doubled(lines: list[str]) -> int:
    lines.insert(4, lines[4])
    return 6


def _taken_out(lines: list[str]) -> int:
    del lines[5]
    return 6


def _turned_round(lines: list[str]) -> int:
    lines[4:6] = reversed(lines[4:6])
    return 5


STRANGE, OTHER = "no number stands behind 1 lines", "differs from what the records give"
EDITS = {
    "a sentence more": (_added("It is as fast everywhere.\n"), STRANGE),
    "a result line more": (
        _added("| f32 | 4 of 4 | 1.000 (1.000) | 1.000 (1.000) | 0.5 (0.5, 0.5) | 4 | 0 | PASS |\n"),
        STRANGE,
    ),
    "a number": (_edited("| f16 | 4 of 4 | 1.", "| f16 | 4 of 4 | 0."), STRANGE),
    "a verdict": (_edited("(holds) | 0 (holds)", "(holds) | 0 (does not hold)"), STRANGE),
    "whose an item is": (_edited("- bf16: Sizes", "- f16: Sizes"), STRANGE),
    "an entry": (_edited('("from", "s_kv", 256', '("from", "s_kv", 128'), STRANGE),
    "a line twice": (_doubled, OTHER),
    "a line less": (_taken_out, OTHER),
    "two lines in another order": (_turned_round, OTHER),
}
"""How the report is changed, and what is said of the line."""


@pytest.mark.parametrize(("edit", "said"), EDITS.values(), ids=EDITS)
def test_a_changed_report_over_all_is_told(own: StudyPlace, edit: Callable[[list[str]], int], said: str) -> None:
    """The file and the line are named, of a line that is not from the records or is not where it should be."""
    text = own.report.read_text(encoding="utf-8").splitlines(keepends=True)
    number = edit(text)
    own.report.write_text("".join(text), encoding="utf-8")
    found = replay.replay(opening.open_study(own), own)

    assert [check for check in found if check.state == replay.FAIL] == [
        replay.Check("", CHECK, replay.FAIL, f"{SHOWN}:{number}: {said}")
    ]
    assert replay.conclusion(found)[1] == 1


def test_the_report_of_an_earlier_attempt_is_told(own: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a further attempt that one dtype alone reports, the report over all is of the one before."""
    benches.inline(monkeypatch)
    job, now = forger.job_of(own), finished.hooks().now
    pipeline.time(job, finished.hooks(), "the fan was mended")
    pipeline.score(job, now)
    reporting.report(job)
    before = {check.name for check in replay.replay(opening.open_study(own), own) if check.state == replay.FAIL}
    reporting.report_together(jobs_of(own))
    after = {check.name for check in replay.replay(opening.open_study(own), own) if check.state == replay.FAIL}

    assert (before, after) == ({CHECK}, set())
    assert "- bf16: holdout attempt 2 was made because: the fan was mended.\n" in own.report.read_text(encoding="utf-8")


def _no_results(place: StudyPlace) -> None:
    shutil.rmtree(place.results("f16").folder)


def _no_ledger(place: StudyPlace) -> None:
    place.results("f16").ledger.write_bytes(b"nothing\n")


def _no_holdout(place: StudyPlace) -> None:
    forger.records(place, "holdout-01-001", "f16").unlink()


UNSAID = {
    "no results": (_no_results, f"{SHOWN}: not before each dtype has its results"),
    "no ledger": (_no_ledger, f"{SHOWN}: not before each dtype has its results"),
    "no hold-out": (_no_holdout, "holdout: nothing is measured yet; run `studytool time --split holdout`"),
}
"""What one of the dtypes lacks, and what is said of the report over all."""


@pytest.mark.parametrize(("lose", "said"), UNSAID.values(), ids=UNSAID)
def test_a_dtype_without_results_leaves_the_report_open(
    own: StudyPlace, lose: Callable[[StudyPlace], None], said: str
) -> None:
    """While a dtype lacks what the report is written from, replay cannot say; without the file it does not apply."""
    lose(own)
    found = together_of(own)
    own.report.unlink()

    assert found == replay.Check("", CHECK, replay.UNSAID, said)
    assert together_of(own) == replay.Check("", CHECK, replay.NOT_APPLICABLE, f"{SHOWN}: was not written")


def test_the_report_over_all_is_packed(own: StudyPlace) -> None:
    """The archive has report.md over all dtypes as it is, not its page, and a replay of the archive writes it again."""
    path = own.root / "study.tar.gz"
    assert call("bundle", own.folder, "-o", path, "--keep-host").code == 0
    members = archives.members(path.read_bytes())
    said = call("replay", path)
    changed = own.report.read_bytes() + b"More.\n"
    own.report.write_bytes(changed)
    assert call("bundle", own.folder, "-o", path, "--keep-host").code == 0
    last = changed.count(b"\n")

    assert members[SHOWN] == changed.removesuffix(b"More.\n")
    assert "studies/whole/report.html" not in members
    assert f"ok               {CHECK}: written again, byte for byte\n" in said.out
    assert f"FAIL             {CHECK}: {SHOWN}:{last}: {STRANGE}\n" in call("replay", path).out


def test_a_study_without_it_is_packed_without_it(own: StudyPlace) -> None:
    """Where the report over all was not written, the archive has none, and its replay says so."""
    path = own.root / "study.tar.gz"
    own.report.unlink()
    assert call("bundle", own.folder, "-o", path, "--keep-host").code == 0
    said = call("replay", path)

    assert SHOWN not in archives.members(path.read_bytes())
    assert said.code == 0
    assert f"n/a              {CHECK}: {SHOWN}: was not written\n" in said.out


def test_what_fails_by_itself_fails_once(own: StudyPlace) -> None:
    """Where the records of a dtype fail a check, the report over all waits for that to be mended, as others do."""
    path = forger.records(own, "train-01-001", "f16")
    path.write_bytes(path.read_bytes().replace(b'"ns":[', b'"ns":[1', 1))
    found = replay.replay(opening.open_study(own), own)

    assert [(check.dtype, check.name) for check in found if check.state == replay.FAIL] == [("f16", "records sealed")]
    assert found[-1] == replay.Check("", CHECK, replay.UNSAID, "not before what fails above is mended")


# Its page


@pytest.fixture(scope="module")
def page() -> Any:
    """Return what writes pages."""
    pytest.importorskip("matplotlib")
    return pytest.importorskip("studytool.report.html")


def measured_of(place: StudyPlace, page: Any) -> list[Any]:
    """Return what was measured on each dtype's hold-out."""
    return [page.Measured(*results._measured(job)) for job in jobs_of(place)]


PLOTS = ("Regret, ordered", "Applied over default", "Noise", "drift of the ratio within a record, %", "clock, MHz")
"""The plots of each dtype, but for those of its classes."""


def titles(text: str) -> list[str]:
    """Return the titles of a page's plots."""
    return re.findall(r"<figcaption><b>(.*?)</b>", text)


def test_the_page_has_the_plots_of_each_dtype(both: StudyPlace, sources: list[Sources], page: Any) -> None:
    """Plots name their dtype, those of classes by the class; the page of one dtype has no need to."""
    text = both.page.read_text(encoding="utf-8")
    alone = page.render(sources[0], measured_of(both, page)[0])

    assert titles(text) == [
        *(f"{dtype}: {name}" for dtype in DTYPES for name in PLOTS[:2]),
        "bf16 64",
        "f16 64",
        *(f"{dtype}: {name}" for dtype in DTYPES for name in PLOTS[2:3]),
        *(f"{dtype}: {name}" for dtype in DTYPES for name in PLOTS[3:]),
    ]
    assert titles(alone) == [*PLOTS[:2], "bf16 64", *PLOTS[2:]]
    assert page.render_together(sources, measured_of(both, page)) == text


def test_the_page_has_the_sections_of_the_report(both: StudyPlace, sources: list[Sources], page: Any) -> None:
    """The title, and each section of report.md with its text; behind them coverage and all cases."""
    heads = re.findall(r"^## (.*)$", together.render(sources), re.MULTILINE)
    text = page.render_together(sources, measured_of(both, page))

    assert re.findall(r"<h2 id=\"[^\"]*\">(.*?)</h2>", text) == [*heads, "Coverage", "All cases"]
    assert "<title>whole</title>" in text
    assert " leads in 0 of 1 classes; nothing is claimed;" in text
    assert "<td>n/a (cannot be said)</td>" not in text
    assert "<th>frozen gate</th>\n<th>bf16</th>\n<th>f16</th>" in text


def test_the_page_has_one_table_of_all_cases(both: StudyPlace) -> None:
    """The cases of both dtypes are rows of one table, the slowest with the entries first, and are counted together."""
    text = both.page.read_text(encoding="utf-8")
    table = text[text.index('<table id="cases">') :]
    cases = [case for dtype in DTYPES for case in score_of(both, dtype)["cases"]]
    labels = [case["label"] for case in sorted(cases, key=lambda case: -case["auto_over_default_ppm"][0])]

    assert len(labels) == 8
    assert re.findall(r'<tr><td class="text" data-by="([^"]*)">', table) == labels
    assert text.count('<table id="cases">') == 1
    assert "8 of 8 cases</span>" in text


NONE = "\N{EN DASH}"
"""What stands in the table of coverage where no case has a value."""


def test_coverage_is_over_both_dtypes(both: StudyPlace) -> None:
    """A class of each dtype is a column; what varied in one dtype alone is a row, and is not said to be constant."""
    text = both.page.read_text(encoding="utf-8")
    part = text[text.index('<h2 id="coverage">') : text.index('<h2 id="all-cases">')]
    rows = {(f, v): counts for f, v, counts in re.findall(r'<th scope="row">(.*?)</th><td>(.*?)</td>(.*?)</tr>', part)}
    constant = part[part.index("Never varied") : part.index("</p>")]

    assert '<th scope="col">bf16 64</th><th scope="col">f16 64</th></tr>' in part
    assert rows["mask", "none"] == "<td>6 + 4</td><td>6 + 4</td>"
    assert rows["mask", "tl+window"] == f"<td>{NONE}</td><td>5 + 0</td>"
    assert rows["h_q", "2"] == "<td>0 + 4</td><td>0 + 4</td>"
    assert rows["h_q", "8"] == f"<td>{NONE}</td><td>5 + 0</td>"
    assert "d_qk 64" in constant
    assert not re.search(r"\b(?:mask|dtype|h_q) ", constant)


def test_a_dtype_without_timed_cases_has_no_plots(both: StudyPlace, sources: list[Sources], page: Any) -> None:
    """Where no case of a dtype was timed, the plots and cases of the others are there all the same."""
    bf16, f16 = sources
    text = page.render_together([bf16, with_score(f16, cases=[])], measured_of(both, page))

    assert titles(text) == [
        f"bf16: {PLOTS[0]}",
        f"bf16: {PLOTS[1]}",
        "bf16 64",
        *(f"bf16: {name}" for name in PLOTS[2:]),
    ]
    assert "4 of 4 cases</span>" in text
