"""Starts a process beside training, one a node: the first rank that claims the node does.

It is no child of the training's, whose script may wait for all of its children: a process in between forks it and ends.

The claim is a socket in the kernel's abstract namespace, which the process inherits. No killed process leaves it
behind, and no shared file system shows it to another node. A rank that starts again starts another process.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What the process in between runs; ``posix`` is built in, so that no file of Python's is read for it.
_FORK = (
    "import posix\n"
    "if posix.fork(): posix._exit(0)\n"
    "import runpy, sys\n"
    "sys.argv[:] = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)
#: So long another program is awaited.
PATIENCE_S = 10


def start_once_a_node(purpose: str, run_dir: str, output_folder: str, script: str, arguments: Sequence[str]) -> None:
    """Start a script, unless another rank of this node has; after a failure the run lacks what it would write.

    Its output goes to HOST.jsonl in ``output_folder``. It runs without the environment's packages on its path.
    """
    with contextlib.suppress(OSError):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0perfscope-{purpose}-{os.getuid()}-{zlib.crc32(run_dir.encode()):08x}")
            _start(output_folder, [script, *arguments], claim.fileno())
        finally:
            claim.close()


def _start(output_folder: str, words: Sequence[str], claim_descriptor: int) -> None:
    descriptor = _create_file(output_folder)
    try:
        # A process, not a thread, so that it never waits for the interpreter lock; no pipe of the launcher is held.
        between = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _FORK, *words],
            stdin=subprocess.DEVNULL,
            stdout=descriptor,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(claim_descriptor,),
        )
        with contextlib.suppress(subprocess.TimeoutExpired):
            between.wait(PATIENCE_S)
    finally:
        os.close(descriptor)


def _create_file(folder: str) -> int:
    """Create HOST.jsonl, or HOST.1.jsonl and so on where there is one of this run already."""
    os.makedirs(folder, exist_ok=True)
    host, attempt = socket.gethostname(), 0
    while True:
        path = os.path.join(folder, f"{host}.{attempt}.jsonl" if attempt else f"{host}.jsonl")
        with contextlib.suppress(FileExistsError):
            if not os.path.exists(f"{path}.gz"):  # full files are compressed, which frees their names
                return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        attempt += 1
