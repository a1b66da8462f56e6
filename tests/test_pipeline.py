"""The steps in order: what each leaves behind, what it goes on with, and what it does not do twice."""

import subprocess
from pathlib import Path

import benches
import finished
import pytest
import scripted
from commands import tiny, tree
from factories import STUDY_YAML
from scripted import HOLDOUT, Timed

import studytool
from studytool import demo, editing, ledger, opening, pipeline, replay
from studytool.errors import CannotSayError, StudyError, StudyFileError, TableError
from studytool.layout import StudyPlace
from studytool.model import Split


def events(place: StudyPlace) -> list[str]:
    """Return the kinds of events in the ledger of bf16, in order."""
    return [event.event for event in ledger.read(place.results("bf16").ledger)]


def test_run_does_the_steps_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger tells the order: frozen, the train split, the lines, hold-out and routing, and one look."""
    benches.inline(monkeypatch)
    place = tiny(tmp_path)
    said: list[str] = []
    hooks = finished.hooks()._replace(say=said.append)
    scores = pipeline.run(opening.open_study(place), place, ("bf16",), hooks)

    assert events(place) == ["frozen", "session", "apply", "session", "session", "score"]
    assert [event.body.get("file") for event in ledger.read(place.results("bf16").ledger)] == [
        None,
        "train-01-001.jsonl",
        None,
        "holdout-01-001.jsonl",
        "routing-01-001.jsonl",
        None,
    ]
    assert [score["verdict"] for score in scores] == ["PASS"]
    assert len(said) == 5


@pytest.mark.parametrize("after", [1, 18, 19, 25])
def test_a_run_that_was_stopped_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Stopped after any line, the next run measures what is missing, once, and ends with a score."""
    benches.inline(monkeypatch)
    place = tiny(tmp_path)
    study = opening.open_study(place)
    done: list[int] = []

    def stop(_name: str, _step: object) -> None:
        done.append(1)
        if len(done) == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pipeline.run(study, place, ("bf16",), finished.hooks()._replace(progress=stop))
    pipeline.run(study, place, ("bf16",), finished.hooks()._replace(progress=lambda _n, _s: done.append(1)))

    assert len(done) == 18 + 6 + 1
    assert replay.conclusion(replay.replay(study, place))[1] == 0


def test_progress_names_the_step_and_the_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line that was measured is reported with its step, its number, the total and the case."""
    benches.inline(monkeypatch)
    place = tiny(tmp_path)
    study = opening.open_study(place)
    pipeline.freeze_study(study, place, [])
    seen: list[tuple[str, int, int, str]] = []
    hooks = finished.hooks()._replace(progress=lambda name, step: seen.append((name, *step[:3])))
    said = pipeline.time(opening.job_of(study, place, "bf16", Split.TRAIN), hooks)

    assert said == "bf16 train: attempt 1, 18 of 18 lines"
    assert [(name, done, total) for name, done, total, _ in seen] == [("bf16 train", n, 18) for n in range(1, 19)]
    assert len({label for *_, label in seen}) == 6


def test_a_split_without_cases_is_done(tmp_path: Path) -> None:
    """A study without routing cases has nothing to time there."""
    text = STUDY_YAML.replace("  routing:\n    cases:\n      - {s_kv: 128, h_q: 4, d_qk: 64, layout: strided}\n", "")
    place = finished.declare(tmp_path, text, "tiny")
    study = opening.open_study(place)
    pipeline.freeze_study(study, place, [])

    job = opening.job_of(study, place, "bf16", Split.ROUTING)

    assert pipeline.time(job, finished.hooks()) == "bf16 routing: no cases"
    assert not place.results("bf16").folder.exists()


def test_a_score_is_a_look_that_the_ledger_notes(tmp_path: Path) -> None:
    """Each score of other records is a look of its own; an incomplete hold-out is none, and seals nothing."""
    place = scripted.prepare(tmp_path)
    before = tree(tmp_path)
    with pytest.raises(CannotSayError):
        scripted.score_of(place)
    untouched = tree(tmp_path) == before
    scripted.write(place, Split.ROUTING, lambda _case: Timed())
    for attempt in (1, 2):
        scripted.write(place, Split.HOLDOUT, scripted.by_length(HOLDOUT), attempt=attempt)
        scripted.score_of(place)

    assert untouched
    assert events(place)[-5:] == ["session", "session", "score", "session", "score"]


def test_bad_records_are_never_sealed(whole: StudyPlace) -> None:
    """A file that does not belong is refused before the ledger, which only grows, is told of it."""
    records = whole.results("bf16").records
    (records / "routing-01-002.jsonl").write_bytes((whole.results("f16").records / "routing-01-001.jsonl").read_bytes())
    study = opening.open_study(whole)
    before = tree(whole.root)
    with pytest.raises(StudyError, match=r"routing-01-002\.jsonl:1: "):
        pipeline.time(opening.job_of(study, whole, "bf16", Split.TRAIN), finished.hooks())
    with pytest.raises(StudyError, match=r"routing-01-002\.jsonl:1: "):
        pipeline.score(opening.job_of(study, whole, "bf16", Split.HOLDOUT), finished.hooks().now)

    assert tree(whole.root) == before


def test_another_table_tells_no_ledger(whole: StudyPlace) -> None:
    """Lines that go into a table which is no study's change that table alone."""
    before = tree(whole.root)
    editing.apply_lines(whole.results("bf16").lines, whole.root / "table.py", finished.hooks().now)

    assert tree(whole.root).items() - before.items() == {("table.py", tree(whole.root)["table.py"])}


def test_another_study_s_lines_are_refused(whole: StudyPlace, tmp_path: Path) -> None:
    """The table of a study takes that study's lines alone."""
    path = tmp_path / "lines.txt"
    path.write_text(whole.results("bf16").lines.read_text().replace('"study":"whole"', '"study":"half"'))

    with pytest.raises(TableError, match=r"lines\.txt:1: found lines of study half, bf16; expected study whole, bf16 "):
        editing.apply_lines(path, whole.table, finished.hooks().now)


def test_the_commit_is_the_checkout_s(tmp_path: Path) -> None:
    """The manifest bears the commit of the tree that the study is in, and nothing outside of one."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=n", "-c", "user.email=e@x.org"]
    outside = pipeline.git_commit(tmp_path)
    subprocess.run([*git, "init", "-q"], check=True)
    unborn = pipeline.git_commit(tmp_path)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()

    assert (outside, unborn) == ("", "")
    assert pipeline.git_commit(tmp_path) == head
    assert len(head) == 40


def test_no_git_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without git on the machine, freezing goes on without a commit."""
    monkeypatch.setenv("PATH", "")

    assert pipeline.git_commit(tmp_path) == ""


def test_the_bundled_studies_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo's studies come from the checkout, or from within the installed package, which is asked first."""
    package = tmp_path / "site" / "studytool"
    inside = package / "studies" / "cpu_smoke" / "study.yaml"
    checkout = demo.bundled_study("cpu_smoke")
    inside.parent.mkdir(parents=True)
    inside.touch()
    monkeypatch.setattr(studytool, "__file__", str(package / "__init__.py"))

    assert checkout.is_file()
    assert demo.bundled_study("cpu_smoke") == inside
    with pytest.raises(StudyFileError, match=r"^study cpu_sdpa does not come with this installation$"):
        demo.bundled_study("cpu_sdpa")


def test_a_demo_of_a_simulated_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A demo goes from an empty folder to result, lines, reasons and look-ups; again, it changes nothing."""
    benches.inline(monkeypatch)
    source = tmp_path / "source" / "study.yaml"
    source.parent.mkdir()
    source.write_text(finished.WHOLE_YAML)
    monkeypatch.setattr(demo, "bundled_study", lambda _name: source)
    text, sentence, code = demo.demo(tmp_path / "demo", "whole", finished.hooks())
    before = tree(tmp_path)
    blocks = dict(zip(text.split("\n\n")[0:-1:2], text.split("\n\n")[1::2], strict=True))

    assert (sentence.partition(":")[0], code) == ("holds", 0)
    assert blocks["Lines in the table:"].startswith('    ("open_engine", "sim-1", "bf16", 64): ("from", "s_kv", 256, ')
    assert blocks["Classes without an entry:"].startswith("    f16 64: CONFLICT, ")
    assert len(blocks["Look-ups:"].splitlines()) == 3
    assert demo.demo(tmp_path / "demo", "whole", finished.hooks())[0] == text
    assert tree(tmp_path) == before
