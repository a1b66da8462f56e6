"""Where cuDNN's libraries are found, and how pip fetches them: in a cache of the test's own, by a pip that is none."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from studytool.errors import StudyError
from studytool.planning import libraries
from studytool.planning.libraries import SIZE, Libraries

VERSION = "9.27.0.42"


class Ran(SimpleNamespace):
    """A `subprocess.run` that notes the words, and does what `act` says: words to exit code and stderr."""

    def __init__(self, act: Callable[[list[str]], tuple[int, str]]) -> None:
        self.act, self.asked = act, list[list[str]]()

    def run(self, command: list[str], **_options: Any) -> "subprocess.CompletedProcess[str]":
        """Note the words, and do what `act` says."""
        self.asked.append(command)
        code, said = self.act(command)
        return subprocess.CompletedProcess(command, code, "", said)


def put(cache: Path, folder: str, library: str) -> Path:
    """Make an empty library in a folder of the cache, and return its folder."""
    path = cache / folder / library
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path.parent


def put_cudnn(cache: Path, version: str) -> Path:
    """Make a cuDNN of a version in the cache."""
    return put(cache, f"cudnn-{version}", "nvidia/cudnn/lib/libcudnn.so.9")


def put_cuda(cache: Path) -> Path:
    """Make the CUDA libraries in the cache."""
    return put(cache, "cuda13", "nvidia/cu13/lib/libcublas.so.13")


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty cache, beside an environment in which nothing of NVIDIA is installed."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path / "site"))
    installed(monkeypatch, None)
    return tmp_path / "cache" / "studytool"


def installed(patch: pytest.MonkeyPatch, version: str | None) -> None:
    """Let cuDNN be installed in a version, or not at all."""

    def answer(name: str) -> str:
        assert name == "nvidia-cudnn-cu13"
        if version is None:
            raise metadata.PackageNotFoundError(name)
        return version

    patch.setattr(metadata, "version", answer)


def says(error: str) -> str:
    """Return the pattern of an error that is just this line."""
    return rf"\A{re.escape(error)}\Z"


NOT_FETCHED = (
    f"cuDNN {VERSION} is not here; `studytool plan --board BOARD --cudnn {VERSION} --fetch` brings it ({SIZE})"
)


def test_the_cache_is_the_user_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache is where the system keeps caches: XDG_CACHE_HOME, or .cache in the home."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    named = libraries.cache()
    for value in ("", None):
        monkeypatch.setenv("XDG_CACHE_HOME", value) if value is not None else monkeypatch.delenv("XDG_CACHE_HOME")

        assert libraries.cache() == Path.home() / ".cache" / "studytool"
    assert named == Path("/somewhere/studytool")


def test_a_fetched_version_is_found_beside_others(cache: Path) -> None:
    """Each version has a folder of its own; the CUDA libraries are beside them."""
    folders = {version: put_cudnn(cache, version) for version in (VERSION, "9.19.0.56")}
    cuda = put_cuda(cache)

    for version, folder in folders.items():
        assert libraries.find(version) == Libraries(version, folder, cuda)


@pytest.mark.parametrize(
    "version", ["9.27", "9.27.0", "9.27.0.42.1", "v9.27.0.42", "", "latest", "9.27.0.42\n", "../x"]
)
@pytest.mark.parametrize("ask", [libraries.find, libraries.fetch])
def test_what_is_no_version_is_refused(cache: Path, ask: Callable[[str], Libraries], version: str) -> None:
    """A text that is no version is told beside one that is, and pip is not asked for it."""
    with pytest.raises(
        StudyError,
        match=says(f"--cudnn: found {version}; expected a version of nvidia-cudnn-cu13 such as 9.27.0.42"),
    ):
        ask(version)
    assert not cache.exists()


def test_without_a_version_and_an_installation_one_line_says_what_to_type(cache: Path) -> None:
    """Where no cuDNN is installed and none was asked for, both ways to one are told."""
    put_cudnn(cache, VERSION)
    expected = (
        "no nvidia-cudnn-cu13 is installed; expected --cudnn VERSION (`studytool plan` brings one with --fetch), or"
        " pip install 'studytool[planning]'"
    )
    with pytest.raises(StudyError, match=says(expected)):
        libraries.find(None)


def test_a_version_that_was_not_fetched_says_what_to_type_and_its_size(cache: Path) -> None:
    """The error names the option and what it costs, and nothing is made."""
    with pytest.raises(StudyError, match=says(NOT_FETCHED)):
        libraries.find(VERSION)
    assert "0.5 GB" in SIZE
    assert not cache.exists()


def test_what_pip_did_not_finish_is_not_found(cache: Path) -> None:
    """A folder beside the place, a cuDNN without its library, and one without CUDA are not found."""
    put(cache, f"cudnn-{VERSION}.4711", "nvidia/cudnn/lib/libcudnn.so.9")
    put_cuda(cache)
    for library in ("../other", "README", "nvidia/cudnn/lib/libcudnn_graph.so.9"):
        put(cache, f"cudnn-{VERSION}", library)
        with pytest.raises(StudyError, match=says(NOT_FETCHED)):
            libraries.find(VERSION)
    put_cudnn(cache, VERSION)
    shutil.rmtree(cache / "cuda13")
    with pytest.raises(StudyError, match=says(NOT_FETCHED)):
        libraries.find(VERSION)


def test_what_is_installed_is_found_where_it_is(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a version, or with the installed one, the environment's own are taken; another is the cache's."""
    installed(monkeypatch, VERSION)
    site = cache.parent.parent / "site"
    own = put(site, "nvidia/cudnn/lib", "libcudnn.so.9")
    cuda = put(site, "nvidia/cu13/lib", "libcublas.so.13")
    other = put_cudnn(cache, "9.28.1.4")
    put_cuda(cache)

    assert libraries.find(None) == libraries.find(VERSION) == Libraries(VERSION, own, cuda)
    assert libraries.find("9.28.1.4") == Libraries("9.28.1.4", other, cuda)


def test_a_number_leads_to_the_version_that_is_here(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number that cuDNN tells has no fourth part; of the versions that are here, the last one with it is meant."""
    for version in ("9.19.0.56", "9.27.0.42", "9.27.0.41", "9.2.70.1"):
        put_cudnn(cache, version)
    installed(monkeypatch, "9.28.1.4")

    assert [libraries.version_of(n) for n in (92700, 91900, 92801, 90270)] == [
        "9.27.0.42",
        "9.19.0.56",
        "9.28.1.4",
        "9.2.70.1",
    ]


def test_a_number_that_is_not_here_says_what_to_type(cache: Path) -> None:
    """A version that is not here is told by its number's three parts."""
    put_cudnn(cache, VERSION)
    expected = "no cuDNN 9.28.1.x is here; `studytool plan --board BOARD --cudnn VERSION --fetch` brings one"
    with pytest.raises(StudyError, match=says(expected)):
        libraries.version_of(92801)


def test_a_number_does_not_lead_to_what_pip_did_not_finish(cache: Path) -> None:
    """What was left beside the place by a pip that was stopped is no version."""
    put_cudnn(cache, VERSION)
    put(cache, f"cudnn-{VERSION}.4711", "nvidia/cudnn/lib/libcudnn.so.9")

    assert libraries.version_of(92700) == VERSION


def test_the_last_of_two_versions_is_so_by_number(cache: Path) -> None:
    """The fourth part is compared as a number, not as a text."""
    for version in ("9.27.0.9", "9.27.0.42"):
        put_cudnn(cache, version)

    assert libraries.version_of(92700) == "9.27.0.42"


def unpack(command: list[str]) -> tuple[int, str]:
    """Do what pip does: put the packages' libraries into the folder after --target."""
    target = Path(command[command.index("--target") + 1])
    for package in command[command.index("--target") + 2 :]:
        cudnn = package.startswith("nvidia-cudnn")
        put(target, "nvidia", "cudnn/lib/libcudnn.so.9" if cudnn else "cu13/lib/libcublas.so.13")
    return 0, ""


def test_a_fetch_runs_pip_once_beside_the_place(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pip fills a folder beside the place without dependencies, which is renamed when it is whole; then it is found."""
    ran = Ran(unpack)
    monkeypatch.setattr(subprocess, "run", ran.run)
    found = libraries.fetch(VERSION)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target"]

    assert [words[:-3] if "nvidia-cublas" in words else words[:-1] for words in ran.asked] == [
        [*pip, str(cache / f"cudnn-{VERSION}.{os.getpid()}")],
        [*pip, str(cache / f"cuda13.{os.getpid()}")],
    ]
    assert [words[9:] for words in ran.asked] == [[f"nvidia-cudnn-cu13=={VERSION}"], [*libraries.CUDA]]
    assert sorted(path.name for path in cache.iterdir()) == ["cuda13", f"cudnn-{VERSION}"]
    assert found == libraries.find(VERSION) == libraries.fetch(VERSION)
    assert len(ran.asked) == 2


def test_a_second_version_does_not_fetch_cuda_again(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CUDA libraries are fetched once for all versions, and not at all where they are installed."""
    ran = Ran(unpack)
    monkeypatch.setattr(subprocess, "run", ran.run)
    put(cache.parent.parent / "site", "nvidia/cu13/lib", "libcublas.so.13")
    for version in (VERSION, "9.28.1.4"):
        libraries.fetch(version)

    assert [words[9:] for words in ran.asked] == [[f"nvidia-cudnn-cu13=={v}"] for v in (VERSION, "9.28.1.4")]


def test_a_pip_that_fails_leaves_nothing(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has pip's last line, and the half that was fetched is gone."""

    def fail(command: list[str]) -> tuple[int, str]:
        unpack(command)
        return 1, "looking\nERROR: No matching distribution found for nvidia-cudnn-cu13==9.99.0.1  \n\n"

    monkeypatch.setattr(subprocess, "run", Ran(fail).run)
    version = "9.99.0.1"
    expected = (
        f"pip cannot fetch nvidia-cudnn-cu13=={version}: ERROR: No matching distribution found for"
        f" nvidia-cudnn-cu13=={version}"
    )
    with pytest.raises(StudyError, match=says(expected)):
        libraries.fetch(version)
    assert [*cache.iterdir()] == []


def test_a_pip_that_says_nothing_is_told_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pip fails without a word, the error says that."""
    monkeypatch.setattr(subprocess, "run", Ran(lambda _words: (1, " \n")).run)

    with pytest.raises(StudyError, match=r"\Apip cannot fetch nvidia-cudnn-cu13==\S+: it does not say why\Z"):
        libraries.fetch(VERSION)
    assert not cache.exists()


def test_a_fetch_that_another_process_ended_first_is_thrown_away(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the place was filled meanwhile, what is there stays, and nothing is left beside it."""

    def late(command: list[str]) -> tuple[int, str]:
        unpack(command)
        put_cudnn(cache, VERSION)
        put_cuda(cache)
        return 0, ""

    monkeypatch.setattr(subprocess, "run", Ran(late).run)

    assert libraries.fetch(VERSION).version == VERSION
    assert sorted(path.name for path in cache.iterdir()) == ["cuda13", f"cudnn-{VERSION}"]


@pytest.mark.parametrize("left", ["", "nvidia"], ids=["empty", "without its library"])
def test_a_broken_folder_in_the_place_is_fetched_anew(cache: Path, monkeypatch: pytest.MonkeyPatch, left: str) -> None:
    """A folder of the version that holds no cuDNN does not stand in the way of --fetch for ever."""
    (cache / f"cudnn-{VERSION}" / left).mkdir(parents=True)
    monkeypatch.setattr(subprocess, "run", Ran(unpack).run)

    assert libraries.fetch(VERSION).version == VERSION
