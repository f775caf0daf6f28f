"""The record of the model that a rank trains."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod


@dataclass(frozen=True)
class WeightRecord:
    """Parameters of the same shape whose names differ only by a number.

    Attributes:
        name: The name with ``*`` for the number; empty where unknown.
        owner: Class of the module that holds them, ``Embedding`` for every kind of embedding; empty where unknown.
        shape: The whole shape, also where ranks hold parts of a DTensor or a shard of ZeRO or FSDP. Where another
            library splits the tensor, the shape on this rank.
        dtype: ``bf16``, ``fp16``, ``fp32``, ``fp8``, or torch's own name of another type.
        count: How many there are.
        parts: Into how many parts tensor parallelism splits each; one of them is this rank's.
    """

    name: str
    owner: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool
    count: int
    parts: int = 1

    @property
    def elements(self) -> int:
        """Elements that this rank counts, of all of them."""
        return self.count * prod(self.shape) // self.parts


#: Activation checkpointing that was seen in use, of which nothing states what it recomputes.
IN_USE = "in use"

#: How a record marks a library whose layers multiply in 4 bits.
FP4_LAYERS = " in NVFP4"


@dataclass(frozen=True)
class PrecisionRecord:
    """Signs of the data type that a rank's products are computed in; each is absent where it was not seen.

    Attributes:
        products: Elements that the products of a forward pass computed, by the type of the result.
        autocast: Type of autocast where the model was called.
        policy: Type that FSDP casts parameters to before they are used.
        engine: Type that the framework's engine is configured to compute in.
        fp8: The library whose layers computed in fp8, or in 4 bits where it ends in ``FP4_LAYERS``.
        float32: What products of fp32 are computed in on a GPU: ``tf32`` or ``fp32``.
    """

    products: dict[str, int] = field(default_factory=dict)
    autocast: str | None = None
    policy: str | None = None
    engine: str | None = None
    fp8: str | None = None
    float32: str | None = None


@dataclass(frozen=True)
class ModelRecord:
    """The model part that a rank trains; written when the first step completed.

    Attributes:
        parameters: Number of parameters of this rank's module, each counted once; ``trainable`` ones have gradients.
        module: Class of the module; absent where only its parameters are known.
        config: Plain values of the configuration that the module was built from, by the framework's own names; a nested
            object of it is a mapping.
        dtype: Type of most parameters.
        compute_dtype: Type of autocast where the model was called; older versions wrote ``tf32``, too.
        checkpointing: Activation checkpointing as the model's settings state it, ``full`` or ``selective``, or
            ``IN_USE`` where it was seen in use; absent where neither is so. How much it recomputes a trace shows.
        zero_stage: Stage of ZeRO: DeepSpeed's, or 3 with PyTorch's FSDP; absent where neither was seen.
    """

    parameters: int
    trainable: int
    weights: tuple[WeightRecord, ...]
    module: str | None = None
    config: dict[str, object] = field(default_factory=dict)
    dtype: str | None = None
    compute_dtype: str | None = None
    checkpointing: str | None = None
    zero_stage: int | None = None
    precision: PrecisionRecord | None = None
