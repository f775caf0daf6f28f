"""Commands that are run as fresh processes, and the time and memory that they take."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from perfscope.constants import KIB, MB

ROOT = Path(__file__).resolve().parent.parent
_LONGEST_COMPLAINT = 160
#: Starts a command from a small process: Linux counts the memory of what starts a process as the process's own peak.
_LAUNCHER = """
import json, os, sys, time
began = time.perf_counter()
os.set_inheritable(int(sys.argv[1]), False)
started = os.posix_spawnp(sys.argv[2], sys.argv[2:], os.environ)
_, status, usage = os.wait4(started, 0)
wall_s = time.perf_counter() - began
figures = [os.waitstatus_to_exitcode(status), wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss]
os.write(int(sys.argv[1]), json.dumps(figures).encode())
"""


@dataclass
class Tool:
    """One command to measure.

    Attributes:
        name: What tables call it.
        command: What runs.
        problem: Why it cannot run; empty where it can.
        wall_s: Wall time of each round.
        cpu_s: Processor time of each round, of the process and all that it waited for.
        peak_mb: Peak resident memory of its largest process in each round, in 10**6 bytes.
    """

    name: str
    command: Sequence[str]
    problem: str = ""
    wall_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: list[float] = field(default_factory=list)

    def run(self, answered: Sequence[int] = (0,)) -> str:
        """Run it once and return its output; an exit code that is not among ``answered`` is a problem."""
        answer, writer = os.pipe()
        with os.fdopen(answer, "rb") as measured:
            try:
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(writer), *self.command],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=_environment(),
                    cwd=ROOT,
                    text=True,
                    pass_fds=[writer],
                )
            finally:
                os.close(writer)
            printed, _ = process.communicate()
            returncode, wall_s, cpu_s, peak_kib = json.loads(measured.read())
        if returncode not in answered:
            last = (printed.strip().splitlines() or [""])[-1]
            self.problem = f"exit code {returncode} {last}"[:_LONGEST_COMPLAINT]
            return printed
        self.wall_s.append(round(wall_s, 4))
        self.cpu_s.append(round(cpu_s, 4))
        self.peak_mb.append(round(peak_kib * KIB / MB, 1))
        return printed

    def data(self) -> dict[str, Any]:
        """The figures, without the command's paths."""
        return {name: value for name, value in asdict(self).items() if name != "command"}


def _environment() -> dict[str, str]:
    """The environment of a command that finds this tree, and keeps its bytecode, as an installed package has it."""
    searched = filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": os.pathsep.join(searched)}


def take_turns(
    tools: Sequence[Tool],
    rounds: int,
    slow_s: float = float("inf"),
    slow_rounds: int = 0,
    answered: Sequence[int] = (0,),
) -> None:
    """Run each tool in each round, so that a busy moment affects all tools alike.

    A tool whose first round takes more than ``slow_s`` seconds of the processor runs in ``slow_rounds`` rounds only.
    """
    for number in range(rounds):
        for tool in tools:
            is_slow = bool(tool.cpu_s) and tool.cpu_s[0] > slow_s
            if not tool.problem and (number < slow_rounds or not is_slow):
                tool.run(answered)


def environment(folder: Path, *requirements: str) -> tuple[Path, str]:
    """The interpreter of an environment with these packages, and why it could not be made; empty where it was."""
    python, ready = folder / "bin" / "python", folder / ".ready"
    if ready.exists():
        return python, ""
    if not python.exists():
        venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *requirements]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    if answer.returncode:
        complaint = (answer.stderr.strip().splitlines() or [""])[-1]
        return python, f"not installed: {complaint}"[:_LONGEST_COMPLAINT]
    ready.touch()
    return python, ""


def best(figures: Mapping[str, Any], what: str = "wall_s") -> float | None:
    """The smallest figure of a tool's rounds; None where it did not run."""
    values = figures[what]
    return min(values) if values else None


def machine() -> dict[str, Any]:
    """Describe the machine that the figures were measured on."""
    with Path("/proc/cpuinfo").open() as file:
        model = next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    return {
        "processors": len(os.sched_getaffinity(0)),
        "model": model or platform.machine(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 1),
    }
