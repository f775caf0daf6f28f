"""The files that supply values to ``perfscope plan``: a run, or a training log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from perfscope.analyzers.flops.comparison import compare
from perfscope.analyzers.flops.operation_counts import Operations
from perfscope.analyzers.flops.trained_run import TrainedModel, find_device, find_recomputation, find_trained_model
from perfscope.analyzers.logs.setup import Overrides, TrainingSetup, stated_setup
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.analyzers.memory import analyze
from perfscope.analyzers.memory.categories import Category
from perfscope.analyzers.planning.measured_run import MeasuredRun, measure_run
from perfscope.analyzers.planning.memory import Attention, Memory
from perfscope.commands.options.logged_choice import choose_logged_model
from perfscope.commands.options.model import ModelChoice, choose_description
from perfscope.commands.options.peaks import Dtype
from perfscope.commands.plan.calculation import Plan, estimate_layout, make_step
from perfscope.commands.plan.inputs import PlanInputs
from perfscope.commands.plan.options import ConventionName, States
from perfscope.commands.plan.report import RunComparison
from perfscope.constants import GB
from perfscope.engine.run import measure_with
from perfscope.errors import MissingInput, PerfscopeError, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.transformer import ModelDescription
from perfscope.report import Cell, Column, Json, Section, percent
from perfscope.sources.joblog import read_log
from perfscope.sources.runs.run import read_run
from perfscope.tables.run import Run

#: A plan's activations hold what passes allocate for themselves, too.
_PARTS = {
    "weights": (Category.WEIGHTS,),
    "gradients": (Category.GRADIENTS,),
    "optimizer": (Category.OPTIMIZER,),
    "activations": (Category.ACTIVATIONS, Category.WORKSPACE),
    "gathered": (Category.COMMUNICATION,),
}


def measure_parts(run: Run) -> Mapping[str, int]:
    """Bytes of each part on the fullest rank; empty without a history of its allocator."""
    try:
        fullest = analyze(run).fullest_device
    except PerfscopeError:
        return {}
    return {
        name: sum(fullest.category_bytes(category) for category in categories) for name, categories in _PARTS.items()
    }


class PlannedLog(NamedTuple):
    """A log that supplies values to a plan.

    Attributes:
        path: The file.
        setup: Batch and layout, as far as the log states them.
        dtype: The data type of its products; None where unknown.
        tflops_per_gpu: The speed that it reached, by the convention ``bigscience``; None where unknown.
        choice: The model; None where the log states neither dimensions nor size.
    """

    path: Path
    setup: TrainingSetup
    dtype: Dtype | None
    tflops_per_gpu: float | None
    choice: ModelChoice | None

    def supply(self, inputs: PlanInputs) -> PlanInputs:
        """Take missing values from the log."""
        layout = self.setup.layout
        supplied: dict[str, object] = {
            "checkpointing": self.setup.checkpointing,
            "seq_len": self.setup.seq_len,
            **{name: layout.get(name) for name in ("zero", "tp", "pp", "cp")},
            "zero": layout.get("zero_stage"),
            "micro_batch": layout.get("mbs"),
            "gbs": self.setup.samples,
            "dtype": self.dtype,
        }
        read = [f"{phrase}, from {self.path}" for phrase in (inputs.describe_missing(supplied),) if phrase]
        completed = inputs.fill_missing(supplied)
        target = inputs.target
        is_open = target.tflops_per_gpu is None and target.seconds is None
        if is_open and target.convention is ConventionName.BIGSCIENCE and self.tflops_per_gpu is not None:
            completed = replace(completed, target=target._replace(tflops_per_gpu=self.tflops_per_gpu))
            read.append(f"{self.tflops_per_gpu:.1f} TFLOPs per GPU, from {self.path}")
        return replace(completed, read=(*inputs.read, *read))

    def choose_model(self) -> ModelChoice:
        """The model of the log.

        Raises:
            UsageError: The log does not state it.
        """
        if self.choice is None:
            raise UsageError(f"{self.path} states no model", hint="give --model, --size or dimensions")
        return self.choice


def read_planned_log(path: Path) -> PlannedLog:
    """Read a training log.

    Raises:
        SourceError: The file cannot be read.
        UsageError: No known framework wrote it, or its arguments contradict each other.
    """
    log = read_log(path)
    if log.framework is None:
        raise UsageError(f"{path} is not a log of a known framework", hint="docs/logs.md lists the frameworks")
    dtype = log.fact("matmul_dtype")
    return PlannedLog(
        path=path,
        setup=stated_setup(log, Overrides()),
        dtype=Dtype(str(dtype.value)) if dtype else None,
        tflops_per_gpu=summarize_log(log, Overrides()).tflops_per_gpu,
        choice=choose_logged_model(log),
    )


#: A peak so many times the estimate may include an attention matrix.
_EAGER_ATTENTION_RATIO = 1.1


class PlannedRun(NamedTuple):
    """A run that is compared with a plan.

    Attributes:
        path: Its folder.
        measured: What it measured.
        trained: The model that it trained; None where no rank recorded it.
        device: The CUDA name of its GPU; None where unknown.
        dtype: The data type of its products; None where unknown.
        checkpointing: Which activations it recomputed; None where unknown.
        parts: Bytes of each part of the peak on its fullest rank; empty where that was not recorded.
    """

    path: Path
    measured: MeasuredRun
    trained: TrainedModel | None
    device: str | None
    dtype: Dtype | None
    checkpointing: Checkpointing | None
    parts: Mapping[str, int] = MappingProxyType({})

    def supply(self, inputs: PlanInputs) -> PlanInputs:
        """Take missing values from the run."""
        measured = self.measured
        supplied: Mapping[str, object] = {
            "checkpointing": self.checkpointing,
            "seq_len": measured.seq_len,
            "zero": measured.zero,
            "tp": measured.tensor,
            "pp": measured.pipeline,
            "cp": measured.context,
            "micro_batch": measured.micro_batch,
            "gbs": measured.global_batch,
            "dtype": self.dtype,
            "states": States(measured.states) if measured.states else None,
            "fp32_gradients": measured.has_fp32_gradients or None,
        }
        phrase = f"{measured.gpus} GPUs, {inputs.describe_missing(supplied)}, from {self.path}"
        completed = inputs.fill_missing({**supplied, "gpu": self.device if inputs.peak.peak is None else None})
        return replace(completed.fill_missing({"zero": 0}), read=(*inputs.read, phrase))

    def choose_model(self) -> ModelChoice:
        """The model of the run.

        Raises:
            UsageError: The run did not record it.
        """
        if self.trained is None:
            raise UsageError(f"{self.path} does not record which model it trained", hint="give --model or dimensions")
        origin = f"the parameters that {self.path} recorded"
        return choose_description(ModelDescription(self.trained.model, origin, self.trained.notes))

    def compare(self, plan: Plan) -> RunComparison:
        """Compare each estimate with what the run measured."""
        quantities = (*_compare_quantities(self.measured, plan), *_compare_parts(self.parts, plan.memory[0]))
        data: Json = {
            "path": str(self.path),
            "quantities": [quantity.data() for quantity in quantities],
            "notes": list(self.measured.notes),
        }
        return RunComparison(data, self._section(quantities))

    def _section(self, quantities: Sequence[Quantity]) -> Section:
        columns = (
            Column("Quantity"),
            Column("Estimated", 3),
            Column("Measured", 3),
            Column("Difference (%)"),
            Column("Notes"),
        )
        rows = tuple(quantity.row() for quantity in quantities)
        return Section(f"Estimates compared with {self.path}", columns, rows, self.measured.notes)


class Quantity(NamedTuple):
    """A quantity that is both estimated and measured.

    Attributes:
        name: The quantity in JSON, with its unit.
        title: The quantity in the table, with the table's unit.
        estimated, measured: In the unit of the name; None where unknown.
        scale: The table's unit in units of the name.
        note: Where the two values come from, or why one is missing.
    """

    name: str
    title: str
    estimated: float | None
    measured: float | None
    scale: float
    note: str

    @property
    def difference(self) -> float | None:
        """How far the measurement is above the estimate, as a share."""
        return self.measured / self.estimated - 1 if self.measured is not None and self.estimated else None

    def data(self) -> Json:
        """The quantity for JSON."""
        return {
            "name": self.name,
            "estimated": self.estimated,
            "measured": self.measured,
            "difference": self.difference,
            "note": self.note,
        }

    def row(self) -> tuple[Cell, ...]:
        """The quantity in the table."""
        return (
            self.title,
            None if self.estimated is None else self.estimated / self.scale,
            None if self.measured is None else self.measured / self.scale,
            percent(self.difference),
            self.note,
        )


def read_planned_run(path: Path) -> PlannedRun:
    """Read a run.

    Raises:
        SourceError: The folder is no run.
        UsageError: It completed no training step.
    """
    run = read_run(path)
    try:
        measured = measure_run(run)
    except MissingInput as missing:
        raise UsageError(f"{path}: {missing.problem}, so there is nothing to compare a plan with") from None
    try:
        trained = find_trained_model(run)
    except MissingInput:
        trained = None
    device, recomputation = find_device(run), find_recomputation(run.models)
    if recomputation.checkpointing is None or (device.gpu is not None and device.precision.main is None):
        # The record does not show it: the traces may, at the price of reading them.
        traced = measure_with("operations", Operations, [path]).partials
        device, recomputation = find_device(run, traced), find_recomputation(run.models, traced)
    return PlannedRun(
        path=path,
        measured=measured,
        trained=trained,
        device=device.name,
        dtype=Dtype(dtype) if (dtype := device.precision.main) in set(Dtype) else None,
        checkpointing=recomputation.checkpointing,
        parts=measure_parts(run),
    )


def _compare_quantities(measured: MeasuredRun, plan: Plan) -> tuple[Quantity, ...]:
    memory, speed = plan.memory[0], _plan_speed(plan)
    reached = _measure_tflops(measured, plan)
    step_s = None
    if speed.tflops_per_gpu and reached and measured.step_s:
        step_s = measured.step_s * reached / speed.tflops_per_gpu
    return (
        Quantity(
            "memory_bytes", "Memory of tensors (GB)", memory.total, measured.memory_peak_bytes, GB,
            _describe_memory(measured, plan, memory),
        ),
        Quantity(
            "gpu_memory_bytes", "Memory in use (GB)", None, measured.memory_used_bytes, GB,
            "NVML; includes CUDA's context, NCCL and the allocator's reserve"
            if measured.memory_used_bytes else "no NVML sample",
        ),
        Quantity("step_s", "Step (s)", step_s, measured.step_s, 1, f"estimated at {speed.source}"),
        Quantity(
            "tflops_per_gpu", "TFLOPs per GPU", speed.tflops_per_gpu, reached, 1,
            f"by `{plan.inputs.target.convention}`" if reached else "the number of tokens per step is unknown",
        ),
        Quantity(
            "checkpoint_bytes", "Checkpoint (GB)", plan.checkpoint_bytes, measured.checkpoint_bytes, GB,
            "all that the ranks wrote at one step" if measured.checkpoint_bytes else "no save was timed with its size",
        ),
    )  # fmt: skip


def _compare_parts(parts: Mapping[str, int], memory: Memory) -> tuple[Quantity, ...]:
    """The parts of the peak; what a plan counts at another moment than the peak is above its measurement."""
    return tuple(
        Quantity(
            f"peak_{name}_bytes", f"{name.capitalize()} at the peak (GB)", getattr(memory, name), size, GB,
            "allocator's history of the fullest rank",
        )
        for name, size in parts.items()
    )  # fmt: skip


def _measure_tflops(measured: MeasuredRun, plan: Plan) -> float | None:
    """The speed of the run's median step, by the convention of the plan."""
    if not (measured.step_s and measured.global_batch and measured.seq_len):
        return None
    tokens = measured.global_batch * measured.seq_len
    step = make_step(plan.inputs, plan.choice, tokens, measured.step_s, plan.peak.tflops)
    conventions = compare(step._replace(seq_len=measured.seq_len, gpus=measured.gpus))
    speeds = {convention.name: convention.tflops_per_gpu for convention in conventions}
    return speeds[plan.inputs.target.convention]


def _describe_memory(measured: MeasuredRun, plan: Plan, memory: Memory) -> str:
    if measured.memory_peak_bytes is None:
        return "the run recorded no peak of its memory"
    note = "peak of the allocator on the fullest rank"
    if memory.gathered:
        note += f"; {memory.gathered / GB:.1f} GB of the estimate are weights and buckets that ZeRO 3 gathers"
    with_scores = _estimate_with_scores(plan, memory)
    if with_scores and measured.memory_peak_bytes > _EAGER_ATTENTION_RATIO * memory.total:
        note += f"; with --attention eager the estimate is {with_scores.total / GB:.1f}"
    return note


def _estimate_with_scores(plan: Plan, memory: Memory) -> Memory | None:
    """The estimate with the attention matrix; None where the plan's includes it, or only a size is known."""
    if plan.inputs.memory.attention is not Attention.FLASH or plan.choice.transformer is None:
        return None
    with_scores = replace(plan.inputs, memory=plan.inputs.memory._replace(attention=Attention.EAGER))
    return estimate_layout(with_scores, plan.choice, plan.choice.transformer, plan.peak.dtype, memory.layout)


class _Speed(NamedTuple):
    """The speed that a run is compared with.

    Attributes:
        tflops_per_gpu: TFLOPs per GPU; None where neither a speed nor a peak is known.
        source: Where it comes from, as a phrase.
    """

    tflops_per_gpu: float | None
    source: str


def _plan_speed(plan: Plan) -> _Speed:
    """The speed that was planned, or the peak, which no run exceeds."""
    tflops, peak = plan.duration.tflops_per_gpu, plan.peak.tflops
    if tflops is not None:
        return _Speed(tflops, f"the planned {tflops:.1f} TFLOPs per GPU")
    if peak is not None:
        return _Speed(peak, f"the dense peak of {peak:g} TFLOPs, a lower bound; --tflops plans a speed")
    return _Speed(None, "no speed: give --tflops, or --gpu for its peak")


def read_run_or_log(run: Path | None, log: Path | None) -> tuple[PlannedRun | None, PlannedLog | None]:
    """Read the run and the log, where there is one.

    Raises:
        SourceError: The folder is no run, or the log cannot be read.
        UsageError: The run completed no step, or the file is no log of a training.
    """
    return read_planned_run(run) if run else None, read_planned_log(log) if log else None
