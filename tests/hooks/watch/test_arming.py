"""What torch and Python keep is armed where the user has not, by the names of each version of torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfscope.hooks.watch.arming import arm_recorder, dump_recorder
from tests.conftest import environment

OLD = {
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "2000",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "RUN/nccl_",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "1",
}
NEW = {"TORCH_FR_BUFFER_SIZE": "2000", "TORCH_FR_DUMP_TEMP_FILE": "RUN/nccl_", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


@pytest.mark.parametrize(
    ("version", "expected"), [("2.4.1", OLD), ("2.8.0+cu126", OLD), ("2.9.0", NEW), ("2.13.0+cpu", NEW), ("3.0a", NEW)]
)
def test_variables_have_the_names_of_the_version(
    version: str, expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__=version))
    variables: dict[str, str] = {}
    arm_recorder("RUN/nccl_", variables)
    assert variables == expected


@pytest.mark.parametrize("name", [*OLD, *NEW])
def test_what_the_user_has_set_stays(name: str) -> None:
    variables = {name: "mine"}
    arm_recorder("RUN/nccl_", variables)
    assert variables[name] == "mine"
    assert len(variables) == 3


def old_dump() -> bytes:
    return b"entries of gloo"


def new_dump(backend: str = "") -> bytes:
    """A torch whose backends have a recorder each."""
    return {"nccl2": b"entries of nccl2", "": b""}[backend]


def same_dump(backend: str = "") -> bytes:
    """A torch whose only recorder has the entries of all backends."""
    return b"entries" if backend in ("", "nccl2") else b""


@pytest.mark.parametrize(
    ("dump", "expected"),
    [
        (old_dump, {"generic": b"entries of gloo"}),
        (new_dump, {"nccl2": b"entries of nccl2"}),
        (same_dump, {"generic": b"entries"}),
    ],
)
def test_the_recorder_of_nccl2_is_dumped_where_torch_has_one(
    dump: Callable[..., bytes], expected: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = SimpleNamespace(_dump_fr_trace=dump)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(_C=SimpleNamespace(_distributed_c10d=library)))
    assert dump_recorder() == expected


HELD = """
import ctypes, sys
from perfscope.hooks.watch.arming import FaultHandler
handler = FaultHandler(sys.argv[1])
handler.enable(was_loaded=False)
handler.set_timer(0.3)
ctypes.PyDLL(None).usleep(1_500_000)  # holds the interpreter lock
print("goes on")
"""
FORK = """
import os, sys, time
from perfscope.hooks.watch.arming import FaultHandler
handler = FaultHandler(sys.argv[1])
handler.enable(was_loaded=False)
handler.set_timer(100)
child = os.fork()
if child == 0:
    sys.exit(3)
ends = time.monotonic() + 60
while (ended := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < ends:
    time.sleep(0.01)
if ended[0] == 0:
    os.kill(child, 9)
print(handler.is_set, os.waitstatus_to_exitcode(ended[1]) if ended[0] else "the child never ends")
handler.set_timer(100)
print(handler.is_set)
"""
OWN_TIMER = """
import faulthandler, os, sys, time
from perfscope.hooks.watch.arming import FaultHandler
handler = FaultHandler(sys.argv[1])
handler.enable(was_loaded=False)
handler.set_timer(100)
faulthandler.dump_traceback_later(0.2, file=open(sys.argv[2], "w"))
handler.set_timer(0.1)
handler.cancel_timer()
ends = time.monotonic() + 60
while not os.path.getsize(sys.argv[2]) and time.monotonic() < ends:
    time.sleep(0.05)
time.sleep(0.2)
"""
LOADED_BEFORE = OWN_TIMER.replace("was_loaded=False", "was_loaded=True")


def execute(code: str, *words: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *map(str, words)]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)


def test_stacks_are_written_while_the_interpreter_lock_is_held(tmp_path: Path) -> None:
    ended = execute(HELD, tmp_path / "fatal.txt")
    assert ended.stdout == "goes on\n"
    assert "line 7 in <module>" in (tmp_path / "fatal.txt").read_text()


CLOSED = """
import os, sys
from perfscope.hooks.watch.arming import FaultHandler
handler = FaultHandler(sys.argv[1])
handler.enable(was_loaded=False)
own = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
os.dup2(own, handler._file)
handler.check_file()
os.abort()
"""


def test_stacks_are_not_written_to_a_file_that_has_the_number_of_ours(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLOSED, str(tmp_path / "fatal.txt"), str(tmp_path / "own.txt")]
    assert subprocess.run(command, env=environment(), capture_output=True, check=False).returncode == -6
    assert (tmp_path / "own.txt").read_text() == ""
    assert "line 9 in <module>" in (tmp_path / "fatal.txt").read_text()


def test_a_forked_child_ends_while_the_timer_runs(tmp_path: Path) -> None:
    """It would wait for the timer's thread, which it does not have."""
    assert execute(FORK, tmp_path / "fatal.txt").stdout == "False 3\nTrue\n"


@pytest.mark.parametrize("code", [OWN_TIMER, LOADED_BEFORE])
def test_the_scripts_own_timer_comes_first(code: str, tmp_path: Path) -> None:
    execute(code, tmp_path / "fatal.txt", tmp_path / "own.txt")
    assert "most recent call first" in (tmp_path / "own.txt").read_text()
    assert (tmp_path / "fatal.txt").read_text() == ""
