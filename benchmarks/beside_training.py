"""Steps of a training, in blocks: alone, while traces are compressed, and while they are compressed and measured.

    torchrun --nproc-per-node 2 -m benchmarks.beside_training --parallel ddp --folder /tmp/bench --write FIGURES.json
    python -m benchmarks.beside_training --report FIGURES.json

One training does it all, because two trainings differ by more than what is measured here. Each rank has traces of a
real window on H200 (``fixtures/traces/ddp4``) compressed as the hooks have it done, which starts the process that
measures them; in other blocks the compressor is told not to start it. A turn has the blocks ABCCBA, so that what drifts
evenly cancels. A block has as many steps as fit into the time from the first process to the last file of partials,
found out before the first turn. The table says how many of these files were written, and when: without them, or long
after their block, it would show nothing.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from benchmarks.many_traces import SOURCES
from benchmarks.partials import commands
from perfscope.constants import NS_PER_MS, NS_PER_S
from perfscope.hooks.profiler import compressors
from perfscope.wire.traces import partials_path
from perfscope.workloads.gpt_torch import Training, build, option_parser

ALONE, COMPRESSED, MEASURED = ARMS = ("alone", "compressed", "measured")
WARMUP, BETWEEN = 60, 30
LONGEST_WAIT_S, LOOK_EVERY_S, SETTLE_S = 8.0, 0.02, 0.3
FEWEST_STEPS = 20


def main() -> None:
    parser = option_parser()
    parser.add_argument("--folder", type=Path, help="for the traces; emptied")
    parser.add_argument("--traces", type=int, default=6, help="of each rank in each block")
    parser.add_argument("--seconds", type=float, default=60, help="no turn is begun that would end later")
    parser.add_argument("--report", type=Path, metavar="FIGURES.json", help="write figures as a table")
    parser.add_argument("--write", type=Path, help="a file for the figures")
    options = parser.parse_args()
    if options.report:
        print(document(json.loads(options.report.read_text())))
        return
    until_s = time.monotonic() + options.seconds
    training = build(options)
    ranks = Ranks(training, options.folder, options.traces)
    figures = ranks.measure(until_s, options.write if ranks.rank == 0 else None)
    if ranks.rank == 0:
        print(document(figures))
    dist.destroy_process_group()


class Ranks:
    """This process among the ranks of a training, and the traces that it has compressed.

    Args:
        training: What it trains.
        folder: A folder that all ranks share.
        traces: How many traces each rank has compressed in a block.
    """

    def __init__(self, training: Training, folder: Path, traces: int) -> None:
        self.rank = dist.get_rank()
        self._training = training
        self._count = traces
        self._text = gzip.decompress(SOURCES[self.rank % len(SOURCES)].read_bytes())
        self._folder = folder / f"rank{self.rank}"

    def measure(self, until_s: float, written: Path | None) -> dict[str, Any]:
        """Turns until it is time; the figures of this rank, written behind each turn."""
        self._train(WARMUP)
        first = self._block(MEASURED, FEWEST_STEPS)
        longest_s = 0.0
        steps = self._agree(int(first["last_partials_ns"] / max(1, first["mean_ns"])) + 1)
        figures: dict[str, Any] = {
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "none",
            "processors": len(os.sched_getaffinity(0)),
            "ranks": dist.get_world_size(),
            "traces_of_a_rank": self._count,
            "steps_of_a_block": max(FEWEST_STEPS, steps),
            "turns": [],
        }
        while self._agree(int(time.monotonic() + longest_s < until_s)):
            began_s = time.monotonic()
            figures["turns"].append([self._block(arm, figures["steps_of_a_block"]) for arm in (*ARMS, *ARMS[::-1])])
            longest_s = max(longest_s, time.monotonic() - began_s)
            if written is not None:
                written.write_text(json.dumps(figures, indent=1) + "\n")
        return figures

    def _agree(self, number: int) -> int:
        """The smallest number of all ranks."""
        agreed = torch.tensor([number], device=self._training.device)
        dist.all_reduce(agreed, dist.ReduceOp.MIN)
        return int(agreed.item())

    def _block(self, arm: str, steps: int) -> dict[str, Any]:
        """So many steps, while the traces of all ranks are compressed and measured as the arm has it."""
        paths = self._write_traces()
        self._train(BETWEEN)
        self._agree(0)
        began_ns = time.time_ns()
        self._start(arm, paths)
        times_ns = self._train(steps)
        compressed = [Path(f"{path}.gz") for path in paths]
        measured = [Path(partials_path(str(path))) for path in compressed]
        expected = {ALONE: [], COMPRESSED: compressed, MEASURED: measured}[arm]
        limit_s = time.monotonic() + LONGEST_WAIT_S
        while not all(path.exists() for path in expected) and time.monotonic() < limit_s:
            time.sleep(LOOK_EVERY_S)
        time.sleep(SETTLE_S)
        compressed_ns, measured_ns = (
            [path.stat().st_mtime_ns - began_ns for path in files if path.exists()] for files in (compressed, measured)
        )
        return {
            "arm": arm,
            "mean_ns": sum(times_ns) // len(times_ns),
            "median_ns": int(statistics.median(times_ns)),
            "block_ns": sum(times_ns),
            "compressed": len(compressed_ns),
            "last_compressed_ns": max(compressed_ns, default=0),
            "partials": len(measured_ns),
            "last_partials_ns": max(measured_ns, default=0),
        }

    def _write_traces(self) -> list[str]:
        """Traces as windows leave them."""
        shutil.rmtree(self._folder, ignore_errors=True)
        (self._folder / "traces").mkdir(parents=True)
        paths = [self._folder / "traces" / f"vm_{number}.1.pt.trace.json" for number in range(self._count)]
        for path in paths:
            path.write_bytes(self._text)
        return [str(path) for path in paths]

    def _start(self, arm: str, paths: Sequence[str]) -> None:
        if arm == MEASURED:
            for path in paths:
                compressors.delay_compressing(path)
            compressors.compress_queue()
        elif arm == COMPRESSED:
            words = commands("compress", [Path(path) for path in paths], together=True)[0]
            subprocess.Popen(words, start_new_session=True, stdin=subprocess.DEVNULL, env={})

    def _train(self, steps: int) -> list[int]:
        """The time of each step on the host; the last one ends when the device is done."""
        moments_ns = [time.monotonic_ns()]
        for number in range(steps):
            self._training.step()
            if number == steps - 1 and self._training.device.type == "cuda":
                torch.cuda.synchronize()
            moments_ns.append(time.monotonic_ns())
        return [after - before for before, after in pairwise(moments_ns)]


def change_of(turns: Sequence[Sequence[Mapping[str, Any]]], arm: str, base: str) -> tuple[float, float | None]:
    """By how much longer steps took in one arm than in another, as a share, and its standard error over the turns."""
    changes = []
    for turn in turns:
        means = {name: sum(math.log(block["mean_ns"]) for block in turn if block["arm"] == name) / 2 for name in ARMS}
        changes.append(means[arm] - means[base])
    error = statistics.stdev(changes) / math.sqrt(len(changes)) if len(changes) > 1 else None
    return math.expm1(statistics.mean(changes)), error


def document(figures: Mapping[str, Any]) -> str:
    """The figures as a table."""
    turns = figures["turns"]
    lines = [
        f"{figures['ranks']} ranks on {figures['device']}, {figures['processors']} processors, torch "
        f"{figures['torch']}; {len(turns)} turns of six blocks of {figures['steps_of_a_block']} steps. Each rank has "
        f"{figures['traces_of_a_rank']} traces of 13 MB in a block.",
        "",
        "| Steps | Mean step (ms) | Over alone | Files of partials written, of so many | The last one, of the "
        "block's time |",
        "|:---|---:|---:|---:|---:|",
    ]
    for arm in ARMS:
        blocks = [block for turn in turns for block in turn if block["arm"] == arm]
        mean_ms = statistics.mean(block["mean_ns"] for block in blocks) / NS_PER_MS
        written = sum(block["partials"] for block in blocks)
        expected = len(blocks) * figures["traces_of_a_rank"] if arm == MEASURED else 0
        share = max(block["last_partials_ns"] / block["block_ns"] for block in blocks)
        lines.append(
            f"| {arm} | {mean_ms:.3f} | {_told(*change_of(turns, arm, ALONE)) if arm != ALONE else ''} | "
            f"{written} of {expected} | {f'{share:.0%}' if written else 'n/a'} |"
        )
    block_s = statistics.mean(block["block_ns"] for turn in turns for block in turn) / NS_PER_S
    told = _told(*change_of(turns, MEASURED, COMPRESSED))
    return "\n".join([*lines, "", f"Measured over compressed: {told}. A block lasts {block_s:.1f} s."])


def _told(change: float, error: float | None) -> str:
    return f"{change:+.2%}" if error is None else f"{change:+.2%} ± {error:.2%}"


if __name__ == "__main__":
    main()
