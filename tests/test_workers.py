"""Worker processes end with the process that started them, and one that dies is noticed at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from perfscope.workers import start_workers
from tests.conftest import ROOT

SCRIPT = """
import os, sys, threading, time
from perfscope.workers import start_workers

def pid(_number):
    time.sleep(0.2)
    return os.getpid()

if __name__ == "__main__":
    if sys.argv[1] == "spawn":
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    with start_workers(2) as pool:
        print(*{*pool.map(pid, range(4))}, flush=True)
        pool.submit(time.sleep, 1000).result()
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_no_worker_outlives_its_parent(number: signal.Signals, method: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    with subprocess.Popen(
        [sys.executable, "script.py", method],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        workers = [int(word) for word in parent.stdout.readline().split()]
        parent.send_signal(number)
        ends = time.monotonic() + 60
        while time.monotonic() < ends and any(is_running(worker) for worker in workers):
            time.sleep(0.05)
        survivors = [worker for worker in workers if is_running(worker)]
        parent.kill()
    assert len(workers) == 2
    assert not survivors


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while_sending() -> bytes:
    def send_a_part(connection: Any, content: bytes) -> None:
        os.write(connection.fileno(), bytes(content[:1000]))
        die()

    setattr(Connection, "_send", send_a_part)  # noqa: B010
    return bytes(100_000)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("how", [die, die_while_sending])
def test_a_worker_that_dies_costs_the_call_that_it_had(how: Callable[[], object]) -> None:
    threads = threading.active_count()
    with start_workers(2) as pool:
        lost: Future[Any] = pool.submit(how)
        asked = [pool.submit(abs, -number) for number in range(9)]
        with pytest.raises(BrokenProcessPool, match="a worker was killed"):
            lost.result()
        assert [future.result() for future in asked] == list(range(9))
        assert pool.submit(abs, -1).result() == 1
    assert not active_children()
    assert threading.active_count() == threads


class Unreadable(Exception):
    """What cannot be made again from its text."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first + second)


def fail(kind: Callable[[str, str], Exception]) -> None:
    raise kind("a", "is empty")


def test_what_a_call_raises_is_raised_where_it_is_waited_for() -> None:
    with start_workers(2) as pool:
        assert list(pool.map(abs, range(-50, 0))) == list(range(50, 0, -1))
        with pytest.raises(OSError, match="is empty") as error:
            pool.submit(fail, OSError).result()
        assert any("in fail" in note for note in error.value.__notes__)
        asked: list[tuple[Callable[..., object], object]] = [(fail, Unreadable), (lambda _: None, 1), (memoryview, b"")]
        for call, argument in asked:  # that cannot come back, cannot be sent, has an answer that cannot be
            # Where dask was imported before, its tblib lets any exception be made again.
            with pytest.raises((TypeError, AttributeError, Unreadable), match=r"."):
                pool.submit(call, argument).result()
        assert pool.submit(abs, -1).result() == 1


@pytest.mark.timeout(20)
def test_nobody_waits_for_what_is_left_when_a_pool_is_given_up() -> None:
    waiting: list[Future[None]] = []

    def give_up() -> None:
        with start_workers(1) as pool:
            waiting.extend(pool.submit(time.sleep, 1000) for _ in range(3))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up()
    assert all(future.done() for future in waiting)
    assert not active_children()
