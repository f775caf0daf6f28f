"""Layers of other kinds than attention over the whole sequence, from the names and sizes that configurations state."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from perfscope.models.parameter_counts import attention_weights
from perfscope.models.transformer import Mixer, Mixing, Transformer

#: Letters of Nemotron-H's ``hybrid_override_pattern`` and Megatron's ``--hybrid-layer-pattern``.
LETTERS: Mapping[str, str] = {"M": "mamba", "*": "full_attention", "-": "mlp", "E": "moe"}
#: Layers that have an MLP or experts and nothing else.
ALONE = ("mlp", "moe")


class Recurrence(NamedTuple):
    """Heads of a Mamba-2 layer or a gated delta rule: states are ``heads`` x ``head_dim`` x ``state``.

    ``groups`` share their keys (B and C of Mamba-2); ``kernel`` is of the convolution before it.
    """

    heads: int
    head_dim: int
    groups: int
    state: int
    kernel: int
    has_bias: bool = True


def windowed(model: Transformer, layers: int, window: int, kind: Mixing = Mixing.WINDOW) -> Mixer:
    """Layers with attention like the others', limited to a window or to chunks."""
    return Mixer(kind, layers, attention_weights(model), model.layer_vectors, window=window)


def alone(model: Transformer, layers: int) -> Mixer:
    """Layers with one norm and an MLP or experts."""
    return Mixer(Mixing.NONE, layers, 0, model.hidden)


def mamba(model: Transformer, layers: int, sizes: Recurrence) -> Mixer:
    """Mamba-2 (arXiv 2405.21060) as in Nemotron-H: one norm, no MLP."""
    width, keys = sizes.heads * sizes.head_dim, 2 * sizes.groups * sizes.state
    convolution = (width + keys) * sizes.kernel
    inputs = model.hidden * (2 * width + keys + sizes.heads)
    # The norms before and within it, A, D and the bias of the time step.
    vectors = model.hidden + width + 3 * sizes.heads + (width + keys if sizes.has_bias else 0)
    weights = inputs + convolution + width * model.hidden
    return Mixer(Mixing.MAMBA, layers, weights, vectors, width=width, state=sizes.state, convolution=convolution)


def gated_delta(model: Transformer, layers: int, sizes: Recurrence) -> Mixer:
    """Gated DeltaNet (arXiv 2412.06464) as in Qwen3-Next: ``groups`` heads of keys with ``state`` dimensions."""
    width, keys = sizes.heads * sizes.head_dim, 2 * sizes.groups * sizes.state
    convolution = (width + keys) * sizes.kernel
    inputs = model.hidden * (2 * width + keys + 2 * sizes.heads)
    vectors = 2 * model.hidden + 2 * sizes.heads + sizes.head_dim
    weights = inputs + convolution + width * model.hidden
    return Mixer(Mixing.DELTA, layers, weights, vectors, width=width, state=sizes.state, convolution=convolution)


class Compression(NamedTuple):
    """Sizes of DeepSeek-V4's attention: no compressed keys for a ratio of 0, an indexer where ``top_k`` are chosen."""

    ratio: int
    window: int
    top_k: int = 0
    index_heads: int = 0
    index_dim: int = 0
    q_rank: int = 0


def compressed(model: Transformer, layers: int, sizes: Compression) -> Mixer:
    """Compressed attention of DeepSeek-V4 beside a sliding window: with a choice of keys (CSA), or all of them (HCA).

    Source: huggingface/transformers, models/deepseek_v4/modeling_deepseek_v4.py.
    """
    overlap = (2 if sizes.top_k else 1) if sizes.ratio else 0
    weights = 2 * model.hidden * overlap * model.head_dim
    vectors = sizes.ratio * overlap * model.head_dim + (model.head_dim if overlap else 0)
    if sizes.top_k:
        weights += 2 * model.hidden * overlap * sizes.index_dim
        weights += sizes.index_heads * (sizes.q_rank * sizes.index_dim + model.hidden)
        vectors += sizes.ratio * overlap * sizes.index_dim + sizes.index_dim
    return Mixer(
        Mixing.COMPRESSED,
        layers,
        attention_weights(model) + weights,
        model.layer_vectors + vectors,
        window=sizes.window,
        ratio=sizes.ratio,
        top_k=sizes.top_k,
        indexer=sizes.index_heads * sizes.index_dim,
    )


def with_kinds(
    model: Transformer, counts: Mapping[str, int], makers: Mapping[str, Callable[[Transformer, int], Mixer]]
) -> Transformer:
    """The model with ``counts`` layers of each kind; ``makers`` make all but attention over the whole sequence."""
    mixers = tuple(make(model, counts[kind]) for kind, make in makers.items() if counts.get(kind))
    hybrid = any(counts.get(kind) for kind in ALONE)
    bare = model.layers - sum(counts.get(kind, 0) for kind in ALONE) if hybrid else 0
    return model._replace(mixers=mixers, without_mlp=bare)
