"""The description of a run in run.json: the command, the machine and the versions, without secrets."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version

import perfscope
from perfscope import wire
from perfscope.hooks.facts.secrets import redact_arguments, redact_environment
from perfscope.hooks.guard import value_or_none
from perfscope.hooks.selection import StepWindow
from perfscope.hooks.side_process import PATIENCE_S

_PACKAGES = (
    "torch",
    "deepspeed",
    "megatron-core",
    "transformers",
    "accelerate",
    "lightning",
    "numpy",
    "nvidia-ml-py",
    "nvidia-nccl-cu12",
    "nvidia-nccl-cu13",
)
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")


def describe_run(
    command: Sequence[str],
    environment: Mapping[str, str],
    windows: Sequence[StepWindow],
    recorded: Sequence[str] = (),
) -> dict[str, object]:
    """Describe a run with the standard library alone, as inside a training job."""
    return {
        "schema": wire.SCHEMA,
        "perfscope": perfscope.__version__,
        "command": redact_arguments(command),
        "working_directory": value_or_none(os.getcwd),  # it may be deleted
        "windows": [(window.first, window.last) for window in windows],
        "recorded": list(recorded),
        "started_ns": time.time_ns(),
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: installed for name in _PACKAGES if (installed := _installed_version(name)) is not None},
        "environment": redact_environment(environment),
    }


def describe_machine() -> dict[str, object]:
    """Describe the commit of the working directory, the GPUs and their topology, by asking other programs."""
    commands = {
        "git_commit": ("git", "rev-parse", "HEAD"),
        "git_changes": ("git", "status", "--porcelain", "--untracked-files=no"),
        "gpus": ("nvidia-smi", "-L"),
        "driver": ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "topology": ("nvidia-smi", "topo", "-m"),
    }
    started = {name: _start(command) for name, command in commands.items()}
    ends_s = time.monotonic() + PATIENCE_S
    outputs = {name: _read_output(process, ends_s) for name, process in started.items() if process is not None}
    return {name: output for name, output in outputs.items() if output}


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _start(command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """Start a program that must not read the training's standard input; None where it is missing."""
    if shutil.which(command[0]) is None:
        return None
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, close_fds=True
        )
    except OSError:
        return None


def _read_output(process: subprocess.Popen[bytes], ends_s: float) -> str | None:
    try:
        output, _ = process.communicate(timeout=max(0.0, ends_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()  # and do not wait: a program that hangs in a driver ends only with the driver
        return None
    return _TERMINAL_CODE.sub("", output.decode(errors="replace")).strip() if process.returncode == 0 else None
