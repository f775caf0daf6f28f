"""What is imported while other processes read a large trace is all that its analysis imports."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import ROOT

#: A process of its own, which has imported nothing yet, and takes each trace for a large one.
_SCRIPT = """
import sys
from importlib import import_module
from perfscope.engine import measuring
from perfscope.engine.execution import Backend, Execution
from perfscope.engine.run import Plan, analyze
from perfscope.sources.traces import shares
shares._LEAST_COMPRESSED_BYTES, shares.READ_BYTES = 0, 1 << 15
import_all, loaded = measuring._import_all, set()
def note(modules):
    import_all(modules)
    loaded.update(sys.modules)
measuring._import_all = note
analysis = analyze([sys.argv[1]], Plan(Execution(Backend.PROCESS, workers=2)))
assert "findings" in analysis.results
assert loaded
# Which changes are replayed depends on the findings.
later = {name for name in set(sys.modules) - loaded if name.startswith("perfscope.analyzers.")}
print(*sorted(name for name in later if not name.endswith("_changes")))
"""


def test_an_analysis_imports_no_analyzer_after_the_others_have_read() -> None:
    trace = ROOT / "fixtures" / "traces" / "ddp4" / "rank0.pt.trace.json.gz"
    command = [sys.executable, "-c", _SCRIPT, str(trace)]
    answer = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=100)
    assert answer.returncode == 0, answer.stderr
    assert not answer.stdout.split()
