"""Traces as perfscope leaves them: of a real run on four H200, and of a run on two CPU ranks that was just made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.conftest import ROOT, SCRIPTS, profile

H200 = ROOT / "fixtures" / "runs" / "h200_zero1" / "traces"


@pytest.fixture(scope="session")
def cpu_traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """RUN/traces of two ranks with all that torch.profiler records, but stacks: torch interleaves those with steps."""
    folder = tmp_path_factory.mktemp("fresh")
    command: Sequence[str | Path] = ["torchrun", "--nproc_per_node", "2", "--standalone", SCRIPTS / "ddp.py"]
    ended = profile(*command, cwd=folder, options=["--memory", "--shapes", "--modules"])
    assert ended.code == 0, ended.stderr
    return folder / "RUN" / "traces"
