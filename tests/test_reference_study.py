"""The reference study, cut to a few cases: what its author put right by hand, and each fault that its reviewer sought.

`drivers/reference_study.sh` is run whole by test_tutorial, on docs/case-study.md. Here its steps are called one by one,
on fewer cases of the same two declarations: once as they should be, and once for each thing that can be wrong.
"""

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import benches
import finished
import forger
import pytest
import yaml
from bad_records import values_of
from commands import Said, call, tree
from test_drivers import drive
from test_report import section

from studytool import replay, reporting
from studytool.digest import sha256
from studytool.layout import StudyPlace

STUDIES = Path(__file__).resolve().parent.parent / "studies"
SQUARE, MIXED = "sdpa_bwd_sm80_square_simulated", "sdpa_bwd_sm80_mixed_simulated"
DTYPES = ("bf16", "f16")
REASON = "the rental of the first host ended"
STOPPED_AFTER = 12
"""Of the 30 hold-out lines of bf16: those that the first host came to."""

SAVES_MOST = {"mask": "br", "d_qk": 128, "b": 12, "h_q": 48, "h_kv": 6, "s_kv": 16484, "window": 96}
LABEL = "sdpa_bwd bf16 b12 h48/6 d128 S16484 br w96"
"""The published hold-out case that saves most, as a grid line and as a label."""


def declared(name: str) -> dict[str, Any]:
    """Return a study as the repository declares it."""
    found: dict[str, Any] = yaml.safe_load((STUDIES / name / "study.yaml").read_text(encoding="utf-8"))
    return found


def square(*, guarded: bool = True) -> str:
    """Return the study cut to two classes a dtype: GQA with a head dimension of 128, on the tile and off it.

    Of the hold-out the lines stay that have the published slowest case and the one that saves most. Without its guard
    it has no condition on routing either, which would find what is missing by itself.
    """
    text = declared(SQUARE)
    splits = text["splits"]
    heads = {"train": (64, 40, 24, 16, 20, 96), "holdout": (28, 48, 14), "routing": (40, 20)}
    for split, kept in heads.items():
        grids = [grid for grid in splits[split]["grids"] if "h_kv" in grid and grid["h_q"] in kept]
        assert len(grids) == len(kept)
        splits[split]["grids"] = [grid | {"d_qk": 128} for grid in grids]
    if not guarded:
        assert text.pop("guards") == ["square"]
        text["gate"].remove("routing_changed == 0")
    return yaml.safe_dump(text, sort_keys=False)


def mixed(*more: dict[str, Any]) -> str:
    """Return the earlier study cut to GQA in bf16, with these lines more in its hold-out.

    Of the case that is slower with the entries the published one stays, of a head dimension of 64.
    """
    text = declared(MIXED) | {"dtypes": ["bf16"]}
    for split in ("train", "holdout"):
        grids = text["splits"][split]["grids"]
        text["splits"][split]["grids"] = [grid for grid in grids if "h_kv" in grid]
    slower, faster = text["splits"]["holdout"]["grids"]
    text["splits"]["holdout"]["grids"] = [slower | {"d_qk": 64}, faster, *more]
    return yaml.safe_dump(text, sort_keys=False)


@contextlib.contextmanager
def on_board(serial: str) -> Iterator[None]:
    """Let the tool measure in this process, on the simulated board with this serial; nothing is drawn."""
    with pytest.MonkeyPatch.context() as patch:
        benches.inline(patch)
        patch.setenv("STUDYTOOL_SIMULATED_BOARD", serial)
        patch.setattr(reporting, "DRAWING", ("no_such_library",))
        yield


def begin(
    root: Path, square_yaml: str, mixed_yaml: str, *, excluding: bool = True
) -> tuple[StudyPlace, dict[str, Said]]:
    """Return the study as the first host left it, and how its commands ended, in the order of the script."""
    earlier, place = finished.declare(root, mixed_yaml, MIXED), finished.declare(root, square_yaml, SQUARE)
    with on_board("A"):
        said = {
            "freeze the earlier study": call("freeze", earlier.folder),
            "run the earlier study": call("run", earlier.folder, "--dtype", "all"),
            "freeze": call("freeze", place.folder, *(("--exclude", earlier.manifest) if excluding else ())),
            "train": call("time", place.folder, "--dtype", "all"),
        }
        for dtype in DTYPES:
            path = root / f"{dtype}.txt"
            said[f"gen {dtype}"] = call("gen", place.results(dtype).study_json, "--margin", "0.05", "--emit")
            path.write_text(said[f"gen {dtype}"].out, encoding="utf-8")
            said[f"apply {dtype}"] = call("apply", path, "--table", place.table)
        holdout = ("time", place.folder, "--dtype", "bf16", "--split", "holdout")
        said["hold-out before a deadline"] = call(*holdout, "--deadline", "1s")
        benches.stopped(forger.job_of(place), STOPPED_AFTER)
        said["status"] = call("status", place.folder, "--dtype", "bf16")
    return place, said


def goes_on(place: StudyPlace) -> Said:
    """Return how the driver of the second host ended."""
    with on_board("B"):
        return drive("holdout_only", place.folder, "--dtype", "all", "--reason", REASON)


def end(place: StudyPlace) -> dict[str, Said]:
    """Return how the commands of the second host ended."""
    said = {"hold-out": goes_on(place)}
    with on_board("B"):
        said |= {name: call(name, place.folder, "--dtype", "all") for name in ("score", "report")}
    return said | {"bundle": call("bundle", place.folder, "-o", place.root / "study.tar.gz", "--keep-host")}


class Ran(NamedTuple):
    """A run: the study as each host left it, and how each command ended."""

    first: StudyPlace
    second: StudyPlace
    said: dict[str, Said]


def ran(root: Path, square_yaml: str, mixed_yaml: str, *, excluding: bool = True) -> Ran:
    """Return a run on two hosts, whose folders are below root."""
    first, said = begin(root / "host_a", square_yaml, mixed_yaml, excluding=excluding)
    second = finished.copy(first, root / "host_b")
    return Ran(first, second, said | end(second))


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Return the run as it should be, which nobody may change."""
    return ran(tmp_path_factory.mktemp("reference"), square(), mixed())


@pytest.fixture
def own(good: Ran, tmp_path: Path) -> StudyPlace:
    """Return what the second host of that run left, as a copy of the test's own."""
    return finished.copy(good.second, tmp_path / "own")


Checks = dict[tuple[str, str], str]
"""What was found by dtype and name of a check."""


def replayed(path: Path, *args: str) -> dict[str, Checks]:
    """Return what a replay found by the checks' states; what waits for another check to be mended is none of them."""
    code, out, err = call("replay", path, "--json", *args)
    found = json.loads(out)
    states: dict[str, Checks] = {}
    for check in found["checks"]:
        if check["figure"] != "not before what fails above is mended":
            states.setdefault(check["state"], {})[check["dtype"], check["name"]] = check["figure"]
    assert (found["exit"], err) == (code, "")
    assert code == (1 if replay.FAIL in states else 3 if replay.UNSAID in states else 0)
    return states


def failing(place: StudyPlace) -> Checks:
    """Return the checks of a finished study that fail: all others are ok, or do not apply."""
    found = replayed(place.folder)
    assert replay.UNSAID not in found
    return found.get(replay.FAIL, {})


def report_of(place: StudyPlace) -> str:
    """Return the report over all dtypes."""
    return place.report.read_text(encoding="utf-8")


# The run as it should be


def test_commands_end_as_the_script_says(good: Ran) -> None:
    """Of all commands two do not end with 0: the earlier study's gate fails, and the deadline is too near."""
    codes = {name: said.code for name, said in good.said.items() if said.code}

    assert codes == {"run the earlier study": 1, "hold-out before a deadline": 3}
    assert good.said["run the earlier study"].err.endswith("the gate fails\n")
    assert re.fullmatch(
        r"bf16 holdout: not begun, since it would take about \d+ s and 1 s are left before the deadline\n",
        good.said["hold-out before a deadline"].err,
    )
    assert re.search(r"^\| bf16 \| 6 of 6 \| .* \| 6 \| 0 \| PASS \|\n\| f16 ", good.said["score"].out, re.MULTILINE)
    assert good.said["hold-out"].out == good.said["score"].out


def test_the_earlier_study_fails_by_the_published_case(good: Ran) -> None:
    """Its slowest case is the published one, of few queries before many keys: 7.0 instead of 4.8 ms."""
    text = StudyPlace(good.second.root, MIXED).results("bf16").report.read_text(encoding="utf-8")
    found = re.search(
        r"^- Highest applied / default: 1\.4\d\d, sdpa_bwd bf16 b12 h40/8 d64 S128/8960 br w8000:"
        r" (4\.\d+) ms by default, (7\.\d+) ms with the entries\.$",
        text,
        re.MULTILINE,
    )

    assert found is not None
    assert [float(value) for value in found.groups()] == pytest.approx([4.8, 7.0], rel=0.02)


def test_the_lines_have_the_guard(good: Ran) -> None:
    """Each class gets an entry, and each entry is for square graphs only; so is the table of both hosts."""
    for dtype in DTYPES:
        entries = good.said[f"gen {dtype}"].out.splitlines()[1:]
        assert len(entries) == 2
        assert all('("always", {"square": 1}),' in entry for entry in entries)
    assert good.first.table.read_text(encoding="utf-8").count('("always", {"square": 1}),') == 4
    assert good.second.table.read_bytes() == good.first.table.read_bytes()


def test_the_first_host_left_a_part_of_the_hold_out(good: Ran) -> None:
    """What was measured until the host was gone is told with its count, and what to type to go on."""
    lines = good.said["status"].out.splitlines()

    assert f"next   bf16 holdout   {STOPPED_AFTER} of 30 lines" in lines
    assert lines[-1] == f"next: studytool time studies/{SQUARE} --dtype bf16 --split holdout"


def test_a_hold_out_does_not_go_on_on_another_board(good: Ran, tmp_path: Path) -> None:
    """Cases whose repeats would be of two boards are refused, whatever their model; on its own board it goes on."""
    place = finished.copy(good.first, tmp_path / "host_b")
    records = tree(place.results("bf16").records)
    asked = ("time", place.folder, "--dtype", "bf16", "--split", "holdout")
    with on_board("B"):
        code, out, err = call(*asked)
    after = tree(place.results("bf16").records)

    assert (code, out) == (2, "")
    assert f"{STOPPED_AFTER} of 30 lines from another state: cases of another machine of that board;" in err
    assert after == records
    with on_board("A"):
        assert call(*asked).out == "bf16 holdout: attempt 1, 30 of 30 lines\n"


def test_the_second_host_checked_what_the_first_one_left(good: Ran) -> None:
    """Before anything is timed, the driver says of each of its checks, for the study and each dtype, that it is ok."""
    of_dtypes = [f"ok          {dtype:5}{name}" for dtype in DTYPES for name in FIRST[2:]]
    lines = good.said["hold-out"].err.splitlines()

    assert [line.split(": ")[0] for line in lines[:14]] == [
        f"ok               {name}" for name in FIRST[:2]
    ] + of_dtypes
    assert lines[14:16] == ["bf16 holdout: attempt 2, 30 of 30 lines", "bf16 routing: attempt 1, 2 of 2 lines"]


FIRST = ("frozen files", "disjoint", "ledger", "drivers", "records sealed", "study.json", "lines", "table")
"""What the driver of the second host checks, in order."""


def test_both_hosts_timed_with_the_applied_table(good: Ran) -> None:
    """Train and the first attempt are of one board, the second attempt is of another; all tell of the same table."""
    records = good.second.results("bf16").records
    heads = {path.stem: values_of(path)[0] for path in records.glob("*.jsonl")}
    boards = {name: head["fingerprint"]["uuid"] for name, head in heads.items()}
    first, second = sha256(b"A")[:16], sha256(b"B")[:16]

    assert boards == {
        "train-01-001": first,
        "holdout-01-001": first,
        "holdout-02-001": second,
        "routing-01-001": second,
    }
    assert {head["table"] for name, head in heads.items() if "train" not in name} == {
        sha256(good.second.table.read_bytes())
    }
    assert heads["holdout-02-001"]["reason"] == REASON


def test_the_reviewer_finds_nothing_wrong(good: Ran) -> None:
    """Of the folder and, with the posted hash, of the archive every check is ok, but for those that cannot apply."""
    posted = good.said["freeze"].out.split()[2]
    here, packed = replayed(good.second.folder), replayed(good.second.root / "study.tar.gz", "--expect", posted)

    assert here.keys() == packed.keys() == {replay.OK, replay.NOT_APPLICABLE}
    assert list(here[replay.NOT_APPLICABLE]) == [("", "posted beforehand")]
    assert list(packed[replay.NOT_APPLICABLE]) == [(dtype, "unseen hold-out") for dtype in DTYPES]
    assert packed[replay.OK]["", "posted beforehand"] == posted
    assert here[replay.OK]["", "disjoint"] == f"train, hold-out and routing share no case; nor with {MIXED}"
    assert here[replay.OK]["bf16", "unseen hold-out"] == "1 other studies here measured none of its cases before"
    assert here[replay.OK]["bf16", "fresh hold-out"] == "FRESH, 1 looks with these entries"
    assert here[replay.OK]["bf16", "hold-out attempts"] == (
        f"holdout attempt 1: {STOPPED_AFTER} of 30 lines; attempt 2 was made because: {REASON}"
    )
    assert here[replay.OK]["f16", "hold-out attempts"] == "the first attempt is the only one"
    assert here[replay.OK]["bf16", "drivers"].startswith("holdout_only.py sha256:")
    assert here[replay.OK]["", "report of all dtypes"] == "written again, byte for byte"


# The report, as the published study has it


def test_the_report_has_the_sections_and_tables_of_the_published_one(good: Ran) -> None:
    """The head of each table and the order of sections; a result line for each dtype, in the study's order."""
    text = report_of(good.second)
    result, *_ = section(text, "Result").split("\n\n")

    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [
        "Result",
        "Change",
        "Notable cases",
        "Noise and control",
        "Routing",
        "How the hold-out was run",
        "Not measured",
        "Method",
        "Terms",
        "Provenance",
        "Replay",
    ]
    assert result.split("\n")[0] == (
        "| dtype | cases | default | with the entries | applied / default | reach an entry | slower beyond noise |"
        " gate |"
    )
    mean_max, mean_min_max = r"\d+\.\d{3} \(\d+\.\d{3}\)", r"0\.\d{3} \(0\.\d{3}, 0\.\d{3}\)"
    for dtype, line in zip(DTYPES, result.split("\n")[2:], strict=True):
        assert re.fullmatch(
            rf"\| {dtype} \| 6 of 6 \| {mean_max} \| {mean_max} \| {mean_min_max} \| 6 \| 0 \| PASS \|", line
        )
    noise = section(text, "Noise and control").split("\n")
    assert noise[0] == (
        "| dtype | repeat spread, median | p90 | max | legs of one plan | A/A band | on train | control fails |"
    )
    assert [line.split(" | ")[0] for line in noise[2:4]] == ["| bf16", "| f16"]
    assert section(text, "Routing").split("\n")[:4] == [
        "| dtype | hold-out cases that an entry leads, and that ran the row in every repeat"
        " | without an entry, and ran the default | routing cases that keep their plan"
        " | of these are of a class with an entry |",
        "| --- | --- | --- | --- | --- |",
        "| bf16 | 6 of 6 | 0 of 0 | 2 of 2 | 2 |",
        "| f16 | 6 of 6 | 0 of 0 | 2 of 2 | 2 |",
    ]


def test_the_report_has_the_published_notable_cases(good: Ran) -> None:
    """The slowest case and the one that saves most are those that were published, within 2 % of their times."""
    found = section(report_of(good.second), "Notable cases")
    slowest = re.search(
        r"^- Highest applied / default: 0\.97\d, sdpa_bwd f16 b24 h28/4 d128 S128 br w8000:"
        r" ([\d.]+) µs by default, ([\d.]+) µs with the entries\.$",
        found,
        re.MULTILINE,
    )
    saved = re.search(
        rf"^- Largest time saved: {LABEL}: ([\d.]+) ms by default, ([\d.]+) ms with the entries\.$", found, re.MULTILINE
    )

    assert slowest is not None
    assert saved is not None
    assert [float(value) for value in slowest.groups()] == pytest.approx([429, 418], rel=0.02)
    assert [float(value) for value in saved.groups()] == pytest.approx([1671.9, 51.2], rel=0.02)


def test_the_report_says_how_the_hold_out_was_run(good: Ran) -> None:
    """The unscored attempt has its count and its reason, for the dtype that had it; what was not measured is told."""
    text = report_of(good.second)

    assert section(text, "How the hold-out was run").split("\n")[:3] == [
        "- bf16, f16: 6 ok; the hold-out is FRESH; per-case looks at it: 1.",
        f"- bf16: Unscored: holdout attempt 1 with {STOPPED_AFTER} of 30 lines.",
        f"- bf16: holdout attempt 2 was made because: {REASON}.",
    ]
    assert [line.split(" ")[1] for line in section(text, "Not measured").strip().split("\n")] == [
        "Other",
        "Sizes",
        "Regimes",
        "Features",
        "Memory,",
    ]


# One thing is wrong


FEW_QUERIES = ("b12 h40/8 d128 S128/8832 br w8000", "b8 h20/5 d128 S499/500 br w16")
"""The routing cases of either dtype."""


def test_entries_without_a_guard_lead_graphs_that_they_must_leave_alone(tmp_path: Path) -> None:
    """Without the guard every routing case, of few queries, is led by an entry: `routing` fails, and nothing else."""
    found = ran(tmp_path, square(guarded=False), mixed())
    states = failing(found.second)

    assert '("always", {}),' in found.said["gen bf16"].out
    assert found.said["score"].code == 0
    assert list(states) == [(dtype, "routing") for dtype in DTYPES]
    for dtype in DTYPES:
        told = f"2 of 2 routing cases do not keep their plan, such as sdpa_bwd {dtype} "
        assert states[dtype, "routing"].startswith(told)
        assert states[dtype, "routing"].removeprefix(told) in FEW_QUERIES
    assert "| bf16 | 6 of 6 | 0 of 0 | 0 of 2 | 2 |" in report_of(found.second)


def test_a_case_that_an_earlier_study_measured_is_found(tmp_path: Path) -> None:
    """An earlier study that measured a hold-out case, and was not named, makes `unseen hold-out` fail alone."""
    found = ran(tmp_path, square(), mixed(SAVES_MOST), excluding=False)

    assert failing(found.second) == {
        ("bf16", "unseen hold-out"): (
            f"studies/{MIXED}/bf16/records/holdout-01-001.jsonl: measured 1 hold-out cases before, such as {LABEL}"
        )
    }


def test_freezing_against_an_earlier_study_refuses_its_cases(tmp_path: Path) -> None:
    """Named when freezing, the same earlier study ends it with exit code 2 and the case's label; nothing is frozen."""
    earlier = finished.declare(tmp_path, mixed(SAVES_MOST), MIXED)
    place = finished.declare(tmp_path, square(), SQUARE)
    assert call("freeze", earlier.folder).code == 0
    code, out, err = call("freeze", place.folder, "--exclude", earlier.manifest)

    assert (code, out) == (2, "")
    assert err == f"{earlier.manifest}: 1 holdout cases are in {MIXED}, such as {LABEL}\n"
    assert not place.frozen.exists()


TABLES = {
    "an entry without its guard": ('("always", {"square": 1})', '("always", {})'),
    "an entry for other lengths": ('("always", {"square": 1})', '("from", "s_kv", 512, {"square": 1})'),
    "the evidence alone": ("worst 0.9", "worst 0.8"),
}
"""What is another in the table that came to the second host."""


@pytest.mark.parametrize(("old", "new"), TABLES.values(), ids=TABLES)
def test_another_table_on_the_second_host_is_not_timed_with(good: Ran, tmp_path: Path, old: str, new: str) -> None:
    """The driver ends by `table` after all else was ok, and times nothing; put back, the same command goes on."""
    place = finished.copy(good.first, tmp_path / "host_b")
    table = place.table.read_bytes()
    records = tree(place.results("bf16").records)
    assert old.encode() in table
    place.table.write_bytes(table.replace(old.encode(), new.encode(), 1))
    code, out, err = goes_on(place)
    *checked, last, reason = err.splitlines()
    after, found = tree(place.results("bf16").records), replayed(place.folder)
    place.table.write_bytes(table)

    assert (code, out) == (1, "")
    assert [line.split(": ")[0] for line in checked] == [
        *(f"ok               {name}" for name in FIRST[:2]),
        *(f"ok          bf16 {name}" for name in FIRST[2:-1]),
    ]
    assert last.startswith(f"FAIL        bf16 table: studies/{SQUARE}/table.py:")
    assert reason == f"the first run does not hold: table: {last.split(': ', 1)[1]}"
    assert after == records
    assert list(found[replay.FAIL]) == [(dtype, "table") for dtype in DTYPES]

    assert goes_on(place).code == 0
    assert [(attempt.number, attempt.found) for attempt in forger.job_of(place).attempts()] == [
        (1, STOPPED_AFTER),
        (2, 30),
    ]
    assert failing(place) == {}


def _of_another_margin(good: Ran) -> str:
    return call("gen", good.second.results("bf16").study_json, "--margin", "0.2", "--emit").out


def _of_the_earlier_study(good: Ran) -> str:
    """Return the lines with the entry of one class as the earlier study had it."""
    earlier = StudyPlace(good.second.root, MIXED).results("bf16").lines.read_text(encoding="utf-8").splitlines()
    lines = good.second.results("bf16").lines.read_text(encoding="utf-8").splitlines(keepends=True)
    stale = [line for line in earlier if line.split(": (")[0] == lines[2].split(": (")[0]]
    assert len(stale) == 1
    return "".join([*lines[:2], f"{stale[0]}\n"])


STALE = {"of another margin": (_of_another_margin, 1), "of the earlier study": (_of_the_earlier_study, 3)}
"""Lines of a fit that was not applied, and the first line of them that is not one of those that were."""


@pytest.mark.parametrize(("make", "line"), STALE.values(), ids=STALE)
def test_a_line_of_an_earlier_fit_is_found(good: Ran, own: StudyPlace, make: Any, line: int) -> None:
    """A stale line in lines.txt makes `lines` of its dtype fail alone, with the line's number."""
    own.results("bf16").lines.write_text(make(good), encoding="utf-8")

    assert failing(own) == {
        ("bf16", "lines"): f"studies/{SQUARE}/bf16/lines.txt:{line}: differs from what the records give"
    }


def test_a_kept_driver_that_was_changed_is_found(own: StudyPlace) -> None:
    """Other words in the kept copy make `drivers` of both dtypes, for which it was started, fail alone."""
    (kept,) = (own.folder / "drivers").iterdir()
    kept.write_bytes(kept.read_bytes().replace(b"from scratch", b"by and by", 1))

    assert failing(own).keys() == {(dtype, "drivers") for dtype in DTYPES}
    assert set(failing(own).values()) == {
        f"studies/{SQUARE}/drivers/{kept.name}: not the script that was started, sha256:{kept.name[:12]}"
    }
