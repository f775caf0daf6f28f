"""A training log as one side of a comparison."""

from __future__ import annotations

import numpy as np

from perfscope.analyzers.comparison.change import Samples
from perfscope.analyzers.comparison.side import Figure, Kind, Setup, Side
from perfscope.analyzers.logs.step_times import steady_records
from perfscope.analyzers.logs.summary import LogSummary
from perfscope.constants import NS_PER_S

_CONVENTION = "bigscience"


def side_of_log(name: str, summary: LogSummary) -> Side:
    """A log: each steady-state record counts as a step, even where it is the mean of several."""
    rows = summary.log.iterations
    times_s = np.ma.getdata(rows.wall_ns)[steady_records(rows, None)].astype(np.float64) / NS_PER_S
    times_s = times_s[times_s > 0]
    setup, median_s = summary.setup, summary.times.median_s
    tflop = summary.tflops_per_gpu * median_s if summary.tflops_per_gpu is not None and median_s else None
    memory = summary.log.memory.allocated_bytes or summary.log.memory.reserved_bytes
    spans = sorted({int(span) for span in rows.span})
    several = f"{spans[0]} to {spans[-1]}" if len(spans) > 1 else str(*spans)
    note = f"{name}: each record is the mean of {several} iterations." if spans[-1:] > [1] else ""
    return Side(
        name=name,
        kind=Kind.LOG,
        setup=Setup(
            parameters=setup.parameters,
            gpus=setup.gpus,
            samples=setup.samples,
            tokens=setup.samples * setup.seq_len if setup.samples and setup.seq_len else None,
            versions={} if summary.framework is None else {"framework": summary.framework},
        ),
        step_time_s=Samples((times_s,)) if len(times_s) else None,
        tflop_per_step=None if tflop is None else (tflop, _CONVENTION),
        memory_bytes=Samples((np.array([float(memory)]),)) if memory else None,
        reasons={
            Figure.STEP_TIME: summary.reason or "it states no step time",
            Figure.TFLOPS: "it does not state model, batch and GPUs in full",
            Figure.MEMORY: "it states no device memory",
            Figure.ENERGY: "logs state no energy",
            "budget": "a log has no traces",
        },
        notes=(note,) if note else (),
    )
