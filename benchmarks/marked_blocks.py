"""Whether marks of modules cost at most 3 % of a step that the host bounds: many processes at once, blocks in turn.

Run: ``python -m benchmarks.marked_blocks [--json FILE] [--seconds N] [--processes N] [--small]``, on GPUs where there
are some, with nothing beside it.

Steps that the host bounds differ by a seventh from one to the next, and a processor may change between two speeds. So
each process has cores of its own, trains in one long window as ``perfscope profile --modules --shapes`` opens it, and
changes after every few steps, by chance, between no marks, those of perfscope, and torch's fastest ranges in their
place: blocks that are compared are less than a second apart. A loop of Python beside each step says how fast the
processor was; blocks of unequal speed are not compared. The first step of a block is not counted, because names of
modules are collected in it, as in a window's warm-up step.

A process gives one figure, the median over its pairs of blocks of the logarithm of marked over bare steps. The result
is the mean over all processes of a training, and its standard error is by their spread. The window is never closed: its
events would take longer to collect than all steps took.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tabulate import tabulate
from torch import nn

from benchmarks.marked_steps import Case, Training, count_marks, make_gpt, make_resnet, open_profiler
from perfscope.constants import MS_PER_S
from perfscope.hooks.module_names import ModuleNames
from perfscope.hooks.profiler.module_ranges import ModuleRanges

_COUNTED = 4  # steps of a block, behind its first one
_WARMUP = 20
_PROBE_TURNS = 6000
_EQUAL_SPEED = 0.2  # how far the probes of two blocks may be apart, as a logarithm
_CORES = 2  # of a process: torch runs backward in a thread of its own
_LONGEST_END_S = 60
_READY = "ready"


NO_MARKS, OURS, RANGES = KINDS = ("none", "marks of perfscope", "ranges of torch")


class TorchRanges:
    """Marks as ranges that are opened in the profiler, by the fastest way of torch that is written as an annotation."""

    def __init__(self) -> None:
        self._names = ModuleNames("nn.Module: ")
        self._call = nn.Module.__call__

    def start(self) -> None:
        """Begin to open a range around each call of a module."""
        make_range: Any = torch._C._profiler._RecordFunctionFast  # noqa: SLF001 - nothing public is as fast
        call, names, no_inputs, annotation = self._call, self._names, (), {"scope": "user_scope"}

        def call_marked(module: Any, *inputs: Any, **options: Any) -> Any:  # noqa: ANN401 - as torch has it
            name = names.by_number.get(id(module)) or names.add(module, None)
            with make_range(name, no_inputs, annotation):
                return call(module, *inputs, **options)

        nn.Module.__call__ = call_marked

    def stop(self) -> None:
        """End it."""
        nn.Module.__call__ = self._call
        self._names.clear()


class Block(NamedTuple):
    """Medians over the counted steps of a block, in seconds.

    Attributes:
        kind: How modules were marked: one of ``KINDS``.
        step: A step, with the wait for the device.
        forward: Its forward pass on the host, which has all marks.
        probe: The loop of Python beside it.
    """

    kind: str
    step: float
    forward: float
    probe: float


@dataclass(frozen=True)
class Change:
    """By how much marks of one kind lengthen the steps of one training.

    Attributes:
        case: Its name.
        kind: How modules were marked: one of ``KINDS``.
        marks: Marks in a step.
        step_ms: Median step without marks in a window.
        pairs: Pairs of blocks at equal speed, ``left_out`` those that were not.
        percent, error: The mean over processes, and its standard error.
        forward_percent, forward_error: The same of the forward pass alone, in percent of the step.
        processes: The figure of each process.
    """

    case: str
    kind: str
    marks: int
    step_ms: float
    pairs: int
    left_out: int
    percent: float
    error: float
    forward_percent: float
    forward_error: float
    processes: Sequence[float]


def choose_cases(*, small: bool) -> list[Case]:
    """Trainings whose kernels are much shorter than their launches, so that several share a GPU."""
    if small:
        return [Case("small GPT", make_gpt(1, 16, 1, 8), (1, 9), 8192, 0)]
    return [
        Case("GPT of 12 layers of width 256, host-bound", make_gpt(12, 256, 4, 128), (1, 129), 8192, 0),
        Case("ResNet-50, 4 images of 32 x 32, host-bound", make_resnet, (4, 3, 32, 32), 0, 0),
    ]


def probe() -> float:
    """Seconds of a loop that does the same each time: the speed of the processor."""
    began, total = time.perf_counter(), 0
    for number in range(_PROBE_TURNS):
        total += number
    return time.perf_counter() - began


def train_block(training: Training, kind: str, ranges: ModuleRanges | TorchRanges | None) -> Block:
    """Train some steps with marks of one kind."""
    if ranges is not None:
        ranges.start()
    rows = [(probe(), training.step()) for _ in range(1 + _COUNTED)][1:]
    if ranges is not None:
        ranges.stop()
    step, forward = (statistics.median(row[1][column] for row in rows) for column in (0, 1))
    return Block(kind, step, forward, statistics.median(row[0] for row in rows))


def run_child(case: Case, seconds: float, file: Path) -> None:
    """Train one process in one window, and write its blocks; its input says when to begin."""
    torch.set_num_threads(1)
    training = Training(case)
    ranges = {NO_MARKS: None, OURS: ModuleRanges(), RANGES: TorchRanges()}
    marks = [count_marks(training) for _ in range(_WARMUP)][-1]
    print(_READY, flush=True)
    sys.stdin.readline()
    open_profiler()
    training.step()
    blocks: list[Block] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        blocks += [train_block(training, kind, ranges[kind]) for kind in random.sample(KINDS, len(KINDS))]
    file.write_text(json.dumps({"marks": marks, "blocks": blocks}))
    os._exit(0)


def choose_cores(count: int) -> list[list[int]]:
    """Cores for each process, those that share a physical core together."""
    siblings: dict[str, list[int]] = {}
    for core in sorted(os.sched_getaffinity(0)):
        file = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        siblings.setdefault(file.read_text() if file.exists() else str(core), []).append(core)
    cores = [core for group in siblings.values() for core in group]
    share = max(1, min(_CORES, len(cores) // count))
    return [[cores[(process * share + core) % len(cores)] for core in range(share)] for process in range(count)]


def measure(cases: Sequence[Case], options: argparse.Namespace) -> list[Change]:
    """Train all processes at once; the changes of each training."""
    count = len(cases) * options.processes
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        files = [Path(folder) / f"{number}.json" for number in range(count)]
        running = [
            start_child(number, cores, len(cases), file, options)
            for number, (cores, file) in enumerate(zip(choose_cores(count), files, strict=True))
        ]
        for process in running:
            stack.callback(process.kill)
        for process in running:
            assert process.stdout is not None
            while _READY not in (line := process.stdout.readline()) and line:
                pass
        for process in running:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in running:
            process.wait(options.seconds + _LONGEST_END_S)
        records = [json.loads(file.read_text()) for file in files]
    own = [records[number :: len(cases)] for number in range(len(cases))]
    return [summarize(case, kind, own[number]) for number, case in enumerate(cases) for kind in (OURS, RANGES)]


def start_child(
    number: int, cores: Sequence[int], cases: int, file: Path, options: argparse.Namespace
) -> subprocess.Popen[str]:
    """Start one process on its cores, on one of the GPUs."""
    words = [sys.executable, "-m", "benchmarks.marked_blocks", "--child", str(number % cases)]
    words += ["--seconds", str(options.seconds), "--json", str(file), *["--small"] * options.small]
    device = number // cases % max(1, torch.cuda.device_count())
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(device)}
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    os.sched_setaffinity(process.pid, cores)  # its later threads inherit them
    return process


def summarize(case: Case, kind: str, records: Sequence[dict[str, Any]]) -> Change:
    """The change that marks of one kind made in the processes of a training."""
    pairs = [list(pair_blocks([Block(*block) for block in record["blocks"]], kind)) for record in records]
    kept = [[pair for pair in own if is_of_equal_speed(*pair)] for own in pairs]
    steps = [statistics.median(math.log(marked.step / bare.step) for marked, bare in own) for own in kept]
    forward = [statistics.median((marked.forward - bare.forward) / bare.step for marked, bare in own) for own in kept]
    return Change(
        case.name,
        kind,
        records[0]["marks"],
        MS_PER_S * statistics.median(bare.step for own in kept for _, bare in own),
        sum(map(len, kept)),
        sum(map(len, pairs)) - sum(map(len, kept)),
        *mean_of(steps),
        *mean_of(forward),
        [100 * value for value in steps],
    )


def pair_blocks(blocks: Sequence[Block], kind: str) -> Iterator[tuple[Block, Block]]:
    """Blocks with marks of one kind, each with the one without marks of the same turn."""
    for first in range(0, len(blocks), len(KINDS)):
        turn = {block.kind: block for block in blocks[first : first + len(KINDS)]}
        yield turn[kind], turn[NO_MARKS]


def is_of_equal_speed(marked: Block, bare: Block) -> bool:
    """Whether the processor was as fast in both blocks."""
    return abs(math.log(marked.probe / bare.probe)) < _EQUAL_SPEED


def mean_of(values: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error, in percent."""
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return 100 * statistics.mean(values), 100 * error


def main() -> None:
    """Print a row a training."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--processes", type=int, default=6, help="of each training, at once")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.small = options.small or not torch.cuda.is_available()
    cases = choose_cases(small=options.small)
    if options.child is not None:
        run_child(cases[options.child], options.seconds, options.json)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    machine = {"device": device, "torch": torch.__version__, "python": platform.python_version()}
    changes = measure(cases, options)
    if options.json:
        document = {"machine": machine, "changes": [asdict(change) for change in changes]}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    headings = (
        "",
        "by",
        "marks",
        "step (ms)",
        "pairs",
        "left out",
        "longer %",
        "error",
        "forward %",
        "error",
        "processes",
    )
    print(tabulate([astuple(change) for change in changes], headings, tablefmt="pipe", floatfmt=".2f"))


if __name__ == "__main__":
    main()
