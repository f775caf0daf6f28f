"""Processes that are forked to compute one answer each, which they leave in memory, and that end with their parent.

Such a process starts within a few milliseconds and shares all that its parent has read and imported. Its answer is in
a file that exists in memory alone: columns of numbers are neither copied nor sent through a pipe.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import pickle
import signal
import struct
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic, NoReturn, TypeAlias, TypeVar, cast

_T = TypeVar("_T")
#: Signals that are blocked.
_Mask: TypeAlias = "set[int | signal.Signals]"
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_POLL_S = 1.0
_SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
#: An answer ends with the lengths of its pieces, how many these are, and this.
_LENGTH, _END = struct.Struct("<Q"), b"answered"
#: Where columns of numbers may begin.
_ALIGNMENT = 64


class NoAnswer(Exception):
    """A forked process ended without its answer."""


class Fork(Generic[_T]):
    """A forked process that computes an answer.

    Args:
        work: Computes it.
        unblocked: The mask of signals for it; those that ask a process to end are blocked while it is forked.

    Raises:
        OSError: No process, or no file for its answer, can be made.
    """

    def __init__(self, work: Callable[[], _T], unblocked: _Mask) -> None:
        self._file = os.memfd_create("perfscope-answer")
        self._has_answered = False
        parent_pid = os.getpid()
        try:
            self._whole, writer = os.pipe()
        except OSError:
            os.close(self._file)
            raise
        try:
            with warnings.catch_warnings():
                # Of threads of numerical libraries, which their own handlers end before a fork.
                warnings.simplefilter("ignore", DeprecationWarning)
                self._pid = os.fork()
        except OSError:
            for file in (self._file, self._whole, writer):
                os.close(file)
            raise
        if self._pid == 0:
            _answer(work, self._file, writer, parent_pid, unblocked)
        os.close(writer)

    def answer(self) -> _T:
        """Its answer, once it says that this is whole: to end and to free its memory takes it longer.

        Raises:
            NoAnswer: It was killed, or could not compute it.
        """
        self._has_answered = self._has_answered or bool(os.read(self._whole, 1))
        if not self._has_answered:
            raise NoAnswer
        return cast("_T", _read(self._file))

    def end(self) -> None:
        """End it, whatever it is at, and forget its answer."""
        with suppress(ChildProcessError):  # the parent lets the system forget children
            if os.waitpid(self._pid, os.WNOHANG) == (0, 0):
                os.kill(self._pid, signal.SIGKILL)  # one that has answered ends anyway
                os.waitpid(self._pid, 0)
        os.close(self._file)
        os.close(self._whole)


def can_fork() -> bool:
    """Whether processes can be forked, which must not happen while another thread may hold a lock."""
    return sys.platform == "linux" and hasattr(os, "memfd_create") and threading.active_count() == 1


@contextmanager
def forked(work: Callable[[], _T], count: int) -> Iterator[Sequence[Fork[_T]]]:
    """Fork up to so many processes, fewer where the system allows no more; leave the context to end them."""
    forks: list[Fork[_T]] = []
    try:
        # A handler of this process's must not run in another one.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        try:
            with suppress(OSError):
                forks.extend(Fork(work, unblocked) for _ in range(count))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        yield forks
    finally:
        for fork in forks:
            fork.end()


def end_with_parent(parent_pid: int) -> None:
    """End this process when its parent ends; Ctrl-C at the terminal is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:  # it ended before
        os._exit(1)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_POLL_S)
    os._exit(1)


def _answer(work: Callable[[], object], file: int, writer: int, parent_pid: int, unblocked: _Mask) -> NoReturn:
    """What the forked process does; nothing of its parent's runs in it, not even at its end."""
    code = 1
    try:
        gc.disable()  # it would write into all that is shared
        end_with_parent(parent_pid)
        for number in _SIGNALS - {signal.SIGINT}:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        _write(file, work())
        os.write(writer, b"\0")
        code = 0
    finally:
        os._exit(code)


def _write(file: int, answer: object) -> None:
    buffers: list[pickle.PickleBuffer] = []
    first = pickle.dumps(answer, protocol=5, buffer_callback=buffers.append)
    pieces = [memoryview(first), *(buffer.raw() for buffer in buffers)]
    for piece in pieces:
        _write_all(file, piece)
        _write_all(file, memoryview(bytes(-len(piece) % _ALIGNMENT)))
    lengths = (*map(len, pieces), len(pieces))
    _write_all(file, memoryview(b"".join(map(_LENGTH.pack, lengths)) + _END))


def _write_all(file: int, piece: memoryview) -> None:
    while len(piece):
        piece = piece[os.write(file, piece) :]


def _read(file: int) -> object:
    """The answer in a file, whose columns are views of it.

    Raises:
        NoAnswer: It is not whole.
    """
    size = os.fstat(file).st_size
    if size < _LENGTH.size + len(_END):
        raise NoAnswer
    content = memoryview(mmap.mmap(file, size, access=mmap.ACCESS_READ))
    end = size - len(_END) - _LENGTH.size
    (count,) = _LENGTH.unpack_from(content, end)
    if content[-len(_END) :] != _END or count * _LENGTH.size > end:
        raise NoAnswer
    pieces, begin = [], 0
    for (length,) in _LENGTH.iter_unpack(content[end - count * _LENGTH.size : end]):
        pieces.append(content[begin : begin + length])
        begin += length + -length % _ALIGNMENT
    return pickle.loads(pieces[0], buffers=pieces[1:])
