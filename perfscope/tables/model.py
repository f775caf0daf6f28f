"""The model that a rank trains: see ``perfscope.wire.model.ModelRecord``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from perfscope.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Weight:
    """Parameters of one shape whose names differ by a number alone.

    Attributes:
        name: The name with ``*`` for the number; empty where it is not known.
        is_embedding: Whether they are looked up and not multiplied.
        shape: The full shape, also of a sharded parameter.
        count: Number of such parameters.
    """

    name: str
    is_embedding: bool
    shape: tuple[int, ...]
    count: int

    @property
    def elements(self) -> int:
        """Elements of all of them."""
        return self.count * prod(self.shape)


@dataclass(frozen=True, slots=True)
class Model:
    """The model that one rank trains.

    Attributes:
        rank: The rank.
        name: Class of the module; absent where only its parameters are known.
        parameters: Parameters of this rank's module.
        trainable: Those that have gradients.
        weights: Their shapes.
        transformer: The dimensions; absent where the module does not name them.
        no_transformer: Why the module's own description could not be used; empty where it has none.
        dtype: The type that matrix products are computed in; absent where unknown.
        checkpointing: Which activations are recomputed; absent where none was detected.
        weights_dtype: The type of most parameters; absent where unknown.
        zero_stage: Stage of ZeRO: DeepSpeed's, or 3 with PyTorch's FSDP; absent where neither was detected.
        optimizer: Class of the optimizer; absent likewise.
    """

    rank: int
    name: str | None
    parameters: int
    trainable: int
    weights: tuple[Weight, ...]
    transformer: Transformer | None
    no_transformer: str
    dtype: str | None
    checkpointing: str | None
    weights_dtype: str | None = None
    zero_stage: int | None = None
    optimizer: str | None = None
