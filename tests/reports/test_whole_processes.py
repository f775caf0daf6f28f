"""How the benchmark of whole processes sums up the steps of pairs of processes, with perfscope and without."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.whole_processes import Part, Times, summarize

#: Steps 6 to 15, the window 16 to 18, steps 19 to 38, and 39 to 42, beside which the twin rests.
PART = Part("host-bound", 1, first=6, before=10, after=20, rest=4)
SECONDS = {"before": 0.010, "window": 0.020, "after": 0.0101}


def steps(scale: float, seconds: dict[str, float], *, drift: float = 0.0) -> list[float]:
    """Steps of one process; those that are left out are so long that they would show."""
    times = [9.0] * (PART.alone.stop - PART.first)
    for part, numbers in (("before", range(9, 15)), ("window", range(16, 18)), ("after", range(31, 39))):
        for step in numbers:
            times[step - PART.first] = scale * seconds[part] * (1 + drift * step)
    return times


def run(hook_ns: int) -> Any:
    step = np.arange(1, PART.alone.stop)
    counted = (step >= PART.alone.start) & (step != 40)
    table = SimpleNamespace(step=step, steady=step != 40, hook_ns=np.ma.masked_array(np.where(counted, hook_ns, 10**9)))
    end = SimpleNamespace(
        first_step=16, start_ns=1_000_000, stop_ns=2_000_000, export_ns=3_000_000, release_ns=None, detached=True
    )
    return SimpleNamespace(steps=(table,), windows=(end, SimpleNamespace(first_step=60)))


def pair(ours: float, bare: float, *, drift: float) -> Times:
    twin = steps(bare, {**SECONDS, "after": 0.010}, drift=drift)
    return steps(ours, SECONDS, drift=drift), twin[: PART.alone.start - PART.first]


def test_drift_and_what_a_captured_process_differs_by_from_its_twin_cancel_out() -> None:
    pairs = [pair(1.0, 2.0, drift=0.0), pair(1.0, 2.0, drift=0.0), pair(3.0, 5.0, drift=0.1)]
    figures = summarize(PART, pairs, [run(40_000), run(50_000)])
    assert figures["rounds"] == 3
    assert figures["change_percent"] == pytest.approx(1.0)
    assert figures["changes_percent"] == pytest.approx([1.0] * 3)
    assert figures["error_percent"] == pytest.approx(0.0, abs=1e-9)
    assert (figures["before_ms"], figures["bare_before_ms"]) == (pytest.approx(10.0), pytest.approx(20.0))
    assert (figures["after_ms"], figures["bare_after_ms"]) == (pytest.approx(10.1), pytest.approx(20.0))
    assert figures["window_ms"] == pytest.approx(20.0)
    assert (figures["hooks_us"], figures["hooks_mean_us"]) == (pytest.approx(45.0), pytest.approx(45.0))
    assert figures["hook_steps"] == 6
    assert figures["stall_ms"] == pytest.approx(6.0)
    assert figures["detached"] is True
