"""The dimensions of a transformer, inferred from the shapes of its parameters alone.

Layers are what repeats, the vocabulary is the longest embedding table, and every matrix of a layer is one product a
token. The result has the model's own number of parameters and of products; only attention's heads are not in the
shapes, so that the attention matrix is counted for as many dimensions as the hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from perfscope.errors import MissingInput
from perfscope.models.parameter_counts import total_parameters
from perfscope.models.transformer import PLAIN_MATRICES, Transformer
from perfscope.tables.model import Weight

_MATRIX = 2


def infer_dimensions(weights: Sequence[Weight], name: str) -> Transformer:
    """Infer the dimensions of a model.

    Raises:
        MissingInput: The shapes are not those of a transformer over tokens.
    """
    matrices = [weight for weight in weights if len(weight.shape) == _MATRIX]
    tables = [weight for weight in matrices if weight.is_embedding]
    if not tables:
        raise MissingInput(f"{name} has no embedding table, so its operations per token cannot be counted")
    if any("expert" in weight.name.lower() for weight in weights):
        raise MissingInput(f"{name} has experts, and its shapes do not show how many of them a token uses")
    token_table = max(tables, key=lambda weight: weight.shape[0])
    vocabulary, hidden = token_table.shape
    products = [weight for weight in matrices if not weight.is_embedding]
    heads = [weight for weight in products if weight.shape[0] == vocabulary and weight.count == 1]
    in_layers = [weight for weight in products if weight not in heads]
    repeated = [weight.count for weight in in_layers if weight.count > 1]
    layers = min(repeated, default=1)
    layer_elements = sum(weight.elements for weight in in_layers) // layers
    ffn = (layer_elements - 4 * hidden**2) // (2 * hidden)
    if not in_layers or ffn < 1:
        raise MissingInput(f"the layers of {name} are not those of a transformer")
    plain = Transformer(
        name=name,
        layers=layers,
        hidden=hidden,
        heads=1,
        kv_heads=1,
        head_dim=hidden,
        ffn=ffn,
        mlp_matrices=PLAIN_MATRICES,
        vocabulary=vocabulary,
        padded_vocabulary=vocabulary,
        tied=not heads,
        positions=sum(weight.count * weight.shape[0] for weight in tables if weight != token_table),
    )
    rest = sum(weight.count * prod(weight.shape) for weight in weights) - total_parameters(plain)
    return plain._replace(other_vectors=rest)
