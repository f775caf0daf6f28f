"""Operations of one call of an operator, from the shapes of its inputs.

A product of m x k and k x n is 2 m n k operations. A convolution does 2 for each element of its output, or of its
transposed input, and each weight that reaches it. Attention is counted over the full matrix, forward once and backward
twice. Sources: the operators' signatures, and torch.utils.flop_counter, which counts the weights' gradient of a grouped
convolution as if it had one group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from perfscope.tables.products import Product

BACKWARD = re.compile(r"_backward|Backward$|_bwd\b|::bwd$")
FIRST_IS_ADDED = ("addmm", "baddbmm", "_addmm_activation")
MATRIX, _STACK, _BATCH_OF_HEADS = 2, 3, 4
_NUMBER = re.compile(r"-?\d+")

_Shape: TypeAlias = tuple[int, ...]
_Rule: TypeAlias = Callable[[Product], int | None]


def count_flops(product: Product) -> int | None:
    """Operations of one call; None where they do not follow from what the trace states."""
    return next((rule(product) for pattern, rule in _RULES if pattern.search(product.operator)), None)


def _count_product(product: Product) -> int | None:
    """Matrices, stacks of them, and grouped products, of which each row or column is used once."""
    skipped = 1 if product.operator in FIRST_IS_ADDED else 0
    if len(product.shapes) < skipped + 2:
        return None
    first, second = product.shapes[skipped : skipped + 2]
    if len(first) < MATRIX or len(second) < MATRIX:
        return None
    batch = first[0] if len(first) == len(second) == _STACK else 1
    return 2 * batch * first[-2] * first[-1] * second[-1]


def _count_function(product: Product) -> int | None:
    """A layer of Transformer Engine forward: its input and its weight of (outputs, inputs), in either order."""
    matrices = (shape for shape in product.shapes if len(shape) >= MATRIX)  # others are biases and weights of norms
    first, second = (*matrices, (), ())[:2]
    if not first or first[-1:] != second[-1:]:
        return None
    return 2 * first[-1] * prod(first[:-1]) * prod(second[:-1])


def _count_backward(product: Product) -> int | None:
    """Each product of the forward pass has a gradient of both of its inputs."""
    if not product.of_forward:
        return None
    forward = Product(product.operator.removesuffix("Backward"), product.shapes, product.elements, product.values)
    flops = count_flops(forward)
    return None if flops is None else 2 * flops


def _count_convolution(product: Product) -> int | None:
    """(image, weight, bias, stride, padding, dilation, transposed, ...)."""
    transposed = 6
    if len(product.shapes) < MATRIX or len(product.values) <= transposed:
        return None
    image, weight = product.shapes[:2]
    if len(image) != len(weight) or len(image) < _STACK:
        return None
    if product.values[transposed] == "True":
        return 2 * image[0] * prod(image[2:]) * prod(weight)
    stride, padding, dilation = (_sizes(value, len(image) - 2) for value in product.values[3:transposed])
    if stride is None or padding is None or dilation is None:
        return None
    outputs = [
        (size + 2 * pad - apart * (kernel - 1) - 1) // step + 1
        for size, pad, apart, kernel, step in zip(image[2:], padding, dilation, weight[2:], stride, strict=True)
    ]
    return 2 * image[0] * prod(outputs) * prod(weight)


def _count_convolution_backward(product: Product) -> int | None:
    """(gradient, image, weight, ..., transposed, ..., mask): the mask asks for gradients of image, weight and bias."""
    transposed, mask = 7, 10
    if len(product.shapes) < _STACK or len(product.values) <= mask:
        return None
    gradient, image, weight = product.shapes[:3]
    if not len(gradient) == len(image) == len(weight) or len(image) < _STACK:
        return None
    gradients_asked = [word == "True" for word in re.findall(r"True|False", product.values[mask])]
    spatial = image[2:] if product.values[transposed] == "True" else gradient[2:]
    gradients: int = sum(gradients_asked[:2])
    return 2 * image[0] * prod(spatial) * prod(weight) * gradients


def _sizes(text: str, dimensions: int) -> Sequence[int] | None:
    numbers = [int(number) for number in _NUMBER.findall(text)]
    if len(numbers) == 1:
        return numbers * dimensions
    return numbers if len(numbers) == dimensions else None


def _count_attention(product: Product) -> int | None:
    """Both products of attention; packed sequences do not state their lengths, and are not counted."""
    is_backward = bool(BACKWARD.search(product.operator))
    operands = product.shapes[is_backward : is_backward + 3]  # a gradient stands before them
    if len(operands) < _STACK or any(len(operand) != _BATCH_OF_HEADS for operand in operands):
        return None
    bounds = 6 if is_backward else 4  # of packed sequences, in a batch of one
    if product.operator.startswith("_efficient_attention") and any(product.shapes[bounds : bounds + 1]):
        return None
    query, key, value = operands
    keys = key[2] if _HEADS_FIRST.search(product.operator) else key[1]
    return (1 + is_backward) * 2 * prod(query[:-1]) * keys * (query[-1] + value[-1])


#: Operators of (batch, heads, tokens, dimensions); others have the tokens before the heads.
_HEADS_FIRST = re.compile(r"^_scaled_dot_product|^sage_fwd|^_cudnn_attention")
#: Operators of inference engines, whose keys and values are in pages, are not counted.
_RULES: tuple[tuple[re.Pattern[str], _Rule], ...] = (
    (re.compile(r"^convolution_backward"), _count_convolution_backward),
    (re.compile(r"^_?convolution(?:_overrideable)?$"), _count_convolution),
    (re.compile(r"^\w*mm\w*$"), _count_product),
    (re.compile(r"(?:Func|Linear)Backward$"), _count_backward),
    (
        re.compile(r"^(?!vllm|_C::|.*paged)(?:.*(?:attention|attn|Attn|fmha)|.*mha_(?:fwd|bwd)$)"),
        _count_attention,
    ),
    (re.compile(r"^_(?:LayerNorm|Grouped)?Linear$"), _count_function),
)
