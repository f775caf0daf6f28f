"""Step records as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope import wire
from perfscope.tables.columns import masked
from perfscope.tables.steps import FEWEST_STEPS, HostTimes, Steps


def to_steps(rank: int, attempt: int, records: Sequence[wire.StepRecord]) -> Steps:
    """The steps of one process.

    Time without gradients that most steps have, as in reinforcement learning, is a part of the step.
    """
    is_in_steps = _is_in_most_steps([record.no_grad_ns for record in records if record.step > 1])
    no_grad_ns = [None if is_in_steps else record.no_grad_ns for record in records]
    return Steps(
        rank=rank,
        attempt=attempt,
        step=np.asarray([record.step for record in records], np.int64),
        end_ns=np.asarray([record.end_ns for record in records], np.int64),
        wall_ns=masked([_own_ns(record) if is_in_steps else record.wall_ns for record in records]),
        source=np.asarray([record.source for record in records], np.str_),
        window=np.asarray([record.window or "" for record in records], np.str_),
        skipped=np.asarray([bool(record.skipped) for record in records], np.bool_),
        micro_batches=masked([record.micro_batches for record in records]),
        samples=masked([record.samples for record in records]),
        tokens=masked([record.tokens for record in records]),
        global_samples=masked([record.global_samples for record in records]),
        data_wait_ns=masked([record.data_wait_ns for record in records]),
        save_ns=masked([record.save_ns for record in records]),
        draining=np.asarray([bool(record.draining) for record in records], np.bool_),
        stalled_elsewhere=np.zeros(len(records), np.bool_),
        no_grad_ns=masked(no_grad_ns),
        gap_ns=masked([record.gap_ns for record in records]),
        compile_ns=masked([_span_ns(record, wire.COMPILATION) for record in records]),
        garbage_ns=masked([_span_ns(record, wire.GARBAGE) for record in records]),
        hook_ns=masked([record.hook_ns for record in records]),
        memory_peak_bytes=masked([record.memory_peak_bytes for record in records]),
        alloc_retries=masked([record.alloc_retries for record in records]),
        device_allocs=masked([record.device_allocs for record in records]),
        host=_to_host_times(records),
        iteration=masked([record.iteration for record in records]),
        probes=tuple(record.probe for record in records if record.probe is not None),
    )


def _to_host_times(records: Sequence[wire.StepRecord]) -> HostTimes | None:
    if not any(record.host is not None for record in records):
        return None
    work = [record.host for record in records]
    waits = [record.waits for record in records]
    return HostTimes(
        cpu_ns=masked([counts and counts.cpu_ns for counts in work]),
        delay_ns=masked([counts and counts.delay_ns for counts in work]),
        system_ns=masked([counts and counts.system_ns for counts in work]),
        faults=masked([counts and counts.faults for counts in work]),
        preempted=masked([counts and counts.preempted for counts in work]),
        collectives_ns=masked([times and times.collectives_ns for times in waits]),
        transfers_ns=masked([times and times.transfers_ns for times in waits]),
    )


def _is_in_most_steps(values: Sequence[int | None]) -> bool:
    present = sum(value is not None for value in values)
    return present >= FEWEST_STEPS and present > len(values) / 2


def _own_ns(record: wire.StepRecord) -> int | None:
    return None if record.wall_ns is None else record.wall_ns + (record.no_grad_ns or 0)


def _span_ns(record: wire.StepRecord, kind: str) -> int | None:
    return sum(span.end_ns - span.start_ns for span in record.spans or () if span.kind == kind) or None
