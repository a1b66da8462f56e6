"""The stand-in for the driver's library that a planning process has: compiled once, it says that no device is here."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from studytool.errors import DeviceError
from studytool.planning import libraries

NO_DEVICE = 100


@pytest.fixture(name="cache")
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a cache that is not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "studytool"


def fake_run(patch: pytest.MonkeyPatch, said: str) -> list[list[str]]:
    """Let every process that is run fail with these words on stderr; return a list of the commands."""
    asked: list[list[str]] = []

    def run(command: list[str], **_options: Any) -> "subprocess.CompletedProcess[str]":
        asked.append(command)
        return subprocess.CompletedProcess(command, 1, "", said)

    patch.setattr(subprocess, "run", run)
    return asked


def says(error: str) -> str:
    """Return the pattern of an error that is just this line."""
    return rf"\A{re.escape(error)}\Z"


def test_without_a_c_compiler_one_line_says_so(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no compiler, the error says what is needed, and that it is needed once."""
    monkeypatch.setattr(shutil, "which", lambda _name: None)

    expected = "no C compiler is here; planning for another GPU needs cc, gcc or clang, once"
    with pytest.raises(DeviceError, match=says(expected)):
        libraries.stub()
    assert not cache.exists()


def test_a_compiler_that_fails_is_one_line(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the compiler and has its last line; what it did not make is not taken for made."""
    monkeypatch.setattr(shutil, "which", lambda name: "/bin/clang" if name == "clang" else None)
    asked = fake_run(monkeypatch, "stub.c:1: warning\nld: cannot find crti.o\n")

    for _ in range(2):
        with pytest.raises(
            DeviceError, match=says("/bin/clang cannot compile the driver's stand-in: ld: cannot find crti.o")
        ):
            libraries.stub()
    assert [words[0] for words in asked] == ["/bin/clang"] * 2
    assert [path for path in cache.rglob("*") if path.is_file()] == []


compiled = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler is here: cc, gcc or clang"
)

ASK = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
names = sys.argv[2:]
number = ctypes.c_int(0)
print(library.cuDriverGetVersion(ctypes.byref(number)), number.value, *sorted({getattr(library, n)() for n in names}))
"""
ASKED_FOR = """
cuGetErrorString cuGetErrorName cuModuleGetFunction cuModuleLoadData cuModuleUnload cuTensorMapEncodeIm2col
cuTensorMapEncodeTiled cuCtxGetCurrent cuCtxGetLimit cuCtxPopCurrent cuCtxPushCurrent cuDeviceGet cuDeviceGetCount
cuKernelGetAttribute cuKernelGetFunction cuKernelSetAttribute cuLaunchCooperativeKernel cuLaunchKernel cuLaunchKernelEx
cuLibraryGetKernel cuLibraryLoadData cuLibraryLoadFromFile cuLibraryUnload cuLinkAddData cuLinkComplete cuLinkCreate
cuLinkDestroy cuOccupancyMaxPotentialClusterSize cuStreamGetCtx
"""
"""What cuDNN 9.19 to 9.28 look up in a libcuda, but for the driver's version (deviceless.md)."""


def answers(folder: Path, *names: str) -> list[str]:
    """Return what a stand-in says in a process of its own: of the driver's version, twice, and of these functions."""
    words = [sys.executable, "-c", ASK, str(folder / "libcuda.so.1"), *names]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()


@compiled
def test_the_stand_in_says_that_there_is_no_device(cache: Path) -> None:
    """Every function that cuDNN looks up says 100, no device, and the driver's version is 13.0; asked in a process."""
    folder = libraries.stub()

    assert folder.parent == cache
    assert answers(folder, *ASKED_FOR.split()) == ["0", "13000", str(NO_DEVICE)]


@compiled
def test_the_stand_in_has_the_driver_s_soname(cache: Path) -> None:
    """A library that links to libcuda.so.1 is content with it, since it bears that name."""
    data = (libraries.stub() / "libcuda.so.1").read_bytes()

    assert b"\0libcuda.so.1\0" in data
    assert data[:4] == b"\x7fELF"
    assert cache.exists()


@compiled
def test_the_stand_in_is_compiled_once(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call takes what is there, runs no compiler, and nothing else is left in its folder."""
    first = libraries.stub()
    monkeypatch.setattr(shutil, "which", lambda _name: None)
    asked = fake_run(monkeypatch, "")

    assert libraries.stub() == first
    assert asked == []
    assert [path.name for path in first.iterdir()] == ["libcuda.so.1"]
    assert cache in first.parents


@compiled
def test_another_source_is_compiled_anew(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder is named for the source, so that a changed one does not run as the old one."""
    source = tmp_path / "stub.c"
    source.write_text("int cuDriverGetVersion(int *version) { *version = 1; return 7; }\n")
    first = libraries.stub()
    monkeypatch.setattr(libraries, "_STUB", source)
    other = libraries.stub()

    assert {first.parent, other.parent} == {cache}
    assert first != other
    assert answers(other) == ["7", "1"]
