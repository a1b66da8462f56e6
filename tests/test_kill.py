"""However often and whenever timing is killed, it goes on where it was, and nothing is lost, doubled or left over."""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from benches import make_job, on_disk, planned, sealed
from factories import STUDY_YAML

import studytool
from studytool import jsonl, ledger
from studytool.attempts import Job
from studytool.digest import sha256

PATIENCE_S = 120
LONG = STUDY_YAML.replace("[bf16]", "[f32]").replace(
    "h_q: 4, d_qk: 64}", "b: [1, 2, 3, 4, 5, 6, 7, 8], h_q: 4, d_qk: 64}"
)
LONG = LONG.replace("blocks: 8", "blocks: 2400")
HANGING = STUDY_YAML.replace("+ 64000}", "+ 64000, timeout: b == 1}")
TORCH = STUDY_YAML[: STUDY_YAML.index("simulated: {")].replace(
    "engine: simulated\nrow: open_engine", "engine: torch_sdpa\nrow: torch_sdpa_math"
)


def _start(job: Job) -> subprocess.Popen[str]:
    """Return the command that times the train split, in a session of its own."""
    command = [sys.executable, "-m", "studytool", "time", str(job.place.folder), "--dtype", job.dtype]
    return subprocess.Popen(
        [*command, "--split", "train"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(Path(studytool.__file__).parent.parent)},
    )


def _alive(session: int) -> list[str]:
    """Return the processes of a session that run, as the system tells: id, name, state, parent, group, session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            text = path.read_text()
            state, _, _, own = text.rpartition(")")[2].split()[:4]
            found += [text] if int(own) == session and state not in "ZX" else []
    return found


def _wait(until: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not until():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)


def _whole_lines(job: Job) -> int:
    return sum(path.read_bytes().count(b"\n") for path in job.results.records.glob("*.jsonl"))


def _kill(process: subprocess.Popen[str], everyone: bool) -> None:
    """Kill the command, with its workers or alone, and wait until none of them runs."""
    (os.killpg if everyone else os.kill)(process.pid, signal.SIGKILL)
    process.communicate()
    _wait(lambda: not _alive(process.pid))

    assert process.returncode == -signal.SIGKILL


def _lose_power(job: Job, dice: random.Random) -> int:
    """Cut the newest file somewhere in its last line, as a loss of power could, and return how many lines that cost."""
    newest = max(job.results.records.glob("*.jsonl"))
    data = newest.read_bytes()
    begin = data.rstrip(b"\n").rfind(b"\n") + 1
    newest.write_bytes(data[: dice.randrange(begin, len(data))] if data else b"")
    return int(data.endswith(b"\n"))


def _check_records(job: Job) -> None:
    """Check without the package's reader: each planned line is there once, and each line follows the one before."""
    found = []
    for path in sorted(job.results.records.glob("*.jsonl")):
        whole = path.read_bytes().split(b"\n")[:-1]
        lines = [json.loads(line) for line in whole]
        found += [(line["case"], line["repeat"], line["regime"]) for line in lines[1:]]

        assert [line["prev"] for line in lines[1:]] == [sha256(line + b"\n") for line in whole[:-1]]
    assert sorted(found) == sorted(planned(job))


def _check_end(job: Job) -> None:
    """Let timing come to its end, and check its words, its records, its chains and its ledger."""
    process = _start(job)
    said, complained = process.communicate(timeout=PATIENCE_S)
    count = len(planned(job))
    attempt = job.attempts()[-1]
    whole = {path.name for path in job.results.records.glob("*.jsonl") if jsonl.read(path)}

    slow = re.sub(rf"^{job.dtype} train: \d+ of \d+ lines, .*\n", "", complained, flags=re.MULTILINE)

    assert (process.returncode, slow) == (0, "")  # off a terminal, progress is a line every half minute
    assert said == f"{job.dtype} train: attempt 1, {count} of {count} lines\n"
    assert _alive(process.pid) == []
    _check_records(job)
    assert (attempt.number, attempt.found, attempt.missing) == (1, count, frozenset())
    assert [e.event for e in ledger.read(job.results.ledger)] == ["frozen", *["session"] * len(whole)]
    assert sealed(job) == {name: digest for name, digest in on_disk(job).items() if name in whole}


def test_killed_at_any_moment_nothing_is_lost_or_doubled(tmp_path: Path) -> None:
    """Killed eight times, with and without its workers, and cut off from power in between, timing still ends right."""
    job, dice = make_job(tmp_path, text=LONG, dtype="f32"), random.Random(20)
    for number in range(8):
        before = _whole_lines(job)
        lines = dice.choice([0, 1, 1, 2, 3, 5])
        process = _start(job)
        if lines:
            _wait(lambda: _whole_lines(job) >= before + lines)  # noqa: B023 - called within the loop
        time.sleep(dice.uniform(0, 0.08 if lines else 1.2))
        _kill(process, everyone=number % 2 == 0)
        kept = _whole_lines(job)

        assert kept >= before + lines
        if number % 4 == 3 and kept > before:
            cost = _lose_power(job, dice)
            assert _whole_lines(job) == kept - cost
    _check_end(job)


def test_worker_that_hangs_does_not_outlive_its_parent(tmp_path: Path) -> None:
    """A worker in the middle of a case ends with its parent; while both run, a second command is refused."""
    job = make_job(tmp_path, text=HANGING)
    process = _start(job)
    _wait(lambda: _whole_lines(job) == 1)
    running = len(_alive(process.pid))
    second = _start(job)
    said, complained = second.communicate(timeout=PATIENCE_S)
    _kill(process, everyone=False)

    assert running == 2
    assert (second.returncode, said) == (2, "")
    assert complained == f"{job.place.folder}: another process is at work on this study\n"
    assert (len(on_disk(job)), sealed(job)) == (1, {})


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.whole
def test_killed_torch_study_goes_on(tmp_path: Path) -> None:
    """A study of torch's engines, killed three times, ends right as well."""
    pytest.importorskip("torch")
    job, dice = make_job(tmp_path, text=TORCH), random.Random(3)
    for number in range(3):
        before = _whole_lines(job)
        process = _start(job)
        _wait(lambda: _whole_lines(job) >= before + 2)  # noqa: B023 - called within the loop
        time.sleep(dice.uniform(0, 0.05))
        _kill(process, everyone=number == 1)
    _check_end(job)
