"""The overhead that the benchmark measured, against its limits."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.overhead import compare_with_limits, document
from tests.conftest import ROOT

CHANGE = {"median_ms": 100.2, "bare_median_ms": 100.0, "change_percent": 0.2, "error_percent": 0.05}
SPLIT = {"stall": 0.3, "stop": 0.2, "export": 0.1, "release": 0.02, "start": 0.01, "trace_mb": 15.0}
OUTSIDE: dict[str, Any] = {**CHANGE, "hooks_us": [50.0, 40.0]}


def verdicts(host_bound: dict[str, Any]) -> list[str]:
    measured: dict[str, Any] = {
        "machine": {"device": "d"},
        "outside": {"host-bound": host_bound, "device-bound": OUTSIDE},
        "window": {**CHANGE, "change_percent": 2.5, "ours": SPLIT, "bare": {**SPLIT, "stall": 1.0}, "stall_ratio": 0.3},
        "after": {"median_ms": 101.0, "change_percent": 1.0},
        "nvml": {**CHANGE, "samples": 9},
        "memory": {"mb": 130.0, "bare_mb": 100.0, "more_mb": 30.0},
        "growth": {"windows": 50, "mb": 1.0, "bare_mb": 40.0},
    }
    return [line.within_limit for line in compare_with_limits(measured) if line.within_limit]


def test_the_lines_of_the_benchmark_say_which_limits_hold() -> None:
    # outside 0.2 of 0.3 % and hooks of 0.05 %, twice; in a window 2.5 of 2 %; stall 0.3 of 0.5; after 1 of 1 %;
    # NVML 4 standard errors; 30 of 20 MB; 1 of 5 MB
    assert verdicts(OUTSIDE) == ["yes", "yes", "yes", "yes", "no", "yes", "yes", "no", "no", "yes"]


def test_the_table_of_the_report_is_fresh() -> None:
    figures = json.loads((ROOT / "fixtures" / "overhead" / "h200.json").read_text())
    assert document(figures) in (ROOT / "reports" / "h200-overhead.md").read_text()
