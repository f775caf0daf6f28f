"""The device's time by CUDA events, from what was measured of undisturbed and of isolated steps."""

from __future__ import annotations

import pytest

from benchmarks.light_window import time_kernels_ns

ISOLATED = {"isolated_ns": [90, 100, 110], "isolated_busy_ns": [80, 80], "isolated_window_ns": [100, 100]}


def test_where_the_device_waits_for_the_host_isolated_steps_count() -> None:
    assert time_kernels_ns({**ISOLATED, "device_ns": [400, 500, 600]}) == pytest.approx(80)


def test_where_it_does_not_wait_undisturbed_steps_count_because_of_their_clock() -> None:
    assert time_kernels_ns({**ISOLATED, "device_ns": [105, 110, 112]}) == pytest.approx(88)
