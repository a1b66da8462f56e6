"""The commands that decide, as people type them: what gen and apply print of a study, and what merge refuses."""

from pathlib import Path

import pytest
from commands import Said, call, tree
from factories import make_levels, make_summary

from studytool import lines, studyjson
from studytool.layout import StudyPlace
from studytool.lines import Line, Text
from studytool.runtime import lookup

NAME = "open_engine sim-1 bf16 64"


def _changed(place: StudyPlace, path: Path, old: str, new: str) -> Path:
    """Return a lines file: that of bf16, with one text in the place of another."""
    text = place.results("bf16").lines.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return path


def _applied(place: StudyPlace, path: Path, *options: str) -> Said:
    return call("apply", path, "--table", place.table, *options)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("", "", ["no entry changes"]),
        (
            '"s_kv", 256',
            '"s_kv", 512',
            [
                f"NARROWED  {NAME}",
                "          train: sdpa_fwd bf16 b1 h4 d64 S256: lead -> no entry",
                "          holdout: sdpa_fwd bf16 b2 h2 d64 S320: lead -> no entry",
            ],
        ),
        (
            '"from", "s_kv", 256',
            '"always"',
            [
                f"WIDENED   {NAME}",
                *(f"          train: sdpa_fwd bf16 b1 h4 d64 S{s}: no entry -> lead" for s in (64, 128)),
                "          holdout: sdpa_fwd bf16 b2 h2 d64 S80: no entry -> lead",
            ],
        ),
        (
            '"from", "s_kv", 256',
            '"never_from", "s_kv", 2048',
            [
                f"FLIPPED   {NAME}",
                *(f"          train: sdpa_fwd bf16 b1 h4 d64 S{s}: lead -> no entry" for s in (512, 1024, 256)),
                "          train: sdpa_fwd bf16 b1 h4 d64 S2048: lead -> trail",
                *(f"          holdout: sdpa_fwd bf16 b2 h2 d64 S{s}: lead -> no entry" for s in (320, 640, 1280)),
            ],
        ),
        ("worst 0.750", "worst 0.751", [f"RESTATED  {NAME}"]),
        ('"bf16", 64)', '"bf16", 128)', ["ADDED     open_engine sim-1 bf16 128", f"REMOVED   {NAME}"]),
    ],
)
def test_diff_prints_the_moves_and_writes_nothing(
    whole: StudyPlace, tmp_path: Path, old: str, new: str, said: list[str]
) -> None:
    """--diff says what each entry becomes, and each frozen case that it moves; no file of the study changes."""
    path = _changed(whole, tmp_path / "lines.txt", old, new)
    before = tree(whole.root)
    found = _applied(whole, path, "--diff")
    told = found.out.splitlines()

    assert (found.code, found.err) == (0, "")
    assert sorted(told[: len(said)]) == sorted(said)
    assert told[0] == said[0]
    assert len(told) == len(said) + (7 if "REMOVED" in said[-1] else 0)  # all that was led is led no more
    assert tree(whole.root) == before


def test_diff_of_no_study_s_table_has_no_moves(whole: StudyPlace, tmp_path: Path) -> None:
    """A table that is no study's has no frozen cases: its entries are compared alone, and it is not made."""
    table = tmp_path / "library.py"
    said = call("apply", whole.results("bf16").lines, "--table", table, "--diff")

    assert said == (0, f"ADDED     {NAME}\n", "")
    assert not table.exists()


def test_attest_passes_for_a_real_study(whole: StudyPlace) -> None:
    """Each line of a real study decides a frozen case; that is said, and applying them again changes nothing."""
    before = tree(whole.root)
    said = _applied(whole, whole.results("bf16").lines, "--attest")

    assert said == (
        0,
        "each of 1 lines, turned into its opposite, changes what a frozen case gets\n"
        f"{whole.table}: 0 added, 0 replaced or removed, 1 kept\n",
        "",
    )
    assert tree(whole.root) == before


def test_attest_of_no_lines_says_so(whole: StudyPlace) -> None:
    """Where no class gets an entry there is nothing to attest, and that is not told as a success of each."""
    said = _applied(whole, whole.results("f16").lines, "--attest", "--diff")

    assert said == (0, "no lines, so that there is nothing that they could change\nno entry changes\n", "")


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ('"bf16", 64)', '"bf16", 128)', "('open_engine', 'sim-1', 'bf16', 128)"),  # a class without cases
        ('"sim-1"', '"sim-2"', "('open_engine', 'sim-2', 'bf16', 64)"),  # another device
        ('"s_kv", 256', '"s_kv", 2049', "('open_engine', 'sim-1', 'bf16', 64)"),  # beyond every case
        ("256, {}", '256, {"board": "other"}', "('open_engine', 'sim-1', 'bf16', 64)"),
    ],
)
@pytest.mark.parametrize("diff", [[], ["--diff"]])
def test_attest_refuses_a_line_that_decides_nothing(
    whole: StudyPlace, tmp_path: Path, old: str, new: str, key: str, diff: list[str]
) -> None:
    """A line that no frozen case depends on is named in one line, exit 1, and nothing is written."""
    path = _changed(whole, tmp_path / "lines.txt", old, new)
    before = tree(whole.root)
    said = _applied(whole, path, "--attest", *diff)

    assert said == (1, "", f"{path}: the entry of {key} changes no frozen case; it says nothing\n")
    assert tree(whole.root) == before


@pytest.mark.parametrize("box", ['"b": 2', '"bias": "learned"'])
def test_attest_asks_the_cases_of_every_split(whole: StudyPlace, tmp_path: Path, box: str) -> None:
    """A line that decides a case of the hold-out alone, or of routing alone, decides something."""
    path = _changed(whole, tmp_path / "lines.txt", "256, {}", f"256, {{{box}}}")

    assert _applied(whole, path, "--attest", "--diff").code == 0


def test_attest_needs_a_study(whole: StudyPlace, tmp_path: Path) -> None:
    """Lines for a table that is no study's have no cases to attest them; nothing is written."""
    table = tmp_path / "library.py"
    said = call("apply", whole.results("bf16").lines, "--table", table, "--attest")

    assert said[:2] == (2, "")
    assert said.err == f"{table}: not the table of a study; expected studies/NAME/table.py, whose cases attest\n"
    assert not table.exists()


def test_attest_cannot_say_before_train_is_timed(whole: StudyPlace) -> None:
    """Without a train summary it is not known which device the lines are for: exit 3."""
    whole.results("bf16").study_json.unlink()
    said = _applied(whole, whole.results("bf16").lines, "--attest")

    assert said == (3, "", f"{whole.folder}: no study.json; expected the train split of bf16 timed\n")


def _table(path: Path, *dtypes: str, row: str = "r", features: tuple[str, ...] = ("dtype",)) -> Path:
    """Write a table with an entry for each dtype."""
    keys: list[lookup.Key] = [(row, "8.0", dtype, *features[1:]) for dtype in dtypes]
    entries = {key: lines.render(Line(key, "always", "", 0, {}, f"from {path.name}")) for key in keys}
    path.write_text(lines.table_text(Text({row: features}, entries)))
    return path


def test_merge_writes_all_entries(tmp_path: Path) -> None:
    """Two tables without a class in common make one with all lines of both, the same in either order; exit 0."""
    a, b = _table(tmp_path / "a.py", "bf16", "f32"), _table(tmp_path / "b.py", "f16", "fp8")
    said = [call("merge", one, other, "--table", tmp_path / "m.py") for one, other in ((a, b), (b, a))]
    merged = lines.read_table((tmp_path / "m.py").read_bytes(), "m.py")
    call("merge", a, b, "--table", tmp_path / "n.py")

    assert said == [(0, f"{tmp_path / 'm.py'}: 4 entries, 2 and 2\n", "")] * 2
    assert {key[2] for key in merged.entries} == {"bf16", "f16", "f32", "fp8"}
    assert (tmp_path / "n.py").read_bytes() == (tmp_path / "m.py").read_bytes()


@pytest.mark.parametrize("into", ["m.py", "a.py"])
def test_merge_refuses_what_does_not_fit(tmp_path: Path, into: str) -> None:
    """Overlap names both files and lines, a row of other features its table, and a bad table its line; exit 2."""
    a, b = _table(tmp_path / "a.py", "bf16", "f16"), _table(tmp_path / "b.py", "f16")
    other, bad = _table(tmp_path / "c.py", "f32", features=("dtype", "mask")), tmp_path / "d.py"
    bad.write_text(a.read_text().replace("always", "alway"))
    before = tree(tmp_path)
    said = [call("merge", a, second, "--table", tmp_path / into) for second in (b, other, bad, tmp_path / "none.py")]

    assert [(one.code, one.out) for one in said] == [(2, "")] * 4
    assert [one.err for one in said] == [
        f"{a}:14 and {b}:13: both have an entry for ('r', '8.0', 'f16')\n",
        f"{other}: row r has features ('dtype',) in the table; the lines have ('dtype', 'mask')\n",
        f"{bad}:13: entry ('alway', {{}}); expected (rule, box) or (rule, axis, bound, box)\n",
        f"{tmp_path / 'none.py'}: cannot be read: No such file or directory\n",
    ]
    assert tree(tmp_path) == before


def _study_json(folder: Path) -> Path:
    """Write a summary of a class that always wins, one that wins from a size on, and one with a conflict."""
    cases = [*make_levels("W W W W W"), *make_levels("L W W W W", mask="br"), *make_levels("W W L W", mask="tl")]
    path = folder / "study.json"
    path.write_bytes(studyjson.encode(make_summary(cases, class_key=("dtype", "mask"))))
    return path


BARE = """\
    ("open_engine", "host", "bf16", "br"): ("from", "s_kv", 128),
    ("open_engine", "host", "bf16", "none"): "always",
"""


def test_bare_lines_are_key_and_rule(tmp_path: Path, whole: StudyPlace) -> None:
    """--format bare prints key and rule alone, as a library's own table has them; without a line, that is said."""
    path = _study_json(tmp_path)

    assert call("gen", path, "--format", "bare") == (0, BARE, "")
    assert call("gen", path, "--emit", "--format", "bare", "--scope", "class") == (0, BARE, "")
    assert call("gen", whole.results("f16").study_json, "--format", "bare").err.startswith("no class gets an entry; ")
    assert call("gen", path, "--format", "table").out == call("gen", path).out != BARE


@pytest.mark.parametrize("other", [["--explain"], ["--json"], ["--check", "lines.txt"]])
def test_bare_goes_with_emit(tmp_path: Path, other: list[str]) -> None:
    """--format bare with anything but lines to print is bad usage."""
    said = call("gen", _study_json(tmp_path), "--format", "bare", *other)

    assert (said.code, said.out) == (2, "")
    assert said.err.endswith("Error: --format bare goes with --emit\n")


SWEEP = """\
bf16 br    from s_kv 128 at 0.01-0.20
bf16 none  always at 0.01-0.20
bf16 tl    CONFLICT at 0.01-0.20
"""


def test_sweep_goes_with_explain(tmp_path: Path) -> None:
    """--explain --sweep-margin prints what each class gets from which to which margin; without --explain, exit 2."""
    path = _study_json(tmp_path)

    assert call("gen", path, "--explain", "--sweep-margin") == (0, SWEEP, "")
    for mode in ([], ["--emit"], ["--json"], ["--check", path]):
        said = call("gen", path, "--sweep-margin", *mode)
        assert (said.code, said.out) == (2, "")
        assert said.err.endswith("Error: --sweep-margin goes with --explain\n")


def test_check_prints_a_difference(whole: StudyPlace, tmp_path: Path) -> None:
    """--check of lines with another bound prints the line as it is and as it is generated, and exits 1."""
    results = whole.results("bf16")
    path = _changed(whole, tmp_path / "lines.txt", '"s_kv", 256', '"s_kv", 255')
    said = call("gen", results.study_json, "--check", path)
    is_, must_be = (file.read_text().splitlines()[1] for file in (path, results.lines))

    assert said == (
        1,
        f"--- {path}\n+++ generated\n@@ -2 +2 @@\n-{is_}\n+{must_be}\n",
        f"{path}:2: not what {results.study_json} gives\n",
    )
    assert call("gen", results.study_json, "--check", results.lines) == (0, f"{results.lines}: as generated\n", "")


def test_check_shows_what_acts_on_no_terminal(whole: StudyPlace, tmp_path: Path) -> None:
    """A bad file's control characters and broken bytes are shown as text, one line each."""
    path = tmp_path / "lines.txt"
    path.write_bytes(b"\x1b[2J\xff\n" + whole.results("bf16").lines.read_bytes())
    said = call("gen", whole.results("bf16").study_json, "--check", path)

    assert said.code == 1
    assert said.out.splitlines()[3] == "-\\x1b[2J\N{REPLACEMENT CHARACTER}"
    assert "\x1b" not in said.out + said.err


@pytest.mark.parametrize("told", [False, True])
def test_replay_finds_a_bound_that_was_changed_by_hand(whole: StudyPlace, told: bool) -> None:
    """A bound edited in table.py fails the check of the table, with its line; in lines.txt too, that of lines."""
    for path in (whole.table, whole.results("bf16").lines)[: 1 + told]:
        path.write_text(path.read_text().replace('"s_kv", 256', '"s_kv", 255'))
    said = call("replay", whole.folder)
    failed = [line for line in said.out.splitlines() if line.startswith("FAIL")]

    assert (said.code, said.err) == (1, "")
    assert "FAIL        bf16 table: studies/whole/table.py:13: not the table that was applied last" in failed
    assert (
        "FAIL        bf16 lines: studies/whole/bf16/lines.txt:2: differs from what the records give" in failed
    ) is told


def test_replay_finds_a_changed_bound_that_was_applied(whole: StudyPlace, tmp_path: Path) -> None:
    """A bound edited in lines that are then applied, so that the ledger knows it, is not what the records give."""
    path = _changed(whole, tmp_path / "lines.txt", '"s_kv", 256', '"s_kv", 255')
    done = _applied(whole, path)
    said = call("replay", whole.folder)

    assert (done.code, said.code) == (0, 1)
    assert "FAIL        bf16 lines: studies/whole/bf16/lines.txt:2: differs from what the records give" in said.out
