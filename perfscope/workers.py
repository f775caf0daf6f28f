"""Worker processes that end with the process that started them, however that ends."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, ParamSpec, TypeAlias, TypeVar

from perfscope.forks import end_with_parent

_P = ParamSpec("_P")
_T = TypeVar("_T")
#: What a worker has to do: a function and its arguments.
_Call: TypeAlias = "tuple[Callable[..., object], tuple[object, ...], dict[str, object]]"
_END = b""
_LOST = "a worker was killed, perhaps because memory ran out"


class _Task(NamedTuple):
    """A call, and where its answer goes."""

    future: Future[Any]
    call: _Call


class Workers(Executor):
    """A pool of processes, all of which are given up where one of them dies: what they had to do raises then.

    Each worker has a pipe of its own, whose other end a thread of this process reads: a worker that dies, also while it
    sends an answer, is the end of its pipe. The standard library's pool has one pipe for all answers, so that who reads
    half of one waits for the rest for ever.
    """

    def __init__(self, count: int, context: BaseContext) -> None:
        self._count = count
        self._context = context
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._processes: list[BaseProcess] = []
        self._threads: list[threading.Thread] = []
        self._is_broken = threading.Event()

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:
        """See ``Executor.submit``; the first call starts the workers, which must be forked before any thread starts.

        Raises:
            BrokenProcessPool: A worker has died.
        """
        if self._is_broken.is_set():
            raise BrokenProcessPool(_LOST)
        if not self._threads:
            self._start()
        future: Future[_T] = Future()
        self._tasks.put(_Task(future, (fn, args, kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002 - as above it
        """See ``Executor.shutdown``; whoever waits also waits for the processes to end."""
        if cancel_futures:
            self._refuse_all()
        for _ in self._threads:
            self._tasks.put(None)
        if wait:
            for thread in self._threads:
                thread.join()
            for process in self._processes:
                process.join()

    def kill_all(self) -> None:
        """Kill every worker, whatever it is at; what they have not answered is never answered."""
        self._is_broken.set()
        for process in self._processes:
            process.kill()

    def _start(self) -> None:
        pipes = []
        for _ in range(self._count):
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_work, args=(theirs, os.getpid()))  # type: ignore[attr-defined]
            process.start()
            theirs.close()  # so that the worker is the only one who could send
            self._processes.append(process)
            pipes.append(ours)
        self._threads = [threading.Thread(target=self._ask, args=(ours,), daemon=True) for ours in pipes]
        for thread in self._threads:
            thread.start()

    def _ask(self, worker: Connection) -> None:
        """Ask one worker for one thing after the other, until nothing is left."""
        with worker:
            while (task := self._tasks.get()) is not None:
                if not task.future.set_running_or_notify_cancel():
                    continue
                if self._is_broken.is_set():
                    task.future.set_exception(BrokenProcessPool(_LOST))
                    continue
                try:
                    is_answered, answer = _exchange(worker, task.call)
                except (OSError, EOFError):
                    self.kill_all()
                    is_answered, answer = False, BrokenProcessPool(_LOST)
                except Exception as error:  # noqa: BLE001 - whatever cannot be sent is the caller's, as if it had called
                    is_answered, answer = False, error
                if is_answered:
                    task.future.set_result(answer)
                else:
                    task.future.set_exception(answer)
            with suppress(OSError):  # a worker that is gone needs no end
                worker.send_bytes(_END)  # it would not see that of the pipe, both of whose ends a fork has

    def _refuse_all(self) -> None:
        with suppress(Empty):
            while True:
                task = self._tasks.get_nowait()
                if task is not None:
                    task.future.cancel()


def _exchange(worker: Connection, call: _Call) -> tuple[bool, Any]:
    worker.send(call)
    is_answered, answer = worker.recv()
    return is_answered, answer


def _work(pipe: Connection, parent_pid: int) -> None:
    """Answer one call after the other until the end is sent: with a result, or with what the call raised."""
    end_with_parent(parent_pid)
    while True:
        content = pipe.recv_bytes()
        if content == _END:
            return
        try:
            function, arguments, options = pickle.loads(content)
            pipe.send((True, function(*arguments, **options)))
        except Exception as error:  # noqa: BLE001 - it is raised where the answer is waited for
            error.add_note("".join(traceback.format_exception(error)))
            pipe.send((False, error))


@contextmanager
def start_workers(count: int) -> Iterator[Workers]:
    """Start a pool of workers, and leave none behind: not where this process is killed, nor after Ctrl-C."""
    context = multiprocessing.get_context("fork" if can_fork() else "spawn")
    pool = Workers(count, context)
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
