"""Where cuDNN's libraries are found or fetched to, and the stand-in for the driver that they link to.

Versions lie side by side in the user's cache, each in a folder of its own; nothing is put into the environment that
measures.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from studytool.errors import DeviceError, StudyError

CUDNN = "nvidia-cudnn-cu13"
CUDA = ("nvidia-cublas", "nvidia-cuda-nvrtc", "nvidia-cuda-runtime")
SIZE = "cuDNN is a download of about 0.5 GB and 0.5 to 0.9 GB on disk, the CUDA libraries beside it 0.7 GB, once"
_VERSION = re.compile(r"\d+(\.\d+){3}")
_STUB = Path(__file__).parent / "stub.c"


class Libraries(NamedTuple):
    """The libraries of one cuDNN version: folders with `libcudnn.so.9` and with the CUDA libraries."""

    version: str
    cudnn: Path
    cuda: Path


def cache() -> Path:
    """Return the folder that fetched libraries are kept in."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "studytool"


def find(version: str | None) -> Libraries:
    """Return the libraries of a version, or of the one that is installed beside the frontend.

    StudyError, with what to type, where they are not there.
    """
    if version is not None and not _VERSION.fullmatch(version):
        raise StudyError(f"--cudnn: found {version}; expected a version of {CUDNN} such as 9.27.0.42")
    installed = _installed()
    if version is None and installed is None:
        raise StudyError(
            f"no {CUDNN} is installed; expected --cudnn VERSION (`studytool plan` brings one with --fetch), or"
            " pip install 'studytool[planning]'"
        )
    wanted = version or str(installed)
    site = Path(sysconfig.get_path("purelib"))
    root = site if wanted == installed else _folder(wanted)
    found = Libraries(wanted, root / "nvidia" / "cudnn" / "lib", _cuda(site))
    for folder, name in ((found.cudnn, "libcudnn.so.9"), (found.cuda, "libcublas.so.13")):
        if not (folder / name).is_file():
            raise StudyError(
                f"cuDNN {wanted} is not here; `studytool plan --board BOARD --cudnn {wanted} --fetch` brings it"
                f" ({SIZE})"
            )
    return found


def version_of(number: int) -> str:
    """Return the version that is here of a number that cuDNN tells, such as 92700; StudyError where none is."""
    prefix = f"{number // 10_000}.{number // 100 % 100}.{number % 100}."
    here = [path.name.removeprefix("cudnn-") for path in cache().glob("cudnn-*")] + [_installed() or ""]
    found = [version for version in here if version.startswith(prefix) and _VERSION.fullmatch(version)]
    if not found:
        raise StudyError(
            f"no cuDNN {prefix}x is here; `studytool plan --board BOARD --cudnn VERSION --fetch` brings one"
        )
    return max(found, key=lambda version: [int(part) for part in version.split(".")])


def fetch(version: str) -> Libraries:
    """Return the libraries of a version after pip put what is missing of them into the cache.

    StudyError with pip's last line where it cannot.
    """
    try:
        return find(version)
    except StudyError:
        if not _VERSION.fullmatch(version):
            raise
    if not (_folder(version) / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9").is_file():
        _pip(_folder(version), f"{CUDNN}=={version}")
    if not (_cuda(Path(sysconfig.get_path("purelib"))) / "libcublas.so.13").is_file():
        _pip(cache() / "cuda13", *CUDA)
    return find(version)


def stub() -> Path:
    """Return the folder of the stand-in for the driver's library, after compiling it where that was not done before.

    DeviceError where there is no C compiler.
    """
    source = _STUB.read_bytes()
    folder = cache() / f"stub-{hashlib.sha256(source).hexdigest()[:12]}"
    library = folder / "libcuda.so.1"
    if library.is_file():
        return folder
    compiler = next((found for name in ("cc", "gcc", "clang") if (found := shutil.which(name))), None)
    if compiler is None:
        raise DeviceError("no C compiler is here; planning for another GPU needs cc, gcc or clang, once")
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f"libcuda.{os.getpid()}"
    command = [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(draft), str(_STUB)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed words
    if ended.returncode:
        raise DeviceError(f"{compiler} cannot compile the driver's stand-in: {_last(ended.stderr)}")
    draft.replace(library)
    return folder


def driver_is_loaded() -> bool:
    """Return whether the machine has an NVIDIA driver at work."""
    return Path("/proc/driver/nvidia/version").exists()


def _installed() -> str | None:
    try:
        return metadata.version(CUDNN)
    except metadata.PackageNotFoundError:
        return None


def _folder(version: str) -> Path:
    return cache() / f"cudnn-{version}"


def _cuda(site: Path) -> Path:
    """Return the folder of the CUDA libraries: the environment's own where it has them, else the cache's."""
    own = site / "nvidia" / "cu13" / "lib"
    return own if (own / "libcublas.so.13").is_file() else cache() / "cuda13" / "nvidia" / "cu13" / "lib"


def _pip(target: Path, *packages: str) -> None:
    """Install packages beside their place, and move them there when they are whole."""
    draft = target.with_name(f"{target.name}.{os.getpid()}")
    command = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "--target"]
    ended = subprocess.run([*command, str(draft), *packages], capture_output=True, text=True, check=False)  # noqa: S603
    if ended.returncode:
        shutil.rmtree(draft, ignore_errors=True)
        raise StudyError(f"pip cannot fetch {', '.join(packages)}: {_last(ended.stderr)}")
    if target.exists():  # what was there was not whole
        shutil.rmtree(target)
    draft.replace(target)


def _last(said: str) -> str:
    lines = [line for line in said.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it does not say why"
