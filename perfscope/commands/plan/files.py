"""The files that supply values to ``perfscope plan``: a run, or a training log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.logs.setup import Overrides, TrainingSetup, stated_setup
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.analyzers.plan.measured_run import MeasuredRun, measure_run
from perfscope.analyzers.tflops.operation_counts import Operations
from perfscope.analyzers.tflops.trained_run import TrainedModel, find_device, find_recomputation, find_trained_model
from perfscope.commands.model import Dtype, ModelChoice, choose_description, choose_logged_model
from perfscope.commands.plan.options import ConventionName, PlanInputs
from perfscope.engine.run import measure_with
from perfscope.errors import MissingInput, UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.transformer import ModelDescription
from perfscope.sources.joblog import read_log
from perfscope.sources.runs.run import read_run
from perfscope.units import format_bytes


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
            "tp": layout.tp,
            "pp": layout.pp,
            "cp": layout.cp,
            "zero": layout.zero_stage,
            "micro_batch": layout.mbs,
            "gbs": self.setup.gbs,
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
            raise UsageError(f"{self.path} states no model", hint="give --model or --size")
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


class PlannedRun(NamedTuple):
    """A run that supplies values to a plan.

    Attributes:
        path: Its folder.
        measured: What it measured.
        trained: The model that it trained; None where no rank recorded it.
        device: The CUDA name of its GPU; None where unknown.
        dtype: The data type of its products; None where unknown.
        checkpointing: Which activations it recomputed; None where unknown.
    """

    path: Path
    measured: MeasuredRun
    trained: TrainedModel | None
    device: str | None
    dtype: Dtype | None
    checkpointing: Checkpointing | None

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
            "states": measured.states,
        }
        read = [f"{measured.gpus} GPUs, {inputs.describe_missing(supplied)}, from {self.path}"]
        if measured.memory_peak_bytes is not None:
            peak = format_bytes(measured.memory_peak_bytes)
            read.append(f"measured by {self.path}: tensors took {peak} on the fullest GPU")
        completed = inputs.fill_missing({**supplied, "gpu": self.device if inputs.peak.peak is None else None})
        return replace(completed.fill_missing({"zero": 0}), read=(*inputs.read, *read, *measured.notes))

    def choose_model(self) -> ModelChoice:
        """The model of the run.

        Raises:
            UsageError: The run did not record it.
        """
        if self.trained is None:
            raise UsageError(f"{self.path} does not record which model it trained", hint="give --model")
        origin = f"the parameters that {self.path} recorded"
        return choose_description(ModelDescription(self.trained.model, origin, self.trained.notes))


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
        raise UsageError(f"{path}: {missing.problem}, so there is nothing to plan from") from None
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
    )
