"""A trace of the step of ``perfscope tflops``: its operations, counted from shapes, beside the formula."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.flops.comparison import Step
from perfscope.analyzers.flops.cross_check import cross_check
from perfscope.analyzers.flops.operation_counts import Operations
from perfscope.analyzers.flops.precision import Precision, find_precision
from perfscope.analyzers.operations import measure
from perfscope.commands.options.peaks import Dtype
from perfscope.commands.tflops.comparison import Comparison
from perfscope.commands.tflops.inputs import StepInputs
from perfscope.constants import NS_PER_S, TERA
from perfscope.errors import SourceError, UsageError
from perfscope.models.conventions import Checkpointing, Recomputed
from perfscope.models.hardware import lookup_gpu
from perfscope.report import Json
from perfscope.sources.traces.reader import read_trace
from perfscope.tables.trace import Events


class TracedStep(NamedTuple):
    """A trace and the operations of its steps."""

    path: Path
    operations: Operations

    @property
    def precision(self) -> Precision:
        """The data types of the trace's products."""
        return find_precision((), (self.operations,), lookup_gpu(self.operations.device_name))

    def supply(self, inputs: StepInputs) -> StepInputs:
        """Take the activation checkpointing and the data type that the trace shows, where they are missing."""
        main = self.precision.main
        supplied = StepInputs(
            checkpointing=self.operations.repeats.checkpointing, dtype=Dtype(main) if main in set(Dtype) else None
        )
        return inputs.fill_missing(supplied, str(self.path))

    def measured(self, checkpointing: Checkpointing) -> Recomputed | None:
        """The shares that were recomputed, where the trace shows selective checkpointing and so do the inputs."""
        repeats = self.operations.repeats
        is_selective = checkpointing is Checkpointing.SELECTIVE is repeats.checkpointing
        return repeats.recomputed if is_selective else None

    def compare(self, step: Step) -> Comparison:
        """Compare the operations of the trace with the formula's."""
        check = cross_check(step, [self.operations], step.gpus)
        assert check is not None
        precision = (self.precision.sentence(),) if len(self.precision.shares) > 1 else ()
        notes = (*_compare_recomputation(step, self.operations), *precision, *check.explanation)
        data: Json = {
            "path": str(self.path),
            "steps": self.operations.steps,
            "tflops_per_gpu": (self.operations.flops_per_step or 0.0) / (step.step_ns / NS_PER_S) / TERA,
            **check.data(),
            "explanation": list(notes),
        }
        return Comparison(data, (check.sentence(), *notes))


def read_traced_step(path: Path) -> TracedStep:
    """Count the operations of a trace's matrix products.

    Raises:
        SourceError: The file cannot be read, or contains no training step.
        UsageError: The trace states no shapes.
    """
    operations = measure(read_trace(path, Events.ANNOTATIONS | Events.PRODUCTS))
    if operations is None or not operations.flops_per_step:
        raise UsageError(f"{path} states no shapes of matrix products", hint="profile with `--shapes`")
    if not operations.steps:
        raise SourceError(path, "contains no ProfilerStep, so the number of its steps is unknown")
    return TracedStep(path, operations)


def _compare_recomputation(step: Step, operations: Operations) -> tuple[str, ...]:
    """A note where the trace shows another activation checkpointing than was typed."""
    traced = operations.repeats.checkpointing
    if traced is None or traced is step.checkpointing:
        return ()
    shown = "no recomputation" if traced is Checkpointing.NONE else f"recomputation (`{traced}`)"
    return (f"The trace shows {shown}, but --checkpointing is {step.checkpointing}: HFU follows --checkpointing.",)
