"""Forked processes answer, or are seen not to, and none of them is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.test_workers import is_running

#: A process of its own has no threads of other tests, beside which nothing is forked.
_BEGIN = """
import gc, json, os, resource, signal, sys, threading, time
import numpy as np
from perfscope import forks
from perfscope.forks import NoAnswer, can_fork, forked
assert can_fork()
"""


def run(script: str, timeout_s: float = 60) -> str:
    command = [sys.executable, "-W", "error", "-c", _BEGIN + script]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=timeout_s)
    assert not answer.stderr
    assert answer.returncode == 0
    return answer.stdout


def test_answers_are_what_the_processes_computed() -> None:
    run("""
columns = {"ns": np.arange(100_001), "empty": np.zeros(0, np.int8), "name": "é", "list": [b"", (1, None)]}
def work():
    return columns | {"pid": os.getpid()}
with forked(work, 3) as processes:
    answers = [process.answer() for process in processes]
assert len({answer.pop("pid") for answer in answers} - {os.getpid()}) == 3
for answer in answers:
    assert answer.keys() == columns.keys()
    for name, value in answer.items():
        assert np.array_equal(value, columns[name]) if name in ("ns", "empty") else value == columns[name]
    assert answer["ns"].dtype == np.int64 and answer["empty"].dtype == np.int8
""")


def test_nothing_of_the_parent_runs_in_the_process() -> None:
    printed = run("""
import atexit
atexit.register(print, "at exit")
sys.stdout.write("buffered ")
signal.signal(signal.SIGTERM, lambda *_: print("handled"))
def work():
    try:
        return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    finally:
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
with forked(work, 1) as [process]:
    assert process.answer() == [signal.SIG_DFL, signal.SIG_IGN]
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
""")
    assert printed == "buffered at exit\n"


@pytest.mark.parametrize(
    "end",
    [
        "os.kill(os.getpid(), signal.SIGKILL)",
        "raise MemoryError",
        "raise KeyboardInterrupt",
        "sys.exit(0)",
        "os._exit(0)",
        "return lambda: None",  # cannot be handed over
        "resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)); return bytes(10_000)",  # cut off
    ],
)
def test_a_process_without_an_answer_is_noticed(end: str) -> None:
    run(f"""
def work():
    {end}
with forked(work, 1) as [process]:
    for _ in range(2):
        try:
            process.answer()
        except NoAnswer:
            continue
        raise AssertionError
""")


def test_no_process_and_no_file_is_left() -> None:
    run("""
files = os.listdir("/proc/self/fd")
pids = []
for error in (None, KeyboardInterrupt):
    try:
        with forked(lambda: time.sleep(1000), 2) as processes:
            pids += [process._pid for process in processes]
            if error:
                raise error
    except KeyboardInterrupt:
        pass
assert len(pids) == 4
for pid in pids:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        continue
    raise AssertionError
assert os.listdir("/proc/self/fd") == files
""")


def test_answers_come_where_the_system_forgets_children() -> None:
    run("""
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
with forked(lambda: 5, 1) as [process]:
    assert process.answer() == 5
with forked(lambda: time.sleep(1000), 1):
    pass
""")


def test_fewer_processes_than_wanted_may_start() -> None:
    run("""
fork, calls = os.fork, []
def fork_once():
    calls.append(1)
    if len(calls) > 1:
        raise BlockingIOError
    return fork()
os.fork = fork_once
files = os.listdir("/proc/self/fd")
with forked(lambda: 5, 3) as processes:
    assert [process.answer() for process in processes] == [5]
assert os.listdir("/proc/self/fd") == files
""")


def test_nothing_is_forked_beside_a_thread() -> None:
    run("""
ended = threading.Event()
thread = threading.Thread(target=ended.wait)
thread.start()
assert not can_fork()
ended.set()
thread.join()
assert can_fork()
""")


@pytest.mark.timeout(60)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_its_parent(number: signal.Signals) -> None:
    script = """
with forked(lambda: time.sleep(1000), 2) as processes:
    print(json.dumps([process._pid for process in processes]), flush=True)
    processes[0].answer()
"""
    with subprocess.Popen(
        [sys.executable, "-c", _BEGIN + script],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        parent.send_signal(number)
        ends = time.monotonic() + 50
        while time.monotonic() < ends and any(is_running(pid) for pid in pids):
            time.sleep(0.02)
        survivors = [pid for pid in pids if is_running(pid)]
        parent.kill()
    assert len(pids) == 2
    assert not survivors
