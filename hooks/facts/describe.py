"""What a run is, for run.json: the command, the machine and the versions, without secrets."""

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
from typing import Any

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


def describe_run(command: Sequence[str], environment: Mapping[str, str]) -> dict[str, Any]:
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
        "versions": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "environment": redact_environment(environment),
    }


def describe_machine() -> dict[str, Any]:
    """What other programs tell: the commit of the working directory, the GPUs and how they are connected."""
    answers = {
        "git_commit": _ask("git", "rev-parse", "HEAD"),
        "git_changes": _ask("git", "status", "--porcelain", "--untracked-files=no"),
        "gpus": _ask("nvidia-smi", "-L"),
        "driver": _ask("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "topology": _ask("nvidia-smi", "topo", "-m"),
    }
    return {name: answer for name, answer in answers.items() if answer}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _ask(*command: str) -> str | None:
    """What a program prints; None where it is missing, fails or hangs."""
    if shutil.which(command[0]) is None:
        return None
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return _TERMINAL_CODE.sub("", answer.stdout).strip()
