"""Runs a few lines of Python in a process of their own, so that a hang or a crash there does no harm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 180
_RESULT_MARK = "RESULT "


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """How a probe ended.

    Attributes:
        values: The values that it set, by name; absent where it failed.
        stderr: Its standard error.
        problem: Why it failed, in words; empty where it did not.
    """

    values: Mapping[str, Any] | None
    stderr: str
    problem: str


def probe(lines: str, environment: Mapping[str, str] | None = None, timeout_s: float = _TIMEOUT_S) -> ProbeResult:
    """Run lines that put plain values into ``result``, a dictionary."""
    program = (
        f"import json, sys\nresult = {{}}\n{lines}\nsys.stdout.write({_RESULT_MARK!r} + json.dumps(result) + '\\n')\n"
    )
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
            return ProbeResult(None, "", f"no answer in {timeout_s:g} s")
    results = [line.removeprefix(_RESULT_MARK) for line in stdout.splitlines() if line.startswith(_RESULT_MARK)]
    if results and process.returncode == 0:
        return ProbeResult(json.loads(results[-1]), stderr, "")
    if process.returncode < 0:
        return ProbeResult(None, stderr, f"it was killed by {signal.Signals(-process.returncode).name}")
    errors = [line for line in stderr.splitlines() if line.strip()]
    return ProbeResult(None, stderr, errors[-1] if errors else f"it exited with status {process.returncode}")
