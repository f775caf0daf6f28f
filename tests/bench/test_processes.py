"""What a measured command takes is its own: not what the benchmark that starts it holds."""

from __future__ import annotations

import sys

import pytest

from benchmarks.processes import Tool
from perfscope.constants import MB

HELD = 300 * MB


def test_the_peak_is_that_of_the_command_and_not_of_the_process_that_starts_it() -> None:
    held = bytearray(b"\x01") * HELD
    tool = Tool("small", [sys.executable, "-c", "print('answer')"])
    assert tool.run() == "answer\n"
    assert len(held) == HELD
    assert tool.peak_mb[0] < 100


def test_the_peak_and_the_time_of_a_child_count() -> None:
    child = f"held = bytearray(b'1') * {2 * HELD}; sum(range(3_000_000))"
    tool = Tool(
        "parent", [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"]
    )
    tool.run()
    assert not tool.problem
    assert tool.peak_mb[0] > 2 * HELD / MB
    assert tool.cpu_s[0] > 0


@pytest.mark.parametrize(("code", "problem"), [(3, "exit code 3 last words"), (0, "")])
def test_an_exit_code_that_is_no_answer_is_a_problem(code: int, problem: str) -> None:
    tool = Tool("ends", [sys.executable, "-c", f"print('last words'); raise SystemExit({code})"])
    tool.run()
    assert (tool.problem, len(tool.wall_s)) == (problem, int(not problem))
