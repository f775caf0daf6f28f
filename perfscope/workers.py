"""Worker processes that end with the process that started them, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing.context import BaseContext
from typing import ParamSpec, TypeVar

from perfscope.forks import end_with_parent

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: How often somebody looks whether a worker is gone.
_LOOK_EVERY_S = 1.0


class _Workers(ProcessPoolExecutor):
    """A pool that also breaks where a worker dies while it sends an answer.

    Who reads the answer then waits for the rest of it, and sees nothing else, until nobody is left who could send it.
    """

    def __init__(self, count: int, context: BaseContext) -> None:
        super().__init__(count, mp_context=context, initializer=end_with_parent, initargs=(os.getpid(),))
        self._has_ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See ``Executor.submit``; the first call starts the workers, which must be forked before any thread starts."""
        future = super().submit(fn, *args, **kwargs)
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, daemon=True)
            self._watcher.start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as above it
        """See ``Executor.shutdown``."""
        self._has_ended.set()
        if self._watcher is not None:
            self._watcher.join()
        super().shutdown(wait, cancel_futures=cancel_futures)

    def kill_all(self) -> None:
        """Kill every worker, whatever it is at; what they have not answered is never answered."""
        for worker in self._list():
            worker.kill()
        self._result_queue._writer.close()  # type: ignore[attr-defined]  # noqa: SLF001 - the last one who could send

    def _watch(self) -> None:
        was_lost = False
        while not self._has_ended.wait(_LOOK_EVERY_S):
            is_lost = any(worker.exitcode is not None for worker in self._list())
            if is_lost and was_lost:  # the pool notices at once, if it can
                self.kill_all()
                return
            was_lost = is_lost

    def _list(self) -> list[multiprocessing.Process]:
        return list((self._processes or {}).values())


@contextmanager
def start_workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start a pool of workers, and leave none behind: not where this process is killed, nor after Ctrl-C."""
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    pool = _Workers(count, context)
    try:
        yield pool
    except BaseException:
        # Nobody waits for the answers any more: what a worker is at may take minutes.
        pool.kill_all()
        pool.shutdown(cancel_futures=True)  # its threads have ended: other workers can be forked
        raise
    else:
        pool.shutdown()


def can_fork() -> bool:
    """Whether workers start at once, by a fork, which must not happen while another thread may hold a lock."""
    return "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
