"""What must be here before a study can be measured: each missing piece is a finding that says what is needed."""

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from studytool.engines import preflight as module
from studytool.engines.base import Finding, Terms
from studytool.engines.preflight import preflight

torch = pytest.importorskip("torch")
cudnn = pytest.importorskip("cudnn")
pynvml = pytest.importorskip("pynvml")
fakecudnn = pytest.importorskip("fakecudnn")
graphs = pytest.importorskip("studytool.engines.cudnn.graphs")
nvml = pytest.importorskip("studytool.engines.cudnn.nvml")
plans = pytest.importorskip("studytool.engines.cudnn.plans")
pytestmark = pytest.mark.torch

PACKAGES = {
    "torch": "torch",
    "cudnn": "nvidia-cudnn-frontend",
    "cutlass": "nvidia-cutlass-dsl",
    "pynvml": "nvidia-ml-py",
}
GPU = "an NVIDIA GPU with its driver, visible to this process"
SM80_PLAN = (
    "one for a dense causal graph of head dim 128, 64, 256, 512: a GPU of the row's cc, and a CuTe DSL that imports"
)
Opened = Callable[..., tuple[Any, Any]]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Opened:
    """Return what puts the fake device in place, in a process that has loaded no libcudnn and has no switch set."""
    monkeypatch.setenv(plans.FLAG, "")
    monkeypatch.delenv(plans.FLAG)
    monkeypatch.setattr(module, "_MAPS", tmp_path / "maps")
    return lambda cc=(8, 0), sm_count=108: fakecudnn.install(monkeypatch.setattr, cc, sm_count)


def terms(row: str = "sdpa_bwd_sm80", base: str = "backend", engine: str = "cudnn") -> Terms:
    """Return what a study asks of an engine."""
    return Terms(engine=engine, row=row, base=base, simulated={})


def needed(findings: list[Finding]) -> dict[str, str]:
    """Return what is missing, by what it is missing of."""
    return {finding.what: finding.needed for finding in findings if finding.needed}


def found(findings: list[Finding]) -> dict[str, str]:
    """Return what was found, by what it was found of."""
    return {finding.what: finding.found for finding in findings}


def test_findings_stand_in_the_order_of_need(fake: Opened) -> None:
    """Packages come first, then the switch, driver and GPU, the library, and plans at last; nothing is missing."""
    fake()
    findings = preflight(terms())

    assert [finding.what for finding in findings] == [
        *PACKAGES.values(),
        "CUDNN_FRONTEND_ENABLE_FROST_ENGINES",
        "driver",
        "GPU",
        "clocks",
        "board",
        "other processes on the GPU",
        "cuDNN",
        "copies of libcudnn loaded",
        "FROST plans of sdpa_bwd_sm80",
        "backend plans of that graph",
    ]
    assert needed(findings) == {}
    assert found(findings)["nvidia-cudnn-frontend"] == cudnn.__version__
    assert found(findings)["torch"] == torch.__version__


def test_board_is_described(fake: Opened) -> None:
    """Driver, GPU, clocks, modes and other processes are told in words."""
    device, _ = fake()
    device.board.readings["throttle"] = 0x2 | 0x4
    told = found(preflight(terms()))

    assert (told["driver"], told["GPU"]) == ("580.1", "Fake GPU, cc 8.0")
    assert told["board"] == "mig 0, ecc 1, persistence 1, power_limit_mw 400000"
    assert told["other processes on the GPU"] == "1 (every block records their number)"
    assert told["clocks"] == (
        "SM 1410 MHz now, at most ?, held by application settings (every block records its clock)"
    )
    device.board.readings = {"throttle": 0x4}
    told = found(preflight(terms()))
    assert told["clocks"].startswith("SM ? MHz now, at most ?, not held by")
    assert "other processes on the GPU" not in told


def test_state_is_read_before_cuda_is_touched(fake: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes and clocks are those before this process has made itself one of them."""
    device, _ = fake()

    def touched() -> bool:
        device.board.readings["processes"] += 1
        return True

    monkeypatch.setattr(torch.cuda, "is_available", touched)

    assert found(preflight(terms()))["other processes on the GPU"].startswith("1 ")


@pytest.mark.parametrize("missing", [*([name] for name in PACKAGES), [*PACKAGES], ["cutlass", "pynvml"]])
def test_missing_package_is_named_with_the_extra(
    fake: Opened, monkeypatch: pytest.MonkeyPatch, missing: list[str]
) -> None:
    """All packages are looked at, those that are missing are named with what brings them, and nothing is imported."""
    fake()
    monkeypatch.setattr(graphs, "build", lambda *_, **__: pytest.fail("a graph was built"))
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    findings = preflight(terms())

    assert [finding.what for finding in findings] == [*PACKAGES.values()]
    assert needed(findings) == {PACKAGES[name]: "pip install 'studytool[cudnn]'" for name in missing}
    assert {found(findings)[PACKAGES[name]] for name in missing} == {"not installed"}


@pytest.mark.parametrize(("base", "expected"), [("backend", "1"), ("library", "")])
@pytest.mark.parametrize("before", [None, "1", "0"])
def test_switch_is_set_before_any_graph(
    fake: Opened, monkeypatch: pytest.MonkeyPatch, base: str, expected: str, before: str | None
) -> None:
    """The library reads its switch when a graph is validated; by then it is as the base needs it, and it is told."""
    fake((10, 0), 148)
    if before is not None:
        monkeypatch.setenv(plans.FLAG, before)
    build, seen = graphs.build, list[str]()

    def noting(case: Any) -> Any:
        seen.append(plans.flag())
        return build(case)

    monkeypatch.setattr(graphs, "build", noting)
    findings = preflight(terms("sdpa_fwd_prefill_sm100", base))

    assert needed(findings) == {}
    assert set(seen) == {expected}
    assert found(findings)[plans.FLAG] == f"{expected or 'not set'}, as base {base} needs"


def test_opt_in_row_without_the_switch_has_no_plan(fake: Opened) -> None:
    """A row that the library offers only with its switch set cannot be studied on the library's own order."""
    fake()

    assert needed(preflight(terms(base="library"))) == {"FROST plans of sdpa_bwd_sm80": SM80_PLAN}


def test_machine_without_a_driver_has_no_gpu(fake: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver NVML's own words are told, and nothing further is looked at."""
    fake()

    def absent() -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(nvml, "boards", absent)
    findings = preflight(terms())

    assert findings[-1] == Finding("GPU", "none: nvml shared library not found", GPU)
    assert needed(findings) == {"GPU": GPU}


@pytest.mark.parametrize(
    ("visible", "why"), [("", "CUDA_VISIBLE_DEVICES is ''"), ("7", "CUDA_VISIBLE_DEVICES is '7'"), (None, "torch ")]
)
def test_gpu_that_is_not_visible_is_told_apart(
    fake: Opened, monkeypatch: pytest.MonkeyPatch, visible: str | None, why: str
) -> None:
    """Where the driver knows boards and CUDA sees none, the variable that hides them is told, or torch's build."""
    fake()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    findings = preflight(terms())

    assert [finding.what for finding in findings[-2:]] == ["driver", "GPU"]
    assert findings[-1].found.startswith(f"none of 1: {why}")
    assert needed(findings) == {"GPU": GPU}


def _map(path: Path) -> str:
    return f"7f5a000-7f5b000 r-xp 00000000 08:01 42                 {path}\n"


def test_two_copies_of_the_library_are_one_too_many(fake: Opened) -> None:
    """Two files in the process's maps are two copies; segments, links and the library's parts are none of their own."""
    folder = module._MAPS.parent
    for name in ("a", "b"):
        (folder / name).mkdir()
        (folder / name / "libcudnn.so.9").write_bytes(b"")
    (folder / "link.d").mkdir()
    (folder / "link.d" / "libcudnn.so").symlink_to(folder / "a" / "libcudnn.so.9")
    one, other = folder / "a" / "libcudnn.so.9", folder / "b" / "libcudnn.so.9"
    parts = [folder / name / "libcudnn_graph.so.9" for name in ("a", "b")]
    said = []
    for loaded in ([], [one, one, *parts], [one, folder / "link.d" / "libcudnn.so"], [one, other, other]):
        fake()
        module._MAPS.write_text("".join(map(_map, loaded)) + "7ff0000-7ff1000 rw-p 0 00:00 0 [stack]\n")
        findings = preflight(terms())
        said.append((found(findings)["copies of libcudnn loaded"], needed(findings)))

    assert said[:3] == [("0", {}), ("1", {}), ("1", {})]
    assert said[3] == ("2", {"copies of libcudnn loaded": "one: two copies answer for each other's versions"})


def test_versions_of_both_copies_are_told(fake: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version that the frontend loaded is told beside the one that torch reports."""
    fake()
    before = found(preflight(terms()))["cuDNN"]
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)

    assert (before, found(preflight(terms()))["cuDNN"]) == ("92700 (torch's: none)", "92700 (torch's: 91900)")


@pytest.mark.parametrize("owner", ["cudnn.backend_version", "torch.backends.cudnn.version"])
def test_libcudnn_that_is_missing_or_does_not_fit_is_a_finding(
    fake: Opened, monkeypatch: pytest.MonkeyPatch, owner: str
) -> None:
    """Frontend and torch both raise for a libcudnn that is absent, or is not theirs; that is told, not raised."""
    fake()

    def absent() -> int:
        raise RuntimeError("Unable to find symbol cudnnGetVersion")

    monkeypatch.setattr(owner, absent)

    assert "Unable to find symbol cudnnGetVersion" in {one.what: one.found for one in preflight(terms())}["cuDNN"]


def test_module_of_another_distribution_is_a_finding(fake: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that another distribution brought, such as the old pynvml, is told like one that is missing."""
    fake()
    version = metadata.version

    def without(name: str) -> str:
        if name == "nvidia-ml-py":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)

    assert needed(preflight(terms())) == {"nvidia-ml-py": "pip install nvidia-ml-py"}


@pytest.mark.parametrize("row", ["sdpa_bwd", "sdpa_bwd_sm8", "open_engine"])
def test_unknown_row_is_told(fake: Opened, row: str) -> None:
    """A row that the installed library does not have is told as that, not as a missing plan."""
    fake()
    findings = preflight(terms(row))

    assert findings[-1] == Finding(
        f"row {row}", "not among the library's rows", "a row of the installed nvidia-cudnn-frontend"
    )


@pytest.mark.parametrize(
    ("row", "cc", "base", "backend"),
    [
        ("sdpa_bwd_sm80", (8, 0), "backend", "3"),
        ("sdpa_fwd_prefill_sm80", (8, 0), "backend", "3"),
        ("sdpa_fwd_prefill_sm90", (9, 0), "library", "3"),
        ("sdpa_fwd_prefill_sm100", (10, 0), "library", "3"),
        ("sdpa_bwd_sm100", (10, 0), "library", "3"),
        ("sdpa_fwd_prefill_sm120", (12, 0), "library", "3"),
        ("sdpa_bwd_sm120", (12, 0), "backend", "3"),
        ("sdpa_bwd_sm107_d512", (10, 7), "backend", "3"),
    ],
)
def test_row_is_found_on_its_gpu(fake: Opened, row: str, cc: tuple[int, int], base: str, backend: str) -> None:
    """For each row one of the known graphs, of whatever head dimension, has plans on both sides."""
    fake(cc)
    findings = preflight(terms(row, base))

    assert needed(findings) == {}
    assert int(found(findings)[f"FROST plans of {row}"]) >= 1
    assert found(findings)["backend plans of that graph"] == backend


@pytest.mark.parametrize(("row", "cc"), [("sdpa_bwd_sm80", (8, 6)), ("sdpa_fwd_prefill_sm90", (8, 0))])
def test_row_of_another_gpu_has_no_plan(fake: Opened, row: str, cc: tuple[int, int]) -> None:
    """On a GPU of another cc the list has the backend alone, which the library does not call an error."""
    fake(cc)
    findings = preflight(terms(row))

    assert findings[-1] == Finding(f"FROST plans of {row}", "0", SM80_PLAN)
    assert needed(findings) == {f"FROST plans of {row}": SM80_PLAN}


@pytest.mark.parametrize(
    ("cc", "base", "missing"), [((8, 0), "backend", ""), ((9, 0), "library", ""), ((8, 0), "library", SM80_PLAN)]
)
def test_without_a_row_any_will_do(fake: Opened, cc: tuple[int, int], base: str, missing: str) -> None:
    """Where no row is asked for, a FROST plan of any row is enough, and none at all is an error."""
    fake(cc)
    findings = preflight(terms("", base))

    assert needed(findings) == ({"FROST plans of any row": missing} if missing else {})
    assert (int(found(findings)["FROST plans of any row"]) > 0) is (missing == "")


def test_dsl_that_does_not_import_is_an_error(fake: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CuTe DSL that is installed but cannot be imported gives a list of the backend alone, in silence."""
    from cudnn.sdpa.bwd import engines

    fake()
    monkeypatch.setattr(engines, "cutedsl_state", lambda: (False, "4.8.1"))

    assert needed(preflight(terms())) == {"FROST plans of sdpa_bwd_sm80": SM80_PLAN}


@pytest.mark.parametrize(("row", "cc"), [("sdpa_bwd_sm80", (8, 0)), ("sdpa_fwd_prefill_sm90", (9, 0))])
def test_gpu_without_a_backend_is_an_error(fake: Opened, row: str, cc: tuple[int, int]) -> None:
    """A library that has no backend plan for a graph of the row leaves nothing to compare it with."""
    _, fates = fake(cc)
    fates.no_backend = True
    findings = preflight(terms(row))

    assert findings[-1] == Finding("backend plans of that graph", "0", "at least one")
    assert int(found(findings)[f"FROST plans of {row}"]) > 0


def test_torch_needs_torch_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """For torch's own engines torch is looked at, with the extra that brings it."""
    installed = preflight(terms(engine="torch_sdpa"))
    monkeypatch.setitem(sys.modules, "torch", None)

    assert installed == [Finding("torch", torch.__version__)]
    assert preflight(terms(engine="torch_sdpa")) == [
        Finding("torch", "not installed", "pip install 'studytool[torch]'")
    ]


def test_simulated_device_needs_nothing() -> None:
    """A device that is computed needs no library."""
    assert preflight(terms(engine="simulated")) == []
