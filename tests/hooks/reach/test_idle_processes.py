"""A process that imports torch and never trains, as launchers and workers of data loaders do, loads little of ours."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.conftest import profile

pytestmark = pytest.mark.slow

CODE = """
import sys
import torch.distributed.rpc, torch.optim, torch.utils.data, torch.utils.checkpoint
ours = [name for name in sys.modules if name.startswith("perfscope")]
print("loaded", *ours)
"""
#: The hooks' own files for torch, what they rest on, and the packages around these.
MOST_MODULES = 24


def test_a_process_that_never_trains_loads_hooks_and_no_records(tmp_path: Path) -> None:
    ended = profile(sys.executable, "-c", CODE, cwd=tmp_path)
    assert ended.code == 0, ended.stderr
    (line,) = (line for line in ended.stdout.splitlines() if line.startswith("loaded "))
    loaded = line.split()[1:]
    assert "perfscope.hooks.frameworks.torch" in loaded, "torch is hooked"
    heavy = [name for name in loaded if name.startswith("perfscope.wire") or name.endswith((".capture", ".secrets"))]
    assert heavy == []
    assert len(loaded) <= MOST_MODULES, loaded
