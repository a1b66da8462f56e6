"""Whatever ends a command, and whenever: files are old or new, what was told stays, and the same command goes on."""

import calendar
import contextlib
import errno
import functools
import os
import re
import shutil
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import benches
import disk
import finished
import msgspec
import pytest
from commands import Said, call
from disk import Disk, Fate, State
from factories import STUDY_YAML, unchained, write_session

from studytool import jsonl, ledger, lines, opening, pipeline, reporting, results, timing
from studytool.attempts import Job
from studytool.cli import terminal
from studytool.cli.shared import budget_of
from studytool.errors import StudyError
from studytool.layout import StudyPlace
from studytool.model import Record, Split
from studytool.progress import Progress

REAL_NOW = terminal.now
NOW = "2026-01-01T00:00:00+00:00"
OLD = b"what stood here before\n"
SMALL_YAML = (
    STUDY_YAML.replace("name: tiny", "name: small")
    .replace("[bf16]", "[bf16, f16]")
    .replace("      - {s_kv: [96, 160], h_q: 4, h_kv: 2, d_qk: 64, mask: tl}\n", "")
    .replace("[64, 128, 256, 512]", "[64, 128]")
    .replace("[80, 144]", "[80]")
    .replace("blocks: 8", "blocks: 4")
    .replace("s_kv * 500 + 64000", "s_kv * 500")
)
PATIENCE_S = 120
STOPPED = "stopped; what was recorded is kept, and the same command goes on\n"


class Step(NamedTuple):
    """A command: the stage of a study that it begins with, and what is called."""

    stage: str
    run: Callable[[StudyPlace], Said]


class Went(NamedTuple):
    """A command that nothing disturbed: what was there before and after, how it ended, and its calls.

    `killed` is what was there before each call, and what of it would last of bytes and of names; `lost` is what a loss
    of power there would have left, with all names and with those alone that were synced.
    """

    old: State
    new: State
    said: Said
    calls: list[str]
    killed: list[tuple[State, State, State]]
    lost: list[State]


def api(run: Callable[[], object]) -> Said:
    """Return how a call of the library ended, told as a command tells it."""
    try:
        return Said(0, f"{run()}\n", "")
    except StudyError as error:
        return Said(error.exit_code, "", f"{error}\n")
    except KeyboardInterrupt:
        return Said(130, "", STOPPED)


def job_of(place: StudyPlace, split: Split = Split.TRAIN, dtype: str = "bf16") -> Job:
    """Return a job of the study."""
    return opening.job_of(opening.open_study(place), place, dtype, split)


def timed(place: StudyPlace, split: str = "train", dtype: str = "bf16", *more: object) -> Said:
    """Return how timing a split ended."""
    return call("time", place.folder, "--dtype", dtype, "--split", split, *more)


def freeze(place: StudyPlace) -> Said:
    """Return how freezing ended."""
    return call("freeze", place.folder)


def generate(place: StudyPlace) -> Said:
    """Return how writing the lines ended."""
    return api(lambda: pipeline.generate(job_of(place)))


def apply(place: StudyPlace) -> Said:
    """Return how applying the lines ended."""
    return call("apply", place.root / "lines.txt", "--table", place.table)


def score(place: StudyPlace) -> Said:
    """Return how scoring ended."""
    return call("score", place.folder, "--dtype", "bf16")


def report(place: StudyPlace) -> Said:
    """Return how reporting ended."""
    return call("report", place.folder, "--dtype", "bf16")


def bundle(place: StudyPlace) -> Said:
    """Return how packing ended."""
    return call("bundle", place.folder, "-o", place.root / "out" / "small.tar.gz", "--keep-host")


def driver(place: StudyPlace) -> Said:
    """Return how keeping a copy of a driver ended."""
    return api(lambda: timing.note_driver(job_of(place), lambda: NOW, place.root / "full_study.py"))


STEPS = {
    "freeze": Step("declared", freeze),
    "time": Step("frozen", timed),
    "generate": Step("trained", generate),
    "apply": Step("trained", apply),
    "score": Step("held", score),
    "report": Step("scored", report),
    "bundle": Step("reported", bundle),
    "driver": Step("trained", driver),
}
FOLDERS: State = dict.fromkeys(
    ("frozen_cases", "out", "studies/small/bf16", "studies/small/bf16/records", "studies/small/drivers")
)
"""The folders that commands make where they are not there."""


@contextlib.contextmanager
def quick() -> Iterator[None]:
    """Return a context with a device in this process, a clock that stands still, and a disk that syncs at once."""
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        patch.setattr(terminal, "now", lambda: NOW)
        patch.setattr("studytool.cli.reviewing.now", lambda: NOW)
        patch.setattr(pipeline, "git_commit", lambda _folder: "")
        patch.setattr(reporting, "drawable", lambda: True)
        patch.setattr(results, "page_of", lambda *_found: "a page, which takes its time to draw\n")
        patch.setattr(os, "fsync", lambda _handle: None)
        yield


@pytest.fixture(autouse=True)
def _quick() -> Iterator[None]:
    with quick():
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return the place of the study; each test puts there what it begins with."""
    return StudyPlace(tmp_path_factory.mktemp("study"), "small")


@pytest.fixture(scope="module")
def stages(place: StudyPlace) -> dict[str, State]:
    """Return what is there of the study at each stage, with older files where a command will put new ones."""
    found: dict[str, State] = {}

    def keep(name: str, **old: bytes) -> None:
        found[name] = disk.state(place.root) | dict(old)

    with quick():
        disk.put(place.root, {"full_study.py": b"print('a driver')\n"})
        finished.declare(place.root, SMALL_YAML, "small")
        keep("declared")
        assert freeze(place).code == 0
        keep("frozen")
        assert [timed(place, "train", dtype).code for dtype in ("bf16", "f16")] == [0, 0]
        (place.root / "lines.txt").write_text(generate(place).out[:-1])
        keep("trained", **{"studies/small/table.py": lines.EMPTY.encode(), "studies/small/bf16/lines.txt": OLD})
        assert apply(place).code == 0
        assert [timed(place, split).code for split in ("holdout", "routing")] == [0, 0]
        keep("held", **{"studies/small/bf16/score.json": OLD})
        assert score(place).code == 0
        keep("scored", **dict.fromkeys(("studies/small/bf16/report.md", "studies/small/bf16/report.html"), OLD))
        assert report(place).code == 0
        keep("reported", **{"out/small.tar.gz": OLD})
    return found


def begin(place: StudyPlace, there: State) -> State:
    """Return what is there after this was put there."""
    disk.put(place.root, there)
    return disk.state(place.root)


@pytest.fixture(scope="module")
def undisturbed(place: StudyPlace, stages: dict[str, State]) -> Callable[[str], Went]:
    """Return how a step goes that nothing disturbs; each is gone once."""

    @functools.cache
    def went(name: str) -> Went:
        killed: list[tuple[State, State, State]] = []
        lost: list[State] = []

        def watch(now: Disk) -> None:
            synced = now.lasting(names=True), now.lasting()
            killed.append((disk.state(place.root), *synced))
            lost.extend(synced)

        old = begin(place, stages[STEPS[name].stage])
        with quick(), Disk(place.root, watch=watch).watched() as watched:
            said = STEPS[name].run(place)
            watch(watched)
        return Went(old, disk.state(place.root), said, watched.calls, killed, lost)

    return went


def left_over(name: str) -> bool:
    """Return whether a name is that of a file, or in a folder, that is beside the one which it was to become."""
    return re.search(r"(^|/)\.[^/]+\.[0-9]+\.new$|^frozen_cases/\.small\.", name) is not None


def files(found: State) -> dict[str, bytes]:
    """Return the files but those that are left over."""
    return {name: data for name, data in found.items() if data is not None and not left_over(name)}


def beside(found: State) -> list[str]:
    """Return the names of what is left over."""
    return [name for name in found if left_over(name)]


def grows(name: str) -> bool:
    """Return whether a file is one to which lines are added."""
    return name.endswith("/ledger.jsonl") or "/records/" in name


def check_whole(went: Went, found: State) -> None:
    """Check that each file is the old one or the new one, or, where lines are added, the old one and part of those."""
    old, new, now = files(went.old), files(went.new), files(found)

    assert now.keys() <= old.keys() | new.keys()
    for name in old.keys() | new.keys():
        if grows(name):
            assert now.get(name, b"").startswith(old.get(name, b"")), name
            assert new[name].startswith(now.get(name, b"")), name
        else:
            assert now.get(name) in {old.get(name), new[name]}, name


def check_goes_on(name: str, went: Went, place: StudyPlace) -> None:
    """Check that a study is read as it is, and that the command, called again, ends as if nothing had been."""
    before = disk.state(place.root)
    replayed = call("replay", place.folder)
    said = STEPS[name].run(place)
    now = disk.state(place.root)

    assert (replayed.code in {0, 1, 3}, replayed.err) == (True, "")
    if name == "freeze" and "frozen_cases/small" in before:
        assert said == (2, "", f"{place.frozen}: is there already; frozen cases are never rewritten\n")
        said = call("freeze", place.folder, "--check")
    assert said == went.said
    if name not in {"time", "driver"}:
        assert files(now) == files(went.new)
        return
    for grown in filter(grows, before):
        kept = before[grown] or b""
        assert (now[grown] or b"").startswith(kept[: kept.rfind(b"\n") + 1]), grown
    if name == "time":
        check_timed(place)
    else:
        assert files(now).keys() == files(went.new).keys()
        assert bundle(place).code == 0
        assert re.findall("FAIL .*", call("replay", place.results("bf16").folder).out) == []


def check_timed(place: StudyPlace) -> None:
    """Check that the train split has each line once, that its ledger knows its files, and that nothing fails."""
    job = job_of(place)
    whole = {path.name for path in job.results.records.glob("*.jsonl") if jsonl.read(path)}
    replayed = call("replay", place.folder)

    assert benches.cells(job) == benches.planned(job)
    assert benches.sealed(job) == {name: own for name, own in benches.on_disk(job).items() if name in whole}
    assert job.results.study_json.is_file()
    assert (replayed.code, "FAIL" in replayed.out) == (3, False)


def distinct(states: list[State]) -> list[State]:
    """Return states without those that were there before."""
    found: list[State] = []
    seen: set[frozenset[tuple[str, bytes | None]]] = set()
    for state in states:
        key = frozenset(state.items())
        if key not in seen:
            seen.add(key)
            found.append(state)
    return found


# killed, or without power


@pytest.mark.parametrize("name", STEPS)
def test_at_each_call_files_are_old_or_new(name: str, undisturbed: Callable[[str], Went]) -> None:
    """A kill before any call or in the middle of a write, and a loss of power there, leave no file half-written."""
    went = undisturbed(name)
    for found in [now for now, _, _ in went.killed] + went.lost:
        check_whole(went, found)

    assert went.said.code == 0
    assert any(beside(now) or any(map(grows, now)) for now, _, _ in went.killed)
    assert went.old != went.new


@pytest.mark.parametrize("name", STEPS)
def test_the_same_command_goes_on(name: str, place: StudyPlace, undisturbed: Callable[[str], Went]) -> None:
    """After a kill or a loss of power at any call the study is read, and the command again ends as an undisturbed."""
    went = undisturbed(name)
    states = distinct([now for now, _, _ in went.killed] + went.lost)
    for found in states:
        dead = {re.sub(r"[0-9]+\.new$", "0.new", path): data for path, data in found.items()}
        begin(place, dead)
        check_goes_on(name, went, place)

    assert len(states) > 3


@pytest.mark.parametrize("name", STEPS)
def test_what_was_done_survives_a_loss_of_power(
    name: str, place: StudyPlace, stages: dict[str, State], undisturbed: Callable[[str], Went]
) -> None:
    """Once a command has ended, all that it wrote is on disk, under its name, where the folders were there before."""
    went = undisturbed(name)
    begin(place, stages[STEPS[name].stage] | FOLDERS)
    with Disk(place.root).watched() as watched:
        said = STEPS[name].run(place)

    assert said == went.said
    assert files(watched.lasting()) == files(disk.state(place.root))


@pytest.mark.parametrize("name", ["freeze", "time", "bundle", "driver"])
def test_folders_that_were_made_survive_a_loss_of_power(name: str, place: StudyPlace, stages: dict[str, State]) -> None:
    """Once a command has ended, the names of the folders that it made are on disk, too."""
    gone = ("out", "out/small.tar.gz")
    begin(place, {path: data for path, data in stages[STEPS[name].stage].items() if path not in gone})
    with Disk(place.root).watched() as watched:
        assert STEPS[name].run(place).code == 0

    assert files(watched.lasting()) == files(disk.state(place.root))


@pytest.mark.parametrize("name", ["time", "apply", "score", "driver"])
def test_a_line_is_on_disk_once_it_was_added(name: str, place: StudyPlace, stages: dict[str, State]) -> None:
    """When a record or an event was added, and before anything else is done, its line is on disk."""
    begin(place, stages[STEPS[name].stage] | FOLDERS)
    watched = Disk(place.root)
    added: list[Path] = []

    def check(path: Path) -> None:
        added.append(path)
        assert watched.lasting()[path.relative_to(place.root).as_posix()] == path.read_bytes()

    def append_record(writer: jsonl.Writer, record: Record) -> None:
        real_record(writer, record)
        check(writer._path)

    def append_event(path: Path, *args: Any) -> None:
        real_event(path, *args)
        check(path)

    real_record, real_event = jsonl.Writer.append, ledger.append
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jsonl.Writer, "append", append_record)
        patch.setattr(ledger, "append", append_event)
        with watched.watched():
            assert STEPS[name].run(place).code == 0

    assert len(added) == {"time": 6 + 2, "apply": 2, "score": 1, "driver": 1}[name]


@pytest.mark.parametrize("name", ["time", "apply", "score"])
def test_what_a_killed_command_left_is_on_disk_once_the_next_is_done(
    name: str, place: StudyPlace, undisturbed: Callable[[str], Went]
) -> None:
    """A line that was written and not synced when its process was killed is not taken for done before it is synced."""
    went = undisturbed(name)
    lost: list[str] = []
    for now, data, names in went.killed:
        begin(place, now | dict.fromkeys(FOLDERS))
        with Disk(place.root, lasting=(data, names | dict.fromkeys(FOLDERS))).watched() as watched:
            assert STEPS[name].run(place).code == 0
        lasting = files(watched.lasting())
        found = {
            path: there for path, there in files(disk.state(place.root)).items() if b"\n" in there or not grows(path)
        }
        lost += [path for path, there in found.items() if lasting.get(path) != there]  # no line is no loss

    assert sorted(set(lost)) == []


# a full disk, and one that may not be written


def full(at: int, fates: list[str], *, short: bool = False) -> Callable[[int, str], Fate]:
    """Return a disk that is full from a call on; that call may be one that writes a part, or a sync that fails."""

    def fate(number: int, kind: str) -> Fate:
        if number == at and kind == "write" and short:
            fates.append("short")
            return "short"
        if number == at or (number > at and kind in {"create", "mkdir", "write", "rename"}):
            fates.append(kind)
            return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return None

    return fate


def sudden(at: int, befalls: Fate) -> Callable[[int, str], Fate]:
    """Return a disk on which one call has this fate."""
    return lambda number, _kind: befalls if number == at else None


def needs_space(calls: list[str]) -> list[int]:
    """Return the numbers of the calls that fail on a full disk; a lock's file is not one of a study."""
    wanted = ("create", "mkdir", "write", "rename", "sync")
    return [number for number, call_ in enumerate(calls) if call_.startswith(wanted) and not call_.endswith(disk.LOCK)]


@pytest.mark.parametrize("short", [False, True], ids=["", "after a part"])
@pytest.mark.parametrize("name", STEPS)
def test_a_full_disk_is_one_line(name: str, short: bool, place: StudyPlace, undisturbed: Callable[[str], Went]) -> None:
    """Full from any call on, a disk is one line, exit 2; files are old or new, and with space the command goes on."""
    went = undisturbed(name)
    seen: list[State] = []
    for at in needs_space(went.calls):
        if short and not went.calls[at].startswith("write"):
            continue
        begin(place, went.old)
        fates: list[str] = []
        with Disk(place.root, full(at, fates, short=short)).watched():
            said = STEPS[name].run(place)
        found = disk.state(place.root)

        assert fates
        assert (said.code, said.err.count("\n")) == (2, 1), went.calls[at]
        assert went.said.out.startswith(said.out)
        assert re.search(r": (cannot be (written|created): No space left|[0-9]+ of [0-9]+ bytes written;)", said.err)
        assert beside(found) == []
        check_whole(went, found)
        if found not in seen:
            seen.append(found)
            if name != "freeze" or not went.calls[at].endswith("sync frozen_cases"):
                check_goes_on(name, went, place)


@pytest.mark.parametrize("name", STEPS)
def test_a_write_that_takes_a_part_is_never_passed_over(
    name: str, place: StudyPlace, undisturbed: Callable[[str], Went]
) -> None:
    """Where one write takes a part alone, the rest is written after it, or the command ends with one line, exit 2."""
    went = undisturbed(name)
    writes = [number for number, call_ in enumerate(went.calls) if call_.startswith("write")]
    for at in writes:
        begin(place, went.old)
        with Disk(place.root, sudden(at, "short")).watched():
            said = STEPS[name].run(place)
        found = disk.state(place.root)

        if said == went.said:
            assert files(found) == files(went.new)
        else:
            assert re.fullmatch(r"[^\n]+: [0-9]+ of [0-9]+ bytes written; is the disk full\?\n", said.err)
            assert (said.code, said.out) == (2, "")
            check_whole(went, found)
            check_goes_on(name, went, place)

    assert writes


def test_a_freeze_whose_last_sync_fails_goes_on(place: StudyPlace, undisturbed: Callable[[str], Went]) -> None:
    """Where a freeze says that it could not write, the same command may be called again once it can."""
    went = undisturbed("freeze")
    begin(place, went.old)
    at = max(number for number, call_ in enumerate(went.calls) if call_ == "sync frozen_cases")
    with Disk(place.root, sudden(at, OSError(errno.EIO, os.strerror(errno.EIO)))).watched():
        failed = freeze(place)

    assert failed == (2, "", f"{place.frozen}: cannot be written: Input/output error\n")
    assert freeze(place) == went.said


@pytest.mark.parametrize("code", [errno.EROFS, errno.EACCES, errno.EDQUOT], ids=errno.errorcode.get)
@pytest.mark.parametrize("name", STEPS)
def test_where_nothing_may_be_written_is_one_line(
    name: str, code: int, place: StudyPlace, undisturbed: Callable[[str], Went]
) -> None:
    """A folder that may only be read is one line, exit 2, and stays as it is; where it may be written, all is well."""
    went = undisturbed(name)
    begin(place, went.old)
    with Disk(place.root, lambda _number, _kind: OSError(code, os.strerror(code))).watched() as watched:
        said = STEPS[name].run(place)

    assert watched.calls
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert f": cannot be written: {os.strerror(code)}" in said.err
    assert disk.state(place.root) == went.old
    assert STEPS[name].run(place) == went.said


def test_what_only_reads_works_where_nothing_may_be_written(
    place: StudyPlace, stages: dict[str, State], tmp_path: Path
) -> None:
    """Commands that write no file of a study ask nothing of its disk, and end as where they may write."""
    begin(place, stages["reported"])
    own = place.results("bf16")
    readers: list[list[object]] = [
        ["replay", place.folder],
        ["replay", own.folder],
        ["replay", place.folder, "--json"],
        ["gen", own.study_json, "--explain"],
        ["gen", own.study_json, "--check", place.root / "lines.txt"],
        ["freeze", place.folder, "--check"],
        ["apply", place.root / "lines.txt", "--table", place.table, "--diff"],
        ["time", place.folder, "--dtype", "all", "--split", "holdout", "--plan"],
        ["bundle", place.folder, "-o", tmp_path / "small.tar.gz", "--keep-host"],
        ["status", place.folder],
    ]
    for command in readers:
        may = call(*command)
        with Disk(place.root, lambda _number, _kind: OSError(errno.EROFS, "")).watched() as watched:
            may_not = call(*command)

        assert may_not == may
        assert (may.err, watched.calls) == ("", [])
        assert may.code == (3 if command[0] == "replay" and command[1] != own.folder else 0), command


def test_an_archive_on_a_full_disk_is_one_line(
    place: StudyPlace, stages: dict[str, State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An archive that cannot be unpacked for want of space is one line, exit 2, and nothing of it is left."""
    begin(place, stages["reported"])
    archive = place.root / "out" / "small.tar.gz"
    assert bundle(place).code == 0
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with Disk(tmp_path).watched() as watched:
        holds = call("replay", archive)
    for at in needs_space(watched.calls):
        with Disk(tmp_path, full(at, [])).watched():
            said = call("replay", archive)

        assert (said.code, said.out, said.err.count("\n")) == (2, "", 1), watched.calls[at]
        assert "No space left" in said.err
        assert said.err.startswith(f"{archive}: ") or at == 0  # that is the folder that it goes into
        assert list(tmp_path.iterdir()) == []

    assert (holds.code, list(tmp_path.iterdir())) == (3, [])


# interrupted


@pytest.fixture(scope="module")
def interrupted(
    place: StudyPlace, undisturbed: Callable[[str], Went]
) -> Callable[[str], list[tuple[str, Said, State]]]:
    """Return how a step ends that is stopped by the keyboard in each of its calls, and what is there then."""

    @functools.cache
    def ends(name: str) -> list[tuple[str, Said, State]]:
        went = undisturbed(name)
        found = []
        for at, call_ in enumerate(went.calls):
            begin(place, went.old)
            with quick(), Disk(place.root, sudden(at, KeyboardInterrupt())).watched():
                said = STEPS[name].run(place)
            found.append((call_, said, disk.state(place.root)))
        return found

    return ends


Interrupted = Callable[[str], list[tuple[str, Said, State]]]


@pytest.mark.parametrize("name", STEPS)
def test_an_interrupt_leaves_nothing_half_written(
    name: str, place: StudyPlace, undisturbed: Callable[[str], Went], interrupted: Interrupted
) -> None:
    """Stopped by the keyboard in any call, a command says so in one line, exit 130, and goes on when called again."""
    went = undisturbed(name)
    seen: list[dict[str, bytes]] = []
    for _, said, found in interrupted(name):
        assert (said.code, said.err) == (130, STOPPED)
        assert went.said.out.startswith(said.out)
        check_whole(went, found)
        if files(found) not in seen:
            seen.append(files(found))
            begin(place, found)
            check_goes_on(name, went, place)

    assert seen


@pytest.mark.parametrize("name", STEPS)
def test_an_interrupt_leaves_nothing_beside(name: str, interrupted: Interrupted) -> None:
    """Stopped by the keyboard in any call, a command takes away what it wrote beside the files that it was to write."""
    assert {call_: beside(found) for call_, _, found in interrupted(name) if beside(found)} == {}


def forked(run: Callable[[], object]) -> int:
    """Return the id of a child process that does this and nothing else."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # it has threads of a library, which the child does not use
        child = os.fork()
    if child == 0:
        try:
            run()
        finally:
            os._exit(0)
    return child


@pytest.mark.parametrize(
    ("by", "kind"),
    [(signal.SIGKILL, "write"), (signal.SIGKILL, "rename"), (signal.SIGTERM, "write"), (signal.SIGTERM, "sync")],
    ids=["killed in a write", "killed in a rename", "ended in a write", "ended in a sync"],
)
@pytest.mark.parametrize("name", STEPS)
def test_a_process_that_is_killed(
    name: str, kind: str, by: signal.Signals, place: StudyPlace, undisturbed: Callable[[str], Went]
) -> None:
    """A real process that ends by a signal in a write, a rename or a sync leaves what such a moment leaves."""
    went = undisturbed(name)
    at = [number for number, call_ in enumerate(went.calls) if call_.startswith(kind)][-1]
    begin(place, went.old)

    def run() -> None:
        with Disk(place.root, sudden(at, by)).watched():
            STEPS[name].run(place)

    _, status = os.waitpid(forked(run), 0)
    found = disk.state(place.root)

    assert os.WIFSIGNALED(status)
    assert os.WTERMSIG(status) == by
    check_whole(went, found)
    check_goes_on(name, went, place)


# two at once


@contextlib.contextmanager
def at_work(place: StudyPlace) -> Iterator[Callable[[], None]]:
    """Return a context in which another process is at work on a study, and how it is killed."""
    reading, writing = os.pipe()

    def work() -> None:
        with timing.alone(place):
            os.write(writing, b"x")
            time.sleep(PATIENCE_S)

    alive = [forked(work)]
    os.close(writing)

    def kill() -> None:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        alive.clear()

    try:
        assert os.read(reading, 1) == b"x"
        yield kill
    finally:
        kill()
        os.close(reading)


WRITERS: dict[str, tuple[str, Callable[[StudyPlace], Said]]] = {
    "time": ("frozen", timed),
    "time, another dtype": ("frozen", lambda place: timed(place, "train", "f16")),
    "time, complete": ("trained", timed),
    "time, another attempt": ("held", lambda place: timed(place, "train", "bf16", "--attempt", "new", "--reason", "x")),
    "apply": ("trained", apply),
    "score": ("held", score),
    "run": ("frozen", lambda place: call("run", place.folder, "--dtype", "bf16")),
    "driver": ("trained", driver),
}


@pytest.mark.parametrize("name", WRITERS)
def test_the_second_says_that_another_is_at_work(name: str, place: StudyPlace, stages: dict[str, State]) -> None:
    """While another process is at work on a study, one line says so, exit 2; once it is dead, nobody does."""
    stage, run = WRITERS[name]
    old = begin(place, stages[stage])
    with at_work(place) as kill:
        said, found = run(place), disk.state(place.root)
        kill()
        again = run(place)

    assert said == (2, "", f"{place.folder}: another process is at work on this study\n")
    assert found == old
    assert again.code == 0
    assert disk.state(place.root) != old or name == "time, complete"


def test_readers_do_not_wait_for_who_is_at_work(place: StudyPlace, stages: dict[str, State]) -> None:
    """While another process is at work on a study, it is replayed, packed, reported and generated from."""
    begin(place, stages["scored"])
    with at_work(place):
        said = [
            report(place),
            bundle(place),
            call("replay", place.results("bf16").folder),
            call("gen", place.results("bf16").study_json),
            timed(place, "holdout", "bf16", "--plan"),
            call("freeze", place.folder, "--check"),
            call("status", place.folder),
        ]

    assert [one.code for one in said] == [0] * 7


@pytest.mark.parametrize("name", ["time", "apply", "score", "driver"])
def test_a_replay_beside_never_crashes(name: str, place: StudyPlace, undisturbed: Callable[[str], Went]) -> None:
    """Whichever moment of another command a replay sees, it has a conclusion, and nothing but a torn end fails."""
    states = distinct([now for now, _, _ in undisturbed(name).killed])
    for found in states:
        begin(place, found)
        said = call("replay", place.folder)
        failed = [line for line in said.out.splitlines() if line.startswith("FAIL")]

        assert (said.err, said.code in {1, 3}) == ("", True)
        assert re.search(r"^(holds|does not hold|cannot say): [^\n]+\n\Z", said.out, re.MULTILINE)
        if name in {"time", "driver"}:
            assert [line for line in failed if not line.endswith(": torn; expected a whole line")] == []


@pytest.mark.parametrize("name", ["time", "score"])
def test_a_replay_while_files_change_never_crashes(
    name: str, place: StudyPlace, undisturbed: Callable[[str], Went], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where another command goes on between any two files that a replay reads, the replay ends with a conclusion."""
    states = distinct([now for now, _, _ in undisturbed(name).killed])
    coming: list[State] = []
    read = Path.read_bytes

    def read_later(path: Path) -> bytes:
        if coming:
            change(place.root, coming.pop(0))
        return read(path)

    for start in range(0, len(states), 3):
        begin(place, states[start])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", read_later)
            coming[:] = states[start + 1 :]
            said = call("replay", place.folder)
            coming.clear()

        assert (said.err, said.code in {1, 3}) == ("", True)


def change(root: Path, wanted: State) -> None:
    """Let a folder's files become these, one by one, as a command goes on that removes nothing but what is beside."""
    for name, data in wanted.items():
        path = root / name
        if data is None:
            path.mkdir(exist_ok=True)
        else:
            path.with_name(".coming").write_bytes(data)
            path.with_name(".coming").replace(path)


@pytest.mark.parametrize("kind", ["mkdir", "write", "rename"])
def test_of_two_freezes_at_once_one_is_whole(kind: str, place: StudyPlace, undisturbed: Callable[[str], Went]) -> None:
    """A freeze that another one overtakes ends with one line, and the other's frozen cases are whole."""
    went = undisturbed("freeze")
    begin(place, went.old)
    at = [number for number, call_ in enumerate(went.calls) if call_.startswith(kind)][-1]
    other: list[Said] = []

    def overtake(number: int, _kind: str) -> Fate:
        if number == at and not other:
            other.append(Said(-1, "", ""))
            other[0] = freeze(place)
        return None

    with Disk(place.root, overtake).watched():
        said = freeze(place)

    assert other == [went.said]
    assert (said.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert files(disk.state(place.root)) == files(went.new)
    assert beside(disk.state(place.root)) == []


def test_no_other_lines_are_applied_within_a_score(place: StudyPlace, stages: dict[str, State]) -> None:
    """From its first look at the records to its event, a score is alone: lines that come in between are refused."""
    begin(place, stages["held"])
    weaker = call("gen", place.results("bf16").study_json, "--margin", "0.6", "--emit")
    (place.root / "weaker.txt").write_text(weaker.out)
    between: list[Said] = []
    real = results.score_of

    def score_of(*args: Any) -> dict[str, Any]:
        between.append(call("apply", place.root / "weaker.txt", "--table", place.table))
        return real(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "score_of", score_of)
        said = score(place)

    assert weaker.out
    assert (said.code, between[0].code) in {(0, 2), (3, 0)}


# clocks


class Clock:
    """A clock that tells these times one after the other, and then the last one."""

    def __init__(self, *times: str) -> None:
        self._times = list(times)

    def __call__(self) -> str:
        """Return the next time."""
        return self._times.pop(0) if len(self._times) > 1 else self._times[0]


BACKWARDS = [f"20{year}-06-01T00:00:00+00:00" for year in range(60, 20, -1)]


@pytest.mark.parametrize(
    "times",
    [BACKWARDS, BACKWARDS[::-1], [*["9999-12-31T23:59:59+00:00"] * 2, NOW], [NOW, NOW, "1970-01-01T00:00:00+00:00"]],
    ids=["backwards", "forwards", "the far future first", "no battery"],
)
def test_a_clock_may_be_wrong(place: StudyPlace, stages: dict[str, State], times: list[str]) -> None:
    """Whatever the clock says between sessions, events and commands, a study goes its way, and its replay holds."""
    begin(place, stages["declared"])
    study, clock = opening.open_study(place), Clock(*times)

    def stop(_name: str, step: Progress) -> None:
        if step.done == 2:
            raise KeyboardInterrupt

    hooks = finished.hooks()._replace(now=clock)
    for _ in range(2):
        with contextlib.suppress(KeyboardInterrupt):
            pipeline.run(study, place, ("bf16",), hooks._replace(progress=stop))
    scores = pipeline.run(study, place, ("bf16",), hooks)
    replayed = call("replay", place.results("bf16").folder)
    started = [file.session.started for file in job_of(place).attempts()[0].files]

    assert (len(started), len(set(started)) > 1) == (3, True)
    assert [found["verdict"] for found in scores] == ["PASS"]
    assert (replayed.code, "FAIL" in replayed.out) == (0, False)


def test_a_deadline_goes_by_a_clock_that_nobody_sets(
    place: StudyPlace, stages: dict[str, State], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real device's deadline is as far away as it was, however the machine's time is set meanwhile."""
    begin(place, stages["declared"])
    monkeypatch.setattr(time, "monotonic_ns", lambda: 5)
    budget = budget_of(msgspec.structs.replace(opening.open_study(place), engine="torch_sdpa"), "10s")
    assert budget is not None
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)

    assert budget.remaining_ns == 10 * 10**9


@pytest.mark.parametrize("zone", ["AAA-14", "BBB+12", "NPT-5:45", "EST5EDT,M3.2.0,M11.1.0", "no zone"])
def test_times_are_told_in_utc(monkeypatch: pytest.MonkeyPatch, zone: str) -> None:
    """In whatever zone, a time is told in UTC in the same letters, so that the order of texts is that of times."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        before, told, after = time.time(), REAL_NOW(), time.time()
    time.tzset()

    assert re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\+00:00", told)
    assert int(before) <= calendar.timegm(time.strptime(told, "%Y-%m-%dT%H:%M:%S+00:00")) <= after


@pytest.mark.parametrize(
    ("started", "is_before"),
    [
        ("2025-12-31T23:59:59+00:00", True),
        ("2026-01-01T00:00:00+00:00", True),
        ("2026-01-01T00:00:01+00:00", False),
        ("2026-01-01T01:30:00+02:00", True),
        ("2025-12-31T23:30:00-02:00", False),
        ("2026-01-01T00:00:00Z", True),
        ("2025-12-31T23:59:59.999999+00:00", True),
        ("20260101T000001Z", False),
        ("9999-12-31T23:59:59+00:00", False),
    ],
)
def test_who_measured_first_is_told_by_times(
    place: StudyPlace, stages: dict[str, State], started: str, is_before: bool
) -> None:
    """A hold-out that another study began to measure before, at that time in whatever zone, is not unseen.

    Where a time is not told in UTC, its record may be refused as well.
    """
    begin(place, stages["reported"])
    other = StudyPlace(place.root, "other")
    shutil.copytree(place.frozen, other.frozen)
    file = job_of(place, Split.HOLDOUT).attempts()[0].files[0]
    assert file.session.started == NOW
    path = other.results("bf16").records / file.path.name
    session = msgspec.structs.replace(file.session, study="other", started=started)
    write_session(path, session, map(unchained, file.records))
    other.study_yaml.write_bytes(place.study_yaml.read_bytes())
    (said,) = re.findall(r"(\S+) +bf16 unseen hold-out: (.+)\n", call("replay", place.folder).out)

    assert said[0] == ("FAIL" if is_before else "ok") or (not started.endswith("+00:00") and "started" in said[1])
