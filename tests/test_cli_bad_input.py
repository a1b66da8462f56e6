"""Bad input: one line on stderr that says where, exit code 2, no traceback, and nothing is written."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import finished
import pytest
from bad_records import BAD_RECORDS, Spoil
from bad_studies import BAD
from commands import Said, call, tree
from factories import STUDY_YAML

from studytool.layout import StudyPlace

ROOT = Path(__file__).resolve().parent.parent


def process(*args: object, **environment: str) -> Said:
    """Return how `python -m studytool` ended as a process of its own."""
    found = subprocess.run(
        [sys.executable, "-m", "studytool", *map(str, args)],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )
    return Said(found.returncode, found.stdout.decode(errors="replace"), found.stderr.decode(errors="replace"))


def refused(root: Path, *args: object, by: Callable[..., Said] = call) -> str:
    """Return the one line that a command says of bad input, after checking that it did nothing else."""
    before = tree(root)
    said = by(*args)

    assert (said.code, said.out) == (2, "")
    assert re.fullmatch(r"[^\n]+\n", said.err)
    assert "Traceback" not in said.err
    assert tree(root) == before
    return said.err.removesuffix("\n")


@pytest.mark.parametrize(("old", "new", "message"), BAD.values(), ids=BAD.keys())
def test_a_bad_study_is_one_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    """Each fault of study.yaml stops `freeze` with file, line, found and expected."""
    place = finished.declare(tmp_path, STUDY_YAML.replace(old, new), "tiny")

    assert refused(tmp_path, "freeze", place.folder) == f"studies/tiny/study.yaml:{message}"


@pytest.mark.parametrize(("spoil", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_bad_records_are_one_line(whole: StudyPlace, spoil: Spoil, message: str) -> None:
    """Each fault of a records file stops score, report and time with file and line; the ledger is not told of it."""
    spoil(whole)
    said = [
        refused(whole.root, command, whole.folder, "--dtype", "bf16", *more)
        for command, *more in (["score"], ["report"], ["time", "--split", "holdout"])
    ]

    assert said[0].startswith(f"studies/whole/bf16/records/holdout-01-{message}")
    assert said[1:] == said[:1] * 2


Change = Callable[[str], str]


def swap(old: str, new: str) -> Change:
    """Return what replaces the first `old`, which must be there, by `new`."""

    def change(text: str) -> str:
        assert old in text
        return text.replace(old, new, 1)

    return change


BAD_SUMMARIES: dict[str, tuple[Change, str]] = {
    "empty": (lambda _: "", "not a study.json: Input data was truncated"),
    "cut": (lambda text: text[:500], "not a study.json: "),
    "a list": (lambda _: "[]", "not a study.json: Expected `object`, got `array`"),
    "schema": (swap('"schema": 1', '"schema": 2'), "schema 2; this version reads 1"),
    "unknown field": (swap('"schema": 1', '"schema": 1, "more": 1'), "not a study.json: Object contains unknown field"),
    "a float": (swap('"ratio_ppm":', '"ratio_ppm":0.5'), "not a study.json: "),
    "outside of its interval": (swap('"low_ppm":', '"low_ppm":9'), "case "),
    "other class": (swap('"class":["open_engine"', '"class":["other"'), "case "),
    "no such feature": (swap('"class_key": ["dtype"', '"class_key": ["type"'), "found feature type; expected one of"),
    "no such scope": (
        swap('"scope":"class"', '"scope":"all"'),
        "no regimes, a negative margin, or a scope that is not",
    ),
    "missing leg": (swap('"auto":"', '"other":"'), "case "),
    "not UTF-8": (swap("open_engine", "\udcff"), "not a study.json: "),
    "no text": (swap("open_engine", "\\ud800"), "not a study.json: "),
    "too deep": (lambda _: "[" * 100_000, "not a study.json: "),
}


def spoiled(path: Path, change: Change) -> None:
    """Change a file's text; surrogates stand for bytes that are not UTF-8."""
    path.write_bytes(change(path.read_text("utf-8")).encode("utf-8", "surrogateescape"))


@pytest.mark.parametrize(("change", "message"), BAD_SUMMARIES.values(), ids=BAD_SUMMARIES.keys())
def test_a_bad_summary_is_one_line(whole: StudyPlace, change: Change, message: str) -> None:
    """Each fault of study.json stops the generator with the file and what was found."""
    path = whole.results("bf16").study_json
    spoiled(path, change)

    assert refused(whole.root, "gen", path).startswith(f"{path}: {message}")


BAD_LINES: dict[str, tuple[Change, str]] = {
    "empty": (lambda _: "", ":1: expected `# studytool lines` and its header; was it made by gen.py --emit?"),
    "no header": (lambda text: text.partition("\n")[2], ":1: expected `# studytool lines` and its header"),
    "schema": (swap('"schema":1', '"schema":2'), ":1: schema 2; this version reads 1"),
    "unknown field": (swap('"schema":1', '"schema":1,"more":1'), ":1: not a header: Object contains unknown field"),
    "no such feature": (swap('["dtype"', '["type"'), ":1: features type, d_qk; expected names of features"),
    "code": (swap('("from"', '(open("x")'), ":2: not a literal"),
    "not Python": (swap('("from"', '("from'), ":2: not Python: "),
    "a line twice": (lambda text: text + text.partition("\n")[2], ":3: "),
    "an empty line": (lambda text: text + "\n", ":3: expected one entry a line, sorted, nothing else"),
    "changed spacing": (swap("256, {", "256,  {"), ":2: expected one entry a line, sorted, nothing else"),
    "carriage returns": (lambda text: text.replace("\n", "\r\n"), ":1: a carriage return; expected LF alone"),
    "not UTF-8": (lambda text: text + "\udcff\n", ":3: not UTF-8"),
    "other key": (swap('"bf16", 64)', '"bf16")'), ":2: key "),
}


@pytest.mark.parametrize(("change", "message"), BAD_LINES.values(), ids=BAD_LINES.keys())
def test_bad_lines_are_one_line(whole: StudyPlace, change: Change, message: str) -> None:
    """Each fault of a lines file stops apply with file and line; neither the table nor a ledger changes."""
    path = whole.root / "lines.txt"
    path.write_bytes(whole.results("bf16").lines.read_bytes())
    spoiled(path, change)

    for table in (whole.table, whole.root / "other.py"):
        assert refused(whole.root, "apply", path, "--table", table).startswith(f"{path}{message}")


def test_lines_that_do_not_fit_the_table_are_one_line(whole: StudyPlace) -> None:
    """A table that has the row with other features, or is no table, is not touched."""
    lines = whole.results("bf16").lines
    path = whole.root / "other.py"
    spoiled_table = whole.table.read_text().replace('("dtype", "d_qk")', '("dtype", "d_v")')
    path.write_text(spoiled_table)
    other = refused(whole.root, "apply", lines, "--table", path)
    path.write_text("print(1)\n")

    assert other.startswith(f"{path}: row open_engine has features ('dtype', 'd_v') in the table; the lines have ")
    assert refused(whole.root, "apply", lines, "--table", path).startswith(f"{path}:1: ")


MANIFEST = "frozen_cases/whole/MANIFEST.json"
BAD_MANIFESTS: dict[str, tuple[Change, str]] = {
    "empty": (lambda _: "", f"{MANIFEST}:1: not a manifest: Input data was truncated"),
    "cut": (lambda text: text[:100], f"{MANIFEST}:1: not a manifest: "),
    "schema": (swap('"schema": 1', '"schema": 2'), f"{MANIFEST}:1: schema 2; this version reads 1"),
    "unknown field": (swap('"schema": 1', '"schema": 1, "more": 1'), f"{MANIFEST}:1: not a manifest: Object contains"),
    "not UTF-8": (swap('"whole"', '"\udcff"'), f"{MANIFEST}:1: not a manifest: "),
    "other study": (swap('"study_sha256": "', '"study_sha256": "0'), "studies/whole/study.yaml: changed since it was"),
    "other hash": (swap('"gate.json":"', '"gate.json":"0'), "frozen_cases/whole/gate.json: sha256 "),
    "no such file": (swap('"gate.json"', '"gone.json"'), "frozen_cases/whole/gate.json: not in MANIFEST.json"),
    "a file elsewhere": (
        swap('{"bf16.h', '{"/etc/passwd":"0","bf16.h'),
        f"{MANIFEST}:1: not a manifest: found file '/etc/passwd'; expected one",
    ),
    "a name of two lines": (
        swap('{"bf16.h', '{"a\\nb":"0","bf16.h'),
        f"{MANIFEST}:1: not a manifest: found file 'a\\nb'; expected one",
    ),
}


@pytest.mark.parametrize(("change", "message"), BAD_MANIFESTS.values(), ids=BAD_MANIFESTS.keys())
def test_a_bad_manifest_is_one_line(whole: StudyPlace, change: Change, message: str) -> None:
    """Each fault of MANIFEST.json stops every command that needs frozen cases, before it does anything."""
    spoiled(whole.manifest, change)
    checked = call("freeze", whole.folder, "--check")
    said = [refused(whole.root, name, whole.folder, "--dtype", "bf16") for name in ("time", "score", "report", "run")]

    assert said[0].startswith(message)
    assert said == said[:1] * 4
    assert checked == (2 if message.startswith(f"{MANIFEST}:1:") else 1, "", f"{said[0]}\n")


@pytest.mark.parametrize("line", [1, 3])
def test_a_bad_ledger_is_one_line(whole: StudyPlace, line: int) -> None:
    """A ledger whose chain is broken stops what would add to it, with file and line."""
    path = whole.results("bf16").ledger
    lines = path.read_bytes().splitlines(keepends=True)
    lines[line - 1] = lines[line - 1].replace(b"2026", b"2025")
    path.write_bytes(b"".join(lines))

    for command in ("score", "report", "time"):
        assert re.fullmatch(
            rf".*bf16/ledger\.jsonl:{line}: changed after it was written",
            refused(whole.root, command, whole.folder, "--dtype", "bf16"),
        )


def as_study(place: StudyPlace) -> list[Any]:
    """Spoil study.yaml, and return the command that reads it."""
    spoiled(place.study_yaml, swap("engine: ", "engin: "))
    return ["freeze", place.folder, "--check"]


def as_records(place: StudyPlace) -> list[Any]:
    """Spoil the records, and return the command that reads them."""
    BAD_RECORDS["NaN"][0](place)
    return ["score", place.folder, "--dtype", "bf16"]


def as_summary(place: StudyPlace) -> list[Any]:
    """Spoil study.json, and return the command that reads it."""
    spoiled(place.results("bf16").study_json, swap('"schema": 1', '"schema": 2'))
    return ["gen", place.results("bf16").study_json]


@pytest.mark.parametrize("spoil", [as_study, as_records, as_summary], ids=["study.yaml", "records", "study.json"])
def test_a_process_ends_as_the_command_does(whole: StudyPlace, spoil: Callable[[StudyPlace], list[Any]]) -> None:
    """`python -m studytool` says the same one line and exits 2, as a process of its own."""
    command = spoil(whole)

    assert refused(whole.root, *command, by=process) == refused(whole.root, *command)
