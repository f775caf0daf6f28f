"""How a model is trained, as far as the operations of a token depend on it."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from perfscope.models.conventions import Checkpointing

DEFAULT_SEQ_LEN = 1024
DEFAULT_CHECKPOINTING = Checkpointing.FULL


class TrainingOptions(NamedTuple):
    """Sequence length and activation checkpointing, as typed."""

    seq_len: Annotated[
        int | None,
        typer.Option("--seq-len", "--seq-length", help="Tokens in a sequence.", show_default=str(DEFAULT_SEQ_LEN)),
    ] = None
    checkpointing: Annotated[
        Checkpointing | None,
        typer.Option(help="Activation checkpointing: what is recomputed.", show_default=DEFAULT_CHECKPOINTING.value),
    ] = None
