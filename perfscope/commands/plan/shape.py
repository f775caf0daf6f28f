"""A shape for a model of which only the size is known, so that its activations can be estimated."""

from __future__ import annotations

from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import PLAIN_MATRICES, Transformer
from perfscope.units import format_parameters

_FAMILY = ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "175b")
_NEAR = 0.06
_VOCABULARY = 51200
_CONTEXT = 2048
_HIDDEN_PER_LAYER = 128
_HEAD_DIM = 128


def shape_of(parameters: int) -> tuple[Transformer, str]:
    """The GPT-3 model of about that size, or a GPT with 128 times as many dimensions as layers; and how it is said.

    Source of the ratio: the larger models of Brown et al. 2020, table 2.1.
    """
    from perfscope.sources.models.presets import find_preset

    for size in _FAMILY:
        known = find_preset(f"gpt3-{size}")
        assert known is not None
        if abs(total_parameters(known.transformer) / parameters - 1) < _NEAR:
            return known.transformer, f"the shape of {known.transformer.name}, because only the size is given (--model)"
    layers = max(1, round((parameters / (12 * _HIDDEN_PER_LAYER**2)) ** (1 / 3)))
    hidden = _HIDDEN_PER_LAYER * layers
    model = Transformer(
        name=format_parameters(parameters),
        layers=layers,
        hidden=hidden,
        heads=hidden // _HEAD_DIM,
        kv_heads=hidden // _HEAD_DIM,
        head_dim=_HEAD_DIM,
        ffn=4 * hidden,
        mlp_matrices=PLAIN_MATRICES,
        vocabulary=_VOCABULARY,
        tied=True,
        positions=_CONTEXT,
    )
    return model, f"a GPT of {layers} layers and hidden size {hidden}, because only the size is given (--model)"
