"""The pages below docs/ name what is there: links, commands, checks, numbers; and the citation is of this version.

What a page shows of a terminal is run by test_tutorial.
"""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import finished
import numpy as np
import pytest
import yaml
from numpy.typing import NDArray
from scipy import special

import studytool
from studytool import bundle, checks, freeze, looks, opening
from studytool.cli import main
from studytool.layout import StudyPlace
from studytool.model import Protocol

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def text_of(page: str) -> str:
    """Return a page."""
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(path: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    prose = re.sub(r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    """Each relative link of a page is a file, and what follows # is one of its headings."""
    broken = []
    for target in re.findall(r"\]\((?!https://)([^)]+)\)", text_of(page)):
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        if not path.is_file() or (anchor and anchor not in anchors(path)):
            broken.append(target)

    assert broken == []


@pytest.mark.parametrize("page", PAGES)
def test_files_that_a_page_names_are_there(page: str) -> None:
    """Each file of the repository that a page names in backticks is there."""
    named = re.findall(r"`(?:python |bash )?((?:benchmarks|drivers|tests|studytool|\.ci)/[\w./-]+)[` ]", text_of(page))

    assert {name for name in named if not (ROOT / name).exists()} == set()


def snippets(page: str) -> list[str]:
    """Return what a page shows as code: the lines of its blocks, and what stands in backticks, each on one line."""
    text = text_of(page)
    blocks = "".join(re.findall(r"^```\w*\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    prose = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    inline = [span.replace("\n", " ") for span in re.findall(r"`([^`]+)`", prose)]
    return blocks.replace("\\\n", " ").splitlines() + inline


@pytest.mark.parametrize("page", PAGES)
def test_commands_and_options_exist(page: str) -> None:
    """Each `studytool COMMAND --option` that a page shows is one of the tool's, but for what a shell completes."""
    wrong = []
    for snippet in snippets(page):
        for name, rest in re.findall(r'(?<!")(?<!# )\bstudytool ([a-z][a-z-]*)\b([^|;&#>)]*)', snippet):
            params = main.commands[name].params if name in main.commands else []
            options = {option for p in params if isinstance(p, click.Option) for option in p.opts}
            wrong += [] if name in main.commands else [name]
            wrong += [f"{name} {word}" for word in re.findall(r"(?<!\S)--[a-z-]+", rest) if word not in options]

    assert wrong == []


def test_the_review_page_explains_every_check() -> None:
    """The tables of the check list have the checks of a replay, each once and in its order."""
    section = text_of("docs/review.md").partition("## The check list")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE)
    source = (ROOT / "studytool" / "replay.py").read_text(encoding="utf-8")
    of_study = dict.fromkeys(re.findall(r'(?:Check|_guarded)\((?:""|dtype), "([a-z ]+)"', source))

    assert told[4:-1] == [name for name, _ in checks.CHECKS]
    assert {*told[:4], told[-1]} == set(of_study) - {"ledger"}


def test_the_review_page_explains_every_section_of_a_report(made: StudyPlace) -> None:
    """The table of sections has those of a report, in their order."""
    report = made.results("bf16").report.read_text(encoding="utf-8")
    section = text_of("docs/review.md").partition("## Reading the report")[2].partition("\n## ")[0]
    told = re.findall(r"^\| ([A-Z][\w -]+) \|", section, re.MULTILINE)

    assert told == re.findall(r"^## (.+)$", report, re.MULTILINE)


def test_numbers_of_the_method_page_are_those_of_readme() -> None:
    """Each number in a paragraph that refers to README's measurements stands in README."""
    paragraphs = re.split(r"\n\n+", text_of("docs/method.md"))
    quoting = [text for text in paragraphs if re.search(r"README[^)]*\]\(\.\./README\.md#w(hy|hat)", text)]
    plain = [re.sub(r"\]\([^)]*\)|`[^`]*`", "", text) for text in quoting]
    numbers = {n for text in plain for n in re.findall(r"(?<![\w.])\d[\d,.]*\d|(?<![\w.])\d(?![\w.]*\d)", text)}
    strange = {n for n in numbers if not re.search(rf"(?<![\d.,]){re.escape(n)}(?![.,]?\d)", README)}

    assert len(quoting) >= 7
    assert strange == set()


def test_codes_of_the_method_page_are_those_of_the_tool() -> None:
    """The table of codes has every code that a case may have, and the text every code of a class."""
    noise = (ROOT / "studytool" / "noise.py").read_text(encoding="utf-8").partition('"""')[2].partition('"""')[0]
    page = text_of("docs/method.md")
    of_class = re.search(r"the code \(([A-Z, a-z]+)\)", (ROOT / "studytool" / "fit.py").read_text(encoding="utf-8"))
    assert of_class is not None

    assert re.findall(r"^\| `([A-Z]+)` \|", page, re.MULTILINE) == re.findall(r"\b([A-Z]{4,})\b \(", noise)
    assert {name for name in re.findall(r"[A-Z]{4,}", of_class[1]) if f"`{name}`" not in page} == set()


def coverage(confidence: float, half_width: float, studies: int = 6000) -> float:
    """Return how often an interval holds the truth that is looked at after each repeat from the first look on.

    Repeats are standard normal, 40 at most; the first interval counts that is no wider to each side than `half_width`.
    """
    values = np.random.Generator(np.random.PCG64(7)).standard_normal((studies, 40))
    held: NDArray[np.bool_] = np.zeros(studies, dtype=bool)
    open_: NDArray[np.bool_] = np.ones(studies, dtype=bool)
    for count in range(looks.FIRST_LOOK, 41):
        seen = values[:, :count]
        half = special.stdtrit(count - 1, (1 + confidence) / 2) * seen.std(axis=1, ddof=1) / np.sqrt(count)
        ends = open_ & ((half <= half_width) | (count == 40))
        held |= ends & (np.abs(seen.mean(axis=1)) <= half)
        open_ &= ~ends
    return float(held.mean())


def test_the_coverage_of_the_stop_rule_is_what_the_method_page_says() -> None:
    """Intervals of the stop rule's confidence hold the truth in 94 to 95 %, those of 95 % in 93 to 94 %."""
    widths = (0.6, 0.45, 0.33)
    found = {c: [coverage(c, width) for width in widths] for c in (Protocol(stop_half_width_ppm=1).confidence, 0.95)}
    page = re.sub(r"\s+", " ", text_of("docs/method.md"))

    assert "paid for by 96 % intervals" in page
    assert "they hold the truth in 94 to 95 %; intervals of 95 % would in 93 to 94 %" in page
    assert [round(value, 2) for value in (min(found[0.96]), max(found[0.96]))] in ([0.94, 0.95], [0.95, 0.95])
    assert all(0.92 < one < 0.945 and one < other for one, other in zip(found[0.95], found[0.96], strict=True))


def workflow() -> tuple[dict[Any, Any], str]:
    """Return the workflow of the page, and the script of its step that replays."""
    found = re.search(r"^```yaml\n(.+?)^```$", text_of("docs/ci.md"), re.DOTALL | re.MULTILINE)
    assert found is not None
    read: dict[Any, Any] = yaml.safe_load(found[1])
    (script,) = [step["run"] for step in read["jobs"]["replay"]["steps"] if step.get("name") == "replay"]
    return read, script


def in_a_pull_request(folder: Path, archive: Path, posted: str) -> tuple[int, str]:
    """Return the exit code of the workflow's script on an archive, and what it comments."""
    (folder / "bundles").mkdir(parents=True)
    (folder / "bundles" / "whole.posted").write_text(posted)
    (folder / "bin").mkdir()
    (folder / "bin" / "gh").write_text('#!/bin/sh\ncp "$5" commented.md\necho "$@" > asked\n')
    (folder / "bin" / "gh").chmod(0o755)
    for words in (
        ["init", "-q"],
        ["add", "bundles"],
        ["-c", "user.name=a", "-c", "user.email=a@b.c", "commit", "-q", "-m", "posted"],
        ["update-ref", "refs/remotes/origin/main", "HEAD"],
    ):
        subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)
    (folder / "bundles" / "whole.tar.gz").write_bytes(archive.read_bytes())
    environment = {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE")} | {
        "PATH": os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "BASE": "main",
        "NUMBER": "7",
        "GITHUB_STEP_SUMMARY": "summary.md",
    }
    (folder / "script").write_text(workflow()[1])
    ran = subprocess.run(
        ["bash", "-e", "script"], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert (folder / "asked").read_text() == "pr comment 7 --body-file said.md\n", ran.stderr
    assert (folder / "summary.md").read_text() == (folder / "commented.md").read_text()
    return ran.returncode, (folder / "commented.md").read_text()


@pytest.mark.slow
def test_the_workflow_comments_what_a_replay_says(made: StudyPlace, tmp_path: Path) -> None:
    """The workflow's script comments the sentence and fails unless the study holds, run as GitHub's runners run it."""
    study = opening.open_study(made)
    frozen = freeze.verify(study, made)
    archive = tmp_path / "whole.tar.gz"
    bundle.pack(study, made, frozen, archive, keep_host=True)
    posted = freeze.posted_line(frozen.manifest, frozen.sha256)
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(archive.read_bytes()[:100])

    code, said = in_a_pull_request(tmp_path / "one", archive, posted)
    assert (code, said.startswith("- `whole`: holds: ")) == (0, True)
    code, said = in_a_pull_request(tmp_path / "two", archive, posted.replace(frozen.sha256, "0" * 64))
    assert (code, said.startswith("- `whole`: does not hold: 1 of ")) == (1, True)
    code, said = in_a_pull_request(tmp_path / "three", broken, posted)
    assert (code, said) == (1, "- `whole`: cannot be read\n")
    code, said = in_a_pull_request(tmp_path / "four", archive, "nothing yet")
    assert (code, said) == (1, "- `whole`: no line was posted on the base branch\n")


def test_the_workflow_can_comment_and_is_given_little_else() -> None:
    """The workflow runs for pull requests that touch bundles, may write comments, and reads the rest."""
    read, script = workflow()

    assert read[True] == {"pull_request": {"paths": ["bundles/**"]}}  # YAML 1.1 reads the key `on` as true
    assert read["permissions"] == {"contents": "read", "pull-requests": "write"}
    assert "${{" not in script  # what others named is no part of the script


def at_a_terminal(words: list[str], folder: Path, **environment: str) -> str:
    """Return all that a command writes to a terminal of its own."""
    parent, child = pty.openpty()
    dropped = ("COVERAGE", "TTY_", "FORCE_", "NO_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    kept |= {"TERM": "xterm-256color", "COLUMNS": "100", **environment}
    with subprocess.Popen(words, cwd=folder, stdout=child, stderr=child, env=kept) as process:
        os.close(child)
        told = b""
        while True:
            try:
                data = os.read(parent, 1 << 16)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            told += data
    os.close(parent)
    assert process.returncode == 0, told
    return told.decode("utf-8", errors="replace")


COLOUR = re.compile(r"\x1b\[(?:3[0-7]|38;|9[0-7])[0-9;]*m")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "coloured", "bar"),
    [({}, True, True), ({"NO_COLOR": "1"}, False, True), ({"TERM": "dumb"}, False, False)],
    ids=["plain", "NO_COLOR", "dumb"],
)
def test_colour_and_bar_are_as_the_terminal_page_says(
    environment: dict[str, str], coloured: bool, bar: bool, made: StudyPlace, tmp_path: Path
) -> None:
    """NO_COLOR takes the colour and leaves the bar, a dumb terminal takes both; the result is plain text."""
    place = finished.copy(made, tmp_path / "own")
    words = [sys.executable, "-m", "studytool", "time", str(place.folder), "--dtype", "bf16"]
    words += ["--split", "routing", "--attempt", "new", "--reason", "again"]

    told = at_a_terminal(words, tmp_path, **environment)
    assert bool(COLOUR.search(told)) is coloured
    assert ("\x1b[2K" in told) is bar
    assert "\nbf16 routing: attempt 2, 1 of 1 lines\r\n" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r(?!\n)", "\n", told)


def test_the_citation_is_of_this_version() -> None:
    """CITATION.cff has what the format asks for, and the version and license of the package."""
    read = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")

    assert {"cff-version", "title", "message", "authors"} <= read.keys()
    assert (read["cff-version"], str(read["version"])) == ("1.2.0", studytool.__version__)
    assert f'license = "{read["license"]}"' in project
    assert f'name = "{read["title"]}"' in project
