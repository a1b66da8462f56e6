"""Whatever lets a hold-out be known before it judges is told by the replay, and by the report where that can know it.

A report is written from one study alone: of other studies the replay tells.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import benches
import finished
import forger
import msgspec
import pytest
import scripted
from bad_records import values_of
from scripted import FROST, Timed

from studytool import editing, freeze, opening, pipeline, replay, reporting, results
from studytool.digest import pretty, sha256
from studytool.errors import StudyError
from studytool.grid import expand
from studytool.layout import StudyPlace
from studytool.model import Split, Status

LEADS = Timed(frost=50_000, auto=50_000, auto_plan=FROST, lookup=True)
PASSES = scripted.by_length({80: Timed(), 320: LEADS, 640: LEADS, 1280: LEADS})
SLOWER = Timed(frost=110_000, auto=110_000, auto_plan=FROST, lookup=True)
FAILS = scripted.by_length({80: Timed(), 320: LEADS, 640: SLOWER, 1280: LEADS})
UNKNOWN = scripted.by_length({80: Timed(), 320: LEADS, 640: LEADS, 1280: Timed(ended={2: Status.CRASHED})})
"""Hold-outs of the scripted study of which the gate says PASS, FAIL and CANNOT SAY."""

BUSY = "the board was busy"
"""Why any but the first attempt of the scripted study was made."""


def checks_of(place: StudyPlace) -> dict[str, replay.Check]:
    """Return what a replay says, by the name of the check."""
    return {check.name: check for check in replay.replay(opening.open_study(place), place, ("bf16",))}


def failing(place: StudyPlace) -> dict[str, str]:
    """Return the figures of the checks that fail by name."""
    return {name: check.figure for name, check in checks_of(place).items() if check.state == replay.FAIL}


def attempted(place: StudyPlace, *hold_outs: scripted.Script) -> str:
    """Let the hold-out be timed once for each script, then routing, score it, and return the report."""
    for number, script in enumerate(hold_outs, 1):
        scripted.write(place, Split.HOLDOUT, script, attempt=number)
    scripted.write(place, Split.ROUTING, lambda _case: Timed())
    return reported(place)


def reported(place: StudyPlace) -> str:
    """Score a study, report it, and return the report."""
    pipeline.score(forger.job_of(place), finished.hooks().now)
    return reporting.report(forger.job_of(place))


def apply_other(place: StudyPlace, margin_ppm: int = 50_000, scope: str = "box") -> None:
    """Put lines into the table that were made with another margin or scope than was declared."""
    train = results.train(forger.job_of(place, Split.TRAIN))
    path = place.root / "other.txt"
    path.write_text(results.lines_of(train, margin_ppm, scope).text)
    editing.apply_lines(path, place.table, finished.hooks().now)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return the scripted study with its lines applied and its hold-out still to be timed."""
    return scripted.prepare(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def place(trained: StudyPlace, tmp_path: Path) -> StudyPlace:
    """Return a copy of that study."""
    return finished.copy(trained, tmp_path / "root")


def test_a_clean_hold_out_is_clean(place: StudyPlace) -> None:
    """Timed once after the lines were applied, and scored: nothing fails, and the report says FRESH."""
    text = attempted(place, PASSES)

    assert failing(place) == {}
    assert checks_of(place)["hold-out attempts"].figure == "the first attempt is the only one"
    assert "the gate says PASS; the hold-out is FRESH.**" in text


# A fit after a look


LOOK = "changed the entries after a look at the hold-out"
TIMED = "changed the entries after the hold-out was timed"


def test_a_fit_after_a_look_is_told(place: StudyPlace) -> None:
    """Other entries after a score make the hold-out SPENT, by the line of the ledger; so do the old ones again."""
    attempted(place, PASSES)
    apply_other(place)
    editing.apply_lines(_declared_lines(place), place.table, finished.hooks().now)
    told = f"SPENT, not out-of-sample: line 7 of the ledger {LOOK}"
    before = failing(place)
    text = reported(place)

    assert before["fresh hold-out"] == failing(place)["fresh hold-out"] == told
    assert text.count(f"SPENT, so this is not out-of-sample (line 7 of the ledger {LOOK})") == 2


def _declared_lines(place: StudyPlace) -> Path:
    job = forger.job_of(place, Split.TRAIN)
    pipeline.generate(job)
    return job.results.lines


def test_a_fit_after_a_look_is_told_when_the_hold_out_was_timed_again(place: StudyPlace) -> None:
    """A hold-out that was timed again with the entries that a look led to is not fresh."""
    attempted(place, PASSES)
    apply_other(place)
    scripted.write(place, Split.HOLDOUT, PASSES, attempt=2)
    text = reported(place)

    assert failing(place)["fresh hold-out"].endswith(f"line 7 of the ledger {LOOK}")
    assert "hold-out attempts" not in failing(place)
    assert "attempt 1: whole, other entries; attempt 2 was made because" in checks_of(place)["hold-out attempts"].figure
    assert f"the hold-out is SPENT, so this is not out-of-sample (line 7 of the ledger {LOOK}).**" in text


@pytest.mark.parametrize("stop_after", [0, 5])
def test_a_fit_after_the_hold_out_was_timed_is_told(place: StudyPlace, stop_after: int) -> None:
    """Samples can be read without a score: entries that change after any line was timed make the hold-out SPENT."""
    scripted.write(place, Split.HOLDOUT, FAILS, stop_after=stop_after)
    apply_other(place)
    scripted.write(place, Split.HOLDOUT, PASSES, attempt=2)
    scripted.write(place, Split.ROUTING, lambda _case: Timed())
    text = reported(place)

    assert failing(place)["fresh hold-out"] == f"SPENT, not out-of-sample: line 5 of the ledger {TIMED}"
    assert f"the hold-out is SPENT, so this is not out-of-sample (line 5 of the ledger {TIMED}).**" in text


SMALL_YAML = """\
schema: 1
name: small
question: Was the hold-out known?
engine: simulated
row: open_engine
base: library
device: {cc: host, board: any}
op: sdpa_fwd
dtypes: [bf16, f16]
class_key: [dtype]
splits:
  train:
    grids:
      - {s_kv: [64, 128, 256, 512], h_q: 4, d_qk: 64}
  holdout:
    cases:
      - {s_kv: [80, 320], h_q: 2, d_qk: 64}
  routing:
    cases:
      - {s_kv: 128, h_q: 4, d_qk: 64, bias: learned}
protocol: {repeats: 3, blocks: 4}
decide: {margin: 0.05, min_support: 2, scope: class, thresholds: [from s_kv]}
gate: [slower_beyond_noise == 0]
simulated: {backend_ns: s_kv * 1000, frost_ns: s_kv * 500 + 32000, noise_ppm: 300}
"""
"""Two dtypes; frost leads from 128 on. The hold-out's cases are those of two heads with 80 and 320."""


def hooks_at(when: str) -> pipeline.Hooks:
    """Return hooks whose clock stands still at a time."""
    return finished.hooks()._replace(now=lambda: when)


@contextlib.contextmanager
def in_process() -> Iterator[None]:
    """Let the tool measure in this process."""
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        yield


def run_it(root: Path, name: str, when: str, *edits: tuple[str, str], dtype: str = "bf16") -> StudyPlace:
    """Return a study with parts of its text replaced that went the whole path for one dtype at a time."""
    place = declare(root, name, *edits)
    with in_process():
        pipeline.run(opening.open_study(place), place, (dtype,), hooks_at(when))
    return place


def declare(root: Path, name: str, *edits: tuple[str, str]) -> StudyPlace:
    """Return a study with parts of its text replaced."""
    text = SMALL_YAML.replace("name: small", f"name: {name}")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return finished.declare(root, text, name)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished study with samples of a device."""
    return run_it(tmp_path_factory.mktemp("small"), "small", "2026-02-01T00:00:00+00:00")


def test_a_fit_after_a_hold_out_that_was_killed_is_told(tmp_path: Path) -> None:
    """A hold-out that was killed has lines that no ledger tells of yet; entries that change then make it SPENT."""
    place = declare(tmp_path, "small")
    study = opening.open_study(place)
    pipeline.freeze_study(study, place, [])
    job, hooks = forger.job_of(place, Split.TRAIN), finished.hooks()
    with in_process():
        pipeline.time(job, hooks)
        pipeline.generate(job)
        editing.apply_lines(job.results.lines, place.table, hooks.now)
        benches.stopped(job._replace(split=Split.HOLDOUT), 4)
        apply_other(place)
        pipeline.time(job._replace(split=Split.HOLDOUT), hooks, "it was killed")
        pipeline.time(job._replace(split=Split.ROUTING), hooks)
    text = reported(place)

    assert "SPENT" in failing(place).get("fresh hold-out", "")
    assert "the hold-out is SPENT, so this is not out-of-sample" in text


# A table that was changed by hand


def by_hand(place: StudyPlace) -> None:
    """Let the table lead from another size on."""
    text = place.table.read_text()
    assert '"s_kv", 256' in text
    place.table.write_text(text.replace('"s_kv", 256', '"s_kv", 320'))


def test_a_table_changed_by_hand_after_a_look_is_told(place: StudyPlace) -> None:
    """The table's line is named, and no report is written any more."""
    attempted(place, PASSES)
    by_hand(place)

    assert failing(place)["table"] == "studies/scripted/table.py:13: not the table that was applied last"
    with pytest.raises(StudyError, match="timed with other entries than the table has now"):
        reporting.report(forger.job_of(place))


@pytest.mark.parametrize("old", [False, True], ids=["of no lines", "of lines that were replaced"])
def test_a_hold_out_timed_with_a_table_changed_by_hand_is_told(place: StudyPlace, *, old: bool) -> None:
    """A hold-out timed with entries that the last lines did not make is named, and no report passes them over."""
    if old:
        before = place.table.read_bytes()
        apply_other(place)
        place.table.write_bytes(before)
    else:
        by_hand(place)
    scripted.write(place, Split.HOLDOUT, PASSES)
    scripted.write(place, Split.ROUTING, lambda _case: Timed())
    found = failing(place)
    try:
        text = reported(place)
    except StudyError as error:
        text = str(error)

    assert found["table"] == "studies/scripted/table.py:13: not the table that was applied last"
    assert found["hold-out after the fit"] == (
        "studies/scripted/bf16/records/holdout-01-001.jsonl:1: timed with other entries than those of the ledger's"
        f" line {4 if old else 3}"
    )
    assert "SPENT" in text or "applied" in text.partition("## Result")[0]


# What was declared, changed after timing


DECLARED = {
    "a threshold": ("geomean <= 1.02", "geomean <= 1.2"),
    "a condition": ("  - regret_auto_max <= 2\n", ""),
    "the margin": ("margin: 0.05", "margin: 0.2"),
    "the scope": ("scope: class", "scope: box"),
}
"""What is changed in study.yaml after the hold-out was timed."""


@pytest.mark.parametrize("refrozen", [False, True])
@pytest.mark.parametrize(("old", "new"), DECLARED.values(), ids=DECLARED)
def test_a_declaration_changed_after_timing_is_told(place: StudyPlace, old: str, new: str, *, refrozen: bool) -> None:
    """What was frozen, or else the manifest that the ledger began with, is not what it was; no report is written."""
    attempted(place, FAILS)
    text = place.study_yaml.read_text()
    assert old in text
    place.study_yaml.write_text(text.replace(old, new))
    if refrozen:
        shutil.rmtree(place.frozen)
        freeze.freeze(opening.open_study(place), place, [], "")
    found = failing(place)

    if refrozen:
        assert found["ledger"].startswith("frozen_cases/scripted/MANIFEST.json:")
        assert found["ledger"].endswith(": changed since the ledger began")
        with pytest.raises(StudyError, match=r"records/.+-01-001\.jsonl:[12]: "):
            reporting.report(forger.job_of(place))
    else:
        assert "frozen files" in found
        with pytest.raises(StudyError, match=r"^studies/scripted/study\.yaml: changed since it was frozen"):
            reporting.report(forger.job_of(place))


@pytest.mark.parametrize(
    ("margin_ppm", "scope", "made"), [(200_000, "class", "0.200, scope class"), (50_000, "box", "0.050, scope box")]
)
def test_lines_of_another_margin_or_scope_are_told(place: StudyPlace, margin_ppm: int, scope: str, made: str) -> None:
    """Lines that were made otherwise than declared are named with both, though they came before the hold-out."""
    apply_other(place, margin_ppm, scope)
    text = attempted(place, PASSES)

    assert failing(place)["lines"] == f"made with margin {made}; declared 0.050, class"
    assert f"Made with margin {made}; **declared were 0.050, class**." in text


# Cases that another study here measured


BEFORE, AFTER = "2026-01-31T23:59:59+00:00", "2026-02-01T00:00:01+00:00"
SHARED = ("s_kv: [64, 128, 256, 512], h_q: 4", "s_kv: [64, 128, 256, 320], h_q: 2")
"""What lets another study train with a hold-out case of the small one."""

OWN = ("s_kv: [80, 320], h_q: 2", "s_kv: [96, 384], h_q: 2")
"""What gives another study a hold-out of its own."""

Seen = tuple[str, Callable[[Path], StudyPlace], str]


def _by_train(root: Path, when: str, dtype: str = "bf16") -> StudyPlace:
    return run_it(root, "other", when, SHARED, OWN, dtype=dtype)


def _by_holdout(root: Path, when: str) -> StudyPlace:
    return run_it(root, "other", when)


def _by_routing(root: Path, when: str) -> StudyPlace:
    return run_it(
        root, "other", when, OWN, ("s_kv: 128, h_q: 4, d_qk: 64, bias: learned", "s_kv: 80, h_q: 2, d_qk: 64")
    )


def _partly(root: Path, when: str) -> StudyPlace:
    """Return another study that was stopped after every case of its train split was timed once."""
    place = declare(root, "other", SHARED, OWN)
    pipeline.freeze_study(opening.open_study(place), place, [])
    with in_process(), contextlib.suppress(KeyboardInterrupt):
        pipeline.time(forger.job_of(place, Split.TRAIN), hooks_at(when)._replace(progress=_stop_after(4)))
    return place


def _stop_after(lines: int) -> Callable[[str, object], None]:
    done: list[object] = []

    def stop(_name: str, step: object) -> None:
        done.append(step)
        if len(done) == lines:
            raise KeyboardInterrupt

    return stop


def _never(root: Path, when: str) -> StudyPlace:  # noqa: ARG001 - nothing is timed
    place = declare(root, "other", SHARED, OWN)
    pipeline.freeze_study(opening.open_study(place), place, [])
    return place


MEASURED: dict[str, tuple[Callable[[Path, str], StudyPlace], str, str]] = {
    "by its train split": (_by_train, BEFORE, "train-01-001.jsonl: measured 1 hold-out cases before, such as 320"),
    "at the same time": (
        _by_train,
        "2026-02-01T00:00:00+00:00",
        "train-01-001.jsonl: measured 1 hold-out cases before, such as 320",
    ),
    "by its hold-out": (_by_holdout, BEFORE, "holdout-01-001.jsonl: measured 2 hold-out cases before, such as "),
    "in part": (_partly, BEFORE, "train-01-001.jsonl: measured 1 hold-out cases before, such as 320"),
    "afterwards": (_by_train, AFTER, ""),
    "afterwards by its hold-out": (_by_holdout, AFTER, ""),
    "never": (_never, BEFORE, ""),
    "planned, not timed": (_by_routing, BEFORE, ""),
    "in another dtype": (lambda root, when: _by_train(root, when, "f16"), BEFORE, ""),
}
"""How another study had cases of the hold-out, when, and what is said of it, "" where nothing is wrong."""


@pytest.mark.parametrize(("make", "when", "said"), MEASURED.values(), ids=MEASURED)
def test_a_hold_out_that_another_study_measured_is_told(
    small: StudyPlace, tmp_path: Path, make: Callable[[Path, str], StudyPlace], when: str, said: str
) -> None:
    """The file of the other study is named, with a case; what it timed later, never, or only planned is no matter."""
    place = finished.copy(small, tmp_path)
    make(tmp_path, when)
    found = checks_of(place)["unseen hold-out"]
    label = "sdpa_fwd bf16 b1 h2 d64 S320"

    if said:
        assert found.state == replay.FAIL
        assert found.figure.startswith(f"studies/other/bf16/records/{said.replace('320', label)}")
        assert "S320" in found.figure or "S80" in found.figure
    else:
        assert found[2:] == (replay.OK, "1 other studies here measured none of its cases before")


def test_another_study_s_records_tell_without_its_frozen_cases(small: StudyPlace, tmp_path: Path) -> None:
    """What another study measured is in its records, also where what it froze was taken away."""
    place = finished.copy(small, tmp_path)
    shutil.rmtree(_by_train(tmp_path, BEFORE).frozen)
    found = checks_of(place)["unseen hold-out"]

    assert found.state == replay.FAIL
    assert found.figure.startswith("studies/other/bf16/records/train-01-001.jsonl: measured 1 hold-out cases before")


def test_broken_records_of_another_study_are_told(small: StudyPlace, tmp_path: Path) -> None:
    """Where another study's records cannot be read, what they measured is not passed over."""
    place = finished.copy(small, tmp_path)
    path = forger.records(_by_train(tmp_path, BEFORE), "train-01-001")
    path.write_bytes(path.read_bytes().replace(b'"ns":[', b'"ns":[1', 1))
    found = checks_of(place)["unseen hold-out"]

    assert found.state == replay.FAIL
    assert found.figure.startswith("studies/other/bf16/records/train-01-001.jsonl:2: ")


def test_a_study_alone_has_nobody_to_ask(small: StudyPlace) -> None:
    """Where no other study is, whether one measured the hold-out does not apply."""
    assert checks_of(small)["unseen hold-out"][2:] == (replay.NOT_APPLICABLE, "no other study is here")


# A hold-out that was timed again


AGAIN = (
    "timed again until it passed: {} attempt 1 says FAIL, attempt {} PASS, with the same entries (the board was busy)"
)


def test_a_hold_out_timed_again_until_it_passed_is_told(place: StudyPlace) -> None:
    """Both attempts are named with what the gate says of them, and why there was another; the report has it, too."""
    text = attempted(place, FAILS, PASSES)

    assert failing(place) == {"hold-out attempts": AGAIN.format("holdout", 2)}
    assert (
        "- Unscored: holdout attempt 1 with 12 of 12 lines, of which the gate says FAIL with the same entries." in text
    )
    assert f"- holdout attempt 2 was made because: {BUSY}." in text


@pytest.mark.parametrize("between", [PASSES, FAILS, UNKNOWN], ids=["PASS", "FAIL", "CANNOT SAY"])
def test_an_attempt_between_hides_nothing(place: StudyPlace, between: scripted.Script) -> None:
    """Whatever came between, the first attempt said FAIL."""
    attempted(place, FAILS, between, PASSES)

    assert failing(place)["hold-out attempts"] == AGAIN.format("holdout", 3)


def test_an_interrupted_attempt_is_told_and_no_fault(place: StudyPlace) -> None:
    """An attempt that was stopped is told with its count and why another was made, whatever its lines say."""
    scripted.write(place, Split.HOLDOUT, FAILS, stop_after=5)
    scripted.write(place, Split.HOLDOUT, PASSES, attempt=2)
    scripted.write(place, Split.ROUTING, lambda _case: Timed())
    text = reported(place)
    found = checks_of(place)

    assert failing(place) == {}
    assert found["hold-out attempts"].figure == (
        f"holdout attempt 1: 5 of 12 lines; attempt 2 was made because: {BUSY}"
    )
    assert found["planned lines"].figure == "each once: train 18; holdout 12, unscored attempt 1: 5 of 12; routing 2"
    assert "- Unscored: holdout attempt 1 with 5 of 12 lines." in text
    assert f"- holdout attempt 2 was made because: {BUSY}." in text


@pytest.mark.parametrize(("first", "verdict"), [(PASSES, "PASS"), (UNKNOWN, "CANNOT SAY")], ids=["PASS", "CANNOT SAY"])
def test_an_attempt_that_did_not_fail_is_no_fault(place: StudyPlace, first: scripted.Script, verdict: str) -> None:
    """A whole attempt of which the gate does not say FAIL is told with what it says."""
    text = attempted(place, first, PASSES)

    assert failing(place) == {}
    assert checks_of(place)["hold-out attempts"].figure == (
        f"holdout attempt 1: whole, {verdict}; attempt 2 was made because: {BUSY}"
    )
    assert f"holdout attempt 1 with 12 of 12 lines, of which the gate says {verdict} with the same entries." in text


def test_the_last_attempt_counts(place: StudyPlace) -> None:
    """A hold-out that passed and then failed has failed, and was not timed until it passed."""
    attempted(place, PASSES, FAILS)

    assert list(failing(place)) == ["gate"]
    assert failing(place)["gate"].startswith("FAIL: slower_beyond_noise == 0: 1; ")


def test_an_attempt_behind_the_last_look_cannot_be_said_of(place: StudyPlace) -> None:
    """A hold-out that was timed again and not scored yet leaves the ledger open, and the score that of another."""
    attempted(place, PASSES)
    scripted.write(place, Split.HOLDOUT, FAILS, attempt=2)
    found = checks_of(place)

    assert found["ledger"][2:] == (
        replay.UNSAID,
        "studies/scripted/bf16/ledger.jsonl:7: holdout-02-001.jsonl was finished after the last score",
    )
    assert found["score.json"].figure.startswith("studies/scripted/bf16/score.json:")
    assert found["score.json"].state == replay.FAIL


def test_a_failed_attempt_with_other_entries_spends_the_hold_out(place: StudyPlace) -> None:
    """An attempt that failed with other entries is no attempt at these; that they changed is what is told."""
    scripted.write(place, Split.HOLDOUT, FAILS)
    apply_other(place)
    scripted.write(place, Split.HOLDOUT, PASSES, attempt=2)
    scripted.write(place, Split.ROUTING, lambda _case: Timed())
    reported(place)
    found = checks_of(place)

    assert found["hold-out attempts"].state == replay.OK
    assert "attempt 1: whole, other entries" in found["hold-out attempts"].figure
    assert "SPENT" in failing(place)["fresh hold-out"]


def test_an_attempt_that_was_taken_away_is_told(place: StudyPlace) -> None:
    """Taking a failed attempt out of records and ledger, chains mended, leaves a second one without a first."""
    attempted(place, FAILS, PASSES)
    forger.records(place, "holdout-01-001").unlink()
    events = [event for event in forger.events_of(place) if event["body"].get("file") != "holdout-01-001.jsonl"]
    forger.write_events(place, forger.rehashed(events))
    forger.forge(place)

    assert any("attempt" in figure for figure in failing(place).values())


def test_every_attempt_says_why(tmp_path: Path) -> None:
    """Of three attempts, the reasons of the second and of the third are in the check list and in the report."""
    place = declare(tmp_path, "small")
    pipeline.freeze_study(opening.open_study(place), place, [])
    job, hooks = forger.job_of(place, Split.TRAIN), finished.hooks()
    holdout = job._replace(split=Split.HOLDOUT)
    with in_process():
        pipeline.time(job, hooks)
        pipeline.generate(job)
        editing.apply_lines(job.results.lines, place.table, hooks.now)
        benches.stopped(holdout, 2)
        with contextlib.suppress(KeyboardInterrupt):
            pipeline.time(holdout, hooks._replace(progress=_stop_after(3)), "the fan stood still")
        pipeline.time(holdout, hooks, "the fan was mended")
        pipeline.time(job._replace(split=Split.ROUTING), hooks)
    text, figure = reported(place), checks_of(place)["hold-out attempts"].figure

    assert "attempt 1: 2 of 6 lines" in figure
    assert "attempt 2: 3 of 6 lines" in figure
    assert "the fan was mended" in figure
    assert "holdout attempt 3 was made because: the fan was mended." in text
    assert "the fan stood still" in figure
    assert "the fan stood still" in text


def test_routing_planned_again_until_it_kept_its_plans_is_told(place: StudyPlace) -> None:
    """A whole attempt at routing that moved a plan is not passed over for one that moved none."""
    scripted.write(place, Split.HOLDOUT, PASSES)
    scripted.write(place, Split.ROUTING, lambda _case: Timed(auto_plan=FROST))
    scripted.write(place, Split.ROUTING, lambda _case: Timed(), attempt=2)
    text = reported(place)

    assert "- Unscored: routing attempt 1 with 2 of 2 lines, of which the gate says FAIL with the same entries." in text
    assert f"- routing attempt 2 was made because: {BUSY}." in text
    assert failing(place)["hold-out attempts"] == AGAIN.format("routing", 2)


# Cases that are in two places


def frozen_by_hand(root: Path, *edits: tuple[str, str], **manifest: object) -> StudyPlace:
    """Return a study frozen as no `freeze` would: nothing is held against anything."""
    place = declare(root, "small", *edits)
    study = opening.open_study(place)
    cases = expand(study)
    files = freeze.contents(study, place, cases)
    told = freeze.Manifest(
        schema=1,
        name=study.name,
        study_sha256=study.sha256,
        files={name: sha256(data) for name, data in files.items()},
        counts={str(split): len(found) for split, found in cases.items()},
        tool="0",
        commit="",
        disjoint_from=(),
    )
    body = pretty(msgspec.to_builtins(told) | manifest)
    place.frozen.mkdir(parents=True)
    for name, data in {**files, "MANIFEST.json": body}.items():
        (place.frozen / name).write_bytes(data)
    return place


DOUBLE = {
    "hold-out": ("s_kv: [80, 320], h_q: 2", "s_kv: [80, 128], h_q: 4", "2 holdout cases are train cases, such as "),
    "routing": (", bias: learned", "", "2 routing cases are train cases, such as "),
    "what must differ": (
        "s_kv: [80, 320], h_q: 2, d_qk: 64}",
        "s_kv: [80, 256], h_q: 2, d_qk: 64}\n    differs: [s_kv]",
        "hold-out and train share s_kv 256",
    ),
}
"""What lets cases of a split be cases of another, and what is said of it."""


@pytest.mark.parametrize(("old", "new", "said"), DOUBLE.values(), ids=DOUBLE)
def test_splits_that_overlap_are_told(tmp_path: Path, old: str, new: str, said: str) -> None:
    """What `freeze` refuses is found where it was frozen by hand, and nothing is timed or reported of it."""
    place = frozen_by_hand(tmp_path, (old, new))

    found = failing(place)
    told = list(found.values()) if "share" in said else [found["disjoint"]]
    assert any(said in figure for figure in told)
    with pytest.raises(StudyError, match=said):
        forger.job_of(place)


def _earlier(root: Path, *edits: tuple[str, str]) -> StudyPlace:
    place = declare(root, "earlier", *edits)
    pipeline.freeze_study(opening.open_study(place), place, [])
    return place


def _excluding(root: Path, earlier: StudyPlace) -> StudyPlace:
    told = {"name": "earlier", "sha256": sha256(earlier.manifest.read_bytes())}
    return frozen_by_hand(root, disjoint_from=[told])


def test_an_earlier_study_without_a_common_case_is_told(tmp_path: Path) -> None:
    """An earlier study that the hold-out was held against is held against again, as far as it is here."""
    earlier = _earlier(tmp_path, OWN, ("bias: learned", "bias: bool"))
    place = _excluding(tmp_path, earlier)
    here = checks_of(place)["disjoint"]
    digest = sha256(earlier.manifest.read_bytes())
    shutil.rmtree(earlier.frozen)

    assert here[2:] == (replay.OK, "train, hold-out and routing share no case; nor with earlier")
    assert checks_of(place)["disjoint"][2:] == (
        replay.OK,
        f"train, hold-out and routing share no case; earlier sha256:{digest[:12]} is not here",
    )


@pytest.mark.parametrize(
    ("edits", "said"),
    [
        ((OWN,), ": 1 routing cases are in earlier, such as sdpa_fwd "),
        ((("bias: learned", "bias: bool"),), ": 2 holdout cases are in earlier, such as sdpa_fwd "),
        ((SHARED, OWN, ("bias: learned", "bias: bool")), ": 1 holdout cases are in earlier, such as sdpa_fwd "),
    ],
    ids=["routing", "hold-out", "hold-out in train"],
)
def test_an_earlier_study_with_a_common_case_is_told(
    tmp_path: Path, edits: tuple[tuple[str, str], ...], said: str
) -> None:
    """A manifest that claims to be disjoint from a study with which it is not is found out."""
    place = _excluding(tmp_path, _earlier(tmp_path, *edits))

    assert said in failing(place)["disjoint"]
    assert "frozen_cases/earlier/MANIFEST.json" in failing(place)["disjoint"]


def test_an_earlier_study_that_is_another_now_is_told(tmp_path: Path) -> None:
    """An earlier study's changed case, and a manifest that is another than was held against, are named."""
    earlier = _earlier(tmp_path, OWN, ("bias: learned", "bias: bool"))
    place = _excluding(tmp_path, earlier)
    path = earlier.frozen / "bf16.train.jsonl"
    data = path.read_bytes()
    path.write_bytes(data.replace(b"512", b"544"))
    changed = failing(place)["disjoint"]
    path.write_bytes(data)
    earlier.manifest.write_bytes(earlier.manifest.read_bytes().replace(b'"commit": "', b'"commit": "0'))

    assert "frozen_cases/earlier/bf16.train.jsonl: sha256 " in changed
    assert "frozen_cases/earlier/MANIFEST.json: sha256 " in failing(place)["disjoint"]
    assert "; held against was " in failing(place)["disjoint"]


# Machines


def test_a_hold_out_of_another_machine_is_told(place: StudyPlace) -> None:
    """A hold-out that was timed on another board, version or code than the train split judges something else."""
    attempted(place, PASSES)
    forger.edit(place, "holdout-01-001", lambda values: values[0]["fingerprint"].update(board="Other"))
    forger.forge(place)

    assert failing(place)["one kind of machine"] == (
        "studies/scripted/bf16/records/holdout-01-001.jsonl:1: not comparable with the train split:"
        " board Board and Other"
    )
    assert values_of(forger.records(place, "holdout-01-001"))[0]["fingerprint"]["board"] == "Other"
