"""How fast ``perfscope compare`` is, and how often it is wrong: ``python -m benchmarks.comparison speed|record|judge``.

``speed TRACE`` analyzes a trace, and compares it with its copy, in turns; the ratio is of processor time, which other
programs on the machine disturb least. ``record FILE`` trains one small model many times under ``perfscope profile`` and
keeps the steps of each run. ``judge FILE`` takes pairs of these runs, all of the same code: a difference is a false
alarm. Then 2 % are added to the steps of one of each pair, and it counts how often that is found.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, log, sqrt
from pathlib import Path
from statistics import NormalDist

import numpy as np

from perfscope.analyzers.comparison.change import Samples, compare_samples
from perfscope.analyzers.shared.step_selection import find_undisturbed
from perfscope.sources.runs.run import read_run

_ROUNDS = 5
_RUNS = 130
_ADDED = 1.02
_COMPARED = 100
_ALARMS = 0.05
_TRAINING = (
    "perfscope/workloads/gpt_torch.py", "--layers", "2", "--hidden", "128", "--seq-len", "64", "--steps", "130",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Judgement:
    """What became of pairs of sides of the same code.

    Attributes:
        pairs: How many pairs.
        false_alarms: Pairs in which a difference was found.
        found: Pairs in which 2 % were found that were added to the second one's steps.
        steps_false_alarms: Pairs whose steps differ without the allowance for runs of the same code.
        steps_found: Pairs in which the steps show the 2 % without it.
        half_width: The median of half the intervals' widths.
    """

    pairs: int
    false_alarms: int
    found: int
    steps_false_alarms: int | None
    steps_found: int | None
    half_width: float


def judge(pairs: Sequence[tuple[Samples, Samples]], between_runs: float | None = None) -> Judgement:
    """Compare the sides of each pair, as they are and with 2 % added to the second one.

    Args:
        pairs: The sides.
        between_runs: Standard deviation between runs, as a share, where it is known: 0 for steps of one run.
    """
    changes = [compare_samples(a, b, between_runs=between_runs) for a, b in pairs]
    intervals = [change.interval for change in changes if change.interval]
    of_steps = [change.steps_interval for change in changes if change.steps_interval]
    return Judgement(
        pairs=len(intervals),
        false_alarms=_count_alarms(intervals),
        found=_count_found(intervals),
        steps_false_alarms=_count_alarms(of_steps) if of_steps else None,
        steps_found=_count_found(of_steps) if of_steps else None,
        half_width=float(np.median([(high - low) / 2 for low, high in intervals])),
    )


def find_most(runs: Sequence[Sequence[float]]) -> tuple[float, float, int]:
    """What no test of one run of each side can better: it would know how much runs of the same code differ.

    Args:
        runs: The steps of runs of the same code.

    Returns:
        The standard deviation of a run's median, as a share; the share of pairs in which a test with 5 % of false
        alarms finds 2 %; and how many runs a side it needs to find them in 95 %.
    """
    spread = float(np.log([np.median(run) for run in runs]).std(ddof=1))
    normal, added = NormalDist(), log(_ADDED)
    beyond = normal.inv_cdf(1 - _ALARMS / 2)
    found = normal.cdf(added / (spread * sqrt(2)) - beyond)
    return spread, found, ceil(2 * (spread * (beyond + normal.inv_cdf(1 - _ALARMS)) / added) ** 2)


def _count_alarms(intervals: Sequence[tuple[float, float]]) -> int:
    return sum(not low <= 0 <= high for low, high in intervals)


def _count_found(intervals: Sequence[tuple[float, float]]) -> int:
    """With 2 % more on one side the whole interval is that much higher, because it is one of logarithms."""
    return sum((1 + low) * _ADDED > 1 for low, _ in intervals)


def cpu_seconds(*words: str) -> float:
    """The processor time of a command and what it waited for."""
    with subprocess.Popen([sys.executable, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return usage.ru_utime + usage.ru_stime


def measure_speed(trace: Path) -> tuple[float, float]:
    """Median processor seconds of analyzing a trace, and of comparing it with its copy, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        twin = Path(folder) / trace.name
        shutil.copy(trace, twin)
        analyzing, comparing = [], []
        for _ in range(_ROUNDS):
            analyzing.append(cpu_seconds("-m", "perfscope", "analyze", str(trace)))
            comparing.append(cpu_seconds("-m", "perfscope", "compare", str(trace), str(twin)))
    return float(np.median(analyzing)), float(np.median(comparing))


def record(runs: int) -> list[list[float]]:
    """The undisturbed steps, in milliseconds, of runs of one small training on the CPU."""
    series = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(runs):
            run = f"{folder}/{number}"
            options = ["profile", "--exec", "--nvml-hz", "0", "--steps", "4-5", "-o", run, "--", sys.executable]
            command = [sys.executable, "-m", "perfscope", *options, *_TRAINING]
            subprocess.run(["nice", *command], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
            series.append(steps_of(Path(run)))
            shutil.rmtree(run)
    return series


def steps_of(run: Path) -> list[float]:
    """The undisturbed steps of a run in milliseconds."""
    times_ns = find_undisturbed(read_run(run).steps).times_ns()
    return [times_ns[step] / 1e6 for step in sorted(times_ns)][-_COMPARED:]


def main() -> None:
    what, path = sys.argv[1], Path(sys.argv[2])
    if what == "speed":
        analyzing, comparing = measure_speed(path)
        print(
            f"analyze {analyzing:.2f} s, compare {comparing:.2f} s of processor time: {comparing / analyzing:.2f} times"
        )
    elif what == "record":
        path.write_text(json.dumps({"runs": record(_RUNS)}) + "\n")
    else:
        runs = [Samples((np.asarray(run),)) for run in json.loads(path.read_text())["runs"]]
        print(judge(list(pairwise(runs))))


if __name__ == "__main__":
    main()
