"""Records → other tools: a row a sample as CSV or Parquet; as nvbench's JSON see there.

What is exported is the last attempt at each split, complete or not. Rows are in the order of timing: dtypes and splits
as they are asked for, then sessions, lines, blocks and places in a block as they were timed. A leg without samples,
such as one of a case that failed or was only planned, has one row with empty cells, so that nothing is passed over.
"""

import csv
import io
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from enum import Enum
from typing import NamedTuple

from studytool import freeze
from studytool.attempts import Attempt, Job, Kept
from studytool.digest import canonical
from studytool.errors import CannotSayError, StudyError
from studytool.layout import StudyPlace
from studytool.model import LEGS, Case, LegRecord, Record, Split, Study
from studytool.nvbench import nvbench_bytes
from studytool.runtime import key

Cell = str | int | tuple[int, ...] | None

DECIMALS = 19
"""Decimals of `ns_per_launch`: enough for every quotient by up to a million launches that has an end."""

_ACTS = frozenset("=+-@'＝＋－＠")  # noqa: RUF001 - some programs take the wide ones for the narrow ones
"""What a text must not begin with in a spreadsheet, and the apostrophe that is put before it."""


class Taken(NamedTuple):
    """The last attempt at a split of one dtype, whose job has the cases."""

    job: Job
    attempt: Attempt


class Kind(Enum):
    """What the cells of a column are; DECIMAL is an exact text of digits, INTEGERS a list."""

    TEXT = "text"
    INTEGER = "integer"
    DECIMAL = "decimal"
    INTEGERS = "integers"


class Table(NamedTuple):
    """A row a sample: the columns by name, and as many cells in each row."""

    columns: Mapping[str, Kind]
    rows: Sequence[tuple[Cell, ...]]


COLUMNS: dict[str, Kind] = {
    "case": Kind.TEXT,
    "label": Kind.TEXT,
    **{name: Kind.INTEGER if name in key.INTEGER_FIELDS else Kind.TEXT for name in key.FIELDS},
    "class": Kind.TEXT,
    "split": Kind.TEXT,
    "attempt": Kind.INTEGER,
    "repeat": Kind.INTEGER,
    "regime": Kind.TEXT,
    "leg": Kind.TEXT,
    "plan": Kind.TEXT,
    "plan_name": Kind.TEXT,
    "block": Kind.INTEGER,
    "place": Kind.INTEGER,
    "inner": Kind.INTEGER,
    "ns": Kind.INTEGER,
    "ns_per_launch": Kind.DECIMAL,
    "host_ns": Kind.INTEGER,
    "status": Kind.TEXT,
    "error": Kind.TEXT,
    "clock_mhz": Kind.INTEGERS,
}
"""The columns of every table, in order; `counter_NAME` and `state_NAME` follow as far as records have them."""


def jobs(study: Study, place: StudyPlace, dtypes: Sequence[str], splits: Sequence[Split]) -> list[Job]:
    """Return the jobs of a frozen study that have cases, by dtype and split; StudyError where none has.

    The records of a dtype are read once.
    """
    frozen = freeze.verify(study, place)
    kept = {dtype: Kept() for dtype in dtypes}
    found = [Job(study, place, frozen, dtype, split, kept[dtype]) for dtype in dtypes for split in splits]
    found = [job for job in found if job.cases]
    if not found:
        asked = f"{' or '.join(splits)} case of {' or '.join(dtypes)}"
        raise StudyError(f"{study.path}: found no {asked}; expected a split that the study declares")
    return found


def last_attempts(asked: Iterable[Job]) -> list[Taken]:
    """Return the last attempt of each job that was begun; CannotSayError where none was."""
    asked = list(asked)
    found = [Taken(job, own[-1]) for job in asked if (own := job.attempts())]
    if not found:
        names = ", ".join(f"{job.dtype} {job.split}" for job in asked)
        raise CannotSayError(f"{names}: nothing is measured yet; run `studytool time`")
    return found


def remarks(asked: Iterable[Job], found: Sequence[Taken]) -> list[str]:
    """Return a line for each job that is exported in part or not at all."""
    there = {(job.dtype, job.split): attempt for job, attempt in found}
    told = []
    for job in asked:
        attempt = there.get((job.dtype, job.split))
        if attempt is None:
            told.append(f"{job.dtype} {job.split}: nothing is measured yet")
        elif attempt.missing:
            told.append(
                f"{job.dtype} {job.split}: attempt {attempt.number} is incomplete,"
                f" {attempt.found} of {attempt.planned} lines"
            )
    return told


def table(found: Sequence[Taken]) -> Table:
    """Return a row a sample, in the order of timing; times in ns as they were taken, counts from 1."""
    records = [record for taken in found for file in taken.attempt.files for record in file.records]
    counters = sorted({name for record in records for leg in record.legs.values() for name in leg.counters})
    states = sorted({name for record in records for name in record.blocks})
    more = [f"counter_{name}" for name in counters] + [f"state_{name}" for name in states]
    columns = {**COLUMNS, **dict.fromkeys(more, Kind.INTEGER)}
    made = [
        tuple(map(row.get, columns))
        for taken in found
        for file in taken.attempt.files
        for record in file.records
        for row in _rows(record, taken.job.cases[record.case])
    ]
    return Table(columns, made)


def _rows(record: Record, case: Case) -> Iterator[dict[str, Cell]]:
    """Return the rows of one record, without the cells that are empty."""
    common: dict[str, Cell] = {
        "case": record.case,
        "label": case.label,
        **{name: getattr(case, name) for name in key.FIELDS},
        "class": canonical(record.class_key).decode(),
        "split": str(record.split),
        "attempt": record.attempt,
        "repeat": record.repeat,
        "regime": record.regime,
        "status": str(record.status),
        "error": record.error,
        "clock_mhz": record.clock_mhz,
    }
    legs = {name: _leg_cells(name, leg) for name, leg in record.legs.items()}
    for block, order in enumerate(record.order):
        state: dict[str, Cell] = {f"state_{name}": values[block] for name, values in record.blocks.items()}
        for place, index in enumerate(order, 1):
            name = LEGS[int(index)]
            sample = _sample_cells(record.legs[name], block)
            yield {**common, **legs[name], "block": block + 1, "place": place, **sample, **state}
    if not record.order:
        yield from ({**common, **legs[name]} for name in LEGS if name in legs)
        yield from () if legs else (common,)


def _leg_cells(name: str, leg: LegRecord) -> dict[str, Cell]:
    if leg.plan is None:
        return {"leg": name}
    return {"leg": name, "plan": leg.plan.identity, "plan_name": leg.plan.name}


def _sample_cells(leg: LegRecord, block: int) -> dict[str, Cell]:
    ns = leg.ns[block]
    return {
        "inner": leg.inner,
        "ns": ns,
        "ns_per_launch": quotient(ns, leg.inner),
        "host_ns": leg.host_ns[block] if leg.host_ns else None,
        **{f"counter_{name}": values[block] for name, values in leg.counters.items()},
    }


def quotient(ns: int, inner: int) -> str:
    """Return the time of one launch in ns as decimal text: exact where it ends, else half up in the last of DECIMALS.

    It ends where the launches have no other prime factors than 2 and 5; `ns` over `inner` is exact always.
    """
    scaled, rest = divmod(ns * 10**DECIMALS, inner)
    whole, part = divmod(scaled + (2 * rest >= inner), 10**DECIMALS)
    return f"{whole}.{part:0{DECIMALS}d}".rstrip("0").rstrip(".")


def csv_bytes(found: Sequence[Taken]) -> bytes:
    """Return a table as CSV: UTF-8, LF, a head line, cells quoted where they must be, nothing for what is not there.

    A text that a spreadsheet might run has an apostrophe before it, as has one that begins with an apostrophe: whoever
    reads a cell that begins with one takes one away. Numbers are as they are; lists are JSON.
    """
    columns, made = table(found)
    out = io.StringIO(newline="")
    plain, quoted = (
        csv.writer(out, lineterminator="\n", quoting=quoting) for quoting in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )
    lines: list[tuple[Cell, ...]] = [tuple(columns), *made]
    shown = {cell: csv_cell(cell) for cell in {cell for row in lines for cell in row}}  # most cells are there often
    returns = {cell for cell, text in shown.items() if "\r" in text}
    for row in lines:
        writer = plain if returns.isdisjoint(row) else quoted  # not every Python quotes for a carriage return
        writer.writerow([shown[cell] for cell in row])
    return out.getvalue().encode()


def csv_cell(cell: Cell) -> str:
    """Return a cell as it stands in CSV."""
    if isinstance(cell, str):
        first = next((char for char in cell if char.isprintable() and not char.isspace()), "")
        return f"'{cell}" if first in _ACTS else cell
    if isinstance(cell, tuple):
        return canonical(cell).decode()
    return "" if cell is None else str(cell)


def parquet_bytes(found: Sequence[Taken]) -> bytes:
    """Return a table as Parquet: 64-bit integers, decimals, lists and texts, which are as in the records.

    StudyError where pyarrow is not installed, or an integer has more than 64 bits.
    """
    try:
        import pyarrow as pa  # noqa: PLC0415 - heavy, and an extra
        from pyarrow import parquet  # noqa: PLC0415
    except ImportError:
        raise StudyError("--format parquet needs pyarrow: pip install 'studytool[notebook]'") from None
    columns, made = table(found)
    types = {
        Kind.TEXT: pa.string(),
        Kind.INTEGER: pa.int64(),
        Kind.DECIMAL: pa.decimal128(38, DECIMALS),
        Kind.INTEGERS: pa.list_(pa.int64()),
    }
    cells = zip(*made, strict=True) if made else ((),) * len(columns)
    arrays = {
        name: pa.array(_parquet_cells(name, columns[name], own), types[columns[name]])
        for name, own in zip(columns, cells, strict=True)
    }
    out = io.BytesIO()
    parquet.write_table(pa.table(arrays), out)
    return out.getvalue()


def _parquet_cells(name: str, kind: Kind, cells: Sequence[Cell]) -> Sequence[Cell | Decimal]:
    """Return the cells of a column as pyarrow takes them."""
    if kind is Kind.DECIMAL:
        return [None if cell is None else Decimal(str(cell)) for cell in cells]
    parts = itertools.chain.from_iterable(cell if isinstance(cell, tuple) else (cell,) for cell in cells)
    if kind is not Kind.TEXT and (bad := [v for v in parts if isinstance(v, int) and not -(2**63) <= v < 2**63]):
        raise StudyError(f"--format parquet: {name} is {bad[0]}; expected an integer of 64 bits")
    return cells


FORMATS: dict[str, Callable[[Sequence[Taken]], bytes]] = {
    "csv": csv_bytes,
    "parquet": parquet_bytes,
    "nvbench-json": nvbench_bytes,
}
"""What writes each format, by its name."""
