"""What marks of modules cost a step in a window: blocks of steps with ``--modules`` and without, in one open profiler.

Run: ``python -m benchmarks.marked_steps [--json FILE] [--rounds N] [--small] [CASE ...]``, on a GPU where there is one.

Each window is a ``torch.profiler`` with operators, inputs and the device, as ``perfscope profile --modules --shapes``
opens it. In it blocks of steps take turns in the order ABBA: one with marks, one without. The first step of a block is
not counted: the change itself empties the caches of Python's types, and names of modules are collected in it. A round
is a window, whose events are thrown away. It gives one ratio of medians; what is printed is the median of all rounds,
with its standard error.

The forward pass, which has all marks, is timed by itself, too: it differs less from step to step than a whole step.
Steps that the host bounds differ by a seventh all the same. So marks are timed by themselves, in further windows: by
clocks around the marked call of each module and inside of it, less what the same clocks say without marks. These
include that code and objects of a mark are in no cache when it is made, and not what its trace costs later.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from torch import nn
from torch.nn import functional

from perfscope.constants import MS_PER_S, NS_PER_S
from perfscope.hooks.profiler.module_ranges import ModuleRanges
from perfscope.workloads.gpt import Gpt, GptConfig
from perfscope.workloads.tasks.resnet import resnet50

BLOCK = 6  # steps; the first of them is not counted
ORDERS = ((True, False, False, True), (False, True, True, False))  # blocks of windows in turn: with marks or without
_WARMUP = 8


class Step(NamedTuple):
    """Seconds of one step.

    Attributes:
        step: All of it, with the wait for the device.
        forward: The forward pass on the host.
        around: What clocks around the calls of modules say more than clocks inside of them.
    """

    step: float
    forward: float
    around: float


@dataclass(frozen=True)
class Case:
    """One training.

    Attributes:
        name: What it is.
        model: Makes the model; that of tokens returns its loss.
        shape: Of a batch.
        tokens: Size of the vocabulary; 0 where a batch is images.
        rounds: Windows.
    """

    name: str
    model: Any
    shape: tuple[int, ...]
    tokens: int
    rounds: int


@dataclass(frozen=True)
class Cost:
    """What marks cost one training.

    Attributes:
        case: Its name.
        marks: Marks in a step.
        rounds: Windows.
        step_ms: Median step without marks in a window.
        step_percent, forward_percent: By how much a step and its forward pass are longer with marks, of the step.
        marks_percent: What clocks around the marks say, of the step.
        mark_us: The same of one mark.
        step_error, forward_error, marks_error: Standard errors of the shares.
    """

    case: str
    marks: int
    rounds: int
    step_ms: float
    step_percent: float
    step_error: float
    forward_percent: float
    forward_error: float
    marks_percent: float
    marks_error: float
    mark_us: float


def make_resnet() -> Any:  # noqa: ANN401 - a module
    """ResNet-50 for ten classes."""
    return nn.Sequential(*resnet50(channels=3))


def make_gpt(layers: int, hidden: int, heads: int, positions: int) -> Any:  # noqa: ANN401 - a function
    """What makes a GPT."""
    return lambda: Gpt(GptConfig(layers, hidden, heads, 8192, positions + 1))


def choose_cases(*, small: bool) -> list[Case]:
    """Host-bound and GPU-bound trainings, or what a CPU trains in seconds."""
    if small:
        return [
            Case("small GPT", make_gpt(1, 16, 1, 8), (1, 9), 8192, 2),
            Case("small ResNet-50", make_resnet, (2, 3, 32, 32), 0, 2),
        ]
    return [
        Case("GPT of 12 layers of width 512, host-bound", make_gpt(12, 512, 8, 256), (1, 257), 8192, 16),
        Case("GPT of 8 layers of width 2048, GPU-bound", make_gpt(8, 2048, 16, 1024), (8, 1025), 8192, 6),
        Case("ResNet-50, 4 images of 64 x 64, host-bound", make_resnet, (4, 3, 64, 64), 0, 12),
    ]


class Clocks:
    """Clocks around the calls of modules and inside of them; marks are made between the two.

    Attributes:
        around_ns: What the outer clocks counted more than the inner ones, since it was set to 0.
    """

    def __init__(self) -> None:
        self.around_ns = 0
        self._call = nn.Module.__call__

    def start_inside(self) -> None:
        """Put the inner clock around what torch calls."""
        call, clocks, now = self._call, self, time.perf_counter_ns

        def call_inside(module: Any, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401 - as torch has it
            began = now()
            try:
                return call(module, *inputs, **options)
            finally:
                clocks.around_ns -= now() - began

        nn.Module.__call__ = call_inside

    def start_around(self) -> None:
        """Put the outer clock around what is there by now."""
        call, clocks, now = nn.Module.__call__, self, time.perf_counter_ns

        def call_around(module: Any, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401 - as torch has it
            began = now()
            try:
                return call(module, *inputs, **options)
            finally:
                clocks.around_ns += now() - began

        nn.Module.__call__ = call_around

    def stop(self) -> None:
        """Take both away, and what is between them."""
        nn.Module.__call__ = self._call


class Training:
    """The loop of a case."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = case.model().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        batch = torch.randint(case.tokens, case.shape) if case.tokens else torch.randn(case.shape)
        self.batch = batch.to(self.device)
        self.clocks = Clocks()
        self.steps = 0
        self.target = None if case.tokens else torch.zeros(len(batch), dtype=torch.long, device=self.device)

    def step(self) -> Step:
        """Train one step, inside a range as the profiler's schedule makes one."""
        self.steps += 1
        self.clocks.around_ns = 0
        began = time.perf_counter()
        with torch.profiler.record_function(f"ProfilerStep#{self.steps}"):
            self.optimizer.zero_grad()
            with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
                output = self.model(self.batch)
                loss = output if self.target is None else functional.cross_entropy(output.float(), self.target)
            forward = time.perf_counter() - began
            loss.backward()
            self.optimizer.step()
            loss.item()
        return Step(time.perf_counter() - began, forward, self.clocks.around_ns / NS_PER_S)


def open_profiler() -> torch.profiler.profile:
    """A profiler with the options of a window."""
    profiler = torch.profiler.profile(record_shapes=True, with_modules=True)
    profiler.start()
    return profiler


def close_profiler() -> None:
    """Stop what records, and make no events of Python of it, which would take longer than all steps."""
    torch.autograd._disable_profiler()  # noqa: SLF001 - as the hooks do


def measure_window(
    training: Training, ranges: ModuleRanges, order: Sequence[bool], *, clocked: bool
) -> dict[bool, list[Step]]:
    """The counted steps of one window, with marks and without; with clocks around marks or without."""
    steps: dict[bool, list[Step]] = {True: [], False: []}
    open_profiler()
    training.step()
    for is_marked in order:
        if clocked:
            training.clocks.start_inside()
        if is_marked:
            ranges.start()
        if clocked:
            training.clocks.start_around()
        steps[is_marked] += [training.step() for _ in range(BLOCK)][1:]
        if clocked:
            training.clocks.stop()
        if is_marked:
            ranges.stop()
    close_profiler()
    return steps


def count_marks(training: Training) -> int:
    """Marks in a step: calls of modules."""
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    with torch.nn.modules.module.register_module_forward_pre_hook(count):
        training.step()
    return calls


def middle(values: Sequence[float]) -> tuple[float, float]:
    """The median, and its standard error, were the values normal."""
    error = 1.2533 * statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return statistics.median(values), error


def compare(windows: Sequence[dict[bool, list[Step]]], column: int) -> tuple[float, float]:
    """By how much marked steps are longer by one figure, in percent of steps without marks; with its error."""
    ratios = []
    for window in windows:
        marked, bare = (statistics.median(step[column] for step in window[kind]) for kind in (True, False))
        ratios.append(100 * (marked - bare) / statistics.median(step.step for step in window[False]))
    return middle(ratios)


def measure(case: Case, rounds: int | None) -> Cost:
    """Train a case in windows: first with clocks around marks, in half as many rounds."""
    training, ranges = Training(case), ModuleRanges()
    marks = [count_marks(training) for _ in range(_WARMUP)][-1]
    rounds = rounds or case.rounds
    clocked, windows = (
        [measure_window(training, ranges, ORDERS[window % 2], clocked=with_clocks) for window in range(count)]
        for with_clocks, count in ((True, max(2, rounds // 2)), (False, rounds))
    )
    step_ms, clocked_ms = (
        MS_PER_S * statistics.median(step.step for window in part for step in window[False])
        for part in (windows, clocked)
    )
    of_marks = compare(clocked, 2)
    mark_us = of_marks[0] / 100 * clocked_ms * 1000 / marks
    return Cost(case.name, marks, len(windows), step_ms, *compare(windows, 0), *compare(windows, 1), *of_marks, mark_us)


def main() -> None:
    """Print a row a case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", help="Numbers of the cases, from 1; all of them by default.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cases = choose_cases(small=options.small or not torch.cuda.is_available())
    chosen = [cases[int(number) - 1] for number in options.cases] or cases
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    machine = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
    costs: list[Cost] = []
    for case in chosen:
        costs.append(measure(case, options.rounds))
        print(asdict(costs[-1]), flush=True)
        if options.json:  # written as it comes
            document = {"machine": machine, "costs": [asdict(cost) for cost in costs]}
            options.json.write_text(json.dumps(document, indent=2) + "\n")
    headings = ("", "marks", "rounds", "step (ms)", "step %", "error", "forward %", "error", "marks %", "error", "us")
    print(tabulate([astuple(cost) for cost in costs], headings, tablefmt="pipe", floatfmt=".2f"))


if __name__ == "__main__":
    main()
