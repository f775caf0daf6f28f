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
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import ParamSpec, TypeVar
from uuid import uuid4

_P = ParamSpec("_P")
_T = TypeVar("_T")


class WorkerPool(ProcessPoolExecutor):
    """A pool whose answers travel in files: a worker that is killed leaves no half of one in the pipe of all."""

    folder = ""

    def submit(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """Call a function in a worker; the answer is what pickle accepts."""
        answer: Future[_T] = Future()
        stored = super().submit(_store, self.folder, partial(function, *args, **kwargs))
        answer.set_running_or_notify_cancel()
        stored.add_done_callback(partial(_load, answer))
        return answer


def _store(folder: str, function: Callable[[], object]) -> str:
    content = pickle.dumps(function(), pickle.HIGHEST_PROTOCOL)
    path = Path(folder, uuid4().hex)
    path.write_bytes(content)
    return str(path)


def _load(answer: Future[_T], stored: Future[str]) -> None:
    try:
        path = Path(stored.result())
        content = path.read_bytes()
        path.unlink()
        answer.set_result(pickle.loads(content))
    except Exception as error:  # noqa: BLE001 - it is raised where the answer is asked for
        answer.set_exception(error)


@contextmanager
def start_workers(count: int) -> Iterator[WorkerPool]:
    """Start a pool of workers, and leave none behind: not where this process is killed, nor after Ctrl-C."""
    others = set(multiprocessing.active_children())
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    with (
        TemporaryDirectory(prefix="perfscope-") as folder,
        WorkerPool(count, context, _end_with_parent, (os.getpid(),)) as pool,
    ):
        pool.folder = folder
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
