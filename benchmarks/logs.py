"""How fast a Megatron log of 1 GB is read, compared with the one-liner that people use and a bare search.

Run: ``python -m benchmarks.logs [--gigabytes 1] [--runs 5] [--folder DIR]``. Two logs are made, one as Megatron-LM
wrote them in 2021 (an iteration line and a line of timers), one as Megatron-core writes them today (an iteration line
with its throughput, and a line a timer), every number its own. Then run in turn, in fresh processes:

- ``perfscope logs``, which reads every record, finds copies, restarts, saves and set-up, and gives exact percentiles;
- ``perl -lne 'm|elapsed time per iteration .ms.: ...|'``, which averages (BigScience, experiments/gpt2.md);
- a loop of ``mmap.find`` in Python that only counts the anchor.

The aim is a wall time no longer than the one-liner's on two quiet cores. The averages are compared, too.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from perfscope.constants import GB, KIB, MIB

ONE_LINER = (
    r"m|elapsed time per iteration .ms.: ([\d\.]+)| && do {$x+=$1; $c++}; "
    r'END { print $c ? $x/$c/1000 : "fail" }'
)
SEARCH = """
import mmap, sys
file = open(sys.argv[1], "rb")
text = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
offset = count = 0
while (offset := text.find(b"elapsed time per iteration ", offset) + 1) > 0:
    count += 1
print(count)
"""
OLD_TIMERS = ("forward-compute", "forward-recv", "backward-compute", "backward-send", "optimizer", "batch-generator")
CORE_TIMERS = (
    "forward-backward",
    "embedding-grads-all-reduce",
    "all-grads-sync",
    "optimizer-copy-to-main-grad",
    "optimizer-inner-step",
    "optimizer-copy-main-to-model-params",
    "optimizer",
)
TAIL = "number of skipped iterations:   0 | number of nan iterations:   0 |\n"


@dataclass(frozen=True)
class ProcessCost:
    """One process: seconds of the wall clock and of the processor, peak memory of its largest process, its answer."""

    wall_s: float
    cpu_s: float
    memory_mb: float
    answer: str


def iteration_of_2021(number: int, draw: random.Random) -> str:
    """An iteration of 2021."""
    timers = " | ".join(f"{name}: {draw.uniform(1, 90_000):.2f}" for name in OLD_TIMERS)
    return (
        f" iteration {number:8d}/ 9000000 | consumed samples: {number * 1024:12d} | "
        f"elapsed time per iteration (ms): {draw.gauss(130_000, 3000):.1f} | learning rate: 1.500E-04 | "
        f"global batch size:  1024 | lm loss: {draw.uniform(7, 8):.6E} | loss scale: 4096.0 | "
        f"grad norm: {draw.uniform(0, 3):.3f} | {TAIL}time (ms) | {timers}\n"
    )


def iteration_of_core(number: int, draw: random.Random) -> str:
    """An iteration of today."""
    elapsed = draw.gauss(812, 20)
    lines = [
        f"    {(name + ' ').ljust(48, '.')}: ({draw.uniform(1, 500):.2f}, {draw.uniform(500, 800):.2f})\n"
        for name in CORE_TIMERS
    ]
    return (
        f" [2026-11-21 00:{number // 60 % 60:02d}:{number % 60:02d}.{draw.randrange(10**6):06d}] "
        f"iteration {number:8d}/ 9000000 | consumed samples: {number * 32:12d} | "
        f"elapsed time per iteration (ms): {elapsed:.1f} | "
        f"throughput per GPU (TFLOP/s/GPU): {45_000 / elapsed:.1f} | learning rate: 1.000000E-04 | "
        f"global batch size:    32 | lm loss: {draw.uniform(7, 8):.6E} | loss scale: 1.0 | "
        f"grad norm: {draw.uniform(0, 3):.3f} | {TAIL}"
        "INFO:megatron.core.timers:(min, max) time across ranks (ms):\n" + "".join(lines)
    )


def write_log(path: Path, size: int, iteration: Callable[[int, random.Random], str]) -> None:
    """Write a log of about ``size`` bytes."""
    draw, number, written = random.Random(1), 0, 0
    with path.open("w") as file:
        while written < size:
            lines = [iteration(number + index, draw) for index in range(1, 2001)]
            number += len(lines)
            written += file.write("".join(lines))


def run_command(command: list[str]) -> ProcessCost:
    """Run one process to its end."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answer = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command[:3]} ended with {process.returncode}")
    return ProcessCost(
        time.perf_counter() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * KIB / MIB, answer
    )


def commands(path: Path) -> dict[str, list[str]]:
    """The readers that run in turn."""
    return {
        "perfscope logs": [sys.executable, "-m", "perfscope", "logs", str(path), "--format", "json"],
        "perl one-liner": ["perl", "-lne", ONE_LINER, str(path)],
        "mmap.find": [sys.executable, "-c", SEARCH, str(path)],
    }


def measure(path: Path, runs: int) -> list[list[str]]:
    """One row a command, from the median of its runs after one run of each."""
    turns = [{name: run_command(command) for name, command in commands(path).items()} for _ in range(runs + 1)][1:]
    log = json.loads(turns[0]["perfscope logs"].answer)["logs"][0]
    mean_s = float(turns[0]["perl one-liner"].answer)
    if abs(log["mean_all_s"] - mean_s) > 1e-6 * mean_s or log["records"] != int(turns[0]["mmap.find"].answer):
        raise SystemExit(f"the answers differ: {log['mean_all_s']} and {mean_s} s, {log['records']} records")
    limit = statistics.median(turn["perl one-liner"].wall_s for turn in turns)
    rows = []
    for name in turns[0]:
        walls = sorted(turn[name].wall_s for turn in turns)
        cpu_s = statistics.median(turn[name].cpu_s for turn in turns)
        memory = max(turn[name].memory_mb for turn in turns)
        ratio = statistics.median(walls) / limit
        rows.append(
            [path.stem, name, f"{statistics.median(walls):.2f}", f"{ratio:.2f}", f"{cpu_s:.2f}", f"{memory:.0f}"]
        )
    return rows


def main() -> None:
    """Print the table, then how memory goes with size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where the logs are made; a temporary folder by default")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        rows, memory = [], []
        for name, iteration in (("megatron 2021", iteration_of_2021), ("megatron-core", iteration_of_core)):
            path, quarter = Path(folder) / f"{name}.log", Path(folder) / f"{name} quarter.log"
            write_log(path, int(options.gigabytes * GB), iteration)
            write_log(quarter, int(options.gigabytes * GB / 4), iteration)
            rows += measure(path, options.runs)
            small, large = (run_command(commands(log)["perfscope logs"]).memory_mb for log in (quarter, path))
            memory.append([name, f"{small:.0f}", f"{large:.0f}"])
            path.unlink()
    headings = ("log", "reader", "wall (s)", "of the one-liner", "CPU (s)", "memory (MB)")
    print(f"{options.gigabytes:g} GB, median of {options.runs} runs in turn, {os.cpu_count()} cores\n")
    print(tabulate(rows, headings, tablefmt="pipe", disable_numparse=True, colalign=("left", "left", *["right"] * 4)))
    print()
    print(tabulate(memory, ("perfscope logs", "quarter (MB)", "whole (MB)"), tablefmt="pipe", disable_numparse=True))


if __name__ == "__main__":
    main()
