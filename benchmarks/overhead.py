"""What perfscope costs a training process, A against B in one run.

Run: ``python -m benchmarks.overhead [--json FILE] [--small] [--part whole|loop] [--rounds N]``; on a GPU where there
is one.
``benchmarks.whole_processes`` says how whole processes are compared, on steps bound by the host and by the device.
The rest alternates inside one loop:

- Outside windows: steps with and without the hooks take turns by fives; the limit is 0.3 % on the median step.
- In a window: windows of perfscope and of a bare ``torch.profiler.profile`` with the same options take turns; the limit
  is 2 % on the median profiled step.
- Stall: the extra time of a window's last step, to the beginning of the next one. Bare is ``stop()`` and
  ``export_chrome_trace("...json.gz")``; the limit is half of it.
- NVML at 5 Hz: steps beside the sampler and without it take turns by half seconds; "no measurable change" is a
  difference below three standard errors, which are printed.
- Memory: processes with and without the hooks take turns; the limit is 20 MB. Growth is that of many short windows.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch.utils.data import dataloader

from benchmarks import whole_processes
from benchmarks.overhead_limits import compare_with_limits
from benchmarks.training_loop import Size, Training
from perfscope import hooks, wire
from perfscope.hooks import start
from perfscope.hooks.config import Config
from perfscope.hooks.nvml.start import start_sampler
from perfscope.hooks.reach.attach import find_pynvml
from perfscope.hooks.selection import parse_windows
from perfscope.workloads.gpt import GptConfig

ACTIVE = 3  # steps of a window
LARGE = GptConfig(layers=24, hidden=1024, heads=16, vocabulary=8192, seq_len=513)
SMALL = GptConfig(layers=12, hidden=64, heads=2, vocabulary=256, seq_len=33)
TINY = GptConfig(layers=1, hidden=16, heads=1, vocabulary=16, seq_len=9)
Split = dict[str, float]


class Hooks:
    """The wrappers around the functions that the loop calls, which can be removed for a while."""

    def __init__(self, training: Training) -> None:
        owners = [
            (type(training.optimizer), "step"),
            (dataloader._BaseDataLoaderIter, "__next__"),  # noqa: SLF001 - where the hook is
            (torch.autograd.profiler.profile, "_prepare_trace"),
            (torch.autograd.profiler.profile, "_start_trace"),
        ]
        self._wrapped = [(owner, name, getattr(owner, name)) for owner, name in owners]

    @contextmanager
    def away(self) -> Iterator[None]:
        """Train without any hook."""
        for owner, name, wrapper in self._wrapped:
            setattr(owner, name, getattr(wrapper, "__wrapped__", None) or wrapper._perfscope)  # noqa: SLF001 - ours
        try:
            yield
        finally:
            for owner, name, wrapper in self._wrapped:
                setattr(owner, name, wrapper)


def percent(ours: Sequence[float], bare: Sequence[float]) -> float:
    """By how much the median with perfscope is longer, in percent of the bare one."""
    return 100 * (statistics.median(ours) / statistics.median(bare) - 1)


def error_percent(ours: Sequence[float], bare: Sequence[float]) -> float:
    """The standard error of ``percent``, from the spread between the quartiles."""
    middle = statistics.median(bare)
    variance = 0.0
    for values in (ours, bare):
        low, _, high = statistics.quantiles(values, n=4)
        variance += (1.2533 * (high - low) / 1.349) ** 2 / len(values)  # of a median, were the steps normal
    return 100 * math.sqrt(variance) / middle


def outside(training: Training, away: Hooks, turns: int) -> dict[str, Any]:
    """Steps with and without the hooks, by fives, in the order ABBA."""
    times: dict[bool, list[float]] = {True: [], False: []}
    for turn in range(2 * turns):
        hooked = turn % 4 in (0, 3)
        if hooked:
            times[True] += [training.step() for _ in range(6)][1:]  # the first pays for the change itself
        else:
            with away.away():
                times[False] += [training.step() for _ in range(6)][1:]
    return {
        "steps": len(times[True]),
        "median_ms": 1e3 * statistics.median(times[True]),
        "bare_median_ms": 1e3 * statistics.median(times[False]),
        "change_percent": percent(times[True], times[False]),
        "error_percent": error_percent(times[True], times[False]),
    }


def bare_window(training: Training, folder: Path) -> tuple[list[float], Split]:
    """A window as torch's documentation writes it: the profiled steps, and the seconds of its end."""
    profiler = torch.profiler.profile(schedule=torch.profiler.schedule(wait=0, warmup=1, active=ACTIVE + 1))
    path = folder / "bare.json.gz"
    profiler.start()
    training.step()
    times = []
    for step in range(ACTIVE):
        profiler.step()
        times.append(training.step())
        if step == ACTIVE - 1:
            began = time.perf_counter()
            profiler.stop()
            stopped = time.perf_counter()
            profiler.export_chrome_trace(str(path))
            ended = time.perf_counter()
    path.unlink()
    return times, {"stop": stopped - began, "export": ended - stopped, "stall": ended - began}


def our_window(training: Training, run_dir: Path) -> tuple[list[float], Split]:
    """A window of perfscope: the profiled steps but the last, and the seconds of its end, which that step contains."""
    training.step()  # the hooks start the profiler at its end
    training.step()  # the warm-up
    times = [training.step() for _ in range(ACTIVE)]
    stall = times.pop() - statistics.median(times)
    record = json.loads(next(run_dir.glob("ranks/*/events.jsonl")).read_text().splitlines()[-1])
    assert record["kind"] == "window", record
    split = {part: record[f"{part}_ns"] / 1e9 for part in ("start", "stop", "export", "release")}
    wait_for_children("compress")
    return times, {**split, "stall": stall, "trace_mb": record["trace_bytes"] / 1e6}


def children(named: str) -> list[int]:
    """Processes that this one started whose command line contains a word."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, status = (folder / "cmdline").read_bytes(), (folder / "status").read_text()
        except OSError:
            continue
        if named.encode() in words and f"\nPPid:\t{os.getpid()}\n" in status:
            pids.append(int(folder.name))
    return pids


def wait_for_children(named: str) -> None:
    """Wait until they have ended."""
    while children(named):
        time.sleep(0.05)


def windows(training: Training, away: Hooks, run_dir: Path, rounds: int) -> dict[str, Any]:
    """Bare windows and ours in turn."""
    ours: list[float] = []
    bare: list[float] = []
    our_splits: list[Split] = []
    bare_splits: list[Split] = []
    for _ in range(rounds):
        with away.away():
            times, split = bare_window(training, run_dir)
            bare += times
            bare_splits.append(split)
            training.step()
        times, split = our_window(training, run_dir)
        ours += times
        our_splits.append(split)
    return {
        "rounds": rounds,
        "median_ms": 1e3 * statistics.median(ours),
        "bare_median_ms": 1e3 * statistics.median(bare),
        "change_percent": percent(ours, bare),
        "error_percent": error_percent(ours, bare),
        "ours": medians(our_splits),
        "bare": medians(bare_splits),
        "stall_ratio": medians(our_splits)["stall"] / medians(bare_splits)["stall"],
    }


def medians(splits: Sequence[Split]) -> Split:
    """The median of each part."""
    return {name: statistics.median(split[name] for split in splits) for name in splits[0]}


def nvml(training: Training, away: Hooks, turns: int) -> dict[str, Any]:
    """Steps beside a sampler and without."""
    times: dict[bool, list[float]] = {True: [], False: []}
    samples = 0
    for turn in range(2 * turns):
        beside = turn % 4 in (0, 3)
        with tempfile.TemporaryDirectory() as folder, away.away():
            if beside:
                start_sampler(Config(folder, parse_windows("2"), nvml_path=find_pynvml()))
            training.step()
            until = time.perf_counter() + 2.0
            while time.perf_counter() < until:
                times[beside].append(training.step())
            for child in children("nvml"):
                os.kill(child, 15)
            wait_for_children("nvml")
            samples += sum(file.read_text().count('"t_ns"') for file in Path(folder).rglob("*.jsonl"))
    return {
        "samples": samples,
        "steps": len(times[True]),
        "median_ms": 1e3 * statistics.median(times[True]),
        "bare_median_ms": 1e3 * statistics.median(times[False]),
        "change_percent": percent(times[True], times[False]),
        "error_percent": error_percent(times[True], times[False]),
    }


def after_windows(training: Training, away: Hooks, before_ms: float, steps: int) -> dict[str, float]:
    """Bare steps after profilers have run: CUPTI may stay active."""
    with away.away():
        median_ms = 1e3 * statistics.median([training.step() for _ in range(steps)])
    return {"median_ms": median_ms, "change_percent": 100 * (median_ms / before_ms - 1)}


def anonymous_mb() -> float:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not report RssAnon")


def memory_child(kind: str, config: GptConfig, batch: int, steps: int) -> None:
    """One process of the memory comparison; prints the memory that it uses."""
    with tempfile.TemporaryDirectory() as folder:
        if kind == "hooked":
            hooks.attach(str(Path(folder) / "run"), steps="1000000", nvml_hz=0)
        training = Training(Size(config, batch))
        for _ in range(steps):
            training.step()
        print(anonymous_mb())


def growth_child(kind: str, count: int) -> None:
    """Many short windows in one process; prints the memory after a tenth of them and at the end."""
    marks = []
    with tempfile.TemporaryDirectory() as folder:
        if kind == "hooked":
            steps = ",".join(str(2 + 3 * window) for window in range(count))
            hooks.attach(str(Path(folder) / "run"), steps=steps, nvml_hz=0)
        training = Training(Size(TINY, 1))
        if kind == "hooked":
            training.step()
        for window in range(1, count + 1):
            if kind == "hooked":
                for _ in range(3):
                    training.step()
            else:
                bare_window(training, Path(folder))
            if window in (count // 10, count):
                marks.append(anonymous_mb())
        if kind == "hooked":
            wait_for_children("compress")
            traces = len(list(Path(folder).rglob(f"*{wire.TRACE_SUFFIX}*")))
            assert traces >= count - 1, f"{traces} traces of {count} windows"
    print(marks[1] - marks[0])


def child(*words: str) -> float:
    """Run a process of this benchmark, and return the number that it printed."""
    command = [sys.executable, "-m", "benchmarks.overhead", *words]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[-1])


def memory(pairs: int, size: Sequence[str]) -> dict[str, float]:
    """Memory with and without the hooks, by processes that take turns."""
    turns = [(child("--child", "hooked", *size), child("--child", "bare", *size)) for _ in range(pairs)]
    ours, bare = (statistics.median(turn[side] for turn in turns) for side in (0, 1))
    return {"mb": ours, "bare_mb": bare, "more_mb": ours - bare}


def machine() -> dict[str, str]:
    """Where this ran."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else f"CPU, {os.cpu_count()} cores"
    return {"device": device, "torch": torch.__version__, "python": platform.python_version()}


def measure_loop(*, small: bool) -> dict[str, Any]:
    """What alternates inside one loop."""
    on_gpu = torch.cuda.is_available()
    # On a GPU the batch is so large that a step waits for the device, not for a host that other work disturbs.
    config, batch = (SMALL, 2) if small or not on_gpu else (LARGE, 64)
    turns, rounds = (8, 2) if small else (60, 6)
    folder = Path(tempfile.mkdtemp())
    try:
        counted = 12 + 2 * turns // 2 * 6  # the loop's own steps with hooks, before the first window
        first = [counted + 3 + window * (ACTIVE + 2) for window in range(rounds)]
        steps = ",".join(f"{step}-{step + ACTIVE - 1}" for step in first)
        hooks.attach(str(folder / "run"), steps=steps, nvml_hz=0)
        training = Training(Size(config, batch))
        for _ in range(12):
            training.step()
        away = Hooks(training)
        figures: dict[str, Any] = {"outside": outside(training, away, turns)}
        captured = start.PROCESS.capture
        assert captured is not None
        assert captured.steps == counted, f"{captured.steps} steps were counted instead of {counted}"
        figures["window"] = windows(training, away, folder / "run", rounds)
        figures["after"] = after_windows(training, away, figures["outside"]["bare_median_ms"], 20 if small else 100)
        if on_gpu:
            figures["nvml"] = nvml(training, away, 4 if small else 8)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    size = ["--small"] if small else []
    figures["memory"] = memory(1 if small else 2, size)
    count = "50" if on_gpu else "100" if small else "1000"
    figures["growth"] = {
        "windows": int(count),
        "mb": child("--growth", count, "--child", "hooked"),
        "bare_mb": child("--growth", count, "--child", "bare"),
    }
    return figures


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--part", choices=("whole", "loop"), help="Measure only this part.")
    parser.add_argument("--child", choices=("hooked", "bare", "whole"))
    parser.add_argument("--growth", type=int)
    parser.add_argument("--rounds", type=int, help="Processes of each kind (whole).")
    options = parser.parse_args()
    torch.set_num_threads(1)
    small = options.small or not torch.cuda.is_available()
    if options.child == "whole":
        return whole_processes.run_child(small=small)
    if options.child and options.growth:
        return growth_child(options.child, options.growth)
    if options.child:
        return memory_child(options.child, SMALL if small else LARGE, 2 if small else 4, 20)
    figures: dict[str, Any] = {"machine": machine()}
    if options.part in (None, "whole"):
        figures["processes"] = whole_processes.measure(small=small, rounds=options.rounds)
    if options.part in (None, "loop"):
        figures |= measure_loop(small=options.small)
    print(", ".join(figures["machine"].values()))
    rows = compare_with_limits(figures)
    headings = ("", "with perfscope", "bare", "difference", "limit", "kept")
    print(tabulate(rows, headings, tablefmt="pipe", floatfmt=".2f", missingval=""))
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
