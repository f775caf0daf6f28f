"""Typed dimensions as a model, and whether they and a typed size agree with a model from another source."""

from __future__ import annotations

from perfscope.commands.options.dimensions import Dimensions
from perfscope.commands.options.groups import spell_option
from perfscope.constants import GIB, GIGA
from perfscope.errors import UsageError
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import (
    GATED_MATRICES,
    PLAIN_MATRICES,
    Experts,
    ModelDescription,
    Transformer,
    require_consistent,
)
from perfscope.units import format_parameters

#: A size is written with one or two figures, so a model within this share of it is that size.
_SIZE_TOLERANCE = 0.05
_GIBI_TOLERANCE = 0.015
_GIBI = GIB / GIGA
#: The name of a model that is made from its dimensions.
UNNAMED = "the model"
_USUAL_HEAD_DIM = 64
_MAY_BE_ZERO = ("shared_ffn", "dense_layers", "mtp_layers")
_NEED_EXPERTS = ("top_k", "expert_ffn", "shared_ffn", "dense_layers")


def describe_dimensions(dimensions: Dimensions, seq_len: int) -> ModelDescription:
    """Make a model of typed dimensions.

    Without a gate it is a GPT: biases, LayerNorm, learned positions, tied embeddings. With a gate it is a Llama: no
    biases, RMSNorm, rotary positions, untied embeddings.

    Raises:
        UsageError: A dimension is missing, not positive, or contradicts another.
    """
    layers, hidden, vocab = dimensions.layers, dimensions.hidden, dimensions.vocab
    if layers is None or hidden is None or vocab is None:
        raise UsageError(f"{' and '.join(dimensions.missing)} of the model missing: its operations depend on it")
    for name, value in dimensions.typed.items():
        if not isinstance(value, bool) and value < (0 if name in _MAY_BE_ZERO else 1):
            raise UsageError(f"{spell_option(name)} must be at least 1, not {value}")
    notes = () if dimensions.heads else ("--heads is not given: multi-head attention costs the same for any number",)
    heads, head_dim = _choose_heads(dimensions, hidden)
    gated = bool(dimensions.gated)
    kv_heads = dimensions.kv_heads or heads
    ffn = dimensions.ffn or 4 * hidden
    biases = 0 if gated else heads * head_dim + 2 * kv_heads * head_dim + hidden + ffn + hidden
    norm = hidden if gated else 2 * hidden
    model = Transformer(
        name=UNNAMED,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=ffn,
        mlp_matrices=GATED_MATRICES if gated else PLAIN_MATRICES,
        vocabulary=vocab,
        tied=not gated if dimensions.tied is None else dimensions.tied,
        positions=0 if gated else seq_len,
        layer_vectors=2 * norm + biases,
        other_vectors=norm,
        experts=_make_experts(dimensions, layers, ffn),
        mtp_layers=dimensions.mtp_layers or 0,
        padded_vocabulary=dimensions.padded_vocab,
    )
    return ModelDescription(require_consistent(model), "the dimensions given", notes)


def _choose_heads(dimensions: Dimensions, hidden: int) -> tuple[int, int]:
    """The number of heads and the dimensions of each."""
    heads = dimensions.heads
    if heads is None:
        if dimensions.kv_heads is not None or dimensions.head_dim is not None:
            raise UsageError("--heads is missing beside --kv-heads or --head-dim")
        heads = hidden // _USUAL_HEAD_DIM if hidden % _USUAL_HEAD_DIM == 0 else 1
        return heads, hidden // heads
    if dimensions.head_dim is not None:
        return heads, dimensions.head_dim
    if hidden % heads:
        raise UsageError(f"a hidden size of {hidden} does not divide into {heads} heads")
    return heads, hidden // heads


def _make_experts(dimensions: Dimensions, layers: int, ffn: int) -> Experts | None:
    if dimensions.experts is None:
        for name in _NEED_EXPERTS:
            if name in dimensions.typed:
                raise UsageError(f"{spell_option(name)} is given without --experts")
        return None
    if dimensions.top_k is None:
        raise UsageError("--top-k is missing: the operations depend on the experts per token")
    return Experts(
        routed=dimensions.experts,
        active=dimensions.top_k,
        ffn=dimensions.expert_ffn or ffn,
        shared_ffn=dimensions.shared_ffn or 0,
        layers=layers - (dimensions.dense_layers or 0),
    )


def complete_description(description: ModelDescription, dimensions: Dimensions) -> ModelDescription:
    """Add to a model the typed dimensions that depend on how it is trained, and check that the others are its own.

    Raises:
        UsageError: A typed dimension contradicts the model.
    """
    model = description.transformer
    own_dimensions = _list_dimensions(model)
    for name, value in dimensions.typed.items():
        if name in own_dimensions and own_dimensions[name] != value:
            raise UsageError(
                f"{spell_option(name)} {value} contradicts {model.name}, which has {own_dimensions[name] or 'none'}",
                hint="give either the model or its dimensions",
            )
    completed = model._replace(
        padded_vocabulary=dimensions.padded_vocab or model.padded_vocabulary,
        mtp_layers=model.mtp_layers if dimensions.mtp_layers is None else dimensions.mtp_layers,
    )
    parameters = None if dimensions.typed else description.parameters
    return description._replace(transformer=require_consistent(completed), parameters=parameters)


def _list_dimensions(model: Transformer) -> dict[str, int | bool | None]:
    """What the dimensions that are fixed by a model's architecture would have been typed as."""
    experts = model.experts
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "heads": model.heads,
        "kv_heads": model.kv_heads,
        "head_dim": model.head_dim,
        "ffn": model.ffn,
        "vocab": model.vocabulary,
        "gated": model.mlp_matrices == GATED_MATRICES,
        "tied": model.tied,
        "experts": experts.routed if experts else None,
        "top_k": experts.active if experts else None,
        "expert_ffn": experts.ffn if experts else None,
        "shared_ffn": experts.shared_ffn if experts else None,
        "dense_layers": model.layers - model.expert_layers if experts else None,
    }


def check_size(parameters: int, model: Transformer) -> None:
    """Check a typed size against the exact number of parameters.

    Raises:
        UsageError: They are more than the rounding of a size apart.
    """
    exact = total_parameters(model)
    if abs(parameters / exact - 1) <= _SIZE_TOLERANCE:
        return
    problem = (
        f"a size of {format_parameters(parameters)} contradicts {model.name}, "
        f"which has {format_parameters(exact)} parameters"
    )
    if abs(parameters * _GIBI / exact - 1) <= _GIBI_TOLERANCE:
        raise UsageError(
            problem,
            hint=f"{format_parameters(parameters)} counted in G of 2**30 is "
            f"{format_parameters(int(parameters * _GIBI))} in B of 10**9: was the size computed in the wrong unit?",
        )
    raise UsageError(problem, hint="give either the size or the model")
