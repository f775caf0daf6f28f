"""Operations per token by the conventions that need the dimensions of the model; ``comparison`` has their sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from perfscope.models.conventions import FORWARD, FORWARD_AND_BACKWARD, Checkpointing, bigscience_passes
from perfscope.models.parameter_counts import (
    active_parameters,
    attention_weights,
    dense_mlp_weights,
    embedding_parameters,
    expert_mlp_weights,
    layer_weights,
    position_parameters,
    router_weights,
)
from perfscope.models.transformer import GATED_MATRICES, PLAIN_MATRICES, Mixer, Mixing, Transformer

#: Megatron-LM pads the vocabulary to a multiple of this for each tensor-parallel rank (--make-vocab-size-divisible-by).
MEGATRON_VOCABULARY_MULTIPLE = 128


def megatron_paper(model: Transformer, seq_len: int, checkpointing: Checkpointing) -> int:
    """The closed form for a GPT with an MLP of 4h and as many key-value heads as heads; other models are miscounted.

    With all activations recomputed ``96 L h^2 (1 + s/6h + V/16Lh)``, with none ``72 L h^2 (1 + s/6h + V/12Lh)``: logits
    are never recomputed. Selective recomputation repeats the attention scores, ``4 L s h`` more than none.
    """
    layers, hidden = model.layers, model.hidden
    logits = 6 * hidden * vocabulary_rows(model)
    if checkpointing is Checkpointing.FULL:
        return 96 * layers * hidden**2 + 16 * layers * seq_len * hidden + logits
    scores = 16 if checkpointing is Checkpointing.SELECTIVE else 12
    return 72 * layers * hidden**2 + scores * layers * seq_len * hidden + logits


def bigscience_code(model: Transformer, seq_len: int, checkpointing: Checkpointing) -> int:
    """What BigScience's Megatron-DeepSpeed printed as ``TFLOPs`` while it trained BLOOM.

    ``24 k L h^2 (1 + s/6h + V/16Lh)`` with k passes, 32 in place of 24 for a gated MLP. The logits are scaled by k too,
    so that with 3 passes they count for three quarters of what they cost.
    """
    layers, hidden = model.layers, model.hidden
    coefficient = 32 if model.mlp_matrices == GATED_MATRICES else 24
    sixteenths = 48 * layers * hidden**2 + 8 * layers * seq_len * hidden + 3 * hidden * vocabulary_rows(model)
    return bigscience_passes(checkpointing) * coefficient * sixteenths // 48


def megatron_core(model: Transformer, seq_len: int) -> int:
    """What Megatron-LM prints as ``throughput per GPU`` since 2025-03-06: half of the attention matrix.

    Counts grouped queries, gates, experts (top-k, no router), latent attention with its norms, multi-token-prediction
    modules and the padded vocabulary; never recomputation. Windows, compressed attention and recurrent states count as
    in Megatron-Bridge since container 26.06 (067f987, src/megatron/bridge/training/utils/flop_utils.py).
    """
    return _megatron_products(model) + attention_matrix(model, seq_len, _CAUSAL)


def megatron_bridge_before_26_06(model: Transformer, seq_len: int) -> int:
    """Windows count as attention over the whole sequence, and of gates only SwiGLU's as a third matrix."""
    counted = model if model.is_swiglu else model._replace(mlp_matrices=PLAIN_MATRICES)
    return _megatron_products(counted) + attention_matrix(model, seq_len, _CAUSAL._replace(windows=False))


def megatron_whole_attention(model: Transformer, seq_len: int) -> int:
    """What Megatron-LM printed before 2025-03-06: the same products and the full attention matrix."""
    return _megatron_products(model) + attention_matrix(model, seq_len, _WHOLE)


def _megatron_products(model: Transformer) -> int:
    experts, modules = model.experts, model.mtp_layers
    # No supported mixture of experts has a dense last layer.
    mlp = expert_mlp_weights(model, experts.active) - router_weights(model) if experts else dense_mlp_weights(model)
    products = (
        layer_weights(model, experts.active if experts else 0)
        - model.expert_layers * router_weights(model)
        + modules * (attention_weights(model) + mlp)
        + model.hidden * vocabulary_rows(model) * (modules + 1)
    )
    if model.latent:
        products += (model.layers + modules) * ((model.latent.q_rank or 0) + model.latent.kv_rank)
    if not model.without_mlp:  # a module of a hybrid joins its two inputs without counted products
        products += modules * (3 * model.hidden + 2 * model.hidden**2)
    for mixer in model.mixers:
        if mixer.kind is Mixing.MAMBA:  # taken as twice as wide as the model, and its convolution left out
            missing = 3 * model.hidden * (2 * model.hidden - mixer.width) - mixer.convolution
            products += mixer.layers * missing
    return trained_products(model, products)


def torchtitan(model: Transformer, seq_len: int) -> int:
    """What torchtitan prints as ``tflops``: parameters of matrix products and the full attention matrix.

    The embedding table is left out, also where it is tied: it does the work of the output layer then, which is not
    counted. Norms and the router are counted, sliding windows and recurrent states are not looked at. The same since
    0c6ca90 (2024-04-26), before all parameters counted.
    """
    parameters = active_parameters(model) - embedding_parameters(model) - position_parameters(model)
    return trained_products(model, parameters) + attention_matrix(model, seq_len, _WHOLE)


def torchtitan_with_tied_table(model: Transformer, seq_len: int) -> int:
    """What torchtitan's main branch prints since 2026-05-08: a tied table counts, as the output layer."""
    return palm(model, seq_len) if model.tied else torchtitan(model, seq_len)


def torchtitan_with_windows(model: Transformer, seq_len: int) -> int:
    """What torchtitan's main branch prints since 2026-09: also windows, delta rules and prediction modules' logits."""
    parameters = active_parameters(model) - position_parameters(model)
    # A module has logits, too, and projects each of the residual streams.
    parameters += model.mtp_layers * (embedding_parameters(model) + (model.streams - 1) * model.hidden**2)
    if not model.tied:
        parameters -= embedding_parameters(model)
    return trained_products(model, parameters) + attention_matrix(model, seq_len, _WINDOWED)


def palm(model: Transformer, seq_len: int) -> int:
    """``6N + 12 L H Q T`` with every parameter that a token uses, the embedding table too: the common reading of N."""
    return trained_products(model, active_parameters(model)) + attention_matrix(model, seq_len, _WHOLE)


class _Counted(NamedTuple):
    """What of mixing tokens counts: half of the matrix, windows, and operations a pass and element of each state."""

    causal: bool
    windows: bool
    states: Mapping[Mixing, int]


#: Operations for an element of a state in a forward pass: the scan of Mamba-2, and four products of the delta rule.
_CAUSAL = _Counted(causal=True, windows=True, states={Mixing.MAMBA: 7, Mixing.DELTA: 4 * FORWARD})
_WHOLE = _Counted(causal=False, windows=False, states={})
_WINDOWED = _Counted(causal=False, windows=True, states={Mixing.DELTA: 3 * FORWARD})


def trained_products(model: Transformer, products: int) -> int:
    """Operations of products with weights: each has a forward pass and a gradient of its inputs.

    A gradient of the weights comes for those that are trained.
    """
    frozen = round(FORWARD * products * (1 - model.trained))
    return FORWARD_AND_BACKWARD * products - frozen


def scores_and_values(model: Transformer, seq_len: int) -> int:
    """The full attention matrix, forward and backward: queries by keys, and its product with the values."""
    return attention_matrix(model, seq_len, _WHOLE)


def attention_matrix(model: Transformer, seq_len: int, counted: _Counted) -> int:
    """Operations for a token beside its products with weights, forward and backward, over all layers.

    A prediction module attends as the layers with attention over the whole sequence, or as the first other kind.
    """
    half = 2 if counted.causal else 1
    in_full = model.full_layers or not model.mixers
    layers = model.full_layers + (model.mtp_layers if in_full else 0)
    operations = FORWARD_AND_BACKWARD * layers * (model.query_dim + model.value_dim) * seq_len // half
    for number, mixer in enumerate(model.mixers):
        modules = 0 if in_full or number else model.mtp_layers
        operations += (mixer.layers + modules) * _layer_mixing(model, mixer, seq_len, counted)
    return operations


def _layer_mixing(model: Transformer, mixer: Mixer, seq_len: int, counted: _Counted) -> int:
    """Operations for a token in one layer of a kind, forward and backward, beside its products with weights."""
    width = 2 * model.hidden if mixer.kind is Mixing.MAMBA else mixer.width  # as Megatron takes it
    states = FORWARD_AND_BACKWARD // FORWARD * counted.states.get(mixer.kind, 0) * width * mixer.state
    scores = FORWARD_AND_BACKWARD * mixer.indexer * (seq_len // mixer.ratio) if mixer.ratio else 0
    met = _keys_met(mixer, seq_len, counted)
    return states + scores + round(FORWARD_AND_BACKWARD * (model.query_dim + model.value_dim) * met)


def _keys_met(mixer: Mixer, seq_len: int, counted: _Counted) -> float:
    """Keys that a query meets in a layer of a kind, the mean over a sequence."""
    half = 2 if counted.causal else 1
    window = min(mixer.window, seq_len)
    match mixer.kind:
        case Mixing.WINDOW | Mixing.CHUNK if not counted.windows:
            return seq_len / half
        case Mixing.WINDOW if counted.causal and window < seq_len:
            return window - window * (window - 1) / (2 * seq_len)
        case Mixing.WINDOW | Mixing.CHUNK:
            return window / half
        case Mixing.COMPRESSED:
            compressed = seq_len // mixer.ratio if mixer.ratio else 0
            if not mixer.top_k:
                return window + compressed / half
            chosen = min(compressed, mixer.top_k)
            return window + chosen * (1 - chosen * mixer.ratio / (2 * seq_len) if counted.causal else 1)
    return 0


def recomputed_scores(model: Transformer, seq_len: int) -> int:
    """The full attention matrix once more, forward only."""
    return scores_and_values(model, seq_len) // 3


def recomputed_products(model: Transformer) -> int:
    """The layers' matrix products once more, forward only; the output layer is never recomputed."""
    routed = model.experts.active if model.experts else 0
    return FORWARD * layer_weights(model, routed)


def vocabulary_rows(model: Transformer, tensor_parallel: int = 1) -> int:
    """Rows of the output layer as Megatron-LM pads them, unless the padded number is known."""
    if model.padded_vocabulary is not None:
        return model.padded_vocabulary
    multiple = MEGATRON_VOCABULARY_MULTIPLE * tensor_parallel
    return -(-model.vocabulary // multiple) * multiple
