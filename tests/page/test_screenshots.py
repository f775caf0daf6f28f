"""The page looks as it did: pictures of its parts are compared with stored ones, without texts, which fonts change.

A stored picture is small and coarse. Where the page is meant to look otherwise, delete it: the test writes it again,
and fails once.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page

from perfscope.page import build_page, read_for_page
from tests.conftest import ROOT
from tests.page.conftest import Scheme, Show

PICTURES = Path(__file__).parent / "pictures"
SMALL = (160, 100)
#: Mean difference of a colour, of 255, and the share of pixels that may differ by more than a tenth.
MOST_MEAN, MOST_DIFFERENT = 6.0, 0.04
#: The chart alone, without texts, at its own size on whole pixels: where it stands on the page depends on fonts.
ALONE = """chart => {
  chart.querySelectorAll('text').forEach(text => { text.style.visibility = 'hidden'; });
  const {width, height} = chart.viewBox.baseVal;
  chart.style.cssText = `width:${width}px;height:${height}px;min-width:0;margin:0`;
  document.body.replaceChildren(chart);
  document.body.style.cssText = 'margin:0;padding:0';
  scrollTo(0, 0);
}"""


def compare(shot: bytes, stored: Path) -> tuple[float, float]:
    """Mean difference, and the share of pixels that differ clearly, after both are made small."""
    image = Image.open(io.BytesIO(shot)).convert("RGB").resize(SMALL, Image.Resampling.BOX)
    if not stored.exists():
        stored.parent.mkdir(exist_ok=True)
        image.save(stored, optimize=True)
        pytest.fail(f"{stored.name} did not exist and is written now: look at it")
    difference = np.abs(np.asarray(image, np.int16) - np.asarray(Image.open(stored).convert("RGB"), np.int16))
    return float(difference.mean()), float((difference.max(axis=2) > 255 / 10).mean())


def shoot(page: Page, part: str) -> bytes:
    chart = page.locator(f"#{part}-0 svg.wide")
    handle = chart.element_handle()
    handle.evaluate(ALONE)
    return handle.screenshot()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("part", ["steps", "breakdown", "stragglers", "gpus"])
def test_a_chart_looks_as_it_did(show: Show, real_page: str, part: str, scheme: Scheme) -> None:
    shot = shoot(show(real_page, scheme=scheme).page, part)
    mean, different = compare(shot, PICTURES / f"{part}-{scheme}.png")
    assert mean <= MOST_MEAN
    assert different <= MOST_DIFFERENT


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_timeline_looks_as_it_did(show: Show, scheme: Scheme) -> None:
    html = build_page(read_for_page([ROOT / "fixtures" / "pipeline" / "pp4_1f1b_m8"]))
    shot = show(html, scheme=scheme).page.locator("#timeline-canvas").screenshot()
    mean, different = compare(shot, PICTURES / f"timeline-{scheme}.png")
    assert mean <= MOST_MEAN
    assert different <= MOST_DIFFERENT


def test_a_page_without_its_colours_is_noticed(show: Show, real_page: str) -> None:
    page = show(real_page.replace("--compute:#2f6db3", "--compute:#b3342f")).page
    mean, different = compare(shoot(page, "breakdown"), PICTURES / "breakdown-light.png")
    assert mean > MOST_MEAN or different > MOST_DIFFERENT
