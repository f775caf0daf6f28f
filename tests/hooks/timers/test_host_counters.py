"""The kernel's counters become differences, step by step, and are absent where they cannot be read."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfscope.hooks.timers.exchanges import to_waits
from perfscope.hooks.timers.host_counters import HostCounters
from perfscope.wire.host import HostWaits, HostWork


def test_a_step_has_the_work_since_the_step_before() -> None:
    counters = HostCounters()
    counters.begin()
    begin_ns = time.thread_time_ns()
    assert counters.to_work(counters.read()) is None, "nothing came before the first one"
    until_ns = time.thread_time_ns() + 20_000_000
    while time.thread_time_ns() < until_ns:
        pass
    work = counters.to_work(counters.read())
    assert work is not None
    assert 20_000_000 <= work.cpu_ns <= time.thread_time_ns() - begin_ns
    assert min(work) >= 0
    memory = bytearray(64 << 20)
    memory[:: os.sysconf("SC_PAGESIZE")] = bytes(len(memory[:: os.sysconf("SC_PAGESIZE")]))
    touched = counters.to_work(counters.read())
    assert touched is not None
    assert touched.faults > 100


def usage(preempted: int = 0, faults: int = 0) -> Any:
    return SimpleNamespace(ru_stime=0.0, ru_minflt=faults, ru_majflt=0, ru_nivcsw=preempted)


def test_steps_without_a_read_count_in_the_next_one_with_a_read() -> None:
    counters = HostCounters()
    raws: list[Any] = [
        None, (100, b"0 1000 1\n", usage(), b""), (110, b"0 1000 1\n", usage(faults=3), b""), None, None,
        (140, b"0 1450 9\n", usage(preempted=2, faults=4), b""), None,
        (160, b"0 1450 9\n", usage(preempted=2, faults=4), b""),
        (170, b"0 1450 9\n", usage(preempted=2, faults=4), b""),
    ]  # fmt: skip
    assert [counters.to_work(raw) for raw in raws] == [
        None, None, HostWork(10, 0, 0, 3, 0, steps=1), None, None, HostWork(30, 450, 0, 1, 2, steps=3), None,
        HostWork(20, 0, 0, 0, 0, steps=2), HostWork(10, 0, 0, 0, 0, steps=1),
    ]  # fmt: skip


def test_the_thread_that_launches_backward_passes_has_its_delay_over_the_same_steps() -> None:
    counters = HostCounters()
    texts = [b"", b"90 500 1\n", None, b"95 620 2\n", b"", b"99 700 3\n", b"99 700 3\n"]
    raws: list[Any] = [None if text is None else (100, b"0 1000 1\n", usage(), text) for text in texts]
    assert [counters.to_launcher_delay(raw) for raw in raws] == [None, None, None, 120, None, None, 0]


def test_the_thread_that_launches_backward_passes_is_found_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    counters, is_over, has_worked = HostCounters(), threading.Event(), threading.Event()

    def launch(name: str, work: int) -> None:
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        sum(range(work))
        has_worked.set()
        is_over.wait()

    counters.begin()
    if counters.file < 0:
        pytest.skip("the kernel has no schedstat")
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True)))
    threads = []
    for name, work in (("pt_autograd_0", 10), ("pt_autograd_1", 2_000_000), ("other", 4_000_000)):
        has_worked.clear()
        threads.append(threading.Thread(target=launch, args=(name, work)))
        threads[-1].start()
        has_worked.wait()
    counters.find_launcher()
    task = Path(f"/proc/self/fd/{counters.launcher_file}").resolve().parent
    assert (task / "comm").read_text().strip() == "pt_autograd_1"
    assert counters.to_launcher_delay(counters.read()) is None
    assert (counters.to_launcher_delay(counters.read()) or 0) >= 0
    is_over.set()
    for thread in threads:
        thread.join()
    ends_s = time.monotonic() + 20
    while task.exists() and time.monotonic() < ends_s:  # the kernel's thread outlives Python's by a moment
        time.sleep(0.001)
    assert counters.to_launcher_delay(counters.read()) is None, "the thread is gone"
    os.close(counters.launcher_file)


def test_a_script_that_closes_all_files_ends_the_counters_and_nothing_else() -> None:
    counters = HostCounters()
    counters.begin()
    assert counters.to_work(counters.read()) is None
    os.close(counters.file)
    assert counters.to_work(counters.read()) is None
    assert counters.to_work(counters.read()) is None


def test_a_backward_pass_waited_where_its_thread_neither_ran_nor_could() -> None:
    raw = (5, 7, [(100, 40, b"1 1000 5\n", b"2 1020 6\n"), (10, 30, b"", b"")])
    assert to_waits(raw) == HostWaits(5 + (100 - 40 - 20) + 0, 7)
    assert to_waits(None) is None
