"""axe-core finds no fault on the page, in light, in dark and on a phone; the timeline has a table in its place."""

from __future__ import annotations

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.page.conftest import Scheme, Show

SERIOUS = ("serious", "critical")


@pytest.mark.parametrize(("scheme", "width"), [("dark", 1280), ("light", 380)])
def test_axe_finds_no_serious_fault(show: Show, real_page: str, scheme: Scheme, width: int) -> None:
    page = show(real_page, scheme=scheme, width=width).page
    page.evaluate("[...document.querySelectorAll('main details')].slice(0, 3).forEach(d => { d.open = true; })")
    faults = Axe().run(page).response["violations"]
    assert not [(fault["id"], fault["nodes"][0]["html"]) for fault in faults if fault["impact"] in SERIOUS]


def test_the_page_has_its_landmarks_and_a_way_past_the_contents(show: Show, real_page: str) -> None:
    page = show(real_page).page
    for landmark in ("header", "nav[aria-label]", "main", "footer"):
        assert page.locator(landmark).count() == 1
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "main"
