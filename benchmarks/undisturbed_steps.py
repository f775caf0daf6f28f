"""The device's work in steps that nobody profiles, by CUDA events, and a run of perfscope in the same process.

On GPUs, with the options of ``benchmarks/gpt_torch.py``, on one rank or below torchrun::

    python -m benchmarks.undisturbed_steps --hidden 256 --layers 8 --write TRUTH.json --record RUN

One process does it all, because processes of one training differ by a fifth where the host bounds their steps. Steps
without perfscope are timed by the host. Then perfscope records ``--steps`` steps with its windows, and ends; more steps
without it follow, because host and device get slower and faster with time. Behind them CUDA events are put around each
step, whose times are related to the distance of these steps. At last the device's work is measured alone: a kernel that
spins keeps the device busy until the host has launched a whole step, so that CUDA events around the step's kernels
measure these and the gaps of a microsecond between them, and no host. How much of that is kernels is read from a light
window of such steps.

With DDP the gradients are reduced in all of them, on a stream of NCCL's. While that goes on the kernels are slower; and
before the optimizer the stream of the kernels waits for it. Events around this wait say how long, and it is no work.
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
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity

from benchmarks.gpt_torch import Training, build, option_parser
from perfscope import hooks
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.hooks.start import PROCESS

_WARMUP = 20
_UNDISTURBED = 100
_ISOLATED = 10
_IN_WINDOW = 3
_SPIN_CYCLES = 120_000_000
_PROFILED = "40-42"
_SPIN, _NCCL = "spin_kernel", "nccl"


class Waits:
    """The waits of the kernels' stream for reductions, where DDP reduces on another stream.

    The communication hook reduces as DDP does by itself. It waits for all reductions in its last call of a step, which
    comes behind the last kernel of the backward pass, where DDP would wait for one after the other.
    """

    def __init__(self, model: DistributedDataParallel) -> None:
        self._running: list[dist.Work] = []
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
        model.register_comm_hook(None, lambda _state, bucket: self.reduce(bucket))  # torch reads its annotations

    def reduce(self, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Average a bucket over the ranks."""
        gradients = bucket.buffer().div_(dist.get_world_size())
        self._running.append(dist.all_reduce(gradients, async_op=True))
        if bucket.is_last():
            before, after = make_events()
            before.record()
            for work in self._running:
                work.wait()
            after.record()
            self._running.clear()
            self._events.append((before, after))
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(gradients)
        return future

    def take_ns(self) -> list[int]:
        """How long each step since the last call waited; the device must be done."""
        times, self._events = [elapsed_ns(*events) for events in self._events], []
        return times


def make_events() -> tuple[torch.cuda.Event, torch.cuda.Event]:
    """Two events that time what lies between them."""
    return torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)


def elapsed_ns(start: torch.cuda.Event, end: torch.cuda.Event) -> int:
    """The time between two events."""
    return int(start.elapsed_time(end) * NS_PER_MS)


def main() -> None:
    """Measure, and write what rank 0 measured."""
    parser = option_parser()
    parser.add_argument("--write", type=Path, required=True)
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    training = build(options)
    truth = measure(training, options.record, options.steps)
    if os.environ.get("RANK", "0") == "0":
        options.write.write_text(json.dumps(truth, indent=1) + "\n")
    if dist.is_initialized():
        dist.destroy_process_group()


def measure(training: Training, run_dir: Path | None, steps: int) -> dict[str, Any]:
    """Undisturbed steps, a run, steps between events, isolated ones, and a light window of these; in nanoseconds."""
    for _ in range(_WARMUP):
        training.step()
    host_ns = _time_on_host(training.step)
    if run_dir is not None:
        _record(training, run_dir, steps)
        host_ns += _time_on_host(training.step)
    waits = Waits(training.model) if isinstance(training.model, DistributedDataParallel) else None
    training.step()
    device_ns, device_wait_ns, distance_ns = _time_on_device(training.step, waits)
    isolated = [_time_isolated(training, waits) for _ in range(_ISOLATED)]
    windows = [_profile_isolated(training, waits) for _ in range(_IN_WINDOW)]
    return {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "host_ns": host_ns,
        "device_ns": device_ns,
        "device_wait_ns": device_wait_ns,
        "distance_ns": distance_ns,
        "isolated_ns": [span for span, _ in isolated],
        "isolated_wait_ns": [wait for _, wait in isolated],
        "isolated_busy_ns": [busy for busy, _ in windows],
        "isolated_window_ns": [window for _, window in windows],
    }


def _record(training: Training, run_dir: Path, steps: int) -> None:
    """Let perfscope capture so many steps, and end."""
    hooks.attach(str(run_dir), steps=_PROFILED)
    for _ in range(steps):
        training.step()
    capture = PROCESS.capture
    assert capture is not None
    capture.finish()
    capture.dead = True


def _time_on_host(step: Callable[[], None]) -> list[int]:
    """The time of each step on the host, where the last one ends when the device is done."""
    torch.cuda.synchronize()
    moments_ns = [time.monotonic_ns()]
    for _ in range(_UNDISTURBED):
        step()
        moments_ns.append(time.monotonic_ns())
    torch.cuda.synchronize()
    moments_ns[-1] = time.monotonic_ns()
    return [after - before for before, after in pairwise(moments_ns)]


def _time_on_device(step: Callable[[], None], waits: Waits | None) -> tuple[list[int], list[int], list[int]]:
    """The time of each step between its events, how long it waited for reductions, and from one step to the next."""
    torch.cuda.synchronize()
    if waits is not None:
        waits.take_ns()
    events = []
    for _ in range(_UNDISTURBED):
        before, after = make_events()
        before.record()
        step()
        after.record()
        events.append((before, after))
    torch.cuda.synchronize()
    spans_ns = [elapsed_ns(*pair) for pair in events]
    distances_ns = [elapsed_ns(before, following) for (before, _), (following, _) in pairwise(events)]
    return spans_ns, waits.take_ns() if waits else [0] * _UNDISTURBED, distances_ns


def _time_isolated(training: Training, waits: Waits | None) -> tuple[int, int]:
    """The time between events around the kernels of a step that the host launched before the first of them ran.

    And how long they waited for reductions. All ranks begin together, so that these waits are short.
    """
    before, after = make_events()
    if waits is not None:
        dist.barrier()
    torch.cuda.synchronize()
    if waits is not None:
        waits.take_ns()
    torch.cuda._sleep(_SPIN_CYCLES)  # noqa: SLF001 - torch has no public kernel that only waits
    before.record()
    training.step()
    after.record()
    torch.cuda.synchronize()
    return elapsed_ns(before, after), sum(waits.take_ns()) if waits else 0


def _profile_isolated(training: Training, waits: Waits | None) -> tuple[int, int]:
    """How long the kernels of an isolated step ran, and from the first one to the last one without waits."""
    with torch.profiler.profile(activities=[ProfilerActivity.CUDA]) as profiler:
        _, wait_ns = _time_isolated(training, waits)
    with TemporaryDirectory() as folder:
        trace = Path(folder) / "isolated.json"
        profiler.export_chrome_trace(str(trace))
        busy_ns, window_ns = add_up(json.loads(trace.read_text())["traceEvents"])
        return busy_ns, window_ns - wait_ns


def add_up(events: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """How long kernels, copies and fills ran, and from the first one to the last one, behind the kernel that spins.

    Without those of NCCL, which run beside the others or while these wait.
    """
    spins = [float(event["ts"]) for event in events if event.get("cat") == "kernel" and _SPIN in event["name"]]
    spans = sorted(
        (round(float(event["ts"]) * NS_PER_US), round((float(event["ts"]) + float(event["dur"])) * NS_PER_US))
        for event in events
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
        and float(event["ts"]) > max(spins, default=-1.0)
        and _NCCL not in event["name"]
    )
    busy, reach = 0, spans[0][0]
    for start, end in spans:
        busy += max(0, end - max(start, reach))
        reach = max(reach, end)
    return busy, reach - spans[0][0]


if __name__ == "__main__":
    main()
