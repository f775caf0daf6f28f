"""What the report says of the cost of marks is what was measured."""

from __future__ import annotations

import json
from typing import Any

from tests.conftest import ROOT


def read_costs() -> list[dict[str, Any]]:
    costs: list[dict[str, Any]] = json.loads((ROOT / "fixtures" / "modules" / "marks.json").read_text())["costs"]
    return costs


def test_the_report_shows_each_training() -> None:
    text = (ROOT / "reports" / "h200-modules.md").read_text()
    assert len(read_costs()) == 3
    for cost in read_costs():
        names = ("step_ms", "mark_us", "marks_percent", "marks_error", "step_percent", "step_error")
        figures = " | ".join(f"{cost[name]:.1f}" for name in names)
        assert f"| {cost['case']} | {cost['marks']} | {figures} |" in text


def test_marks_take_less_than_three_percent_of_a_step_by_clocks() -> None:
    assert all(cost["marks_percent"] + 2 * cost["marks_error"] < 3 for cost in read_costs())


def test_a_step_that_the_gpu_bounds_is_not_longer_with_marks() -> None:
    (cost,) = [cost for cost in read_costs() if "GPU-bound" in cost["case"]]
    assert abs(cost["step_percent"]) < 2 * cost["step_error"] < 3
