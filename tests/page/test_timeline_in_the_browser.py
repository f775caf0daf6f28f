"""Claims about the timeline: zoom, movement, hover and search, by pointer and by keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

from tests.page.conftest import Show

CANVAS = "#timeline-canvas"


@pytest.fixture
def page(show: Show, real_page: str) -> Page:
    page = show(real_page).page
    page.locator(CANVAS).scroll_into_view_if_needed()
    return page


def view(page: Page) -> tuple[float, float]:
    page.wait_for_timeout(60)
    first, last = page.evaluate(f"(({{dataset}}) => [dataset.first, dataset.last])(document.querySelector('{CANVAS}'))")
    return float(first), float(last)


def said(page: Page) -> str:
    return page.locator("#timeline-said").text_content() or ""


def place(page: Page, across: float, row: int) -> tuple[float, float]:
    box = page.locator(CANVAS).bounding_box()
    assert box is not None
    return box["x"] + 90 + across * (box["width"] - 110), box["y"] + 78 + 34 * row + 12


def test_the_wheel_with_control_zooms_where_it_points_and_alone_scrolls_the_page(page: Page) -> None:
    whole = view(page)
    x, y = place(page, 0.25, 0)
    page.mouse.move(x, y)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    first, last = view(page)
    assert last - first < whole[1] - whole[0]
    assert (first - whole[0]) < (whole[1] - last), "what is pointed at stays where it is"
    page.mouse.wheel(0, 100)
    assert view(page) == (first, last)


def test_pointing_says_what_a_rank_does(page: Page) -> None:
    page.mouse.move(*place(page, 0.5, 1))
    assert re.match(r"rank 1: [a-z: ]+ for [\d.]+ (?:ms|µs), at [\d.]+ ms, in step 5", said(page))


def test_a_search_finds_collectives_and_goes_to_them(page: Page) -> None:
    page.locator("#timeline-search").fill("all_reduce")
    matches = page.locator("#timeline-matches")
    assert re.fullmatch(r"\d+ matches", matches.text_content() or "")
    page.keyboard.press("Enter")
    assert (matches.text_content() or "").startswith("1 of ")
    first = view(page)
    assert "all_reduce of" in said(page)
    assert re.search(r"over 2 ranks: it came [12]\.", said(page))
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert view(page) != first
    page.keyboard.press("Escape")
    assert matches.text_content() == ""


def test_the_keyboard_does_all_of_it(page: Page) -> None:
    page.locator(CANVAS).focus()
    whole = view(page)
    page.keyboard.press("+")
    page.keyboard.press("+")
    closer = view(page)
    assert closer[1] - closer[0] == pytest.approx((whole[1] - whole[0]) / 4, rel=0.01)
    page.keyboard.press("ArrowRight")
    assert view(page)[0] > closer[0]
    page.keyboard.press("ArrowLeft")
    assert view(page)[0] == pytest.approx(closer[0], rel=0.01)
    page.keyboard.press("ArrowDown")
    assert said(page).startswith("rank 1:")
    page.keyboard.press(".")
    after = said(page)
    page.keyboard.press(".")
    assert said(page) != after
    page.keyboard.press(",")
    assert said(page) == after
    page.keyboard.press("0")
    assert view(page) == whole
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "timeline-search"
