"""Takes the pictures of the page that the README and the documentation show, in headless Chromium.

    python -m benchmarks.screenshots [--output docs/images]

They are of runs on H200 GPUs in ``fixtures/``; each is a PNG with few colours, so that it stays small.
"""

from __future__ import annotations

import argparse
import io
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import perfscope
from benchmarks.processes import ROOT

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
_COLOURS = 128
_SCALE = 1.5


@dataclass(frozen=True, slots=True)
class Picture:
    """One picture.

    Attributes:
        name: Of its file.
        source: The run or the traces, below the root.
        part: The part of the page that it begins with.
        width, height: Of the window, in CSS pixels.
        scheme: ``light`` or ``dark``.
        keys: Pressed on the timeline before.
    """

    name: str
    source: str
    part: str
    width: int = 1180
    height: int = 700
    scheme: Literal["light", "dark"] = "light"
    keys: tuple[str, ...] = ()


PICTURES = (
    Picture("page", "fixtures/runs/h200_zero2", "", height=760),
    Picture(
        "page-timeline", "fixtures/pipeline/pp4_1f1b_m8", "timeline", height=470, keys=("+", "+", "ArrowDown", ".")
    ),
    Picture("page-pipeline", "fixtures/pipeline/pp4_1f1b_m8", "pipeline", height=470),
    Picture("page-gpus-dark", "fixtures/runs/h200_zero1", "gpus", height=760, scheme="dark"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "images")
    output: Path = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    for name, picture in take_pictures():
        (output / f"{name}.png").write_bytes(picture)
        print(f"{output / name}.png: {len(picture) / 1000:.0f} kB")


def take_pictures() -> Iterator[tuple[str, bytes]]:
    """Each picture's name and its PNG."""
    path = shutil.which("chromium") or shutil.which("google-chrome")
    assert path is not None, "no chromium: apt-get install chromium"
    pages: dict[str, Path] = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        for picture in PICTURES:
            if picture.source not in pages:
                pages[picture.source] = Path(folder) / f"{len(pages)}.html"
                pages[picture.source].write_text(perfscope.open(picture.source).page().html)
            yield picture.name, _take(browser, pages[picture.source], picture)
        browser.close()


def _take(browser: Browser, path: Path, picture: Picture) -> bytes:
    context = browser.new_context(
        viewport={"width": picture.width, "height": picture.height}, color_scheme=picture.scheme, offline=True,
        device_scale_factor=_SCALE, reduced_motion="reduce",
    )  # fmt: skip
    page = context.new_page()
    page.goto(path.as_uri() + (f"#{picture.part}" if picture.part else ""))
    _press(page, picture.keys)
    page.wait_for_timeout(300)
    shot = page.screenshot()
    context.close()
    return shrink(shot)


def _press(page: Page, keys: tuple[str, ...]) -> None:
    for key in keys:
        page.locator("#timeline-canvas").press(key)


def shrink(picture: bytes) -> bytes:
    """The picture with few colours."""
    target = io.BytesIO()
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(_COLOURS, dither=Image.Dither.NONE).save(target, "PNG", optimize=True)
    return target.getvalue()


if __name__ == "__main__":
    main()
