"""Where another profiler runs, ours records nothing, says so in one line, and takes nothing from the other one."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch

from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.frameworks.torch import patch_profiler
from perfscope.hooks.selection import parse_windows
from perfscope.sources.runs.run import read_run
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import BASIC_EVENTS
from tests.conftest import SCRIPTS, profile, run, step_lines

pytestmark = pytest.mark.slow

OWN = "the script runs a profiler of its own"


@pytest.mark.parametrize(
    ("words", "windows", "says"),
    [
        (["1"], [[16, 17]], [f"the window 4-6 is not profiled: {OWN}"]),
        (["5"], [[16, 17]], [f"the window 4-6 is lost: {OWN}"]),
        (["6"], [[16, 17]], [f"the window 4-6 is lost: {OWN}"]),
        (["10"], [[4, 5, 6], [16, 17]], []),
        (["11", "1"], [[4, 5, 6], [16, 17]], []),
        (["30", "3"], [[4, 5, 6], [16, 17]], []),
        (["5", "1"], [[16, 17]], [f"the window 4-6 is lost: {OWN}"]),
    ],
    ids=[
        *("until our window begins", "inside it", "inside it until after it", "after it"),
        *("waits in our window", "waits, and steps for each micro-batch", "records in our window"),
    ],
)
def test_a_profiler_of_the_scripts_own_has_all_its_events_and_our_traces_our_steps(
    words: list[str], windows: list[list[int]], says: list[str], tmp_path: Path
) -> None:
    """It marks its steps in our trace as well: by numbers of its own, and also while it waits."""
    script: list[str | Path] = [sys.executable, SCRIPTS / "own_profiler.py", *words]
    alone = run(script, tmp_path)
    captured = profile(*script, cwd=tmp_path, options=["--exec", "--steps", "4-6,16-17"])
    assert (captured.code, captured.stdout) == (0, alone.stdout), captured.stderr
    if len(words) == 1:
        assert "('Optimizer.step#SGD.step', 2)" in alone.stdout
        assert "('aten::addmm', 2)" in alone.stdout
    assert [line.removeprefix("perfscope: ") for line in captured.stderr.splitlines() if "perfscope: " in line] == says
    assert len(step_lines(tmp_path / "RUN")) == 20
    notes = [note for rank in read_run(tmp_path / "RUN").ranks for note in rank.notes]
    assert bool(notes) == bool(says)
    traces = sorted((tmp_path / "RUN" / "traces").glob("*.pt.trace.json*"))
    marked = [read_trace(path, BASIC_EVENTS) for path in traces]
    assert [[int(trace.name_of(name).partition("#")[2]) for name in trace.steps.name] for trace in marked] == windows


@pytest.mark.parametrize("variable", ["NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH"])
def test_below_nsight_systems_no_window_is_profiled(variable: str, tmp_path: Path) -> None:
    script: list[str | Path] = [sys.executable, SCRIPTS / "ending.py", "none", "0"]
    captured = profile(*script, cwd=tmp_path, options=["--exec"], **{variable: "1"})
    assert captured.code == 0
    assert f"the window 4-6 is not profiled: another profiler is attached ({variable} is set)" in captured.stderr
    assert list((tmp_path / "RUN" / "traces").glob("*.pt.trace.json*")) == []
    assert len(step_lines(tmp_path / "RUN")) == 10


def test_ranges_for_nsight_as_megatrons_profile_option_enters_them_end_our_window(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Entered:
        def _prepare_trace(self) -> None: ...
        def _start_trace(self) -> None: ...
        def __enter__(self) -> str:
            return "entered"

        def __exit__(self, *_failure: object) -> str:
            return "left"

    module = types.ModuleType("torch.autograd.profiler")
    module.profile, module.emit_nvtx = Entered, type("emit_nvtx", (Entered,), {})  # type: ignore[attr-defined]
    capture = Capture(Config(str(tmp_path), parse_windows("4-6"), nvml_hz=0))
    patch_profiler(module, capture)
    capture.on_step_begin()
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(4))])
    for _ in range(3):
        capture.on_optimizer_step(optimizer)
    ranges = module.emit_nvtx()
    assert ranges.__enter__() == "entered"
    assert capsys.readouterr().err == f"perfscope: the window 4-6 is lost: {OWN}\n"
    assert ranges.__exit__(None, None, None) == "left"
    assert not capture.dead
