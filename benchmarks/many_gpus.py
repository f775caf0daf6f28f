"""The runs that need four or eight GPUs, one after the other, in a folder where an interrupted series goes on.

Run: ``python -m benchmarks.many_gpus -o OUT [--ranks N] [--megatron FOLDER] [--only NAME,...] [--limit SECONDS]``. Each
run is a command with a folder of its own, OUT/NAME; OUT/NAME.json says how it ended and how long it took. The same
command skips what is done, and the benchmarks within a run skip what they have measured, so that a machine that
is taken away costs the training that was under way. ``--limit`` begins nothing behind that many seconds and ends what
still runs. ``--tiny`` takes models for CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import ROOT

WORKLOADS = ROOT / "perfscope" / "workloads"
#: Faults that hang a training, of which each has to be named among all ranks.
FAULTS = ("ddp:skip", "ddp:host", "fsdp2:skip", "deepspeed:host", "pipeline:skip", "pipeline:host")
_KILL_AFTER_S = 10
#: Always the same, as the command of a run must be, and not the launcher's own, which any other training takes.
_PORT = "--master_port=29571"


@dataclass(frozen=True)
class Series:
    """What all runs of a series share: ranks, whether models are tiny, and the folder of Megatron's script."""

    ranks: int
    is_tiny: bool
    megatron: Path | None = None


@dataclass(frozen=True)
class Run:
    """One run of the series: a name, which is that of its folder, and a command that writes below that folder.

    Attributes:
        finished: Exit codes of a command that has done its work; an answer that is wrong is an answer.
        goes_on: Whether the command goes on with what an interrupted one left; otherwise that is removed.
    """

    name: str
    command: tuple[str, ...]
    finished: tuple[int, ...] = (0,)
    goes_on: bool = True


def runs_of(series: Series, folder: Path) -> Iterator[Run]:
    """The runs, those first that no smaller machine can show."""
    python = (sys.executable, "-m")
    tiny = ("--tiny",) if series.is_tiny else ()
    sweep = (*python, "benchmarks.bubble_sweep", "--ranks", str(series.ranks), "--microbatches", "4", "8", "16", *tiny)
    for name, more in (
        *((("megatron_pp", ()), ("megatron_tp2_pp", ("--tensor", "2"))) if series.megatron else ()),
        ("deepspeed_pp", ()),
        ("torch_pp", ()),
    ):
        framework = name.partition("_")[0]
        scripts = ("--megatron", str(series.megatron)) if framework == "megatron" else ()
        yield Run(name, (*sweep, "--framework", framework, *scripts, *more, "-o", str(folder / name)))
    zero = (
        "--zero-stage=3",
        *(() if series.is_tiny else ("--layers=24", "--hidden=2048", "--heads=16", "--seq-len=1024")),
    )
    yield Run(
        "deepspeed_zero3",
        (
            *(*python, "perfscope", "profile", "-o", str(folder / "deepspeed_zero3" / "run"), "--"),
            *(*python, "deepspeed.launcher.runner", "--num_gpus", str(series.ranks), _PORT),
            *(str(WORKLOADS / "gpt_deepspeed.py"), *zero, "--steps=24"),
        ),
        goes_on=False,
    )
    matrix = (*python, "benchmarks.postmortem", "--ranks", str(series.ranks), *(() if series.is_tiny else ("--cuda",)))
    for fault in FAULTS:
        name = "postmortem_" + fault.replace(":", "_")
        command = (*matrix, "--only", fault, "--json", str(folder / name / "results.json"))
        yield Run(name, command, finished=(0, 1), goes_on=False)
    devices = ",".join(str(1 << power) for power in range(series.ranks.bit_length()))
    model = ("gpt:2x64x32", "--devices", "cpu", "--strategies", "ddp,fsdp2") if series.is_tiny else ("gpt2-small",)
    yield Run(
        "scaling",
        (*python, "perfscope", "bench", "--model", *model, "--nproc", devices, "-o", str(folder / "scaling" / "bench")),
    )


def is_done(folder: Path, run: Run) -> bool:
    """Whether an earlier series has finished this run, by the same command."""
    record = folder / f"{run.name}.json"
    if not record.is_file():
        return False
    earlier = json.loads(record.read_text())
    return earlier["returncode"] in run.finished and tuple(earlier["command"]) == run.command


def perform(folder: Path, run: Run, limit_s: float) -> int:
    """Run a command, its output in OUT/NAME.log, and write how it ended; returns the exit code, 124 for too long."""
    if not run.goes_on:
        shutil.rmtree(folder / run.name, ignore_errors=True)
    (folder / run.name).mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    began_s = time.monotonic()
    with (folder / f"{run.name}.log").open("ab") as log:
        process = subprocess.Popen(
            run.command,
            stdout=log,
            stderr=log,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            returncode = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGTERM)
            time.sleep(_KILL_AFTER_S)
            returncode = 124
        finally:
            _kill_group(process)
    ended = {"command": run.command, "returncode": returncode, "seconds": round(time.monotonic() - began_s, 1)}
    unfinished = folder / f"{run.name}.tmp"
    unfinished.write_text(json.dumps(ended, indent=1) + "\n")
    unfinished.replace(folder / f"{run.name}.json")
    return returncode


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    process.wait()


def perform_all(folder: Path, series: Series, only: frozenset[str], limit_s: float) -> bool:
    """Perform what is left of the series; whether every wanted run has ended well."""
    folder.mkdir(parents=True, exist_ok=True)
    began_s = time.monotonic()
    is_complete = True
    for run in runs_of(series, folder):
        if only and run.name not in only:
            continue
        left_s = limit_s - (time.monotonic() - began_s)
        if is_done(folder, run):
            print(f"{run.name}: done before", flush=True)
        elif left_s <= 0:
            print(f"{run.name}: no time is left", flush=True)
            is_complete = False
        else:
            returncode = perform(folder, run, left_s)
            print(f"{run.name}: exit code {returncode}", flush=True)
            is_complete &= returncode in run.finished
    return is_complete


def main() -> None:
    """Perform the series."""
    signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))  # so that the run is ended, too
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--megatron", type=Path, help="the folder of Megatron's pretrain_gpt.py")
    parser.add_argument("--only", default="", help="names of runs, separated by commas")
    parser.add_argument("--limit", type=float, default=1e9, help="seconds")
    parser.add_argument("--tiny", action="store_true", help="models for CPUs")
    arguments = parser.parse_args()
    series = Series(arguments.ranks, arguments.tiny, arguments.megatron and arguments.megatron.absolute())
    only = frozenset(word for word in arguments.only.split(",") if word)
    known = {run.name for run in runs_of(series, arguments.output)}
    if unknown := only - known:
        parser.error(f"{', '.join(sorted(unknown))}: no such run; known are {', '.join(sorted(known))}")
    sys.exit(0 if perform_all(arguments.output.absolute(), series, only, arguments.limit) else 1)


if __name__ == "__main__":
    main()
