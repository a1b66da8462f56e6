"""report.html in a real browser, from disk: nothing is asked of a network, and it can be read, sorted and filtered."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from studytool import opening, reporting
from studytool.layout import StudyPlace
from studytool.model import Split

sync_api = pytest.importorskip("playwright.sync_api")
axe = pytest.importorskip("axe_playwright_python.sync_playwright")
pytest.importorskip("matplotlib")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.xdist_group("browser"),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here"),
]
QUIET = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
WIDTHS = (390, 1440)
SHOTS = os.environ.get("STUDYTOOL_SCREENSHOTS")
"""A folder for screenshots, to be looked at."""


class Opened:
    """A page in the browser, what it said on its console, and what it asked for."""

    def __init__(self, browser: Any, path: Path, width: int, mode: str) -> None:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=mode)
        self.page = context.new_page()
        self.said: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(path.as_uri())


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Return a headless browser."""
    with sync_api.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=QUIET)
        yield found
        found.close()


@pytest.fixture(scope="module")
def report(made: StudyPlace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the page of the finished study."""
    root = tmp_path_factory.mktemp("page")
    shutil.copytree(made.root, root, dirs_exist_ok=True)
    place = StudyPlace(root, made.name)
    job = opening.job_of(opening.open_study(place), place, "bf16", Split.HOLDOUT)
    assert reporting.page(job)
    return job.results.page


@pytest.mark.parametrize("mode", ["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_asked_and_nothing_is_clipped(browser: Any, report: Path, width: int, mode: str) -> None:
    """The page asks for itself alone, says nothing on the console, and every plot lies within the window."""
    opened = Opened(browser, report, width, mode)
    boxes = opened.page.eval_on_selector_all(
        "figure svg",
        "all => all.map(one => { const b = one.getBoundingClientRect(); return [b.left, b.right, b.height] })",
    )
    if SHOTS:
        opened.page.screenshot(path=f"{SHOTS}/report-{width}-{mode}.png", full_page=True)

    assert opened.asked == [report.as_uri()]
    assert opened.said == []
    assert len(boxes) >= 5
    assert all(left >= 0 and right <= width and height > 100 for left, right, height in boxes)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_no_label_of_a_plot_is_cut_off(browser: Any, report: Path) -> None:
    """All text of a plot lies within it."""
    opened = Opened(browser, report, 1440, "light")
    out = opened.page.eval_on_selector_all(
        "figure svg",
        """all => all.flatMap(one => { const b = one.getBoundingClientRect();
        return [...one.querySelectorAll("text")].filter(t => { const r = t.getBoundingClientRect();
        return r.left < b.left - 1 || r.right > b.right + 1 || r.top < b.top - 1 || r.bottom > b.bottom + 1 })
        .map(t => t.textContent) })""",
    )

    assert out == []


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_axe_finds_no_serious_fault(browser: Any, report: Path, mode: str) -> None:
    """axe-core, which also measures contrast, finds nothing serious or critical, with all details open."""
    opened = Opened(browser, report, 1440, mode)
    opened.page.eval_on_selector_all("details", "all => all.forEach(one => { one.open = true })")
    found = axe.Axe().run(opened.page).response["violations"]

    assert [(one["id"], one["nodes"][0]["html"]) for one in found if one["impact"] in {"serious", "critical"}] == []


def test_text_of_plots_stands_out_in_both_modes(browser: Any, report: Path) -> None:
    """What axe does not look at: text and series of a plot have a contrast of 4.5 and 3 to the page."""
    for mode in ("light", "dark"):
        opened = Opened(browser, report, 1440, mode)
        found = opened.page.evaluate(
            """() => { const style = getComputedStyle(document.body), root = getComputedStyle(document.documentElement);
            return [style.backgroundColor, getComputedStyle(document.querySelector("figure svg text")).fill,
                    ...[0, 1, 2, 3].map(n => root.getPropertyValue(`--series-${n}`).trim())] }"""
        )
        paper, ink, *series = map(_rgb, found)
        assert _contrast(paper, ink) >= 4.5
        assert all(_contrast(paper, colour) >= 3 for colour in series)


def _rgb(text: str) -> tuple[int, ...]:
    if text.startswith("#"):
        return tuple(int(text[place : place + 2], 16) for place in (1, 3, 5))
    return tuple(int(part) for part in text[text.index("(") + 1 : -1].split(",")[:3])


def _contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """Return the contrast of two colours as WCAG 2 defines it."""
    light = []
    for colour in (one, other):
        parts = [c / 255 / 12.92 if c / 255 <= 0.04045 else ((c / 255 + 0.055) / 1.055) ** 2.4 for c in colour]
        light.append(0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2])
    return (max(light) + 0.05) / (min(light) + 0.05)


def test_table_sorts_and_filters(browser: Any, report: Path) -> None:
    """A head sorts by value, once up and once down, by keyboard too; words filter, and the count says so."""
    page = Opened(browser, report, 1440, "light").page
    column = "all => all.map(row => Number(row.cells[4].dataset.by))"
    head = page.get_by_role("button", name="backend", exact=True)
    head.click()
    up = page.eval_on_selector_all("#cases tbody tr", column)
    head.focus()
    page.keyboard.press("Enter")
    down = page.eval_on_selector_all("#cases tbody tr", column)
    page.get_by_label("Filter").fill("bf16 s1280")
    shown = page.eval_on_selector_all(
        "#cases tbody tr:not([hidden])", "all => all.map(row => row.cells[0].textContent)"
    )

    assert up == sorted(up)
    assert down == up[::-1]
    assert len(set(up)) > 1
    assert page.locator("#cases th[aria-sort]").count() == 1
    assert [" S1280" in label for label in shown] == [True]
    assert page.locator("#count").text_content() == f"1 of {len(up)} cases"


def test_details_open_by_keyboard(browser: Any, report: Path) -> None:
    """The numbers behind a plot are a key away."""
    page = Opened(browser, report, 1440, "light").page
    first = page.locator("figure details").first
    first.locator("summary").focus()
    page.keyboard.press("Enter")

    assert first.get_attribute("open") is not None
    assert first.locator("table tbody tr").count() == 4
