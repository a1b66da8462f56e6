"""CSV and Parquet: every sample is there once, in the order of timing, exact, and no text acts in a spreadsheet."""

import csv
import io
import re
import sys
from collections.abc import Callable, Iterable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import benches
import finished
import msgspec
import pytest
from bad_records import BAD_RECORDS
from click.testing import CliRunner
from commands import Said, call, tree
from factories import make_case, make_fingerprint, make_leg, make_record, make_session, make_study
from hypothesis import given
from hypothesis import strategies as st

from studytool import export, opening, pipeline
from studytool.attempts import Attempt, Job
from studytool.cli import exporting, main
from studytool.errors import CannotSayError, StudyError
from studytool.export import Taken
from studytool.freeze import Frozen
from studytool.grid import case_digest
from studytool.jsonl import SessionFile
from studytool.layout import StudyPlace
from studytool.model import LEGS, Case, LegRecord, Plan, Record, Split, Status
from studytool.runtime import key

Samples = dict[tuple[str, ...], list[tuple[str, ...]]]
ACTING = "=+-@\t\r＝"  # noqa: RUF001
WIDE = Split.TRAIN, Split.HOLDOUT, Split.ROUTING


def said(place: StudyPlace, *args: object, dtype: str = "bf16") -> Said:
    """Return how the command ended by itself, whether it is among those of `main` or not."""
    words = [str(arg) for arg in (place.folder, "--dtype", dtype, *args)]
    found = CliRunner().invoke(exporting.export, words, catch_exceptions=False, standalone_mode=False)
    return Said(found.exit_code, found.stdout, found.stderr)


def refused(place: StudyPlace, *args: object, kind: type[StudyError] = StudyError, dtype: str = "bf16") -> str:
    """Return the one line with which the command refuses, after checking that nothing was written."""
    before = tree(place.root)
    with pytest.raises(StudyError) as caught:
        said(place, *args, dtype=dtype)

    assert type(caught.value) is kind
    assert tree(place.root) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def attempts_of(place: StudyPlace, *splits: Split, dtype: str = "bf16") -> list[Taken]:
    """Return what is exported of a study."""
    return export.last_attempts(export.jobs(opening.open_study(place), place, (dtype,), splits or WIDE))


def taken(*records: Record, cases: Iterable[Case] = (), **session: Any) -> Taken:
    """Return an attempt at the train split that has these records."""
    known = {case_digest(case): case for case in (*cases, make_case())}
    frozen = Frozen(cast("Any", None), "f", {Split.TRAIN: known})
    job = Job(make_study(), StudyPlace(Path("root"), "tiny"), frozen, "bf16", Split.TRAIN)
    file = SessionFile(Path("train-01-001.jsonl"), make_session(**session), records, "", 1 + len(records), 0)
    return Taken(job, Attempt(1, (file,), len(records), frozenset(), ()))


def short_record(**changes: Any) -> Record:
    """Return a record of one block, whose legs took 1000, 2000, 3000 and 4000 ns in the order of LEGS."""
    legs = {name: make_leg([1000 * number], plan=number) for number, name in enumerate(LEGS, 1)}
    return make_record(**{"order": ("0132",), "legs": legs, **changes})


def table_of(data: bytes) -> list[dict[str, str]]:
    """Return the rows of a CSV file as its own reader sees them."""
    return list(csv.DictReader(io.StringIO(data.decode(), newline="")))


def bare(cell: str) -> str:
    """Return a text cell without the apostrophe that keeps it from acting."""
    return cell.removeprefix("'")


def test_one_record_is_written_to_the_byte() -> None:
    """Head line, LF, one row a sample in the order of timing, nothing in cells that say nothing."""
    record = short_record(regime="replay-warm", clock_mhz=(1410, 1395), blocks={"power_mw": (-1,)})
    case = f"{record.case},sdpa_fwd bf16 b1 h4 d64 S128,sdpa_fwd,bf16,1,4,4,128,128,64,64,none,0,dense,none,0,0,0,0,0,"
    line = f'{case}"[""open_engine"",""host"",""sdpa_fwd"",""bf16"",""none""]",train,1,1,replay-warm,'
    rows = ["backend,1,engine 1,1,1,2,1000,500", "frost,2,engine 2,1,2,2,2000,1000"]
    rows += ["default,4,engine 4,1,3,2,4000,2000", "auto,3,engine 3,1,4,2,3000,1500"]

    assert export.csv_bytes([taken(record)]).decode() == (
        "case,label,op,dtype,b,h_q,h_kv,s_q,s_kv,d_qk,d_v,mask,window,layout,bias,padding,stats,sink,dropout_pct,"
        "deterministic,class,split,attempt,repeat,regime,leg,plan,plan_name,block,place,inner,ns,ns_per_launch,host_ns,"
        "status,error,clock_mhz,state_power_mw\n" + "".join(f'{line}{row},,ok,,"[1410,1395]",-1\n' for row in rows)
    )


def test_records_come_back_from_the_rows(made: StudyPlace) -> None:
    """A study's records, in their order and to the last sample, are what its rows say."""
    found = attempts_of(made)
    records = [record for item in found for file in item.attempt.files for record in file.records]
    cases = {digest: case for item in found for digest, case in item.job.cases.items()}
    rows = table_of(export.csv_bytes(found))
    expected = [
        (record.case, str(record.split), str(record.repeat), LEGS[int(index)], str(record.legs[LEGS[int(index)]].ns[n]))
        for record in records
        for n, order in enumerate(record.order)
        for index in order
    ]
    columns = ("case", "split", "repeat", "leg", "ns")

    assert [tuple(row[name] for name in columns) for row in rows if row["ns"]] == expected
    assert {record.split for record in records} == set(WIDE)
    for row in rows:
        case = cases[row["case"]]
        assert row["label"] == case.label
        assert {name: str(getattr(case, name)) for name in key.FIELDS} == {name: row[name] for name in key.FIELDS}


def test_rows_have_counters_states_and_host_times_of_their_own_sample() -> None:
    """What a record keeps per sample and per block stands in the row of that sample and block."""
    legs = {
        name: make_leg(
            [100 * block + number for block in range(4)], host_ns=(10, 11, 12, 13), counters={"gap": (0, 1, 2, number)}
        )
        for number, name in enumerate(LEGS)
    }
    legs["frost"] = make_leg([100 * block + 1 for block in range(4)], plan=5)
    record = make_record(legs=legs, blocks={"sm_mhz": (1, 2, 3, 4)})
    rows = table_of(export.csv_bytes([taken(record)]))

    for row in rows:
        block, number = int(row["block"]) - 1, LEGS.index(row["leg"])
        assert int(row["ns"]) == 100 * block + number
        assert row["state_sm_mhz"] == str(block + 1)
        assert LEGS[int(record.order[block][int(row["place"]) - 1])] == row["leg"]
        if row["leg"] == "frost":
            assert (row["host_ns"], row["counter_gap"]) == ("", "")
        else:
            assert (row["host_ns"], row["counter_gap"]) == (str(10 + block), str((0, 1, 2, number)[block]))


def test_a_line_without_samples_is_there() -> None:
    """A leg that was planned only, and a case that crashed before it had any, have a row each."""
    planned = {name: LegRecord(plan=Plan(engine=5, name="five") if name != "frost" else None) for name in LEGS}
    records = [
        make_record(status=Status.NO_FROST, legs=planned, error="leg frost has no plan"),
        make_record(status=Status.CRASHED, repeat=2, error="ended by SIGKILL"),
    ]
    rows = table_of(export.csv_bytes([taken(*records)]))

    assert [(row["leg"], row["plan"]) for row in rows[:4]] == [
        ("backend", "5"),
        ("frost", ""),
        ("auto", "5"),
        ("default", "5"),
    ]
    assert [(row["repeat"], row["leg"], row["status"], row["error"]) for row in rows[4:]] == [
        ("2", "", "crashed", "ended by SIGKILL")
    ]
    assert {row["ns"] + row["inner"] + row["block"] + row["ns_per_launch"] for row in rows} == {""}


@given(st.integers(1, 10**15), st.integers(1, 10**6))
def test_a_quotient_is_exact_where_a_decimal_is(ns: int, inner: int) -> None:
    """The text of a time per launch is the quotient, or off by at most half of its last decimal."""
    found, exact = Fraction(export.quotient(ns, inner)), Fraction(ns, inner)
    rest = inner
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime

    assert abs(found - exact) <= Fraction(1, 2 * 10**export.DECIMALS)
    assert found == exact or ns % rest


def test_quotients_are_rounded_half_up_and_short() -> None:
    """No zeros at the end, no point without decimals, and no float on the way."""
    assert export.quotient(10**15, 8) == "125000000000000"
    assert export.quotient(1, 8) == "0.125"
    assert export.quotient(2, 3) == "0." + "6" * 18 + "7"
    assert export.quotient(10**15 - 1, 7) == "142857142857142.7142857142857142857"
    assert export.quotient(1, 2**19) == "0.0000019073486328125"


TEXTS = st.text(max_size=6) | st.builds(
    str.__add__, st.sampled_from(["", " ", "\x00", "\ufeff", "\n", "'"]), st.sampled_from([*ACTING, "'", "x"])
)


@given(TEXTS)
def test_no_text_acts_in_a_spreadsheet_and_none_is_lost(text: str) -> None:
    """What a program would see first is nothing that it runs, and an apostrophe in front can be taken away again."""
    cell = export.csv_cell(text)
    seen = "".join(char for char in cell if char.isprintable() and not char.isspace())

    assert seen[:1] not in set(ACTING)
    assert bare(cell) == text
    assert cell == text or re.match(r"\W*[=+\-@'＝＋－＠]", text)  # noqa: RUF001


@pytest.mark.parametrize("text", ["=cmd|'/c calc'!A1", "+1", "-1+1", "@SUM(A1)", "\t=1", "＝1", "'=1"])  # noqa: RUF001
def test_texts_of_a_record_that_would_act_do_not(text: str) -> None:
    """A plan's name and an error come from a file that anybody may have written."""
    plan = LegRecord(plan=Plan(engine=-1, name=text, knobs={"+x": 1}))
    record = make_record(status=Status.ERROR, legs={"frost": plan}, error=text)
    (row,) = table_of(export.csv_bytes([taken(record)]))

    assert (row["error"], row["plan_name"], row["plan"]) == (f"'{text}", f"'{text}", "'-1[+x=1]")


@given(st.text(alphabet="a,\";\r\n'=é", max_size=8))
def test_any_text_comes_back(text: str) -> None:
    """Separators, quotes and ends of lines in a text stay in its cell, whatever Python's version quotes by itself."""
    data = export.csv_bytes([taken(make_record(status=Status.ERROR, error=text), short_record())])
    rows = table_of(data)

    assert bare(rows[0]["error"]) == text
    assert len(rows) == 5
    assert "\r" not in re.sub(r'"[^"]*"', "", data.decode())


def test_a_session_without_lines_is_an_empty_table() -> None:
    """A process that was killed before its first line leaves a head and no row."""
    head = export.csv_bytes([taken(make_record())]).partition(b"\n")[0]

    assert export.csv_bytes([taken()]) == head + b"\n"


def test_a_name_with_an_end_of_line_stays_in_the_head() -> None:
    """Names of counters come from a file that anybody may have written."""
    data = export.csv_bytes([taken(short_record(blocks={'a\r"b\n,': (1,)}))])

    assert table_of(data)[0]['state_a\r"b\n,'] == "1"


def test_numbers_are_never_changed() -> None:
    """Negative and large integers stand in CSV digit by digit, without an apostrophe."""
    record = short_record(blocks={"throttle": (2**70,), "power_mw": (-1,)})
    rows = table_of(export.csv_bytes([taken(record)]))

    assert {(row["state_throttle"], row["state_power_mw"]) for row in rows} == {(str(2**70), "-1")}


def test_parquet_says_what_csv_says(made: StudyPlace) -> None:
    """A file read back has the columns of CSV, typed, and cell for cell the same content."""
    parquet = pytest.importorskip("pyarrow.parquet")
    found = attempts_of(made)
    third = {"auto": make_leg([10**15], plan=3), "default": make_leg([7], counters={"gap": (1,)}, host_ns=(2**53 + 1,))}
    legs = {**short_record().legs, **third}
    legs = {name: msgspec.structs.replace(leg, inner=3) for name, leg in legs.items()}
    found += [taken(short_record(legs=legs, blocks={"power_mw": (-1,)}), make_record(status=Status.ERROR, error="=1"))]
    read = parquet.read_table(io.BytesIO(export.parquet_bytes(found)))
    rows, columns = table_of(export.csv_bytes(found)), export.table(found).columns
    back = read.to_pylist()

    assert read.column_names == list(columns)
    assert {type(row["ns"]) for row in back if row["block"]} == {int}
    assert max(row["host_ns"] or 0 for row in back) == 2**53 + 1
    assert len(back) == len(rows)
    for ours, theirs in zip(back, rows, strict=True):
        assert {name: shown(ours[name], columns[name]) for name in columns} == {
            name: bare(theirs[name]) if columns[name] is export.Kind.TEXT else theirs[name] for name in columns
        }


def test_parquet_of_nothing_has_the_columns() -> None:
    """A session without lines is a table without rows, typed all the same."""
    parquet = pytest.importorskip("pyarrow.parquet")
    read = parquet.read_table(io.BytesIO(export.parquet_bytes([taken()])))

    assert (read.num_rows, read.column_names) == (0, list(export.COLUMNS))
    assert str(read.schema.field("ns").type) == "int64"


def shown(value: object, kind: export.Kind) -> str:
    """Return a cell of Parquet as CSV would show it."""
    if isinstance(value, Decimal):
        return f"{value:f}".rstrip("0").rstrip(".")
    if kind is export.Kind.INTEGERS:
        return "[" + ",".join(map(str, cast("list[int]", value))) + "]"
    return "" if value is None else str(value)


def test_parquet_refuses_what_it_cannot_hold() -> None:
    """An integer of more than 64 bits is one line that names its column, in a list, too."""
    pytest.importorskip("pyarrow")

    for changes, name in (
        ({"blocks": {"throttle": (2**63,)}}, "state_throttle"),
        ({"clock_mhz": (2**63,)}, "clock_mhz"),
    ):
        with pytest.raises(StudyError) as caught:
            export.parquet_bytes([taken(short_record(**changes))])

        assert str(caught.value) == f"--format parquet: {name} is {2**63}; expected an integer of 64 bits"
    assert export.parquet_bytes([taken(short_record(clock_mhz=(2**63 - 1,), blocks={"throttle": (-(2**63),)}))])


def test_without_pyarrow_one_line_says_what_to_install(made: StudyPlace, monkeypatch: pytest.MonkeyPatch) -> None:
    """CSV does without it."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    assert refused(made, "--format", "parquet", "-o", made.root / "x") == (
        "--format parquet needs pyarrow: pip install 'studytool[notebook]'"
    )
    assert said(made, "--format", "csv").code == 0


@pytest.mark.parametrize("form", ["csv", "nvbench-json"])
def test_the_same_bytes_each_time_on_stdout_and_in_a_file(made: StudyPlace, tmp_path: Path, form: str) -> None:
    """Without -o, and with -o -, the format alone is on stdout; the study is not touched."""
    before = tree(made.root)
    data = export.FORMATS[form](attempts_of(made))
    first, second = said(made, "--format", form), said(made, "--format", form, "-o", "-")
    filed = said(made, "--format", form, "--output", tmp_path / "out")

    assert first == second == Said(0, data.decode(), "")
    assert (tmp_path / "out").read_bytes() == data
    assert filed == Said(0, f"{tmp_path / 'out'}: {len(data)} bytes\n", "")
    assert tree(made.root) == before


def test_splits_and_dtypes_are_those_asked_for(made: StudyPlace) -> None:
    """--split and --dtype choose; all has each once, dtypes in the study's order."""
    rows = {
        split: table_of(said(made, "--format", "csv", "--split", split).out.encode())
        for split in ("train", "holdout", "routing", "all")
    }
    both = table_of(said(made, "--format", "csv", dtype="all").out.encode())

    assert all({row["split"] for row in rows[split]} == {split} for split in ("train", "holdout", "routing"))
    assert rows["all"] == rows["train"] + rows["holdout"] + rows["routing"]
    assert both[: len(rows["all"])] == rows["all"]
    assert {row["dtype"] for row in both[len(rows["all"]) :]} == {"f16"}


def test_the_choices_of_the_command_are_the_formats_and_splits() -> None:
    """What the command offers without loading the library is what the library has."""
    choices = {param.name: list(getattr(param.type, "choices", ())) for param in exporting.export.params}

    assert choices["form"] == list(export.FORMATS)
    assert choices["split"] == [*map(str, WIDE), "all"]


def test_a_file_that_is_there_is_replaced_whole(
    made: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there gives way to the new file, and stands where the new one cannot be written."""
    path = tmp_path / "out.csv"
    path.write_text("old")

    def fail(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", fail)
        assert refused(made, "--format", "csv", "-o", path) == f"{path}: cannot be written: No space left on device"
    assert path.read_text() == "old"
    assert said(made, "--format", "csv", "-o", path).code == 0
    assert path.read_text().startswith("case,label,")
    assert list(tmp_path.iterdir()) == [path]


BAD_CALLS: dict[str, tuple[list[str], str]] = {
    "parquet on a terminal": (["--format", "parquet"], "--format parquet: found no file to write; expected -o FILE"),
    "parquet on stdout": (
        ["--format", "parquet", "-o", "-"],
        "--format parquet: found no file to write; expected -o FILE",
    ),
    "no name": (["--format", "csv", "-o", "."], "-o/--output: found .; expected the name of a file"),
    "the root": (["--format", "csv", "-o", "/"], "-o/--output: found /; expected the name of a file"),
    "an empty name": (["--format", "csv", "-o", ""], "-o/--output: found .; expected the name of a file"),
    "a folder": (["--format", "csv", "-o", ".."], "..: cannot be written: "),
}


@pytest.mark.parametrize(("args", "message"), BAD_CALLS.values(), ids=BAD_CALLS.keys())
def test_a_file_that_cannot_be_is_one_line(
    made: StudyPlace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: list[str], message: str
) -> None:
    """Nothing is written, and the line says what was found."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    assert refused(made, *args).startswith(message)
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_a_dtype_or_a_split_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    """A study without routing cases has none to export."""
    text = finished.WHOLE_YAML.replace(
        "  routing:\n    cases:\n      - {s_kv: 512, h_q: 4, d_qk: 64, bias: learned}\n", ""
    )
    place = finished.declare(tmp_path, text.replace("  - routing_changed == 0\n", ""))
    pipeline.freeze_study(opening.open_study(place), place, [])

    assert refused(place, "--format", "csv", dtype="f32") == "--dtype: found f32; expected bf16, f16 or all"
    assert refused(place, "--format", "csv", "--split", "routing") == (
        "studies/whole/study.yaml: found no routing case of bf16; expected a split that the study declares"
    )
    assert refused(place, "--format", "csv", kind=CannotSayError, dtype="all") == (
        "bf16 train, bf16 holdout, f16 train, f16 holdout: nothing is measured yet; run `studytool time`"
    )


@pytest.mark.parametrize(("spoil", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_bad_records_are_not_exported(whole: StudyPlace, spoil: Callable[[StudyPlace], None], message: str) -> None:
    """What the other commands refuse, this one does with the same line, and writes nothing."""
    spoil(whole)
    path = whole.root / "out.csv"

    with pytest.raises(StudyError) as caught:
        said(whole, "--format", "csv", "-o", path)

    assert str(caught.value).startswith(f"studies/whole/bf16/records/holdout-01-{message}")
    assert not path.exists()


def test_an_attempt_that_was_stopped_is_exported_as_far_as_it_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that are there are written; what is missing is said on stderr; only the last attempt counts."""
    benches.inline(monkeypatch)
    job = benches.make_job(tmp_path)
    benches.run(job)
    with pytest.raises(KeyboardInterrupt):
        benches.run(job, "the board was busy", stop_after=5)
    found = said(job.place, "--format", "csv")
    rows = table_of(found.out.encode())

    assert found.code == 0
    assert found.err.splitlines() == [
        "bf16 train: attempt 2 is incomplete, 5 of 18 lines",
        "bf16 holdout: nothing is measured yet",
        "bf16 routing: nothing is measured yet",
    ]
    assert {row["attempt"] for row in rows} == {"2"}
    assert len(rows) == 5 * 8 * 4


@pytest.mark.skipif("export" not in main.commands, reason="the command is not among those of main")
def test_export_from_the_command_line(made: StudyPlace, tmp_path: Path) -> None:
    """`studytool export` writes a table, and ends bad input with one line and exit 2, what is not measured with 3."""
    path = tmp_path / "out.csv"
    done = call("export", made.folder, "--dtype", "all", "--format", "csv", "-o", path)
    place = finished.declare(tmp_path / "new")
    call("freeze", place.folder)

    assert (done.code, done.err) == (0, "")
    assert len(table_of(path.read_bytes())) == len(export.table(attempts_of(made)).rows) + len(
        export.table(attempts_of(made, dtype="f16")).rows
    )
    for code, args in (
        (2, (made.folder, "--dtype", "bf16", "--format", "parquet")),
        (2, (made.folder, "--dtype", "bf16", "--format", "csv", "-o", tmp_path)),
        (2, (tmp_path, "--dtype", "bf16", "--format", "csv")),
        (3, (place.folder, "--dtype", "bf16", "--format", "csv")),
    ):
        ended = call("export", *args)
        assert (ended.code, ended.out) == (code, "")
        assert re.fullmatch(r"[^\n]+\n", ended.err)
    assert (call("export", made.folder, "--dtype", "bf16", "--format", "xml").code) == 2


def test_a_fingerprint_is_no_part_of_a_table() -> None:
    """What the machine is called stands in records, not in samples that are passed on."""
    data = export.csv_bytes([taken(short_record(), fingerprint=make_fingerprint(board="Board 7", uuid="u-7"))])

    assert b"Board 7" not in data
    assert b"u-7" not in data
