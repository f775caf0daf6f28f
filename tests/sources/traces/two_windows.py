"""A training of which two windows are profiled: with operators, which slows the host, and light.

The host launches kernels from two threads on two streams; what every kernel belongs to is known from the program, not
from a trace.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.sources.traces.making import AUTOGRAD, MAIN, PROCESS, Event, call, distributed, kernel, span, step, write

EDGE = "cudaDeviceGetStreamPriorityRange"
BASE_NS = 1_700_000_000_000_000_000
COMMUNICATION_STREAM = 20


@dataclass(frozen=True)
class Launch:
    """One launch of a program: the operator, the kernel, and where it runs."""

    operator: str
    kernel: str
    stream: int = 7
    thread: int = MAIN
    is_collective: bool = False


def program(layers: int, *extra: Launch) -> list[Launch]:
    """A training step: forward, backward on a thread of its own with a reduction after each layer, optimizer."""
    forward = [Launch(f"aten::mm_{layer}", f"gemm{layer % 2}") for layer in range(layers)]
    backward = [
        launch
        for layer in reversed(range(layers))
        for launch in (
            Launch(f"MmBackward_{layer}", "gemm_backward", thread=AUTOGRAD),
            Launch(
                f"nccl:all_reduce_{layer}",
                "ncclDevKernel_AllReduce_Sum_f32()",
                COMMUNICATION_STREAM,
                AUTOGRAD,
                is_collective=True,
            ),
        )
    ]
    return [*forward, *backward, *extra, Launch("Optimizer.step", "multi_tensor_apply")]


@dataclass
class Window:
    """One profiled window.

    Attributes:
        events: The events of its trace.
        edges: When its steps began, and the last one ended, in nanoseconds of the trace.
        operator_of: The operator that launched each kernel, by its correlation.
    """

    events: list[Event]
    edges: list[int]
    operator_of: dict[int, str]


def run_window(
    steps: Sequence[Sequence[Launch]],
    *,
    first: int,
    light: bool,
    seed: int = 0,
    begin: int = 10_000,
    marks: bool = True,
) -> Window:
    """Run some steps as the profiler sees them; a host that records operators takes several times as long."""
    draw = random.Random(seed + light)
    now, correlation = begin, 1000 * (1 + light)
    free_at = {7: begin, COMMUNICATION_STREAM: begin}
    window = Window([], [], {})
    for number, launches in enumerate(steps, first):
        began = now
        window.edges.append(now)
        if light and marks:
            window.events.append(call(EDGE, now, now + 2, launch=correlation))
            correlation += 1
        elif not light:
            window.events.append(span("user_annotation", "enumerate(DataLoader)", now + 5, now + 45))
        now += 10 if light else 60
        for sequence, launch in enumerate(launches):
            now += draw.randint(20, 60) * (1 if light else 4)
            correlation += 1
            args = {"External id": correlation} if not light else {}
            collective: dict[str, Any] = {}
            if launch.is_collective and not light:
                collective = {
                    "Collective name": "allreduce", "Process Group Name": "0", "Group size": 2, "dtype": "Float",
                    "In msg nelems": 64, "Out msg nelems": 64, "Seq": 100 * number + sequence,
                }  # fmt: skip
            called, returned = now + (3 if light else 12), now + (9 if light else 20)
            started = max(free_at[launch.stream], returned + 4)
            ended = started + draw.randint(15, 40)
            free_at[launch.stream] = ended
            if not light:
                window.events.append(span("cpu_op", launch.operator, now, returned + 7, tid=launch.thread, args=args))
            window.events.append(call("cudaLaunchKernel", called, returned, launch=correlation, tid=launch.thread))
            window.events.append(
                kernel(launch.kernel, started, ended, launch=correlation, stream=launch.stream, **args, **collective)
            )
            window.operator_of[correlation] = launch.operator
            now = returned + (1 if light else 9)
        now += 30
        if not light:
            window.events.append(step(number, began, now - 5))
    window.edges.append(now)
    if light and marks:
        window.events.append(call(EDGE, now, now + 2, launch=correlation + 1))
    return window


def write_window(
    folder: Path, window: Window, *, first: int, light: bool, rank: int = 0, world: int = 1, pid: int = PROCESS
) -> Path:
    """Write its trace as the hooks do, with their metadata."""
    path = folder / "light" if light else folder
    path.mkdir(parents=True, exist_ok=True)
    metadata = {
        "schema": "perfscope/run/1", "rank": rank, "world_size": world, "first_step": first, "host": "node", "pid": pid,
        "activities": "light" if light else "operators",
        "edges_ns": [BASE_NS + edge + 4 for edge in window.edges] if light else [],
    }  # fmt: skip
    groups = [{"pg_name": "0", "pg_desc": "default_pg", "pg_size": world, "ranks": list(range(world))}]
    head = {**distributed(rank, world, groups), "perfscope": metadata, "baseTimeNanoseconds": BASE_NS}
    return write(path / f"node_{pid}.{first}.pt.trace.json.gz", window.events, **head)


def write_pair(
    folder: Path,
    operators: Sequence[Sequence[Launch]],
    light: Sequence[Sequence[Launch]],
    *,
    rank: int = 0,
    world: int = 1,
    seed: int = 0,
) -> tuple[Path, Path]:
    """Write both windows of a process: steps 4 and on with operators, and a light window behind them."""
    first_light = 6 + len(operators)
    windows = (
        run_window(operators, first=4, light=False, seed=seed),
        run_window(light, first=first_light, light=True, seed=seed, begin=1_000_000),
    )
    pid = PROCESS + rank
    return (
        write_window(folder, windows[0], first=4, light=False, rank=rank, world=world, pid=pid),
        write_window(folder, windows[1], first=first_light, light=True, rank=rank, world=world, pid=pid),
    )
