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
_TIMEOUT_S = 10
_TERMINAL_CODE = re.compile(r"\x1b\[[0-9;]*m")


def describe_run(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, object]:
    """Describe a run with the standard library alone, as inside a training job."""
    return {
        "schema": wire.SCHEMA,
        "perfscope": perfscope.__version__,
        "command": redact_arguments(command),
        "working_directory": os.getcwd(),
        "started_ns": time.time_ns(),
        "host": socket.gethostname(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: installed for name in _PACKAGES if (installed := _installed_version(name)) is not None},
        "environment": redact_environment(environment),
    }


def describe_machine() -> dict[str, object]:
    """Describe the commit of the working directory, the GPUs and their topology, by asking other programs."""
    outputs = {
        "git_commit": _read_output("git", "rev-parse", "HEAD"),
        "git_changes": _read_output("git", "status", "--porcelain", "--untracked-files=no"),
        "gpus": _read_output("nvidia-smi", "-L"),
        "driver": _read_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "topology": _read_output("nvidia-smi", "topo", "-m"),
    }
    return {name: output for name, output in outputs.items() if output}


def _installed_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _read_output(*command: str) -> str | None:
    """Read what a program prints; None where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return _TERMINAL_CODE.sub("", process.stdout).strip()
