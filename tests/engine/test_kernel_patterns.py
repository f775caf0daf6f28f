"""Kernels of the user's own are communication where a pattern names them, in every figure."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import perfscope
from perfscope.engine.kernel_patterns import read_patterns
from perfscope.engine.run import Plan, analyze
from perfscope.errors import SourceError, UsageError
from tests.conftest import ROOT
from tests.conftest import perfscope as run_command
from tests.engine.storing import copy_with_partials, without_traces
from tests.sources.traces.making import copy, distributed, kernel, write

NAME = "void mine::swap_experts<float>(float*)"
REAL = ROOT / "fixtures" / "traces" / "single"
ONLY = frozenset({"breakdown"})


def make_trace(folder: Path) -> Path:
    events = [kernel("gemm", 0, 100), kernel(NAME, 100, 400, stream=20), copy("Memcpy HtoD swap_experts", 400, 450)]
    return write(folder / "rank0.json", events, **distributed(0, 2))


def times(trace: Path, *patterns: str) -> tuple[float, float, float]:
    analysis: Any = analyze([trace], Plan(only=ONLY, kernels=patterns)).results["breakdown"].data()
    (rank,) = analysis["ranks"]
    return rank["compute_us"], rank["communication_us"], rank["copy_us"]


def test_kernels_that_a_pattern_names_communicate_and_copies_stay_copies(tmp_path: Path) -> None:
    trace = make_trace(tmp_path)
    assert times(trace) == (0.4, 0, 0.05)
    assert times(trace, "no_such_kernel") == (0.4, 0, 0.05)
    assert times(trace, "no_such_kernel", r"(?i)\bMINE::") == (0.1, 0.3, 0.05)


def test_the_options_file_has_a_pattern_a_line(tmp_path: Path) -> None:
    trace, patterns = make_trace(tmp_path), tmp_path / "kernels.txt"
    patterns.write_text("# ours\n\n  swap_experts  \n")
    assert read_patterns(patterns) == ("swap_experts",)
    ended = run_command("analyze", str(trace), "--kernels", str(patterns), "--format", "json", cwd=tmp_path)
    names = json.loads(ended.stdout)["results"]["kernels"]["names"]
    opened: Any = perfscope.open(str(trace), kernels=["swap_experts"]).results.kernels.data()
    assert names == opened["names"]
    assert {entry["name"]: entry["work"] for entry in names}[NAME] == "communication"


@pytest.mark.parametrize(("content", "problem"), [("a(b\n", "is no regular expression"), ("# none\n", "no pattern")])
def test_a_file_that_says_nothing_is_refused(content: str, problem: str, tmp_path: Path) -> None:
    (tmp_path / "kernels.txt").write_text(content)
    with pytest.raises(SourceError, match=problem):
        read_patterns(tmp_path / "kernels.txt")
    with pytest.raises(SourceError, match="cannot be read"):
        read_patterns(tmp_path / "missing.txt")


def test_a_pattern_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no regular expression"):
        perfscope.open(str(make_trace(tmp_path)), kernels=["("])


def test_partials_that_know_no_patterns_are_not_taken(tmp_path: Path) -> None:
    run = copy_with_partials(ROOT / "fixtures" / "runs" / "h200_zero2", tmp_path)
    plan = Plan(only=ONLY, kernels=("elementwise",))
    expected: Any = analyze([run], Plan(only=ONLY, kernels=plan.kernels, is_fresh=True)).results["breakdown"].data()
    found: Any = analyze([run], plan).results["breakdown"].data()
    assert found == expected
    assert found != analyze([run], Plan(only=ONLY)).results["breakdown"].data()
    without_traces(run)
    assert "without the patterns of kernels" in analyze([run], plan).damage[0]
