"""A run, or traces, opened in Python: everything that is known of it, computed when it is asked for."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property, partial
from html import escape
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from perfscope.engine.analysis_report import to_report
from perfscope.engine.execution import Execution
from perfscope.engine.inputs import Inputs, find_inputs, split_into_runs
from perfscope.engine.registry import FINDINGS, analyzers
from perfscope.engine.run import Analysis, Plan, analyze_inputs, require_analyzers
from perfscope.errors import UsageError
from perfscope.files import replace_file
from perfscope.renderers import Format, render
from perfscope.renderers.markdown import render_sections
from perfscope.report import Json, Report
from perfscope.result import Result
from perfscope.sources.traces.files import RANK_IN_FILE_NAME
from perfscope.tables.stated import Stated

if TYPE_CHECKING:
    import pandas as pd

    from perfscope.analyzers.findings import Findings
    from perfscope.analyzers.steps import StepTimes
    from perfscope.api.comparing import ComparedRuns
    from perfscope.api.results import Absent, AnyResult, Results
    from perfscope.tables.run import Run

#: Loaded by name when they are asked for: pandas and scipy take longer to import than most traces take to read.
_RESULTS = "perfscope.api.results"
_FRAMES = "perfscope.api.frames"
_COMPARING = "perfscope.api.comparing"


class Page:
    """A run on one HTML page that needs no network, as ``html``; a notebook shows it in a frame."""

    def __init__(self, html: str) -> None:
        self.html = html

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, and return its path; ``SourceError`` where it cannot be written."""
        target = Path(path)
        replace_file(target, self.html.encode())
        return target

    def __repr__(self) -> str:
        return f"<page of {len(self.html):,} characters>"

    def _repr_html_(self) -> str:
        frame = '<iframe title="perfscope" style="width:100%;height:40rem;border:0" srcdoc="{}"></iframe>'
        return frame.format(escape(self.html))


class OpenedRun:
    """A run of ``perfscope profile``, or traces of one job.

    Nothing is analyzed before a result is asked for; then every trace is read once.
    """

    def __init__(self, inputs: Inputs, plan: Plan) -> None:
        self._inputs = inputs
        self._plan = plan
        self._further: dict[str, Analysis] = {}

    @property
    def paths(self) -> tuple[str, ...]:
        """What was opened."""
        return self._inputs.locations

    @property
    def command(self) -> tuple[str, ...]:
        """The profiled command, without secrets; empty for traces, and where the run does not state it."""
        return self._inputs.run.command if self._inputs.run else ()

    @cached_property
    def analysis(self) -> Analysis:
        """The analysis behind the results; ``SourceError`` where no trace can be read, and there is nothing else."""
        return analyze_inputs(self._inputs, self._plan)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is missing or damaged, as sentences; the results rest on the rest."""
        return self.analysis.damage

    @property
    def absent(self) -> Mapping[str, str]:
        """Why a result is absent, by its name."""
        return {skipped.analyzer: skipped.reason for skipped in self.analysis.skipped}

    @cached_property
    def results(self) -> Results:
        """Every result by its name; one that does not exist is ``Absent`` and says why."""
        names = [FINDINGS, *(analyzer.name for analyzer in analyzers())]
        results: Results = import_module(_RESULTS).Results(names, self._look_up)
        return results

    @property
    def findings(self) -> Findings | Absent:
        """What costs the most, and what to try."""
        return self.results.findings

    @property
    def steps(self) -> StepTimes | Absent:
        """Step times and throughput; each step is a row of ``frame("steps")``."""
        return self.results.steps

    def frame(self, name: str) -> pd.DataFrame:
        """A table as a pandas DataFrame: columns as in the JSON, with their units, and ``<NA>`` for what is absent.

        Raises:
            UsageError: There is no such table; the error names those that there are.
            MissingInput: The run does not have it; the error says why.
        """
        frame: pd.DataFrame = import_module(_FRAMES).to_frame(self, name)
        return frame

    @property
    def frames(self) -> tuple[str, ...]:
        """The names that ``frame`` takes."""
        names: tuple[str, ...] = import_module(_FRAMES).NAMES
        return names

    def compare(
        self,
        run: OpenedRun | str | os.PathLike[str],
        *,
        anyway: bool = False,
        limits: Sequence[str] = (),
        between_runs: float | None = None,
        operators: bool = False,
    ) -> ComparedRuns:
        """Say whether another run, or what ``perfscope compare`` takes, is slower or faster, by how much, and why.

        Args:
            run: The other one.
            anyway: Compare another model, batch or GPU count, too: per token.
            limits: Limits such as ``"step_time>+3%"``; ``data["limits"]`` says what became of them.
            between_runs: Standard deviation of the median step between runs of the same code, as a share of 1.
            operators: Break compute down by operator, too.

        Raises:
            SourceError: That run cannot be read.
            UsageError: A limit cannot be understood.
        """
        location = run.location if isinstance(run, OpenedRun) else os.fspath(run)
        read_side, plan = import_module("perfscope.engine.sides").read_side, Plan(with_operators=operators)
        sides = [read_side(each, plan) for each in (self.location, location)]
        (compared,) = import_module(_COMPARING).compare_sides(
            sides, anyway=anyway, limits=limits, between_runs=between_runs
        )
        result: ComparedRuns = compared
        return result

    def page(self) -> Page:
        """The page of ``perfscope export``: findings, charts and a timeline of all ranks. ``save`` writes it."""
        page = import_module("perfscope.page")
        return Page(page.build_page(page.analyze_for_page(self._inputs, self._plan)))

    @property
    def location(self) -> str:
        """What ``perfscope compare`` takes for this run."""
        return ",".join(self.paths)

    def report(self) -> Report:
        """The report that ``perfscope analyze`` prints, as a neutral document."""
        return to_report(self.analysis)

    @property
    def data(self) -> Mapping[str, Json]:
        """All of it as ``perfscope analyze --format json`` gives it."""
        return self.report().data

    @property
    def records(self) -> Run | None:
        """What the hooks recorded, as typed tables; None for traces alone."""
        return self._inputs.run

    def with_operators(self) -> OpenedRun:
        """The same run, with kernels broken down by operator."""
        return self if self._plan.with_operators else OpenedRun(self._inputs, replace(self._plan, with_operators=True))

    def __str__(self) -> str:
        return render(self.report(), Format.MARKDOWN)

    def __repr__(self) -> str:
        what = "run" if self._inputs.run else f"{len(self._inputs.traces)} traces"
        command = f": {shlex.join(self.command)}" if self.command else ""
        return f"<{what} {', '.join(self.paths)}{command}>"

    _repr_markdown_ = __str__

    def _look_up(self, name: str) -> AnyResult:
        result, reason = self.analysis.results.get(name), self.absent.get(name)
        if result is None and reason is None and any(analyzer.name == name for analyzer in analyzers()):
            if name not in self._further:  # the plan leaves it out
                plan = replace(self._plan, only=frozenset({name}))
                self._further[name] = analyze_inputs(self._inputs, plan)
            result = self._further[name].results.get(name)
            reason = next((skip.reason for skip in self._further[name].skipped if skip.analyzer == name), None)
        if result is None:
            absent: Absent = import_module(_RESULTS).Absent(name, reason or "it does not apply to this run")
            return absent
        if isinstance(result, Result):
            result.show_by(partial(render_sections, level=2))
        return result


def open_run(
    *paths: str | os.PathLike[str],
    only: Iterable[str] = (),
    operators: bool = False,
    rank: int | re.Pattern[str] | None = None,
    dtype: str | None = None,
    peak_tflops: float | None = None,
    workers: int = 1,
) -> OpenedRun:
    """Open a run's folder, or the traces of one job: files, folders, patterns, URLs.

    Args:
        paths: The run, or the traces.
        only: Analyzers to run; all of them where it is empty.
        operators: Break kernels down by operator.
        rank: Rank of a trace that does not state it, or a pattern with one group that is searched for in its path.
        dtype: Data type of the matrix products, for the peak of MFU, where the run does not show it.
        peak_tflops: Dense peak of one GPU in TFLOP/s, where it is not that of the run's GPU.
        workers: How many processes read traces; 1 reads them in this one.

    Raises:
        SourceError: A path does not exist, or there is neither a run nor a trace.
        UsageError: The paths are of several runs, or ``only`` names an analyzer that does not exist.
    """
    plan = Plan(
        execution=Execution(workers),
        only=frozenset(only),
        with_operators=operators,
        rank_rule=RANK_IN_FILE_NAME if rank is None else rank,
        stated=Stated(dtype, peak_tflops),
    )
    runs = open_each(paths, plan)
    if len(runs) != 1:
        names = ", ".join(run.location for run in runs) or "nothing"
        raise UsageError(f"these are {len(runs)} runs: {names}", hint="open one of them, or compare them")
    return runs[0]


def open_each(paths: Sequence[str | os.PathLike[str]], plan: Plan) -> list[OpenedRun]:
    """Open every run that the paths name or hold, and all traces together as one more; errors as ``open_run``."""
    require_analyzers(plan.only)
    return [OpenedRun(find_inputs(group), plan) for group in split_into_runs(paths)]
