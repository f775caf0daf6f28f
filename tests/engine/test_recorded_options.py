"""What a run was told to record is answered, or the reason stands where it is not."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from perfscope.engine.run import Analysis, analyze
from tests.conftest import ROOT
from tests.sources.traces.making import distributed, kineto, span, write

CPU_RUN = ROOT / "fixtures" / "runs" / "cpu_trainer"
GPU_RUN = ROOT / "fixtures" / "runs" / "h200_zero1"


def with_options(source: Path, folder: Path, options: list[str]) -> Analysis:
    run = folder / "run"
    shutil.copytree(source, run)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "recorded": options}))
    if source is CPU_RUN:  # its traces are not kept
        (run / "traces").mkdir()
        write(run / "traces" / "vm_1.1.pt.trace.json", [span("cpu_op", "aten::mm", 0, 10)], kineto, **distributed(0))
    return analyze([run])


def reason(analysis: Analysis, name: str) -> str | None:
    return {skip.analyzer: skip.reason for skip in analysis.skipped}.get(name)


def test_modules_that_a_cpu_run_recorded_are_missing_for_want_of_a_gpu(tmp_path: Path) -> None:
    assert reason(with_options(CPU_RUN, tmp_path, ["modules"]), "modules") == "training ran without a GPU"


def test_modules_that_a_gpu_run_recorded_without_a_mark_are_missing_for_want_of_marks(tmp_path: Path) -> None:
    found = reason(with_options(GPU_RUN, tmp_path, ["modules"]), "modules")
    assert found is not None
    assert "mark no modules" in found


@pytest.mark.parametrize("source", [CPU_RUN, GPU_RUN])
def test_modules_that_nobody_asked_for_are_not_missed(tmp_path: Path, source: Path) -> None:
    assert reason(with_options(source, tmp_path, []), "modules") is None
