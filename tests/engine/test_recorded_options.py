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


@pytest.mark.parametrize(
    ("source", "options", "reason"),
    [
        (CPU_RUN, ["modules"], "training ran without a GPU"),
        (GPU_RUN, ["modules"], "mark no modules"),
        (CPU_RUN, [], ""),
        (GPU_RUN, [], ""),
    ],
)
def test_modules_that_a_run_recorded_are_answered_or_missed(
    source: Path, options: list[str], reason: str, tmp_path: Path
) -> None:
    skipped = {skip.analyzer: skip.reason for skip in with_options(source, tmp_path, options).skipped}
    assert reason in skipped.get("modules", "")
    assert ("modules" in skipped) == bool(reason)
