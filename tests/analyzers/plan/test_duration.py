"""Tokens x operations per token = time x GPUs x TFLOPs, solved for the missing one."""

from __future__ import annotations

import pytest

from perfscope.analyzers.plan import Duration, solve_duration

SOLVED = {
    "time": solve_duration(10**9, 10**12, gpus=4, tflops_per_gpu=50.0, seconds=None),
    "tflops": solve_duration(10**9, 10**12, gpus=4, tflops_per_gpu=None, seconds=5_000_000.0),
    "tokens": solve_duration(10**9, None, gpus=4, tflops_per_gpu=50.0, seconds=5_000_000.0),
}


@pytest.mark.parametrize(("missing", "duration"), SOLVED.items())
def test_any_of_the_three_follows_from_the_others(missing: str, duration: Duration) -> None:
    """10**21 operations by 2 * 10**14 a second are 5,000,000 seconds."""
    assert duration.solved_for == missing
    assert duration.tokens == 10**12
    assert duration.tflops_per_gpu == pytest.approx(50.0)
    assert duration.seconds == pytest.approx(5_000_000.0)
    assert duration.hours == pytest.approx(5_000_000 / 3600)
    assert duration.days == pytest.approx(5_000_000 / 86400)
    assert duration.gpu_hours == pytest.approx(4 * 5_000_000 / 3600)
