"""What runs beside training at idle priority leaves it the processors, however Linux shares them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT

PATIENCE_S = 30


@pytest.mark.parametrize("script", ["profiler/compress.py"])
def test_a_process_in_a_session_of_its_own_yields_to_other_sessions(tmp_path: Path, script: str) -> None:
    endless = tmp_path / "endless"
    os.mkfifo(endless)  # nobody writes into it, so that the process stays where it is
    words = [sys.executable, "-I", "-S", str(ROOT / "hooks" / script), str(endless)]
    process = subprocess.Popen(words, start_new_session=True, env={})
    session = Path(f"/proc/{process.pid}/autogroup")
    has_sessions = session.exists() and session.read_text() != ""
    try:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and not _yields(process.pid, session if has_sessions else None):
            time.sleep(0.02)
        assert os.getpriority(os.PRIO_PROCESS, process.pid) == 19
        assert not has_sessions or session.read_text().endswith(" nice 19\n")
    finally:
        process.kill()
        process.wait()


def _yields(pid: int, session: Path | None) -> bool:
    is_nice = os.getpriority(os.PRIO_PROCESS, pid) == 19
    return is_nice and (session is None or session.read_text().endswith(" nice 19\n"))


def test_the_session_of_whoever_starts_it_by_hand_keeps_its_priority(tmp_path: Path) -> None:
    before = Path("/proc/self/autogroup").read_text() if Path("/proc/self/autogroup").exists() else ""
    words = [sys.executable, "-I", "-S", str(ROOT / "hooks" / "profiler" / "compress.py"), str(tmp_path / "none")]
    subprocess.run(words, env={}, check=True)
    assert not before or Path("/proc/self/autogroup").read_text() == before
