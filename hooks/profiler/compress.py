"""Compresses a finished trace in a process of its own at the lowest priority, because gzip would hold training up.

Run by itself (``python -I -S compress.py TRACE...``) it imports the standard library only. One such process runs at a
time: where windows end faster than traces are compressed, the next process takes all that wait.
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
_waiting: list[str] = []
_MOST_AT_ONCE = 100


def start_compressing(path: str) -> None:
    """Replace a trace by its .gz soon; one that is never taken stays plain, which all readers take.

    The launcher's end does not end the child: it has a session of its own and holds no pipe of the training process.
    """
    _waiting.append(path)
    _children[:] = [child for child in _children if child.poll() is None]
    if not _children:
        compress_waiting()


def compress_waiting() -> None:
    """Start a process for the traces that wait."""
    if not _waiting:
        return
    paths = _waiting[:_MOST_AT_ONCE]
    del _waiting[:_MOST_AT_ONCE]
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
    """Replace a file by its .gz, atomically; wait for another process that is at it.

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
                shutil.copyfileobj(source, target, 2**20)
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
