"""Runs a few lines of Python in a process of their own: what hangs or crashes there harms nobody."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 180
_MARK = "ANSWER "


@dataclass(frozen=True, slots=True)
class Probe:
    """How a probe ended.

    Attributes:
        answer: What it told; absent where it told nothing.
        stderr: What it and the libraries in it said.
        problem: Why it told nothing, in words.
    """

    answer: dict[str, Any] | None
    stderr: str
    problem: str


def probe(lines: str, environment: Mapping[str, str] | None = None, timeout_s: float = TIMEOUT_S) -> Probe:
    """Run lines that leave what they tell in ``answer``, a dictionary of plain values."""
    program = f"import json, sys\nanswer = {{}}\n{lines}\nsys.stdout.write({_MARK!r} + json.dumps(answer) + '\\n')\n"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=None if environment is None else dict(environment),
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            return Probe(None, "", f"no answer in {timeout_s:g} s")
    told = [line.removeprefix(_MARK) for line in stdout.splitlines() if line.startswith(_MARK)]
    if told and process.returncode == 0:
        return Probe(json.loads(told[-1]), stderr, "")
    if process.returncode < 0:
        return Probe(None, stderr, f"it died by {signal.Signals(-process.returncode).name}")
    said = [line for line in stderr.splitlines() if line.strip()]
    return Probe(None, stderr, said[-1] if said else f"it ended with exit code {process.returncode}")
