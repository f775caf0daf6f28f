"""Traces are measured behind their compression, and whatever goes wrong there touches neither them nor the training."""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from perfscope.engine import partials_at_capture
from perfscope.engine.partials import load
from perfscope.engine.partials_at_capture import main, process_of
from perfscope.engine.run import Plan, analyze
from perfscope.engine.windows import TraceFiles
from perfscope.hooks.profiler import compress, compressors
from tests.conftest import ROOT, SCRIPTS, profile

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


def compressor(trace: Path, modules: str | None) -> subprocess.CompletedProcess[bytes]:
    environment = {} if modules is None else {"PERFSCOPE_MODULES": modules}
    words = [sys.executable, "-I", "-S", str(ROOT / "hooks" / "profiler" / "compress.py"), str(trace)]
    return subprocess.run(words, env=environment, capture_output=True, check=False)


def appears(path: Path) -> bool:
    until = time.monotonic() + PATIENCE_S
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    return path.exists()


def compressed(trace: Path) -> Path:
    compress.compress(str(trace))
    return trace.with_name(f"{trace.name}.gz")


@contextmanager
def another_process_measures(tmp_path: Path) -> Iterator[None]:
    with (tmp_path / "tmp" / f"perfscope-measuring-{os.getuid()}.lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_what_was_compressed_is_measured_in_a_process_behind_it(trace: Path) -> None:
    compressors.start_compressing(str(trace))
    assert appears(partials_of(trace))
    loaded = load(str(partials_of(trace)))
    assert loaded.measured(TraceFiles(f"{trace}.gz")).partials
    assert {path.name for path in trace.parent.iterdir()} == {f"{NAME}.gz", partials_of(trace).name}


@pytest.mark.parametrize("modules", [None, "", "/nowhere", os.pathsep.join(["/nowhere", str(ROOT / "docs")])])
def test_a_trace_is_compressed_where_nothing_can_measure_it(trace: Path, modules: str | None) -> None:
    text = trace.read_bytes()
    ended = compressor(trace, modules)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")
    assert gzip.decompress(trace.with_name(f"{NAME}.gz").read_bytes()) == text
    assert not partials_of(trace).exists()


def test_the_modules_of_the_training_script_are_not_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise SystemExit")
    monkeypatch.syspath_prepend(tmp_path)
    folders = compressors.list_folders()
    assert str(tmp_path) not in folders
    assert folders[-1] == str(ROOT)


def test_packages_are_found_in_a_folder_of_any_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "packages" / "msgspec").mkdir(parents=True)
    (tmp_path / "packages" / "msgspec" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path / "packages")
    assert compressors.list_folders()[0] == str(tmp_path / "packages")


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


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The processes that are started, which do nothing; each has its lock in the place of the lock's number."""
    words_of_each: list[list[str]] = []
    monkeypatch.setenv("PERFSCOPE_MODULES", "/nowhere")

    def start(_: str, words: list[str], __: object, **options: object) -> None:
        words_of_each.append([*words[:-1], str(os.dup(int(words[-1])))])
        assert os.get_inheritable(int(words[-1]))
        assert "setsid" not in options  # it has the priority of the compressor's session
        assert options["file_actions"] == [(os.POSIX_SPAWN_OPEN, each, os.devnull, os.O_RDWR, 0) for each in range(3)]

    monkeypatch.setattr(os, "posix_spawn", start)
    return words_of_each


def neighbour(trace: Path) -> Path:
    """The trace of another rank of the host."""
    return Path(shutil.copyfile(trace, trace.with_name("vm_18.1795.pt.trace.json")))


def test_nobody_waits_for_the_process_that_measures(trace: Path, started: list[list[str]]) -> None:
    compressed(trace)
    compress.start_measuring([str(trace)])
    ((*_, queue, lock),) = started
    assert not partials_of(trace).exists()
    partials_at_capture.serve([queue, lock])
    assert partials_of(trace).exists()
    assert [path.name for path in Path(queue).iterdir()] == ["lock"]


def test_one_process_measures_the_traces_of_all_ranks_of_a_host(trace: Path, started: list[list[str]]) -> None:
    other = neighbour(trace)
    for path in (trace, other):
        compressed(path)
        compress.start_measuring([str(path)])
    ((*_, queue, lock),) = started  # the second one found the lock taken
    partials_at_capture.serve([queue, lock])
    assert len(list(trace.parent.glob("*.partials"))) == 2
    os.close(int(lock))
    compress.start_measuring([str(trace)])
    assert len(started) == 2


def test_what_is_queued_while_the_process_ends_is_measured(
    trace: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = neighbour(trace)
    for path in (trace, other):
        compressed(path)
    compress.start_measuring([str(trace)])
    ((*_, queue, lock),) = started
    flock, ends = fcntl.flock, iter((True,))

    def end(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_UN and next(ends, False):
            compress.start_measuring([str(other)])  # a moment before
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", end)
    partials_at_capture.serve([queue, lock])
    assert len(started) == 1
    assert len(list(trace.parent.glob("*.partials"))) == 2


def test_what_waited_too_long_in_the_queue_is_not_measured(trace: Path, started: list[list[str]]) -> None:
    compressed(trace)
    compress.start_measuring([str(trace)])
    ((*_, queue, lock),) = started
    (entry,) = Path(queue).glob("*.traces")
    os.utime(entry, (0, 0))
    partials_at_capture.serve([queue, lock])
    assert not partials_of(trace).exists()
    assert not entry.exists()


def test_an_entry_that_somebody_takes_out_of_the_queue_ends_nothing(
    trace: Path, started: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    compressed(trace)
    compress.start_measuring([str(trace)])
    ((*_, queue, lock),) = started
    listed = iter([[Path(queue) / "0.0.traces", *Path(queue).glob("*.traces")]])
    monkeypatch.setattr(partials_at_capture, "_entries", lambda _: next(listed, []))
    partials_at_capture.serve([queue, lock])
    assert partials_of(trace).exists()


@pytest.mark.parametrize("kind", ["open to others", "a link", "a file"])
def test_a_queue_that_others_could_write_is_not_used(
    trace: Path, started: list[list[str]], tmp_path: Path, kind: str
) -> None:
    queue = Path(compress.open_queue("/nowhere"))
    queue.rmdir()
    if kind == "open to others":
        queue.mkdir()
        queue.chmod(0o777)
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir(0o700)
        queue.symlink_to(tmp_path / "elsewhere")
    else:
        queue.write_bytes(b"")
    compress.start_measuring([str(trace)])
    assert not started


def test_what_no_process_could_measure_does_not_stay_in_the_queue(trace: Path, started: list[list[str]]) -> None:
    compress.start_measuring([str(trace)])
    ((*_, queue, lock),) = started
    (entry,) = Path(queue).glob("*.traces")
    os.utime(entry, (0, 0))
    os.close(int(lock))
    compress.start_measuring([str(trace)])
    (left,) = Path(queue).glob("*.traces")
    assert left != entry


def test_other_installations_have_queues_of_their_own() -> None:
    assert compress.open_queue("/a") != compress.open_queue("/b")


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


@pytest.mark.slow
def test_a_run_that_was_profiled_is_analyzed_by_its_partials(tmp_path: Path) -> None:
    captured = profile(sys.executable, SCRIPTS / "ending.py", "none", "0", cwd=tmp_path)
    assert captured.code == 0, captured.stderr
    (trace,) = (tmp_path / "RUN" / "traces").glob("*.gz")
    partials = trace.with_name(f"{trace.name.removesuffix('.json.gz')}.partials")
    assert appears(partials)
    plan = Plan(only=frozenset({"host", "steps"}))
    expected = analyze([tmp_path / "RUN"], Plan(only=plan.only, is_fresh=True))
    trace.unlink()
    analysis = analyze([tmp_path / "RUN"], plan)
    assert {name: result.data() for name, result in analysis.results.items()} == {
        name: result.data() for name, result in expected.results.items()
    }
    assert list(analysis.results) == ["steps", "host"]
    assert not analysis.notes
