"""Starts one NVML sampler a node: the first rank that claims the node does, and the sampler ends with it.

The claim is a socket in the kernel's abstract namespace, which the sampler inherits. It needs no file that a killed
process could leave behind or that a shared file system could show to another node. It is free again when the sampler
ends, so that a rank that starts again samples again.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import zlib

from perfscope import wire
from perfscope.hooks.config import Config

_samplers: list[subprocess.Popen[bytes]] = []


def start_sampler(config: Config) -> None:
    """Start the sampler, unless another rank of this node has started it; after a failure the run has no samples."""
    with contextlib.suppress(OSError):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0perfscope-nvml-{os.getuid()}-{zlib.crc32(config.run_dir.encode()):08x}")
            _start(config, claim.fileno())
        finally:
            claim.close()


def _start(config: Config, claim_descriptor: int) -> None:
    descriptor = _create_file(os.path.join(config.run_dir, wire.NVML_FOLDER))
    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sampler.py")
    try:
        # A process, not a thread, so that it never waits for the interpreter lock; no pipe of the launcher is held.
        _samplers.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", script, str(config.nvml_path), str(config.nvml_hz), str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=descriptor,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=(claim_descriptor,),
            )
        )
    finally:
        os.close(descriptor)


def _create_file(folder: str) -> int:
    """Create HOST.jsonl, or HOST.1.jsonl and so on if the node was sampled before in this run.

    Raises:
        OSError: It cannot be created.
    """
    os.makedirs(folder, exist_ok=True)
    host = socket.gethostname()
    attempt = 0
    while True:
        name = f"{host}.jsonl" if attempt == 0 else f"{host}.{attempt}.jsonl"
        try:
            return os.open(os.path.join(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            attempt += 1
