"""The plan itself: the duration, the memory of each layout, and the layouts that fit."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.flops.comparison import Convention, Step, compare
from perfscope.analyzers.planning.duration import Duration, solve_duration
from perfscope.analyzers.planning.memory import Layout, Memory, estimate_memory
from perfscope.analyzers.shared.doubt import UTILISATION_CAUSES, check_share
from perfscope.commands.options.model import ModelChoice
from perfscope.commands.options.peaks import Peak
from perfscope.commands.plan.inputs import PlanInputs
from perfscope.commands.plan.layouts import check_layout, possible_layouts, typed_layouts
from perfscope.commands.plan.shape import assume_shape
from perfscope.constants import NS_PER_S
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan of a training run.

    Attributes:
        inputs: What it was computed from.
        choice: The model.
        shape: Its dimensions; assumed where only a size is known.
        shape_note: How they were assumed; empty where they are known.
        peak: What the GPU can do.
        duration: Tokens, speed and time.
        recomputes: Whether the convention of the speed counts recomputed activations.
        conventions: The speed by every convention; empty where there is no speed.
        memory: The estimates for the typed layouts.
        fitting: The estimates for the layouts that fit; None where the memory of the GPU is unknown.
    """

    inputs: PlanInputs
    choice: ModelChoice
    shape: Transformer
    shape_note: str
    peak: Peak
    duration: Duration
    recomputes: bool
    conventions: tuple[Convention, ...]
    memory: tuple[Memory, ...]
    fitting: tuple[Memory, ...] | None

    @property
    def utilisation(self) -> float | None:
        """The planned speed as a share of the peak; None where either is unknown, and where no run reaches it."""
        return check_share(self.share_of_peak, "the planned MFU", UTILISATION_CAUSES).value

    @property
    def share_of_peak(self) -> float | None:
        """The planned speed over the peak, however large; None where either is unknown."""
        if self.duration.tflops_per_gpu is None or self.peak.tflops is None:
            return None
        return self.duration.tflops_per_gpu / self.peak.tflops

    @property
    def checkpoint_bytes(self) -> int:
        """The size of a checkpoint: weights and optimizer."""
        return self.choice.total_parameters * self.inputs.precision(self.peak.dtype).checkpoint


def make_plan(inputs: PlanInputs, choice: ModelChoice, peak: Peak) -> Plan:
    """Compute the plan.

    Raises:
        UsageError: The degrees do not divide, or the convention needs dimensions that are unknown.
    """
    shape, shape_note = (choice.transformer, "") if choice.transformer else assume_shape(choice.active_parameters)
    check_layout(inputs, shape)
    convention = _find_convention(inputs, choice)
    target = inputs.target
    duration = solve_duration(
        _require_flops(convention), target.tokens, inputs.gpus, target.tflops_per_gpu, target.seconds
    )
    conventions: tuple[Convention, ...] = ()
    if duration.tokens is not None and duration.seconds is not None:
        conventions = compare(make_step(inputs, choice, duration.tokens, duration.seconds, peak.tflops))
    return Plan(
        inputs=inputs,
        choice=choice,
        shape=shape,
        shape_note=shape_note,
        peak=peak,
        duration=duration,
        recomputes=convention.recomputes,
        conventions=conventions,
        memory=tuple(estimate_layout(inputs, choice, shape, peak.dtype, layout) for layout in typed_layouts(inputs)),
        fitting=_find_fitting(inputs, choice, shape, peak),
    )


def _find_convention(inputs: PlanInputs, choice: ModelChoice) -> Convention:
    """The convention of the TFLOPs, which depends on the model but not on the speed."""
    conventions = {convention.name: convention for convention in compare(make_step(inputs, choice, 1, 1.0, None))}
    return conventions[inputs.target.convention]


def _require_flops(convention: Convention) -> int:
    if convention.flops_per_token is None:
        raise UsageError(
            f"the convention {convention.name} needs the dimensions of the model",
            hint="give --model llama3-8b, a config.json, or --layers, --hidden, --heads and --vocab",
        )
    return convention.flops_per_token


def make_step(inputs: PlanInputs, choice: ModelChoice, tokens: int, seconds: float, peak_tflops: float | None) -> Step:
    """A step of so many tokens and seconds, to be counted by every convention."""
    return Step(
        parameters=choice.active_parameters,
        model=choice.transformer,
        tokens=tokens,
        seq_len=inputs.seq_len,
        checkpointing=inputs.checkpointing,
        step_ns=max(1, round(seconds * NS_PER_S)),
        gpus=inputs.gpus,
        peak_tflops=peak_tflops,
    )


def estimate_layout(inputs: PlanInputs, choice: ModelChoice, shape: Transformer, dtype: str, layout: Layout) -> Memory:
    """Estimate the memory of a layout."""
    return estimate_memory(
        shape,
        layout,
        parameters=choice.total_parameters,
        seq_len=inputs.seq_len,
        precision=inputs.precision(dtype),
        attention=inputs.memory.attention,
    )


def _find_fitting(inputs: PlanInputs, choice: ModelChoice, shape: Transformer, peak: Peak) -> tuple[Memory, ...] | None:
    """For each checkpointing and ZeRO stage the least model-parallel layout that fits."""
    if peak.gpu is None:
        return None
    fitting: dict[tuple[Checkpointing, int], Memory] = {}
    for layout in possible_layouts(inputs, shape):
        key = (layout.checkpointing, layout.zero)
        if key in fitting:
            continue
        memory = estimate_layout(inputs, choice, shape, peak.dtype, layout)
        if memory.total <= peak.gpu.memory_bytes:
            fitting[key] = memory
    order = (Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL)
    return tuple(fitting[key] for key in sorted(fitting, key=lambda key: (order.index(key[0]), key[1])))
