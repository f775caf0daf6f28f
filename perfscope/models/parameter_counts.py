"""How many parameters follow from the dimensions of a transformer.

A parameter is counted once, where it is stored: tied embeddings are one matrix. Every expert of a mixture counts in the
total; only a token's top-k experts count in the active parameters.
"""

from __future__ import annotations

from functools import cache

from perfscope.models.transformer import Transformer

#: Sizes are written with one or two figures, so models that differ by a smaller share are of the same size.
SAME_SIZE = 0.05


@cache
def total_parameters(model: Transformer) -> int:
    """All parameters that are stored, every expert counted."""
    return _count_parameters(model, model.experts.routed if model.experts else 0)


def active_parameters(model: Transformer) -> int:
    """Parameters that one token uses: the top-k of a mixture's routed experts, and the whole embedding table."""
    return _count_parameters(model, model.experts.active if model.experts else 0)


def embedding_parameters(model: Transformer) -> int:
    """Parameters of the embedding table."""
    return model.vocabulary * model.hidden


def position_parameters(model: Transformer) -> int:
    """Parameters of the learned position table."""
    return model.positions * model.hidden


@cache
def layer_weights(model: Transformer, routed: int) -> int:
    """Weights of all layers with ``routed`` experts of each mixture; without norms and biases."""
    weights = model.full_layers * attention_weights(model) + model.dense_layers * dense_mlp_weights(model)
    weights += sum(mixer.layers * mixer.weights for mixer in model.mixers)
    if model.experts:
        weights += model.expert_layers * expert_mlp_weights(model, routed)
    return weights


def attention_weights(model: Transformer) -> int:
    """Weights of one layer's attention: queries, keys, values and the output projection."""
    if model.projections is not None:
        return model.projections
    latent = model.latent
    if latent is None:
        kv_dim = model.kv_heads * model.head_dim
        return model.hidden * (model.query_dim + 2 * kv_dim) + model.query_dim * model.hidden
    query = (
        model.hidden * model.query_dim if latent.q_rank is None else latent.q_rank * (model.hidden + model.query_dim)
    )
    keys_and_values = latent.kv_rank * (model.hidden + model.heads * (latent.nope_dim + latent.value_dim))
    return query + keys_and_values + model.hidden * latent.rope_dim + model.value_dim * model.hidden


def dense_mlp_weights(model: Transformer) -> int:
    """Weights of one dense MLP."""
    return model.mlp_matrices * model.hidden * model.ffn


def expert_mlp_weights(model: Transformer, routed: int) -> int:
    """Weights of one layer's mixture: ``routed`` experts, the shared experts and the router."""
    experts = model.experts
    assert experts is not None
    width = experts.latent or model.hidden
    latent = 2 * model.hidden * experts.latent if experts.latent else 0
    ffn = model.mlp_matrices * (width * routed * experts.ffn + model.hidden * experts.shared_ffn)
    return ffn + latent + router_weights(model)


def activated_width(model: Transformer) -> int:
    """The widths of the MLPs that a token passes, those of its experts too, added up over the layers."""
    width = model.ffn * model.dense_layers
    if model.experts:
        width += (model.experts.active * model.experts.ffn + model.experts.shared_ffn) * model.experts.layers
    return width


def expert_split(tensor: int, expert: int) -> int:
    """GPUs that a layer's experts are spread over, whole as in Megatron-Bridge (expert-tensor-parallel size 1).

    Expert-parallel ranks span those of tensor, context and data parallelism. Without them tensor parallelism splits
    each expert.
    """
    return expert if expert > 1 else tensor


def router_weights(model: Transformer) -> int:
    """Weights of one layer's router."""
    return model.hidden * model.experts.routed if model.experts else 0


def bigscience_parameters(layers: int, hidden: int, vocabulary: int, seq_len: int) -> int:
    """Parameters of a GPT by ``l(12h^2 + 13h) + vh + sh + 2h``.

    Exact for GPT-2 and GPT-3 (MLP of 4h, biases everywhere, learned positions, tied embeddings) and for nothing else.
    Source: bigscience-workshop/bigscience, experiments/gpt2.md, "Magic scripts".
    """
    return layers * (12 * hidden**2 + 13 * hidden) + vocabulary * hidden + seq_len * hidden + 2 * hidden


def _count_parameters(model: Transformer, routed: int) -> int:
    tables = embedding_parameters(model) * (1 if model.tied else 2) + position_parameters(model)
    vectors = model.full_layers * model.layer_vectors + sum(mixer.layers * mixer.vectors for mixer in model.mixers)
    vectors += model.expert_layers * _expert_vectors(model, routed)
    return layer_weights(model, routed) + _mtp_parameters(model, routed) + tables + vectors + model.other_vectors


def _mtp_parameters(model: Transformer, routed: int) -> int:
    """Parameters of the multi-token-prediction modules, which share the embedding and the output layer of the model.

    A module has a projection of two hidden states to one, three norms, and a layer like the model's last.
    """
    mlp = expert_mlp_weights(model, routed) if model.experts else dense_mlp_weights(model)
    layer = attention_weights(model) + mlp + model.layer_vectors + _expert_vectors(model, routed)
    return model.mtp_layers * (layer + 2 * model.hidden**2 + 3 * model.hidden + joining_parameters(model))


def joining_parameters(model: Transformer) -> int:
    """Parameters that join the residual streams to one, of the model and of each prediction module."""
    return model.streams * (model.streams * model.hidden + 1) + 1 if model.streams > 1 else 0


def _expert_vectors(model: Transformer, routed: int) -> int:
    return model.experts.layer_vectors + routed * model.experts.vectors if model.experts else 0
