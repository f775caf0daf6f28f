"""GPU means are over the training steps, and a host without NVML gives a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from perfscope import wire
from perfscope.analyzers.gpus import analyze
from perfscope.errors import MissingInput
from perfscope.sources.runs.run import read_run
from tests.analyzers.test_steps import write_run


def run_with(lines: list[object], root: Path) -> Path:
    run = write_run(root, {0: [1, 1, 1, 1]})  # steps end at 1, 2, 3 and 4 ms
    (run / wire.NVML_FOLDER).mkdir()
    (run / wire.NVML_FOLDER / "host.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_means_are_over_the_samples_between_the_first_and_the_last_step(tmp_path: Path) -> None:
    gpu = {"uuid": "GPU-1", "name": "Some GPU", "power_limit_mw": 700_000, "memory_total_bytes": 80 * 10**9}
    samples = [
        {"t_ns": t_ns, "gpus": [{"power_mw": power, "gpu_util_percent": 50, "memory_used_bytes": used}]}
        for t_ns, power, used in [(0, 9, 99), (1_000_000, 300_000, 10), (4_000_000, 500_000, 20), (4_000_001, 9, 99)]
    ]
    (result,) = analyze(read_run(run_with([{"gpus": [gpu]}, *samples], tmp_path))).gpus
    assert (result.samples, result.power_w, result.power_limit_w) == (2, 400.0, 700.0)
    assert (result.util_percent, result.memory_used_bytes) == (50.0, 20)


def test_what_a_gpu_does_not_tell_is_absent(tmp_path: Path) -> None:
    lines: list[object] = [{"gpus": [{"uuid": "GPU-1", "name": "n"}]}, {"t_ns": 2_000_000, "gpus": [{}]}]
    (result,) = analyze(read_run(run_with(lines, tmp_path))).gpus
    assert (result.power_w, result.util_percent, result.memory_used_bytes) == (None, None, None)


def test_without_nvml_the_reason_is_passed_on(tmp_path: Path) -> None:
    with pytest.raises(MissingInput, match="no driver"):
        analyze(read_run(run_with([{"note": "no driver"}], tmp_path)))
