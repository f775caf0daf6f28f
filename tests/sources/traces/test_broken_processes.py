"""A process that reads shares of a trace and is killed, at whatever stage, changes no answer and leaves nothing."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

_TRACE = Path("fixtures/traces/ddp4/rank0.pt.trace.json.gz")
#: A process of its own has no threads of other tests, beside which nothing is forked.
_SCRIPT = """
import os, signal, sys
from perfscope import forks
from perfscope.sources.traces import apart, collecting, reader, shares
from tests.sources.traces.test_parts import differences, measured
from pathlib import Path
shares._LEAST_BYTES = shares._LEAST_COMPRESSED_BYTES = 0
shares.READ_BYTES, shares._SLICE_BYTES = 1 << 15, 1 << 19
path, stage, moment = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
alone, parent, pids = measured(path, 1), os.getpid(), []

def break_at(owner, name):
    # Breaks a forked process off when it calls a function for the moment-th time, or its parent's reading.
    function, calls = getattr(owner, name), []
    def call(*arguments, **options):
        if os.getpid() != parent:
            calls.append(1)
            if len(calls) == moment:
                os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    setattr(owner, name, call)

fork = os.fork
def noted():
    pid = fork()
    pids.append(pid)
    return pid
os.fork = noted
collect, joined = reader.collect_apart, []
def note(text, *arguments):
    collect(text, *arguments)
    joined.append(text.path)
reader.collect_apart = note
if stage == "memory":
    work = apart._collect_claimed
    def limited(*arguments):
        if os.getpid() != parent:
            raise MemoryError
        return work(*arguments)
    apart._collect_claimed = limited
elif stage != "none":
    owners = {"end_with_parent": forks, "pickle": forks, "_write_all": forks, "_exit": os, "share": shares.PartedText}
    owner = owners.get(stage, collecting.Collector)
    if stage == "pickle":
        break_at(forks.pickle, "dumps")
    else:
        break_at(owner, stage)
files = os.listdir("/proc/self/fd")
for processes in (2, 3):
    joined.clear()
    assert differences(measured(path, processes), alone) == []
    # Who is killed at its end has answered.
    assert bool(joined) == (stage in ("none", "_exit")), (stage, joined)
assert len(pids) == 3
assert os.listdir("/proc/self/fd") == files
for pid in pids:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        continue
    raise AssertionError
"""


@pytest.fixture(scope="module")
def parted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.sources.traces.test_parts import compress

    path = tmp_path_factory.mktemp("parted") / "rank0.pt.trace.json.gz"
    return compress(gzip.decompress(_TRACE.read_bytes()), path, 100_003)


@pytest.mark.parametrize(
    ("stage", "moment"),
    [
        ("none", 0),
        ("end_with_parent", 1),
        ("share", 1),
        ("share", 3),
        ("collect", 1),
        ("collect_stretch", 2),
        ("_add", 2),
        ("memory", 0),
        ("pickle", 1),
        ("_write_all", 1),
        ("_write_all", 5),
        ("_exit", 1),
    ],
)
def test_a_process_that_is_killed_changes_nothing(parted: Path, stage: str, moment: int) -> None:
    command = [sys.executable, "-W", "error", "-c", _SCRIPT, str(parted), stage, str(moment)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert not answer.stderr
    assert answer.returncode == 0
