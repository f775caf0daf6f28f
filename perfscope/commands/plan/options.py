"""The options of ``perfscope plan``, and its inputs."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, NamedTuple

import typer

from perfscope.analyzers.plan import Attention, Loss, OptimizerKind, StateBytes, StatePrecision, state_bytes_of
from perfscope.commands.model import (
    DEFAULT_CHECKPOINTING,
    DEFAULT_SEQ_LEN,
    Dtype,
    PeakOptions,
    SequenceOptions,
)
from perfscope.commands.options import require_positive, spell_option
from perfscope.constants import S_PER_DAY
from perfscope.errors import UsageError
from perfscope.models.conventions import Checkpointing
from perfscope.units import parse_tokens

_DURATION, _LAYOUT, _MEMORY = "Duration", "Layout and batch", "Memory"


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

    tokens: Annotated[
        str | None, typer.Option(help="Tokens to train on: 260B, 3.5T. B is 10**9.", rich_help_panel=_DURATION)
    ] = None
    tflops: Annotated[
        float | None,
        typer.Option(
            help="Planned TFLOPs per GPU, by --convention.", show_default="from --days", rich_help_panel=_DURATION
        ),
    ] = None
    days: Annotated[
        float | None,
        typer.Option(
            help="Duration in days, in place of --tflops.", show_default="from --tflops", rich_help_panel=_DURATION
        ),
    ] = None
    convention: Annotated[ConventionName, typer.Option(help="Convention of the TFLOPs.", rich_help_panel=_DURATION)] = (
        ConventionName.BIGSCIENCE
    )


def _degree(text: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(help=text, show_default="1", rich_help_panel=_LAYOUT)
    return option


class LayoutOptions(NamedTuple):
    """How the model and the batch are spread over GPUs; None for a degree that the search may choose."""

    zero: Annotated[
        int | None, typer.Option(help="ZeRO stage, 0 to 3.", show_default="every stage", rich_help_panel=_LAYOUT)
    ] = None
    tp: Annotated[int | None, _degree("Tensor-parallel size.")] = None
    pp: Annotated[int | None, _degree("Pipeline-parallel size: stages.")] = None
    ep: Annotated[int | None, _degree("Expert-parallel size.")] = None
    cp: Annotated[int | None, _degree("Context-parallel size.")] = None
    virtual_stages: Annotated[int | None, _degree("Virtual stages per pipeline rank (interleaved schedule).")] = None
    micro_batch: Annotated[
        int | None,
        typer.Option(
            "--micro-batch",
            "--mbs",
            help="Micro-batch size: sequences of one forward pass.",
            show_default="1",
            rich_help_panel=_LAYOUT,
        ),
    ] = None
    gbs: Annotated[
        int | None,
        typer.Option(
            help="Global batch size: sequences in one step over all GPUs.",
            show_default="enough micro-batches to fill a pipeline",
            rich_help_panel=_LAYOUT,
        ),
    ] = None
    sequence_parallel: Annotated[
        bool,
        typer.Option(
            "--sequence-parallel",
            help="Sequence parallelism: split norms and dropout along the sequence.",
            rich_help_panel=_LAYOUT,
        ),
    ] = False

    def size(self, name: str) -> int:
        """A degree or the micro-batch, 1 by default."""
        return getattr(self, name) or 1


class MemoryOptions(NamedTuple):
    """Implementations and precision that the memory depends on."""

    attention: Annotated[
        Attention,
        typer.Option(help="Attention implementation: eager keeps the attention matrix.", rich_help_panel=_MEMORY),
    ] = Attention.FLASH
    optimizer: Annotated[OptimizerKind, typer.Option(help="Optimizer.", rich_help_panel=_MEMORY)] = OptimizerKind.ADAM
    states: Annotated[
        StatePrecision | None,
        typer.Option(
            help="Training precision: of weights, gradients and optimizer; megatron is mixed with fp32 gradients.",
            show_default="fp32 with --dtype fp32 or tf32, else mixed",
            rich_help_panel=_MEMORY,
        ),
    ] = None
    loss: Annotated[
        Loss, typer.Option(help="Cross-entropy implementation (logits memory).", rich_help_panel=_MEMORY)
    ] = Loss.PLAIN


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

    def __post_init__(self) -> None:
        for name, value in (*self.training._asdict().items(), *self.layout._asdict().items()):
            if isinstance(value, int) and not isinstance(value, bool) and name != "zero":
                require_positive(spell_option(name), value)

    @property
    def seq_len(self) -> int:
        """Tokens in a sequence, with the default."""
        return self.training.seq_len or self.model_seq_len or DEFAULT_SEQ_LEN

    @property
    def checkpointing(self) -> Checkpointing:
        """Which activations are recomputed, with the default."""
        return self.training.checkpointing or DEFAULT_CHECKPOINTING

    def states(self, dtype: str) -> StatePrecision:
        """The training precision, with the default for a data type."""
        return self.memory.states or (
            StatePrecision.FP32 if dtype in (Dtype.FP32, Dtype.TF32) else StatePrecision.MIXED
        )

    def precision(self, dtype: str) -> StateBytes:
        """Bytes per parameter of each state, where matrix products are in a data type."""
        return state_bytes_of(self.states(dtype), self.memory.optimizer)
