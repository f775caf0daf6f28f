"""What torch and Python keep is armed where the user has not, by the names of each version of torch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from perfscope.hooks.watch.watch import IncidentFiles, arm_recorder, describe_error, dump_recorder
from perfscope.wire.incidents import INCIDENTS_FILE, recorder_file
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


CLOSED = """
import os, sys
from perfscope.hooks.watch.watch import FaultHandler
handler = FaultHandler(sys.argv[1])
handler.enable()
own = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
os.dup2(own, handler._file)
handler.check_file()
os.abort()
"""


def test_stacks_are_not_written_to_a_file_that_has_the_number_of_ours(tmp_path: Path) -> None:
    fatal(CLOSED, tmp_path)
    assert (tmp_path / "own.txt").read_text() == ""
    assert "line 9 in <module>" in (tmp_path / "fatal.txt").read_text()


def fatal(code: str, folder: Path) -> None:
    """Run code that dies by a signal, with the names of our file and of the script's own."""
    variables = {name: value for name, value in environment().items() if name != "PYTHONFAULTHANDLER"}
    command = [sys.executable, "-c", code, str(folder / "fatal.txt"), str(folder / "own.txt")]
    assert subprocess.run(command, env=variables, capture_output=True, check=False).returncode == -6


OWN = """
import faulthandler, os, sys
from perfscope.hooks.watch.watch import FaultHandler
handler = FaultHandler(sys.argv[1])
handler.enable()
faulthandler.enable(open(sys.argv[2], "w"))
handler.check_file()
os.abort()
"""


def test_the_scripts_own_file_comes_first(tmp_path: Path) -> None:
    fatal(OWN, tmp_path)
    assert "line 8 in <module>" in (tmp_path / "own.txt").read_text()
    assert (tmp_path / "fatal.txt").read_text() == ""


def test_a_dump_of_the_recorder_that_could_fill_the_disk_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps = {"nccl": b"1" * 16_000_001, "gloo": b"1"}
    monkeypatch.setattr("perfscope.hooks.watch.watch.dump_recorder", lambda: dumps)
    IncidentFiles(str(tmp_path)).keep(describe_error(ValueError("x"), 1, 5))
    assert [path.name for path in tmp_path.glob("recorder*")] == [recorder_file(1, "gloo")]
    last = json.loads((tmp_path / INCIDENTS_FILE).read_text().splitlines()[-1])
    assert "16,000,001 bytes" in last["missing"]
