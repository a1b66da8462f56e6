"""Facts of this machine and of the code that measures. No host name, no path, no user name."""

import os
import platform
import re
import sys
from pathlib import Path

import msgspec
import numpy as np

import studytool
from studytool.digest import digest, sha256, tree_digest
from studytool.engines.base import Clock, Engine
from studytool.model import Fingerprint

_MEASURING = (
    "clock.py",
    "fingerprint.py",
    "measure.py",
    "schedule.py",
    "worker.py",
    "engines/**/*.py",
    "runtime/key.py",
)
"""The sources that decide what a sample is; their digest, with the engine's versions and settings, is `code`."""


def take(engine: Engine, clock: Clock) -> Fingerprint:
    """Return the fingerprint of this process."""
    facts = engine.facts()
    versions = {
        **facts.versions,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "studytool": studytool.__version__,
        "system": f"{sys.platform} {platform.machine()}",
    }
    package = Path(studytool.__file__).parent
    sources = [path for pattern in _MEASURING for path in package.glob(pattern)]
    return Fingerprint(
        board=facts.board or _processor(),
        uuid=sha256(facts.uuid.encode())[:16] if facts.uuid else _machine_id(),
        cc=facts.cc,
        cores=os.cpu_count() or 0,
        memory_bytes=facts.memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        tick_ns=clock.tick_ns,
        versions=versions,
        settings=facts.settings,
        device=dict(facts.device),
        code=digest([tree_digest(sources, package), versions, facts.settings]),
    )


def comparable(a: Fingerprint, b: Fingerprint) -> str | None:
    """Return what keeps two sessions from being compared (board, cc, versions or code, with both values), or None."""
    for name in ("board", "cc", "versions", "settings", "code"):
        one, other = (msgspec.to_builtins(getattr(side, name)) for side in (a, b))
        if one != other:
            return f"{name} {one} and {other}"
    return None


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1).strip() if match else platform.machine()


def _machine_id() -> str:
    """Return a stable id that does not tell the machine's name: a hash of the system's own random id."""
    path = Path("/etc/machine-id")
    return sha256(path.read_bytes())[:16] if path.is_file() else "unknown"
