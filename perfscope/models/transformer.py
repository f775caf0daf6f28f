"""The dimensions of a decoder-only transformer, and how many parameters follow from them.

A parameter is counted once, where it is stored: tied embeddings are one matrix, every expert of a mixture counts in the
total, and only the experts that a token visits count in the active parameters. Weights of matrix products are told from
the embedding table (a lookup, no product) and from norms and biases (vectors, no product).
"""

from __future__ import annotations

from typing import NamedTuple

from perfscope.errors import UsageError

#: Matrices of an MLP: up and down, and a gate where it is gated (SwiGLU, GeGLU).
PLAIN_MATRICES = 2
GATED_MATRICES = 3


class Latent(NamedTuple):
    """Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434).

    Attributes:
        q_rank: Rank that queries are compressed to; absent where they are not compressed.
        kv_rank: Rank that keys and values are compressed to.
        nope_dim: Dimensions of a query or key head without position.
        rope_dim: Dimensions of it that carry the position.
        value_dim: Dimensions of a value head.
    """

    q_rank: int | None
    kv_rank: int
    nope_dim: int
    rope_dim: int
    value_dim: int


class Experts(NamedTuple):
    """A mixture of experts in place of some layers' MLP.

    Attributes:
        routed: Routed experts in a layer.
        active: Routed experts that a token visits (top-k).
        ffn: Hidden size of one routed expert.
        shared_ffn: Hidden size of all shared experts together; 0 without them.
        layers: How many layers have experts; the others have a dense MLP.
        vectors: Biases of one routed expert.
        layer_vectors: Vectors of one layer's router and shared experts.
    """

    routed: int
    active: int
    ffn: int
    shared_ffn: int
    layers: int
    vectors: int = 0
    layer_vectors: int = 0


class Transformer(NamedTuple):
    """A decoder-only transformer.

    Attributes:
        name: What it is called.
        layers: Transformer layers, without multi-token-prediction modules.
        hidden: Hidden size.
        heads: Query heads.
        kv_heads: Key and value heads; fewer than ``heads`` with grouped queries.
        head_dim: Dimensions of a head.
        ffn: Hidden size of a dense MLP.
        mlp_matrices: 3 with a gate, else 2.
        vocabulary: Rows of the embedding table.
        tied: Whether the output layer is the embedding table.
        positions: Rows of a learned position table; 0 for rotary or ALiBi.
        layer_vectors: Norms and biases of one layer, biases of routed experts left out.
        other_vectors: Norms and biases outside the layers.
        latent: Latent attention in place of the ordinary one.
        experts: Experts in place of some dense MLPs.
        mtp_layers: Modules that predict further tokens (DeepSeek-V3, arXiv 2412.19437), each with one layer.
        window: Tokens that a sliding window sees; absent where attention sees the whole sequence.
        context: The longest sequence by its makers; absent where unknown.
        padded_vocabulary: Rows that the training framework pads the table to; absent where unknown.
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
    window: int | None = None
    context: int | None = None
    padded_vocabulary: int | None = None

    @property
    def query_dim(self) -> int:
        """Dimensions of all query heads together, as they enter the scores."""
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
    def is_plain_gpt(self) -> bool:
        """Whether it has the shape that the Megatron papers assume: multi-head attention and an MLP of 4h."""
        return (
            self.kv_heads == self.heads
            and self.query_dim == self.hidden
            and self.ffn == 4 * self.hidden
            and self.mlp_matrices == PLAIN_MATRICES
            and not (self.experts or self.latent or self.mtp_layers)
        )


def checked(model: Transformer) -> Transformer:
    """Return a model whose dimensions are possible.

    Raises:
        UsageError: They contradict each other.
    """
    for what in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocabulary"):
        if getattr(model, what) < 1:
            raise UsageError(f"{model.name}: {what} must be at least 1, not {getattr(model, what)}")
    if model.heads % model.kv_heads:
        raise UsageError(f"{model.name}: {model.heads} heads do not divide into {model.kv_heads} key-value heads")
    if model.mtp_layers < 0:
        raise UsageError(f"{model.name}: {model.mtp_layers} multi-token-prediction layers are not possible")
    if model.padded_vocabulary is not None and model.padded_vocabulary < model.vocabulary:
        raise UsageError(
            f"{model.name}: a padded vocabulary of {model.padded_vocabulary} is less than {model.vocabulary} tokens"
        )
    _check_mlp(model)
    return model


def _check_mlp(model: Transformer) -> None:
    if model.mlp_matrices not in (PLAIN_MATRICES, GATED_MATRICES):
        raise AssertionError(f"an MLP has 2 or 3 matrices, not {model.mlp_matrices}")
    experts = model.experts
    if experts is None:
        if model.ffn < 1:
            raise UsageError(f"{model.name}: ffn must be at least 1, not {model.ffn}")
        return
    if not 1 <= experts.active <= experts.routed:
        raise UsageError(f"{model.name}: a token cannot visit {experts.active} of {experts.routed} experts")
    if not 1 <= experts.layers <= model.layers:
        raise UsageError(f"{model.name}: {experts.layers} of {model.layers} layers cannot have experts")
    if experts.ffn < 1 or experts.shared_ffn < 0:
        raise UsageError(f"{model.name}: an expert needs a hidden size of at least 1")


def attention_weights(model: Transformer) -> int:
    """Weights of one layer's attention: queries, keys, values and the output projection."""
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
    """Weights of one layer's mixture: so many routed experts, the shared ones and the router."""
    experts = model.experts
    assert experts is not None
    ffn = routed * experts.ffn + experts.shared_ffn
    return model.mlp_matrices * model.hidden * ffn + model.hidden * experts.routed


def layer_weights(model: Transformer, routed: int) -> int:
    """Weights of all layers with so many routed experts of each mixture; norms and biases left out."""
    dense_layers = model.layers - model.expert_layers
    weights = model.layers * attention_weights(model) + dense_layers * dense_mlp_weights(model)
    if model.experts:
        weights += model.expert_layers * expert_mlp_weights(model, routed)
    return weights


def _expert_vectors(model: Transformer, routed: int) -> int:
    """Vectors of one layer's mixture."""
    return model.experts.layer_vectors + routed * model.experts.vectors if model.experts else 0


def _mtp_parameters(model: Transformer, routed: int) -> int:
    """Parameters of the modules that predict further tokens; the embedding and the output layer are the model's own.

    Each has a projection of two hidden states to one, three norms, and a layer as the model's last.
    """
    mlp = expert_mlp_weights(model, routed) if model.experts else dense_mlp_weights(model)
    layer = attention_weights(model) + mlp + model.layer_vectors + _expert_vectors(model, routed)
    return model.mtp_layers * (layer + 2 * model.hidden**2 + 3 * model.hidden)


def embedding_parameters(model: Transformer) -> int:
    """Parameters of the embedding table."""
    return model.vocabulary * model.hidden


def position_parameters(model: Transformer) -> int:
    """Parameters of the learned position table."""
    return model.positions * model.hidden


def _parameters(model: Transformer, routed: int) -> int:
    tables = embedding_parameters(model) * (1 if model.tied else 2) + position_parameters(model)
    vectors = model.layers * model.layer_vectors + model.expert_layers * _expert_vectors(model, routed)
    return layer_weights(model, routed) + _mtp_parameters(model, routed) + tables + vectors + model.other_vectors


def total_parameters(model: Transformer) -> int:
    """All parameters that are stored, every expert counted."""
    return _parameters(model, model.experts.routed if model.experts else 0)


def active_parameters(model: Transformer) -> int:
    """Parameters that one token uses: of a mixture's routed experts the top-k; the embedding table whole."""
    return _parameters(model, model.experts.active if model.experts else 0)


def seed_formula(layers: int, hidden: int, vocabulary: int, seq_len: int) -> int:
    """Parameters of a GPT by ``l(12h^2 + 13h) + vh + sh + 2h``.

    Exact for GPT-2 and GPT-3 (MLP of 4h, biases everywhere, learned positions, tied embeddings) and for nothing else.
    Source: bigscience-workshop/bigscience, experiments/gpt2.md, "Magic scripts".
    """
    return layers * (12 * hidden**2 + 13 * hidden) + vocabulary * hidden + seq_len * hidden + 2 * hidden


class KnownModel(NamedTuple):
    """A model and where its dimensions come from.

    Attributes:
        model: The dimensions.
        origin: Where they were read, in words.
        notes: What was assumed or left out.
    """

    model: Transformer
    origin: str
    notes: tuple[str, ...] = ()
