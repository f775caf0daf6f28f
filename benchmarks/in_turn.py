"""Runs a training script on one rank that waits ahead of each step until its job has a turn.

Run: ``python benchmarks/in_turn.py TURNS JOB FUNCTION SCRIPT [ARGUMENTS...]``, below a launcher. FUNCTION, as
``module:Class.method``, is what the script calls once a step. TURNS is a file that ``benchmarks.pipeline_pairs`` makes.
"""

from __future__ import annotations

import functools
import importlib
import mmap
import os
import runpy
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

JOBS = 2
MOST_RANKS = 8
_NUMBER = struct.Struct("q")
#: A wait is short while the job has its turns, and may be long before and behind them.
_SHORT_WAIT_S, _LONG_WAIT_S = 0.0001, 0.005
_SHORT_NS = 2_000_000_000


class Turns:
    """Numbers in a file that the processes of two jobs share: how many steps each may begin, and where its ranks are.

    A rank that waits for the first time has arrived once, and has arrived once more at the end of each step.
    """

    def __init__(self, path: Path) -> None:
        size = _NUMBER.size * JOBS * (1 + MOST_RANKS)
        with path.open("r+b" if path.exists() else "w+b") as file:
            file.truncate(size)
            self._memory = mmap.mmap(file.fileno(), size)

    def _get(self, place: int) -> int:
        return int(_NUMBER.unpack_from(self._memory, _NUMBER.size * place)[0])

    def _set(self, place: int, number: int) -> None:
        _NUMBER.pack_into(self._memory, _NUMBER.size * place, number)

    def allowed(self, job: int) -> int:
        """How many steps a job may begin."""
        return self._get(job)

    def allow(self, job: int, steps: int) -> None:
        """Let a job begin so many steps in all."""
        self._set(job, steps)

    def arrivals(self, job: int, ranks: int) -> list[int]:
        """How often each rank of a job has come to wait."""
        return [self._get(JOBS + job * MOST_RANKS + rank) for rank in range(ranks)]

    def arrive(self, job: int, rank: int, times: int) -> None:
        """A rank waits for the so many-th time."""
        self._set(JOBS + job * MOST_RANKS + rank, times)


class Gate:
    """What one rank passes ahead of each step; it writes when steps began and ended, on the host's monotonic clock."""

    def __init__(self, path: Path, job: int, rank: int) -> None:
        self._turns, self._job, self._rank = Turns(path), job, rank
        self._arrived = 0
        self._began_ns = 0
        self._file = path.with_name(f"{path.name}.{job}.{rank}").open("w")

    def wait(self) -> None:
        """Wait for the turn; all that the step before launched on the device is done then."""
        torch: Any = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.synchronize()
        ended_ns = time.monotonic_ns()
        if self._arrived:
            self._file.write(f"{self._began_ns} {ended_ns}\n")
            self._file.flush()
        self._arrived += 1
        self._turns.arrive(self._job, self._rank, self._arrived)
        while self._turns.allowed(self._job) < self._arrived:
            is_short = self._arrived > 1 and time.monotonic_ns() - ended_ns < _SHORT_NS
            time.sleep(_SHORT_WAIT_S if is_short else _LONG_WAIT_S)
        self._began_ns = time.monotonic_ns()


def put_gate(function: str, gate: Gate) -> None:
    """Let a function wait at the gate whenever it is called."""
    module, _, names = function.partition(":")
    owner: Any = importlib.import_module(module)
    *owners, name = names.split(".")
    for each in owners:
        owner = getattr(owner, each)
    original = getattr(owner, name)

    @functools.wraps(original)
    def call(*args: object, **kwargs: object) -> Any:  # noqa: ANN401 - of any function
        gate.wait()
        return original(*args, **kwargs)

    setattr(owner, name, call)


def choose_cores(cores: Sequence[int], rank: int, ranks: int) -> Sequence[int]:
    """The cores of a rank, of those of its job."""
    share = max(1, len(cores) // ranks)
    first = rank * share % len(cores)
    return cores[first : first + share]


def main() -> None:
    path, job, function, script = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.sched_setaffinity(0, choose_cores(sorted(os.sched_getaffinity(0)), rank, ranks))
    sys.argv = sys.argv[4:]
    sys.path[0] = os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - as Python itself does
    put_gate(function, Gate(path, job, rank))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
