"""What marks of modules cost a step in a window: blocks of steps with ``--modules`` and without, in one open profiler.

Run: ``python -m benchmarks.marked_steps [--json FILE] [--rounds N] [--small] [CASE ...]``, on a GPU where there is one.

Each window is a ``torch.profiler`` with operators, inputs and the device, as ``perfscope profile --modules --shapes``
opens it. In it blocks of steps take turns in the order ABBA: one with marks, one without. The first step of a block is
not counted: the change itself empties the caches of Python's types, and names of modules are collected in it. A round
is a window, whose events are thrown away. It gives one ratio of medians; what is printed is the median of all rounds,
with its standard error.

The forward pass, which has all marks, is timed by itself, too, and the thread that trains by its processor time: both
differ less from step to step than a whole step does. All three are a share of the step without marks.
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

from perfscope.constants import MS_PER_S
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
        processor: Processor time of the thread that trains.
    """

    step: float
    forward: float
    processor: float


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
        step_percent, forward_percent, processor_percent: By how much a step, its forward pass, and the processor time
            of its thread are longer with marks, of the whole step or of all its processor time.
        step_error, forward_error, processor_error: Their standard errors.
    """

    case: str
    marks: int
    rounds: int
    step_ms: float
    step_percent: float
    step_error: float
    forward_percent: float
    forward_error: float
    processor_percent: float
    processor_error: float


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


class Training:
    """The loop of a case."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = case.model().to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        batch = torch.randint(case.tokens, case.shape) if case.tokens else torch.randn(case.shape)
        self.batch = batch.to(self.device)
        self.target = None if case.tokens else torch.zeros(len(batch), dtype=torch.long, device=self.device)

    def step(self) -> Step:
        """Train one step."""
        began, used = time.perf_counter(), time.thread_time()
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            output = self.model(self.batch)
            loss = output if self.target is None else functional.cross_entropy(output.float(), self.target)
        forward = time.perf_counter() - began
        loss.backward()
        self.optimizer.step()
        loss.item()
        return Step(time.perf_counter() - began, forward, time.thread_time() - used)


def open_profiler() -> torch.profiler.profile:
    """A profiler with the options of a window."""
    profiler = torch.profiler.profile(record_shapes=True, with_modules=True)
    profiler.start()
    return profiler


def close_profiler() -> None:
    """Stop what records, and make no events of Python of it, which would take longer than all steps."""
    torch.autograd._disable_profiler()  # noqa: SLF001 - as the hooks do


def measure_window(training: Training, ranges: ModuleRanges, order: Sequence[bool]) -> dict[bool, list[Step]]:
    """The counted steps of one window, with marks and without."""
    steps: dict[bool, list[Step]] = {True: [], False: []}
    open_profiler()
    training.step()
    for is_marked in order:
        if is_marked:
            ranges.start(records_shapes=True)
        steps[is_marked] += [training.step() for _ in range(BLOCK)][1:]
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


def measure(case: Case, rounds: int | None) -> Cost:
    """Train a case in windows."""
    training, ranges = Training(case), ModuleRanges()
    marks = [count_marks(training) for _ in range(_WARMUP)][-1]
    windows = [measure_window(training, ranges, ORDERS[window % 2]) for window in range(rounds or case.rounds)]
    figures: list[float] = []
    for column in range(len(Step._fields)):
        of_step = 2 if column == 2 else 0  # noqa: PLR2004 - processor time is a share of processor time
        ratios = []
        for window in windows:
            marked, bare = (statistics.median(step[column] for step in window[kind]) for kind in (True, False))
            ratios.append(100 * (marked - bare) / statistics.median(step[of_step] for step in window[False]))
        figures += middle(ratios)
    step_ms = MS_PER_S * statistics.median(step.step for window in windows for step in window[False])
    return Cost(case.name, marks, len(windows), step_ms, *figures)


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
    headings = ("", "marks", "rounds", "step (ms)", "step %", "error", "forward %", "error", "processor %", "error")
    print(tabulate([astuple(cost) for cost in costs], headings, tablefmt="pipe", floatfmt=".2f"))


if __name__ == "__main__":
    main()
