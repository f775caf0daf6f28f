"""Opens runs and traces."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from perfscope.api.opened_run import OpenedRun
from perfscope.engine.execution import Execution
from perfscope.engine.inputs import find_inputs, split_into_runs
from perfscope.engine.run import Plan, require_analyzers
from perfscope.errors import UsageError
from perfscope.sources.traces.files import RANK_IN_FILE_NAME
from perfscope.tables.stated import Stated


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
    """Open every run that the paths name or hold, and all traces together as one more.

    Raises:
        SourceError: A path does not exist, or there is neither a run nor a trace.
        UsageError: The plan names an analyzer that does not exist.
    """
    require_analyzers(plan.only)
    return [OpenedRun(find_inputs(group), plan) for group in split_into_runs(paths)]
