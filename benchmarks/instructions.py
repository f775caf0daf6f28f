"""Instructions of a step ahead of a window and behind it, counted by valgrind: what a window leaves in host code.

Run: ``python -m benchmarks.instructions [--loop plain|megatron] [--steps N] [--json FILE]`` where valgrind and a C
compiler are installed; a CPU trains. Times of steps differ by percents by chance, and their instructions by a
thousandth. A callback that stayed registered, a wrapper, longer searches for garbage: each shows as instructions of all
threads of the process. What does not show is what CUPTI would do in launches of kernels, and caches.

A window of ``--modules --shapes`` opens in the middle. ``megatron`` trains Megatron-core's own model, schedule and
optimizer, as tests do it on CPUs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from benchmarks.training_loop import Size, Training
from perfscope import hooks
from perfscope.workloads.gpt import GptConfig

SCRIPTS = Path(__file__).resolve().parent.parent / "tests" / "scripts"
#: Built for each run: valgrind writes its counts at each call of the function.
_MARK_SOURCE = "#include <valgrind/callgrind.h>\nvoid write_counts(void) { CALLGRIND_DUMP_STATS; }\n"
_LIBRARY = "mark.so"
_AHEAD, _BEHIND = 6, 8  # blocks; the first one ahead warms caches up, and is left out
_WINDOW = 1  # block between them
_SINGLE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}


class Blocks:
    """Marks the ends of blocks of steps.

    Attributes:
        count: All steps of the training.
    """

    def __init__(self, steps: int, library: Path) -> None:
        self.count = (_AHEAD + _WINDOW + _BEHIND) * steps
        self._steps = steps
        self._trained = 0
        self._mark: Callable[[], object] = ctypes.CDLL(str(library)).write_counts

    def begin(self) -> None:
        """What was before the first step is a block of its own."""
        self._mark()

    def end_step(self) -> None:
        """Call it behind each step."""
        self._trained += 1
        if self._trained % self._steps == 0:
            self._mark()


def choose_window(steps: int) -> str:
    """The window for ``--steps``: it begins behind the first steps of its block, so that it ends in it."""
    first = _AHEAD * steps + 3
    return f"{first}-{first + 1}"


def _train_plain(blocks: Blocks) -> None:
    training = Training(Size(GptConfig(2, 32, 2, 64, 17), 1))
    blocks.begin()
    for _ in range(blocks.count):
        training.step()
        blocks.end_step()


def _train_megatron(blocks: Blocks) -> None:
    sys.path.insert(0, str(SCRIPTS))
    megatron: Any = import_module("megatron.training.training")
    train, train_step = megatron.train, megatron.train_step

    def train_longer(*inputs: object, start: int, **options: object) -> object:
        blocks.begin()
        return train(*inputs, start=start, **{**options, "end": start + blocks.count})

    def train_marked(*inputs: object, **options: object) -> object:
        result = train_step(*inputs, **options)
        blocks.end_step()
        return result

    megatron.train, megatron.train_step = train_longer, train_marked
    script = SCRIPTS / "megatron_core.py"
    sys.argv = [str(script), "train", "1", "1", "1"]
    runpy.run_path(str(script), run_name="__main__")


LOOPS = {"plain": _train_plain, "megatron": _train_megatron}


def run_child(loop: str, steps: int, folder: Path) -> None:
    """The process that is counted; it ends without the interpreter's end, which would be counted for minutes."""
    torch.set_num_threads(1)
    hooks.attach(str(folder / "run"), steps=choose_window(steps), nvml_hz=0, modules=True, shapes=True)
    LOOPS[loop](Blocks(steps, folder / _LIBRARY))
    os._exit(0)


def measure(loop: str, steps: int) -> dict[str, Any]:
    """Instructions of a step in each block.

    Raises:
        RuntimeError: The training failed, or its window was not recorded.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts, run_dir = folder / "counts", folder / "run"
        build = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / _LIBRARY)]
        subprocess.run(build, input=_MARK_SOURCE, text=True, check=True)
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={counts}"]
        command += [sys.executable, "-m", "benchmarks.instructions", "--child", str(folder)]
        command += ["--loop", loop, "--steps", str(steps)]
        ended = subprocess.run(
            command, env={**os.environ, **_SINGLE, "MASTER_PORT": "0"}, capture_output=True, text=True, check=False
        )
        blocks = _AHEAD + _WINDOW + _BEHIND
        files = [Path(f"{counts}.{number}") for number in range(2, blocks + 2)]
        if ended.returncode != 0 or not all(file.exists() for file in files):
            raise RuntimeError(ended.stderr[-3000:])
        if '"window"' not in "".join(path.read_text() for path in run_dir.glob("ranks/*/events.jsonl")):
            raise RuntimeError("no window was recorded")
        per_step = [_read_total(file) / steps for file in files]
    return summarize(loop, steps, per_step)


def summarize(loop: str, steps: int, per_step: list[float]) -> dict[str, Any]:
    """The figures of one loop; ``per_step`` are the instructions of a step in each block, in order."""
    ahead, behind = per_step[1:_AHEAD], per_step[_AHEAD + _WINDOW :]
    return {
        "loop": loop,
        "steps": steps,
        "torch": torch.__version__,
        "ahead": ahead,
        "behind": behind,
        "change_percent": 100 * (statistics.mean(behind) / statistics.mean(ahead) - 1),
        "error_percent": 100
        * (statistics.variance(ahead) / len(ahead) + statistics.variance(behind) / len(behind)) ** 0.5
        / statistics.mean(ahead),
    }


def _read_total(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("totals:"):
            return int(line.split()[1])
    raise RuntimeError(f"{path.name} has no total")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--loop", choices=tuple(LOOPS), action="append")
    parser.add_argument("--steps", type=int, default=20, help="Steps of a block.")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--child", type=Path)
    options = parser.parse_args()
    if options.child:
        return run_child(options.loop[0], options.steps, options.child)
    figures = [measure(loop, options.steps) for loop in options.loop or LOOPS]
    for part in figures:
        print(f"{part['loop']}: {part['change_percent']:+.2f} % (standard error {part['error_percent']:.2f})")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
