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


@contextmanager
def start_workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Start a pool of workers, and leave none behind: not where this process is killed, nor after Ctrl-C."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    with ProcessPoolExecutor(count, context, _end_with_parent, (os.getpid(),)) as pool:
        try:
            yield pool
        except BaseException:
            # Nobody waits for the answers any more: what a worker is at may take minutes.
            for worker in {*multiprocessing.active_children()} - others:
                worker.kill()
            raise


def can_fork() -> bool:
    """Whether workers start at once, by a fork, which must not happen while another thread may hold a lock."""
    return "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1


def _end_with_parent(parent_pid: int) -> None:
    """End this process when its parent ends; Ctrl-C at the terminal is the parent's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    else:
        threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:  # it ended before
        os._exit(1)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(1)
    os._exit(1)
