"""What a hold-out may not share: no case with train, no declared feature, no case of an excluded study."""

import json
import re
from pathlib import Path
from typing import Any

import finished
import pytest
from factories import STUDY_YAML

from studytool import freeze, opening
from studytool.digest import pretty, sha256
from studytool.errors import FrozenError
from studytool.layout import StudyPlace

OTHER = STUDY_YAML.replace("[80, 144]", "[88, 152]").replace("s_kv: 128, h_q: 4", "s_kv: 192, h_q: 4")
"""A study that shares no hold-out and no routing case with the small one."""


def declared(root: Path, text: str = STUDY_YAML, name: str = "tiny") -> StudyPlace:
    """Return the place of a study that was only declared, under this name."""
    return finished.declare(root, re.sub(r"^name: .+$", f"name: {name}", text, flags=re.MULTILINE), name)


def freeze_it(place: StudyPlace, *exclude: Path) -> str:
    """Freeze a study and return the line to post."""
    return freeze.freeze(opening.open_study(place), place, list(exclude), "c0ffee")


def frozen(root: Path, text: str, name: str) -> StudyPlace:
    """Return the place of a study that was declared and frozen."""
    place = declared(root, text, name)
    freeze_it(place)
    return place


def manifest_of(place: StudyPlace) -> dict[str, Any]:
    """Return the content of MANIFEST.json."""
    found: dict[str, Any] = json.loads(place.manifest.read_bytes())
    return found


BAD_SPLITS = {
    "a train case in the hold-out": (
        "{s_kv: [80, 144], h_q: 2, d_qk: 32}\n    differs: [s_kv, d_qk]",
        "{s_kv: [80, 128], h_q: 4, d_qk: 64}",
        "1 holdout cases are train cases, such as sdpa_fwd bf16 b1 h4 d64 S128",
    ),
    "a train case in the routing split": (
        "h_q: 4, d_qk: 64, layout: strided",
        "h_q: 4, d_qk: 64",
        "1 routing cases are train cases, such as sdpa_fwd bf16 b1 h4 d64 S128",
    ),
    "a feature that must differ": (
        "s_kv: [80, 144], h_q: 2, d_qk: 32",
        "s_kv: [96, 144], h_q: 2, d_qk: 32",
        "hold-out and train share s_kv 96; expected none (holdout.differs)",
    ),
}


@pytest.mark.parametrize(("old", "new", "message"), BAD_SPLITS.values(), ids=BAD_SPLITS.keys())
def test_splits_that_overlap_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    """A hold-out that shares a case, or a declared feature's value, with train is never frozen."""
    assert STUDY_YAML.count(old) == 1
    place = declared(tmp_path, STUDY_YAML.replace(old, new))
    with pytest.raises(FrozenError) as caught:
        freeze_it(place)

    assert str(caught.value) == f"studies/tiny/study.yaml: {message}"
    assert not place.frozen.parent.exists()


def test_an_excluded_study_is_recorded(tmp_path: Path) -> None:
    """The manifests that the hold-out was checked against stand in the new manifest, with name and hash."""
    earlier = frozen(tmp_path, OTHER, "earlier")
    place = declared(tmp_path)
    freeze_it(place, earlier.manifest)

    assert manifest_of(place)["disjoint_from"] == [{"name": "earlier", "sha256": sha256(earlier.manifest.read_bytes())}]
    assert freeze.check(opening.open_study(place), place)[1] == []


@pytest.mark.parametrize("split", ["train", "holdout"])
def test_a_case_of_an_excluded_study_is_refused(tmp_path: Path, split: str) -> None:
    """A hold-out case that an earlier study had in any split is named, and nothing is frozen."""
    text = OTHER
    if split == "train":
        text = text.replace("s_kv: [64, 128, 256, 512], h_q: 4, d_qk: 64", "s_kv: [144], h_q: 2, d_qk: 32")
        text = text.replace("differs: [s_kv, d_qk]", "differs: [s_kv]")
    else:
        text = text.replace("[88, 152]", "[88, 144]")
    earlier = frozen(tmp_path, text, "earlier")
    place = declared(tmp_path)
    with pytest.raises(FrozenError, match=r": 1 holdout cases are in earlier, such as sdpa_fwd bf16 b1 h2 d32 S144$"):
        freeze_it(place, earlier.manifest)

    assert not place.frozen.exists()


def break_file(earlier: StudyPlace) -> None:
    """Change a case of an earlier study."""
    path = earlier.frozen / "bf16.holdout.jsonl"
    path.write_bytes(path.read_bytes().replace(b"88", b"89"))


BAD_EXCLUDES = {
    "changed file": (break_file, r"bf16\.holdout\.jsonl: sha256 \w{64}; its manifest has \w{64}$"),
    "missing file": (lambda e: (e.frozen / "bf16.train.jsonl").unlink(), r"bf16\.train\.jsonl: cannot be read: No su"),
    "no manifest": (
        lambda e: e.manifest.write_text("{}"),
        r"MANIFEST\.json:1: not a manifest: Object missing required",
    ),
    "empty": (lambda e: e.manifest.write_text(""), r"MANIFEST\.json:1: not a manifest: Input data was truncated"),
    "schema": (
        lambda e: e.manifest.write_bytes(pretty(manifest_of(e) | {"schema": 2})),
        r"MANIFEST\.json:1: schema 2; this version reads 1$",
    ),
    "absent": (lambda e: e.manifest.unlink(), r"MANIFEST\.json: cannot be read: No such file or directory$"),
}


@pytest.mark.parametrize(("spoil", "message"), BAD_EXCLUDES.values(), ids=BAD_EXCLUDES.keys())
def test_a_bad_excluded_study_is_refused(tmp_path: Path, spoil: Any, message: str) -> None:
    """An excluded study whose manifest or files are not as they should be excludes nothing silently."""
    earlier = frozen(tmp_path, OTHER, "earlier")
    spoil(earlier)
    place = declared(tmp_path)
    with pytest.raises(FrozenError, match=message):
        freeze_it(place, earlier.manifest)

    assert not place.frozen.exists()
