"""MFU and HFU of a run, from what the hooks saw: the model's shapes, the tokens of a step, the time and the GPU.

MFU = operations per token x tokens a second / (GPUs x dense peak), by each of the conventions. The headline is
``megatron_core``, which counts what a causal model needs: weights of products, half of the attention matrix, no
embedding table and no recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.analyzers import steps as step_times
from perfscope.analyzers.flops.comparison import Convention, Step, compare
from perfscope.analyzers.flops.cross_check import CrossCheck, cross_check
from perfscope.analyzers.flops.spread import explain
from perfscope.analyzers.flops.trained_run import (
    Device,
    Trained,
    device_of,
    recomputation,
    tokens_of_a_step,
    trained_model,
)
from perfscope.analyzers.operations import Operations
from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.models.conventions import Checkpointing
from perfscope.models.parameter_counts import active_parameters
from perfscope.report import Column, Json, Section
from perfscope.tables.run import Run
from perfscope.tables.steps import Steps

HEADLINE = "megatron_core"


@dataclass(frozen=True, slots=True)
class StepUse:
    """One undisturbed step: its number, TFLOPs per GPU and MFU by the headline convention."""

    step: int
    tflops_per_gpu: float
    mfu: float | None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """How much of what the GPUs can do the run used.

    Attributes:
        conventions: The median step by every convention.
        steps: Each undisturbed step by the headline convention.
        trained: The model that was counted.
        device: What the GPUs are and can do.
        checkpointing: What was counted as recomputed.
        counted: The operations of the traces beside the formula; absent where they state no shapes.
        notes: What a reader must know.
    """

    conventions: tuple[Convention, ...]
    steps: tuple[StepUse, ...]
    trained: Trained
    device: Device
    checkpointing: Checkpointing
    counted: CrossCheck | None
    notes: tuple[str, ...]

    @property
    def headline(self) -> Convention:
        """The median step by the headline convention."""
        return next(each for each in self.conventions if each.name == HEADLINE)

    def data(self) -> Json:
        """The value of ``results.mfu``."""
        return {
            "convention": HEADLINE,
            "mfu": self.headline.mfu,
            "tflops_per_gpu": self.headline.tflops_per_gpu,
            "conventions": [each.data() for each in self.conventions],
            "steps": [
                {"step": each.step, "tflops_per_gpu": each.tflops_per_gpu, "mfu": each.mfu} for each in self.steps
            ],
            "parameters": self.trained.parameters,
            "trainable_parameters": self.trained.trainable,
            "layers": self.trained.model.layers,
            "hidden": self.trained.model.hidden,
            "vocabulary": self.trained.model.vocabulary,
            "device": self.device.name,
            "gpu": self.device.gpu.name if self.device.gpu else None,
            "dtype": self.device.dtype,
            "peak_tflops": self.device.peak_tflops,
            "checkpointing": str(self.checkpointing),
            "counted": self.counted.data() if self.counted else None,
            "notes": list(self.notes),
        }

    def sections(self) -> tuple[Section, ...]:
        """The conventions side by side, under the notes on what was counted."""
        columns = (
            Column("Convention"),
            Column("GFLOP per token", 4),
            Column("TFLOPs per GPU", 3),
            Column("MFU (%)", 2),
            Column("HFU (%)", 2),
        )
        rows = tuple(
            (
                each.name,
                None if each.flops_per_token is None else each.flops_per_token / 1e9,
                each.tflops_per_gpu,
                None if each.mfu is None else 100 * each.mfu,
                None if each.hfu is None else 100 * each.hfu,
            )
            for each in self.conventions
        )
        return (Section("MFU of the median step", columns, rows, self.notes),)


def analyze(run: Run, traced: Sequence[Operations] = ()) -> Utilisation:
    """Compute the utilisation of a run, and hold it against the operations of its traces.

    Raises:
        MissingInput: No rank told its model, the model cannot be counted, or tokens or times are not known.
    """
    times = step_times.analyze(run)
    trained = trained_model(run)
    tokens, seq_len = tokens_of_a_step(times)
    if times.median_s is None:
        raise MissingInput("every step was disturbed by start-up or a window, so there is no time to compute with")
    gpus = max(rank.world_size for rank in run.ranks)
    device = device_of(run)
    checkpointing, about_recomputation = recomputation(run.models, traced)
    step = Step(
        parameters=active_parameters(trained.model),
        model=trained.model,
        tokens=tokens,
        seq_len=seq_len,
        checkpointing=checkpointing,
        step_ns=round(times.median_s * NS_PER_S),
        gpus=gpus,
        peak_tflops=device.peak_tflops,
    )
    conventions = compare(step)
    counted = cross_check(step, _standing_for_all(run, traced, gpus))
    return Utilisation(
        conventions=conventions,
        steps=_each_step(run.steps, step, conventions),
        trained=trained,
        device=device,
        checkpointing=checkpointing,
        counted=counted,
        notes=(
            *trained.notes,
            *device.notes,
            *about_recomputation,
            *explain(step, conventions),
            *((counted.sentence(), *counted.explanation) if counted else ()),
        ),
    )


def _standing_for_all(run: Run, traced: Sequence[Operations], gpus: int) -> Sequence[Operations]:
    """The traced ranks, where their mean is that of all: stages of a pipeline differ, so all must be there."""
    in_stages = any(rank.parallel.get("pp", 0) for rank in run.ranks)
    return traced if not in_stages or len({one.rank for one in traced}) == gpus else ()


def _each_step(tables: Sequence[Steps], step: Step, conventions: Sequence[Convention]) -> tuple[StepUse, ...]:
    """The undisturbed steps by the headline convention; the slowest rank decides."""
    per_token = next(each.flops_per_token for each in conventions if each.name == HEADLINE)
    assert per_token is not None
    slowest: dict[int, int] = {}
    for table in tables:
        undisturbed = (table.window == "") & (table.step > 1) & ~table.wall_ns.mask
        for number, wall_ns in zip(table.step[undisturbed], table.wall_ns[undisturbed], strict=True):
            slowest[int(number)] = max(slowest.get(int(number), 0), int(wall_ns))
    timed = {number: step._replace(step_ns=wall_ns) for number, wall_ns in sorted(slowest.items())}
    return tuple(
        StepUse(number, one.tflops_per_gpu(per_token), one.utilisation(per_token)) for number, one in timed.items()
    )
