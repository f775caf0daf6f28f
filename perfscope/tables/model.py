"""The model that a rank trains: see ``perfscope.wire.model.ModelRecord``."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from perfscope.models.transformer import Latent, Transformer
from perfscope.wire.model import PrecisionRecord


@dataclass(frozen=True, slots=True)
class Weight:
    """Parameters of one shape whose names differ by a number alone.

    Attributes:
        name: The name with ``*`` for the number; empty where it is not known.
        is_embedding: Whether they are looked up and not multiplied.
        shape: The full shape, also of a sharded parameter; where a library other than torch splits it, this rank's.
        parts: Into how many parts tensor parallelism splits each; one of them is this rank's.
    """

    name: str
    is_embedding: bool
    shape: tuple[int, ...]
    count: int
    parts: int = 1

    @property
    def elements(self) -> int:
        """Elements that this rank counts, of all of them."""
        return self.count * prod(self.shape) // self.parts


class StatedDimensions(NamedTuple):
    """What the configuration of a model states of it, in whichever framework's names; each is absent where it does not.

    Attributes:
        experts, top_k: Routed experts in a layer, and how many of them a token uses.
        other_layers: Kinds of layers that have no attention matrix, as the configuration names them.
    """

    layers: int | None = None
    hidden: int | None = None
    heads: int | None = None
    experts: int | None = None
    top_k: int | None = None
    latent: Latent | None = None
    other_layers: tuple[str, ...] = ()


_NOTHING_STATED = StatedDimensions()


@dataclass(frozen=True, slots=True)
class Model:
    """The model that one rank trains.

    Attributes:
        name: Class of the module; absent where only its parameters are known.
        parameters, trainable: Parameters of this rank's module, and those that have gradients.
        transformer: The dimensions; absent where the module does not name them.
        no_transformer: Why the module's own description could not be used; empty where it has none.
        stated: What its configuration states, whether or not that is enough for all dimensions.
        signs: What shows the type that its products are computed in, which is not always that of its parameters.
        checkpointing: Which activations settings say are recomputed, or ``wire.model.IN_USE``; absent for none.
        weights_dtype: The type of most parameters; absent where unknown.
        zero_stage: Stage of ZeRO: DeepSpeed's, or 3 with PyTorch's FSDP; absent where neither was detected.
    """

    rank: int
    name: str | None
    parameters: int
    trainable: int
    weights: tuple[Weight, ...]
    transformer: Transformer | None
    no_transformer: str
    signs: PrecisionRecord
    checkpointing: str | None
    weights_dtype: str | None = None
    zero_stage: int | None = None
    stated: StatedDimensions = _NOTHING_STATED
