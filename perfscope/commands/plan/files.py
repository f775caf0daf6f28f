"""The training log that supplies values to ``perfscope plan``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from perfscope.analyzers.logs.setup import Overrides, TrainingSetup, stated_setup
from perfscope.analyzers.logs.summary import summarize_log
from perfscope.commands.model import Dtype, ModelChoice, choose_logged_model
from perfscope.commands.plan.options import ConventionName, PlanInputs
from perfscope.errors import UsageError
from perfscope.sources.joblog import read_log


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
