"""Claims about the page of a real run in a real browser that has no network."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from benchmarks.synthetic_runs import SyntheticRun, write_run
from perfscope.api.opened_run import open_run
from tests.conftest import ROOT, perfscope
from tests.page.conftest import RUN, Show

PIPELINE = ROOT / "fixtures" / "pipeline" / "pp4_1f1b_m8"
#: The marks of each figure of the real run: two ranks, 16 steps, one of them traced.
LEAST_MARKS = {
    "steps-0": 18, "goodput-0": 8, "breakdown-0": 8, "collectives-0": 5, "stragglers-0": 2, "gpus-0": 12,
    "memory-0": 6,
}  # fmt: skip


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    ended = perfscope("analyze", str(RUN), "--format", "json", cwd=ROOT)
    document: dict[str, Any] = json.loads(ended.stdout)
    return document


def follow(document: Any, pointer: str) -> Any:
    for word in pointer.split("/")[1:]:
        document = document[int(word)] if isinstance(document, list) else document[word]
    return document


def cells(page: Page, caption: str) -> list[list[float | str]]:
    """The rows of a table; numbers in full precision."""
    rows: list[list[float | str]] = page.evaluate(
        """caption => {
          const table = [...document.querySelectorAll('table')].find(t => t.caption.textContent === caption);
          return [...table.tBodies[0].rows].map(row => [...row.cells].map(
            cell => 'value' in cell.dataset ? Number(cell.dataset.value) : cell.textContent));
        }""",
        caption,
    )
    return rows


def test_it_asks_for_nothing_and_complains_about_nothing(show: Show, real_page: str) -> None:
    shown = show(real_page)
    shown.page.mouse.wheel(0, 20_000)
    shown.page.wait_for_timeout(100)
    assert shown.requests == [shown.path.as_uri()]
    assert shown.complaints == []
    assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", real_page)


def test_each_chart_has_its_marks_a_name_and_a_table(show: Show, real_page: str) -> None:
    page = show(real_page).page
    for identity, least in LEAST_MARKS.items():
        figure = page.locator(f"#{identity}")
        assert figure.locator("svg .mark").count() >= least, identity
        assert figure.locator("svg[role=img] > title").text_content()
        assert figure.locator("svg > desc").text_content()
        assert figure.locator("details table tbody tr").count() >= 1


def test_its_figures_are_those_of_analyze(show: Show, real_page: str, answer: dict[str, Any]) -> None:
    page = show(real_page).page
    shown = page.eval_on_selector_all(
        "[data-pointer]", "all => all.map(e => [e.dataset.pointer, Number(e.dataset.value)])"
    )
    assert len(shown) >= 12
    for pointer, value in shown:
        assert value == pytest.approx(follow(answer, pointer), rel=1e-12), pointer
    results = answer["results"]
    kinds = ("compute_us", "exposed_communication_us", "exposed_copy_us", "idle_us")
    steps = [step for rank in results["breakdown"]["ranks"] for step in rank["steps"]]
    for row, step in zip(cells(page, "Device time by rank and step"), steps, strict=True):
        assert row[1:5] == pytest.approx([step[kind] / 1000 for kind in kinds])
        assert sum(map(float, row[1:5])) == pytest.approx(step["window_us"] / 1000)
    busbw = [operation["busbw_gb_s"] for operation in results["collectives"]["operations"] if operation["busbw_gb_s"]]
    assert [row[3] for row in cells(page, "Bus bandwidth by size")] == pytest.approx(busbw)
    waits = [sum(step["us"] for step in rank["caused_wait_by_step"]) / 1000 for rank in results["stragglers"]["ranks"]]
    assert [sum(map(float, row[1:])) for row in cells(page, "Wait caused by rank and step")] == pytest.approx(waits)
    peaks = [rank["memory_peak_bytes"] / 1e9 for rank in results["steps"]["ranks"]]
    assert [row[1] for row in cells(page, "Peak memory by rank")] == pytest.approx(peaks)


def test_the_wall_time_of_each_process_adds_up(show: Show, real_page: str, answer: dict[str, Any]) -> None:
    page = show(real_page).page
    ranks = answer["results"]["wall_clock"]["ranks"]
    rows = cells(page, "Wall time by process")
    assert [row[-1] for row in rows] == pytest.approx([rank["wall_ns"] / 1e9 for rank in ranks])
    assert [row[1] for row in rows] == pytest.approx([rank["parts_ns"]["steps"] / 1e9 for rank in ranks])
    for row in rows:
        assert sum(map(float, row[1:-1])) == pytest.approx(float(row[-1]))
    page.locator("#goodput-0 .fill-compute.mark").first.hover()
    assert re.fullmatch(r"rank 0: training steps [\d.]+ s", page.locator("#tip").text_content() or "")


def test_a_finding_is_explained_on_the_page_without_links(show: Show, real_page: str) -> None:
    page = show(real_page).page
    assert page.locator(".findings > li > details").count() == page.locator(".findings > li").count() >= 1
    assert "What to try." in (page.locator(".findings details").first.text_content() or "")
    assert page.locator(".findings a").count() == 0


def test_one_long_step_makes_the_axis_logarithmic(show: Show, real_page: str) -> None:
    assert show(real_page).page.locator("#steps-0 text", has_text="ms, logarithmic").count() == 1


def test_findings_come_first_and_headings_are_in_order(show: Show, real_page: str) -> None:
    page = show(real_page).page
    levels = page.eval_on_selector_all("h1, h2, h3", "all => all.map(h => Number(h.tagName[1]))")
    assert levels[:2] == [1, 2]
    assert all(after <= before + 1 for before, after in pairwise(levels))
    parts = page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")
    assert parts == [
        "findings", "steps", "goodput", "stragglers", "breakdown", "timeline", "overlap", "collectives", "gpus",
        "kernels", "memory", "others",
    ]  # fmt: skip
    assert page.locator("nav li").count() == len(parts)


def test_one_line_at_the_end_names_all_parts_without_data(show: Show) -> None:
    page = show(open_run(PIPELINE).page().html).page
    (absent,) = page.locator(".absence").all_text_contents()
    assert absent.startswith("Nothing to show of: Training loop, Goodput, GPUs under the steps")
    assert absent.endswith("Modules (this is no run of perfscope profile --modules).")
    assert page.locator("main > :last-child").get_attribute("class") == "absence"
    assert not {"steps", "goodput", "gpus", "modules"} & set(
        page.eval_on_selector_all("main > section", "all => all.map(s => s.id)")
    )
    assert page.locator("#pipeline-0 svg .mark").count() > 2 * 4 * 8 * 2
    headings = page.locator("#pipeline-0 .heading").all_text_contents()
    assert len(headings) == 1, "the ideal schedule stands below the measured one"


def test_it_fits_a_phone_and_paper(show: Show, real_page: str) -> None:
    assert show(real_page, width=380).page.evaluate("document.documentElement.scrollWidth") == 380
    paper = show(real_page, media="print").page
    assert not paper.locator("nav").is_visible()
    assert paper.locator("#steps-0 svg").is_visible()


HOSTILE = (
    "</script><img src=x onerror=alert(1)>",
    "\"'><svg onload=alert(2)>",
    "evil\u202egnp.exe\u2066",
    "a" * 10_000,
)


def test_hostile_names_do_nothing(show: Show, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", SyntheticRun(ranks=2, kernels=HOSTILE))
    html = open_run(run).page().html
    shown = show(html)
    page = shown.page
    page.locator("#timeline-search").fill("onerror")
    page.keyboard.press("Enter")
    assert "onerror=alert(1)" in (page.locator("#timeline-said").text_content() or "")
    assert shown.complaints == []
    assert page.locator("img").count() == 0
    assert page.locator("svg svg").count() == 0
    assert not set("\u202e\u2066") & set(page.locator("main").inner_text())
    assert len(html) < 1_000_000, "a name is not repeated in full"
    assert page.evaluate("document.documentElement.scrollWidth") == 1280


def test_a_script_that_is_not_ours_does_not_run(show: Show, real_page: str) -> None:
    shown = show(real_page.replace("</main>", "<script>document.title = 'run'</script></main>"))
    assert shown.page.title() != "run"
    assert any("Content Security Policy" in complaint for complaint in shown.complaints)
