"""What is known of a machine and the code that ran, and what is never told."""

import getpass
import os
import platform
import re
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from benches import SIMULATED, FakeBench, FakeClock, FakeEngine

import studytool
from studytool import fingerprint
from studytool.engines.base import Facts
from studytool.engines.simulated import Simulated
from studytool.model import Fingerprint


def _take(tick_ns: int = 1) -> Fingerprint:
    return fingerprint.take(FakeEngine(FakeBench(FakeClock())), FakeClock(tick_ns))


def test_fingerprint_names_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No host name, user name or absolute path is in a fingerprint, wherever the system could give them."""
    secrets = ["secret-host", "secret-user", "/secret/home"]
    monkeypatch.setattr(platform, "node", lambda: secrets[0])
    monkeypatch.setattr(socket, "gethostname", lambda: secrets[0])
    monkeypatch.setattr(getpass, "getuser", lambda: secrets[1])
    for name, value in {"HOSTNAME": 0, "USER": 1, "LOGNAME": 1, "HOME": 2, "PWD": 2}.items():
        monkeypatch.setenv(name, secrets[value])
    uname = SimpleNamespace(sysname="Linux", nodename=secrets[0], release="6", version="1", machine=os.uname().machine)
    monkeypatch.setattr(os, "uname", lambda: uname)
    text = msgspec.json.encode([_take(), fingerprint.take(Simulated(SIMULATED), FakeClock())]).decode()

    assert not [secret for secret in secrets if secret in text]
    assert not re.search(r"(?<![\w.])/\w", text)
    assert str(Path.cwd()) not in text


def test_machine_has_a_stable_name_that_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's random id is hashed: two machines differ, one stays the same, and the id itself is not told."""
    found = []
    for content in (b"0123456789abcdef0123456789abcdef\n", b"0123456789abcdef0123456789abcdef\n", b"another\n", None):
        path = tmp_path / "machine-id"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        monkeypatch.setattr(fingerprint, "Path", lambda _name, path=path: path)
        found.append(fingerprint._machine_id())

    assert found[0] == found[1] != found[2]
    assert len(found[0]) == 16
    assert found[0] not in "0123456789abcdef0123456789abcdef"
    assert found[3] == "unknown"


def test_fingerprint_has_facts_of_engine_clock_and_machine() -> None:
    """A fingerprint has what the engine says of itself, the clock's tick, and the versions of what measures."""
    found = _take(tick_ns=40)

    assert (found.board, found.cc, found.tick_ns) == ("fake", "fake-1", 40)
    assert found.settings == {"threads": "1"}
    assert found.versions.keys() == {"fake", "python", "numpy", "studytool", "system"}
    assert found.versions["studytool"] == studytool.__version__
    assert (found.cores, found.memory_bytes > 1 << 20) == (os.cpu_count(), True)


@pytest.mark.parametrize(
    ("text", "board"),
    [
        ("vendor_id\t: x\nmodel name\t: Some CPU @ 2 GHz \nmodel name\t: Other\n", "Some CPU @ 2 GHz"),
        ("processor\t: 0\n", platform.machine()),
        (None, platform.machine()),
    ],
)
def test_board_without_one_is_the_processor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, board: str
) -> None:
    """An engine without a board of its own runs on the processor, by its model or else by its architecture."""
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    monkeypatch.setattr(fingerprint, "Path", lambda _name: tmp_path / "cpuinfo")

    assert fingerprint._processor() == board


def test_every_measuring_source_is_in_the_code_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed byte in any source that decides what a sample is changes `code`; other sources do not."""
    copy = tmp_path / "studytool"
    shutil.copytree(Path(studytool.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(studytool, "__file__", str(copy / "__init__.py"))
    before = _take().code
    deciding = []
    for path in sorted(copy.rglob("*.py")):
        source = path.read_bytes()
        path.write_bytes(source + b"\n")
        deciding += [path.relative_to(copy).as_posix()] if _take().code != before else []
        path.write_bytes(source)

    own = ("clock.py", "fingerprint.py", "measure.py", "runtime/key.py", "schedule.py", "worker.py")
    engines = (path.relative_to(copy).as_posix() for path in (copy / "engines").rglob("*.py"))
    assert sorted(deciding) == sorted([*own, *engines])


@pytest.mark.parametrize("change", [{"versions": {"fake": "2"}}, {"settings": {"threads": "2"}}])
def test_versions_and_settings_are_in_the_code_digest(monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    """Another version of the engine's library, or another setting, is other code."""
    before = _take().code
    facts = FakeEngine(FakeBench(FakeClock())).facts()._replace(**change)
    monkeypatch.setattr(FakeEngine, "facts", lambda _self: facts)

    assert isinstance(facts, Facts)
    assert _take().code != before


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, None),
        ({"uuid": "other", "cores": 1, "memory_bytes": 1, "tick_ns": 9}, None),
        ({"board": "B"}, "board fake and B"),
        ({"cc": "9.0"}, "cc fake-1 and 9.0"),
        ({"versions": {"fake": "2"}, "settings": {}, "code": "0"}, "versions {"),
        ({"settings": {"threads": "2"}, "code": "0"}, "settings {'threads': '1'} and {'threads': '2'}"),
        ({"code": "0" * 64}, "code "),
        ({"code": "0", "cc": "9.0", "board": "B"}, "board fake and B"),
    ],
)
def test_first_difference_keeps_sessions_apart(changes: dict[str, Any], difference: str | None) -> None:
    """Sessions compare on one board model, cc, versions, settings and code; the first difference is told with both."""
    a = _take()
    b = msgspec.structs.replace(a, **changes)
    found = fingerprint.comparable(a, b)

    assert (found is None) is (difference is None)
    assert (found or "").startswith(difference or "")
    for side, other in ((a, b), (b, a)):
        assert (fingerprint.comparable(side, other) is None) is (difference is None)
