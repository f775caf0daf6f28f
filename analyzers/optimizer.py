"""What the optimizer's step costs the device, and in which way it updates the parameters.

torch marks each step of an optimizer (``Optimizer.step#AdamW.step``). The kernels that are launched inside the mark are
the optimizer's. *fused*: one kernel reads and writes parameter, gradient and state once. *foreach*: one kernel an
operation, for many parameters at once. *loop*: one kernel an operation and parameter. All figures are of the marked
steps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from typing import Annotated

import numpy as np

from perfscope.constants import NS_PER_US
from perfscope.errors import NoDevice
from perfscope.measures.marked_steps import rows_by_step
from perfscope.measures.rank_labels import in_order
from perfscope.result import MS_OF_NS, Column, Doc, Figures, InUnit, Result, Table
from perfscope.tables.columns import Bool
from perfscope.tables.intervals import union
from perfscope.tables.trace import ABSENT, Trace, Work, distinct, span_at

FUSED, FOREACH, LOOP = "fused", "foreach", "loop"
MARK = "Optimizer.step#"
_IS_FUSED = re.compile(r"fused|AdamFunctor|LAMBStage|SGDFunctor", re.IGNORECASE)
_IS_FOREACH = re.compile(r"multi_tensor_apply")


class OptimizerStep(Figures, frozen=True, array_like=True):
    """The optimizer of one device, in nanoseconds over all marked steps; its figures are means of one."""

    rank: Annotated[int | None, Doc("The rank.")]
    device: Annotated[int, Doc("Index of its GPU.")]
    name: Annotated[str, Doc("The optimizer's class.")]
    steps: Annotated[int, Doc("How many steps are marked.")]
    launched: int
    duration: int
    idle: int
    way: Annotated[str, Doc("``fused``, ``foreach`` or ``loop``.")]
    kernels = InUnit("launched", 1, "Kernels that it launches.", per="steps")
    device_us = InUnit("duration", NS_PER_US, "Their time.", per="steps")
    idle_us = InUnit(
        "idle", NS_PER_US, "How long the device stood still between the first and the last of them.", per="steps"
    )


class OptimizerTime(Result, frozen=True):
    """``results.optimizer``: what the optimizer's step costs the device."""

    ranks: Annotated[Sequence[OptimizerStep], Doc("Each optimizer of each device.")]

    notes = ("In a mean step, the kernels that were launched inside the marks of the optimizer's steps.",)
    TABLES = (
        Table(
            "Optimizer",
            "ranks",
            (
                Column("Rank", "rank", str),
                Column("Optimizer", "name"),
                Column("Way", "way"),
                Column("Kernels", "kernels"),
                Column("Device (ms)", lambda rank: MS_OF_NS(rank.duration / rank.steps), None, 3),
                Column("Gaps (ms)", lambda rank: MS_OF_NS(rank.idle / rank.steps), None, 3),
            ),
        ),
    )


def measure(trace: Trace) -> tuple[OptimizerStep, ...] | None:
    """The optimizer of each device of one trace; None where no kernel was launched by one in a marked step."""
    marks = trace.annotated(MARK)
    if not len(trace.device) or not len(marks) or not len(trace.steps):
        return None
    launch = trace.launch
    launched_ns = trace.calls.start_ns[launch] if len(trace.calls) else np.zeros(len(launch), np.int64)
    is_inside = (launch != ABSENT) & (span_at(marks, launched_ns) != ABSENT) & (trace.step != ABSENT)
    is_inside &= trace.device.is_work(Work.COMPUTE)
    name = trace.names[marks.name[0]].removeprefix(MARK).partition(".")[0]
    ranks = []
    for device in distinct(trace.device.device):
        is_of_device = trace.device.device == device
        rows = np.flatnonzero(is_inside & is_of_device)
        if len(rows):
            duration = trace.device.duration_ns[rows]
            way = _way(trace, trace.device.name[rows], duration)
            sums = len(rows), int(duration.sum()), _idle(trace, is_inside & is_of_device)
            # After the last step torch's profiler marks another one, in which no device computes.
            steps = len(rows_by_step(trace, is_of_device & trace.device.is_work(Work.COMPUTE)))
            ranks.append(OptimizerStep(trace.rank, device, name, steps, *sums, way))
    return tuple(ranks) or None


def _idle(trace: Trace, rows: Bool) -> int:
    """How long none of the optimizer's kernels ran between the first and the last one of each step."""
    idle = 0
    for members in rows_by_step(trace, rows).values():
        start, end = trace.device.start_ns[members], trace.device.end_ns[members]
        idle += int(end.max()) - int(start.min()) - union(start, end).measure
    return idle


def _way(trace: Trace, names: np.ndarray, duration: np.ndarray) -> str:
    for way, pattern in ((FUSED, _IS_FUSED), (FOREACH, _IS_FOREACH)):
        matches = trace.named(pattern)[names]
        if 2 * duration[matches].sum() >= max(int(duration.sum()), 1):
            return way
    return LOOP


def analyze(partials: Sequence[tuple[OptimizerStep, ...]]) -> OptimizerTime:
    """Put the ranks in order; NoDevice where no trace shows kernels of an optimizer."""
    ranks = in_order(chain.from_iterable(partials), "device")
    if not ranks:
        raise NoDevice("no trace marks the steps of an optimizer and shows its kernels")
    return OptimizerTime(ranks)
