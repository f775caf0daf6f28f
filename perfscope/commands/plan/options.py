"""The options of ``perfscope plan``, and its inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Annotated, NamedTuple

import typer

from perfscope.analyzers.plan import Attention, Loss, OptimizerKind, StateBytes, StatePrecision, state_bytes_of
from perfscope.commands.model import (
    DEFAULT_CHECKPOINTING,
    Dtype,
    PeakOptions,
    SequenceOptions,
)
from perfscope.commands.options import require_positive, spell_option
from perfscope.constants import S_PER_DAY
from perfscope.errors import UsageError
from perfscope.models.conventions import DEFAULT_SEQ_LEN, Checkpointing
from perfscope.tables.step_time import NANOTRON
from perfscope.units import parse_tokens

_duration, _layout, _memory, _steps = (
    partial(typer.Option, rich_help_panel=panel) for panel in ("Duration", "Layout and batch", "Memory", "Step time")
)


class ConventionName(StrEnum):
    """The convention of ``--tflops``."""

    BIGSCIENCE = "bigscience"
    SIX_N = "6n"
    MEGATRON_PAPER = "megatron_paper"
    MEGATRON_CORE = "megatron_core"
    TORCHTITAN = "torchtitan"
    PALM = "palm"


class DurationOptions(NamedTuple):
    """Tokens, speed and time, of which two determine the third."""

    tokens: Annotated[str | None, _duration(help="Tokens to train on: 260B, 3.5T. B is 10**9.")] = None
    tflops: Annotated[
        float | None, _duration(help="Planned TFLOPs per GPU, by --convention.", show_default="from --days")
    ] = None
    days: Annotated[
        float | None, _duration(help="Duration in days, in place of --tflops.", show_default="from --tflops")
    ] = None
    convention: Annotated[ConventionName, _duration(help="Convention of the TFLOPs.")] = ConventionName.BIGSCIENCE


_degree = partial(_layout, show_default="1")


class LayoutOptions(NamedTuple):
    """How the model and the batch are spread over GPUs; None for a degree that the search may choose."""

    zero: Annotated[int | None, _layout(help="ZeRO stage, 0 to 3.", show_default="every stage")] = None
    tp: Annotated[int | None, _degree(help="Tensor-parallel size.")] = None
    pp: Annotated[int | None, _degree(help="Pipeline-parallel size: stages.")] = None
    ep: Annotated[int | None, _degree(help="Expert-parallel size.")] = None
    cp: Annotated[int | None, _degree(help="Context-parallel size.")] = None
    virtual_stages: Annotated[int | None, _degree(help="Virtual stages per pipeline rank (interleaved).")] = None
    micro_batch: Annotated[
        int | None,
        _layout("--micro-batch", "--mbs", help="Micro-batch size: sequences of one forward pass.", show_default="1"),
    ] = None
    gbs: Annotated[
        int | None,
        _layout(
            help="Global batch size: sequences in one step over all GPUs.",
            show_default="enough micro-batches to fill a pipeline",
        ),
    ] = None
    sequence_parallel: Annotated[
        bool, _layout("--sequence-parallel", help="Sequence parallelism: split norms and dropout along the sequence.")
    ] = False

    def size(self, name: str) -> int:
        """A degree or the micro-batch, 1 by default."""
        return getattr(self, name) or 1


class MemoryOptions(NamedTuple):
    """Implementations and precision that the memory depends on."""

    attention: Annotated[Attention, _memory(help="Attention implementation: eager keeps the attention matrix.")] = (
        Attention.FLASH
    )
    optimizer: Annotated[OptimizerKind, _memory(help="Optimizer.")] = OptimizerKind.ADAM
    states: Annotated[
        StatePrecision | None,
        _memory(
            help="Training precision: of weights, gradients and optimizer; megatron is mixed with fp32 gradients, "
            "nanotron has 16-bit ones beside them, and steps of its own.",
            show_default="fp32 with --dtype fp32 or tf32, else mixed",
        ),
    ] = None
    loss: Annotated[
        Loss | None,
        _memory(
            help="Cross-entropy implementation: of logits, and whether SwiGLU is fused.",
            show_default="sharded where the model is split, and of --states megatron and nanotron; else plain",
        ),
    ] = None


class StepTimeOptions(NamedTuple):
    """How the time of a step is predicted."""

    calibrate: Annotated[
        list[str] | None,
        _steps(
            metavar="RUN|LOG|CSV",
            help="Measured steps to predict from, or a file of `doctor --ceiling`; a CSV alone is judged.",
        ),
    ] = None
    why: Annotated[bool, _steps("--why", help="Show the terms of the fastest configuration, and their constants.")] = (
        False
    )
    network: Annotated[
        float | None,
        _steps(help="Rate of a GPU to other nodes, in GB/s and direction.", show_default="of the GPU's usual node"),
    ] = None


class Target(NamedTuple):
    """What the duration is computed from; of tokens, speed and time the missing one is solved for."""

    tokens: int | None
    tflops_per_gpu: float | None
    seconds: float | None
    convention: ConventionName


def parse_target(options: DurationOptions) -> Target:
    """Parse the options of the duration; UsageError where a value is not positive, or all three are given."""
    for option, value in (("--tflops", options.tflops), ("--days", options.days)):
        if value is not None and not 0 < value < float("inf"):
            raise UsageError(f"{option} must be positive, not {value:g}")
    tokens = parse_tokens(options.tokens) if options.tokens else None
    if tokens and options.tflops and options.days:
        raise UsageError("--tokens, --tflops and --days determine each other", hint="leave one of them out")
    seconds = None if options.days is None else options.days * S_PER_DAY
    return Target(tokens, options.tflops, seconds, options.convention)


@dataclass(frozen=True, slots=True)
class PlanInputs:
    """What a plan is computed from beside the model; None for what is not known."""

    gpus: int
    target: Target
    training: SequenceOptions
    layout: LayoutOptions
    memory: MemoryOptions
    peak: PeakOptions
    model_seq_len: int | None = None
    steps: StepTimeOptions = field(default_factory=StepTimeOptions)

    def __post_init__(self) -> None:
        for name, value in (*self.training._asdict().items(), *self.layout._asdict().items()):
            if isinstance(value, int) and not isinstance(value, bool) and name != "zero":
                require_positive(spell_option(name), value)
        if self.steps.network is not None and not 0 < self.steps.network < float("inf"):
            raise UsageError(f"--network must be positive, not {self.steps.network:g}")

    @property
    def seq_len(self) -> int:
        """Tokens in a sequence, with the default."""
        return self.training.seq_len or self.model_seq_len or DEFAULT_SEQ_LEN

    @property
    def checkpointing(self) -> Checkpointing:
        """Which activations are recomputed, with the default."""
        return self.training.checkpointing or DEFAULT_CHECKPOINTING

    @property
    def software(self) -> str:
        """The software whose steps are predicted, if it has constants of its own; else ""."""
        return NANOTRON if self.memory.states is StatePrecision.NANOTRON else ""

    def states(self, dtype: str) -> StatePrecision:
        """The training precision, with the default for a data type."""
        return self.memory.states or (
            StatePrecision.FP32 if dtype in (Dtype.FP32, Dtype.TF32) else StatePrecision.MIXED
        )

    def precision(self, dtype: str) -> StateBytes:
        """Bytes per parameter of each state, where matrix products are in a data type."""
        in_fp8 = dtype.endswith(("fp8", "fp4"))
        return state_bytes_of(self.states(dtype), self.memory.optimizer, in_fp8=in_fp8)
