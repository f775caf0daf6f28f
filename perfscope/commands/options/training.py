"""How a model is trained, as far as the operations of a token depend on it."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import typer

from perfscope.models.conventions import Checkpointing

DEFAULT_SEQ_LEN = 1024
DEFAULT_CHECKPOINTING = Checkpointing.FULL
_SEQ_LEN_DEFAULT = f"{DEFAULT_SEQ_LEN}; in plan that of a named model's pre-training"


class TrainingOptions(NamedTuple):
    """Sequence length and activation checkpointing, as typed."""

    seq_len: Annotated[
        int | None,
        typer.Option("--seq-len", "--seq-length", help="Tokens in a sequence.", show_default=_SEQ_LEN_DEFAULT),
    ] = None
    checkpointing: Annotated[
        Checkpointing | None,
        typer.Option(help="Activation checkpointing: what is recomputed.", show_default=DEFAULT_CHECKPOINTING.value),
    ] = None


def describe_assumed_seq_len(seq_len: int, model_seq_len: int | None) -> str:
    """The assumed length of a sequence as a phrase, beside that of a named model's pre-training."""
    if model_seq_len is None:
        return f"sequence length {seq_len} (--seq-len)"
    if model_seq_len == seq_len:
        return f"sequence length {seq_len}, that of the model's pre-training (--seq-len)"
    return f"sequence length {seq_len} (--seq-len); the model's pre-training took {model_seq_len}"
