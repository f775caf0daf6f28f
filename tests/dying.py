"""Work that is killed at each of its steps on disk, one after the other, as a host's end or ``kill -9`` ends it."""

from __future__ import annotations

import os
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

#: What changes a file system, or is the last moment before it.
_CHANGES = frozenset(
    {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.chmod", "os.truncate", "os.utime"}
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_FAILED = 3


def kill_at_each_step(work: Callable[[], object]) -> Iterator[int]:
    """Do work again and again, killed before its first change of the file system, its second one, and so on.

    Yields the number of the change each time that the work was killed, and ends when it was not. Who iterates looks at
    what is left, and makes what was there before.
    """
    for number in count(1):
        status = _fork(work, partial(_die_before, number))
        if status == 0:
            return
        assert status == -signal.SIGKILL, status
        yield number


def kill_at_size(work: Callable[[], object], size: int) -> bool:
    """Do work that is killed where a file would grow beyond so many bytes; False where none does."""
    status = _fork(work, partial(_die_beyond, size))
    assert status in (0, -signal.SIGXFSZ), status
    return status != 0


def _fork(work: Callable[[], object], prepare: Callable[[], None]) -> int:
    """How a forked process ends that does the work: 0, or a negative signal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the threads of who runs the tests
        pid = os.fork()
    if pid == 0:
        code = _FAILED
        try:
            prepare()
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _die_before(number: int) -> None:
    left = number

    def on_event(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        flags = arguments[2] if event == "open" else 0
        if event not in _CHANGES and not (isinstance(flags, int) and flags & _WRITES):
            return
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(on_event)


def _die_beyond(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
