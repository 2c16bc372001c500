"""A real browser for tests: Chromium of this machine, driven by Playwright.

Debian and Ubuntu have it as the package `chromium`; another binary is named by LECO_CHROMIUM. Where there is none, tests are
skipped.

    @pytest.fixture(scope="module")
    def browser() -> Iterator[Browser]:
        with open_browser() as opened:
            yield opened

    def test_it_opens(browser: Browser) -> None:
        with visit(browser, page.as_uri(), width=PHONE, dark=True) as seen:
            assert seen.page.title() == "..."
        assert seen.clean
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from support import needs
from support.needs import CHROMIUM
from support.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import ConsoleMessage, Request

PHONE, DESKTOP = 375, 1280
HEIGHTS = {PHONE: 812}
# No sandbox, since containers have no privileges for one; nothing that would ask the network by itself.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def open_browser() -> Iterator[Browser]:
    """A fresh Chromium with a profile of its own; skips the test if there is none."""
    if CHROMIUM is None:
        pytest.skip(needs.browser.reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, headless=True, args=list(FLAGS), timeout=1000 * PATIENCE
        )
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Visit:
    """A page that is open.

    Attributes:
        page: To look at and to act on.
        errors: What its scripts threw, and what it wrote to the console as a warning or an error.
        requests: Every address that it asked for, itself included.
        failed: Those of them that got no answer, or a bad one.
    """

    page: Page
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing went wrong."""
        return not self.errors and not self.failed

    @property
    def fits(self) -> bool:
        """Whether nothing has to be scrolled sideways to be read."""
        return bool(self.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


@contextlib.contextmanager
def visit(browser: Browser, url: str, *, width: int = DESKTOP, dark: bool = False) -> Iterator[Visit]:
    """Opens a page in a window of its own, as wide as a phone or a desktop, in light or dark."""
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHTS.get(width, 900)}, color_scheme="dark" if dark else "light"
    )
    context.set_default_timeout(1000 * PATIENCE)
    seen = Visit(context.new_page())

    def noted(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            seen.errors.append(message.text)

    def failed(request: Request) -> None:
        seen.failed.append(f"{request.url}: {request.failure}")

    seen.page.on("console", noted)
    seen.page.on("pageerror", lambda error: seen.errors.append(str(error)))
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("requestfailed", failed)
    seen.page.on(
        "response",
        lambda answer: seen.failed.append(f"{answer.url}: {answer.status}") if answer.status >= 400 else None,
    )
    try:
        seen.page.goto(url)
        yield seen
    finally:
        context.close()
