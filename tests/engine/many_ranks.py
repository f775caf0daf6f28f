"""Analyses of made-up jobs of many ranks, without a file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.synthetic_ranks import Job, Made
from perfscope.engine.execution import Execution
from perfscope.engine.inputs import Inputs
from perfscope.engine.run import Analysis, Plan, analyze_inputs
from perfscope.engine.tasks import Measure, MeasuredTrace
from perfscope.engine.windows import TraceFiles


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
