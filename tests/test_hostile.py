"""A study that a stranger made: whatever stands in its files, a replay says so in a line, and does nothing else."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import finished
import pytest
from bad_records import chained, values_of
from commands import Said, call
from hostile import (
    BYTES,
    CANARY,
    CODE,
    ESCAPE,
    ESCAPES,
    FILES,
    KINDS,
    SCHEMAS,
    SPOTS,
    STATEMENTS,
    TOKENS,
    TWICE,
    VALUES,
    VERSIONED,
    YAML,
    Alter,
    everything,
    put,
)

from studytool import ledger
from studytool.digest import canonical, digest, pretty, sha256
from studytool.layout import StudyPlace

MOST_CHARACTERS = 1000
"""The longest line that a person is given."""


def named(table: dict[str, tuple[str, Alter]]) -> pytest.MarkDecorator:
    """Return the parameters of a test that is given a file and how it is altered."""
    return pytest.mark.parametrize(("file", "alter"), table.values(), ids=table.keys())


def crossed(files: dict[str, tuple[str, str]], tokens: dict[str, str]) -> dict[str, tuple[str, Alter]]:
    """Return each token put into each of these spots of files."""
    return {
        f"{spot}: {name}": (file, put(pattern, token))
        for spot, (file, pattern) in files.items()
        for name, token in tokens.items()
    }


def of_each(files: dict[str, str], alterations: dict[str, Alter]) -> dict[str, tuple[str, Alter]]:
    """Return each alteration of each of these files."""
    return {f"{file}: {name}": (file, alter) for file in files for name, alter in alterations.items()}


def replayed(place: StudyPlace, file: str) -> tuple[object, ...]:
    """Return the command that replays what a file belongs to: bf16 alone where that is enough, since it is quicker."""
    return ("replay", place.folder if file in {"study.yaml", "MANIFEST.json"} else place.folder / "bf16")


def with_canary(path: Path, canary: Path) -> None:
    """Put a path that must not come to be where the canary stands in a file."""
    if path.is_file() and not path.is_symlink() and CANARY.encode() in path.read_bytes():
        path.write_bytes(path.read_bytes().replace(CANARY.encode(), str(canary).encode()))


def clean(said: Said, shown: str) -> None:
    """Check that a command found something wrong, and what it said: where, in short lines that are safe to print."""
    lines = [*said.out.split("\n"), *said.err.split("\n")]
    wrong = [line for line in said.out.split("\n") if line.startswith("FAIL")] if said.code == 1 else [said.err]

    assert said.code in {1, 2}
    assert said.err == "" if said.code == 1 else re.fullmatch(r"[^\n]+\n", said.err) and said.out == ""
    assert any(shown in line for line in wrong), wrong
    assert len(set(wrong)) == len(wrong)
    assert "Traceback" not in said.out + said.err
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) <= MOST_CHARACTERS


def found_wrong(place: StudyPlace, shown: str, *command: object) -> None:
    """Check that a command finds a study wrong, names a file, and leaves all that is there as it was."""
    before = everything(place.root.parent)
    said = call(*command)

    clean(said, shown)
    assert everything(place.root.parent) == before


def refused(place: StudyPlace, file: str, alter: Alter) -> None:
    """Alter a file, replay the study, and check that the file is named and that nothing else came of it."""
    canary = place.root / "canary"
    alter(place.root / FILES[file])
    with_canary(place.root / FILES[file], canary)

    found_wrong(place, FILES[file], *replayed(place, file))
    assert not canary.exists()


@named(of_each(FILES, BYTES))
def test_other_bytes_in_any_file(whole: StudyPlace, file: str, alter: Alter) -> None:
    """Bytes that are no text, no JSON, no YAML or no table, or are not those that were written, name their file."""
    refused(whole, file, alter)


@named(of_each(FILES, KINDS))
def test_what_is_no_file(whole: StudyPlace, file: str, alter: Alter) -> None:
    """A directory, a link, a device or a FIFO where a file was is not waited for, and named."""
    refused(whole, file, alter)


@named(crossed(SPOTS, TOKENS))
def test_other_numbers(whole: StudyPlace, file: str, alter: Alter) -> None:
    """What is no positive integer where one belongs names its file, however many digits it has."""
    refused(whole, file, alter)


@named(crossed(VERSIONED, SCHEMAS))
def test_other_versions(whole: StudyPlace, file: str, alter: Alter) -> None:
    """A format of another version, or of none, is refused by name."""
    refused(whole, file, alter)


@named(TWICE)
def test_a_name_twice(whole: StudyPlace, file: str, alter: Alter) -> None:
    """An object that says two things by one name is refused, whichever a reader would take."""
    refused(whole, file, alter)


@named(crossed(ESCAPES, {"escape sequences": ESCAPE}))
def test_texts_that_act_on_a_terminal(whole: StudyPlace, file: str, alter: Alter) -> None:
    """A text that would clear a screen or turn a line around is printed as what it is, or not at all."""
    refused(whole, file, alter)


@named(of_each({"table.py": ""}, CODE))
def test_code_in_a_table(whole: StudyPlace, file: str, alter: Alter) -> None:
    """A table that is more than literals is refused, and none of it is run."""
    refused(whole, file, alter)


@named(of_each({"study.yaml": ""}, YAML))
def test_more_than_plain_yaml(whole: StudyPlace, file: str, alter: Alter) -> None:
    """Tags, aliases, merges, and what asks for more than there is, are refused, and no tag makes anything."""
    refused(whole, file, alter)


@pytest.mark.parametrize(
    "code", [code for code in (*STATEMENTS.values(), *VALUES.values()) if "open(" in code or "mkdir" in code]
)
def test_the_canary_sings(tmp_path: Path, code: str) -> None:
    """What the tables call code does make the canary when it is run."""
    canary = tmp_path / "canary"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("builtins.open", lambda path, mode: Path(path).open(mode).close())
        with contextlib.suppress(AssertionError, AttributeError, KeyError, SystemExit, TypeError):
            exec(code.replace(CANARY, str(canary)), {"__name__": "canary"})

    assert canary.exists()


def test_names_that_act_on_a_terminal(whole: StudyPlace) -> None:
    """Names of files and folders are printed as what they are, also those that are no text."""
    records = whole.results("bf16").records
    for name in ("\x1b[2J.jsonl", "\u202e.jsonl", "a\nok          b.jsonl", "\udcff.jsonl"):
        (records / name).write_bytes(b"")
    (whole.folder / "\x1b[2J").mkdir()
    (whole.folder / "\x1b[2J" / "ledger.jsonl").write_bytes(b"\x1b[2J\n")

    found_wrong(whole, "ledger.jsonl:1: ", "replay", whole.folder)


def test_a_folder_of_records_that_leads_elsewhere(whole: StudyPlace) -> None:
    """A folder that is a link to all of the machine is not searched."""
    records = whole.results("bf16").records
    records.rename(whole.root / "away")
    records.symlink_to("/")

    found_wrong(whole, "studies/whole/bf16/records", "replay", whole.folder / "bf16")


Change = Callable[[dict[str, Any]], object]


def inside(value: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Return an object within an object."""
    for name in path:
        value = value[name]
    return value


def of_session(*path: str, to: object) -> tuple[int, Change]:
    """Return how a member of a session is changed."""
    return 1, lambda value: inside(value, path[:-1]).update({path[-1]: to})


def of_record(*path: str, to: object) -> tuple[int, Change]:
    """Return how a member of a record is changed."""
    return 2, lambda value: inside(value, path[:-1]).update({path[-1]: to})


def of_gpu(value: dict[str, Any], **facts: object) -> None:
    """Let a session be one of cuDNN, with these facts."""
    value["fingerprint"].update({"versions": {"cudnn": "92700"}, **facts})


BLOCKS = 8
FORGED: dict[str, tuple[int, Change]] = {
    "a tick of nothing": of_session("fingerprint", "tick_ns", to=0),
    "a tick before": of_session("fingerprint", "tick_ns", to=-1),
    "a tick of ages": of_session("fingerprint", "tick_ns", to=10**400),
    "an attempt before": of_session("attempt", to=-1),
    "an attempt of 401 digits": of_session("attempt", to=10**400),
    "a session of 401 digits": of_session("session", to=10**400),
    "memory of 401 digits": of_session("fingerprint", "memory_bytes", to=10**400),
    "memory of 401 digits, of a GPU": (1, lambda value: of_gpu(value, memory_bytes=10**400)),
    "a version that is no number": of_session("fingerprint", "versions", to={"cudnn": "nine"}),
    "a version of foreign digits": of_session("fingerprint", "versions", to={"cudnn": "\u0669\u0662\u0667"}),
    "a version of 900 digits": of_session("fingerprint", "versions", to={"cudnn": "9" * 900}),
    "a version of torch that is none": of_session("fingerprint", "versions", to={"torch": ""}),
    "multiprocessors that are no number": (1, lambda value: of_gpu(value, settings={"sm_count": "many"})),
    "a long board": of_session("fingerprint", "board", to="b" * 100_000),
    "a long study": of_session("study", to="s" * 100_000),
    "a long reason": of_session("reason", to="r" * 100_000),
    "a prediction of 401 digits": of_session("predicted_ns", to=10**400),
    "a start that is no time": of_session("started", to="\u202e"),
    "times of nothing": of_record("legs", "frost", "ns", to=[0] * BLOCKS),
    "times before": of_record("legs", "frost", "ns", to=[-1] * BLOCKS),
    "times of ages": of_record("legs", "frost", "ns", to=[10**400] * BLOCKS),
    "times beyond": of_record("legs", "frost", "ns", to=[10**15 + 1] * BLOCKS),
    "the longest times": of_record("legs", "frost", "ns", to=[10**15] * BLOCKS),
    "host times before": of_record("legs", "frost", "host_ns", to=[-1] * BLOCKS),
    "host times of ages": of_record("legs", "frost", "host_ns", to=[10**400] * BLOCKS),
    "no launches": of_record("legs", "frost", "inner", to=0),
    "launches before": of_record("legs", "frost", "inner", to=-1),
    "launches of 401 digits": of_record("legs", "frost", "inner", to=10**400),
    "most launches": of_record("legs", "frost", "inner", to=10**15),
    "a build before": of_record("legs", "frost", "build_ns", to=-1),
    "a build of 401 digits": of_record("legs", "frost", "build_ns", to=10**400),
    "too few times": of_record("legs", "frost", "ns", to=[1]),
    "no times": of_record("legs", "frost", "ns", to=[]),
    "no plan": of_record("legs", "frost", "plan", to=None),
    "a plan of 401 digits": of_record("legs", "frost", "plan", "engine", to=10**400),
    "a knob of 401 digits": of_record("legs", "frost", "plan", "knobs", to={"k": 10**400}),
    "a long knob": of_record("legs", "auto", "plan", "knobs", to={"k" * 100_000: 1}),
    "a counter of 401 digits": of_record("legs", "frost", "counters", to={"gap": [10**400] * BLOCKS}),
    "power of 401 digits": of_record("blocks", to={"power_mw": [10**400] * BLOCKS}),
    "a clock of 401 digits": of_record("clock_mhz", to=[10**400]),
    "a clock before": of_record("clock_mhz", to=[-1]),
    "a repeat before": of_record("repeat", to=-1),
    "a repeat of 401 digits": of_record("repeat", to=10**400),
    "a long regime": of_record("regime", to="r" * 100_000),
    "a class of 401 digits": of_record("class", to=["open_engine", "sim-1", "bf16", 10**400]),
    "a long class": of_record("class", to=["o" * 100_000]),
    "an order of foreign digits": of_record("order", to=["\u0660\u0661\u0662\u0663"] * BLOCKS),
    "an order of a leg alone": of_record("order", to=["0000"] * BLOCKS),
    "no order": of_record("order", to=[]),
    "a leg more": of_record("legs", "other", to=None),
    "a trend of 401 digits": of_record("checks", "trend_ppm", to=10**400),
    "a trend in words": of_record("checks", "trend_ppm", to="much"),
    "a probe in words": of_record("checks", "flush_probe_ppm", to="much"),
    "steadiness in words": of_record("checks", "steady", to="very"),
    "a look in words": of_record("checks", "look_stop", to="very"),
    "a status of no samples": of_record("status", to="crashed"),
}
"""Members of a session (line 1) or a record (line 2) that a forger changes, who then mends the chain behind them."""


@pytest.mark.parametrize("split", ["train", "holdout"])
@pytest.mark.parametrize(("line", "change"), FORGED.values(), ids=FORGED.keys())
def test_forged_records(whole: StudyPlace, split: str, line: int, change: Change) -> None:
    """Values that cannot be, behind a chain that is whole, fail a check that names the file."""
    path = whole.results("bf16").records / f"{split}-01-001.jsonl"
    values = values_of(path)
    change(values[line - 1])
    chained(path, values)

    found_wrong(whole, whole.shown(path), "replay", whole.folder / "bf16")


LEDGER: dict[str, tuple[str, Change]] = {
    "a margin of -1": ("apply", lambda body: body.update(margin_ppm=-1_000_000)),
    "a margin below -1": ("apply", lambda body: body.update(margin_ppm=-(10**400))),
    "a margin of 401 digits": ("apply", lambda body: body.update(margin_ppm=10**400)),
    "a margin of 4300 digits": ("apply", lambda body: body.update(margin_ppm=int("9" * 4300))),
    "a scope that is none": ("apply", lambda body: body.update(scope="all")),
    "a long scope": ("apply", lambda body: body.update(scope="s" * 100_000)),
    "a dtype that is none": ("apply", lambda body: body.update(dtype="bf17")),
    "a manifest that is none": ("frozen", lambda body: body.update(manifest="")),
    "a file elsewhere": ("session", lambda body: body.update(file="/etc/passwd")),
    "a long file": ("session", lambda body: body.update(file="f" * 100_000)),
    "a file of a NUL": ("session", lambda body: body.update(file="\0")),
    "lines of 401 digits": ("session", lambda body: body.update(lines=10**400)),
    "a score that is none": ("score", lambda body: body.update(score="")),
}
"""Bodies of a ledger's event that a forger changes, who then mends the chain behind it."""


@pytest.mark.parametrize(("kind", "change"), LEDGER.values(), ids=LEDGER.keys())
def test_a_forged_ledger(whole: StudyPlace, kind: str, change: Change) -> None:
    """What a ledger cannot tell, behind a chain that is whole, fails a check, whichever file that names."""
    path = whole.results("bf16").ledger
    prev, written = "", b""
    for event in map(json.loads, path.read_bytes().splitlines()):
        if event["event"] == kind:
            change(event["body"])
        event |= {"prev": prev, "own": ""}
        event["own"] = prev = digest(event)
        written += canonical(event) + b"\n"
    path.write_bytes(written)

    found_wrong(whole, "", "replay", whole.folder / "bf16")


def test_a_driver_that_leads_elsewhere(whole: StudyPlace) -> None:
    """The name of a driver in a ledger is no path."""
    path = whole.results("bf16").ledger
    ledger.append(path, "t", "driver", {"name": "a.py", "sha256": "0" * 64})
    path.write_bytes(path.read_bytes().replace(b'"a.py"', b'"../a.py"'))

    found_wrong(whole, "ledger.jsonl:8: ", "replay", whole.folder / "bf16")


NAMES: dict[str, str] = {
    "a NUL": "a\0.jsonl",
    "a path": "../../../../etc/passwd.jsonl",
    "a long one": f"{'a' * 300}.jsonl",
    "a longer one": f"{'a' * 5000}.jsonl",
    "an escape sequence": "\x1b[2J\u202e.jsonl",
    "itself": ".jsonl",
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES.keys())
def test_names_of_an_earlier_study(whole: StudyPlace, name: str) -> None:
    """A file's name in the manifest of an earlier study is not followed out of its folder, whatever it holds."""
    manifest = json.loads(whole.manifest.read_bytes())
    earlier = whole.frozen.with_name("earlier") / "MANIFEST.json"
    earlier.parent.mkdir()
    earlier.write_bytes(pretty({**manifest, "name": "earlier", "files": {name: "0"}}))
    told = [{"name": "earlier", "sha256": sha256(earlier.read_bytes())}]
    whole.manifest.write_bytes(pretty({**manifest, "disjoint_from": told}))

    found_wrong(whole, "frozen_cases/earlier/", "replay", whole.folder / "bf16")


@pytest.mark.parametrize("alter", [*KINDS.values(), BYTES["not UTF-8"], BYTES["CRLF"]])
def test_records_of_another_study(whole: StudyPlace, alter: Alter) -> None:
    """Another study beside this one, whose records are looked through, can do no more than this one."""
    shutil.copytree(whole.frozen, whole.frozen.with_name("other"))
    shutil.copytree(whole.folder, whole.folder.with_name("other"))
    path = whole.folder.with_name("other") / "bf16" / "records" / "holdout-01-001.jsonl"
    alter(path)

    found_wrong(whole, "studies/other/bf16/records/holdout-01-001.jsonl", "replay", whole.folder / "bf16")


MEGA = 1_000_000
TABLE = b'SCHEMA = 1\nROWS = {\n    "r": ("d_qk",),\n}\nTABLE = {\n%s}\n'
LARGE: dict[str, tuple[str, Callable[[], bytes]]] = {
    **{
        f"{file}: {name}": (file, make)
        for file in ("MANIFEST.json", "cases", "records", "ledger", "table.py", "report.md")
        for name, make in {
            "a line of 100 MB": lambda: b"a" * 100 * MEGA,
            "30 million lines": lambda: b"ab\n" * 30 * MEGA,
        }.items()
    },
    "study.yaml: a line of 100 MB": ("study.yaml", lambda: b"a" * 100 * MEGA),
    "study.yaml: 250,000 words": ("study.yaml", lambda: b"- a\n" * (MEGA // 4)),
    "records: a text of 100 MB": ("records", lambda: b'{"schema":"' + b"a" * 100 * MEGA + b'"}\n'),
    "ledger: numbers of 100 MB": ("ledger", lambda: b'{"schema":[' + b"1," * 50 * MEGA + b"1]}\n"),
    "table.py: literals of 30 MB": ("table.py", lambda: b"SCHEMA = (" + b"1," * 15 * MEGA + b")\n"),
    "table.py: keys that collide": (
        "table.py",
        lambda: TABLE % b"".join(b"('r', 'c', %d): ('always', {}),\n" % (n * (2**61 - 1)) for n in range(50_000)),
    ),
    "study.yaml: 100,000 sizes": ("study.yaml", lambda: study(f"s_kv: [{', '.join(map(str, range(1, 100_001)))}]")),
    "study.yaml: two million combinations": (
        "study.yaml",
        lambda: study("s_kv: {from: 1, to: 1000, step: 1}, d_v: {from: 1, to: 999, step: 1}", where="s_kv < 1"),
    ),
    "study.yaml: powers of powers": (
        "study.yaml",
        lambda: study(f"b: 9, s_kv: '{power('b', 99)}', s_q: '{power('s_kv', 39)}', d_v: '{power('s_q', 49)}'"),
    ),
    "study.yaml: powers of powers of powers": (
        "study.yaml",
        lambda: study(
            f"b: 99999, s_kv: '{power('b', 99)}', s_q: '{power('s_kv', 39)}', d_v: '{power('s_q', 49)}',"
            f" h_kv: '{power('d_v', 49)}'"
        ),
    ),
}
"""Files that take long to read, or more memory than there is, unless a reader bounds them."""

MOST_BYTES, MOST_SECONDS = 1 << 30, 10


def power(name: str, count: int) -> str:
    """Return a field times itself so many times, as an expression."""
    return "*".join([name] * count)


def study(axes: str, where: str = "b > 0") -> bytes:
    """Return the declaration with a grid of these axes in the place of its first one, and a condition on its cases."""
    old, holdout = "s_kv: [64, 128, 256, 512, 1024, 2048]", "  holdout:"
    assert old in finished.WHOLE_YAML
    text = finished.WHOLE_YAML.replace(old, axes, 1)
    return text.replace(holdout, f"    where: [{where}]\n{holdout}", 1).encode()


REPLAY = """\
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (int(sys.argv[1]), int(sys.argv[1])))
from studytool.cli import main
main(["replay", sys.argv[2]])
"""


@pytest.mark.slow
@pytest.mark.parametrize(("file", "make"), LARGE.values(), ids=LARGE.keys())
def test_files_that_ask_for_much(whole: StudyPlace, file: str, make: Callable[[], bytes]) -> None:
    """A process that replays such a study ends soon, with a gigabyte at most."""
    path = whole.root / FILES[file]
    path.write_bytes(make())
    before = everything(whole.root)
    command = [sys.executable, "-c", REPLAY, str(MOST_SECONDS), str(replayed(whole, file)[1])]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        out, err = (stream.read().decode() for stream in (process.stdout, process.stderr) if stream)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    after = everything(whole.root)
    path.unlink()  # the folders of passed tests are kept

    clean(Said(process.returncode, out, err), FILES[file])
    assert after == before
    assert used.ru_maxrss * 1024 <= MOST_BYTES
