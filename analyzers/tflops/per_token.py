"""Operations per token by the conventions that need the dimensions of the model."""

from __future__ import annotations

from perfscope.models.conventions import FORWARD, FORWARD_AND_BACKWARD, Checkpointing, bigscience_passes
from perfscope.models.parameter_counts import (
    active_parameters,
    attention_weights,
    embedding_parameters,
    layer_weights,
    position_parameters,
)
from perfscope.models.transformer import GATED_MATRICES, Transformer

#: Megatron-LM pads the vocabulary to a multiple of this for each tensor-parallel rank (--make-vocab-size-divisible-by).
MEGATRON_VOCABULARY_MULTIPLE = 128


def megatron_paper(model: Transformer, seq_len: int, checkpointing: Checkpointing) -> int:
    """The closed form for a GPT with an MLP of 4h and as many key-value heads as heads; other models are miscounted.

    With all activations recomputed ``96 L h^2 (1 + s/6h + V/16Lh)``, with none ``72 L h^2 (1 + s/6h + V/12Lh)``: logits
    are never recomputed. Selective recomputation repeats the attention scores, ``4 L s h`` more than none.
    Sources: Narayanan et al. 2021, arXiv 2104.04473, equation 3; Korthikanti et al. 2022, arXiv 2205.05198, section 5.
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
    Source: bigscience-workshop/Megatron-DeepSpeed, megatron/training.py, ``training_log``.
    """
    layers, hidden = model.layers, model.hidden
    coefficient = 32 if model.mlp_matrices == GATED_MATRICES else 24
    sixteenths = 48 * layers * hidden**2 + 8 * layers * seq_len * hidden + 3 * hidden * vocabulary_rows(model)
    return bigscience_passes(checkpointing) * coefficient * sixteenths // 48


def megatron_core(model: Transformer, seq_len: int) -> int:
    """What Megatron-LM prints as ``throughput per GPU`` since 2025-03-06: half of the attention matrix.

    Counts grouped queries, gates, experts (top-k, no router), latent attention with its norms, multi-token-prediction
    modules and the padded vocabulary; never recomputation.
    Source: NVIDIA/Megatron-LM d98e8a6, megatron/training/training.py, ``num_floating_point_operations``.
    """
    return _megatron_products(model) + scores_and_values(model, seq_len) // 2


def megatron_whole_attention(model: Transformer, seq_len: int) -> int:
    """What Megatron-LM printed before 2025-03-06: the same products and the full attention matrix.

    Source: NVIDIA/Megatron-LM, megatron/training/training.py before 8873b55 ("Fixes in number of floating-point ...").
    """
    return _megatron_products(model) + scores_and_values(model, seq_len)


def _megatron_products(model: Transformer) -> int:
    experts, modules = model.experts, model.mtp_layers
    last_has_experts = experts is not None  # no supported mixture of experts has a dense last layer
    dense_layers = model.layers - model.expert_layers + (0 if last_has_experts else modules)
    ffn = model.ffn * dense_layers
    if experts:
        ffn += (experts.active * experts.ffn + experts.shared_ffn) * (experts.layers + modules)
    attention = attention_weights(model)
    if model.latent:
        attention += (model.latent.q_rank or 0) + model.latent.kv_rank
    products = (
        model.mlp_matrices * model.hidden * ffn
        + attention * (model.layers + modules)
        + modules * (3 * model.hidden + 2 * model.hidden**2)
        + model.hidden * vocabulary_rows(model) * (modules + 1)
    )
    return FORWARD_AND_BACKWARD * products


def torchtitan(model: Transformer, seq_len: int) -> int:
    """What torchtitan prints as ``tflops``: parameters of matrix products and the full attention matrix.

    The embedding table is left out, also where it is tied: it does the work of the output layer then, which is not
    counted. Norms and the router are counted, sliding windows are not looked at.
    Source: pytorch/torchtitan v0.2.2, torchtitan/models/utils.py, ``get_dense_model_nparams_and_flops`` and
    ``get_moe_model_nparams_and_flops``; the same since 0c6ca90 (2024-04-26). Before, all parameters counted.
    """
    parameters = active_parameters(model) - embedding_parameters(model) - position_parameters(model)
    return FORWARD_AND_BACKWARD * parameters + scores_and_values(model, seq_len)


def torchtitan_with_tied_table(model: Transformer, seq_len: int) -> int:
    """What torchtitan's main branch prints since 2026-05-08: a tied table counts, as the output layer.

    Source: pytorch/torchtitan b5bcd76, torchtitan/models/utils.py, ``get_dense_model_nparams_and_flops``.
    """
    return palm(model, seq_len) if model.tied else torchtitan(model, seq_len)


def palm(model: Transformer, seq_len: int) -> int:
    """``6N + 12 L H Q T`` with every parameter that a token uses, the embedding table too.

    Source: Chowdhery et al. 2022, arXiv 2204.02311, appendix B; N with embeddings is the common reading of it.
    """
    return FORWARD_AND_BACKWARD * active_parameters(model) + scores_and_values(model, seq_len)


def scores_and_values(model: Transformer, seq_len: int) -> int:
    """The full attention matrix, forward and backward: queries by keys, and its product with the values."""
    return FORWARD_AND_BACKWARD * (model.layers + model.mtp_layers) * (model.query_dim + model.value_dim) * seq_len


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
