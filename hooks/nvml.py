"""Starts one NVML sampler a node: the first rank that claims the node's file does, and the sampler ends with it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys

from perfscope import wire
from perfscope.hooks.config import Config

_samplers: list[subprocess.Popen[bytes]] = []


def start_sampler(config: Config) -> None:
    """Start the sampler, unless another rank of this node has; a failure leaves a run without samples."""
    folder = os.path.join(config.run_dir, wire.NVML)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{socket.gethostname()}.jsonl")
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
    except FileExistsError:
        return
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nvml_sampler.py")
    with contextlib.suppress(OSError):
        # A process, not a thread, so that it never waits for the interpreter lock; no pipe of the launcher is held.
        _samplers.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", script, str(config.nvml_path), str(config.nvml_hz), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        )
    os.close(descriptor)
