"""What an analysis of very many ranks costs and tells."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from benchmarks.synthetic_ranks import Job, Made, make_job, write_partials
from perfscope.engine.analysis_report import to_report
from perfscope.engine.execution import Execution
from perfscope.engine.inputs import Inputs
from perfscope.engine.run import Analysis, Plan, analyze_inputs
from perfscope.engine.tasks import Measure, MeasuredTrace
from perfscope.engine.windows import TraceFiles
from perfscope.renderers import Format, render
from tests.conftest import perfscope


class Answers(Execution, frozen=True):
    """Gives the answers of the map step that it was given; its traces exist nowhere."""

    answers: tuple[MeasuredTrace, ...] = ()

    def map(self, measure: Measure, traces: Sequence[TraceFiles]) -> Iterator[MeasuredTrace]:
        return iter(self.answers)


def analyze_job(job: Job) -> Analysis:
    """Everything behind the map step."""
    answers = tuple(Made(job))
    inputs = Inputs(("job",), None, tuple(measured.path for measured in answers))
    return analyze_inputs(inputs, Plan(execution=Answers(answers=answers)))


def count_calls(ranks: int) -> int:
    """How many functions are called for a job, from the reduction to the rendered text."""
    job = make_job(ranks, stragglers=2)
    count = 0

    def on_event(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(on_event)
    try:
        render(to_report(analyze_job(job)), Format.MARKDOWN)
    finally:
        sys.setprofile(None)
    return count


def test_twice_the_ranks_take_twice_the_calls() -> None:
    """A loop over all ranks inside another one would take four times as many."""
    small = count_calls(520)
    assert count_calls(1040) < 2.3 * small


def test_a_folder_of_partials_is_analyzed_whole(tmp_path: Path) -> None:
    """What reaches a driver of many ranks: a file of partials of each, and no trace."""
    write_partials(tmp_path / "job", 520)
    answer = perfscope("analyze", "job", "--format", "json", "--rows", "rows", cwd=tmp_path)
    assert answer.code == 0, answer.stderr
    document = json.loads(answer.stdout)
    assert document["results"]["stragglers"]["straggler"] in [straggler.rank for straggler in make_job(520).stragglers]
    assert len(document["results"]["breakdown"]["ranks"]) == 520
    assert (tmp_path / "rows" / "device-time.csv").is_file()
    assert "findings of more than 64 traces are not replayed" in answer.stderr
