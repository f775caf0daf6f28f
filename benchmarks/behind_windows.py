"""Whether a step behind a window takes what it takes without perfscope: pairs of processes on the same cores.

Steps that the host bounds differ by ten percent from process to process, and drift by as much within seconds. What a
window leaves behind would be one or two percent. Here each captured process has a twin without perfscope on the same
cores, and the two take turns by blocks of a fifth of a second, so that the drift is in both. What the processes differ
by is in the blocks ahead of the window, too, and cancels out: a pair says by how much more the captured process takes
of its twin's time behind the window than ahead of it. Many pairs run at once, each on cores of its own.

In other pairs the window is a bare ``torch.profiler.profile``, which leaves CUPTI attached: they say what the method
sees where something stays.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.process_pairs import Process, Role, choose_places, say
from benchmarks.training_loop import Size, Training
from perfscope.constants import MS_PER_S
from perfscope.sources.runs.run import read_run
from perfscope.tables.run import Window
from perfscope.workloads.gpt import GptConfig

_UNTIMED = 2  # the first steps of a block find the caches full of the other process's work
_PHASE = 24  # steps from the one that a window follows soon to the first block behind it
_LEAD = 4  # the window begins so many steps later
_WINDOW = 3
_COMPRESSION_S = 2.0  # how long a trace is written beside training, at most


@dataclass(frozen=True)
class Plan:
    """What each process trains.

    Attributes:
        model: A model whose kernels are much shorter than their launches.
        warmup: Steps ahead of all blocks.
        blocks: Blocks ahead of the window, and as many behind it.
        steps: Steps of a block.
        waves, pairs: Pairs that run at once, and how often; the last pair of each wave is one of bare profilers.
    """

    model: GptConfig
    warmup: int
    blocks: int
    steps: int
    waves: int
    pairs: int

    @property
    def window(self) -> str:
        """The window for ``--steps``."""
        first = self.warmup + self.blocks * self.steps + _LEAD
        return f"{first}-{first + _WINDOW - 1}"


def choose_plan(*, small: bool) -> Plan:
    """What decides on a host with 32 cores and two GPUs, or what a CPU does in half a minute."""
    if small:
        return Plan(GptConfig(1, 16, 1, 16, 9), warmup=5, blocks=2, steps=5, waves=1, pairs=2)
    cores = len(os.sched_getaffinity(0))
    model = GptConfig(layers=4, hidden=64, heads=2, vocabulary=256, seq_len=33)
    return Plan(model, warmup=30, blocks=32, steps=25, waves=2, pairs=max(2, min(12, 3 * cores // 8)))


@dataclass(frozen=True)
class Pair:
    """Two processes on the same cores, whose blocks alternate: seconds of each block's median step.

    Attributes:
        ours: Blocks of the process that has a window, ``bare`` those of its twin: ahead of the window.
        ours_after, bare_after: The same behind it.
        is_captured: Whether the window was one of perfscope.
    """

    ours: Sequence[float]
    bare: Sequence[float]
    ours_after: Sequence[float]
    bare_after: Sequence[float]
    is_captured: bool

    @property
    def change(self) -> float:
        """The logarithm of the factor by which the window changed the steps behind it."""
        return _lead(self.ours_after, self.bare_after) - _lead(self.ours, self.bare)


def _lead(ours: Sequence[float], bare: Sequence[float]) -> float:
    """The logarithm of ours over the twin's, block by block, in the median."""
    return statistics.median(math.log(block / twin) for block, twin in zip(ours, bare, strict=True))


def run_child(*, small: bool) -> None:
    """A process of a pair: it trains as many steps as each line of its input says, or lets a profiler run in them."""
    torch.set_num_threads(1)
    training = Training(Size(choose_plan(small=small).model, 2))
    say()
    for line in sys.stdin:
        count, kind = line.split()
        if kind == "profiled":
            training.step()
            with torch.profiler.profile():
                times = [training.step() for _ in range(int(count) - 1)]
        else:
            times = [training.step() for _ in range(int(count))]
        say(times)


def _alternate(plan: Plan, pair: tuple[Process, Process]) -> tuple[list[float], list[float]]:
    """Blocks of both processes in the order ABBA: the median step of each."""
    medians: tuple[list[float], list[float]] = [], []
    for block in range(plan.blocks):
        for side in (0, 1) if block % 2 else (1, 0):
            medians[side].append(statistics.median(pair[side].train(plan.steps, "plain")[_UNTIMED:]))
    return medians


def _measure_pair(plan: Plan, pair: tuple[Process, Process], *, is_captured: bool) -> Pair:
    for process in pair:
        process.read()
        process.train(plan.warmup, "plain")
    ours, bare = _alternate(plan, pair)
    pair[0].train(_PHASE, "plain" if is_captured else "profiled")
    pair[1].train(_PHASE, "plain")
    time.sleep(_COMPRESSION_S)
    return Pair(ours, bare, *_alternate(plan, pair), is_captured)


def _measure_wave(plan: Plan, folder: Path, *, small: bool) -> list[Pair]:
    kinds = [index < plan.pairs - 1 for index in range(plan.pairs)]
    with ExitStack() as stack:
        pairs: list[tuple[Process, Process]] = []
        for place, is_captured in zip(choose_places(plan.pairs), kinds, strict=True):
            name = folder / str(len(pairs))
            run_dir = name if is_captured else None
            ours = Process(Role("behind", plan.window, run_dir, name.with_suffix(".ours"), small), place)
            stack.callback(ours.end)
            bare = Process(Role("behind", plan.window, None, name.with_suffix(".bare"), small), place)
            stack.callback(bare.end)
            pairs.append((ours, bare))
        pool = stack.enter_context(ThreadPoolExecutor(len(pairs)))
        running = [
            pool.submit(_measure_pair, plan, pair, is_captured=is_captured)
            for pair, is_captured in zip(pairs, kinds, strict=True)
        ]
        measured = [future.result() for future in running]
    for index, is_captured in enumerate(kinds):
        if is_captured and not all(window.detached is not False for window in _windows_of(folder / str(index))):
            raise RuntimeError("a window left CUPTI attached")
    return measured


def _windows_of(run_dir: Path) -> Sequence[Window]:
    windows = read_run(run_dir).windows
    if not windows:
        raise RuntimeError("a captured process recorded no window")
    return windows


def measure(*, small: bool, waves: int | None = None) -> dict[str, Any]:
    """All pairs, as the JSON that the report is written from; ``waves`` in place of the plan's."""
    plan = choose_plan(small=small)
    plan = plan if waves is None else replace(plan, waves=waves)
    pairs: list[Pair] = []
    with tempfile.TemporaryDirectory() as folder:
        for wave in range(plan.waves):
            place = Path(folder) / str(wave)
            place.mkdir()
            pairs += _measure_wave(plan, place, small=small)
    return summarize(pairs, 2 * plan.blocks * (plan.steps - _UNTIMED))


def summarize(pairs: Sequence[Pair], steps: int) -> dict[str, Any]:
    """The figures; ``steps`` are those that count of each process."""
    captured = [pair for pair in pairs if pair.is_captured]
    control = [pair for pair in pairs if not pair.is_captured]
    return {
        "pairs": len(captured),
        "steps": steps,
        "before_ms": _median_ms(pair.ours for pair in captured),
        "bare_before_ms": _median_ms(pair.bare for pair in captured),
        "after_ms": _median_ms(pair.ours_after for pair in captured),
        "bare_after_ms": _median_ms(pair.bare_after for pair in captured),
        **_change([pair.change for pair in captured]),
        "changes_percent": [100 * math.expm1(pair.change) for pair in captured],
        "profiler": {"pairs": len(control), **_change([pair.change for pair in control])} if control else None,
    }


def _median_ms(blocks: Iterator[Sequence[float]]) -> float:
    return MS_PER_S * statistics.median(statistics.median(values) for values in blocks)


def _change(changes: Sequence[float]) -> dict[str, float | None]:
    """The mean over the pairs, and its standard error by their spread; absent of a single pair."""
    error = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else None
    return {
        "change_percent": 100 * math.expm1(statistics.mean(changes)),
        "error_percent": None if error is None else 100 * error,
    }
