"""A process beside training is none of the training's children, and one a node."""

from __future__ import annotations

import os
import socket
import sys
import time
import uuid
from pathlib import Path

from perfscope.hooks.side_process import _create_file
from tests.conftest import run

LONGEST_S = 60
SCRIPT = "import os, sys, time\nprint(os.getpid(), *sys.argv[1:], __name__, flush=True)\ntime.sleep(60)\n"
#: What a training does that waits for all of its children.
TRAINING = """
import os, sys
from perfscope.hooks.side_process import start_once_a_node
for _ in range(2):
    start_once_a_node("test", *sys.argv[1:], ["a", "b"])
try:
    os.wait()
except ChildProcessError:
    print(os.getpid())
"""


def test_a_script_that_waits_for_its_children_does_not_wait_for_it(tmp_path: Path) -> None:
    script, output = tmp_path / "beside.py", tmp_path / "beside"
    script.write_text(SCRIPT)
    ended = run([sys.executable, "-c", TRAINING, str(tmp_path / uuid.uuid4().hex), output, script], tmp_path)
    assert ended.code == 0, ended.stderr
    until_s = time.monotonic() + LONGEST_S
    while not any(file.read_text() for file in output.glob("*.jsonl")) and time.monotonic() < until_s:
        time.sleep(0.02)
    (file,) = output.glob("*.jsonl")
    pid, *words = file.read_text().split()
    assert words == ["a", "b", "__main__"]
    assert Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1] != ended.stdout.strip()
    os.kill(int(pid), 9)


def test_a_name_whose_file_was_compressed_is_not_given_again(tmp_path: Path) -> None:
    host = socket.gethostname()
    for name in (f"{host}.jsonl.gz", f"{host}.1.jsonl.gz", f"{host}.3.jsonl.gz"):
        (tmp_path / name).write_bytes(b"")
    os.close(_create_file(str(tmp_path)))
    assert [path.name for path in tmp_path.glob("*.jsonl")] == [f"{host}.2.jsonl"]
