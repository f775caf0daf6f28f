"""A week of training in two minutes: a million steps of two ranks through the code that records them.

Run: ``python -m tests.hooks.week [--steps N] [--json FILE]``. Nothing trains: each rank's process calls what a training
calls in a step, on a clock that moves by 0.6 s a step, and lets the records be written as they are in a training; a
third process writes what the sampler of two GPUs writes, once a second. Limits: memory of a rank's process does not
grow by more than 8 MB from a tenth of the steps to the end; 100 MB of files a rank, its share of the samples included;
15 s of processor time for ``perfscope analyze``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from perfscope import wire
from perfscope.hooks.nvml.output import Output
from perfscope.sources.runs.nvml import COUNTERS

STEP_NS = 600_000_000
_FLUSH = 512
MOST_GROWTH_MB = 8.0
MOST_FILES_MB = 100.0
MOST_ANALYZE_S = 15.0
_REAL_CLOCK = time.monotonic_ns


class Clock:
    """The monotonic clock, and the time that steps would have taken."""

    def __init__(self) -> None:
        self.ahead_ns = 0

    def now_ns(self) -> int:
        """The time on it."""
        return _REAL_CLOCK() + self.ahead_ns


def run_rank(run: str, rank: int, steps: int) -> None:
    """Record the steps of one rank, and print the resident memory at a tenth of them and at the end."""
    clock, source = Clock(), random.Random(rank)
    time.monotonic_ns = clock.now_ns  # before the hooks are loaded, which look the clock up once
    os.environ.update(RANK=str(rank), WORLD_SIZE="2")
    import torch  # after the clock

    from perfscope.hooks.capture import Capture  # after the clock
    from perfscope.hooks.config import Config
    from perfscope.hooks.selection import parse_windows

    capture = Capture(Config(run, parse_windows("2000000"), nvml_hz=0))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    batch = [torch.zeros(8, 1024, dtype=torch.long)]
    memory = []
    for step in range(1, steps + 1):
        wait_ns = source.randint(50_000, 900_000)
        clock.ahead_ns += wait_ns
        capture.on_batch_loaded(batch, wait_ns)
        capture.on_gradients_cleared(optimizer)
        capture.on_forward((batch[0],), {})
        clock.ahead_ns += round(source.gauss(STEP_NS, STEP_NS / 100))
        if step % 1000 == 0:
            capture.activities._on_full_collection("start")
            clock.ahead_ns += 5_000_000
            capture.activities._on_full_collection("stop")
        capture.on_optimizer_step(optimizer)
        if step % _FLUSH == 0:
            recorder = capture.files.claim()
            recorder.late._is_closed = True
            recorder.late.flush()
            recorder._look()
        if step in (steps // 10, steps):
            memory.append(resident_mb())
    capture.files.close()
    sys.stdout.write(json.dumps(memory) + "\n")


def run_sampler(run: str, steps: int) -> None:
    """Write the samples of two GPUs, once a second, as the sampler does after its first hour."""
    host, source = socket.gethostname(), random.Random(7)
    descriptor = os.open(f"{run}/{wire.NVML_FOLDER}/{host}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    output = Output([])
    begin_ns, gpus = time.monotonic_ns(), [{"uuid": f"GPU-{index}", "index": index} for index in (0, 1)]
    output.head = {"host": host, "hz": 5.0, "gpus": gpus}
    output.write({"t_ns": begin_ns, **output.head})
    counters = [dict.fromkeys(("energy_mj", *COUNTERS), 0) for _ in gpus]
    for second in range(1, steps * STEP_NS // 10**9):
        t_ns = begin_ns + second * 10**9 + source.randint(0, 200_000)
        output.write({"t_ns": t_ns, "gpus": [_sample_gpu(source, t_ns, counted) for counted in counters]})
        output.rotate_if_full({"t_ns": t_ns + 1})


def _sample_gpu(source: random.Random, t_ns: int, counters: dict[str, int]) -> dict[str, int]:
    power_mw = round(source.gauss(600_000, 40_000))
    for name in counters:
        if not name.endswith("_ns"):
            counters[name] += power_mw if name == "energy_mj" else source.randint(40_000_000, 50_000_000)
    counters["sw_power_cap_ns"] += source.choice((0, 0, 50_000_000))
    return {
        "power_mw": power_mw,
        "throttle": source.choice((0, 0, 0, 4)),
        "sm_clock_mhz": source.choice((1980, 1980, 1965, 1950)),
        "gpu_util_percent": source.randint(90, 100),
        "memory_used_bytes": 70_000_000_000,
        "temperature_c": source.randint(55, 60),
        "energy_t_ns": t_ns + source.randint(20_000, 60_000),
        **counters,
    }


def resident_mb() -> float:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("the kernel does not report RssAnon")


def measure(run: Path, steps: int) -> dict[str, Any]:
    """Record the steps of two ranks, and analyze them."""
    (run / "ranks").mkdir(parents=True)
    (run / wire.NVML_FOLDER).mkdir()
    (run / "run.json").write_text('{"schema": "perfscope/run/1", "command": ["train.py"]}')
    words = [sys.executable, "-m", "tests.hooks.week", "--child", str(run), "--steps", str(steps), "--rank"]
    children = [subprocess.Popen([*words, str(rank)], stdout=subprocess.PIPE, text=True) for rank in (0, 1)]
    sampler = subprocess.Popen([*words[:-1], "--sampler"])
    memory = [json.loads(child.communicate()[0].splitlines()[-1]) for child in children]
    sampler.wait()
    files_mb = [sum(file.stat().st_size for file in folder.iterdir()) / 1e6 for folder in (run / "ranks").iterdir()]
    samples_mb = sum(file.stat().st_size for file in (run / wire.NVML_FOLDER).iterdir()) / 1e6
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    analyzed = subprocess.run(
        [sys.executable, "-m", "perfscope", "analyze", "--format", "json", str(run)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    results = json.loads(analyzed.stdout)["results"]
    return {
        "steps": steps,
        "growth_mb": max(last - first for first, last in memory),
        "memory_mb": max(last for _, last in memory),
        "files_mb": max(files_mb) + samples_mb / len(files_mb),
        "samples_mb": samples_mb,
        "samples": [gpu["samples"] for gpu in results["gpus"]],
        "bytes_per_step": max(files_mb) * 1e6 / steps,
        "segments": len(list((run / "ranks").rglob("*.gz"))),
        "analyze_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "compared_steps": results["late_ranks"]["compared_steps"],
    }


def main() -> None:
    """Measure, print, and fail where a limit is passed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child")
    parser.add_argument("--sampler", action="store_true")
    parser.add_argument("--rank", type=int, default=0)
    options = parser.parse_args()
    if options.sampler:
        run_sampler(options.child, options.steps)
        return
    if options.child:
        run_rank(options.child, options.rank, options.steps)
        return
    with tempfile.TemporaryDirectory() as folder:
        measured = measure(Path(folder) / "run", options.steps)
    sys.stdout.write(json.dumps(measured, indent=2) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=2) + "\n")
    limits = {"growth_mb": MOST_GROWTH_MB, "files_mb": MOST_FILES_MB, "analyze_s": MOST_ANALYZE_S}
    passed = [name for name, limit in limits.items() if measured[name] > limit]
    if passed:
        raise SystemExit(f"past the limit: {', '.join(passed)}")


if __name__ == "__main__":
    main()
