"""Freeze a study's cases and gate: written once, hashed, checked disjoint; verified before everything after it."""

import bisect
import re
import shutil
import tempfile
from pathlib import Path

import msgspec

import studytool
from studytool import model
from studytool.decode import decode
from studytool.digest import pretty, sha256
from studytool.errors import FrozenError
from studytool.files import make_folder, read_bytes, sync_folder, write_atomic
from studytool.grid import case_line, differences_missing, expand
from studytool.layout import StudyPlace
from studytool.metrics import condition_text
from studytool.model import NAME, Case, Split, Study

Cases = dict[Split, dict[str, Case]]


class Exclusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An earlier frozen study that the hold-out shares no case with."""

    name: str
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What MANIFEST.json says: hashes, counts, and what the hold-out was checked against."""

    schema: int
    name: str
    study_sha256: str
    files: dict[str, str]
    counts: dict[str, int]
    tool: str
    commit: str
    disjoint_from: tuple[Exclusion, ...]


class Frozen:
    """Frozen cases that were verified: the manifest, its hash, and the cases by split and digest."""

    def __init__(self, manifest: Manifest, sha256: str, cases: Cases) -> None:
        self.manifest, self.sha256, self.cases = manifest, sha256, cases
        self._of: dict[tuple[str, Split], dict[str, Case]] = {}

    def of(self, dtype: str, split: Split) -> dict[str, Case]:
        """Return the cases of one dtype and split by digest, picked once: they are asked for line by line."""
        if (dtype, split) not in self._of:
            all_dtypes = self.cases.get(split, {})
            self._of[dtype, split] = {digest: case for digest, case in all_dtypes.items() if case.dtype == dtype}
        return self._of[dtype, split]


def freeze(study: Study, place: StudyPlace, exclude: list[Path], commit: str) -> str:
    """Write frozen_cases/NAME and return the line to post before timing. FrozenError when it is there already.

    `exclude` are manifests of earlier studies whose cases must not be in the hold-out or routing split; `commit` is
    the git commit of the tree, "" when there is none.
    """
    if place.frozen.exists():
        raise FrozenError(f"{place.frozen}: is there already; frozen cases are never rewritten")
    cases = expand(study)
    _check_disjoint(study, cases)
    exclusions = [_check_excluded(cases, path) for path in exclude]
    files = contents(study, place, cases)
    manifest = Manifest(
        schema=model.SCHEMA,
        name=study.name,
        study_sha256=study.sha256,
        files={name: sha256(data) for name, data in files.items()},
        counts={str(split): len(found) for split, found in cases.items()},
        tool=studytool.__version__,
        commit=commit,
        disjoint_from=tuple(exclusions),
    )
    data = pretty(msgspec.to_builtins(manifest))
    beside = _folder_beside(place.frozen)
    try:
        beside.chmod(0o755)
        for name, body in {**files, "MANIFEST.json": data}.items():
            write_atomic(beside / name, body)
        beside.replace(place.frozen)
        try:
            sync_folder(place.frozen.parent)
        except OSError:
            place.frozen.replace(beside)  # not frozen, so that it can be called again
            raise
    except OSError as error:
        raise FrozenError(f"{place.frozen}: cannot be written: {error.strerror}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return posted_line(manifest, sha256(data))


def _folder_beside(folder: Path) -> Path:
    """Return a new folder of this process's own, to be renamed to `folder` when it is whole."""
    try:
        make_folder(folder.parent)
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    except OSError as error:
        raise FrozenError(f"{folder}: cannot be written: {error.strerror}") from None
    return beside


def posted_line(manifest: Manifest, digest: str) -> str:
    """Return the line that says beforehand what was frozen."""
    return f"frozen {manifest.name} sha256:{digest} " + " ".join(
        f"{count} {split}" for split, count in sorted(manifest.counts.items())
    )


def contents(study: Study, place: StudyPlace, cases: Cases) -> dict[str, bytes]:
    """Return the files that a study freezes to, by name: they depend on study.yaml alone."""
    files = {place.gate.name: gate_bytes(study)}
    for split, found in cases.items():
        for dtype in study.dtypes:
            body = b"".join(case_line(case) + b"\n" for case in found.values() if case.dtype == dtype)
            files[place.cases(dtype, split).name] = body
    return files


def gate_bytes(study: Study) -> bytes:
    """Return gate.json: the gate's conditions and how entries are decided."""
    return pretty(
        {
            "schema": model.SCHEMA,
            "name": study.name,
            "gate": [condition_text(condition) for condition in study.gate],
            "decide": msgspec.to_builtins(study.decide),
        }
    )


def verify(study: Study, place: StudyPlace) -> Frozen:
    """Return the frozen cases after checking every file; FrozenError with the first thing that differs."""
    frozen, problems = check(study, place)
    if problems or frozen is None:
        raise FrozenError(problems[0])
    return frozen


def check(study: Study, place: StudyPlace) -> tuple[Frozen | None, list[str]]:
    """Return the frozen cases and a line, naming file and line, for everything that differs."""
    shown = place.shown(place.manifest)
    if not place.manifest.is_file():
        return None, [f"{shown}: not there; expected `studytool freeze` to have been run"]
    data = read_bytes(place.manifest, FrozenError)
    try:
        manifest = manifest_of(data, shown)
    except FrozenError as error:
        return None, [str(error)]
    problems = []
    cases = expand(study)
    try:
        _check_disjoint(study, cases)
    except FrozenError as error:
        problems.append(str(error))
    counts = {str(split): len(found) for split, found in cases.items()}
    if (manifest.name, manifest.counts) != (study.name, counts):
        problems.append(f"{shown}: name or counts are not those of {study.path}")
    if manifest.study_sha256 != study.sha256:
        problems.append(f"{study.path}: changed since it was frozen ({shown})")
    expected = contents(study, place, cases)
    for name in sorted(expected.keys() | manifest.files.keys()):
        problems += _file_problem(place, name, expected.get(name), manifest.files.get(name))
    return Frozen(manifest, sha256(data), cases), problems


def _file_problem(place: StudyPlace, name: str, expected: bytes | None, hashed: str | None) -> list[str]:
    path = place.frozen / name
    shown = f"{place.shown(place.frozen)}/{name}"  # a bad manifest may name a file that is elsewhere
    if expected is None or hashed is None:
        return [f"{shown}: {'not made by study.yaml' if expected is None else 'not in MANIFEST.json'}"]
    if not path.is_file():
        return [f"{shown}: not there"]
    found = read_bytes(path, FrozenError)
    if found != expected:
        return [f"{shown}:{first_difference(found, expected)}: differs from what study.yaml makes"]
    return [] if sha256(found) == hashed else [f"{shown}: sha256 {sha256(found)}; MANIFEST.json has {hashed}"]


def manifest_of(data: bytes, shown: str) -> Manifest:
    """Return the manifest in a MANIFEST.json's bytes; FrozenError, naming the file as `shown`, where it is none."""
    manifest = decode(data, Manifest, f"{shown}:1", "manifest", FrozenError)
    for name in (manifest.name, *(earlier.name for earlier in manifest.disjoint_from)):
        if re.fullmatch(NAME, name) is None:
            raise FrozenError(f"{shown}:1: not a manifest: found study {name[:100]!r}; expected a study's name")
    for name in manifest.files:
        if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", name) is None:
            raise FrozenError(f"{shown}:1: not a manifest: found file {name[:100]!r}; expected one beside it")
    return manifest


def first_difference(found: bytes, expected: bytes) -> int:
    """Return the number of the first line in which two files differ."""
    alike = bisect.bisect_left(
        range(min(len(found), len(expected))), True, key=lambda n: found[: n + 1] != expected[: n + 1]
    )
    return found.count(b"\n", 0, alike) + 1


def _check_disjoint(study: Study, cases: Cases) -> None:
    for split in (Split.HOLDOUT, Split.ROUTING):
        shared = sorted(cases[Split.TRAIN].keys() & cases.get(split, {}).keys())
        if shared:
            label = cases[Split.TRAIN][shared[0]].label
            raise FrozenError(f"{study.path}: {len(shared)} {split} cases are train cases, such as {label}")
    if common := differences_missing(study, cases):
        raise FrozenError(f"{study.path}: hold-out and train share {common[0]}; expected none (holdout.differs)")


def _check_excluded(cases: Cases, path: Path) -> Exclusion:
    """Return the exclusion of one manifest after checking its files and that no case of it is in the hold-out."""
    data = read_bytes(path, FrozenError)
    manifest = manifest_of(data, str(path))
    for name, hashed in sorted(manifest.files.items()):
        if not name.endswith(".jsonl"):
            continue
        body = read_bytes(path.parent / Path(name).name, FrozenError)
        if sha256(body) != hashed:
            raise FrozenError(f"{path.parent / name}: sha256 {sha256(body)}; its manifest has {hashed}")
        earlier = {sha256(line) for line in body.split(b"\n") if line}
        for split in (Split.HOLDOUT, Split.ROUTING):
            if shared := sorted(earlier & cases.get(split, {}).keys()):
                label = cases[split][shared[0]].label
                raise FrozenError(f"{path}: {len(shared)} {split} cases are in {manifest.name}, such as {label}")
    return Exclusion(name=manifest.name, sha256=sha256(data))


def disjoint(frozen: Frozen, place: StudyPlace) -> str:
    """Return what the hold-out and routing cases were held against; FrozenError for a case that is there, too.

    Earlier studies are held against as far as their frozen cases are beside those of this one.
    """
    train = frozen.cases[Split.TRAIN]
    for split in (Split.HOLDOUT, Split.ROUTING):
        if shared := sorted(train.keys() & frozen.cases.get(split, {}).keys()):
            raise FrozenError(f"{len(shared)} {split} cases are train cases, such as {train[shared[0]].label}")
    told = "train, hold-out and routing share no case"
    for earlier in frozen.manifest.disjoint_from:
        path = StudyPlace(place.root, earlier.name).manifest
        if not path.is_file():
            told += f"; {earlier.name} sha256:{earlier.sha256[:12]} is not here"
            continue
        found = _check_excluded(frozen.cases, path)
        if found != earlier:
            raise FrozenError(f"{place.shown(path)}: sha256 {found.sha256}; held against was {earlier.sha256}")
        told += f"; nor with {earlier.name}"
    return told
