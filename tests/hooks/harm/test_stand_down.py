"""Where another profiler runs, ours records nothing, says so in one line, and takes nothing from the other one."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from perfscope.hooks.capture import Capture
from perfscope.hooks.config import Config
from perfscope.hooks.frameworks.torch import patch_profiler
from perfscope.hooks.selection import parse_windows
from perfscope.sources.runs.run import read_run
from tests.conftest import SCRIPTS, profile, run, step_lines

pytestmark = pytest.mark.slow

OWN = "the script runs a profiler of its own"


@pytest.mark.parametrize(
    ("first", "traces", "says"),
    [
        (1, 0, [f"no window is profiled from here on: {OWN}", f"the window 4-6 is not profiled: {OWN}"]),
        (5, 0, [f"no window is profiled from here on: {OWN}"]),
        (10, 1, []),
    ],
    ids=["before our window", "inside it", "after it"],
)
def test_a_profiler_of_the_scripts_own_has_all_its_events(
    first: int, traces: int, says: list[str], tmp_path: Path
) -> None:
    script: list[str | Path] = [sys.executable, SCRIPTS / "own_profiler.py", str(first)]
    alone = run(script, tmp_path)
    captured = profile(*script, cwd=tmp_path, options=["--exec"])
    assert (captured.code, captured.stdout) == (0, alone.stdout), captured.stderr
    assert alone.stdout.split()[1:] == ["2", "2"]
    said = [line.removeprefix("perfscope: ") for line in captured.stderr.splitlines() if "perfscope: " in line]
    assert said == says
    assert (
        len({path.name.partition(".pt")[0] for path in (tmp_path / "RUN" / "traces").glob("*.pt.trace.json*")})
        == traces
    )
    assert len(step_lines(tmp_path / "RUN")) == 12
    notes = [note for rank in read_run(tmp_path / "RUN").ranks for note in rank.notes]
    assert bool(notes) == bool(says)


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

    module = types.ModuleType("torch.autograd.profiler")
    module.profile, module.emit_nvtx = Entered, type("emit_nvtx", (Entered,), {})  # type: ignore[attr-defined]
    capture = Capture(Config(str(tmp_path), parse_windows("4-6"), nvml_hz=0))
    patch_profiler(module, capture)
    assert module.emit_nvtx().__enter__() == "entered"
    assert module.emit_nvtx().__enter__() == "entered"
    assert capsys.readouterr().err == f"perfscope: no window is profiled from here on: {OWN}\n"
    assert not capture.dead
