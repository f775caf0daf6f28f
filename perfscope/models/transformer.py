"""The dimensions of a decoder-only transformer; ``parameter_counts`` counts the parameters that follow from them."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from perfscope.errors import UsageError

#: Matrices of an MLP: up and down, and a gate where it is gated (SwiGLU, GeGLU).
PLAIN_MATRICES = 2
GATED_MATRICES = PLAIN_MATRICES + 1


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434); without ``q_rank`` queries are not compressed."""

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


class Experts(NamedTuple):
    """A mixture of experts in place of some layers' MLP.

    ``routed`` and ``active`` (top-k) are experts of a layer; ``ffn`` is of one routed expert, ``shared_ffn`` of all
    shared ones together. ``latent`` is the width of routed experts' inputs where it is not the hidden size (LatentMoE).
    ``vectors`` are biases of one routed expert, ``layer_vectors`` those of the router and shared experts.
    """

    routed: int
    active: int
    ffn: int
    shared_ffn: int
    layers: int
    vectors: int = 0
    layer_vectors: int = 0
    latent: int | None = None


class Mixing(StrEnum):
    """How a layer mixes tokens where it has no attention over all earlier tokens."""

    WINDOW = "a sliding window"
    CHUNK = "attention in chunks"
    COMPRESSED = "compressed attention"
    DELTA = "a gated delta rule"
    MAMBA = "Mamba-2"
    NONE = "an MLP alone"


class Mixer(NamedTuple):
    """The layers that mix tokens in one way, beside those with attention over the whole sequence.

    ``weights`` of matrices and convolutions are of one layer's mixing; ``vectors`` are all its norms and biases.
    ``window`` is in tokens. ``ratio`` tokens share a compressed key, none where that is 0; a query meets ``top_k`` of
    these keys, or all of them, found by scores of ``indexer`` dimensions. A recurrent state has ``width`` x ``state``
    elements, behind convolutions with ``convolution`` weights.
    """

    kind: Mixing
    layers: int
    weights: int
    vectors: int
    window: int = 0
    ratio: int = 0
    top_k: int = 0
    indexer: int = 0
    width: int = 0
    state: int = 0
    convolution: int = 0


class Transformer(NamedTuple):
    """A decoder-only transformer.

    ``ffn`` is of a dense MLP, with 3 matrices where it has a gate. ``positions`` are learned, 0 for rotary or ALiBi.
    ``layer_vectors`` and ``other_vectors`` are norms and biases in a layer (without routed experts) and outside of
    layers. ``mtp_layers`` are multi-token-prediction modules (DeepSeek-V3, arXiv 2412.19437), each with one layer.
    ``context`` is the longest sequence that its authors state. ``mixers`` are the layers without attention over the
    whole sequence, ``without_mlp`` those with neither MLP nor experts. ``projections`` are the weights of one layer's
    attention where heads do not imply them. ``streams`` are residual streams (hyper-connections of DeepSeek-V4).
    ``trained`` is the share of the weights that have gradients.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    mlp_matrices: int
    vocabulary: int
    tied: bool
    positions: int = 0
    layer_vectors: int = 0
    other_vectors: int = 0
    latent: Latent | None = None
    experts: Experts | None = None
    mtp_layers: int = 0
    context: int | None = None
    padded_vocabulary: int | None = None
    mixers: tuple[Mixer, ...] = ()
    without_mlp: int = 0
    projections: int | None = None
    is_swiglu: bool = True
    streams: int = 1
    trained: float = 1.0

    @property
    def query_dim(self) -> int:
        """Dimensions of all query heads together, as they enter the attention scores."""
        if self.latent:
            return self.heads * (self.latent.nope_dim + self.latent.rope_dim)
        return self.heads * self.head_dim

    @property
    def value_dim(self) -> int:
        """Dimensions of all heads' outputs together."""
        return self.heads * (self.latent.value_dim if self.latent else self.head_dim)

    @property
    def expert_layers(self) -> int:
        """Layers with experts."""
        return self.experts.layers if self.experts else 0

    @property
    def full_layers(self) -> int:
        """Layers with attention over the whole sequence."""
        return self.layers - sum(mixer.layers for mixer in self.mixers)

    @property
    def dense_layers(self) -> int:
        """Layers with one dense MLP."""
        return self.layers - self.expert_layers - self.without_mlp

    @property
    def window(self) -> int | None:
        """Tokens of the sliding window or chunk; absent without one."""
        windows = [mixer.window for mixer in self.mixers if mixer.window]
        return min(windows, default=None)

    @property
    def is_plain_gpt(self) -> bool:
        """Whether it has the shape that the Megatron papers assume: multi-head attention and an MLP of 4h."""
        return (
            self.kv_heads == self.heads
            and self.query_dim == self.hidden
            and self.ffn == 4 * self.hidden
            and self.mlp_matrices == PLAIN_MATRICES
            and not (self.experts or self.latent or self.mtp_layers or self.mixers)
        )


def require_consistent(model: Transformer) -> Transformer:
    """Return the model if its dimensions are possible together; else UsageError."""
    for dimension in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary"):
        if getattr(model, dimension) < 1:
            raise UsageError(f"{model.name}: {dimension} must be at least 1, not {getattr(model, dimension)}")
    if model.heads % model.kv_heads:
        raise UsageError(f"{model.name}: {model.heads} heads do not divide into {model.kv_heads} key-value heads")
    if model.mtp_layers < 0:
        raise UsageError(f"{model.name}: {model.mtp_layers} multi-token-prediction layers are not possible")
    if model.padded_vocabulary is not None and model.padded_vocabulary < model.vocabulary:
        raise UsageError(
            f"{model.name}: a padded vocabulary of {model.padded_vocabulary} is less than {model.vocabulary} tokens"
        )
    if model.full_layers < 0 or any(mixer.layers < 0 or mixer.window < 0 for mixer in model.mixers):
        raise UsageError(f"{model.name}: its kinds of layers are not {model.layers} layers")
    _check_mlp(model)
    return model


def _check_mlp(model: Transformer) -> None:
    if model.mlp_matrices not in (PLAIN_MATRICES, GATED_MATRICES):
        raise AssertionError(f"an MLP has 2 or 3 matrices, not {model.mlp_matrices}")
    experts = model.experts
    if experts is None:
        if model.ffn < 1 and model.dense_layers:
            raise UsageError(f"{model.name}: ffn must be at least 1, not {model.ffn}")
        return
    if not 1 <= experts.active <= experts.routed:
        raise UsageError(f"{model.name}: top-k cannot be {experts.active} of {experts.routed} experts")
    if not 1 <= experts.layers <= model.layers:
        raise UsageError(f"{model.name}: {experts.layers} of {model.layers} layers cannot have experts")
    if experts.ffn < 1 or experts.shared_ffn < 0:
        raise UsageError(f"{model.name}: an expert needs a hidden size of at least 1")


class ModelDescription(NamedTuple):
    """The dimensions of a model, where they come from as a phrase, and how its authors trained it.

    ``seq_len`` and ``mtp_layers`` are of pre-training; the transformer counts prediction modules only where asked.
    ``published`` says in words which operations per token are published, where publishers disagree.
    """

    transformer: Transformer
    origin: str
    notes: tuple[str, ...] = ()
    seq_len: int | None = None
    mtp_layers: int = 0
    published: tuple[str, ...] = ()
