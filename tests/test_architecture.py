"""The house is as DESIGN draws it: layers, heavy imports, and what the runtime and a reviewer need."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "studytool"

LAYERS: list[set[str]] = [
    {"errors", "runtime"},
    {"files", "digest", "expression", "metrics", "hosts"},
    {"model"},
    {"engine_terms", "decode", "possible", "lanes"},
    {"layout", "grid", "schedule", "jsonl", "ledger", "stats", "lines", "studyjson", "yamlnode", "gate", "support"},
    {"noise", "looks", "labels", "judge"},
    {"studyfile", "engines", "abstain", "apply", "changes", "freeze", "rows"},
    {"fit", "fingerprint", "clock", "measure", "frame", "boards", "progress"},
    {"attempts", "worker", "pipes"},
    {"process", "planning", "summary", "nvbench", "explain", "sensitivity", "costs", "board_events", "opening"},
    {"sessions", "waiting", "merging", "tally", "regret", "report", "outlook", "export"},
    {"timing", "score", "prewarm", "stale", "bundle"},
    {"fleet", "results"},
    {"ray_boards", "chain", "predictions", "status", "found"},
    {"written", "conduct"},
    {"checks"},
    {"replay", "editing", "reporting"},
    {"pipeline"},
    {"demo"},
    {"cli"},
    {"__init__", "__main__"},
]
"""A module imports only from rows above its own; a package (runtime, engines, report, cli) is one unit."""

LEVEL = {name: level for level, row in enumerate(LAYERS) for name in row}

HEAVY = {
    "torch": {
        "engines/torch_inputs.py",
        "engines/torch_sdpa.py",
        "engines/preflight.py",
        *(f"engines/cudnn/{name}.py" for name in ("bench", "device", "engine", "tensors")),
    },
    "cudnn": {
        "engines/preflight.py",
        "planning/child.py",
        *(f"engines/cudnn/{name}.py" for name in ("engine", "graphs", "plans")),
    },
    "pynvml": {"engines/preflight.py", "engines/cudnn/nvml.py"},
    "pandas": {"frame.py"},
    "pyarrow": {"export.py"},
    "matplotlib": {"report/plots.py"},
    "jinja2": {"report/html.py"},
    "markdown_it": {"report/html.py"},
    "scipy": {"stats.py"},
    "click": {
        f"cli/{name}.py"
        for name in ("__init__", "exporting", "measuring", "predicting", "reviewing", "shared", "terminal")
    },
    "rich": {"cli/terminal.py"},
    "yaml": {"yamlnode.py"},
    "filelock": {"timing.py"},
    "ray": {"ray_boards.py"},
}
"""Which modules may name which library, also inside a function."""


def modules() -> list[Path]:
    """Return every module of the package, relative to it."""
    return sorted(path.relative_to(PACKAGE) for path in PACKAGE.rglob("*.py") if "studies" not in path.parts)


def unit(path: Path) -> str:
    """Return the unit that a module belongs to."""
    return path.parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """Return the dotted names that a module imports anywhere, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = path.parent.parts[: len(path.parent.parts) - node.level + 1]
                base = ".".join(["studytool", *parents, *([base] if base else [])])
            found |= {base} | {f"{base}.{alias.name}" for alias in node.names}
    return found


def own_units(path: Path) -> set[str]:
    """Return the units of the package that a module imports from."""
    names = {name.split(".")[1] for name in imports(path) if name.startswith("studytool.")}
    return {name for name in names if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()}


def test_every_module_is_placed() -> None:
    """A new module fails until someone draws it in, and a module that is gone must be rubbed out."""
    on_disk = {unit(path) for path in modules()}

    assert on_disk == set(LEVEL)


@pytest.mark.parametrize("path", modules(), ids=str)
def test_a_module_imports_only_from_layers_above(path: Path) -> None:
    """No import goes sideways or back, also not inside a function."""
    own = unit(path)
    wrong = {name for name in own_units(path) - {own} if LEVEL[name] >= LEVEL[own]}

    assert wrong == set()


def test_the_layer_check_sees_each_spelling_of_an_import() -> None:
    """The walk over imports knows `import a.b`, `from a import b`, `from a.b import c` and relative ones."""
    assert "opening" in own_units(Path("cli/shared.py"))
    assert "studytool.runtime.key" in imports(Path("runtime/lookup.py"))
    assert "engines" in own_units(Path("worker.py"))


@pytest.mark.parametrize("library", sorted(HEAVY))
def test_heavy_libraries_are_named_where_the_house_says(library: str) -> None:
    """A heavy library is imported in the modules named for it, and nowhere else."""
    users = {path.as_posix() for path in modules() if any(n.split(".")[0] == library for n in imports(path))}

    assert users == HEAVY[library]


def test_the_runtime_imports_the_standard_library_alone() -> None:
    """Modules of the runtime import one another and the standard library."""
    for path in modules():
        if unit(path) == "runtime":
            roots = {name.split(".")[0] for name in imports(path)}

            assert roots <= set(sys.stdlib_module_names) | {"studytool"}
            assert own_units(path) <= {"runtime"}


def loaded_by(code: str, *flags: str, cwd: Path | None = None) -> set[str]:
    """Return the top-level modules that a fresh interpreter has loaded after running code."""
    script = f"{code}\nimport sys\nprint(*sorted({{n.split('.')[0] for n in sys.modules}}))"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")}
    found = subprocess.run(
        [sys.executable, *flags, "-c", script],
        check=True,
        capture_output=True,
        text=True,
        cwd=cwd or ROOT,
        env=environment,
    )
    return set(found.stdout.split("\n")[-2].split())


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_modules_and_functions_are_short(path: Path) -> None:
    """A module has fewer than 300 lines, and a function at most 50."""
    text = path.read_text(encoding="utf-8")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]

    assert len(text.splitlines()) < 300
    assert [node.name for node in functions if (node.end_lineno or 0) - node.lineno >= 50] == []


def test_help_loads_neither_torch_nor_pandas_nor_numpy() -> None:
    """`studytool --help` is quick: it loads no heavy library."""
    code = "from studytool.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"

    assert not {"torch", "pandas", "numpy", "scipy", "rich", "yaml"} & loaded_by(code)


def test_a_worker_starts_without_what_it_does_not_need() -> None:
    """The process of a repeat, of which a study starts many, loads neither scipy nor a library of an engine."""
    assert not {"scipy", "torch", "cudnn", "pandas", "matplotlib", "click", "rich"} & loaded_by(
        "import studytool.worker"
    )


def test_the_lookup_loads_the_standard_library_alone() -> None:
    """Importing the look-up loads nothing that an interpreter does not bring along."""
    before = loaded_by("")

    assert loaded_by("import studytool.runtime.lookup") - set(sys.stdlib_module_names) <= before | {"studytool"}


def test_the_runtime_works_as_a_copy_under_an_isolated_interpreter(tmp_path: Path) -> None:
    """The folder copied into another tree reads its table with -I -S, without studytool and site-packages."""
    shutil.copytree(PACKAGE / "runtime", tmp_path / "placement", ignore=shutil.ignore_patterns("__pycache__"))
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom placement import lookup\n"
        f"lookup.load({str(tmp_path / 'placement' / 'table.py')!r})"
    )
    loaded = loaded_by(code, "-I", "-S", cwd=tmp_path)

    assert loaded - set(sys.stdlib_module_names) <= {"placement", "__main__"}
    assert "placement" in loaded


def test_the_generator_works_where_its_own_output_is_broken(tmp_path: Path) -> None:
    """Nothing but a copy of the runtime reads table.py: with a broken one, everything still imports."""
    shutil.copytree(ROOT / "studytool", tmp_path / "studytool", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "studytool" / "runtime" / "table.py").write_text("this is { no table\n")
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport studytool.cli, studytool.pipeline, studytool.fit"

    assert "studytool" in loaded_by(code, "-P")


def test_replay_needs_neither_torch_nor_pandas(made: object) -> None:
    """A reviewer's interpreter in which torch and pandas cannot be imported replays a study."""
    root = str(getattr(made, "root"))  # noqa: B009 - the fixture's type is StudyPlace
    code = (
        "import sys\nsys.modules['torch'] = sys.modules['pandas'] = None\nfrom studytool.cli import main\n"
        f"try:\n    main(['replay', {root!r} + '/studies/whole'])\n"
        "except SystemExit as end:\n    assert end.code == 0, end.code"
    )

    assert "numpy" in loaded_by(code)
