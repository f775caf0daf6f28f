"""What a trace's shapes say of the operations of a step, beside the formula."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.flops.comparison import Step
from perfscope.analyzers.flops.cross_check import cross_check
from perfscope.analyzers.flops.operation_counts import Operations
from perfscope.analyzers.operations import measure
from perfscope.commands.tflops.inputs import Asked
from perfscope.errors import SourceError, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.report import Json
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Events


class TracedStep(NamedTuple):
    """A trace and the operations of its steps."""

    path: Path
    operations: Operations


class TraceAnswer(NamedTuple):
    """The cross-check: the value of ``trace`` in JSON, and the same in sentences."""

    data: Json
    notes: tuple[str, ...]


def read_traced_step(path: Path) -> TracedStep:
    """Count a trace's products.

    Raises:
        SourceError: The file cannot be read, or holds no training step.
        UsageError: The trace states no shapes.
    """
    counted = measure(read_trace(path, Events.ANNOTATIONS | Events.PRODUCTS))
    if counted is None or not counted.flops_per_step:
        raise UsageError(f"{path} states no shapes of matrix products", hint="profile with `--shapes`")
    if not counted.steps:
        raise SourceError(path, "holds no ProfilerStep, so how many steps it counts is not known")
    return TracedStep(path, counted)


def with_trace(asked: Asked, traced: TracedStep) -> Asked:
    """Take from a trace what was recomputed, where it was not typed."""
    seen = traced.operations.repeats.checkpointing
    if asked.checkpointing is not None or seen is None:
        return asked
    return asked._replace(
        checkpointing=seen, read=(*asked.read, f"activation checkpointing {seen}, from {traced.path}")
    )


def check_trace(traced: TracedStep, step: Step) -> TraceAnswer:
    """Hold a trace's products against the formula."""
    counted = traced.operations
    checked = cross_check(step, [counted])
    assert checked is not None
    notes = (*_about_recomputation(step, counted), *checked.explanation)
    data: Json = {
        "path": str(traced.path),
        "steps": counted.steps,
        "tflops_per_gpu": (counted.flops_per_step or 0.0) / (step.step_ns / 1e9) / 1e12,
        **checked.data(),
        "explanation": list(notes),
    }
    return TraceAnswer(data, (checked.sentence(), *notes))


def _about_recomputation(step: Step, counted: Operations) -> tuple[str, ...]:
    """A trace that shows other recomputation than was asked for."""
    seen = counted.repeats.checkpointing
    if seen is None or seen is step.checkpointing:
        return ()
    shown = "No recomputation" if seen is Checkpointing.NONE else f"Recomputation (`{seen}`)"
    return (f"{shown} is in the trace, but --checkpointing is {step.checkpointing}: HFU is of the wrong one.",)
