"""Traces are measured behind their compression, and whatever goes wrong there touches neither them nor the training."""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfscope.commands.profile.compression import compress
from perfscope.engine.partials import load
from perfscope.engine.partials_at_capture import main, process_of
from perfscope.engine.windows import TraceFiles
from tests.conftest import ROOT

SOURCE = ROOT / "fixtures" / "traces" / "gloo2"
NAME = "vm_17.1795.pt.trace.json"
PATIENCE_S = 60

pytestmark = pytest.mark.usefixtures("apart")


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """A trace as a window leaves it."""
    path = tmp_path / "RUN" / "traces" / NAME
    path.parent.mkdir(parents=True)
    path.write_bytes(gzip.decompress((SOURCE / "rank0.pt.trace.json.gz").read_bytes()))
    return path


def partials_of(trace: Path) -> Path:
    return trace.with_name("vm_17.1795.pt.trace.partials")


def compressed(trace: Path) -> Path:
    compress(trace)
    return trace.with_name(f"{trace.name}.gz")


@contextmanager
def another_process_measures(tmp_path: Path) -> Iterator[None]:
    with (tmp_path / "tmp" / f"perfscope-measuring-{os.getuid()}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.mark.parametrize("text", [b"", b"{", b'{"traceEvents": [{"ph": "X", "na', os.urandom(4096)])
def test_a_trace_that_cannot_be_read_has_no_partials(trace: Path, text: bytes) -> None:
    trace.write_bytes(text)
    packed = compressed(trace)
    before = packed.read_bytes()
    main([str(trace)])
    assert packed.read_bytes() == before
    for path in trace.parent.glob("*.partials"):  # of what is left of a cut one
        assert load(str(path)).measured(TraceFiles(str(packed))).damage


def test_what_is_not_measured_in_time_is_not_there(trace: Path) -> None:
    compressed(trace)
    main([str(trace)], longest_s=0)
    assert not partials_of(trace).exists()
    main([str(trace)])
    assert partials_of(trace).exists()


def test_one_trace_is_measured_at_a_time_on_a_host(trace: Path, tmp_path: Path) -> None:
    compressed(trace)
    with another_process_measures(tmp_path):
        main([str(trace)], longest_s=0.3)
    assert not partials_of(trace).exists()


def test_a_full_disk_leaves_the_trace_as_it_is(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compressed(trace)
    before = packed.read_bytes()

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    main([str(trace)])
    assert [path.name for path in trace.parent.iterdir()] == [packed.name]
    assert packed.read_bytes() == before


def test_an_analyzer_that_fails_costs_the_partials_and_nothing_else(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = compressed(trace)

    def fail(_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("perfscope.analyzers.host.measure", fail)
    main([str(trace)])
    assert [path.name for path in trace.parent.iterdir()] == [packed.name]


def test_a_trace_that_is_gone_is_nothing_to_measure(trace: Path) -> None:
    shutil.rmtree(trace.parent)
    main([str(trace)])


def test_light_windows_belong_to_the_process_of_their_name() -> None:
    assert process_of(f"RUN/traces/light/{NAME}") == process_of(f"RUN/traces/{NAME}.gz".removesuffix(".gz")) == "vm_17"
