"""What a command's process does at its end, beside Python's own end of the same script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BEGIN = """
import atexit, sys, threading, time, weakref
from perfscope.errors import ExitCode

class Held:
    def __del__(self):
        print("taken apart")

def run():
    print("run")
    raise SystemExit({code})

{before}
{end}
"""
OURS = "from perfscope.ending import run_and_end\nrun_and_end(run)"
PYTHON = "run()"


def ended(end: str, code: str = "0", before: str = "", *options: str, output: Path | None = None) -> tuple[int, str]:
    """The exit code and all that was printed, without the places of frames."""
    script = BEGIN.format(code=code, before=before, end=end)
    command = [sys.executable, *options, "-c", script]
    if output is None:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        printed = (answer.stdout + answer.stderr).splitlines(keepends=True)
        return answer.returncode, "".join(line for line in printed if not line.startswith(("  ", "Traceback")))
    with output.open("w") as file:
        answer = subprocess.run(
            command, stdout=file, stderr=subprocess.PIPE, text=True, check=False, timeout=120, env={}
        )
        return answer.returncode, answer.stderr


@pytest.mark.parametrize("code", ["0", "3", "300", "-1", "ExitCode.DAMAGED_INPUT", "None", "True", "'a reason'", ""])
def test_a_process_ends_with_the_code_that_python_would_give_it(code: str) -> None:
    assert ended(OURS, code) == ended(PYTHON, code)


@pytest.mark.parametrize(
    "before",
    [
        "atexit.register(print, 'first'); atexit.register(print, 'last', file=sys.stderr)",
        "owner = Held.__new__(type('Other', (), {})); weakref.finalize(owner, print, 'finalized')",
        "threading.Thread(target=lambda: (time.sleep(0.3), print('thread'))).start()",
        "atexit.register(int, 'no number')",
        "sys.stderr = None",
        "run = lambda: 1 / 0",
        "run = lambda: print('returned')",
        "sys.stdout.write('no newline')",
    ],
)
def test_what_was_registered_for_the_end_runs_and_all_is_printed(before: str) -> None:
    assert ended(OURS, "5", before) == ended(PYTHON, "5", before)


def test_nothing_is_taken_apart() -> None:
    assert ended(PYTHON, "0", "held = Held()") == (0, "run\ntaken apart\n")
    assert ended(OURS, "0", "held = Held()") == (0, "run\n")


def test_a_profiler_sees_the_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(BEGIN.format(code="0", before="", end=OURS))
    answer = subprocess.run(
        [sys.executable, "-m", "cProfile", str(script)], capture_output=True, text=True, check=True, timeout=120
    )
    assert "function calls" in answer.stdout


def test_output_that_cannot_be_written_is_said() -> None:
    code, complaint = ended(OURS, "0", output=Path("/dev/full"))
    assert (code, complaint) == ended(PYTHON, "0", output=Path("/dev/full"))
    assert code
    assert "No space left" in complaint
