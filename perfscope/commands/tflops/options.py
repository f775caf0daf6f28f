"""The options of ``perfscope tflops`` beside the model and the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, NamedTuple

import typer

DEFAULT_GPUS = 64
_FILES = "Input files"


class StepOptions(NamedTuple):
    """The work and the time of one step, as typed."""

    gbs: Annotated[
        int | None,
        typer.Option(
            help="Global batch size: sequences in one step over all GPUs.",
            show_default="of --log or --deepspeed-config, else required",
        ),
    ] = None
    time: Annotated[str | None, typer.Option(help="Time of one step: 127, 127s, 2m7s, 127000ms.")] = None
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.", show_default=str(DEFAULT_GPUS))] = None


class FileOptions(NamedTuple):
    """Files that supply missing values."""

    log: Annotated[
        Path | None,
        typer.Option(
            help="A training log: supplies missing values; its logged TFLOPs are compared with the conventions.",
            rich_help_panel=_FILES,
        ),
    ] = None
    trace: Annotated[
        Path | None,
        typer.Option(
            help="A trace taken with --shapes: its operations are counted and compared with the formula.",
            rich_help_panel=_FILES,
        ),
    ] = None
    deepspeed_config: Annotated[
        Path | None,
        typer.Option(
            help="A DeepSpeed config: supplies the global batch size and the data type.", rich_help_panel=_FILES
        ),
    ] = None
