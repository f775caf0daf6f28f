"""Worker processes that end with the process that started them, however that ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import NamedTuple, ParamSpec, TypeVar, cast

_P = ParamSpec("_P")
_A = TypeVar("_A")
_T = TypeVar("_T")
_END = b""
_LOST = "a worker was killed, perhaps because memory ran out"
_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_POLL_S = 1.0


class _Worker(NamedTuple):
    """A process, and the pipe through which it is asked."""

    process: BaseProcess
    pipe: Connection


class Workers:
    """A pool of processes. One that dies costs the call that it had, which raises BrokenProcessPool.

    Each worker has its own pipe, and a thread of this process reads the other end. A worker's death ends its pipe, also
    during an answer. The standard library's pool has one pipe for all answers: after half an answer its reader waits
    for ever.
    """

    def __init__(self, count: int) -> None:
        self._idle: SimpleQueue[_Worker] = SimpleQueue()
        self._all: list[_Worker] = []
        self._is_ending = False
        for _ in range(count):
            self._idle.put(self._start())  # before there is a thread, so that they are forked
        self._threads = ThreadPoolExecutor(count)

    def submit(self, call: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Let a worker make a call; what it raises is raised where the answer is asked for."""
        return self._threads.submit(self._ask, call, args, kwargs)

    def map(self, call: Callable[[_A], _T], items: Iterable[_A]) -> Iterator[_T]:
        """The answers for all items, in their order."""
        futures = [self.submit(call, item) for item in items]
        return (future.result() for future in futures)

    def end(self, *, is_at_once: bool) -> None:
        """End all workers when they have answered, or now; whatever they are at is lost then."""
        self._is_ending = is_at_once
        if is_at_once:
            for worker in self._all:
                worker.process.kill()
        self._threads.shutdown(cancel_futures=is_at_once)
        for worker in self._all:
            with suppress(OSError):  # one that is gone needs no end
                worker.pipe.send_bytes(_END)  # it would not see that of the pipe, both of whose ends a fork has
            worker.process.join()
            worker.pipe.close()

    def _start(self) -> _Worker:
        context = multiprocessing.get_context("fork" if can_fork() else "spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, os.getpid()))  # type: ignore[attr-defined]
        process.start()
        theirs.close()  # so that the worker is the only one who could send
        worker = _Worker(process, ours)
        self._all.append(worker)
        return worker

    def _ask(self, call: Callable[..., _T], args: tuple[object, ...], kwargs: dict[str, object]) -> _T:
        worker = self._idle.get()
        try:
            worker.pipe.send((call, args, kwargs))
            is_answered, answer = worker.pipe.recv()
        except (OSError, EOFError):
            worker.process.kill()
            if not self._is_ending:
                worker = self._start()
            raise BrokenProcessPool(_LOST) from None
        finally:
            self._idle.put(worker)
        if not is_answered:
            raise answer
        return cast("_T", answer)


def _work(pipe: Connection, parent_pid: int) -> None:
    """Answer one call after the other until the end is sent: with a result, or with what the call raised."""
    _end_with_parent(parent_pid)
    while True:
        content = pipe.recv_bytes()
        if content == _END:
            return
        try:
            call, arguments, options = pickle.loads(content)
            pipe.send((True, call(*arguments, **options)))
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            error.add_note("".join(traceback.format_exception(error)))
            pipe.send((False, error))


@contextmanager
def start_workers(count: int) -> Iterator[Workers]:
    """Start a pool of workers, and leave none behind: not where this process is killed, nor after Ctrl-C."""
    pool = Workers(count)
    try:
        yield pool
    except BaseException:
        # Nobody waits for the answers any more: what a worker is at may take minutes.
        pool.end(is_at_once=True)
        raise
    pool.end(is_at_once=False)


def can_fork() -> bool:
    """Whether workers start at once, by a fork, which must not happen while another thread may hold a lock."""
    return "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1


def _end_with_parent(parent_pid: int) -> None:
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
