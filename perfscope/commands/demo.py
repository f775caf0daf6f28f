"""``perfscope demo``: a small training run on this machine, to see what a report looks like."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from perfscope import wire
from perfscope.errors import PerfscopeError, UsageError
from perfscope.outcome import Outcome

_RANKS = 2
_WORKLOAD = "gpt_deepspeed"


def demo(
    run_dir: Annotated[
        Path, typer.Option("-o", "--run-dir", help="Folder of the run; an earlier demo is replaced.")
    ] = Path("runs/demo"),
    steps: Annotated[int, typer.Option(help="Number of training steps.", min=1)] = 20,
) -> Outcome:
    """Train a small GPT with DeepSpeed on two ranks under `perfscope profile`, and print the report."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    launcher = shutil.which("deepspeed", path=path)
    if launcher is None:
        raise UsageError("deepspeed is not installed here", hint="make demo installs it beside perfscope in .venv")
    workload = find_spec(f"perfscope.workloads.{_WORKLOAD}")
    if workload is None or workload.origin is None:
        raise PerfscopeError("the demo's training script is missing", hint="reinstall perfscope-toolkit")
    if run_dir.exists():
        if not _is_demo(run_dir):
            raise UsageError(f"{run_dir} exists and is not an earlier demo", hint="choose another folder with -o")
        shutil.rmtree(run_dir)
    sys.stderr.write("perfscope: training a small GPT with DeepSpeed; the first run compiles for a minute\n")
    command = [launcher, "--num_gpus", str(_RANKS), "--master_port", str(_free_port()), workload.origin]
    training = subprocess.run(
        [sys.executable, "-m", "perfscope", "profile", "-o", str(run_dir), "--", *command, "--steps", str(steps)],
        env={"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // _RANKS)), **os.environ, "PATH": path},
        check=False,
    )
    if training.returncode != 0:
        raise PerfscopeError("the training failed, see above")
    report = subprocess.run(
        [sys.executable, "-m", "perfscope", "analyze", str(run_dir)], capture_output=True, text=True, check=False
    )
    return Outcome(text=f"{report.stdout}\nRun: {run_dir}\n", exit_code=report.returncode)


def _is_demo(run_dir: Path) -> bool:
    """Whether a folder is an earlier demo, which may be replaced."""
    run_file = run_dir / wire.RUN_FILE
    return run_file.is_file() and f"{_WORKLOAD}.py" in run_file.read_text()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
