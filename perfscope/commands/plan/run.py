"""A plan beside the run that it was for: what was estimated, and what the run measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.flops.comparison import Convention
from perfscope.analyzers.flops.trained_run import Trained, device_of, recomputation, trained_model
from perfscope.analyzers.planning.measured_run import MeasuredRun, measured
from perfscope.analyzers.planning.memory import LAST_STAGE, Memory
from perfscope.commands.options.model_choice import Choice
from perfscope.commands.options.peaks import Dtype, Peak
from perfscope.commands.plan.inputs import Question, States
from perfscope.constants import GB
from perfscope.errors import MissingInput, UsageError
from perfscope.models.parameter_counts import active_parameters, total_parameters
from perfscope.models.transformer import ModelDescription
from perfscope.report import Cell, Column, Json, Section
from perfscope.sources.runs.run import read_run

#: More than the estimate by so much may be an attention matrix.
_MORE = 1.1
#: DeepSpeed's stage3_max_live_parameters.
_MOST_GATHERED = 10**9


class PlannedRun(NamedTuple):
    """A run beside a plan.

    Attributes:
        path: Its folder.
        measured: What it measured.
        trained: What it trained; absent where no rank told it.
        device: What the GPU calls itself; absent where unknown.
    """

    path: Path
    measured: MeasuredRun
    trained: Trained | None
    device: str | None

    def choice(self) -> Choice:
        """The model of the run, for where none was typed.

        Raises:
            UsageError: The run did not tell it.
        """
        if self.trained is None:
            raise UsageError(f"{self.path} does not tell what model it trained", hint="give --model or its dimensions")
        model = self.trained.model
        origin = f"the parameters that {self.path} recorded"
        known = ModelDescription(model, origin, self.trained.notes)
        return Choice(active_parameters(model), total_parameters(model), model, known, origin, self.trained.notes)


class Quantity(NamedTuple):
    """One thing that is both estimated and measured; absent is what is not.

    Attributes:
        name: What it is, for JSON.
        title: The same for people, with its unit.
        estimated, measured: In the unit of the name.
        scale: How many of those make the unit of the title.
        note: Where the two come from, or why one is absent.
    """

    name: str
    title: str
    estimated: float | None
    measured: float | None
    scale: float
    note: str

    @property
    def difference(self) -> float | None:
        """How far the measured one is above the estimate, as a share."""
        return self.measured / self.estimated - 1 if self.measured is not None and self.estimated else None


def read_planned_run(path: Path) -> tuple[PlannedRun, Question]:
    """Read a run, and the question that a plan of it would have asked.

    Raises:
        SourceError: The folder is no run.
        UsageError: It completed no training step.
    """
    run = read_run(path)
    try:
        found = measured(run)
    except MissingInput as missing:
        raise UsageError(f"{path}: {missing.problem}, so there is nothing to hold a plan against") from None
    try:
        trained = trained_model(run)
    except MissingInput:
        trained = None
    device = device_of(run)
    checkpointing, _ = recomputation(run.models)
    question = Question(
        gpus=found.gpus,
        checkpointing=checkpointing,
        seq_len=found.seq_len,
        zero=found.zero,
        tensor=found.tensor,
        pipeline=found.pipeline,
        context=found.context,
        micro_batch=found.micro_batch,
        global_batch=found.global_batch,
        dtype=Dtype(device.dtype) if device.dtype in set(Dtype) else None,
        states=States(found.states) if found.states else None,
        gradient_bytes=found.gradient_bytes,
    )
    return PlannedRun(path, found, trained, device.name), question


def asked_of_run(asked: Question, of_run: Question, path: Path) -> Question:
    """Take from a run what was not typed."""
    names = (
        "checkpointing", "seq_len", "zero", "tensor", "pipeline", "context", "micro_batch", "global_batch", "dtype",
        "states", "gradient_bytes",
    )  # fmt: skip
    taken = {
        name: getattr(of_run, name)
        for name in names
        if getattr(asked, name) is None and getattr(of_run, name) is not None
    }
    spelled = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in taken.items())
    read = (f"{of_run.gpus} GPUs, {spelled}, from {path}",)
    completed = replace(asked, **taken, read=(*asked.read, *read))
    return completed if completed.zero is not None else replace(completed, zero=0)


def hold_against_run(
    planned: PlannedRun,
    memory: Memory,
    *,
    with_matrix: Memory | None,
    parameters: int,
    checkpoint_bytes: int,
    speed: Speed,
    conventions: Sequence[Convention],
) -> tuple[Quantity, ...]:
    """Put each estimate beside what the run measured.

    Args:
        planned: The run.
        memory: The estimate for the run's layout.
        with_matrix: The same where the attention matrix is kept; absent where the estimate is that already.
        parameters: All parameters.
        checkpoint_bytes: The estimate for a checkpoint.
        speed: The TFLOPs that were planned.
        conventions: The run's median step by every convention.
    """
    found = planned.measured
    reached = next((each.tflops_per_gpu for each in conventions if each.name == speed.convention), None)
    step_s = None
    if speed.tflops_per_gpu and reached and found.step_s:
        step_s = found.step_s * reached / speed.tflops_per_gpu
    return (
        Quantity(
            "memory_bytes", "Memory of tensors (GB)", memory.total, found.memory_peak_bytes, GB,
            _about_memory(found, memory, with_matrix, parameters),
        ),
        Quantity(
            "gpu_memory_bytes", "Memory in use (GB)", None, found.memory_used_bytes, GB,
            "NVML; CUDA's context, NCCL and what the allocator holds in reserve are in it"
            if found.memory_used_bytes else "no sample of NVML",
        ),
        Quantity("step_s", "Step (s)", step_s, found.step_s, 1.0, f"estimated at {speed.said}"),
        Quantity(
            "tflops_per_gpu", "TFLOPs per GPU", speed.tflops_per_gpu, reached, 1.0,
            f"by `{speed.convention}`" if reached else "the tokens of a step are not known",
        ),
        Quantity(
            "checkpoint_bytes", "Checkpoint (GB)", checkpoint_bytes, found.checkpoint_bytes, GB,
            "all that the ranks wrote at one step" if found.checkpoint_bytes else "no save was timed with its size",
        ),
    )  # fmt: skip


def _about_memory(found: MeasuredRun, memory: Memory, with_matrix: Memory | None, parameters: int) -> str:
    if found.memory_peak_bytes is None:
        return "the run told no peak of its memory"
    said = "peak of the allocator on the fullest rank"
    layout = memory.layout
    if layout.zero == LAST_STAGE:
        gathered = 2 * min(_MOST_GATHERED, parameters / layout.tensor / layout.pipeline)
        said += f"; ZeRO 3 gathers up to {gathered / GB:.1f} GB of 16-bit weights, which the estimate leaves out"
    if with_matrix and found.memory_peak_bytes > _MORE * memory.total:
        said += f"; with --attention eager the estimate is {with_matrix.total / GB:.1f}"
    return said


class Speed(NamedTuple):
    """The speed that a run is held against.

    Attributes:
        tflops_per_gpu: TFLOPs per GPU; absent where neither a speed nor a peak is known.
        convention: By which convention.
        said: Where it comes from, in words.
    """

    tflops_per_gpu: float | None
    convention: str
    said: str


def speed_of(question: Question, planned_tflops: float | None, peak: Peak) -> Speed:
    """The speed that was planned, or the peak, which no run exceeds."""
    if planned_tflops is not None:
        return Speed(planned_tflops, question.convention, f"the planned {planned_tflops:.1f} TFLOPs per GPU")
    if peak.tflops is not None:
        return Speed(
            peak.tflops,
            question.convention,
            f"the dense peak of {peak.tflops:g} TFLOPs, the least that it can take; --tflops states a plan",
        )
    return Speed(None, question.convention, "no speed: give --tflops, or --gpu for its peak")


def run_data(planned: PlannedRun, quantities: Sequence[Quantity]) -> Json:
    """The value of ``run`` in JSON."""
    return {
        "path": str(planned.path),
        "quantities": [
            {
                "name": each.name,
                "estimated": each.estimated,
                "measured": each.measured,
                "difference": each.difference,
                "note": each.note,
            }
            for each in quantities
        ],
        "notes": list(planned.measured.notes),
    }


def run_section(planned: PlannedRun, quantities: Sequence[Quantity]) -> Section:
    """The table of estimates beside measurements."""
    columns = (
        Column(""),
        Column("Estimated", 3),
        Column("Measured", 3),
        Column("Difference (%)", 1),
        Column("What it is"),
    )
    rows: tuple[tuple[Cell, ...], ...] = tuple(
        (
            each.title,
            None if each.estimated is None else each.estimated / each.scale,
            None if each.measured is None else each.measured / each.scale,
            None if each.difference is None else 100 * each.difference,
            each.note,
        )
        for each in quantities
    )
    return Section(f"Estimated beside measured: {planned.path}", columns, rows, planned.measured.notes)
