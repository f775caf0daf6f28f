"""The model that a rank trains, from ``model.json``: shapes of parameters, and dimensions where the file has them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from perfscope import wire
from perfscope.errors import UsageError
from perfscope.models.transformer import Transformer
from perfscope.sources.models.config_fields import read_stated
from perfscope.sources.models.huggingface import to_transformer
from perfscope.sources.models.megatron_arguments import model_from_arguments
from perfscope.sources.runs.records import read_optional
from perfscope.tables.model import Model, Weight
from perfscope.wire.model import FP4_LAYERS, ModelRecord, PrecisionRecord

#: Modules around a layer that is recomputed, compiled or sharded; often only some layers have them.
_WRAPPER = re.compile(r"\b(?:_checkpoint_wrapped_module|_orig_mod|_fsdp_wrapped_module)\.")
_SIXTEEN_BIT = ("bf16", "fp16")
_MEGATRON_LAYERS = {"fp4": f"Megatron{FP4_LAYERS}", "fp8": "Megatron"}


def read_model_record(folder: Path, rank: int, damage: list[str]) -> Model | None:
    """Read one rank's model; None where it recorded none."""
    record = read_optional(folder / wire.MODEL_FILE, ModelRecord, damage)
    if record is None:
        return None
    transformer, reason = _dimensions(record.config, record.module or "the model")
    return Model(
        rank=rank,
        name=record.module,
        parameters=record.parameters,
        trainable=record.trainable,
        weights=tuple(
            Weight(
                _WRAPPER.sub("", weight.name),
                weight.owner.endswith("Embedding"),
                weight.shape,
                weight.count,
                weight.parts,
            )
            for weight in record.weights
        ),
        transformer=transformer,
        no_transformer=reason,
        signs=_signs(record),
        checkpointing=record.checkpointing,
        weights_dtype=record.dtype,
        zero_stage=record.zero_stage,
        stated=read_stated(record.config),
    )


def _signs(record: ModelRecord) -> PrecisionRecord:
    """The signs that were recorded, and those in Megatron's arguments, which are in the configuration."""
    seen = record.precision or PrecisionRecord()
    arguments = record.config if "padded_vocab_size" in record.config else {}
    stated = next((dtype for dtype in _SIXTEEN_BIT if arguments.get(dtype) is True), None)
    return replace(
        seen,
        # Older versions wrote what products of fp32 parameters would be in, whatever they were cast to.
        autocast=seen.autocast or (record.compute_dtype if record.compute_dtype in _SIXTEEN_BIT else None),
        engine=seen.engine or stated,
        fp8=seen.fp8 or next((name for option, name in _MEGATRON_LAYERS.items() if arguments.get(option)), None),
    )


def _dimensions(config: Mapping[str, object], name: str) -> tuple[Transformer | None, str]:
    """The dimensions by a Hugging Face config or by Megatron's arguments, and why there are none."""
    try:
        if "model_type" in config:
            return to_transformer(config, name), ""
        if "padded_vocab_size" in config:
            return model_from_arguments({key: str(value) for key, value in config.items()}, None, name), ""
    except UsageError as error:
        return None, error.problem
    return None, ""
