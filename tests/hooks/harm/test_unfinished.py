"""A process that is killed while it writes a trace leaves a file that nobody takes for one."""

from __future__ import annotations

import shutil
from pathlib import Path

from perfscope.engine.run import analyze
from perfscope.sources.traces.files import find_traces
from tests.conftest import ROOT


def test_a_trace_that_was_never_finished_is_no_input(tmp_path: Path) -> None:
    run_dir = tmp_path / "RUN"
    shutil.copytree(ROOT / "fixtures" / "runs" / "h200_zero1", run_dir)
    whole = find_traces([str(run_dir / "traces")])
    assert whole
    (run_dir / "traces" / ".tmp-vm_1.2.pt.trace.json").write_text('{"traceEvents": [{"ph"')
    assert find_traces([str(run_dir / "traces")]) == whole
    assert analyze([str(run_dir)]).damage == ()
