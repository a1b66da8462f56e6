"""Freezing: written once, as declared, checked disjoint; every byte of it is verified ever after."""

import json
import os
import re
from pathlib import Path
from typing import Any

import finished
import pytest
from commands import call, tiny
from factories import STUDY_YAML
from finished import WHOLE_YAML

import studytool
from studytool import files, freeze, opening
from studytool.digest import canonical, pretty, sha256
from studytool.errors import FrozenError, StudyError
from studytool.layout import StudyPlace
from studytool.model import Split

TINY_FILES = ["MANIFEST.json", "bf16.holdout.jsonl", "bf16.routing.jsonl", "bf16.train.jsonl", "gate.json"]


def declared(root: Path, text: str = STUDY_YAML, name: str = "tiny") -> StudyPlace:
    """Return the place of a study that was only declared, under this name."""
    return finished.declare(root, re.sub(r"^name: .+$", f"name: {name}", text, flags=re.MULTILINE), name)


def freeze_it(place: StudyPlace, *exclude: Path) -> str:
    """Freeze a study and return the line to post."""
    return freeze.freeze(opening.open_study(place), place, list(exclude), "c0ffee")


def frozen(root: Path, text: str = STUDY_YAML, name: str = "tiny") -> StudyPlace:
    """Return the place of a study that was declared and frozen."""
    place = declared(root, text, name)
    freeze_it(place)
    return place


def check(place: StudyPlace) -> list[str]:
    """Return everything that differs from what was frozen."""
    return freeze.check(opening.open_study(place), place)[1]


def manifest_of(place: StudyPlace) -> dict[str, Any]:
    """Return the content of MANIFEST.json."""
    found: dict[str, Any] = json.loads(place.manifest.read_bytes())
    return found


def floats(value: Any) -> list[float]:
    """Return every float of a JSON value."""
    if isinstance(value, dict | list):
        return [n for part in (value.values() if isinstance(value, dict) else value) for n in floats(part)]
    return [value] if isinstance(value, float) else []


def test_the_files_are_those_of_the_design(tmp_path: Path) -> None:
    """One file per dtype and split, the gate and the manifest, all ending in LF and without a carriage return."""
    place = frozen(tmp_path)
    data = [path.read_bytes() for path in place.frozen.iterdir()]

    assert sorted(path.name for path in place.frozen.iterdir()) == TINY_FILES
    assert all(body.endswith(b"\n") and b"\r" not in body for body in data)
    assert [path.name for path in place.frozen.parent.iterdir()] == ["tiny"]


def test_cases_are_canonical_lines_sorted_by_digest(tmp_path: Path) -> None:
    """Each line is the canonical JSON of one case of the file's dtype, without a float, in the order of the digests."""
    place = finished.declare(tmp_path, WHOLE_YAML)
    freeze_it(place)
    count = 0
    for path in sorted(place.frozen.glob("*.jsonl")):
        lines = path.read_bytes().splitlines()
        values = [json.loads(line) for line in lines]
        count += len(lines)

        assert lines == [canonical(value) for value in values] == sorted(lines, key=sha256)
        assert {value["dtype"] for value in values} == {path.name.split(".")[0]}
        assert floats(values) == []
    assert count == 6 + 11 + 4 + 4 + 1 + 1


def test_the_manifest_has_every_hash_and_count(tmp_path: Path) -> None:
    """MANIFEST.json names each other file with its SHA-256, study.yaml's, the counts, the tool and the commit."""
    place = frozen(tmp_path)
    others = [path for path in place.frozen.iterdir() if path != place.manifest]

    assert manifest_of(place) == {
        "schema": 1,
        "name": "tiny",
        "study_sha256": sha256(place.study_yaml.read_bytes()),
        "files": {path.name: sha256(path.read_bytes()) for path in others},
        "counts": {"train": 6, "holdout": 2, "routing": 1},
        "tool": studytool.__version__,
        "commit": "c0ffee",
        "disjoint_from": [],
    }


def test_the_gate_is_frozen_with_how_entries_are_decided(tmp_path: Path) -> None:
    """gate.json has the conditions as study.yaml writes them, and the rules of the fit in whole numbers."""
    gate = json.loads(frozen(tmp_path).gate.read_bytes())

    assert (gate["schema"], gate["name"]) == (1, "tiny")
    assert gate["gate"] == ["slower_beyond_noise == 0", "auto_over_default_geomean <= 1.02"]
    assert gate["decide"]["margin_ppm"] == 50_000
    assert floats(gate) == []


def test_the_posted_line_is_the_manifest_s_hash(tmp_path: Path) -> None:
    """The line to post holds the manifest's SHA-256 and the counts, so that it fixes everything."""
    place = declared(tmp_path)
    line = freeze_it(place)

    assert line == f"frozen tiny sha256:{sha256(place.manifest.read_bytes())} 2 holdout 1 routing 6 train"


def test_freezing_depends_on_the_declaration_alone(tmp_path: Path) -> None:
    """Two folders with the same study.yaml freeze to the same bytes."""
    one, other = frozen(tmp_path / "one"), frozen(tmp_path / "other")

    assert {p.name: p.read_bytes() for p in one.frozen.iterdir()} == {
        p.name: p.read_bytes() for p in other.frozen.iterdir()
    }


def test_what_is_frozen_is_never_rewritten(tmp_path: Path) -> None:
    """A second freeze is refused, also when study.yaml changed, and leaves the first as it was."""
    place = frozen(tmp_path)
    before = {path: path.read_bytes() for path in place.frozen.iterdir()}
    place.study_yaml.write_text(STUDY_YAML.replace("margin: 0.05", "margin: 0.06"))
    with pytest.raises(FrozenError, match=r"frozen_cases/tiny: is there already; frozen cases are never rewritten$"):
        freeze_it(place)

    assert {path: path.read_bytes() for path in place.frozen.iterdir()} == before
    assert check(place)[0] == "studies/tiny/study.yaml: changed since it was frozen (frozen_cases/tiny/MANIFEST.json)"


@pytest.mark.parametrize("name", TINY_FILES)
def test_a_changed_byte_of_any_line_is_named(tmp_path: Path, name: str) -> None:
    """One changed byte in any line of a frozen file is an error with that file and line (of the manifest: the file)."""
    place = frozen(tmp_path)
    path = place.frozen / name
    lines = path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        if name == "MANIFEST.json" and (b'"commit"' in line or b'"tool"' in line or b'"counts"' in line):
            continue  # what these say cannot be checked against study.yaml; the ledger's hash of the manifest guards it
        place_of_digit = re.search(rb"[0-9a-z]", line)
        if place_of_digit is None:
            continue
        changed = bytearray(line)
        changed[place_of_digit.start()] ^= 1
        path.write_bytes(b"".join([*lines[: number - 1], bytes(changed), *lines[number:]]))
        said = check(place)

        assert said, (name, number)
        assert name == "MANIFEST.json" or said[0].startswith(f"frozen_cases/tiny/{name}:{number}: differs from what")
        with pytest.raises(FrozenError):
            freeze.verify(opening.open_study(place), place)


@pytest.mark.parametrize(
    ("name", "line"), [("bf16.train.jsonl", 7), ("bf16.holdout.jsonl", 3), ("gate.json", 7)], ids=str
)
def test_what_stands_behind_the_last_line_is_named(tmp_path: Path, name: str, line: int) -> None:
    """A line too many, or one too few, is a difference in its own line."""
    place = frozen(tmp_path)
    path = place.frozen / name
    data = path.read_bytes()
    path.write_bytes(data + b"more\n")
    more = check(place)
    path.write_bytes(b"".join(data.splitlines(keepends=True)[:-1]))

    assert more == [f"frozen_cases/tiny/{name}:{line}: differs from what study.yaml makes"]
    assert check(place) == [f"frozen_cases/tiny/{name}:{line - 1}: differs from what study.yaml makes"]


def test_missing_and_unknown_files_are_named(tmp_path: Path) -> None:
    """A frozen file that is not there, not in the manifest, or only there, is named; a path elsewhere is not opened."""
    place = frozen(tmp_path)
    (place.frozen / "bf16.train.jsonl").unlink()
    content = manifest_of(place)
    del content["files"]["gate.json"]
    content["files"] |= {"more.jsonl": "0" * 64}
    place.manifest.write_bytes(pretty(content))
    found = check(place)
    content["files"] |= {"../up.jsonl": "0" * 64}
    place.manifest.write_bytes(pretty(content))

    assert found == [
        "frozen_cases/tiny/bf16.train.jsonl: not there",
        "frozen_cases/tiny/gate.json: not in MANIFEST.json",
        "frozen_cases/tiny/more.jsonl: not made by study.yaml",
    ]
    assert check(place) == [
        "frozen_cases/tiny/MANIFEST.json:1: not a manifest: found file '../up.jsonl'; expected one beside it"
    ]


def test_a_hash_of_another_file_is_named(tmp_path: Path) -> None:
    """A manifest whose hash is not that of the file that study.yaml makes is an error with both."""
    place = frozen(tmp_path)
    true = sha256(place.gate.read_bytes())
    place.manifest.write_bytes(place.manifest.read_bytes().replace(true.encode(), b"0" * 64))

    assert check(place) == [f"frozen_cases/tiny/gate.json: sha256 {true}; MANIFEST.json has {'0' * 64}"]


@pytest.mark.parametrize("after", range(len(TINY_FILES)))
def test_an_interrupted_freeze_counts_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Stopped after any number of files, nothing is frozen; the next freeze leaves the same bytes as an undisturbed."""
    place = declared(tmp_path)
    written: list[Path] = []

    def failing(path: Path, data: bytes) -> None:
        if len(written) == after:
            raise KeyboardInterrupt
        written.append(path)
        files.write_atomic(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(freeze, "write_atomic", failing)
        with pytest.raises(KeyboardInterrupt):
            freeze_it(place)
    said = check(place)
    freeze_it(place)

    assert said == ["frozen_cases/tiny/MANIFEST.json: not there; expected `studytool freeze` to have been run"]
    assert check(place) == []
    assert sorted(path.name for path in place.frozen.parent.rglob("*")) == sorted([*TINY_FILES, "tiny"])


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write or a rename that the system refuses is an error that names the file, and freezes nothing."""
    place = declared(tmp_path)

    def refuse(*_: Any) -> None:
        raise OSError(28, os.strerror(28))

    for owner, name in ((os, "fsync"), (Path, "replace")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, refuse)
            with pytest.raises(StudyError, match=r"/frozen_cases/.+: cannot be written: No space left on device$"):
                freeze_it(place)

        assert not place.frozen.exists()


def test_frozen_cases_are_found_by_dtype_and_split(tmp_path: Path) -> None:
    """What verify returns has the cases of one dtype and split by their digests; no case of a dtype that has none."""
    place = frozen(tmp_path)
    found = freeze.verify(opening.open_study(place), place)
    lines = (place.frozen / "bf16.train.jsonl").read_bytes().splitlines()

    assert list(found.of("bf16", Split.TRAIN)) == [sha256(line) for line in lines]
    assert found.of("f16", Split.TRAIN) == {}
    assert found.sha256 == sha256(place.manifest.read_bytes())


def test_cases_of_a_dtype_and_split_are_picked_once(tmp_path: Path) -> None:
    """Asked again, for every line of a split, the same mapping comes back: no line costs as much as there are cases."""
    place = tiny(tmp_path)
    call("freeze", place.folder)
    frozen = freeze.verify(opening.open_study(place), place)

    assert frozen.of("bf16", Split.TRAIN) is frozen.of("bf16", Split.TRAIN)
    assert frozen.of("bf16", Split.TRAIN) == frozen.cases[Split.TRAIN]
