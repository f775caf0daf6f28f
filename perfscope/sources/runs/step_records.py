"""Step records as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope import wire
from perfscope.sources.runs.host_times import to_host_times
from perfscope.sources.runs.step_columns import StepColumns, from_records
from perfscope.tables.columns import Bool, Int64, MaskedInt64, present
from perfscope.tables.steps import FEWEST_STEPS, Steps
from perfscope.wire.records import StepRecord


def to_steps(rank: int, attempt: int, records: Sequence[StepRecord] | StepColumns) -> Steps:
    """The steps of one process.

    Time without gradients that most steps have, as in reinforcement learning, is a part of the step.
    """
    columns = records if isinstance(records, StepColumns) else from_records(records)
    step, wall_ns, no_grad_ns = columns.whole("step"), columns.number("wall_ns"), columns.number("no_grad_ns")
    if _is_in_most_steps(no_grad_ns, step):
        own_ns = np.ma.getdata(wall_ns) + np.ma.filled(no_grad_ns, 0)
        wall_ns = np.ma.MaskedArray(own_ns, mask=np.ma.getmaskarray(wall_ns))
        no_grad_ns = columns.number("")
    return Steps(
        rank=rank,
        attempt=attempt,
        step=step,
        end_ns=columns.whole("end_ns"),
        wall_ns=wall_ns,
        source=columns.texts.get("source", np.zeros(columns.rows, "<U1")),
        window=columns.texts.get("window", np.zeros(columns.rows, "<U1")),
        skipped=_flags(columns, "skipped"),
        micro_batches=columns.number("micro_batches"),
        samples=columns.number("samples"),
        tokens=columns.number("tokens"),
        global_samples=columns.number("global_samples"),
        data_wait_ns=columns.number("data_wait_ns"),
        save_ns=columns.number("save_ns"),
        draining=_flags(columns, "draining"),
        stalled_elsewhere=np.zeros(columns.rows, np.bool_),
        no_grad_ns=no_grad_ns,
        gap_ns=columns.number("gap_ns"),
        compile_ns=_span_ns(columns, wire.COMPILATION),
        garbage_ns=_span_ns(columns, wire.GARBAGE),
        hook_ns=columns.number("hook_ns"),
        memory_peak_bytes=columns.number("memory_peak_bytes"),
        alloc_retries=columns.number("alloc_retries"),
        device_allocs=columns.number("device_allocs"),
        host=to_host_times(columns),
        iteration=columns.number("iteration"),
        probes=columns.probes,
    )


def _flags(columns: StepColumns, name: str) -> Bool:
    return columns.flags.get(name, np.zeros(columns.rows, np.bool_))


def _is_in_most_steps(no_grad_ns: MaskedInt64, step: Int64) -> bool:
    later = present(no_grad_ns)[step > 1]
    count = int(later.sum())
    return count >= FEWEST_STEPS and count > len(later) / 2


def _span_ns(columns: StepColumns, kind: str) -> MaskedInt64:
    """The time of one kind of spans in each step; masked where there is none."""
    times = np.zeros(columns.rows, np.int64)
    for row, span in columns.spans:
        if span.kind == kind:
            times[row] += span.end_ns - span.start_ns
    return np.ma.MaskedArray(times, mask=times == 0)
