"""What a run's windows left is compressed when its command has ended; whatever goes wrong leaves it as it was."""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from perfscope.commands.profile.completion import compress_run

_TRACE = Path("fixtures/traces/single/rank0.pt.trace.json.gz")


@pytest.fixture(scope="module")
def text() -> bytes:
    return gzip.decompress(_TRACE.read_bytes())


@pytest.fixture
def run_dir(tmp_path: Path, text: bytes) -> Path:
    for name in ("traces/vm_1.1.pt.trace.json", "traces/light/vm_1.2.pt.trace.json", "memory/vm_1.3.memory.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
    (tmp_path / "traces/.tmp-vm_1.4.pt.trace.json").write_bytes(b"unfinished")
    return tmp_path


def files(run_dir: Path) -> list[str]:
    return sorted(path.relative_to(run_dir).as_posix() for path in run_dir.rglob("*") if path.is_file())


def test_traces_and_histories_of_memory_are_compressed(run_dir: Path, text: bytes) -> None:
    compress_run(run_dir)
    assert files(run_dir) == [
        "memory/vm_1.3.memory.jsonl.gz",
        "traces/.tmp-vm_1.4.pt.trace.json",
        "traces/light/vm_1.2.pt.trace.json.gz",
        "traces/vm_1.1.pt.trace.json.gz",
    ]
    for path in run_dir.rglob("*.gz"):
        # As browsers do, which stop after the first member.
        stream = zlib.decompressobj(31)
        assert stream.decompress(path.read_bytes()) == text
        assert stream.eof
        assert not stream.unused_data
    compress_run(run_dir)
    assert len(files(run_dir)) == 4


def test_on_a_full_disk_everything_stays_as_it_is(run_dir: Path) -> None:
    before = {name: (run_dir / name).read_bytes() for name in files(run_dir)}
    script = (
        "import resource, signal, sys, pathlib; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from perfscope.commands.profile.completion import compress_run\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (1000, {resource.RLIM_INFINITY}))\n"
        "compress_run(pathlib.Path(sys.argv[1]))"
    )
    subprocess.run([sys.executable, "-c", script, run_dir], check=True)
    assert {name: (run_dir / name).read_bytes() for name in files(run_dir)} == before
