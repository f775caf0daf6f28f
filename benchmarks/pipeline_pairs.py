"""What perfscope costs pipelines of two stages: trainings below ``perfscope profile`` and bare ones, in pairs.

Run: ``python -m benchmarks.pipeline_pairs --json FILE [--megatron FOLDER] [--pairs N] [--small] [--only NAME,...]``, on
two GPUs or on a CPU. ``--megatron`` names the folder of a checkout that holds ``pretrain_gpt.py``.

The scripts are unmodified: ``benchmarks/in_turn.py`` lets each rank wait ahead of each step. Both trainings of a pair
run on the same GPUs, and each rank on the same cores as its twin, in turns of two steps; pairs of small models at
once, each on cores of its own, and one pair alone where the device bounds the steps. Behind that the bare training
rests for some dozens of steps.

- After the window: by how much more of its twin's time the captured training takes behind the window than ahead of it.
  What the two differ by all along cancels out.
- Hooks: their time in the steps beside which the twin rests, as the run records it, with passes of micro-batches that
  are timed in one step of some; and in the first steps, in which all are.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tabulate import tabulate

from benchmarks.in_turn import Turns
from benchmarks.pipeline_runs import LARGE, TINY, Framework, Setting
from benchmarks.processes import ROOT
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.sources.runs.run import read_run
from perfscope.tables.columns import Float64
from perfscope.tables.run import Run

RANKS = 2
MICROBATCHES = 8
WINDOW = 3  # steps
_ALL_TIMED = range(8, 32)  # the first steps, whose passes are all timed, without the very first
_LIGHT = 12  # steps behind a window that are left out: a light window is among them
_TURN = 2  # steps
_BLOCK = 20  # steps whose lead is written
_LONGEST_START_S = 300
_LONGEST_STEP_S = 60
_LONGEST_END_S = 60
_POLL_S = 0.0001
_NO_WINDOW = "1000000"
_CORES = 2 * RANKS  # torch runs backward in a thread of its own
#: So small that the host cannot launch kernels fast enough.
SMALL = {"layers": 8, "hidden": 256, "heads": 4, "vocabulary": 2048, "seq-len": 128, "micro-batch": 1}
FUNCTIONS = {
    Framework.TORCH: "torch.distributed.pipelining.schedules:PipelineScheduleSingle.step",
    Framework.DEEPSPEED: "deepspeed.runtime.pipe.engine:PipelineEngine.train_batch",
    Framework.MEGATRON: "megatron.training.training:train_step",
}
COLUMNS = (
    "Training", "Pairs", "Step (ms)", "Without perfscope (ms)", "Behind a window (%)", "Standard error",
    "Hooks, all passes timed (us)", "share (%)", "Hooks later, mean (us)", "median (us)", "share (%)", "Timed steps",
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """One kind of training.

    Attributes:
        framework: What trains the pipeline.
        size: The model.
        before: Steps ahead of the window.
        after: Steps behind it, in turn with the twin.
        rest: Steps behind those, beside which the twin rests.
        is_alone: It has one pair, which trains alone.
        has_window: Whether the window is opened; without it the pairs say what they differ by through chance.
    """

    framework: Framework
    size: Mapping[str, int]
    before: int
    after: int
    rest: int
    is_alone: bool = False
    has_window: bool = True

    @property
    def window(self) -> range:
        """The steps of its window."""
        return range(self.before + 1, self.before + 1 + WINDOW)

    @property
    def alone(self) -> range:
        """The steps beside which the twin rests."""
        begin = self.window.stop + self.after
        return range(begin, begin + self.rest)

    def command(self, turns: Path, job: int, scripts: Path | None) -> list[str]:
        """The command of one job of a pair, which trains until it is ended or all steps are done."""
        setting = Setting(self.framework, "1f1b", MICROBATCHES, RANKS, self.size, scripts=scripts, turn=turns)
        steps = str(self.alone.stop + 1)
        words = setting.command()
        script = words.index(next(word for word in words if word.endswith(".py") and "start_ranks" not in word))
        rest = [f"--steps={steps}" if word.startswith("--steps=") else word for word in words[script:]]
        if "--train-iters" in rest:
            rest[rest.index("--train-iters") + 1] = steps
        gate = [str(ROOT / "benchmarks" / "in_turn.py"), str(turns), str(job), FUNCTIONS[self.framework]]
        return [sys.executable, str(ROOT / "benchmarks" / "start_ranks.py"), str(RANKS), *gate, *rest]


def list_trainings(*, small: bool) -> dict[str, Training]:
    """All trainings by name: those for two GPUs, or some that a CPU trains in seconds."""
    if small:
        tiny = {name: Training(name, TINY, before=40, after=24, rest=16) for name in Framework}
        return {f"{name}, host-bound": training for name, training in tiny.items()}
    host = {name: Training(name, SMALL, before=160, after=172, rest=64) for name in Framework}
    device = replace(host[Framework.TORCH], size=LARGE, before=60, after=72, is_alone=True)
    return {
        **{f"{name}, host-bound": training for name, training in host.items()},
        "torch, device-bound": device,
        "deepspeed, host-bound, no window": replace(host[Framework.DEEPSPEED], has_window=False),
    }


class Job:
    """The ranks of one training of a pair."""

    def __init__(
        self, training: Training, folder: Path, number: int, cores: Sequence[int], scripts: Path | None
    ) -> None:
        self._turns, self._number, self._allowed = Turns(folder / "turns"), number, 0
        self._folder = folder
        words = training.command(folder / "turns", number, scripts)
        if number == 0:
            window = f"{training.window.start}-{training.window[-1]}" if training.has_window else _NO_WINDOW
            profile = ["-m", "perfscope", "--quiet", "profile", "--exec", "-o", str(folder / "RUN"), "--steps", window]
            words = [sys.executable, *profile, "--", *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
        environment |= {"OMP_NUM_THREADS": "1"}
        self._output = folder / f"output-{number}"
        with self._output.open("w") as output:
            self._process = subprocess.Popen(words, stdout=output, stderr=output, cwd=folder, env=environment)
        os.sched_setaffinity(self._process.pid, cores)

    def wait_for(self, arrivals: int, longest_s: float) -> None:
        """Wait until all ranks have come to the gate so many times.

        Raises:
            RuntimeError: The training ended, or did not come so far in time.
        """
        due_s = time.monotonic() + longest_s
        while min(self._turns.arrivals(self._number, RANKS)) < arrivals:
            if self._process.poll() is not None or time.monotonic() > due_s:
                raise RuntimeError(self._output.read_text()[-3000:])
            time.sleep(_POLL_S)

    def train(self, steps: int) -> None:
        """Train so many steps."""
        self._allowed += steps
        self._turns.allow(self._number, self._allowed)
        self.wait_for(self._allowed + 1, steps * _LONGEST_STEP_S)

    def end(self) -> None:
        """Let it train its last step and end."""
        self._turns.allow(self._number, 1 << 40)
        try:
            self._process.wait(_LONGEST_END_S)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait()

    def step_times_ns(self) -> list[int]:
        """How long each step took, from the first rank's beginning to the last one's end."""
        files = [self._folder / f"turns.{self._number}.{rank}" for rank in range(RANKS)]
        rows = [[tuple(map(int, line.split())) for line in file.read_text().splitlines()] for file in files]
        return [max(end for _, end in step) - min(begin for begin, _ in step) for step in zip(*rows, strict=False)]


class Pair:
    """A captured training and a bare one."""

    def __init__(self, training: Training, folder: Path, cores: Sequence[int], scripts: Path | None) -> None:
        folder.mkdir()
        self.folder, self._training = folder, training
        self._jobs = [Job(training, folder, number, cores, scripts) for number in (0, 1)]

    def train(self) -> None:
        """All steps: turns in the order ABBA, and then those of the captured training alone."""
        for job in self._jobs:
            job.wait_for(1, _LONGEST_START_S)
        for turn, first in enumerate(range(1, self._training.alone.start, _TURN)):
            steps = min(_TURN, self._training.alone.start - first)
            for number in (0, 1) if turn % 2 else (1, 0):
                self._jobs[number].train(steps)
        self._jobs[0].train(len(self._training.alone))

    def end(self) -> None:
        """Let both end."""
        for job in self._jobs:
            job.end()

    def measured(self) -> tuple[list[int], list[int], Run]:
        """The times of the steps of both, in nanoseconds, and the run."""
        ours, bare = (job.step_times_ns() for job in self._jobs)
        return ours, bare, read_run(self.folder / "RUN")


def _medians(times_ns: Sequence[int], steps: range) -> float:
    return statistics.median(times_ns[step - 1] for step in steps) / NS_PER_MS


def _lead(ours: Sequence[int], bare: Sequence[int], steps: range) -> float:
    """The logarithm of the captured training's time over its twin's, step by step, in the median."""
    return statistics.median(math.log(ours[step - 1] / bare[step - 1]) for step in steps)


def _blocks(steps: range) -> list[range]:
    return [steps[start : start + _BLOCK] for start in range(0, len(steps) - _BLOCK + 1, _BLOCK)]


def _hooks_us(run: Run, steps: range) -> Float64:
    """What the hooks count in some steps, of all ranks."""
    chosen = [
        table.hook_ns[(table.step >= steps.start) & (table.step < steps.stop)].compressed() for table in run.steps
    ]
    return np.concatenate(chosen).astype(np.float64) / NS_PER_US


def summarize(training: Training, pairs: Sequence[tuple[Sequence[int], Sequence[int], Run]]) -> dict[str, Any]:
    """The figures of one kind of training."""
    before = range(_ALL_TIMED.stop, training.window.start - 1)  # the last one is the window's warm-up
    after = range(training.window.stop + _LIGHT, training.alone.start)
    changes = [_lead(ours, bare, after) - _lead(ours, bare, before) for ours, bare, _ in pairs]
    timed = [len({record.step for record in run.micro_batches} & set(training.alone)) for *_, run in pairs]
    hooks_us = np.concatenate([_hooks_us(run, training.alone) for *_, run in pairs])
    return {
        "pairs": len(pairs),
        "before_ms": statistics.median(_medians(ours, before) for ours, _, _ in pairs),
        "bare_before_ms": statistics.median(_medians(bare, before) for _, bare, _ in pairs),
        "after_ms": statistics.median(_medians(ours, after) for ours, _, _ in pairs),
        "bare_after_ms": statistics.median(_medians(bare, after) for _, bare, _ in pairs),
        "alone_ms": statistics.median(_medians(ours, training.alone) for ours, _, _ in pairs),
        "leads_percent": [100 * math.expm1(_lead(ours, bare, before)) for ours, bare, _ in pairs],
        "changes_percent": [100 * math.expm1(change) for change in changes],
        "blocks_percent": [
            [[round(100 * _lead(ours, bare, block), 2) for block in _blocks(steps)] for steps in (before, after)]
            for ours, bare, _ in pairs
        ],
        "hooks_all_us": float(np.mean(np.concatenate([_hooks_us(run, _ALL_TIMED) for *_, run in pairs]))),
        "all_timed_ms": statistics.median(_medians(ours, _ALL_TIMED) for ours, _, _ in pairs),
        "hooks_mean_us": float(np.mean(hooks_us)),
        "hooks_median_us": float(np.median(hooks_us)),
        "timed_steps": statistics.mean(timed),
        "rest_steps": len(training.alone),
        "detached": all(window.detached for *_, run in pairs for window in run.windows),
    }


def measure(
    trainings: Mapping[str, Training], folder: Path, pairs: int, scripts: Path | None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Train each kind; all trainings are started together, because that takes longest."""
    cores = sorted(os.sched_getaffinity(0))
    own = [[cores[(_CORES * pair + core) % len(cores)] for core in range(_CORES)] for pair in range(pairs)]
    started: dict[str, list[Pair]] = {}
    for index, (name, training) in enumerate(trainings.items()):
        started[name] = [
            Pair(training, folder / f"{index}-{pair}", own[pair], scripts)
            for pair in range(1 if training.is_alone else pairs)
        ]
    for name, training in trainings.items():
        with ThreadPoolExecutor(len(started[name])) as pool:
            trained = [pool.submit(pair.train) for pair in started[name]]
        finished = []
        for pair, result in zip(started[name], trained, strict=True):
            pair.end()
            if (error := result.exception()) is None:
                finished.append(pair.measured())
            else:
                print(name, error, flush=True)
        if finished:
            yield name, summarize(training, finished)


def to_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures as a table."""
    rows = []
    for name, result in results.items():
        changes = result["changes_percent"]
        error = f"{statistics.stdev(changes) / math.sqrt(len(changes)):.2f}" if len(changes) > 1 else "n/a"
        shares = [
            f"{result[cost] * NS_PER_US / NS_PER_MS / result[step] * 100:.2f}"
            for cost, step in (("hooks_all_us", "all_timed_ms"), ("hooks_mean_us", "alone_ms"))
        ]
        rows.append(
            (
                name,
                str(result["pairs"]),
                f"{result['before_ms']:.1f}",
                f"{result['bare_before_ms']:.1f}",
                f"{statistics.mean(changes):+.2f}",
                error,
                f"{result['hooks_all_us']:.0f}",
                shares[0],
                f"{result['hooks_mean_us']:.0f}",
                f"{result['hooks_median_us']:.0f}",
                shares[1],
                f"{result['timed_steps']:.0f} of {result['rest_steps']}",
            )
        )
    return str(tabulate(rows, COLUMNS, tablefmt="pipe", disable_numparse=True))


def main() -> None:
    """Train all pairs, and write each result as soon as it is there."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--megatron", type=Path, help="the folder that holds pretrain_gpt.py")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--only", default="", metavar="NAME;...", help="names of trainings")
    parser.add_argument("--report", type=Path, help="print the table of a file of measurements, and train nothing")
    options = parser.parse_args()
    if options.report:
        print(to_table(json.loads(options.report.read_text())["trainings"]))
        return
    wanted = [name for name in options.only.split(";") if name]
    trainings = {
        name: training
        for name, training in list_trainings(small=options.small).items()
        if (options.megatron or training.framework is not Framework.MEGATRON) and (not wanted or name in wanted)
    }
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    machine = {"device": device, "torch": torch.__version__, "python": sys.version.split()[0]}
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        for name, result in measure(trainings, Path(folder), options.pairs, options.megatron):
            results[name] = result
            if options.json:
                options.json.write_text(json.dumps({"machine": machine, "trainings": results}, indent=1) + "\n")
            print(to_table(results), flush=True)


if __name__ == "__main__":
    main()
