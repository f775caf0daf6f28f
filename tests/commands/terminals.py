"""A real pseudo-terminal, and what a person sees on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len

from tests.conftest import environment

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: The bar of progress removes itself: it goes one line up and clears it.
_BAR_GONE = "\x1b[1A\x1b[2K"


@dataclass(frozen=True)
class Seen:
    """What a command wrote on a terminal.

    Attributes:
        code: Its exit code.
        written: All of it, with the codes of colours.
    """

    code: int
    written: str

    @property
    def lines(self) -> list[str]:
        """The lines that stay, as a person sees them."""
        return _ESCAPE.sub("", self.written.rsplit(_BAR_GONE, 1)[-1]).splitlines()

    @property
    def widest(self) -> int:
        return max(cell_len(line) for line in self.lines)


def on_terminal(*words: str | Path, size: tuple[int, int] = (80, 24), cwd: Path, setting: str = "") -> Seen:
    """Run perfscope on a pseudo-terminal of a width and a height, with one more setting of its environment."""
    main, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    settings = {**environment(), "TERM": "xterm-256color"}
    for name in ("COLUMNS", "LINES", "NO_COLOR"):
        settings.pop(name, None)
    if setting:
        name, value = setting.split("=", 1)
        settings[name] = value
    command = [sys.executable, "-m", "perfscope", *map(str, words)]
    with subprocess.Popen(command, cwd=cwd, stdin=worker, stdout=worker, stderr=worker, env=settings) as process:
        os.close(worker)
        written = b"".join(iter(lambda: _read(main), b""))
    os.close(main)
    return Seen(process.returncode, written.decode().replace("\r\n", "\n"))


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # nobody holds the other end any more
        return b""
