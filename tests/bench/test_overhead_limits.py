"""The overhead that the benchmark measured, against its limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from benchmarks.overhead_limits import compare_with_limits, document
from tests.conftest import ROOT


def test_steps_behind_a_window_are_judged_where_the_pairs_agree_to_half_the_limit() -> None:
    behind: dict[str, Any] = {
        "pairs": 14,
        "steps": 1472,
        "before_ms": 8.0,
        "bare_before_ms": 8.1,
        "after_ms": 8.0,
        "bare_after_ms": 8.1,
        "change_percent": 0.3,
        "error_percent": 0.4,
        "profiler": {"pairs": 1, "change_percent": 36.0, "error_percent": None},
    }

    def lines(**changes: float) -> list[tuple[str, str]]:
        record = {"machine": {}, "behind": {**behind, **changes}}
        return [(line.difference, line.within_limit) for line in compare_with_limits(record)]

    assert lines() == [("+0.30 % (standard error 0.40)", "yes"), ("", ""), ("+36.00 %", "")]
    assert lines(change_percent=1.2)[0][1] == "no"
    assert lines(error_percent=0.6)[0][1] == "not shown"


def test_the_lines_of_the_benchmark_say_which_limits_hold() -> None:
    change = {"median_ms": 100.2, "bare_median_ms": 100.0, "change_percent": 0.2, "error_percent": 0.05}
    split = {"stall": 0.3, "stop": 0.2, "export": 0.1, "release": 0.02, "start": 0.01, "trace_mb": 15.0}
    measured: dict[str, Any] = {
        "machine": {"device": "d"},
        "outside": change,
        "window": {**change, "change_percent": 2.5, "ours": split, "bare": {**split, "stall": 1.0}, "stall_ratio": 0.3},
        "after": {"median_ms": 101.0, "change_percent": 1.0},
        "nvml": {**change, "samples": 9},
        "memory": {"mb": 130.0, "bare_mb": 100.0, "more_mb": 30.0},
        "growth": {"windows": 50, "mb": 1.0, "bare_mb": 40.0},
    }
    lines = compare_with_limits(measured)
    verdicts = [line.within_limit for line in lines if line.within_limit]
    # outside 0.2 of 0.3 %; in a window 2.5 of 2 %; stall 0.3 of 0.5; NVML 4 standard errors; 30 of 20 MB; 1 of 5 MB
    assert verdicts == ["yes", "no", "yes", "no", "no", "yes"]
    noisy = compare_with_limits({**measured, "outside": {**change, "error_percent": 0.4}})
    assert noisy[0].within_limit == "not shown"
    processes = {
        "rounds": 6,
        "before_ms": 20.0,
        "bare_before_ms": 19.9,
        "after_ms": 20.1,
        "bare_after_ms": 20.0,
        "change_percent": 0.2,
        "error_percent": 0.3,
        "hooks_us": 40.0,
        "hooks_mean_us": 44.0,
        "window_ms": 31.84,
        "stall_ms": 300.0,
    }
    whole = {"machine": {"device": "d"}, "processes": {"host-bound": processes}}
    lines_of_processes = compare_with_limits(whole)
    assert [line.within_limit for line in lines_of_processes] == ["yes", "", "yes", "", ""]
    assert [line.difference for line in lines_of_processes][2:4] == ["mean 44 us, 0.22%", "+60.0%"]
    slower = {**processes, "change_percent": 1.1, "hooks_mean_us": 51.0}
    whole["processes"] = {"host-bound": slower}
    assert [line.within_limit for line in compare_with_limits(whole)] == [
        "no",
        "",
        "no",
        "",
        "",
    ]
    assert np.isfinite([line.perfscope for line in lines if line.perfscope is not None]).all()


@pytest.mark.parametrize("name", ["h200", "h200-processes", "h200-behind"])
def test_the_tables_of_the_report_are_fresh(name: str) -> None:
    assert (
        document(ROOT / "fixtures" / "overhead" / f"{name}.json") in (ROOT / "reports" / "h200-overhead.md").read_text()
    )
