"""Compresses a finished trace in a process of its own at the lowest priority, because gzip would hold training up.

Run by itself (``python -I -S compress.py TRACE``) it imports the standard library only.
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


def start_compressing(path: str) -> None:
    """Start to replace a trace by its .gz; where that cannot start the trace stays plain, which all readers take.

    The launcher's end does not end the child: it has a session of its own and holds no pipe of the training process.
    """
    _children[:] = [child for child in _children if child.poll() is None]
    with contextlib.suppress(OSError):
        _children.append(
            subprocess.Popen(
                [sys.executable, "-I", "-S", os.path.abspath(__file__), path],
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
    compress(sys.argv[1])
