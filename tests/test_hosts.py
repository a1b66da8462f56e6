"""What tells of the machine that measured: found before it is packed, and left out of records."""

import os
import pwd
from pathlib import Path
from typing import Any

import archives
import benches
import finished
import pytest
from commands import call, tiny
from factories import make_case
from hypothesis import given
from hypothesis import strategies as st

from studytool.engines.base import PlanError
from studytool.hosts import Traces, without_paths
from studytool.layout import StudyPlace
from studytool.measure import Measured
from studytool.model import MASKS, Status
from studytool.pipes import Failed

HOME, NODE, USER = "/data/people/mg", "gpu-box17", "marguerite"


def live_at(patch: pytest.MonkeyPatch, home: str = HOME, node: str = NODE, user: str = USER) -> None:
    """Let this machine and its user have these names."""
    patch.setattr(Path, "home", lambda: Path(home))
    patch.setattr("platform.node", lambda: node)
    patch.setattr("getpass.getuser", lambda: user)


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this machine and its user have names that stand in no study."""
    live_at(monkeypatch)


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> StudyPlace:
    """Return a finished study, started by a script with `#!/usr/bin/env python3`, that nobody may change."""
    return archives.full_study(tmp_path_factory.mktemp("full"))


@pytest.fixture
def own(full: StudyPlace, tmp_path: Path) -> StudyPlace:
    """Return a finished study of the test's own."""
    return finished.copy(full, tmp_path / "own")


# what is found

FOUND = {
    "home": (f"cannot open '{HOME}/kernels/a.so'", f"the home directory, '{HOME}'"),
    "home alone": (f"no space left on {HOME}", f"the home directory, '{HOME}'"),
    "node": (f"ssh: {NODE}: no route", f"the machine's name, '{NODE}'"),
    "node and domain": (f"at {NODE}.lab.example", f"the machine's name, '{NODE}'"),
    "user": (f"owned by {USER}.", f"the user's name, '{USER}'"),
    "user in a path": (f"/opt/{USER}/lib", f"the user's name, '{USER}'"),
    "user in an address": (f"{USER}@example.org", f"the user's name, '{USER}'"),
    "another home": ("cannot open /home/somebody/a.so: no", "a path of the host, '/home/somebody/a.so:'"),
    "a Mac's home": ('"/Users/some body/a.so"', "a path of the host, '/Users/some'"),
    "root's home": ("in /root/.cache/a", "a path of the host, '/root/.cache/a'"),
    "scratch": ("in /scratch/job7/a", "a path of the host, '/scratch/job7/a'"),
    "mount": ("in /mnt/disk/a", "a path of the host, '/mnt/disk/a'"),
    "medium": ("in /media/stick/a", "a path of the host, '/media/stick/a'"),
    "behind a flag": ("-I/home/somebody/include", "a path of the host, '/home/somebody/include'"),
    "home behind a flag": (f"-I{HOME}/include", f"the home directory, '{HOME}'"),
    "in a URL": (f"file://{HOME}/a.so", f"the home directory, '{HOME}'"),
    "in JSON": (f'{{"error":"{HOME}\\n"}}', f"the home directory, '{HOME}'"),
}


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize(("text", "told"), FOUND.values(), ids=FOUND.keys())
def test_a_trace_of_the_host_is_found(text: str, told: str) -> None:
    """The home directory, the names of machine and user, and paths that are somebody's own are told with their line."""
    data = f"first\n\n{text}\nlast {HOME}\n".encode()

    assert Traces.here(Path("/srv/studies of mine")).first(data) == f"3: found {told}"


UNFOUND = [
    "#!/usr/bin/env python3",
    "usr/lib/libcudnn.so.9 /usr/lib/x86_64-linux-gnu",
    f"x{USER} {USER}2 {USER}_x x-{USER} {NODE}8 my{NODE}",
    f"{HOME}2 {HOME}-old {HOME}_old",
    "home/somebody ~/notes /homes/a Users root /root",
    "sdpa_bwd bf16 b12 h48/6 d128 S16484/2048",
    "",
]


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("text", UNFOUND, ids=range(len(UNFOUND)))
def test_what_every_machine_has_is_no_trace(text: str) -> None:
    """A shebang, a library's path, a longer word and a label tell of no host."""
    assert Traces.here(Path("/srv/studies of mine")).first(text.encode()) == ""
    assert Traces.here(Path("/srv/studies of mine")).first(b"\xff\x00\n" + text.encode() + b"\n\xfe") == ""


RELATIVE = [
    "frozen_cases/scratch/MANIFEST.json",
    "studies/home/table.py",
    "see https://example.org/media/a/b",
    "x/mnt/y",
]


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("text", RELATIVE)
def test_a_relative_path_is_no_trace(text: str) -> None:
    """A study may be named like a folder that homes are in, and an address may have such a part."""
    assert Traces.here(Path("/srv/studies of mine")).first(text.encode()) == ""


def test_the_folder_of_the_study_is_a_trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The root of the study is told, as it was given and as it really is."""
    live_at(monkeypatch)
    root, real = tmp_path / "given", tmp_path / "real"
    real.mkdir()
    root.symlink_to(real)
    traces = Traces.here(root)

    assert traces.first(f"in {root}/studies/x".encode()) == f"1: found the folder of the study, '{root}'"
    assert traces.first(f"in {real}/studies/x".encode()) == f"1: found the folder of the study, '{real}'"


@pytest.mark.parametrize("name", ["box", "a", ""])
def test_a_short_name_is_no_trace(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A name of three letters, which may stand anywhere, is not looked for; one of four is."""
    live_at(monkeypatch, node=name, user=name)
    assert Traces.here(Path("/srv")).first(f"on {name} by {name}".encode()) == ""
    live_at(monkeypatch, node=f"{name}1234", user="")
    assert Traces.here(Path("/srv")).first(f"on {name}1234".encode()) != ""


@pytest.mark.parametrize("name", ["root", "user", "admin", "ubuntu"])
def test_a_user_of_every_machine_is_no_trace(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The name of a user that every machine has is not looked for."""
    live_at(monkeypatch, user=name)

    assert Traces.here(Path("/srv")).first(f"by {name}".encode()) == ""


def test_a_machine_that_has_no_name_of_its_own_is_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is every machine's name."""
    live_at(monkeypatch, node="localhost")

    assert Traces.here(Path("/srv")).first(b"http://localhost:8888") == ""


def test_a_name_with_a_domain_is_found_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that knows its domain is told by its short name, too, and by the whole one where that is too short."""
    for node, text in ((f"{NODE}.lab.example", NODE), ("n1.lab.example", "n1.lab.example")):
        live_at(monkeypatch, node=node)

        for told in (node, text):
            assert Traces.here(Path("/srv")).first(f"on {told}".encode()).startswith("1: found the machine's name")
    assert Traces.here(Path("/srv")).first(b"on n1") == ""


@pytest.mark.parametrize("folder", ["/", "."])
def test_a_folder_that_is_everywhere_is_no_trace(monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    """A user whose home is `/`, or a study at `/`, does not make every path a trace."""
    live_at(monkeypatch, home=folder)

    assert Traces.here(Path("/")).first(b"#!/usr/bin/env python3\n. /x") == ""


@pytest.mark.parametrize("error", [KeyError(7), OSError("none"), ImportError("pwd")], ids=repr)
def test_a_user_without_a_name_is_no_trace(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Where the system has no name for the user there is none to look for, and no error."""

    def no_name() -> str:
        raise error

    live_at(monkeypatch)
    monkeypatch.setattr("getpass.getuser", no_name)

    assert Traces.here(Path("/srv")).first(b"by nobody") == ""
    assert Traces.here(Path("/srv")).first(NODE.encode()) != ""


def test_a_user_without_a_home_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no home for the user, as in a container under a number, there is none to look for."""

    def nobody(number: int) -> Any:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", nobody)

    assert Traces.here(Path("/srv/mine")).first(b"in /srv/mine/x") == "1: found the folder of the study, '/srv/mine'"


def test_a_folder_of_any_letters_is_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose name has letters that mean something in a pattern is found as it is."""
    live_at(monkeypatch)
    folder = "/srv/c++ [x] (2*.|$^"

    assert Traces.here(Path(folder)).first(f"in {folder}".encode()) == f"1: found the folder of the study, '{folder}'"


def test_a_folder_in_any_bytes_is_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder whose name is not UTF-8 is found by its bytes."""
    live_at(monkeypatch)
    folder = b"/srv/not \xff UTF-8"

    assert Traces.here(Path(os.fsdecode(folder))).first(b"in " + folder + b"/x").startswith("1: found the folder of")


# what is packed

PLACES = ["studies/whole/study.yaml", "studies/whole/bf16/records/holdout-01-001.jsonl", "studies/whole/f16/report.md"]


def put_into(path: Path, text: str) -> int:
    """Write a line behind a file's others, and return its number."""
    path.write_bytes(path.read_bytes() + f"{text}\n".encode())
    return path.read_bytes().count(b"\n")


@pytest.mark.usefixtures("at_home")
def test_a_study_without_traces_is_packed(own: StudyPlace, tmp_path: Path) -> None:
    """Records, reports and a driver with a shebang tell of no host: the study is packed, and the same with the flag."""
    first, other = tmp_path / "first.tar.gz", tmp_path / "other.tar.gz"

    assert call("bundle", own.folder, "-o", first).code == 0
    assert call("bundle", own.folder, "-o", other, "--keep-host").code == 0
    assert first.read_bytes() == other.read_bytes()


@pytest.mark.usefixtures("at_home")
@pytest.mark.parametrize("what", ["{HOME}/a.so", "/home/somebody/a.so", "{NODE}", "{USER}", "{root}/a.so"])
@pytest.mark.parametrize("name", PLACES[1:])
def test_a_study_that_tells_of_its_host_is_not_packed(own: StudyPlace, tmp_path: Path, name: str, what: str) -> None:
    """File, line and what was found are one line, and no archive is written; with --keep-host it is packed."""
    text = what.format(HOME=HOME, NODE=NODE, USER=USER, root=own.root)
    number = put_into(own.root / name, f"OSError: {text}: no such file")
    into = tmp_path / "study.tar.gz"
    said = call("bundle", own.folder, "-o", into)

    assert said[:2] == (2, "")
    assert said.err.startswith(f"{name}:{number}: found ")
    assert text.removesuffix("/a.so") in said.err
    assert said.err.endswith("; --keep-host packs it nevertheless\n")
    assert said.err.count("\n") == 1
    assert not into.exists()
    assert call("bundle", own.folder, "-o", into, "--keep-host").code == 0
    assert text.encode() in archives.members(into.read_bytes())[name]


@pytest.mark.usefixtures("at_home")
def test_an_old_archive_stays_where_the_study_is_not_packed(own: StudyPlace, tmp_path: Path) -> None:
    """An archive of before is not harmed by a study that tells of its host."""
    put_into(own.results("bf16").report, HOME)
    (tmp_path / "study.tar.gz").write_bytes(b"before")

    assert call("bundle", own.folder, "-o", tmp_path / "study.tar.gz").code == 2
    assert (tmp_path / "study.tar.gz").read_bytes() == b"before"


@pytest.mark.usefixtures("at_home")
def test_the_declaration_and_earlier_cases_are_looked_at_too(tmp_path: Path) -> None:
    """What was declared and frozen, also of an earlier study, is held against the host's names like the rest."""
    place = tiny(tmp_path)
    place.study_yaml.write_text(f"# by {USER}\n{place.study_yaml.read_text()}")
    call("freeze", place.folder)
    said = call("bundle", place.folder, "-o", tmp_path / "study.tar.gz")

    assert said == (
        2,
        "",
        f"studies/tiny/study.yaml:1: found the user's name, '{USER}'; --keep-host packs it nevertheless\n",
    )


# what is recorded

WITHOUT = {
    "a/b/c.py:3": "a/b/c.py:3",
    "/a/b/c.py:3": "c.py:3",
    'File "/home/x/venv/lib/torch/nn.py", line 7': 'File "nn.py", line 7',
    "[Errno 2] No such file or directory: '/home/x/a b.so'": "[Errno 2] No such file or directory: 'a b.so'",
    "cannot load /usr/lib/libcudnn.so.9: no such file": "cannot load libcudnn.so.9: no such file",
    "PATH=/usr/bin:/home/x/bin": "PATH=bin:bin",
    "(/a/b), [/c/d]; </e/f> `/g/h`": "(b), [d]; <f> `h`",
    "in /home/x": "in x",
    "in /home/x/": "in x/",
    "/a/b and /c/d/e": "b and e",
    "/a/b\n/c/d": "b\nd",
    "/home/é ü/ß.py": "é ü/ß.py",
    "..., /a/b...": "..., b...",
    "cc1:/home/x/a.c:7:1": "cc1:a.c:7:1",
    "in /home/x/a.c(7)": "in a.c(7)",
    "see https://example.org/a/b/c": "see https://example.org/a/b/c",
    "at most 3 / 4 of it, 1/2, a/b/c": "at most 3 / 4 of it, 1/2, a/b/c",
    "./a/b ../c/d ~/e": "./a/b ../c/d ~/e",
    "sdpa_bwd bf16 b12 h48/6 d128 S16484/2048": "sdpa_bwd bf16 b12 h48/6 d128 S16484/2048",
    "ns/launch, B/s, and/or": "ns/launch, B/s, and/or",
    "": "",
}


@pytest.mark.parametrize(("text", "left"), WITHOUT.items(), ids=WITHOUT.keys())
def test_without_paths(text: str, left: str) -> None:
    """An absolute path becomes its last part; anything else, also with slashes, stays."""
    assert without_paths(text) == left


HIDDEN = [
    "file:///home/x/a.so",
    "/home/x//lib//a.so",
    "//home/x/a.so",
    "cc -I/home/x/a.so",
    "cc '-L/home/x/a.so'",
    "-I/home/x/a.so",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_no_spelling_hides_a_path(text: str) -> None:
    """A path with doubled slashes, in a URL of a file, or right behind a flag is a path."""
    left = without_paths(text)

    assert "home" not in left
    assert left.strip("'").endswith("a.so")


PARTS = st.text(st.sampled_from("abcXYZ019_.-+@~=é"), min_size=1, max_size=9).filter(lambda part: part.strip("."))
BEHIND = st.sampled_from(["", ": no", "'", ")", ", x", "\n", " x", ":3"])
AROUND = st.sampled_from(["", " ", "'", '"', "(", "[", "=", ":", ", ", "open ", "\n", "`", "<", "…"])


@given(st.text(st.sampled_from("/ab.@:() '-é\n~\"é0"), max_size=30))
def test_once_is_enough(text: str) -> None:
    """What was left without paths has none that could be taken out."""
    assert without_paths(without_paths(text)) == without_paths(text)


@given(
    AROUND, st.lists(PARTS, min_size=2, max_size=6), st.sampled_from(["", ": no", "'", ")", ", x", "\n", " x", ":3"])
)
def test_any_path_becomes_its_last_part(before: str, parts: list[str], behind: str) -> None:
    """Wherever a path stands, and whatever its parts are, only the last one is left."""
    assert without_paths(f"{before}/{'/'.join(parts)}{behind}") == f"{before}{parts[-1]}{behind}"


@given(st.text(max_size=60))
def test_a_text_without_a_slash_stays(text: str) -> None:
    """Without a slash there is no path."""
    assert without_paths(text.replace("/", "")) == text.replace("/", "")


@given(st.sampled_from(MASKS), st.integers(1, 64), st.integers(1, 8), st.integers(1, 9), st.integers(1, 9))
def test_a_label_stays(mask: str, b: int, h_kv: int, s_q: int, s_kv: int) -> None:
    """The label of a case, which has slashes, stays as it is."""
    sizes = {"b": b, "h_q": 8 * h_kv, "h_kv": h_kv, "s_q": 64 * s_q, "s_kv": 64 * s_kv, "window": 8 * s_q, "d_v": 32}
    label = make_case(mask=mask, **sizes).label

    assert without_paths(label) == label
    assert without_paths(f"leg frost: {label}: no") == f"leg frost: {label}: no"


LEAKS: dict[str, Any] = {
    "a crash": Failed(Status.ERROR, "OSError: cannot open '/home/x/kernels/a.so'"),
    "an error": Measured(status=Status.ERROR, error="OSError: cannot open '/home/x/kernels/a.so'"),
    "a decline": Measured(
        status=Status.NO_FROST,
        error="leg frost has no plan: eng5: cannot open '/home/x/kernels/a.so'",
        checks={"declined_frost": "eng5: cannot open '/home/x/kernels/a.so'", "took": 7},
    ),
}


@pytest.mark.parametrize("answer", LEAKS.values(), ids=LEAKS.keys())
def test_no_path_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: Measured | Failed) -> None:
    """Of a path in what a worker, or what ended it, says, the record has the last part; all else is as it was said."""
    benches.inline(monkeypatch)
    monkeypatch.setattr(benches.InlineProcess, "ask", lambda _self, _request, _timeout_s: answer)
    job = benches.make_job(tmp_path)
    benches.run(job)
    (path,) = job.results.records.glob("*.jsonl")
    records = benches.records(job)

    assert len(records) == 18
    assert {record.status for record in records} == {answer.status}
    assert {record.error for record in records} == {answer.error.replace("/home/x/kernels/", "")}
    assert b"/home" not in path.read_bytes()
    if isinstance(answer, Measured) and answer.checks:
        assert records[0].checks["declined_frost"] == "eng5: cannot open 'a.so'"
        assert records[0].checks["took"] == 7


def test_an_engine_s_error_is_recorded_without_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an engine says where it cannot plan a case is recorded without paths, in every repeat."""

    def refuse(*_args: object) -> Any:
        raise PlanError(Status.REFUSED, "no plan in /opt/cuda/lib64/libcudnn.so.9")

    benches.inline(monkeypatch)
    monkeypatch.setattr("studytool.engines.simulated.Simulated.prepare", refuse)
    job = benches.make_job(tmp_path)
    benches.run(job)

    assert {(r.status, r.error) for r in benches.records(job)} == {(Status.REFUSED, "no plan in libcudnn.so.9")}
