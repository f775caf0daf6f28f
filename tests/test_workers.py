"""Worker processes end with the process that started them, and one that dies is noticed at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path

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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
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


@pytest.mark.timeout(20)
def test_a_worker_that_dies_is_noticed_and_none_is_left() -> None:
    threads = threading.active_count()
    with start_workers(2) as pool, pytest.raises(BrokenProcessPool):
        pool.submit(die).result()
    assert not active_children()
    assert threading.active_count() == threads


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


def die_later(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def send_much_and_die(seconds: float) -> bytes:
    threading.Thread(target=die_later, args=(seconds,), daemon=True).start()
    return b"x" * 300_000_000


@pytest.mark.slow
@pytest.mark.timeout(60)
def test_a_worker_that_is_killed_while_it_answers_is_noticed() -> None:
    with start_workers(2) as pool:
        answer = pool.submit(send_much_and_die, 0.35)
        with suppress(BrokenProcessPool):
            assert len(answer.result(timeout=30)) == 300_000_000
        time.sleep(1)
        with pytest.raises(BrokenProcessPool):
            pool.submit(time.sleep, 2).result(timeout=30)
