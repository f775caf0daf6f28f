"""Worker processes end with the process that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

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
