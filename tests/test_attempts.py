"""Attempts: which sessions belong together, what is missing, and which lines cannot be there."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from factories import STUDY_YAML, make_case, make_fingerprint, make_record, make_session, make_study, write_session

from studytool import attempts, jsonl, schedule
from studytool.attempts import Attempt
from studytool.errors import RecordError
from studytool.grid import case_digest
from studytool.jsonl import SessionFile
from studytool.layout import StudyPlace
from studytool.model import Case, Record, Split, Status

STUDY = make_study(STUDY_YAML.replace("blocks: 8", "blocks: 4"))
A, B = make_case(s_kv=64), make_case(s_kv=96)
CASES = {case_digest(case): case for case in (A, B)}


def _write(root: Path, records: list[Record], number: int = 1, **changes: Any) -> SessionFile:
    """Write the records file of one session of one attempt."""
    session = make_session(session=number, **changes)
    path = StudyPlace(root, "tiny").results("bf16").session(session.split, session.attempt, number)
    return write_session(path, session, [_in_order(record) for record in records])


def _in_order(record: Record) -> Record:
    """Return a record whose blocks are in the study's own orders."""
    asked = (STUDY.sha256, record.case, record.repeat, record.regime, STUDY.protocol.blocks)
    return msgspec.structs.replace(record, order=schedule.block_orders(*asked)) if record.order else record


def _load(root: Path, split: Split = Split.TRAIN, cases: dict[str, Case] = CASES) -> list[Attempt]:
    return attempts.load(
        STUDY, jsonl.read_all(StudyPlace(root, "tiny").results("bf16").records, root), root, split, cases
    )


def _said(root: Path) -> str:
    with pytest.raises(RecordError) as caught:
        _load(root)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix("studies/tiny/bf16/records/")


def _repeat(number: int, *cases: Case, **changes: Any) -> list[Record]:
    return [make_record(of=case, repeat=number, **changes) for case in cases or (A, B)]


def test_planned_lines() -> None:
    """A split has a line for every case, repeat and regime; routing has one for every case, in the first regime."""
    protocol = type(STUDY.protocol)(repeats=2, regimes=("warm", "cold"))
    study = make_study(protocol=protocol)
    routing = attempts.planned_cells(study, Split.ROUTING, CASES)

    assert len(attempts.planned_cells(STUDY, Split.TRAIN, CASES)) == 6
    assert attempts.planned_cells(study, Split.HOLDOUT, {"c": A}) == {
        ("c", repeat, regime) for repeat in (1, 2) for regime in ("warm", "cold")
    }
    assert routing == {(case, 1, "warm") for case in CASES}


def test_nothing_measured_is_no_attempt(tmp_path: Path) -> None:
    """Without records there is no attempt."""
    assert _load(tmp_path) == []


def test_complete_attempt_over_sessions(tmp_path: Path) -> None:
    """Sessions of one attempt, each chained to the one before, together have all lines, failed ones included."""
    first = _write(tmp_path, [*_repeat(1), *_repeat(2, A)])
    second = _write(tmp_path, [*_repeat(2, B, status=Status.CRASHED), *_repeat(3)], 2, prev=first.sha256)
    (found,) = _load(tmp_path)

    assert [file.sha256 for file in found.files] == [first.sha256, second.sha256]
    assert (found.number, found.planned, found.found, found.missing) == (1, 6, 6, frozenset())


def test_missing_lines_are_counted(tmp_path: Path) -> None:
    """Lines that are planned and not there are named and counted."""
    _write(tmp_path, [*_repeat(1), *_repeat(3, A)])
    (found,) = _load(tmp_path)

    assert (found.planned, found.found) == (6, 3)
    assert found.missing == {(case_digest(case), repeat, "eager-warm") for case, repeat in ((A, 2), (B, 2), (B, 3))}


def test_torn_line_is_missing(tmp_path: Path) -> None:
    """A line that was torn counts as not measured, and a file without a whole line as not there."""
    path = _write(tmp_path, _repeat(1)).path
    path.write_bytes(path.read_bytes()[:-1])
    path.with_name("train-01-002.jsonl").write_bytes(b'{"attempt"')
    (found,) = _load(tmp_path)

    assert (found.found, len(found.files)) == (1, 1)


def test_attempts_and_splits_are_apart(tmp_path: Path) -> None:
    """Attempts stand by themselves, in order, and files of another split are left out."""
    _write(tmp_path, _repeat(1, attempt=10), attempt=10)
    _write(tmp_path, _repeat(1, A), attempt=1)
    _write(tmp_path, _repeat(1, split=Split.HOLDOUT), split=Split.HOLDOUT)

    assert [(attempt.number, attempt.found) for attempt in _load(tmp_path)] == [(1, 1), (10, 2)]
    assert [attempt.found for attempt in _load(tmp_path, Split.HOLDOUT)] == [2]


@pytest.mark.parametrize(
    "changes",
    [
        {"case": case_digest(make_case(s_kv=80))},
        {"repeat": 4},
        {"repeat": 0},
        {"regime": "cold"},
    ],
)
def test_foreign_line_is_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    """A line of a case, repeat or regime that was not planned is refused with its place."""
    _write(tmp_path, [make_record(of=A), make_record(**{"of": B} | changes)])

    assert _said(tmp_path) == "train-01-001.jsonl:3: not a planned line of train"


def test_double_line_is_refused(tmp_path: Path) -> None:
    """A line that is there already is refused, in its own session and in a later one."""
    _write(tmp_path / "one", [*_repeat(1), *_repeat(1, A)])
    first = _write(tmp_path / "two", _repeat(1))
    _write(tmp_path / "two", _repeat(1, B), 2, prev=first.sha256)

    assert _said(tmp_path / "one") == f"train-01-001.jsonl:4: {A.label} repeat 1 is there twice"
    assert _said(tmp_path / "two") == f"train-01-002.jsonl:2: {B.label} repeat 1 is there twice"


def test_case_on_two_boards_is_refused(tmp_path: Path) -> None:
    """All lines of a case come from one board; two boards of one model may share the cases between them."""
    other = make_fingerprint(uuid="u2")
    first = _write(tmp_path / "shared", _repeat(1, A))
    _write(tmp_path / "shared", _repeat(1, B), 2, prev=first.sha256, fingerprint=other)
    first = _write(tmp_path / "split", _repeat(1, A))
    _write(tmp_path / "split", [*_repeat(1, B), *_repeat(2, A)], 2, prev=first.sha256, fingerprint=other)

    assert _load(tmp_path / "shared")[0].found == 2
    assert _said(tmp_path / "split") == f"train-01-002.jsonl:3: {A.label} was measured on two boards"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("board", "Other", "board Board and Other"),
        ("cc", "9.0", "cc host and 9.0"),
        ("versions", {"engine": "2.0"}, "versions {'engine': '1.0'} and {'engine': '2.0'}"),
        ("settings", {"threads": "1"}, "settings {} and {'threads': '1'}"),
        ("code", "beef", "code c0de and beef"),
    ],
)
def test_sessions_are_comparable(tmp_path: Path, name: str, value: Any, said: str) -> None:
    """A session on another board model, instruction set, version, setting or code is refused with both values."""
    first = _write(tmp_path, _repeat(1))
    _write(tmp_path, [], 2, prev=first.sha256, fingerprint=make_fingerprint(**{name: value}))

    assert _said(tmp_path) == f"train-01-002.jsonl:1: not comparable with the attempt's first session: {said}"


def test_other_attempt_may_have_another_board(tmp_path: Path) -> None:
    """What must be comparable is one attempt, so that a study can be begun anew elsewhere."""
    _write(tmp_path, _repeat(1))
    _write(tmp_path, _repeat(1, attempt=2), attempt=2, fingerprint=make_fingerprint(board="Other"), entries="f")

    assert [attempt.found for attempt in _load(tmp_path)] == [2, 2]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"study": "other"}, "session of study other; expected tiny"),
        ({"manifest": "n"}, "session of another dtype or of other frozen cases than the attempt's first"),
        ({"dtype": "f16"}, "session of another dtype or of other frozen cases than the attempt's first"),
        ({"prev": ""}, "does not follow the session file before it; one is missing or was changed"),
        ({"prev": "0" * 64}, "does not follow the session file before it; one is missing or was changed"),
        ({"entries": "f"}, "the table changed within the attempt"),
    ],
)
def test_foreign_session_is_refused(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    """A session of other cases, of another dtype, behind another file, or with other entries is refused by its file."""
    first = _write(tmp_path, _repeat(1))
    _write(tmp_path, _repeat(2), 2, **({"prev": first.sha256} | changes))

    assert _said(tmp_path) == f"train-01-002.jsonl:1: {said}"


def test_first_session_of_an_attempt_follows_none(tmp_path: Path) -> None:
    """The first file of an attempt that names one before it is left of a longer row."""
    _write(tmp_path, _repeat(1), 2, prev="0" * 64)

    assert _said(tmp_path).startswith("train-01-002.jsonl:1: does not follow the session file before it")


def test_changed_last_line_is_found_by_the_next_session(tmp_path: Path) -> None:
    """A last line that was changed reads, but the next session of the attempt has the hash of the file."""
    first = _write(tmp_path, _repeat(1))
    _write(tmp_path, _repeat(2), 2, prev=first.sha256)
    changed = first.path.read_bytes()[::-1].replace(b"0003", b"1003", 1)[::-1]
    first.path.write_bytes(changed)

    assert _said(tmp_path).startswith("train-01-002.jsonl:1: does not follow the session file before it")


def test_wrong_class_is_refused(tmp_path: Path) -> None:
    """A record's class is that of its case, by the study's own features."""
    key = ("open_engine", "host", "sdpa_fwd", "f16", "none")
    _write(tmp_path, [make_record(of=A), make_record(of=B, class_key=key)])
    expected = ("open_engine", "host", "sdpa_fwd", "bf16", "none")

    assert _said(tmp_path) == f"train-01-001.jsonl:3: class {key}; expected {expected}"


def test_other_block_orders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks in other orders than those of the study, the case and the repeat are no line of it."""
    monkeypatch.setitem(globals(), "_in_order", lambda record: record)
    _write(tmp_path, _repeat(1, A))

    assert _said(tmp_path) == f"train-01-001.jsonl:2: {A.label}: not the block orders of this study, case and repeat"
