"""A process beside training is none of the training's children, and one a node."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest

from perfscope.hooks.side_process import start_once_a_node

LONGEST_S = 60
SCRIPT = "import os, sys, time\nprint(os.getpid(), *sys.argv[1:], __name__, flush=True)\ntime.sleep(60)\n"


def test_a_script_that_waits_for_its_children_does_not_wait_for_it(tmp_path: Path) -> None:
    script, output = tmp_path / "beside.py", tmp_path / "beside"
    script.write_text(SCRIPT)
    run_dir = str(tmp_path / uuid.uuid4().hex)
    for _ in range(2):
        start_once_a_node("test", run_dir, str(output), str(script), ["a", "b"])
    with pytest.raises(ChildProcessError):
        os.wait()
    until_s = time.monotonic() + LONGEST_S
    while not any(file.read_text() for file in output.glob("*.jsonl")) and time.monotonic() < until_s:
        time.sleep(0.02)
    (file,) = output.glob("*.jsonl")
    pid, *words = file.read_text().split()
    assert words == ["a", "b", "__main__"]
    assert int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) != os.getpid()
    os.kill(int(pid), 9)
