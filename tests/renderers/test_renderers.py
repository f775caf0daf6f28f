"""A report as markdown, JSON and CSV."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfscope.errors import PerfscopeError
from perfscope.renderers import Format, markdown, render
from perfscope.renderers.summary import summarize
from perfscope.report import (
    Column,
    Report,
    Section,
    shorten_warnings,
)

REPORT = Report(
    "A | title",
    {"schema": "perfscope/test/1", "value": None},
    (
        Section(
            "Times",
            (Column("Name"), Column("Time (ms)", 2), Column("Count")),
            (("a|b", 1.005, 3), ("c", None, 12)),
            ("A note\nof two lines.",),
        ),
        Section("Only words", notes=("n",)),
    ),
    ("a doubt",),
)


def test_markdown() -> None:
    assert render(REPORT, Format.MARKDOWN) == (
        "# A | title\n\n## Times\n\n"
        "| Name   |   Time (ms) |   Count |\n"
        "|:-------|------------:|--------:|\n"
        "| a\\|b   |        1.00 |       3 |\n"
        "| c      |         n/a |      12 |\n\n"
        "- A note of two lines.\n\n## Only words\n\n- n\n\n> **Warning:** a doubt\n"
    )


def test_markdown_of_a_report_inside_another_document() -> None:
    report = Report("Title", {}, (Section("Section", notes=("n",)),))
    assert markdown.render(report, level=3) == "### Title\n\n#### Section\n\n- n\n"
    assert markdown.render(report, level=6) == "###### Title\n\n###### Section\n\n- n\n"
    assert markdown.render_sections(report.sections, level=2) == "## Section\n\n- n\n"


def test_json_refuses_what_is_no_number() -> None:
    with pytest.raises(ValueError, match="JSON"):
        render(Report("t", {"schema": "x", "value": float("nan")}, ()), Format.JSON)


PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
KEYS = st.text() | st.integers() | st.booleans()


@given(st.dictionaries(st.text(), st.recursive(PLAIN, lambda of: st.lists(of) | st.dictionaries(KEYS, of))))
def test_json_is_what_the_standard_library_writes(data: dict[str, Any]) -> None:
    expected = json.dumps({**data, "warnings": ["a", "b"]}, indent=2) + "\n"
    assert render(Report("t", data, (), ("a", "b")), Format.JSON) == expected


@pytest.mark.parametrize("text", ["\udc80.json", "\ud83d", "\ud83d\ude00", '\u2028\n\\"'])
def test_json_of_a_name_that_is_no_utf_8_is_what_the_standard_library_writes(text: str) -> None:
    data: dict[str, Any] = {"results": {"a": {"ranks": [{"trace": text, text: [{"deep": [text]}]}]}}}
    expected = json.dumps({**data, "warnings": []}, indent=2) + "\n"
    assert render(Report("t", data, ()), Format.JSON) == expected


def test_csv_has_full_precision_and_empty_cells() -> None:
    assert render(REPORT, Format.CSV) == "section,Name,Time (ms),Count\nTimes,a|b,1.005,3\nTimes,c,,12\n"


def analysis_of(**results: Any) -> dict[str, Any]:
    return {"results": results, "skipped": [], "warnings": ["00000/steps.jsonl: ends in half a line"] * 2}


def host(**parts_us: float) -> dict[str, Any]:
    return {"ranks": [{"rank": 0, "window_us": 1000.0, **{f"{name}_us": us for name, us in parts_us.items()}}]}


def test_data_loading_is_named_and_the_largest_share_comes_first() -> None:
    shares = host(compute=40.0, exposed_communication=0.0, exposed_data_loading=940.0, other=20.0)
    assert summarize(analysis_of(host=shares))[0] == (
        "profiled steps of rank 0, 1 ms: data loading 94.0 %, compute 4.0 %, outside of PyTorch 2.0 %"
    )


def test_a_warning_is_printed_once() -> None:
    assert summarize(analysis_of()) == ["warning: 00000/steps.jsonl: ends in half a line"]


def test_a_run_on_processors_does_not_miss_the_breakdown_of_devices() -> None:
    analysis = analysis_of(host=host(compute=1000.0))
    analysis["skipped"] = [{"analyzer": name, "reason": "training ran without a GPU"} for name in ("gpus", "breakdown")]
    assert not any("not computed" in line for line in summarize(analysis))


def test_the_wall_clock_is_at_most_five_parts_as_people_say_them() -> None:
    keys = ("set_up", "imports", "steps", "first_step", "saves", "validation", "between_steps", "hooks", "end")
    shares = (0.4, 0.1, 0.2, 0.05, 0.09, 0.06, 0.05, 0.03, 0.02)
    parts = [{"part": key, "label": key, "share": share} for key, share in zip(keys, shares, strict=True)]
    first, _ = summarize(analysis_of(wall_clock={"rank": 3, "wall_s": 16.2, "parts": parts}))
    named = "start-up 50.0 %, steps 20.0 %, saves 9.0 %, evaluation 6.0 %, the rest 15.0 %"
    assert first == f"wall clock of rank 3, 16.2 s: {named}"


def test_a_finding_is_one_line_with_what_where_how_much_and_what_to_do() -> None:
    pause = {
        "title": "Pause",
        "place": "report (train.py:11)",
        "cost": "4 s of 8 s (50 % of the loop)",
        "advice": "Stop.",
    }
    line, *_ = summarize(analysis_of(findings=[pause]))
    assert line == "finding 1: Pause, in report (train.py:11): 4 s of 8 s (50 % of the loop). Stop."


def test_a_window_that_slowed_later_steps_is_said() -> None:
    effect = {"verdict": "slower", "before": 15, "before_s": 0.02, "after_s": 0.025, "change": 0.25}
    steps = {"count": 60, "source": "optimizer", "ranks": [{}], "step_time_s": None, "window_effect": effect}
    said = "the window slowed the steps after it by 25 %, to a median of 25 ms from 20 ms: figures are of the 15 steps "
    assert summarize(analysis_of(steps=steps))[1].startswith(said)
    effect["verdict"] = "no difference found"
    assert not any("slowed" in line for line in summarize(analysis_of(steps=steps)))


def test_a_row_that_does_not_fit_is_a_defect() -> None:
    with pytest.raises(AssertionError, match="2 cells under 1 columns"):
        Section("s", (Column("a"),), ((1, 2),))


def test_sections_are_selected_by_their_titles_in_the_order_of_the_titles() -> None:
    report = Report("r", {}, (Section("a"), Section("b"), Section("c")))
    assert [section.title for section in report.select(["c", "a"])] == ["c", "a"]
    with pytest.raises(PerfscopeError, match="there is no section 'd'"):
        report.select(["a", "d"])


def test_warnings_of_many_ranks_are_shortened_and_counted() -> None:
    lines = [f"rank {rank} is cut off" for rank in range(600)]
    assert shorten_warnings([*lines[:512], "another"]) == (*lines[:512], "another")
    shown = shorten_warnings(["another", *lines])
    assert shown[:21] == ("another", *lines[:20])
    assert shown[21:] == ("580 more warnings, which differ from the last one in numbers alone, are in --format json",)
