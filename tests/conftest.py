"""What the tests share: a way to run perfscope and training scripts as a person would."""

from __future__ import annotations

import gzip
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
LONGEST_S = 200
SCRIPTS = ROOT / "tests" / "scripts"

# A shell's background job ignores Ctrl-C, and so would the scripts that are to be ended by it.
signal.signal(signal.SIGINT, signal.default_int_handler)


#: What needs a cluster, a store, a browser or a viewer; `make test-all` runs them.
_FULL = (
    "docs/test_site.py",
    "engine/test_dask_workers.py",
    "hooks/harm/test_surroundings.py",
    "page/",
    "sources/stores/",
    "viewers/",
    "workloads/test_strategies.py",
)
#: Launchers of the harm matrix that end as those before them in most ways.
_FULL_ENDINGS = ("none", "exit", "_exit", "SIGTERM", "SIGINT", "SIGSEGV", "full", "readonly")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what only the full run needs."""
    for item in items:
        path = item.path.relative_to(ROOT / "tests").as_posix()
        ending = item.callspec.params.get("case") if hasattr(item, "callspec") else None
        is_rare = path == "hooks/harm/test_matrix.py" and getattr(ending, "launcher", "python") != "python"
        if path.startswith(_FULL) or (is_rare and getattr(ending, "how", "") in _FULL_ENDINGS):
            item.add_marker(pytest.mark.full)


_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@pytest.fixture(autouse=True)
def _signals_as_before() -> Iterator[None]:
    """`perfscope profile` ignores signals once it has summarized a run: in this process that would outlive a test."""
    before = {number: signal.getsignal(number) for number in _ENDING_SIGNALS}
    yield
    for number, handler in before.items():
        if handler is not None and signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@dataclass(frozen=True)
class Ended:
    """A command that ended; ``code`` is negative for a signal."""

    code: int
    stdout: str
    stderr: str


def environment() -> dict[str, str]:
    """The tests' own environment with this interpreter's programs first and a free port for rendezvous."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TORCH_EXTENSIONS_DIR": os.environ.get("TORCH_EXTENSIONS_DIR", str(ROOT / ".venv" / "torch_extensions")),
        "OMP_NUM_THREADS": "1",
        "MASTER_PORT": str(port),
        "COLUMNS": "120",
        "PYTHONFAULTHANDLER": "1",  # a crash tells its stack
    }


def run(command: Sequence[str | Path], cwd: Path, **variables: str) -> Ended:
    """Run a command to its end, with a session of its own."""
    words = [str(word) for word in command]
    settings = {**environment(), **variables}
    with subprocess.Popen(
        words,
        cwd=cwd,
        env=settings,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=LONGEST_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a launcher's ranks too: nothing outlives its test
            raise
        finally:
            _free_shared_memory(words, settings)
    return Ended(process.returncode, stdout, stderr)


def _free_shared_memory(words: Sequence[str], settings: Mapping[str, str]) -> None:
    """Remove what DeepSpeed's ranks leave in /dev/shm: 66 MiB each, which a hundred launches fill."""
    ports = {settings["MASTER_PORT"]}
    ports.update(after for word, after in pairwise(words) if word == "--master_port")
    for port in ports:
        for buffer in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
            buffer.unlink(missing_ok=True)


def perfscope(*words: str | Path, cwd: Path, **variables: str) -> Ended:
    """Run the command line of this tree."""
    return run([sys.executable, "-m", "perfscope", *words], cwd, **variables)


def profile(
    *words: str | Path, cwd: Path, run_dir: str = "RUN", options: Sequence[str] = (), **variables: str
) -> Ended:
    """Run ``perfscope profile -o RUN -- WORDS`` in a folder; the run is in its subfolder ``RUN``.

    The scripts train few steps: their window is an early one, of several steps.
    """
    chosen = ["--nvml-hz", "0", "--steps", "4-6", *options]
    return perfscope("profile", "-o", run_dir, *chosen, "--", *words, cwd=cwd, **variables)


def analysis(run_dir: Path) -> dict[str, Any]:
    """The JSON of ``perfscope analyze``."""
    answer = perfscope("analyze", "--format", "json", run_dir, cwd=run_dir.parent)
    assert answer.code in (0, 4), answer.stderr
    document: dict[str, Any] = json.loads(answer.stdout)
    return document


def step_lines(run_dir: Path, rank: str = "00000") -> list[dict[str, Any]]:
    """The step records of one rank, as they lie on disk."""
    return [json.loads(line) for line in (run_dir / "ranks" / rank / "steps.jsonl").read_text().splitlines()]


def trace_events(trace: Path) -> list[dict[str, Any]]:
    """The events of a trace, compressed or not, by the json module."""
    content = trace.read_bytes()
    events: list[dict[str, Any]] = json.loads(gzip.decompress(content) if trace.suffix == ".gz" else content)[
        "traceEvents"
    ]
    return events


def event_names(trace: Path) -> list[str]:
    """The names of a trace's events."""
    return [event["name"] for event in trace_events(trace)]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says why a test needed its second try, which pytest-rerunfailures does not."""
    reports = terminalreporter.getreports("rerun")
    if reports:
        terminalreporter.section("passed the second time, or failed twice")
    for report in reports:
        terminalreporter.write_line(f"{report.nodeid}: {report.longreprtext[-2000:]}")
