"""A real browser, once for all tests of the page, without a network; and pages of real runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

import perfscope
from tests.conftest import ROOT

ARGUMENTS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
RUN = ROOT / "fixtures" / "runs" / "h200_zero2"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All of them run in one process, so that there is one browser."""
    for item in items:
        if "tests/page/" in item.path.as_posix():
            item.add_marker(pytest.mark.xdist_group("browser"))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Debian's Chromium; a test that finds none fails."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert path is not None, "no chromium: apt-get install chromium (`make test` does)"
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        yield started
        started.close()


class Shown:
    """A page in the browser, with what it asked for and what it complained about."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page, self.path = page, path
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._refuse)
        page.goto(path.as_uri())

    def _refuse(self, dialog: Dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()


Scheme: TypeAlias = Literal["light", "dark"]
Media: TypeAlias = Literal["screen", "print"]
Show = Callable[..., Shown]


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Show]:
    """Open HTML in a new, offline context: its width, its colours, for paper or not."""
    contexts = []

    def open_page(html: str, *, width: int = 1280, scheme: Scheme = "light", media: Media = "screen") -> Shown:
        path = tmp_path / "page.html"
        path.write_text(html)
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, offline=True, reduced_motion="reduce"
        )
        contexts.append(context)
        page = context.new_page()
        page.emulate_media(media=media)
        return Shown(page, path)

    yield open_page
    for context in contexts:
        context.close()


@pytest.fixture(scope="package")
def real_page() -> str:
    """The page of a real run on two H200."""
    return perfscope.open(RUN).page().html
