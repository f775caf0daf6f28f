"""Compresses a finished trace in a process of its own at the lowest priority, because gzip would stall training.

Run by itself (``python -I -S compress.py TRACE...``) it imports the standard library only. One such process runs at a
time: if windows end faster than traces are compressed, the next process takes all traces of the queue.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import os
import shutil
import subprocess
import sys

_children: list[subprocess.Popen[bytes]] = []
_queue: list[str] = []
_MOST_PER_PROCESS = 100
_BLOCK_BYTES = 1024 * 1024


def start_compressing(path: str) -> None:
    """Compress a trace to .gz soon; a trace that is never compressed stays plain JSON, which all readers accept.

    The end of the launcher does not end the child, which has a session of its own and no pipe of the training process.
    """
    delay_compressing(path)
    _children[:] = [child for child in _children if child.poll() is None]
    if not _children:
        compress_queue()


def delay_compressing(path: str) -> None:
    """Compress a trace with the next one, or at the end: a process of its own still disturbs a window that follows."""
    _queue.append(path)


def compress_queue() -> None:
    """Start a process for the traces in the queue."""
    if not _queue:
        return
    paths = _queue[:_MOST_PER_PROCESS]
    del _queue[:_MOST_PER_PROCESS]
    with contextlib.suppress(OSError):
        _children.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", os.path.abspath(__file__), *paths],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env={},
            )
        )


def compress(path: str) -> None:
    """Replace a file by its .gz, atomically; wait for another process that compresses it.

    Raises:
        OSError: It cannot be written; the file is unchanged.
    """
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as source:
        fcntl.flock(source, fcntl.LOCK_EX)
        if not os.path.exists(path):
            return
        unfinished = f"{path}.gz.tmp"
        try:
            with gzip.open(unfinished, "wb", compresslevel=5) as target:
                shutil.copyfileobj(source, target, _BLOCK_BYTES)
            os.replace(unfinished, f"{path}.gz")
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(unfinished)
            raise
        os.unlink(path)


if __name__ == "__main__":
    os.nice(19)
    for trace in sys.argv[1:]:
        with contextlib.suppress(OSError):
            compress(trace)
