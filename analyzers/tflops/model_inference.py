"""The dimensions of a transformer, inferred from the shapes of its parameters.

Layers are what repeats, the vocabulary is the longest embedding table, and every matrix of a layer is one product a
token; of experts only those that a token uses. Attention is as wide as what its output projection multiplies with. What
no shape shows is taken from the model's configuration: experts of a token, heads, parts of latent attention.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import gcd
from typing import NamedTuple

from perfscope.analyzers.tflops.operator_rules import MATRIX
from perfscope.errors import MissingInput
from perfscope.models.parameter_counts import attention_weights, total_parameters
from perfscope.models.transformer import PLAIN_MATRICES, Experts, Transformer
from perfscope.tables.model import StatedDimensions, Weight

#: Modules that compute attention, and in them the projection of all heads back to the hidden size.
_ATTENTION = re.compile("att", re.IGNORECASE)
_OUTPUT = re.compile(
    r"att.*\b(?:w?o|out|proj|dense|to_out|[oc]_proj|out_proj|out_lin|output_proj|linear_proj)\b|attn_out\b",
    re.IGNORECASE,
)
_ADAPTER = re.compile("lora", re.IGNORECASE)
_LATENT = re.compile("kv_a|kv_down|kv_lora", re.IGNORECASE)
_NO_ATTENTION = re.compile(r"linear_att|mamba|\bA_log\b|\bssm|rwkv|time_mix|delta_net", re.IGNORECASE)
_SHARED = re.compile("shared", re.IGNORECASE)
_EXPERT = re.compile("expert", re.IGNORECASE)
#: A list of modules, one of each expert, as in ``experts.*.up.weight``.
_EXPERT_OF_LIST = re.compile(r"expert[^*]*\.\*\.", re.IGNORECASE)
_ROUTER = re.compile(r"\b(?:router|gate|wg)\b", re.IGNORECASE)


class Inferred(NamedTuple):
    """A model by its shapes, and whether they show how wide attention is; else it is as wide as the hidden size."""

    model: Transformer
    is_width_known: bool


class _Layers(NamedTuple):
    attention: tuple[Weight, ...]
    outputs: tuple[Weight, ...]
    experts: tuple[Weight, ...]
    expert_biases: tuple[Weight, ...]
    shared: tuple[Weight, ...]
    routers: tuple[Weight, ...]
    products: tuple[Weight, ...]


def infer_dimensions(
    weights: Sequence[Weight], name: str, stated: StatedDimensions | None = None, *, is_whole: bool = True
) -> Inferred:
    """Infer the dimensions of a model.

    Where shapes are not whole, each rank's part of a matrix is a weight, and the configuration states layers and hidden
    size. Raises MissingInput where the shapes are not of a transformer over tokens, or do not show what a token uses.
    """
    stated = stated or StatedDimensions()
    matrices = [weight for weight in weights if _is_matrix(weight)]
    tables = [weight for weight in matrices if weight.is_embedding and len(weight.shape) == MATRIX]
    if not tables:
        raise MissingInput(f"{name} has no embedding table, so its operations per token cannot be counted")
    _require_attention(weights, stated, name)
    table = max(tables, key=lambda weight: weight.shape[0])
    heads = [
        weight
        for weight in matrices
        if not weight.is_embedding and weight.shape[0] == table.shape[0] and weight.count == table.count
    ]
    layers = _sort([weight for weight in weights if not weight.is_embedding and weight not in heads])
    number = _count_layers(layers) if is_whole else stated.layers
    hidden = table.shape[1] if is_whole else stated.hidden
    if number is None or hidden is None:
        raise MissingInput("the model is split by tensor parallelism and does not name its dimensions")
    if is_whole and any(hidden not in output.shape for output in layers.outputs):
        raise MissingInput(f"{name} has attention that is not of the embedding table's width, {hidden}")
    plain = Transformer(
        name=name,
        layers=number,
        hidden=hidden,
        heads=1,
        kv_heads=1,
        head_dim=hidden,
        ffn=0,
        mlp_matrices=PLAIN_MATRICES,
        vocabulary=table.elements // hidden,
        padded_vocabulary=table.elements // hidden,
        tied=not heads,
        positions=sum(positions.elements // hidden for positions in tables if positions != table),
    )
    model = _with_attention(plain, layers, stated)
    experts = _find_experts(model, layers, stated)
    model = _with_mlp(model._replace(experts=experts), layers)
    stored = _elements(weights) + (_lacking_experts(experts, layers) if experts else 0)
    return Inferred(model._replace(other_vectors=stored - total_parameters(model)), bool(layers.outputs))


def expert_elements(weights: Sequence[Weight]) -> int:
    """Parameters of routed experts."""
    layers = _sort(weights)
    return _elements((*layers.experts, *layers.expert_biases))


def hides_experts(weights: Sequence[Weight]) -> bool:
    """Whether matrices of experts show neither by a list nor by a dimension how many experts they are."""
    experts = _sort(weights).experts
    return any(len(weight.shape) == MATRIX and not _EXPERT_OF_LIST.search(weight.name) for weight in experts)


def _is_matrix(weight: Weight) -> bool:
    return len(weight.shape) >= MATRIX and not weight.name.endswith("bias")


def _elements(weights: Iterable[Weight]) -> int:
    return sum(weight.elements for weight in weights)


def _require_attention(weights: Sequence[Weight], stated: StatedDimensions, name: str) -> None:
    unknown = stated.other_layers or tuple(weight.name for weight in weights if _NO_ATTENTION.search(weight.name))[:1]
    if unknown:
        raise MissingInput(f"{name} has layers whose operations cannot be counted: {', '.join(unknown)}")
    if stated.latent is None and any(_LATENT.search(weight.name) for weight in weights):
        raise MissingInput(f"{name} has latent attention, and its configuration does not state the sizes of its heads")


def _sort(weights: Sequence[Weight]) -> _Layers:
    biases = [weight for weight in weights if not _is_matrix(weight)]
    shared, rest = _divide([weight for weight in weights if _is_matrix(weight)], _SHARED)
    attention, rest = _divide(rest, _ATTENTION)
    experts, rest = _divide(rest, _EXPERT)
    products = tuple(weight for weight in rest if len(weight.shape) == MATRIX)
    return _Layers(
        attention=attention,
        outputs=tuple(w for w in attention if _OUTPUT.search(w.name) and not _ADAPTER.search(w.name)),
        experts=experts,
        expert_biases=tuple(w for w in biases if _EXPERT.search(w.name) and not _SHARED.search(w.name)),
        shared=shared,
        routers=tuple(weight for weight in products if _ROUTER.search(weight.name)),
        products=products,
    )


def _divide(weights: Sequence[Weight], pattern: re.Pattern[str]) -> tuple[tuple[Weight, ...], tuple[Weight, ...]]:
    return (
        tuple(weight for weight in weights if pattern.search(weight.name)),
        tuple(weight for weight in weights if not pattern.search(weight.name)),
    )


def _count_layers(layers: _Layers) -> int:
    """Layers have as many projections of attention; where none is named so, as many as the rarest repeated matrix."""
    by_name: Counter[str] = Counter()
    for weight in layers.outputs or layers.attention:
        by_name[weight.name] += weight.count
    if by_name:
        return max(by_name.values())
    return min((weight.count for weight in (*layers.shared, *layers.products) if weight.count > 1), default=1)


def _with_attention(model: Transformer, layers: _Layers, stated: StatedDimensions) -> Transformer:
    """Its heads: the width is that of the output projections, and keys and values are what else there is."""
    if not layers.outputs:
        return model
    area = model.layers * model.hidden
    width = _elements(layers.outputs) // area
    if stated.latent is not None:
        heads = width // stated.latent.value_dim
        return model._replace(
            heads=heads,
            kv_heads=heads,
            head_dim=stated.latent.nope_dim + stated.latent.rope_dim,
            latent=stated.latent,
        )
    keys = _elements(layers.attention) // (2 * area) - width
    keys = keys if 0 < keys <= width else width
    heads = stated.heads or 0
    if not heads or width % heads or keys % (width // heads):
        heads = width // gcd(width, keys)
    return model._replace(heads=heads, kv_heads=keys * heads // width, head_dim=width // heads)


def _find_experts(model: Transformer, layers: _Layers, stated: StatedDimensions) -> Experts | None:
    if not layers.experts:
        return None
    stacked = [weight.shape[0] for weight in layers.experts if len(weight.shape) > MATRIX]  # maybe this rank's alone
    routed = stated.experts or min([router.shape[0] for router in layers.routers] or stacked, default=0)
    if not routed or not stated.top_k or stated.top_k > routed:
        raise MissingInput(
            f"{model.name} has experts, and neither its shapes nor its configuration show how many of them a token uses"
        )
    routers = [router.count for router in layers.routers if router.shape[0] == routed]
    instances = _instances(layers.experts, routed)
    return Experts(
        routed=routed,
        active=stated.top_k,
        ffn=_elements(layers.experts) // instances // (model.mlp_matrices * model.hidden),
        shared_ffn=0,
        layers=max(routers, default=max(1, instances // routed)),
        vectors=_elements(layers.expert_biases) // instances,
    )


def _instances(experts: Sequence[Weight], routed: int) -> int:
    """Experts of all layers together, as far as they are stored: one tensor may hold those of a layer."""
    by_name: Counter[str] = Counter()
    for weight in experts:
        if len(weight.shape) > MATRIX:
            by_name[weight.name] += weight.count * weight.shape[0]
        else:
            by_name[weight.name] += weight.count * (1 if _EXPERT_OF_LIST.search(weight.name) else routed)
    return max(by_name.values())


def _lacking_experts(experts: Experts, layers: _Layers) -> int:
    instances = _instances(layers.experts, experts.routed)
    of_one = _elements((*layers.experts, *layers.expert_biases)) // instances
    return max(0, experts.layers * experts.routed - instances) * of_one


def _with_mlp(model: Transformer, layers: _Layers) -> Transformer:
    matrices = model.mlp_matrices * model.hidden
    rest = _elements((*layers.attention, *layers.shared, *layers.products)) - model.layers * attention_weights(model)
    experts = model.experts
    dense = model.layers
    if experts is not None:
        dense -= experts.layers
        rest -= experts.layers * experts.routed * model.hidden
        shared = _elements(layers.shared) if dense else rest
        experts = experts._replace(shared_ffn=shared // (matrices * experts.layers))
        rest -= shared
    ffn = rest // (matrices * dense) if dense > 0 else 0
    if dense < 0 or ffn < (dense > 0) or (experts is not None and (experts.ffn < 1 or experts.shared_ffn < 0)):
        raise MissingInput(f"the layers of {model.name} are not those of a transformer")
    return model._replace(ffn=ffn, experts=experts)
