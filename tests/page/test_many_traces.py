"""The page of more traces than it replays says what it leaves out, and of how many traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfscope.engine.inputs import Inputs
from perfscope.engine.run import Analysis, Plan
from perfscope.page import describe_analysis, reading

MANY = 1_024


@pytest.mark.parametrize(
    ("is_absent", "described"), [(True, "1,024 traces that stayed on the hosts"), (False, "1,024 traces of 2.05 kB")]
)
def test_a_critical_path_that_is_left_out_names_its_traces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_absent: bool, described: str
) -> None:
    paths = tuple(str(tmp_path / f"rank{rank}.json") for rank in range(MANY))
    for path in () if is_absent else paths:
        Path(path).write_bytes(b"[]")

    def analyze_nothing(inputs: Inputs, plan: Plan) -> Analysis:
        assert "whatif" not in plan.besides
        return Analysis(inputs.paths, {}, (), (), None)

    monkeypatch.setattr(reading, "analyze_inputs", analyze_nothing)
    inputs = Inputs((str(tmp_path),), None, paths, frozenset(paths if is_absent else ()))
    (skipped,) = reading.analyze_for_page(inputs).skipped
    assert described in skipped.reason


@pytest.mark.parametrize(
    ("paths", "title"),
    [
        ([f"job/rank{rank}.json" for rank in range(MANY)], "job"),
        ([f"job/host{rank % 2}/rank{rank}.json" for rank in range(MANY)], "job/host0/rank0.json"),
        (["job/rank0.json", "job/rank1.json"], "job/rank0.json"),
    ],
)
def test_the_page_of_very_many_traces_bears_the_name_of_their_folder(paths: list[str], title: str) -> None:
    assert describe_analysis(Analysis(tuple(paths), {}, (), (), None)).title == title
