"""`perfscope profile` captures unmodified scripts, and they end as they would without it."""

from __future__ import annotations

import gzip
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from benchmarks.synthetic_runs import SyntheticRun, write_run
from perfscope.commands.profile.completion import complete, compress_run
from perfscope.hooks.reach.supervise import Ending
from tests.conftest import SCRIPTS, analysis, event_names, perfscope, profile, run, step_lines


@pytest.mark.slow
def test_the_message_says_how_the_command_ended_and_where_the_run_is(tmp_path: Path) -> None:
    ended = profile(sys.executable, SCRIPTS / "ending.py", "SIGKILL", "9", cwd=tmp_path)
    assert ended.code == -signal.SIGKILL
    assert "the command was ended by SIGKILL" in ended.stderr
    # The last two seconds may be lost, but no step of a finished window, which ends with step 6, nor one before it.
    assert re.search("[6-9] training steps on 1 rank", ended.stderr), ended.stderr
    assert "perfscope analyze RUN" in ended.stderr


@pytest.mark.slow
def test_torchrun_with_gradient_accumulation(tmp_path: Path) -> None:
    command: list[str | Path] = ["torchrun", "--nproc_per_node", "2", "--standalone", SCRIPTS / "ddp.py"]
    alone = run(command, tmp_path)
    captured = profile(*command, cwd=tmp_path)
    assert (captured.code, captured.stdout) == (0, alone.stdout)
    for rank in ("00000", "00001"):
        lines = step_lines(tmp_path / "RUN", rank)
        assert len(lines) == 10
        assert {(line["micro_batches"], line["samples"], line["tokens"]) for line in lines} == {(2, 8, 128)}
    steps = analysis(tmp_path / "RUN")["results"]["steps"]
    assert steps["count"] == 10
    assert steps["tokens_per_step"] == 2 * 128


@pytest.mark.slow
def test_windows_are_training_steps_and_so_are_the_names_in_the_trace(tmp_path: Path) -> None:
    assert (
        profile(sys.executable, SCRIPTS / "ending.py", "none", "0", cwd=tmp_path, options=["--steps", "3-4,7"]).code
        == 0
    )
    labels = {line["step"]: line.get("window") for line in step_lines(tmp_path / "RUN")}
    assert labels == {
        **dict.fromkeys([1, 9, 10]),
        2: "warmup",
        3: "profiled",
        4: "profiled",
        5: "export",
        6: "warmup",
        7: "profiled",
        8: "export",
    }
    traces = sorted((tmp_path / "RUN" / "traces").glob("*.pt.trace.json*"), key=lambda path: path.name)
    names = [sorted({name for name in event_names(trace) if "Step#" in name}) for trace in traces]
    assert names == [["ProfilerStep#3", "ProfilerStep#4"], ["ProfilerStep#7"]]


@pytest.mark.slow
def test_a_window_at_step_2_has_its_warm_up_where_a_loader_or_a_wrapped_model_shows_the_beginning(
    tmp_path: Path,
) -> None:
    command: list[str | Path] = ["torchrun", "--nproc_per_node", "2", "--standalone", SCRIPTS / "ddp.py"]
    assert profile(*command, cwd=tmp_path, options=["--steps", "2-3", "--ranks", "1"]).code == 0
    labels = [line.get("window") for line in step_lines(tmp_path / "RUN", "00001")]
    assert labels[:4] == ["warmup", "profiled", "profiled", "export"]
    assert {line.get("window") for line in step_lines(tmp_path / "RUN", "00000")} == {None}
    assert len(list((tmp_path / "RUN" / "traces").glob("*.pt.trace.json*"))) == 1


@pytest.mark.slow
def test_modules_are_named_by_their_path(tmp_path: Path) -> None:
    command: list[str | Path] = ["torchrun", "--nproc_per_node", "1", "--standalone", SCRIPTS / "ddp.py"]
    assert profile(*command, cwd=tmp_path, options=["--modules", "--shapes", "--memory", "--stack"]).code == 0
    (trace,) = (tmp_path / "RUN" / "traces").glob("*.pt.trace.json*")
    assert {"nn.Module: module.0", "nn.Module: module.1"} <= set(event_names(trace))
    text = gzip.decompress(trace.read_bytes()).decode()
    assert "Input Dims" in text
    assert "[memory]" in text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ([], 2, "no command after --"),
        (["--", "no-such-program"], 127, "command not found"),
        (["--steps", "1-3", "--", "true"], 2, "the step before a window warms the profiler up"),
        (["--steps", "abc", "--", "true"], 2, "names no training steps"),
        (["--ranks", "x", "--", "true"], 2, "names no ranks"),
        (["-o", "exists", "--", "true"], 2, "exists already"),
        (["-o", "file/run", "--", "true"], 2, "cannot be written"),
    ],
)
def test_what_is_wrong_before_the_start_is_one_line_and_nothing_is_started(
    words: list[str], code: int, says: str, tmp_path: Path
) -> None:
    (tmp_path / "exists").mkdir()
    (tmp_path / "file").touch()
    ended = perfscope("profile", *words, cwd=tmp_path)
    assert ended.code == code
    assert says in ended.stderr
    assert "Traceback" not in ended.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exists", "file"]


@pytest.mark.slow
def test_a_script_with_a_long_name_has_a_folder_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / f"{'a' * 250}.py"
    script.touch()
    ended = perfscope("profile", "--no-page", "--", sys.executable, str(script), cwd=tmp_path)
    assert ended.code == 0
    assert "runs without perfscope" not in ended.stderr
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(folder.name) < 100


@pytest.mark.slow
def test_a_quota_ends_the_capture_and_not_the_training(tmp_path: Path) -> None:
    """The script limits the size of files: the records stop at 250 bytes, the trace is not written."""
    script: list[str | Path] = [
        sys.executable,
        "-c",
        "import resource, runpy, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (250, 250))\n"
        f"sys.argv = ['ending.py', 'none', '0']; runpy.run_path({str(SCRIPTS / 'ending.py')!r})",
    ]
    alone = run(script, tmp_path)
    captured = profile(*script, cwd=tmp_path)
    assert (captured.code, captured.stdout) == (0, alone.stdout)
    assert "training goes on" in captured.stderr
    assert [path.name for path in (tmp_path / "RUN" / "traces").glob("*.pt.trace.json*")] == []


@pytest.mark.slow
def test_a_run_is_summarized_where_perfscope_is_found_by_its_installation_alone(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", "perfscope", "profile", "-o", "RUN", "--nvml-hz", "0", "--", sys.executable]
    ended = subprocess.run(
        [*command, SCRIPTS / "ending.py", "exit", "0"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "training steps on 1 rank" in ended.stderr
    assert "could not be summarised" not in ended.stderr


@pytest.mark.slow
def test_on_a_terminal_it_ends_with_the_screen_of_analyze(tmp_path: Path) -> None:
    """Nothing is written on standard error, where its lines stand elsewhere."""
    training = ["-o", "RUN", "--nvml-hz", "0", "--", sys.executable, str(SCRIPTS / "ending.py"), "none", "0"]
    ended, screen = on_terminal("profile", *training, cwd=tmp_path)
    _, again = on_terminal("analyze", "RUN", cwd=tmp_path)
    assert "Where the time went: " in again
    assert screen.endswith(again)
    assert "Page: RUN/page.html" in again
    assert "perfscope: " not in ended.stderr


def on_terminal(*words: str | Path, cwd: Path) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run a command whose standard output is a terminal; also what it wrote there."""
    ours, theirs = pty.openpty()
    plain = {**os.environ, "NO_COLOR": "1", "COLUMNS": "100", "LINES": "40"}
    command = [sys.executable, "-m", "perfscope", *words]
    ended = subprocess.run(command, cwd=cwd, env=plain, stdout=theirs, stderr=subprocess.PIPE, text=True, check=False)
    os.close(theirs)
    written = b""
    try:
        while part := os.read(ours, 2**16):
            written += part
    except OSError:  # the end of a terminal
        os.close(ours)
    return ended, written.decode()


ENDED = Ending(0, None)


def lines_of(run_with_page: Path, *, writes_page: bool) -> list[str]:
    outcome = complete(run_with_page, ENDED, writes_page=writes_page)
    return [*outcome.notes, *outcome.summary]


@pytest.fixture
def run_with_page(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run", SyntheticRun(ranks=2))


def test_it_is_written_and_its_path_printed(run_with_page: Path) -> None:
    lines = lines_of(run_with_page, writes_page=True)
    assert f"page: {run_with_page}/page.html" in lines
    assert (run_with_page / "page.html").read_text().startswith("<!doctype html>")
    assert any(line.startswith("12 training steps on 2 ranks") for line in lines)


def test_the_summary_is_the_same_without_it(run_with_page: Path) -> None:
    without = lines_of(run_with_page, writes_page=False)
    assert not (run_with_page / "page.html").exists()
    assert [line for line in lines_of(run_with_page, writes_page=True) if not line.startswith("page: ")] == without


def test_a_page_that_cannot_be_written_costs_nothing_else(run_with_page: Path) -> None:
    (run_with_page / "page.html").mkdir()
    lines = lines_of(run_with_page, writes_page=True)
    assert any(line.startswith("the page could not be written: ") for line in lines)
    assert any(line.startswith("12 training steps on 2 ranks") for line in lines)
    assert not list(run_with_page.glob(".page.html.*"))


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
