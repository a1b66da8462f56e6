"""Lines go into a table whole, and the ledgers of the study that it belongs to are told once."""

from pathlib import Path
from typing import Any

import pytest
from factories import make_body, make_fit, make_levels

from studytool import apply, ledger, lines
from studytool.apply import Applied
from studytool.digest import sha256
from studytool.errors import LedgerError, TableError
from studytool.layout import StudyPlace

AT = "2026-01-01T00:00:00+00:00"


def _lines(path: Path, levels: str = "W W W W", **changes: Any) -> Path:
    """Write a lines file with the entries of these classes, one for each mask."""
    changes = {"dtype": "bf16", "masks": ("none", "br"), "class_key": ("dtype", "mask")} | changes
    cases = [case for mask in changes.pop("masks") for case in make_levels(levels, mask=mask, dtype=changes["dtype"])]
    path.write_text(make_fit(cases, **changes).text, encoding="utf-8")
    return path


def _entries(table: Path) -> dict[Any, str]:
    return lines.read_table(table.read_bytes(), str(table)).entries


def _place(root: Path, *dtypes: str) -> StudyPlace:
    """Return the place of a study whose dtypes have a ledger."""
    place = StudyPlace(root, "tiny")
    for dtype in dtypes:
        ledger.append(place.results(dtype).ledger, AT, "frozen", make_body("frozen"))
    return place


def _events(place: StudyPlace, dtype: str) -> list[ledger.Body]:
    return [event.body for event in ledger.read(place.results(dtype).ledger) if event.event == "apply"]


def test_lines_make_a_table(tmp_path: Path) -> None:
    """Where there is no table, the lines make one that holds each of them whole."""
    path = _lines(tmp_path / "l")
    done = apply.apply(path, tmp_path / "t.py", None, AT)
    written = path.read_text(encoding="utf-8").splitlines()[1:]

    assert list(_entries(tmp_path / "t.py").values()) == written == list(done.added)
    assert (len(written), done.replaced, done.kept) == (2, (), 0)


def test_lines_replace_and_add(tmp_path: Path) -> None:
    """A line whose key is there takes its place, another one is added, and the rest of the table stays."""
    apply.apply(_lines(tmp_path / "a", masks=("none", "br")), tmp_path / "t.py", None, AT)
    stays, goes = _entries(tmp_path / "t.py").values()
    done = apply.apply(_lines(tmp_path / "b", "L W W W W", masks=("none", "tl")), tmp_path / "t.py", None, AT)
    new = (tmp_path / "b").read_text(encoding="utf-8").splitlines()[1:]

    assert list(_entries(tmp_path / "t.py").values()) == [stays, *new]
    assert done == Applied((new[1],), (goes,), 1)


@pytest.mark.parametrize("own", [True, False])
def test_lines_are_applied_once(tmp_path: Path, *, own: bool) -> None:
    """The same lines again change no byte of the table, and tell no ledger."""
    place = _place(tmp_path, "bf16", "f16") if own else None
    table = place.table if place else tmp_path / "t.py"
    apply.apply(_lines(tmp_path / "l"), table, place, AT)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    assert apply.apply(tmp_path / "l", table, place, "later") == Applied((), (), 2)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_other_features_are_an_error(tmp_path: Path) -> None:
    """Lines of a row that has other features in the table are refused, and nothing is written."""
    place = _place(tmp_path, "bf16")
    apply.apply(_lines(tmp_path / "a"), place.table, place, AT)
    before = {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()}

    with pytest.raises(TableError, match=r"row open_engine has features \('dtype', 'mask'\) in the table; the lines"):
        apply.apply(_lines(tmp_path / "b", class_key=("dtype", "mask", "op")), place.table, place, AT)
    assert {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()} == before


def test_lines_of_another_study_are_an_error(tmp_path: Path) -> None:
    """Lines of another study stay out of a study's own table, and nothing is written; any other table takes them."""
    place = _place(tmp_path, "bf16")
    apply.apply(_lines(tmp_path / "a"), place.table, place, AT)
    before = {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()}

    with pytest.raises(TableError, match=r"/b:1: lines of study other; expected tiny, whose table this is$"):
        apply.apply(_lines(tmp_path / "b", "L W W W W", study="other"), place.table, place, AT)
    assert {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()} == before
    assert len(apply.apply(tmp_path / "b", tmp_path / "t.py", None, AT).added) == 2


@pytest.mark.parametrize(("bad", "name"), [("l", "l:1: "), ("t.py", "t.py:1: ")])
def test_bad_file_is_an_error(tmp_path: Path, bad: str, name: str) -> None:
    """Lines or a table that are not what they should be are refused, and nothing is written."""
    apply.apply(_lines(tmp_path / "l"), tmp_path / "t.py", None, AT)
    (tmp_path / bad).write_text("SCHEMA = 3\n", encoding="utf-8")
    before = (tmp_path / "t.py").read_bytes()

    with pytest.raises(TableError, match=rf"/{name}"):
        apply.apply(tmp_path / "l", tmp_path / "t.py", None, AT)
    assert (tmp_path / "t.py").read_bytes() == before


def test_missing_lines_are_an_error(tmp_path: Path) -> None:
    """A lines file that is not there makes no table."""
    with pytest.raises(TableError, match=r"l: cannot be read: No such file or directory$"):
        apply.apply(tmp_path / "l", tmp_path / "t.py", None, AT)
    assert not (tmp_path / "t.py").exists()


def test_each_ledger_gets_one_event(tmp_path: Path) -> None:
    """Every dtype's ledger is told of lines of any dtype, with the digest of its own entries; lines are kept."""
    place = _place(tmp_path, "bf16", "f16")
    apply.apply(_lines(tmp_path / "a"), place.table, place, AT)
    apply.apply(_lines(tmp_path / "b", dtype="f16"), place.table, place, AT)
    bf16, f16 = _events(place, "bf16"), _events(place, "f16")
    table = lines.read_table(place.table.read_bytes(), "t.py")

    assert [body["dtype"] for body in bf16] == [body["dtype"] for body in f16] == ["bf16", "f16"]
    assert bf16[0]["entries"] == bf16[1]["entries"] == lines.entries_digest(table, "open_engine", "bf16")
    assert f16[0]["entries"] != f16[1]["entries"] == lines.entries_digest(table, "open_engine", "f16")
    assert bf16[1] | {"entries": ""} == {
        "dtype": "f16",
        "entries": "",
        "lines": sha256((tmp_path / "b").read_bytes()),
        "margin_ppm": 50_000,
        "scope": "box",
        "table": sha256(place.table.read_bytes()),
    }
    assert place.results("f16").lines.read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("own", [True, False])
def test_stale_entries_go_from_the_study_s_table(tmp_path: Path, *, own: bool) -> None:
    """Entries of the lines' row and dtype that are no longer emitted go; those of another row or dtype stay."""
    place = _place(tmp_path, "bf16", "f16") if own else None
    table = place.table if place else tmp_path / "t.py"
    for name, changes in (("a", {}), ("b", {"dtype": "f16"}), ("c", {"row": "other"})):
        apply.apply(_lines(tmp_path / name, **changes), table, place, AT)
    done = apply.apply(_lines(tmp_path / "d", masks=("none",)), table, place, AT)
    left = [key for key in _entries(table) if key[::2] == ("open_engine", "bf16")]

    assert len(_entries(table)) == (5 if own else 6)
    assert [key[3] for key in left] == (["none"] if own else ["br", "none"])
    assert (len(done.replaced), done.kept, done.added) == ((1, 5, ()) if own else (0, 6, ()))


@pytest.mark.parametrize("what", ["table", "lines"])
def test_what_was_changed_by_hand_is_put_right(tmp_path: Path, what: str) -> None:
    """Lines that were applied last are put into a table that was changed since, and kept again; no ledger is told."""
    place = _place(tmp_path, "bf16")
    apply.apply(_lines(tmp_path / "l"), place.table, place, AT)
    table = place.table.read_bytes()
    if what == "table":
        place.table.write_bytes(lines.EMPTY.encode())
    else:
        place.results("bf16").lines.unlink()
    apply.apply(tmp_path / "l", place.table, place, AT)

    assert place.table.read_bytes() == table
    assert place.results("bf16").lines.read_bytes() == (tmp_path / "l").read_bytes()
    assert len(_events(place, "bf16")) == 1


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_broken_ledger_is_an_error(tmp_path: Path, dtype: str) -> None:
    """Where any ledger of the study is broken its line is named, and nothing is written."""
    place = _place(tmp_path, "bf16", "f16")
    place.results(dtype).ledger.write_bytes(b"{}\n")
    before = {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()}

    with pytest.raises(LedgerError, match=rf"{dtype}/ledger\.jsonl:1: not an event: "):
        apply.apply(_lines(tmp_path / "l"), place.table, place, AT)
    assert {path: path.read_bytes() for path in place.folder.rglob("*") if path.is_file()} == before


def test_apply_that_was_cut_short_goes_on(tmp_path: Path) -> None:
    """Where only some ledgers were told, the same lines again tell the others and no one twice."""
    place = _place(tmp_path, "bf16", "f16")
    before = place.results("f16").ledger.read_bytes()
    apply.apply(_lines(tmp_path / "l"), place.table, place, AT)
    place.results("f16").ledger.write_bytes(before)
    apply.apply(tmp_path / "l", place.table, place, AT)

    assert (len(_events(place, "bf16")), len(_events(place, "f16"))) == (1, 1)
