"""The drivers: whole runs as people start them, each leaving its own digest in the records."""

import importlib.util
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import benches
import finished
import pytest
import stopping
from click.testing import CliRunner
from commands import Said, call

from studytool import ledger, opening, pipeline
from studytool.attempts import Job
from studytool.digest import sha256
from studytool.layout import StudyPlace
from studytool.model import Split

ROOT = Path(__file__).resolve().parent.parent
DRIVERS = ROOT / "drivers"


def drive(name: str, *args: object) -> Said:
    """Return how a driver ended that was started with these arguments."""
    spec = importlib.util.spec_from_file_location(name, DRIVERS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    found = CliRunner().invoke(module.main, [str(arg) for arg in args], catch_exceptions=False)
    return Said(found.exit_code, found.stdout, found.stderr)


def noted(place: StudyPlace, dtype: str = "bf16") -> list[ledger.Body]:
    """Return what a ledger tells of drivers."""
    return [event.body for event in ledger.read(place.results(dtype).ledger) if event.event == "driver"]


def first_run(root: Path, monkeypatch: pytest.MonkeyPatch, lines: int = 5) -> Job:
    """Return the hold-out of a study that was trained, fitted, and stopped after some hold-out lines."""
    benches.inline(monkeypatch)
    text = finished.WHOLE_YAML.replace("dtypes: [bf16, f16]", "dtypes: [bf16]")
    head, tail = text.split("      - {dtype: f16")
    place = finished.declare(root, head + tail.split("\n", 1)[1])
    pipeline.freeze_study(opening.open_study(place), place, [])
    job = opening.job_of(opening.open_study(place), place, "bf16", Split.TRAIN)
    stopping.applied(job)
    holdout = job._replace(split=Split.HOLDOUT)
    if lines:
        benches.stopped(holdout, lines)
    return holdout


def test_full_study_goes_the_whole_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a declaration to a report that replays; the driver and its caller are kept with their digests."""
    benches.inline(monkeypatch)
    place = finished.declare(tmp_path)
    caller = tmp_path / "caller.sh"
    caller.write_text("python drivers/full_study.py\n")

    found = drive("full_study", place.folder, "--dtype", "all", "--deadline", "1h", "--caller", caller)

    assert found.code == 0
    assert found.out.splitlines()[0].startswith("| dtype | cases | default |")
    for dtype in ("bf16", "f16"):
        assert place.results(dtype).report.is_file()
        assert noted(place, dtype) == [
            {"name": path.name, "sha256": sha256(path.read_bytes())} for path in (caller, DRIVERS / "full_study.py")
        ]
    code, out, _ = call("replay", place.folder)
    assert code == 0
    digest = sha256((DRIVERS / "full_study.py").read_bytes())[:12]
    assert f"drivers: caller.sh sha256:{sha256(caller.read_bytes())[:12]}, full_study.py sha256:{digest}\n" in out


def test_full_study_that_is_started_again_does_nothing_twice(whole: StudyPlace) -> None:
    """A finished study stays as it is; the driver's start alone is added to the ledger."""
    before = {path: path.read_bytes() for path in sorted(whole.folder.rglob("*.jsonl")) if path.name != "ledger.jsonl"}

    assert drive("full_study", whole.folder, "--dtype", "bf16").code == 0
    assert drive("full_study", whole.folder, "--dtype", "bf16").code == 0
    assert all(path.read_bytes() == data for path, data in before.items())
    assert len(noted(whole)) == 2


def test_full_study_prewarms_an_engine_that_compiles(tmp_path: Path) -> None:
    """An engine without a cache of kernels is told in one line, and nothing is timed."""
    place = finished.declare(tmp_path)
    code, out, err = drive("full_study", place.folder, "--dtype", "bf16", "--prewarm", 2)

    assert (code, out) == (2, "")
    assert err.endswith("--prewarm: found engine simulated; expected cudnn, whose compiled kernels are kept\n")
    assert not place.results("bf16").records.exists()


@pytest.mark.parametrize("change", [b"# changed\n", None])
def test_a_driver_that_is_not_the_one_that_ran_is_found(whole: StudyPlace, change: bytes | None) -> None:
    """Replay holds the kept copy against the ledger: one that was changed, or is gone, makes its own check fail."""
    drive("full_study", whole.folder, "--dtype", "bf16")
    kept = next((whole.folder / "drivers").iterdir())
    if change is None:
        kept.unlink()
    else:
        kept.write_bytes(kept.read_bytes() + change)

    code, out, _ = call("replay", whole.folder / "bf16")
    failed = [line for line in out.splitlines() if line.startswith("FAIL")]

    assert code == 1
    assert failed == [
        f"FAIL        bf16 drivers: studies/whole/drivers/{kept.name}: not the script that was started,"
        f" sha256:{kept.name[:12]}"
    ]


def test_the_hold_out_of_another_host_is_timed_from_scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first run's checks the whole hold-out is a new attempt; the lines of the first stay, unscored."""
    job = first_run(tmp_path, monkeypatch)
    benches.inline(monkeypatch, uuid="another")

    code, out, err = drive("holdout_only", job.place.folder, "--dtype", "bf16", "--reason", "the first host is gone")

    assert code == 0
    assert out.startswith("| dtype |")
    assert "ok          bf16 lines: " in err
    assert [(attempt.number, attempt.found) for attempt in job.attempts()] == [(1, 5), (2, 12)]
    assert job.attempts()[1].files[0].session.reason == "the first host is gone"
    assert [body["name"] for body in noted(job.place)] == ["holdout_only.py"]
    code, out, _ = call("replay", job.place.folder)
    assert code == 0
    assert "unscored attempt 1: 5 of 12" in out


def test_the_hold_out_of_another_host_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command with the same reason goes on with its own attempt."""
    job = first_run(tmp_path, monkeypatch)
    asked = ("holdout_only", job.place.folder, "--dtype", "bf16", "--reason", "again")

    assert drive(*asked).code == 0
    assert drive(*asked).code == 0
    assert [(attempt.number, attempt.found) for attempt in job.attempts()] == [(1, 5), (2, 12)]


def test_without_a_reason_lines_of_another_run_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where hold-out lines are there, a reason is asked for; where there are none, none is needed."""
    job = first_run(tmp_path / "begun", monkeypatch)
    code, out, err = drive("holdout_only", job.place.folder, "--dtype", "bf16")

    assert (code, out) == (2, "")
    assert err.endswith("bf16 holdout: 5 of 12 lines of another run; expected --reason\n")
    fresh = first_run(tmp_path / "fresh", monkeypatch, lines=0)
    assert drive("holdout_only", fresh.place.folder, "--dtype", "bf16").code == 0
    assert [attempt.number for attempt in fresh.attempts()] == [1]


@pytest.mark.parametrize(
    ("name", "check"), [("bf16/lines.txt", "lines"), ("table.py", "table"), ("bf16/study.json", "study.json")]
)
def test_a_first_run_that_does_not_hold_is_not_built_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, check: str
) -> None:
    """Changed lines, a changed table or a changed summary stop the driver before anything is timed."""
    job = first_run(tmp_path, monkeypatch)
    path = job.place.folder / name
    path.write_bytes(path.read_bytes().replace(b"256", b"128"))

    code, _, err = drive("holdout_only", job.place.folder, "--dtype", "bf16", "--reason", "again")

    assert code == 1
    assert f"the first run does not hold: {check}: " in err.splitlines()[-1]
    assert [attempt.number for attempt in job.attempts()] == [1]


def test_the_probe_stops_where_there_is_no_gpu(tmp_path: Path) -> None:
    """Without a GPU the probe ends after the doctor, whose list is in the folder, and no study was begun."""
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "CUDA_VISIBLE_DEVICES": "",
        "SCRATCH": str(tmp_path / "scratch"),
    }
    found = subprocess.run(
        ["bash", DRIVERS / "h200_probe.sh", tmp_path / "out"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )

    assert found.returncode == 1
    assert "MISSING  cudnn       GPU: none" in (tmp_path / "out" / "doctor.txt").read_text()
    assert not (tmp_path / "out" / "plans.txt").exists()
    with tarfile.open(tmp_path / "out" / "probe.tgz") as archive:
        names = archive.getnames()
    assert "./studies/sdpa_fwd_sm90_probe/study.yaml" in names
    assert not any("bf16/" in name and "records" in name for name in names)


def test_the_probe_puts_wheels_together_and_checks_them(tmp_path: Path) -> None:
    """A part that is not what SHA256SUMS says ends the probe before anything is installed."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    (wheels / "a.whl.00").write_bytes(b"one")
    (wheels / "a.whl.01").write_bytes(b"two")
    (wheels / "SHA256SUMS").write_text(f"{sha256(b'onetwoo')}  a.whl\n")
    found = subprocess.run(
        ["bash", DRIVERS / "h200_probe.sh", tmp_path / "out", wheels],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHON": "false", "SCRATCH": str(tmp_path / "scratch")},
    )

    assert found.returncode != 0
    assert "a.whl: FAILED" in found.stdout
    assert not (tmp_path / "out" / "doctor.txt").exists()


def test_doctor_tells_of_each_engine() -> None:
    """Without a study each engine's needs are listed and nothing is a fault; for a study what is missing is exit 1."""
    code, out, err = call("doctor")
    assert (code, err) == (0, "")
    assert {line.split()[1] for line in out.splitlines()} == {"cudnn", "torch_sdpa"}

    code, out, err = call("doctor", ROOT / "studies" / "sdpa_bwd_sm80_square")
    assert code == 1
    assert err == f"this machine cannot measure {ROOT}/studies/sdpa_bwd_sm80_square: " + err.split(": ", 1)[1]
    assert any(line.startswith("MISSING  cudnn       GPU: none") for line in out.splitlines())

    code, out, _ = call("doctor", ROOT / "studies" / "sim_demo", "--json")
    assert (code, json.loads(out)) == (0, {"schema": 1, "engines": {"simulated": []}})
