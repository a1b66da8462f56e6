"""Whatever is changed in a finished study is found by a replay, and named."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import benches
import careful
import declared
import finished
import forger
import pytest
from clumsy import DRIVER, DRIVER_NAME, Change, clumsy

from studytool import checks, editing, opening, pipeline, replay, reporting, timing
from studytool.digest import digest, sha256
from studytool.errors import StudyError
from studytool.layout import StudyPlace
from studytool.model import Split, Study
from studytool.runtime import lookup

FOLDER = "where-the-study-lies"
CHANGES: dict[str, Change] = clumsy() | careful.careful()


class Seen(NamedTuple):
    """What a replay said of a changed study: which words it should have said, and its check list."""

    tree: str
    words: tuple[str, ...]
    state: str
    said: tuple[replay.Check, ...]

    @property
    def found(self) -> bool:
        """Return whether a check that does not hold says one of the words."""
        told = [f"{check.name}: {check.figure}" for check in self.said if check.state == self.state]
        failed = any(check.state == replay.FAIL for check in self.said)
        return failed == (self.state == replay.FAIL) and any(word in text for word in self.words for text in told)


Look = Callable[[str], Seen]


def replayed(place: StudyPlace, *dtypes: str, posted: str | None = None) -> tuple[replay.Check, ...]:
    """Return the check list of a study; a declaration that cannot be read is a check that fails."""
    try:
        return tuple(replay.replay(opening.open_study(place), place, dtypes, posted))
    except StudyError as error:
        return (replay.Check("", "study.yaml", replay.FAIL, str(error)),)


def hashed(tree: forger.Tree) -> str:
    """Return one digest over files and their names."""
    return digest([[name, sha256(tree[name])] for name in sorted(tree)])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished study on which a driver was started, too."""
    root = tmp_path_factory.mktemp("base")
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        place = finished.finish(root)
    driver = root / DRIVER_NAME
    driver.write_bytes(DRIVER)
    timing.note_driver(forger.job_of(place), finished.hooks().now, driver)
    driver.unlink()
    return place


@pytest.fixture(scope="module")
def seen(base: StudyPlace, tmp_path_factory: pytest.TempPathFactory) -> Look:
    """Return what finds out, once, what is said of a change."""
    place = finished.copy(base, tmp_path_factory.mktemp("changed") / FOLDER)
    before = forger.tree_of(base.root)

    @functools.cache
    def look(name: str) -> Seen:
        change = CHANGES[name]
        try:
            words = change.act(place)
            return Seen(hashed(forger.tree_of(place.root)), words, change.state, replayed(place, *change.dtypes))
        finally:
            forger.put(place.root, before)

    return look


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_found_and_named(seen: Look, name: str) -> None:
    """A check that does not hold names the file, and the line where a line was changed, or tells what is gone."""
    what = seen(name)

    assert what.found, (what.words, [check for check in what.said if check.state not in {"ok", "n/a"}])


@pytest.mark.whole
def test_two_hundred_different_changes_are_found(base: StudyPlace, seen: Look) -> None:
    """No two of those that are counted leave the same files, and none leaves the files as they were."""
    found = {seen(name).tree for name in CHANGES if seen(name).found}

    assert hashed(forger.tree_of(base.root)) not in {seen(name).tree for name in CHANGES}
    assert len(found) >= 600


@pytest.mark.whole
def test_what_is_found_is_told_without_the_folder(seen: Look) -> None:
    """No figure tells where on this machine the study lies: a check list is shown to others."""
    told = {check.figure for name in CHANGES for check in seen(name).said if check.name != "study.yaml"}

    assert sorted(figure for figure in told if FOLDER in figure) == []


def test_the_untouched_study_holds(base: StudyPlace) -> None:
    """The study that is changed holds, with the manifest's hash that was posted, and the routing check says so."""
    found = replayed(base, posted=sha256(base.manifest.read_bytes()))

    assert {check.state for check in found if check.name != "unseen hold-out"} == {replay.OK}
    assert {check.name for check in found} >= {name for name, _ in checks.CHECKS}


def test_a_forger_who_changes_nothing_makes_the_same_files(base: StudyPlace, tmp_path: Path) -> None:
    """What is made anew from records that were not changed is what was there, so that a forged study is whole."""
    place = finished.copy(base, tmp_path / "root")
    forger.forge(place, train=True)

    assert forger.tree_of(place.root) == forger.tree_of(base.root)


def test_what_was_forged_throughout_is_not_found(base: StudyPlace, tmp_path: Path) -> None:
    """Replay cannot tell records that were made up, with everything behind them made anew, from measured ones.

    Nor can the hash that was posted: what was frozen is as it was.
    """
    place = finished.copy(base, tmp_path / "root")
    forger.put(place.root, careful.forged_train(place))
    found = replayed(place, posted=sha256(base.manifest.read_bytes()))

    assert forger.tree_of(place.root) != forger.tree_of(base.root)
    assert {check.state for check in found if check.name != "unseen hold-out"} == {replay.OK}


def test_what_was_forged_with_other_frozen_files_is_found_by_what_was_posted(base: StudyPlace, tmp_path: Path) -> None:
    """A loosened gate with frozen files, ledgers, sessions, orders and all that follows made anew holds in a replay.

    The hash that was posted beforehand is what finds it.
    """
    place = finished.copy(base, tmp_path / "root")
    place.study_yaml.write_text(place.study_yaml.read_text().replace("geomean <= 1.02", "geomean <= 1.2"))
    for step in (careful.refrozen, careful.reordered, careful.resealed, careful.retold):
        step(place)
    forger.forge(place, train=True)
    posted, now = (sha256(each.manifest.read_bytes()) for each in (base, place))

    assert replay.conclusion(list(replayed(place)))[1] == 0
    assert [check for check in replayed(place, posted=posted) if check.state == replay.FAIL] == [
        replay.Check("", "posted beforehand", replay.FAIL, f"the manifest is sha256:{now}; posted was sha256:{posted}")
    ]


def steps(place: StudyPlace) -> Iterator[tuple[str, dict[str, str]]]:
    """Go the whole path of bf16 step by step, with kills on the way, and return what cannot be said after each."""
    study, hooks = opening.open_study(place), finished.hooks()
    pipeline.freeze_study(study, place, [])
    place.results("bf16").folder.mkdir()
    train, holdout, routing = (forger.job_of(place, split) for split in Split)
    done: dict[str, Callable[[], object]] = {
        "begun": place.results("bf16").records.mkdir,
        "train stopped": lambda: benches.stopped(train, 5),
        "train": lambda: pipeline.time(train, hooks),
        "generated": lambda: pipeline.generate(train),
        "applied": lambda: editing.apply_lines(train.results.lines, place.table, hooks.now),
        "hold-out stopped": lambda: benches.stopped(holdout, 3),
        "hold-out": lambda: pipeline.time(holdout, hooks),
        "routing": lambda: pipeline.time(routing, hooks),
        "scored": lambda: pipeline.score(holdout, hooks.now),
        "reported": lambda: reporting.report(holdout),
    }
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        for name, step in done.items():
            step()
            found = replayed(place, "bf16")
            assert [check for check in found if check.state == replay.FAIL] == [], name
            yield name, {check.name: check.figure for check in found if check.state == replay.UNSAID}


def test_a_study_on_its_way_raises_no_alarm(tmp_path: Path) -> None:
    """After every step nothing fails; what is not there yet cannot be said, and says so."""
    place = finished.declare(tmp_path)
    said = dict(steps(place))
    records = "studies/whole/bf16/records"

    assert said["begun"]["ledger"] == "studies/whole/bf16/ledger.jsonl: nothing stands in it yet"
    assert said["train stopped"]["records sealed"] == (
        f"{records}/train-01-001.jsonl: not in the ledger yet; was `studytool time` stopped?"
    )
    assert said["train stopped"]["planned lines"].startswith("train attempt 1 is incomplete: 5 of 18 lines; run ")
    assert "study.json" not in said["train"]
    assert said["train"]["lines"] == said["generated"]["table"] == "no lines of this dtype were applied yet"
    assert "lines" not in said["applied"]
    assert said["applied"]["planned lines"].startswith("holdout: nothing is measured yet; run ")
    assert said["hold-out stopped"]["records sealed"] == (
        f"{records}/holdout-01-001.jsonl: not in the ledger yet; was `studytool time` stopped?"
    )
    assert said["hold-out stopped"]["planned lines"].startswith("holdout attempt 1 is incomplete: 3 of 12 lines; run ")
    assert said["hold-out"]["planned lines"].startswith("routing: nothing is measured yet; run ")
    assert said["routing"] == {
        "score.json": "studies/whole/bf16/score.json: not there yet; run `studytool score`",
        "report.md": "studies/whole/bf16/report.md: not there yet; run `studytool report`",
    }
    assert said["scored"] == {"report.md": "studies/whole/bf16/report.md: not there yet; run `studytool report`"}
    assert said["reported"] == {}


def test_a_train_split_without_its_summary_cannot_be_said(tmp_path: Path) -> None:
    """A run that ended between the last record and study.json is not wrong."""
    place = finished.declare(tmp_path)
    pipeline.freeze_study(opening.open_study(place), place, [])
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        pipeline.time(forger.job_of(place, Split.TRAIN), finished.hooks())
    place.results("bf16").study_json.unlink()
    found = {check.name: check for check in replayed(place, "bf16")}

    assert found["study.json"][2:] == (
        replay.UNSAID,
        "studies/whole/bf16/study.json: not there yet; `studytool time` writes it when the train split is complete",
    )
    assert replay.FAIL not in {check.state for check in found.values()}


STUDIES = range(50)


class Replayed(NamedTuple):
    """A study that was drawn: what a replay says of it, and what its own files say: scores, entries, routing moved."""

    study: Study
    drawn: declared.Drawn
    said: tuple[replay.Check, ...]
    verdicts: dict[str, str]
    entries: int
    moved: dict[str, bool]


@pytest.fixture(scope="module")
def of_seed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Replayed]:
    """Return what makes the study of a seed, once, and replays it."""

    @functools.cache
    def look(seed: int) -> Replayed:
        one = declared.drawn(seed)
        place = declared.make(one, tmp_path_factory.mktemp("drawn"))
        study = opening.open_study(place)
        table = lookup.load(place.table)
        moved = {}
        for dtype in study.dtypes:
            cases = forger.job_of(place, Split.ROUTING, dtype).cases.values()
            answers = [lookup.lookup(table, study.row, "sim-1", case.fields, "simulated device") for case in cases]
            moved[dtype] = True in answers
        scores = {dtype: json.loads(place.results(dtype).score.read_bytes()) for dtype in study.dtypes}
        verdicts = {dtype: str(score["verdict"]) for dtype, score in scores.items()}
        return Replayed(study, one, replayed(place), verdicts, len(table.entries), moved)

    return look


@pytest.mark.parametrize("seed", STUDIES)
def test_an_untouched_study_raises_no_alarm(of_seed: Callable[[int], Replayed], seed: int) -> None:
    """Nothing fails but a gate that says FAIL and routing that an entry moves; only a gate without answer is open."""
    what = of_seed(seed)
    states = {(check.dtype, check.name): check.state for check in what.said}
    gates = {"PASS": replay.OK, "FAIL": replay.FAIL, "CANNOT SAY": replay.UNSAID}
    expected = {(dtype, "gate"): gates[verdict] for dtype, verdict in what.verdicts.items()}
    absent = Split.ROUTING not in what.study.splits
    for dtype, moved in what.moved.items():
        expected[dtype, "routing"] = replay.NOT_APPLICABLE if absent else replay.FAIL if moved else replay.OK

    assert {place: states[place] for place in expected} == expected
    assert {state for place, state in states.items() if place not in expected} <= {replay.OK, replay.NOT_APPLICABLE}


@pytest.mark.whole
def test_the_untouched_studies_are_of_every_kind(of_seed: Callable[[int], Replayed]) -> None:
    """Among those that raise no alarm are all that one could be taken for wrong for."""
    found = [of_seed(seed) for seed in STUDIES]
    declared_so = [json.loads(what.drawn.text) for what in found]
    kinds = {
        "one dtype": [len(what.study.dtypes) == 1 for what in found],
        "three dtypes": [len(what.study.dtypes) == 3 for what in found],
        "several classes": [len(what.study.class_key) > 2 for what in found],
        "two regimes": [len(what.study.protocol.regimes) > 1 for what in found],
        "a stop rule": [what.study.protocol.stop_half_width_ppm > 0 for what in found],
        "no entry": [what.entries == 0 for what in found],
        "entries": [what.entries > 0 for what in found],
        "train stopped": [what.drawn.train_stop > 0 for what in found],
        "hold-out stopped": [what.drawn.holdout_stop > 0 for what in found],
        "train again": [Split.TRAIN in what.drawn.again for what in found],
        "hold-out again": [Split.HOLDOUT in what.drawn.again and not what.drawn.holdout_stop for what in found],
        "routing again": [Split.ROUTING in what.drawn.again for what in found],
        "no routing": [Split.ROUTING not in what.study.splits for what in found],
        "routing moved": [any(what.moved.values()) for what in found],
        **{
            verdict: [verdict in what.verdicts.values() for what in found] for verdict in ("PASS", "FAIL", "CANNOT SAY")
        },
        **{fault: [fault in told["simulated"] for told in declared_so] for fault in declared.FAULTS},
    }

    assert {kind for kind, which in kinds.items() if sum(which) < 2} == set()
