"""The options of ``perfscope plan`` beside the model and the GPU."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from perfscope.analyzers.planning.memory import Attention, Loss, Optimizer

DEFAULT_MICRO_BATCH = 1
_DURATION, _LAYOUT, _MEMORY, _FILES = "Duration", "Layout and batch", "Memory", "Input files"


class ConventionName(StrEnum):
    """The convention of ``--tflops``."""

    BIGSCIENCE = "bigscience"
    SIX_N = "6n"
    MEGATRON_PAPER = "megatron_paper"
    MEGATRON_CORE = "megatron_core"
    TORCHTITAN = "torchtitan"
    PALM = "palm"


class States(StrEnum):
    """Precision of weights, gradients and optimizer.

    ``mixed``: 16 bits with an fp32 copy in the optimizer, as Megatron and DeepSpeed. ``autocast``: fp32, with 16-bit
    copies to compute in. ``pure``: 16 bits throughout. ``fp32``: fp32 throughout.
    """

    MIXED = "mixed"
    AUTOCAST = "autocast"
    PURE = "pure"
    FP32 = "fp32"


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
    hours: Annotated[
        float | None,
        typer.Option(help="Duration in hours, added to --days.", show_default="0", rich_help_panel=_DURATION),
    ] = None
    convention: Annotated[ConventionName, typer.Option(help="Convention of the TFLOPs.", rich_help_panel=_DURATION)] = (
        ConventionName.BIGSCIENCE
    )


class LayoutOptions(NamedTuple):
    """How the model and the batch are spread over GPUs; None for a degree that the search may choose."""

    zero: Annotated[
        int | None, typer.Option(help="ZeRO stage, 0 to 3.", show_default="every stage", rich_help_panel=_LAYOUT)
    ] = None
    tp: Annotated[int | None, typer.Option(help="Tensor-parallel size.", show_default="1", rich_help_panel=_LAYOUT)] = (
        None
    )
    pp: Annotated[
        int | None, typer.Option(help="Pipeline-parallel size.", show_default="1", rich_help_panel=_LAYOUT)
    ] = None
    ep: Annotated[int | None, typer.Option(help="Expert-parallel size.", show_default="1", rich_help_panel=_LAYOUT)] = (
        None
    )
    cp: Annotated[
        int | None, typer.Option(help="Context-parallel size.", show_default="1", rich_help_panel=_LAYOUT)
    ] = None
    virtual_stages: Annotated[
        int | None,
        typer.Option(
            help="Virtual stages per pipeline rank (interleaved schedule).", show_default="1", rich_help_panel=_LAYOUT
        ),
    ] = None
    micro_batch: Annotated[
        int | None,
        typer.Option(
            "--micro-batch",
            "--mbs",
            help="Micro-batch size: sequences of one forward pass.",
            show_default=str(DEFAULT_MICRO_BATCH),
            rich_help_panel=_LAYOUT,
        ),
    ] = None
    gbs: Annotated[
        int | None,
        typer.Option(
            help="Global batch size: sequences in one step over all GPUs.",
            show_default="of --run, --log or --deepspeed-config",
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

    @property
    def tensor(self) -> int:
        """Tensor-parallel size, 1 by default."""
        return self.tp or 1

    @property
    def pipeline(self) -> int:
        """Pipeline-parallel size, 1 by default."""
        return self.pp or 1

    @property
    def expert(self) -> int:
        """Expert-parallel size, 1 by default."""
        return self.ep or 1

    @property
    def context(self) -> int:
        """Context-parallel size, 1 by default."""
        return self.cp or 1

    @property
    def virtual(self) -> int:
        """Virtual stages per pipeline rank, 1 by default."""
        return self.virtual_stages or 1

    @property
    def micro_batch_size(self) -> int:
        """Sequences of one forward pass, with the default."""
        return self.micro_batch or DEFAULT_MICRO_BATCH


class MemoryOptions(NamedTuple):
    """Implementations and precision that the memory depends on."""

    attention: Annotated[
        Attention,
        typer.Option(help="Attention implementation: eager keeps the attention matrix.", rich_help_panel=_MEMORY),
    ] = Attention.FLASH
    optimizer: Annotated[Optimizer, typer.Option(help="Optimizer.", rich_help_panel=_MEMORY)] = Optimizer.ADAM
    fp32_gradients: Annotated[
        bool | None,
        typer.Option("--fp32-gradients", help="Keep gradients in fp32 in mixed precision.", rich_help_panel=_MEMORY),
    ] = None
    states: Annotated[
        States | None,
        typer.Option(
            help="Training precision: of weights, gradients and optimizer.",
            show_default="fp32 with --dtype fp32 or tf32, else mixed",
            rich_help_panel=_MEMORY,
        ),
    ] = None
    loss: Annotated[
        Loss, typer.Option(help="Cross-entropy implementation (logits memory).", rich_help_panel=_MEMORY)
    ] = Loss.PLAIN
    dropout: Annotated[
        bool,
        typer.Option(
            "--dropout/--no-dropout",
            help="Whether GPT layers keep the masks of dropout; gated models have none.",
            rich_help_panel=_MEMORY,
        ),
    ] = True


class FileOptions(NamedTuple):
    """Files that supply missing values."""

    run: Annotated[
        Path | None,
        typer.Option(
            help="A run of perfscope profile: supplies missing values; compared with the estimates.",
            rich_help_panel=_FILES,
        ),
    ] = None
    log: Annotated[
        Path | None,
        typer.Option(help="A training log: supplies missing values, its speed among them.", rich_help_panel=_FILES),
    ] = None
    deepspeed_config: Annotated[
        Path | None,
        typer.Option(
            help="A DeepSpeed config: supplies ZeRO stage, batch sizes, data type and offloading.",
            rich_help_panel=_FILES,
        ),
    ] = None
