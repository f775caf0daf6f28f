"""Worker processes that end with the process that started them, however that ends."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_POLL_S = 1.0


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
