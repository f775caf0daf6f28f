"""Runs a line of a shell twice, without and with perfscope, and compares everything that a user could see.

The line starts its command as ``$P python train.py``, where ``$P`` is empty or ``perfscope profile ... --``. A folder
of its own holds ``train.py``, which counts down with a torch in name only (``tests/scripts/toy``), so that a run takes
a moment.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import ROOT, SCRIPTS, environment

STEPS = 5
LONGEST_S = 60

_TRAIN = f"""
from torch.optim import SGD

def train():
    optimizer = SGD()
    for step in range(1, {STEPS} + 1):
        optimizer.zero_grad()
        optimizer.step()
        print("step", step, optimizer.weight.hex(), flush=True)

if __name__ == "__main__":
    train()
"""


@dataclass(frozen=True)
class Seen:
    """What a user sees of a run, without perfscope's own lines and folder."""

    code: int
    stdout: str
    stderr: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Captured:
    """What perfscope adds: its lines on standard error, and how many steps it recorded."""

    lines: tuple[str, ...]
    steps: int


def run_alone(line: str, folder: Path) -> Seen:
    """Run a line without perfscope."""
    return _run(line, folder, "")[0]


def run_captured(line: str, folder: Path) -> tuple[Seen, Captured]:
    """Run a line with perfscope; nothing of it may be left running afterwards."""
    words = [sys.executable, "-m", "perfscope", "profile", "-o", str(folder / "RUN"), "--nvml-hz", "0"]
    seen, lines = _run(line, folder, f"{shlex.join(words)} --steps 98-99 --")
    records = folder.glob("RUN/ranks/*/steps.jsonl")
    captured = Captured(tuple(lines), sum(len(path.read_text().splitlines()) for path in records))
    ends = time.monotonic() + 60
    while time.monotonic() < ends and _processes_of(folder):
        time.sleep(0.1)
    assert not _processes_of(folder)
    return seen, captured


#: With what `perfscope profile` ends on a terminal.
_SCREEN = re.compile(r"(\x1b\[[\d;]*m)*Where the time went: .*?One part: --section NAME\.[^\n]*\n?", re.DOTALL)


def _run(line: str, folder: Path, prefix: str) -> tuple[Seen, list[str]]:
    (folder / "tmp").mkdir(parents=True)
    (folder / "train.py").write_text(_TRAIN)
    inherited = {name: value for name, value in environment().items() if not name.startswith(("PYTHON", "MASTER"))}
    variables = {"PYTHONPATH": f"{ROOT}:{SCRIPTS / 'toy'}", "TMPDIR": str(folder / "tmp"), "P": prefix}
    with subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        env={**inherited, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            output = [content.decode(errors="replace") for content in process.communicate(timeout=LONGEST_S)]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    stdout, stderr = (re.sub(r"0x[0-9a-f]{12}\b", "ADDRESS", text.replace(str(folder), "HERE")) for text in output)
    stdout = _SCREEN.sub("", stdout)
    ours = [text for text in stderr.splitlines() if text.startswith(("perfscope: ", "  hint: "))]
    others = "\n".join(text for text in stderr.splitlines() if text not in ours)
    paths = (path.relative_to(folder) for path in folder.rglob("*"))
    files = sorted(str(path) for path in paths if not {"RUN", "__pycache__"} & set(path.parts))
    return Seen(process.returncode, stdout, re.sub(r"line 1: +\d+", "line 1:", others), tuple(files)), ours


def _processes_of(folder: Path) -> list[bytes]:
    """The command lines of processes that work for a run in this folder."""
    words = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words.append((process / "cmdline").read_bytes())
        except OSError:
            continue  # it ended
    return [line for line in words if str(folder).encode() in line]
