"""One line on standard error, written so that it cannot change how the process that writes it ends.

It waits for no reader and dies by no broken pipe. It leaves nothing in the stream's buffer: if Python failed to write
it at exit, an exit code of 0 would become 120.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Iterator
from io import TextIOWrapper

from perfscope.constants import MS_PER_S
from perfscope.hooks.guard import call_safely


def write_message(text: str, patience_s: float = 0.0) -> None:
    """Write one line in perfscope's name; see ``write_line``."""
    write_line(f"perfscope: {text}", patience_s)


def write_line(line: str, patience_s: float = 0.0) -> None:
    """Write one line to standard error; it is lost where that is closed, full, or not read for so many seconds."""
    stream = sys.stderr
    if isinstance(stream, TextIOWrapper) and stream is sys.__stderr__:
        call_safely(lambda: _write_all(stream, line, time.monotonic() + patience_s))
    elif stream is not None:  # the script's own, which may have no file
        call_safely(lambda: stream.write(f"{line}\n"))


def _write_all(stream: TextIOWrapper, line: str, give_up_s: float) -> None:
    """Write to the stream's file, past its buffer, which is empty after each line. Raises OSError: that fails."""
    descriptor = stream.fileno()
    rest = f"{line}\n".encode(stream.encoding or "utf-8", "backslashreplace")
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    with _without_broken_pipe_signal():
        while rest and poll.poll(max(0.0, (give_up_s - time.monotonic()) * MS_PER_S)):
            with contextlib.suppress(BlockingIOError):
                rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]


@contextlib.contextmanager
def _without_broken_pipe_signal() -> Iterator[None]:
    """A script may have restored the default action of SIGPIPE, which is to die."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        yield
    finally:
        if signal.SIGPIPE not in mask:
            signal.sigtimedwait({signal.SIGPIPE}, 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
