"""The page of a report in a real browser: it opens from disk, shows everything, and is used by keyboard."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from leco.cli import report
from support.browser import DESKTOP, PHONE, open_browser, visit
from support.made_runs import make_run, make_sweep

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from playwright.sync_api import Browser, Page

BOTH = ["leco", "no-int"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a sweep; somewhere else than where it was written, and without the runs."""
    folder = tmp_path_factory.mktemp("report")
    make_sweep(folder / "sweep")
    report.main([str(folder / "sweep"), f"--out={folder / 'written'}"])
    shutil.rmtree(folder / "sweep")
    (folder / "written").rename(folder / "moved")
    return folder / "moved" / "index.html"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_it_opens_from_disk_without_errors_and_fits(browser: Browser, page: Path, width: int, dark: bool) -> None:
    with visit(browser, page.as_uri(), width=width, dark=dark) as seen:
        assert seen.fits
        light = seen.page.evaluate("getComputedStyle(document.body).backgroundColor").removeprefix("rgb(").split(",")
        assert (int(light[0]) < 60) == dark
        # Letters of figures have the page's ink.
        ink = seen.page.evaluate("getComputedStyle(document.body).color")
        letters = seen.page.locator("figure:visible svg text").first
        assert letters.evaluate("each => getComputedStyle(each).fill") == ink
        # On a phone, letters are at least eight pixels high.
        assert letters.evaluate("each => each.getBoundingClientRect().height") >= 8
    assert seen.clean
    assert seen.requests == [page.as_uri()]


def drawn(page: Page, figure: str) -> list[str]:
    """The lines of a figure, by their ids in it."""
    return [
        str(each).removeprefix(f"{figure}.line-")
        for each in page.locator(f"[id^='{figure}.line-']").evaluate_all("all => all.map(each => each.id)")
    ]


def test_figures_have_their_lines_and_labels(browser: Browser, page: Path) -> None:
    with visit(browser, page.as_uri()) as seen:
        for measure in ("success", "return"):
            for against in ("frames", "seconds"):
                for task in ("Empty-5x5", "DoorKey-5x5"):
                    figure = f"{measure}-{against}-{task}"
                    assert drawn(seen.page, figure) == BOTH
                    text = seen.page.locator(f"figure[id='{figure}'] svg text").all_text_contents()
                    assert {task, "leco (3)", "no-int (3)"} <= {each.strip() for each in text}
        assert drawn(seen.page, "r_ta-frames-Empty-5x5") == ["leco"]
        points = seen.page.locator("[id^='interquartile-mean.point-']")
        assert points.count() == 2
        assert seen.page.locator("#results tbody tr").count() == 4
        headings = seen.page.locator("h2").all_text_contents()
        assert headings == [
            "Results",
            "Learning curves",
            "The intrinsic reward over training",
            "Where it went, and what for",
            "Codes",
            "Throughput and lag",
            "How it was made",
        ]


def test_everything_that_is_seen_can_also_be_read(browser: Browser, page: Path) -> None:
    with visit(browser, page.as_uri()) as seen:
        figures = seen.page.locator("figure")
        assert figures.count() > 25
        told = seen.page.locator("figure [role=img]").evaluate_all("all => all.map(each => each.ariaLabel)")
        assert len(told) == figures.count()
        assert all(len(each) > 30 for each in told)
        for kind in ("png", "svg"):
            links = seen.page.locator(f"figure a[href$='.{kind}']").evaluate_all(
                "all => all.map(a => a.getAttribute('href'))"
            )
            assert len(links) == figures.count()
            assert all((page.parent / link).exists() for link in links)
        ids = seen.page.evaluate("[...document.querySelectorAll('[id]')].map(each => each.id)")
        assert len(ids) == len(set(ids))
        targets = seen.page.locator("nav a").evaluate_all("all => all.map(a => a.getAttribute('href').slice(1))")
        assert set(targets) <= set(ids)
        used = seen.page.locator("svg [href^='#']").evaluate_all("all => all.map(e => e.getAttribute('href').slice(1))")
        assert set(used) <= set(ids)


def test_choices_are_made_by_keyboard(browser: Browser, page: Path) -> None:
    with visit(browser, page.as_uri()) as seen:
        frames, seconds = (
            seen.page.locator(f"figure[id='success-{each}-Empty-5x5']") for each in ("frames", "seconds")
        )
        assert frames.is_visible()
        assert not seconds.is_visible()
        seen.page.locator("#learning-1").focus()
        ring = "each => getComputedStyle(each.nextElementSibling).outlineStyle"
        seen.page.keyboard.press("ArrowRight")
        assert seconds.is_visible()
        assert not frames.is_visible()
        assert seen.page.locator("#learning-2").evaluate(ring) != "none", "the focus can be seen"
        seen.page.keyboard.press("ArrowLeft")
        assert frames.is_visible()
        seen.page.locator("#theme-auto").focus()
        dark = "getComputedStyle(document.documentElement).colorScheme"
        assert seen.page.evaluate(dark) == "light"
        seen.page.keyboard.press("ArrowRight")
        seen.page.keyboard.press("ArrowRight")
        assert seen.page.locator("#theme-dark").is_checked()
        assert seen.page.evaluate(dark) == "dark"


def test_the_tab_key_reaches_the_table_and_the_results_first(browser: Browser, page: Path) -> None:
    with visit(browser, page.as_uri(), dark=True) as seen:
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.textContent") == "Skip to the results"
        seen.page.locator("#theme-auto").focus()
        seen.page.keyboard.press("ArrowRight")  # light, though the system is dark
        assert seen.page.evaluate("getComputedStyle(document.documentElement).colorScheme") == "light"
        reached = set()
        for _ in range(20):
            seen.page.keyboard.press("Tab")
            reached.add(seen.page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent"))
        assert {"Table of results", "Learning curves", "How it was made"} <= reached


def test_a_name_that_would_be_a_script_is_only_a_name(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "<img src=x onerror=alert(1)>", recordings=0, lines=3)
    (run / "config.toml").unlink()
    report.main([str(run), f"--out={tmp_path / 'out'}"])
    with visit(browser, (tmp_path / "out" / "index.html").as_uri()) as seen:
        assert seen.page.locator("img").count() == 0
        assert "<img src=x onerror=alert(1)>" in seen.page.locator("h1").inner_text()
        assert "there is no config.toml" in seen.page.locator(".missing").inner_text()
    assert seen.clean
    assert len(seen.requests) == 1
