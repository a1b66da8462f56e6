"""Where the files of a study are. Nothing here touches the disk."""

import os
from pathlib import Path
from typing import NamedTuple

from studytool.errors import StudyFileError
from studytool.lanes import session_stem
from studytool.model import Split


class StudyPlace(NamedTuple):
    """The folders of one study: `root` holds studies/ and frozen_cases/."""

    root: Path
    name: str

    def shown(self, path: Path) -> str:
        """Return how messages name a file of the study: relative to the root."""
        return path.relative_to(self.root).as_posix()

    @property
    def folder(self) -> Path:
        """Return studies/NAME."""
        return self.root / "studies" / self.name

    @property
    def study_yaml(self) -> Path:
        """Return the declaration."""
        return self.folder / "study.yaml"

    @property
    def table(self) -> Path:
        """Return the table that the hold-out is timed with."""
        return self.folder / "table.py"

    @property
    def report(self) -> Path:
        """Return the report over all dtypes."""
        return self.folder / "report.md"

    @property
    def page(self) -> Path:
        """Return the report over all dtypes with its plots, for a browser."""
        return self.folder / "report.html"

    def driver(self, name: str, sha256: str) -> Path:
        """Return where the copy of a script that was started is kept."""
        return self.folder / "drivers" / f"{sha256[:12]}-{name}"

    @property
    def frozen(self) -> Path:
        """Return frozen_cases/NAME."""
        return self.root / "frozen_cases" / self.name

    @property
    def manifest(self) -> Path:
        """Return the manifest of the frozen cases."""
        return self.frozen / "MANIFEST.json"

    @property
    def gate(self) -> Path:
        """Return the frozen gate."""
        return self.frozen / "gate.json"

    def cases(self, dtype: str, split: Split) -> Path:
        """Return the file of frozen cases of one dtype and split."""
        return self.frozen / f"{dtype}.{split}.jsonl"

    def results(self, dtype: str) -> "ResultPlace":
        """Return where the results of one dtype are."""
        return ResultPlace(self.folder / dtype)


class ResultPlace(NamedTuple):
    """The folder of what was found for one dtype, studies/NAME/DTYPE."""

    folder: Path

    @property
    def records(self) -> Path:
        """Return the folder of the records files."""
        return self.folder / "records"

    def session(self, split: Split, attempt: int, session: int, lane: str = "") -> Path:
        """Return the records file of one session of a lane."""
        return self.records / f"{session_stem(split, attempt, lane)}{session:03d}.jsonl"

    @property
    def study_json(self) -> Path:
        """Return the train summary."""
        return self.folder / "study.json"

    @property
    def lines(self) -> Path:
        """Return the emitted lines."""
        return self.folder / "lines.txt"

    @property
    def score(self) -> Path:
        """Return the score."""
        return self.folder / "score.json"

    @property
    def report(self) -> Path:
        """Return the report."""
        return self.folder / "report.md"

    @property
    def page(self) -> Path:
        """Return the report with its plots, for a browser."""
        return self.folder / "report.html"

    @property
    def ledger(self) -> Path:
        """Return the ledger."""
        return self.folder / "ledger.jsonl"


def place_of(path: Path) -> StudyPlace:
    """Return the place of a study from its folder or study.yaml; StudyFileError when it is not in a studies/ folder."""
    folder = Path(os.path.normpath((path.parent if path.name == "study.yaml" else path).absolute()))
    if folder.parent.name != "studies":
        raise StudyFileError(f"{path}: found outside a studies folder; expected ROOT/studies/NAME/study.yaml")
    return StudyPlace(folder.parent.parent, folder.name)


def study_beside(path: Path) -> StudyPlace | None:
    """Return the study in whose folder a file is, None where it is in none."""
    folder = Path(os.path.normpath(path.absolute())).parent
    is_study = folder.parent.name == "studies" and (folder / "study.yaml").is_file()
    return StudyPlace(folder.parent.parent, folder.name) if is_study else None


def find_study(start: Path) -> StudyPlace:
    """Return the study whose folder is `start` or the nearest one above it; StudyFileError when there is none."""
    here = Path(os.path.normpath(start.absolute()))
    for folder in (here, *here.parents):
        if folder.parent.name == "studies" and (folder / "study.yaml").is_file():
            return place_of(folder)
    raise StudyFileError("no study here; expected a STUDY argument or a folder below studies/NAME")
