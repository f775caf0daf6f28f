"""A shape for a model of which only the size is known, so that its activations can be estimated."""

from __future__ import annotations

from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import PLAIN_MATRICES, Transformer
from perfscope.sources.models.presets import find_preset
from perfscope.units import format_parameters

_GPT3_SIZES = ("125m", "350m", "760m", "1.3b", "2.7b", "6.7b", "13b", "175b")
_SAME_SIZE = 0.06
_VOCABULARY = 51200
_CONTEXT = 2048
_HIDDEN_PER_LAYER = 128
_HEAD_DIM = 128


def assume_shape(parameters: int) -> tuple[Transformer, str]:
    """The GPT-3 model of about that size, or else a GPT with a hidden size of 128 per layer; and a note that says so.

    Source of the ratio: the larger models of Brown et al. 2020, table 2.1.
    """
    for size in _GPT3_SIZES:
        preset = find_preset(f"gpt3-{size}")
        assert preset is not None
        model = preset.transformer
        if abs(total_parameters(model) / parameters - 1) < _SAME_SIZE:
            return model, f"the shape of {model.name}, because only the size is given (--model)"
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
