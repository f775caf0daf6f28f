"""The inputs of ``perfscope tflops``: what was typed, and what files supply where an option was not typed."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from perfscope.commands.model import Dtype
from perfscope.constants import NS_PER_S
from perfscope.models.conventions import Checkpointing

DEFAULT_GPUS = 64


class StepOptions(NamedTuple):
    """The work and the time of one step, as typed."""

    gbs: Annotated[
        int | None,
        typer.Option(
            help="Global batch size: sequences in one step over all GPUs.",
            show_default="of --log, else required",
        ),
    ] = None
    time: Annotated[str | None, typer.Option(help="Time of one step: 127, 127s, 2m7s, 127000ms.")] = None
    gpus: Annotated[int | None, typer.Option(help="Number of GPUs.", show_default=str(DEFAULT_GPUS))] = None


class StepInputs(NamedTuple):
    """A step as far as it is known; None for what was neither typed nor read.

    ``samples`` is the global batch; ``read`` has a phrase for each value that was read from a file.
    """

    samples: int | None = None
    step_ns: int | None = None
    gpus: int | None = None
    seq_len: int | None = None
    checkpointing: Checkpointing | None = None
    dtype: Dtype | None = None
    read: tuple[str, ...] = ()

    def fill_missing(self, supplied: StepInputs, origin: str) -> StepInputs:
        """Take the missing values from a file's, and note that they were read."""
        phrases = {
            "samples": f"global batch {supplied.samples}",
            "step_ns": f"time of a step {(supplied.step_ns or 0) / NS_PER_S:.4g} s, the median of steady-state steps",
            "gpus": f"{supplied.gpus} GPUs",
            "seq_len": f"sequence length {supplied.seq_len}",
            "checkpointing": f"activation checkpointing {supplied.checkpointing}",
            "dtype": f"matrix products in {supplied.dtype}",
        }
        values = {
            name: value
            for name in phrases
            if getattr(self, name) is None and (value := getattr(supplied, name)) is not None
        }
        return self._replace(**values, read=(*self.read, *(f"{phrases[name]}, from {origin}" for name in values)))
