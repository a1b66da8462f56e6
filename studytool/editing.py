"""The steps on a table: lines put into it, what they would change, what each decides, two tables made one."""

from pathlib import Path

from studytool import apply, changes, freeze, ledger, lines, results, timing
from studytool.errors import CannotSayError, CheckFailedError, TableError
from studytool.files import read_bytes, write_atomic
from studytool.layout import StudyPlace, study_beside
from studytool.model import Case, Split
from studytool.opening import job_of, open_study
from studytool.sessions import Now


def apply_lines(lines_path: Path, table_path: Path, now: Now) -> apply.Applied:
    """Put lines into a table; the ledgers are told when the table is that of a study."""
    place = _place_of_table(lines_path, table_path)
    if place is None:
        return apply.apply(lines_path, table_path, None, now())
    if place.frozen.exists():
        study = open_study(place)
        for dtype in study.dtypes:
            if place.results(dtype).records.is_dir():
                timing.seal(job_of(study, place, dtype, Split.TRAIN), now)
    with timing.alone(place):
        for path in sorted(place.folder.glob("*/ledger.jsonl")):
            ledger.drop_torn_tail(path)
        return apply.apply(lines_path, table_path, place, now())


def _place_of_table(lines_path: Path, table_path: Path) -> StudyPlace | None:
    """Return the study whose table this is, None for another table; TableError where the lines are not its own."""
    if not table_path.absolute().parent.is_dir():
        raise TableError(f"{table_path}: its folder is not there; expected the folder of a study or of a library")
    place = study_beside(table_path)
    if place is None or table_path.name != place.table.name:
        return None
    study = open_study(place)
    header = lines.read_lines(read_bytes(lines_path), str(lines_path))[0]
    if header.study != study.name or header.dtype not in study.dtypes:
        raise TableError(
            f"{lines_path}:1: found lines of study {header.study}, {header.dtype};"
            f" expected study {study.name}, {' or '.join(study.dtypes)}"
        )
    return place


def preview(lines_path: Path, table_path: Path) -> str:
    """Return what `apply_lines` would change, and which frozen cases that moves; nothing is written."""
    place = _place_of_table(lines_path, table_path)
    found = apply.draft(lines_path, table_path, place)
    splits, device = ({}, None) if place is None else _asked_of(place, found.header)
    return changes.text(changes.changes(found.before, found.after, splits, device))


def attest(lines_path: Path, table_path: Path) -> str:
    """Return that each of the lines decides some frozen case; CheckFailedError names one that decides none."""
    place = _place_of_table(lines_path, table_path)
    if place is None:
        raise TableError(f"{table_path}: not the table of a study; expected studies/NAME/table.py, whose cases attest")
    found = apply.draft(lines_path, table_path, place)
    splits, device = _asked_of(place, found.header)
    keys = list(lines.read_lines(found.body, str(lines_path))[1].entries)
    cases = [case for own in splits.values() for case in own]
    if device is None:
        raise CannotSayError(f"{place.folder}: no study.json; expected the train split of {found.header.dtype} timed")
    if idle := changes.idle(found.after, keys, cases, device):
        raise CheckFailedError(f"{lines_path}: the entry of {idle[0]} changes no frozen case; it says nothing")
    if not keys:
        return "no lines, so that there is nothing that they could change"
    return f"each of {len(keys)} lines, turned into its opposite, changes what a frozen case gets"


def _asked_of(place: StudyPlace, header: lines.Header) -> tuple[dict[Split, list[Case]], changes.Device | None]:
    """Return the frozen cases of the lines' dtype by split, and the device that its train split was timed on."""
    frozen = freeze.verify(open_study(place), place)
    splits = {split: list(frozen.of(header.dtype, split).values()) for split in frozen.cases}
    path = place.results(header.dtype).study_json
    if not path.is_file():
        return splits, None
    train = results.study_json(read_bytes(path), str(path)).summary
    return splits, changes.Device(train.cc, train.board)


def merge(one: Path, other: Path, into: Path) -> str:
    """Write the entries of two tables into one file, and return how many came from each."""
    sources = [(read_bytes(path), str(path)) for path in (one, other)]
    texts = [lines.read_table(data, name) for data, name in sources]
    tables = [lines.parse_table(data, name) for data, name in sources]
    numbers = tuple({key: entry.line for key, entry in table.entries.items()} for table in tables)
    merged = changes.merge(texts[0], texts[1], (str(one), str(other)), numbers)
    write_atomic(into, lines.table_text(merged).encode())
    return f"{into}: {len(merged.entries)} entries, {len(texts[0].entries)} and {len(texts[1].entries)}"
