"""Trainings in pairs on the same cores: one below ``perfscope profile`` and one without, which take turns.

What cores of a host can do drifts within seconds, and differs from core to core; of a pair both feel it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

MARK = "turn "
_MOST_CORES = 2  # torch runs backward in a thread of its own


@dataclass(frozen=True)
class Place:
    """Where the processes of a pair run."""

    cores: Sequence[int]
    device: int


@dataclass(frozen=True)
class Role:
    """What a process of a pair is.

    Attributes:
        child: The part of ``benchmarks.overhead`` that it runs.
        windows: Its windows, as for ``--steps``.
        run_dir: Where perfscope writes; None without perfscope.
        errors: Where its standard error goes.
        small: Whether a CPU trains.
    """

    child: str
    windows: str
    run_dir: Path | None
    errors: Path
    small: bool


class Process:
    """One process of a pair."""

    def __init__(self, role: Role, place: Place) -> None:
        words = [sys.executable, "-m", "benchmarks.overhead", "--child", role.child, *(["--small"] * role.small)]
        if role.run_dir is not None:
            profile = ["profile", "--exec", "--run-dir", str(role.run_dir), "--steps", role.windows, "--"]
            words = [sys.executable, "-m", "perfscope", *profile, *words]
        self._errors = role.errors
        with role.errors.open("w") as file:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, "CUDA_VISIBLE_DEVICES": str(place.device)},
            )
        os.sched_setaffinity(self._process.pid, place.cores)  # its later threads and processes inherit them

    def read(self) -> str:
        """What it says next.

        Raises:
            RuntimeError: It failed.
        """
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(MARK):
                return line.removeprefix(MARK)
        raise RuntimeError(self._errors.read_text()[-2000:])

    def train(self, steps: int, kind: str) -> list[float]:
        """Train; the seconds of each step."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{steps} {kind}\n")
        self._process.stdin.flush()
        times: list[float] = json.loads(self.read())
        return times

    def end(self) -> None:
        """Let it end by itself."""
        self._process.communicate()


def say(times: Sequence[float] | None = None) -> None:
    """Tell the parent process that this one waits, with the seconds of its last steps."""
    print(MARK + ("" if times is None else json.dumps(times)), flush=True)


def choose_places(pairs: int) -> list[Place]:
    """Cores of its own for each pair, where there are enough."""
    cores, devices = sorted(os.sched_getaffinity(0)), max(1, torch.cuda.device_count())
    share = max(1, min(_MOST_CORES, len(cores) // pairs))
    own = [[cores[(pair * share + core) % len(cores)] for core in range(share)] for pair in range(pairs)]
    return [Place(place, pair % devices) for pair, place in enumerate(own)]
