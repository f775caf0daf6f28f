"""Worker processes that end with the process that started them, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from perfscope.forks import end_with_parent


@contextmanager
def start_workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start a pool of workers, and leave none behind: not where this process is killed, nor after Ctrl-C."""
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=end_with_parent, initargs=(os.getpid(),))
    try:
        yield pool
    except BaseException:
        # Nobody waits for the answers any more: what a worker is at may take minutes.
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in set(multiprocessing.active_children()) - others:
            worker.kill()
        raise
    else:
        pool.shutdown()


def can_fork() -> bool:
    """Whether workers start at once, by a fork, which must not happen while another thread may hold a lock."""
    return "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
