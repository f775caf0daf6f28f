"""What perfscope costs whole trainings: processes below ``perfscope profile`` and bare ones in turn.

Each process trains a GPT twice: with a batch so small that the host cannot launch kernels fast enough, and with one so
large that the host waits for the device. In both parts a window is profiled. Bare and captured processes alternate in
the order ABBA; the next process imports torch while one trains.

- After the window: the median step behind it against the same steps of the bare process, the limit is 1 %. Both are
  divided by the process's own steps ahead of the window, because clocks differ from process to process.
- Hooks: their time in a step outside windows, as the run records it; the limits are 0.3 % and 50 us.
- In the window: its steps against those of the bare process, and the time that its end stalls training.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.training_loop import Size, Training
from perfscope.constants import MS_PER_S, NS_PER_S, NS_PER_US
from perfscope.sources.runs.run import read_run
from perfscope.tables.run import Run
from perfscope.workloads.gpt import GptConfig

WINDOW = 3  # steps
_SETTLING = 3  # steps after a change of the batch that are left out
_LIGHT = 12  # steps after a window that are left out: a light window is among them


@dataclass(frozen=True)
class Part:
    """One kind of training in a process.

    Attributes:
        kind: What bounds its steps.
        batch: Sequences in a batch.
        first: Its first step.
        before: Steps before the window, the window's first step apart; and ``after`` those behind it.
    """

    kind: str
    batch: int
    first: int
    before: int
    after: int

    @property
    def window(self) -> range:
        """The steps of its window."""
        begin = self.first + self.before
        return range(begin, begin + WINDOW)

    @property
    def end(self) -> int:
        """The step behind its last one."""
        return self.window.stop + self.after


@dataclass(frozen=True)
class Plan:
    """What each process trains."""

    model: GptConfig
    host: Part
    device: Part

    @property
    def windows(self) -> str:
        """The windows for ``--steps``."""
        return ",".join(f"{part.window.start}-{part.window.stop - 1}" for part in (self.host, self.device))


def choose_plan(*, small: bool) -> Plan:
    """The training for a GPU, or one that a CPU trains in seconds."""
    before, after = (10, 24) if small else (60, 130)
    host = Part("host-bound", 1, first=1, before=before, after=after)
    if small:
        return Plan(GptConfig(2, 32, 2, 64, 17), host, Part("device-bound", 8, host.end, before, after))
    model = GptConfig(layers=12, hidden=768, heads=12, vocabulary=8192, seq_len=513)
    return Plan(model, host, Part("device-bound", 40, host.end, before=25, after=50))


def train(plan: Plan) -> list[float]:
    """Train as planned; seconds of each step."""
    training = Training(Size(plan.model, plan.host.batch))
    times = [training.step() for _ in range(plan.host.first, plan.host.end)]
    training.load(plan.device.batch)
    return times + [training.step() for _ in range(plan.device.first, plan.device.end)]


def run_child(*, small: bool) -> None:
    """A process that is measured: it trains when it is told to, and prints the seconds of its steps."""
    torch.set_num_threads(1)
    sys.stdin.readline()
    print(json.dumps(train(choose_plan(small=small))))


class Process:
    """A training process, which waits to begin."""

    def __init__(self, plan: Plan, run_dir: Path | None, *, small: bool) -> None:
        words = [sys.executable, "-m", "benchmarks.overhead", "--child", "whole", *(["--small"] if small else [])]
        if run_dir is not None:
            profile = ["profile", "--exec", "--run-dir", str(run_dir), "--steps", plan.windows, "--"]
            words = [sys.executable, "-m", "perfscope", *profile, *words]
        self.run_dir = run_dir
        self._process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def measure(self) -> list[float]:
        """Let it train; the seconds of its steps.

        Raises:
            RuntimeError: It failed.
        """
        output, errors = self._process.communicate("begin\n")
        if self._process.returncode != 0:
            raise RuntimeError(errors)
        times: list[float] = json.loads(output.splitlines()[-1])
        return times


def measure(*, small: bool, rounds: int | None = None) -> dict[str, Any]:
    """Processes in the order ABBA, as the JSON that the report is written from: one entry a kind of training.

    Args:
        small: Whether a CPU trains, in seconds.
        rounds: Processes of each kind, at least two.
    """
    plan = choose_plan(small=small)
    rounds = rounds or (2 if small else 6)
    with tempfile.TemporaryDirectory() as folder:
        order = [index % 4 in (1, 2) for index in range(2 * rounds)]
        run_dirs = [Path(folder) / f"run{index}" if captured else None for index, captured in enumerate(order)]
        waiting = Process(plan, run_dirs[0], small=small)
        times: dict[bool, list[list[float]]] = {True: [], False: []}
        for index, captured in enumerate(order):
            process = waiting
            if index + 1 < len(order):
                waiting = Process(plan, run_dirs[index + 1], small=small)
            times[captured].append(process.measure())
        runs = [read_run(run_dir) for run_dir in run_dirs if run_dir is not None]
    return {part.kind: summarize(part, times[True], times[False], runs) for part in (plan.host, plan.device)}


def summarize(
    part: Part, ours: Sequence[Sequence[float]], bare: Sequence[Sequence[float]], runs: Sequence[Run]
) -> dict[str, Any]:
    """The figures of one kind of training; each sequence has the steps of one process, from step 1."""
    before = range(part.first + _SETTLING, part.window.start - 1)  # the last one is the window's warm-up
    after = range(part.window.stop + _LIGHT, part.end)
    our_ratios = [_median(times, after) / _median(times, before) for times in ours]
    bare_ratios = [_median(times, after) / _median(times, before) for times in bare]
    hooks_us = np.concatenate([_hook_times_us(run, before) + _hook_times_us(run, after) for run in runs])
    ends = [end for run in runs for end in run.windows if end.first_step == part.window.start]
    bare_ms = MS_PER_S * statistics.median(_median(times, after) for times in bare)
    return {
        "rounds": len(ours),
        "before_ms": MS_PER_S * statistics.median(_median(times, before) for times in ours),
        "bare_before_ms": MS_PER_S * statistics.median(_median(times, before) for times in bare),
        "after_ms": MS_PER_S * statistics.median(_median(times, after) for times in ours),
        "bare_after_ms": bare_ms,
        "change_percent": 100 * (statistics.median(our_ratios) / statistics.median(bare_ratios) - 1),
        "error_percent": 100 * math.hypot(_median_error(our_ratios), _median_error(bare_ratios)),
        "hooks_us": float(np.median(hooks_us)),
        "hooks_mean_us": float(np.mean(hooks_us)),
        # the last step of a window contains its end
        "window_ms": MS_PER_S * statistics.median(_median(times, part.window[:-1]) for times in ours),
        "stall_ms": statistics.median(
            (end.start_ns + end.stop_ns + end.export_ns + (end.release_ns or 0)) * MS_PER_S / NS_PER_S for end in ends
        ),
        "detached": all(end.detached for end in ends) if ends and ends[0].detached is not None else None,
    }


def _median(times: Sequence[float], steps: range) -> float:
    return statistics.median(times[step - 1] for step in steps)


def _median_error(values: Sequence[float]) -> float:
    """The standard error of a median, were the values normal."""
    return 1.2533 * statistics.stdev(values) / math.sqrt(len(values))


def _hook_times_us(run: Run, steps: range) -> list[float]:
    (table,) = run.steps
    chosen = table.steady & (table.step >= steps.start) & (table.step < steps.stop)
    return [float(time_ns) / NS_PER_US for time_ns in table.hook_ns[chosen].compressed()]
