"""The device's work in steps that nobody profiles, by CUDA events.

On GPUs, with the options and as many ranks as a training of ``perfscope/workloads/gpt_torch.py`` that was profiled::

    python -m benchmarks.undisturbed_steps --hidden 256 --layers 8 --write TRUTH.json

Undisturbed steps are timed by the host, and by CUDA events around each. Then the device's work is measured alone: a
kernel that spins keeps the device busy until the host has launched a whole step, so that CUDA events around the step's
kernels measure these and the gaps of a microsecond between them, and no host. How much of that is kernels is read from
a light window of such steps.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed as dist
from torch.profiler import ProfilerActivity

from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.workloads.gpt_torch import Training, build, parse_options

_WARMUP = 20
_UNDISTURBED = 100
_ISOLATED = 10
_IN_WINDOW = 3
_SPIN_CYCLES = 120_000_000


def main() -> None:
    """Measure, and write what rank 0 measured."""
    options = parse_options()
    truth = measure(build(options))
    if os.environ.get("RANK", "0") == "0":
        Path(options.write).write_text(json.dumps(truth, indent=1) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()


def measure(training: Training) -> dict[str, Any]:
    """Undisturbed steps, isolated ones, and a light window of isolated ones; times in nanoseconds."""
    for _ in range(_WARMUP):
        training.step()
    host_ns, device_ns = _time_undisturbed(training.step)
    isolated_ns = [_time_isolated(training) for _ in range(_ISOLATED)]
    windows = [_profile_isolated(training) for _ in range(_IN_WINDOW)]
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "host_ns": host_ns,
        "device_ns": device_ns,
        "isolated_ns": isolated_ns,
        "isolated_busy_ns": [busy for busy, _ in windows],
        "isolated_window_ns": [window for _, window in windows],
    }


def _time_undisturbed(step: Callable[[], None]) -> tuple[list[int], list[int]]:
    """The time of each step on the host, where the last one ends when the device is done, and between its events."""
    torch.cuda.synchronize()
    moments_ns, events = [time.monotonic_ns()], []
    for _ in range(_UNDISTURBED):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        step()
        end.record()
        events.append((start, end))
        moments_ns.append(time.monotonic_ns())
    torch.cuda.synchronize()
    moments_ns[-1] = time.monotonic_ns()
    host_ns = [after - before for before, after in pairwise(moments_ns)]
    return host_ns, [int(start.elapsed_time(end) * NS_PER_MS) for start, end in events]


def _time_isolated(training: Training) -> int:
    """The time between events around the kernels of a step that the host launched before the first of them ran."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(_SPIN_CYCLES)  # noqa: SLF001 - torch has no public kernel that only waits
    start.record()
    training.step(reduces=False)
    end.record()
    torch.cuda.synchronize()
    return int(start.elapsed_time(end) * NS_PER_MS)


def _profile_isolated(training: Training) -> tuple[int, int]:
    """How long the kernels of an isolated step ran, and from the first one to the last one."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _time_isolated(training)
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "isolated.json"
        profiler.export_chrome_trace(str(trace))
        return add_up(json.loads(trace.read_text())["traceEvents"])


def add_up(events: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How long kernels, copies and fills ran, and from the first one to the last one, without the one that spins."""
    spans = sorted(
        (round(float(event["ts"]) * NS_PER_US), round((float(event["ts"]) + float(event["dur"])) * NS_PER_US))
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset") and "spin_kernel" not in event["name"]
    )
    busy, reach = 0, spans[0][0]
    for start, end in spans:
        busy += max(0, end - max(start, reach))
        reach = max(reach, end)
    return busy, reach - spans[0][0]


if __name__ == "__main__":
    main()
