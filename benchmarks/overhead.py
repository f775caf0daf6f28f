"""What perfscope costs a training process, A against B in one run.

Run: ``python -m benchmarks.overhead [--json FILE] [--small]``; on a GPU where there is one. ``--report FILE`` prints
the table of reports/h200-overhead.md. All of it alternates inside one process:

- Outside windows: steps with and without the hooks take turns by fives, with a batch so small that the host bounds a
  step, and with a large one; the limit is 0.3 % on the median step. The mean that the hooks count is printed with it.
- In a window: windows of perfscope and of a bare ``torch.profiler.profile`` with the same options take turns; the limit
  is 2 % on the median profiled step.
- Stall: the extra time of a window's last step, to the beginning of the next one. Bare is ``stop()`` and
  ``export_chrome_trace("...json.gz")``; the limit is half of it.
- After windows: bare steps against those before; the limit is 1 %.
- NVML at 5 Hz: steps with the sampler and without it take turns by two seconds; "no measurable change" is a
  difference below three standard errors, which are printed.
- Memory: processes with and without the hooks take turns; the limit is 20 MB. Growth is over many short windows.
"""

from __future__ import annotations

import argparse
import atexit
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from tabulate import tabulate
from torch.utils.data import DataLoader, dataloader

from perfscope import hooks, wire
from perfscope.constants import MS_PER_S, NS_PER_US, US_PER_S
from perfscope.hooks import start
from perfscope.hooks.config import Config
from perfscope.hooks.rank_files import start_sampler
from perfscope.hooks.reach.attach import find_pynvml
from perfscope.hooks.selection import parse_windows
from perfscope.sources.runs.run import read_run
from perfscope.workloads.gpt import Gpt, GptConfig

ACTIVE = 3  # steps of a window
#: Steps before a comparison: in the first 32 the hooks time each pass.
WARM_UP = 100
#: The limits.
OUTSIDE_PERCENT, WINDOW_PERCENT, STALL_RATIO, AFTER_PERCENT, MEMORY_MB, GROWTH_MB = 0.3, 2.0, 0.5, 1.0, 20.0, 5.0
#: Standard errors below which a change is not measurable.
NOISE = 3.0
HEADINGS = ("Measurement", "With perfscope", "Baseline", "Difference", "Limit", "Within limit")
LARGE = GptConfig(layers=24, hidden=1024, heads=16, vocabulary=8192, seq_len=513)
SMALL = GptConfig(layers=12, hidden=64, heads=2, vocabulary=256, seq_len=33)
TINY = GptConfig(layers=1, hidden=16, heads=1, vocabulary=16, seq_len=9)
Split = dict[str, float]


@dataclass(frozen=True)
class Size:
    """A model and its batch.

    Attributes:
        config: The model.
        batch: Sequences in a batch.
    """

    config: GptConfig
    batch: int


class Tokens:
    """Endless random tokens."""

    def __init__(self, config: GptConfig) -> None:
        self.config = config

    def __len__(self) -> int:
        return 10**9

    def __getitem__(self, _index: int) -> Any:  # noqa: ANN401 - a tensor
        return torch.randint(self.config.vocabulary, (self.config.seq_len,))


class Training:
    """The loop that is measured: ``loss.item()`` in every step, so that the device hides nothing of the host's work."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = Gpt(size.config).to(self.device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.load(size.batch)

    def load(self, batch: int) -> None:
        """Train on batches of another size from now on."""
        self.batches = iter(DataLoader(Tokens(self.model.config), batch_size=batch))

    def step(self) -> float:
        """Train one step; seconds of it."""
        began = time.perf_counter()
        tokens = next(self.batches).to(self.device)
        self.optimizer.zero_grad()
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = self.model(tokens)
        loss.backward()
        self.optimizer.step()
        loss.item()
        return time.perf_counter() - began


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


def count_hooks_us(run_dir: Path, first: int, last: int) -> tuple[float, float]:
    """The mean and median time of the hooks in steps from the first to the last one, as they count it themselves."""
    time.sleep(3)  # records are written every two seconds
    table = read_run(run_dir).steps[0]
    chosen = (table.step >= first) & (table.step <= last) & table.steady
    counted = table.hook_ns[chosen].compressed()
    return float(np.mean(counted)) / NS_PER_US, float(np.median(counted)) / NS_PER_US


def measure(*, small: bool) -> dict[str, Any]:
    """What alternates inside one loop, and processes of memory."""
    on_gpu = torch.cuda.is_available()
    # On a GPU the large batch lets a step wait for the device, not for a host that other work disturbs.
    config, batch = (SMALL, 8) if small or not on_gpu else (LARGE, 32)
    turns, rounds = (8, 2) if small else (40, 6)
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after the capture, which writes its end at exit
    figures: dict[str, Any] = {"machine": machine(), "outside": {}}
    figures["memory"] = memory(1 if small else 2, ["--small"] if small else [])
    count = "25" if on_gpu else "100" if small else "1000"
    figures["growth"] = {
        "windows": int(count),
        "mb": child("--growth", count, "--child", "hooked"),
        "bare_mb": child("--growth", count, "--child", "bare"),
    }
    hooked = turns * 6  # steps with hooks of one comparison
    counted = 2 * (WARM_UP + hooked)
    first = [counted + 3 + window * (ACTIVE + 2) for window in range(rounds)]
    steps = ",".join(f"{step}-{step + ACTIVE - 1}" for step in first)
    hooks.attach(str(folder / "run"), steps=steps, nvml_hz=0)
    training = Training(Size(config, 1))
    away = Hooks(training)
    for kind, sequences in (("host-bound", 1), ("device-bound", batch)):
        training.load(sequences)
        for _ in range(WARM_UP):
            training.step()
        figures["outside"][kind] = outside(training, away, turns)
    captured = start.PROCESS.capture
    assert captured is not None
    assert captured.steps == counted, f"{captured.steps} steps were counted instead of {counted}"
    figures["window"] = windows(training, away, folder / "run", rounds)
    before_ms = figures["outside"]["device-bound"]["bare_median_ms"]
    figures["after"] = after_windows(training, away, before_ms, 20 if small else 100)
    if on_gpu:
        figures["nvml"] = nvml(training, away, 4 if small else 8)
    for number, figure in enumerate(figures["outside"].values()):
        last = (number + 1) * (WARM_UP + hooked)
        figure["hooks_us"] = count_hooks_us(folder / "run", last - hooked + 1, last)
    return figures


class Line(NamedTuple):
    """One measurement with perfscope and without, its difference in words, its limit, and whether it is kept."""

    measurement: str
    perfscope: float | None
    baseline: float | None = None
    difference: str | None = None
    limit: str | None = None
    within_limit: str | None = None


def document(figures: dict[str, Any]) -> str:
    """The table of a measurement, and the machine."""
    table = tabulate(compare_with_limits(figures), HEADINGS, tablefmt="pipe", floatfmt=".2f", missingval="n/a")
    machine_of = ", ".join(figures["machine"].values())
    return f"{table}\n\nOn {machine_of}. Medians; perfscope and the baseline take turns in one run.\n"


def compare_with_limits(figures: dict[str, Any]) -> Iterator[Line]:
    """What was measured, line by line, with the limits."""
    for kind, part in figures["outside"].items():
        yield _step_line(f"{kind} step outside windows (ms)", part, OUTSIDE_PERCENT)
        mean_us, median_us = part["hooks_us"]
        share, limit = mean_us / US_PER_S * MS_PER_S / part["bare_median_ms"], f"{OUTSIDE_PERCENT} %"
        more = f"{share:.2%}, median {median_us:.0f} us"
        yield Line(
            "... hooks as they count, mean (us)", mean_us, None, more, limit, _keeps(100 * share, OUTSIDE_PERCENT)
        )
    window, after, memory_of, growth = (figures[part] for part in ("window", "after", "memory", "growth"))
    ours, bare = window["ours"], window["bare"]
    yield _step_line("step in a window (ms)", window, WINDOW_PERCENT)
    times = (MS_PER_S * ours["stall"], MS_PER_S * bare["stall"])
    kept = _keeps(window["stall_ratio"], STALL_RATIO)
    yield Line(
        "stall at a window's end (ms)", *times, f"{window['stall_ratio']:.2f} times", f"{STALL_RATIO} times", kept
    )
    yield Line("... stop, which collects the events (ms)", MS_PER_S * ours["stop"], MS_PER_S * bare["stop"])
    name = f"... export of {ours['trace_mb']:.0f} MB, bare to .json.gz (ms)"
    yield Line(name, MS_PER_S * ours["export"], MS_PER_S * bare["export"])
    yield Line("... release of the memory (ms)", MS_PER_S * ours["release"])
    yield Line("start of a window (ms)", MS_PER_S * ours["start"])
    change = after["change_percent"]
    before_ms = figures["outside"]["device-bound"]["bare_median_ms"]
    limit, kept = f"{AFTER_PERCENT} %", _keeps(change, AFTER_PERCENT)
    yield Line(
        "step after all windows, and before them (ms)", after["median_ms"], before_ms, f"{change:+.2f} %", limit, kept
    )
    if sampled := figures.get("nvml"):
        name = f"step with the NVML sampler at 5 Hz, {sampled['samples']} samples (ms)"
        kept = _keeps(sampled["change_percent"], NOISE * sampled["error_percent"])
        yield Line(name, *_times(sampled, "median_ms"), _describe(sampled), "none measurable", kept)
    more_mb, kept = memory_of["more_mb"], _keeps(memory_of["more_mb"], MEMORY_MB)
    yield Line("RSS outside windows (MB)", *_times(memory_of, "mb"), f"{more_mb:+.1f} MB", f"{MEMORY_MB:.0f} MB", kept)
    name = f"RSS growth over the last 90 % of {growth['windows']} windows (MB)"
    yield Line(name, *_times(growth, "mb"), None, f"{GROWTH_MB:.0f} MB", _keeps(growth["mb"], GROWTH_MB))


def _times(figures: dict[str, Any], name: str) -> tuple[float, float]:
    return figures[name], figures[f"bare_{name}"]


def _keeps(figure: float, limit: float) -> str:
    return "yes" if figure <= limit else "no"


def _describe(change: dict[str, Any]) -> str:
    return f"{change['change_percent']:+.2f} % (standard error {change['error_percent']:.2f})"


def _step_line(measurement: str, change: dict[str, Any], limit_percent: float) -> Line:
    kept = _keeps(change["change_percent"], limit_percent)
    verdict = kept if change["error_percent"] <= limit_percent else "not shown"
    return Line(measurement, *_times(change, "median_ms"), _describe(change), f"{limit_percent} %", verdict)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    parser.add_argument("--report", type=Path, help="Print the table of a file, and measure nothing.")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--child", choices=("hooked", "bare"))
    parser.add_argument("--growth", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)
    small = options.small or not torch.cuda.is_available()
    if options.child and options.growth:
        return growth_child(options.child, options.growth)
    if options.child:
        return memory_child(options.child, SMALL if small else LARGE, 2 if small else 4, 20)
    figures = json.loads(options.report.read_text()) if options.report else measure(small=small)
    print(document(figures), end="")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")
    return None


if __name__ == "__main__":
    main()
