"""How the benchmark of whole processes sums up the steps of processes with perfscope and without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.whole_processes import Part, summarize

#: Steps 1 to 10, the window 11 to 13, then steps 14 to 33; 1 to 3, 10 and 14 to 25 are left out.
PART = Part("host-bound", 1, first=1, before=10, after=20)
SECONDS = {"before": 0.010, "window": 0.020, "after": 0.0101}


def process(scale: float, seconds: dict[str, float]) -> list[float]:
    """Steps of one process; those that are left out are so long that they would show."""
    times = [9.0] * (PART.end - 1)
    for part, steps in (("before", range(4, 10)), ("window", range(11, 13)), ("after", range(26, 34))):
        for step in steps:
            times[step - 1] = scale * seconds[part]
    return times


def run(hook_ns: int) -> Any:
    steps = np.arange(1, PART.end)
    counted = ((steps >= 4) & (steps < 10)) | (steps >= 26)
    table = SimpleNamespace(
        step=steps, steady=steps != 5, hook_ns=np.ma.masked_array(np.where(counted & (steps != 5), hook_ns, 10**9))
    )
    end = SimpleNamespace(
        first_step=11, start_ns=1_000_000, stop_ns=2_000_000, export_ns=3_000_000, release_ns=None, detached=True
    )
    return SimpleNamespace(steps=(table,), windows=(end, SimpleNamespace(first_step=40)))


def test_each_process_is_compared_with_its_own_steps_ahead_of_the_window() -> None:
    ours = [process(scale, SECONDS) for scale in (1.0, 1.0, 3.0)]
    bare = [process(scale, {**SECONDS, "after": 0.010}) for scale in (2.0, 2.0, 5.0)]
    figures = summarize(PART, ours, bare, [run(40_000), run(50_000)])
    assert figures["rounds"] == 3
    assert figures["change_percent"] == pytest.approx(1.0)
    assert figures["error_percent"] == pytest.approx(0.0, abs=1e-9)
    assert (figures["before_ms"], figures["bare_before_ms"]) == (pytest.approx(10.0), pytest.approx(20.0))
    assert (figures["after_ms"], figures["bare_after_ms"]) == (pytest.approx(10.1), pytest.approx(20.0))
    assert figures["window_ms"] == pytest.approx(20.0)
    assert (figures["hooks_us"], figures["hooks_mean_us"]) == (pytest.approx(45.0), pytest.approx(45.0))
    assert figures["stall_ms"] == pytest.approx(6.0)
    assert figures["detached"] is True
