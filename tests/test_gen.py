"""gen.py: the same study.json gives the same bytes in any process, and nothing but study.json is read."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from factories import make_levels, make_summary

import studytool
from studytool import studyjson
from studytool.studyjson import Summary

GEN = Path(studytool.__file__).parents[1] / "gen.py"
WATCH = f"""
import runpy, sys
watched = ("open", "os.listdir", "os.scandir")
sys.addaudithook(lambda event, args: print(event, args[0], file=sys.stderr) if event in watched else None)
sys.path.insert(0, {str(GEN.parent)!r})
runpy.run_path({str(GEN)!r}, run_name="__main__")
"""


def _summary() -> Summary:
    """Return a summary of classes that get a line, and of one with a conflict."""
    cases = [*make_levels("L W W W W"), *make_levels("W W W W", mask="br"), *make_levels("W W L W", mask="tl")]
    return make_summary(cases, class_key=("dtype", "mask"))


def _start(path: Path, *options: str, code: str = "", **settings: str) -> subprocess.Popen[str]:
    program = ["-c", code] if code else [str(GEN)]
    return subprocess.Popen(
        [sys.executable, *program, str(path), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **settings},
    )


def _said(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate()

    assert (process.returncode, err) == (0, "")
    return out


@pytest.mark.slow
def test_same_bytes_in_any_process(tmp_path: Path) -> None:
    """Hash seed, locale, time zone, folder and the order of cases in study.json change no byte of the lines."""
    summary = _summary()
    seeds, locales, zones = range(10), ("C", "tr_TR.UTF-8"), ("UTC", "Asia/Kathmandu", "America/St_Johns")
    running = []
    for seed, locale, zone in zip(seeds, itertools.cycle(locales), itertools.cycle(zones), strict=False):
        path = tmp_path / str(seed) / "study.json"
        path.parent.mkdir()
        path.write_bytes(studyjson.encode(summary))
        environment = {"PYTHONHASHSEED": str(seed), "LC_ALL": locale, "TZ": zone}
        running.append(_start(path, "--margin", "0.05", "--emit", **environment))
        if len(running) % 4 == 0:
            running[-1].wait()
    turned = msgspec.structs.replace(summary, cases=(*summary.cases[7:], *reversed(summary.cases[:7])))
    (tmp_path / "turned.json").write_bytes(studyjson.encode(turned))
    shuffled = _said(_start(tmp_path / "turned.json", "--margin", "0.05", "--emit"))
    texts = {_said(process) for process in running}
    lines = texts.pop().splitlines()

    assert not texts
    assert len(lines) == 3
    assert shuffled.splitlines()[0] != lines[0]
    assert shuffled.splitlines()[1:] == lines[1:]


def test_nothing_but_the_summary_is_read(tmp_path: Path) -> None:
    """With records, a hold-out's too, and a table that cannot be read beside it, gen.py opens study.json alone."""
    folder = tmp_path / "studies" / "tiny" / "bf16"
    for name in (
        "records/holdout-01-001.jsonl",
        "records/train-01-001.jsonl",
        "score.json",
        "../table.py",
        "lines.txt",
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"\xff no such thing")
    (folder / "study.json").write_bytes(studyjson.encode(_summary()))
    out, err = _start(folder / "study.json", "--emit", code=WATCH).communicate()
    ours = {line for line in err.splitlines() if str(tmp_path) in line or "holdout" in line}

    assert len(out.splitlines()) == 3
    assert ours == {f"open {folder / 'study.json'}"}


def test_modes_and_check(tmp_path: Path) -> None:
    """--explain and --json tell what became of each class; --check compares a file, and exits 1 where it differs."""
    (tmp_path / "study.json").write_bytes(studyjson.encode(_summary()))
    started = [_start(tmp_path / "study.json", mode) for mode in ("--explain", "--json", "--emit")]
    explained, listed, emitted = map(_said, started)
    (tmp_path / "same").write_text(emitted, encoding="utf-8")
    (tmp_path / "other").write_text(emitted.replace("win 4/4", "win 5/5"), encoding="utf-8")
    same, other = (_start(tmp_path / "study.json", "--check", str(tmp_path / name)) for name in ("same", "other"))
    out, err = other.communicate()

    assert [row["code"] for row in json.loads(listed)] == [None, None, "CONFLICT"]
    assert [line.split()[1] for line in explained.splitlines()[1:]] == ["br", "none", "tl"]
    assert _said(same) == f"{tmp_path / 'same'}: as generated\n"
    assert other.returncode == 1
    assert [line[:2] for line in out.splitlines()] == ["--", "++", "@@", "- ", "- ", "+ ", "+ "]
    assert err.startswith(f"{tmp_path / 'other'}:2: not what ")
    assert err.count("\n") == 1
