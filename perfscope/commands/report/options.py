"""Options that several commands of ``perfscope report`` share: values that no column of a published table states."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from perfscope.commands.options.common import require_positive
from perfscope.models.conventions import Checkpointing
from perfscope.models.hardware import find_gpu
from perfscope.tables.published import Constant, Quantity
from perfscope.units import parse_parameters

_PANEL = "Constants of the tables"
_PASSES = {Checkpointing.FULL: 4}
_PASSES_WITHOUT_RECOMPUTATION = 3


@dataclass(frozen=True, slots=True)
class ConstantOptions:
    """The values that hold for whole tables, as typed."""

    seq_len: Annotated[
        int | None,
        typer.Option(help="Tokens per sequence.", rich_help_panel=_PANEL, show_default="from the text, else 1024"),
    ] = None
    checkpointing: Annotated[
        Checkpointing | None,
        typer.Option(
            help="Activation checkpointing: what is recomputed.",
            rich_help_panel=_PANEL,
            show_default="from the text, else full",
        ),
    ] = None
    tp: Annotated[
        int | None,
        typer.Option(help="Tensor-parallel size, in GPUs.", rich_help_panel=_PANEL, show_default="from the text"),
    ] = None
    gpus: Annotated[
        int | None, typer.Option(help="Number of GPUs.", rich_help_panel=_PANEL, show_default="from the text")
    ] = None
    size: Annotated[
        str | None,
        typer.Option(
            help="Number of parameters of the model: 104B.", rich_help_panel=_PANEL, show_default="from the text"
        ),
    ] = None
    gbs: Annotated[
        int | None,
        typer.Option(help="Global batch size, in sequences.", rich_help_panel=_PANEL, show_default="from the text"),
    ] = None
    gpu: Annotated[
        str | None, typer.Option(help="Model of the GPU, for columns with a share of its peak.", rich_help_panel=_PANEL)
    ] = None

    def constants(self) -> dict[Quantity, Constant]:
        """The constants that the options set.

        Raises:
            UsageError: A value cannot be right.
        """
        counts = {
            Quantity.SEQ_LEN: ("--seq-len", self.seq_len),
            Quantity.TENSOR_PARALLEL: ("--tp", self.tp),
            Quantity.GPUS: ("--gpus", self.gpus),
            Quantity.GLOBAL_BATCH: ("--gbs", self.gbs),
        }
        constants = {
            quantity: Constant(require_positive(option, value), option)
            for quantity, (option, value) in counts.items()
            if value is not None
        }
        if self.size is not None:
            constants[Quantity.PARAMETERS] = Constant(parse_parameters(self.size), "--size")
        if self.checkpointing is not None:
            passes = _PASSES.get(self.checkpointing, _PASSES_WITHOUT_RECOMPUTATION)
            constants[Quantity.PASSES] = Constant(passes, f"--checkpointing {self.checkpointing}")
        return constants

    def peak_tflops(self) -> float | None:
        """The dense 16-bit peak of the GPU; None where no GPU is named.

        Raises:
            UsageError: The GPU is not in the table of hardware.
        """
        return find_gpu(self.gpu).dense_16bit_tflops if self.gpu else None
