"""Starts the process that compresses finished traces: see ``perfscope.hooks.profiler.compress``.

One such process runs at a time: if windows end faster than traces are compressed, the next process takes all traces of
the queue.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence

#: What the process runs: a module, unlike a script, is not compiled by each of them.
_COMPRESS = "import sys; sys.path.append({folder!r}); import compress; compress.main(sys.argv[1:])"
#: Of the modules that measure what was compressed, where they are: nothing of the user's comes before them.
_PATH_VARIABLE = "PERFSCOPE_MODULES"
_MOST_PER_PROCESS = 100
_PACKAGE_FOLDERS = ("site-packages", "dist-packages")
#: A folder that holds one of them is a place of installed packages, whatever its name (``pip install --target``).
_PACKAGES = ("isal", "msgspec", "numpy")

_children: list[subprocess.Popen[bytes]] = []
_queue: list[str] = []


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
                command_of(paths),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                env=environment_of(list_folders()),
            )
        )


def command_of(paths: Sequence[str]) -> list[str]:
    """The words of the process that compresses traces, which no variable and no module of the user's reaches."""
    flags = ["-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
    folder = os.path.dirname(os.path.abspath(__file__))
    return [sys.executable, *flags, "-c", _COMPRESS.format(folder=folder), *paths]


def environment_of(folders: Sequence[str]) -> dict[str, str]:
    """The environment of the process: where it finds what measures."""
    return {_PATH_VARIABLE: os.pathsep.join(folders)}


def list_folders() -> list[str]:
    """The folders of Python and of installed packages that this process imports from, and the one of perfscope."""
    ours = os.path.dirname(os.path.dirname(sys.modules["perfscope"].__path__[0] + os.sep))
    return [*dict.fromkeys((*(os.path.abspath(path) for path in sys.path if _is_of_packages(path)), ours))]


def _is_of_packages(path: str) -> bool:
    prefixes = tuple(os.path.join(prefix, "") for prefix in {sys.prefix, sys.base_prefix, sys.base_exec_prefix})
    if os.path.basename(path) in _PACKAGE_FOLDERS or path.startswith(prefixes):
        return True
    return any(os.path.isfile(os.path.join(path, package, "__init__.py")) for package in _PACKAGES)
