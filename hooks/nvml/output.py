"""Where the NVML sampler writes its lines: a full file is closed, packed beside training, and followed by another one.

A week of a node with eight GPUs is two gigabytes of lines, and a twentieth of that in columns. Run beside the sampler:
this file imports nothing of perfscope, because it runs without perfscope on its path.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

#: Bytes of a full file.
FULL_BYTES = 4 << 20
_STDOUT = 1
_SUFFIX = ".jsonl"
_PACKER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "pack_records.py")


class Output:
    """The standard output, and the files that follow it where it is one; ``full=BYTES`` among the words is their size.

    Attributes:
        head: What each file begins with, beside the moment; set by the first line.
    """

    def __init__(self, words: Sequence[str]) -> None:
        self.head: dict[str, object] = {}
        stated = [word.partition("=")[2] for word in words if word.startswith("full=")]
        self._full_bytes = int(stated[0]) if stated else FULL_BYTES
        self._bytes = 0
        self._packer: subprocess.Popen[bytes] | None = None
        self._unpacked: list[str] = []

    def write(self, record: dict[str, object]) -> None:
        """Append a line.

        Raises:
            OSError: The disk is full or gone.
        """
        line = json.dumps(record, separators=(",", ":")).encode() + b"\n"
        if os.write(_STDOUT, line) != len(line):
            raise OSError("the disk is full: a line was cut")
        self._bytes += len(line)

    def rotate_if_full(self, now: dict[str, object]) -> None:
        """Begin another file where this one is full; one that cannot be followed goes on growing.

        Args:
            now: The moment, as in the first line.
        """
        if self._bytes < self._full_bytes:
            return
        self._bytes = 0
        with contextlib.suppress(OSError):
            path = _path_of_output()
            if path is not None:
                self._rotate(path, now)

    def _rotate(self, path: str, now: dict[str, object]) -> None:
        descriptor = _create_next(path)
        os.dup2(descriptor, _STDOUT)
        os.close(descriptor)
        self.write({**self.head, **now, "continues": True})
        self._unpacked.append(path)
        if self._packer is None or self._packer.poll() is not None:
            self._pack()

    def finish(self) -> None:
        """Pack what waits for another file to be packed, in a process that outlives this one."""
        if self._unpacked:
            with contextlib.suppress(OSError):
                self._pack()

    def _pack(self) -> None:
        paths, self._unpacked = self._unpacked, []
        self._packer = subprocess.Popen(
            [sys.executable, "-I", "-S", _PACKER, *paths],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={},
        )


def _path_of_output() -> str | None:
    """The file that the standard output is; None for a pipe."""
    if not stat.S_ISREG(os.fstat(_STDOUT).st_mode):
        return None
    path = os.readlink(f"/proc/self/fd/{_STDOUT}")
    return path if path.endswith(_SUFFIX) and os.path.exists(path) else None


def _create_next(path: str) -> int:
    """Create the file behind HOST.jsonl or HOST.7.jsonl: HOST.1.jsonl or HOST.8.jsonl, or the next free number.

    Raises:
        OSError: It cannot be created.
    """
    stem, _, number = path.removesuffix(_SUFFIX).rpartition(".")
    if not stem or not number.isdigit() or os.sep in number:
        stem, number = path.removesuffix(_SUFFIX), "0"
    following = int(number) + 1
    while True:
        try:
            return os.open(f"{stem}.{following}{_SUFFIX}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        except FileExistsError:
            following += 1
