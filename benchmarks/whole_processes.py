"""What perfscope costs whole trainings: processes below ``perfscope profile`` and bare ones, in pairs.

Each process trains a GPT twice: with a batch so small that the host cannot launch kernels fast enough, and with one so
large that the host waits for the device. In both parts a window is profiled. A captured process and a bare one take
turns on the same cores, two steps each, so that what cores and device do by chance is in both; two pairs at once where
the host bounds the steps, and one alone where the device does. After that the twin rests for some dozens of steps.

- After the window: by how much more of its twin's time the captured process takes after the window than before it. The
  limit is 1 %. A constant difference of the two cancels out.
- Hooks: their time in the steps during which the twin rests, as the run records it; the limits are 0.3 % and 50 us. The
  thread that writes records has its turns by the clock: with a running twin twice as many would fall on a step.
- In the window: its steps against those of the twin, and the time that its start and end stall training.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.process_pairs import Place, Process, Role, choose_places, say
from benchmarks.training_loop import Size, Training
from perfscope.constants import MS_PER_S, NS_PER_S, NS_PER_US
from perfscope.sources.runs.run import read_run
from perfscope.tables.run import Run
from perfscope.workloads.gpt import GptConfig

WINDOW = 3  # steps
_SETTLING = 3  # steps after a change of the batch that are left out
_LIGHT = 12  # steps after a window that are left out: a light window is among them
_TURN = 2  # steps
_BLOCK = 20  # steps whose lead is written
_AT_ONCE = 2  # pairs
Times = tuple[list[float], list[float]]


@dataclass(frozen=True)
class Part:
    """One kind of training in a process.

    Attributes:
        kind: What bounds its steps.
        batch: Sequences in a batch.
        first: Its first step.
        before: Steps before the window, the window's first step apart.
        after: Steps behind the window, in turn with the twin.
        rest: Steps after those, during which the twin rests.
    """

    kind: str
    batch: int
    first: int
    before: int
    after: int
    rest: int

    @property
    def window(self) -> range:
        """The steps of its window."""
        begin = self.first + self.before
        return range(begin, begin + WINDOW)

    @property
    def alone(self) -> range:
        """The steps during which the twin rests."""
        begin = self.window.stop + self.after
        return range(begin, begin + self.rest)


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
    if small:
        host = Part("host-bound", 1, first=1, before=10, after=24, rest=10)
        device = Part("device-bound", 8, host.alone.stop, before=10, after=24, rest=10)
        return Plan(GptConfig(2, 32, 2, 64, 17), host, device)
    host = Part("host-bound", 1, first=1, before=220, after=412, rest=100)
    device = Part("device-bound", 40, host.alone.stop, before=20, after=40, rest=40)
    return Plan(GptConfig(layers=12, hidden=768, heads=12, vocabulary=8192, seq_len=513), host, device)


def run_child(*, small: bool) -> None:
    """A process that is measured: it trains as many steps as each line of its input says, of the kind that it names."""
    torch.set_num_threads(1)
    plan = choose_plan(small=small)
    training, kind = Training(Size(plan.model, plan.host.batch)), plan.host.kind
    say()
    for line in sys.stdin:
        count, wanted = line.split()
        if wanted != kind:
            kind = wanted
            training.load(plan.device.batch)
        say([training.step() for _ in range(int(count))])


def _train_part(part: Part, pair: tuple[Process, Process]) -> tuple[list[float], list[float]]:
    """All steps of a part: turns in the order ABBA, and then those of the captured process alone."""
    times: tuple[list[float], list[float]] = [], []
    for turn, first in enumerate(range(part.first, part.alone.start, _TURN)):
        steps = min(_TURN, part.alone.start - first)
        for side in (0, 1) if turn % 2 else (1, 0):
            times[side].extend(pair[side].train(steps, part.kind))
    times[0].extend(pair[0].train(len(part.alone), part.kind))
    return times


class Wave:
    """Pairs that are started together, and wait to begin.

    Attributes:
        run_dirs: The runs of the captured processes.
    """

    def __init__(self, plan: Plan, folder: Path, places: Sequence[Place], *, small: bool) -> None:
        folder.mkdir()
        self._plan = plan
        self.run_dirs = [folder / str(index) for index in range(len(places))]
        self._pairs = [
            (
                Process(Role("whole", plan.windows, run_dir, run_dir.with_suffix(".ours"), small), place),
                Process(Role("whole", plan.windows, None, run_dir.with_suffix(".bare"), small), place),
            )
            for run_dir, place in zip(self.run_dirs, places, strict=True)
        ]

    def train_host(self) -> list[Times]:
        """The part that the host bounds, of all pairs at once."""
        for pair in self._pairs:
            for process in pair:
                process.read()
        with ThreadPoolExecutor(len(self._pairs)) as pool:
            return list(pool.map(lambda pair: _train_part(self._plan.host, pair), self._pairs))

    def train_device(self) -> list[Times]:
        """The part that the device bounds, pair by pair; the processes end behind it."""
        times = []
        for pair in self._pairs:
            times.append(_train_part(self._plan.device, pair))
            for process in pair:
                process.end()
        return times


def measure(*, small: bool, rounds: int | None = None) -> dict[str, Any]:
    """Pairs of processes, as the JSON that the report is written from: one entry a kind of training.

    Args:
        small: Whether a CPU trains, in seconds.
        rounds: Pairs, made up to whole waves.
    """
    plan = choose_plan(small=small)
    waves = -(-(rounds or (2 if small else 8)) // _AT_ONCE)
    places = choose_places(2 * _AT_ONCE)
    host: list[Times] = []
    device: list[Times] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = [Wave(plan, folder / "0", places[:_AT_ONCE], small=small)]
        for wave in range(waves):
            host += started[wave].train_host()
            if wave + 1 < waves:  # it starts on other cores while the device bounds the steps of this one
                other = places[:_AT_ONCE] if wave % 2 else places[_AT_ONCE:]
                started.append(Wave(plan, folder / str(wave + 1), other, small=small))
            device += started[wave].train_device()
        runs = [read_run(run_dir) for wave in started for run_dir in wave.run_dirs]
    return {part.kind: summarize(part, times, runs) for part, times in ((plan.host, host), (plan.device, device))}


def summarize(part: Part, pairs: Sequence[Times], runs: Sequence[Run]) -> dict[str, Any]:
    """The figures of one kind of training; a pair has its steps, of the captured process and of the twin."""
    before = range(part.first + _SETTLING, part.window.start - 1)  # the last one is the window's warm-up
    after = range(part.window.stop + _LIGHT, part.alone.start)
    changes = [_lead(part, pair, after) - _lead(part, pair, before) for pair in pairs]
    hooks_us = np.concatenate([_hook_times_us(run, part.alone) for run in runs])
    ends = [end for run in runs for end in run.windows if end.first_step == part.window.start]
    medians = {
        name: MS_PER_S * statistics.median(statistics.median(_choose(part, pair[side], steps)) for pair in pairs)
        for name, side, steps in (
            ("before_ms", 0, before),
            ("bare_before_ms", 1, before),
            ("after_ms", 0, after),
            ("bare_after_ms", 1, after),
            ("window_ms", 0, part.window[:-1]),  # its last step contains its end
        )
    }
    return {
        "rounds": len(pairs),
        **medians,
        "change_percent": 100 * math.expm1(statistics.mean(changes)),
        "error_percent": 100 * statistics.stdev(changes) / math.sqrt(len(changes)),
        "changes_percent": [100 * math.expm1(change) for change in changes],
        "leads_percent": [[_list_leads(part, pair, steps) for steps in (before, after)] for pair in pairs],
        "hooks_us": float(np.median(hooks_us)),
        "hooks_mean_us": float(np.mean(hooks_us)),
        "hook_steps": len(hooks_us),
        "stall_ms": statistics.median(
            (end.start_ns + end.stop_ns + end.export_ns + (end.release_ns or 0)) * MS_PER_S / NS_PER_S for end in ends
        ),
        "detached": all(end.detached for end in ends) if ends and ends[0].detached is not None else None,
    }


def _choose(part: Part, times: Sequence[float], steps: range) -> list[float]:
    return [times[step - part.first] for step in steps]


def _lead(part: Part, pair: Times, steps: range) -> float:
    """The logarithm of the captured process's time over its twin's, step by step, in the median."""
    ours, bare = (_choose(part, times, steps) for times in pair)
    return statistics.median(math.log(step / twin) for step, twin in zip(ours, bare, strict=True))


def _list_leads(part: Part, pair: Times, steps: range) -> list[float]:
    """The lead of each block of a few turns, in percent, so that one sees when it changed."""
    blocks = [steps[start : start + _BLOCK] for start in range(0, len(steps) - _BLOCK + 1, _BLOCK)]
    return [round(100 * _lead(part, pair, block), 2) for block in blocks]


def _hook_times_us(run: Run, steps: range) -> list[float]:
    (table,) = run.steps
    chosen = table.steady & (table.step >= steps.start) & (table.step < steps.stop)
    return [float(time_ns) / NS_PER_US for time_ns in table.hook_ns[chosen].compressed()]
