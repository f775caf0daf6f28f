"""What perfscope costs where it must cost nothing: in `perfscope tflops`, and in processes that never train.

Run: ``python -m benchmarks.startup``. Every figure compares two commands that take turns in this run: the medians of
their wall times as a ratio, and of their processor times as a difference, which other work on the machine moves less.

- ``perfscope tflops`` against a typer app of one command that prints a number: the limit is 1.5 times.
- ``perfscope analyze`` of a trace of 1 MB: the limit is 0.40 s on a quiet machine. Beside it stands a process that
  imports the packages that it rests on: the limit is 2 times that.
- a Python process below ``perfscope profile`` against the same process without, and the hook's own calls in a process
  that imports torch and never trains, as launchers and data-loader workers do: the limit is 5 ms for both together.
"""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tabulate import tabulate

from perfscope.hooks.config import Config
from perfscope.hooks.reach import launch
from perfscope.hooks.selection import parse_windows

BARE_APP = """
import typer
app = typer.Typer(add_completion=False)
@app.command()
def main(size: str = typer.Option(...), gbs: int = typer.Option(...), time: str = typer.Option(...)) -> None:
    typer.echo("53.7")
app()
"""
RESTS_ON = "import isal, msgspec, numpy, tabulate, typer"
TRACES = Path(__file__).resolve().parent.parent / "fixtures" / "findings" / "h200" / "clean" / "traces"
QUESTION = ["--size", "52B", "--gbs", "1024", "--time", "127"]
LAUNCHER = """
import sys, time
finder, spent = sys.meta_path[0], []
patch = finder.callback
def timed(name, module):
    began = time.perf_counter()
    patch(name, module)
    spent.append(time.perf_counter() - began)
finder.callback = timed
import torch.distributed, torch.optim, torch.utils.data
assert len(spent) >= 5, spent
print(sum(spent))
"""


@dataclass(frozen=True)
class Cost:
    """Seconds of the wall clock and of the processor."""

    wall_s: float
    cpu_s: float


def cost(command: Sequence[str], environment: Mapping[str, str]) -> Cost:
    """Run a command once, and return what it costs."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, env=dict(environment), stdout=subprocess.DEVNULL, check=True)
    ended, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(ended - began, cpu_s)


def median(costs: Sequence[Cost]) -> Cost:
    """The median of each."""
    return Cost(statistics.median(cost.wall_s for cost in costs), statistics.median(cost.cpu_s for cost in costs))


def compare(pairs: int, ours: Sequence[str], bare: Sequence[str], hooked: Mapping[str, str]) -> tuple[Cost, Cost]:
    """The median costs of two commands that take turns, after one run of each."""
    turns = [(cost(ours, hooked), cost(bare, os.environ)) for _ in range(pairs + 1)][1:]
    return median([turn[0] for turn in turns]), median([turn[1] for turn in turns])


def patching_ms(hooked: Mapping[str, str]) -> float:
    """Median milliseconds that the hook takes inside a process that imports torch, as a launcher does.

    Importing torch takes seconds that vary by more than the hook takes, so its calls are timed one by one.
    """
    run = [sys.executable, "-c", LAUNCHER]
    answers = [subprocess.run(run, env=dict(hooked), capture_output=True, check=True, text=True) for _ in range(7)]
    return statistics.median(float(answer.stdout) * 1e3 for answer in answers)


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        app = Path(folder) / "bare.py"
        app.write_text(BARE_APP)
        config = Config(run_dir=str(Path(folder) / "run"), windows=parse_windows("4-6"))
        hooked = launch.build_environment(config, launch.prepare(config), os.environ)
        script = str(Path(sys.executable).with_name("perfscope"))
        rows = []
        for name, limit, pairs, ours, bare, environment in (
            ("perfscope tflops / bare typer app", "1.5 x", 40, [script, "tflops", *QUESTION],
             [sys.executable, str(app), *QUESTION], os.environ),
            ("perfscope analyze, 1 MB / imports of packages", "2 x", 15,
             [script, "analyze", str(next(TRACES.iterdir()))], [sys.executable, "-c", RESTS_ON], os.environ),
            ("python -c pass, hooked / not", "+5 ms", 60, [sys.executable, "-c", "pass"],
             [sys.executable, "-c", "pass"], hooked),
        ):  # fmt: skip
            mine, theirs = compare(pairs, ours, bare, environment)
            ratio, difference = mine.wall_s / theirs.wall_s, (mine.cpu_s - theirs.cpu_s) * 1e3
            rows.append((name, f"{ratio:.3f} x", f"{difference:+.1f} ms", f"{mine.wall_s:.2f} s", limit))
        rows.append(("patches in a process that only imports torch", "", f"{patching_ms(hooked):+.1f} ms", "", "+5 ms"))
    headings = ("medians of processes that take turns", "wall ratio", "CPU difference", "wall time", "limit")
    print(tabulate(rows, headings, tablefmt="pipe"))


if __name__ == "__main__":
    main()
