"""Operations of one call of an operator, from the shapes of its inputs.

A product of m x k and k x n is 2 m n k operations. A convolution does 2 for each element of its output, or of its
transposed input, and each weight that reaches it. Its backward pass does as many again for each gradient that its mask
asks for. Attention is counted over the full matrix, forward once and backward twice, as the formulas of models count
it. Recomputation inside a kernel does not count. Sources: the signatures of the libraries' operators, and
torch.utils.flop_counter. The latter counts the weights' gradient of a grouped convolution as if it had one group.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple, TypeAlias

from perfscope.tables.products import Product

BACKWARD = re.compile(r"_backward|Backward$|_bwd\b|::bwd$")
FIRST_IS_ADDED = ("addmm", "baddbmm", "_addmm_activation")
_MATRIX, _STACK, _BATCH_OF_HEADS = 2, 3, 4
_NUMBER = re.compile(r"-?\d+")
_FP4 = "c10::Float4"
#: Where the inputs of ``convolution`` say whether it is transposed.
_TRANSPOSED = 6

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
    if len(first) < _MATRIX or len(second) < _MATRIX:
        return None
    batch = first[0] if len(first) == len(second) == _STACK else 1
    return 2 * batch * first[-2] * first[-1] * second[-1] * _packed(product)


def _packed(product: Product) -> int:
    """How many elements each element of a shape stands for."""
    return 2 if any(element.startswith(_FP4) for element in product.elements[:2]) else 1


def _count_function(product: Product) -> int | None:
    """A layer of Transformer Engine forward: its input and its weight of (outputs, inputs), in either order."""
    first, second = (*_matrices(product), (), ())[:2]
    if not first or first[-1:] != second[-1:]:
        return None
    return 2 * first[-1] * prod(first[:-1]) * prod(second[:-1])


def _count_mlp(product: Product) -> int | None:
    """An MLP of Transformer Engine forward: (..., h), (f or 2 f, h), (h, f)."""
    first, inward, outward = (*_matrices(product), (), (), ())[:3]
    if not first or first[-1:] != inward[-1:] or outward[:1] != first[-1:]:
        return None
    return 2 * prod(first[:-1]) * (prod(inward) + prod(outward))


def _count_backward(product: Product) -> int | None:
    """The backward pass of a function: each product of its forward pass has a gradient of both of its inputs.

    Its own inputs are those of the gradient alone.
    """
    if not product.of_forward:
        return None
    forward = Product(product.operator.removesuffix("Backward"), product.shapes, product.elements, product.values)
    flops = count_flops(forward)
    return None if flops is None else 2 * flops


def _matrices(product: Product) -> list[_Shape]:
    """The inputs of two dimensions and more; others are biases and weights of norms."""
    return [shape for shape in product.shapes if len(shape) >= _MATRIX]


def convolution_output(product: Product) -> int | None:
    """Elements of the output of a convolution; None where they do not follow from what the trace states."""
    flops = _count_convolution(product)
    if flops is None or product.values[_TRANSPOSED] == "True":
        return None
    return flops // (2 * prod(product.shapes[1][1:])) if prod(product.shapes[1][1:]) else None


def _count_convolution(product: Product) -> int | None:
    """(image, weight, bias, stride, padding, dilation, transposed, ...)."""
    if len(product.shapes) < _MATRIX or len(product.values) <= _TRANSPOSED:
        return None
    image, weight = product.shapes[:2]
    if len(image) != len(weight) or len(image) < _STACK:
        return None
    if product.values[_TRANSPOSED] == "True":
        return 2 * image[0] * prod(image[2:]) * prod(weight)
    stride, padding, dilation = (_sizes(value, len(image) - 2) for value in product.values[3:_TRANSPOSED])
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
    """The numbers of a list, one for each dimension; a single one is that of all."""
    numbers = [int(number) for number in _NUMBER.findall(text)]
    if len(numbers) == 1:
        return numbers * dimensions
    return numbers if len(numbers) == dimensions else None


class _Layout(NamedTuple):
    """Where the inputs of attention stand: the query first of three, numbers of packed sequences, and their lengths.

    Attributes:
        query: The place of the query, before key and value.
        heads_last: (batch, tokens, heads, dimensions), or (tokens, heads, dimensions) of packed sequences; else heads
            stand before tokens.
        bounds: The places of the bounds of packed sequences, of queries and of keys.
        longest: The places of the lengths of the longest ones.
    """

    query: int
    heads_last: bool = True
    bounds: tuple[int, int] | None = None
    longest: tuple[int, int] | None = None


def _count_attention(product: Product) -> int | None:
    """Both products of attention: queries by keys, and weights by values."""
    layout = next((layout for pattern, layout in _LAYOUTS if pattern.search(product.operator)), _Layout(0))
    operands = product.shapes[layout.query : layout.query + 3]
    if len(operands) < _STACK or any(len(operand) < _STACK for operand in operands):
        return None
    passes = 2 if BACKWARD.search(product.operator) else 1
    query, key, value = operands
    if layout.bounds and any(product.shapes[layout.bounds[0] : layout.bounds[0] + 1]):
        pairs = _pairs_of_equal_sequences(product, layout, query, key)
        return None if pairs is None else passes * 2 * pairs * query[-2] * (query[-1] + value[-1])
    if layout.heads_last:
        if not len(query) == len(key) == _BATCH_OF_HEADS:
            return None
        return passes * 2 * prod(query[:-1]) * key[1] * (query[-1] + value[-1])
    return passes * 2 * prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _pairs_of_equal_sequences(product: Product, layout: _Layout, query: _Shape, key: _Shape) -> int | None:
    """Pairs of a query and a key in packed sequences; the trace tells them where all are as long as the longest."""
    assert layout.bounds is not None
    if layout.longest is None or len(product.values) <= max(layout.longest):
        return None
    sequences = product.shapes[layout.bounds[0]][0] - 1
    longest = [_NUMBER.fullmatch(product.values[index]) for index in layout.longest]
    lengths = [int(match[0]) for match in longest if match]
    tokens = [prod(operand[:-2]) for operand in (query, key)]
    if len(lengths) < _MATRIX or [sequences * length for length in lengths] != tokens:
        return None
    return sequences * lengths[0] * lengths[1]


_LAYOUTS = (
    (re.compile(r"^_scaled_dot_product.*_backward|^_cudnn_attention_backward"), _Layout(1, heads_last=False)),
    (re.compile(r"^_scaled_dot_product|^sage_fwd|^_cudnn_attention_forward"), _Layout(0, heads_last=False)),
    (re.compile(r"^_flash_attention_forward"), _Layout(0, bounds=(3, 4), longest=(5, 6))),
    (re.compile(r"^_flash_attention_backward"), _Layout(1, bounds=(6, 7), longest=(8, 9))),
    (re.compile(r"^_efficient_attention_forward"), _Layout(0, bounds=(4, 5), longest=(6, 7))),
    (re.compile(r"^_efficient_attention_backward"), _Layout(1, bounds=(5, 6), longest=(7, 8))),
    (re.compile(r"varlen_forward$"), _Layout(0, bounds=(3, 4), longest=(5, 6))),
    (re.compile(r"varlen_backward$"), _Layout(1, bounds=(9, 10), longest=(11, 12))),
    (re.compile(r"^flash_attn_3::fwd$"), _Layout(0, bounds=(7, 8), longest=(12, 13))),
    (re.compile(r"^flash_attn_3::bwd$"), _Layout(1, bounds=(9, 10), longest=(13, 14))),
    (BACKWARD, _Layout(1)),
)
#: Operators of inference engines, whose keys and values are in pages, are not counted.
_RULES: tuple[tuple[re.Pattern[str], _Rule], ...] = (
    (re.compile(r"^convolution_backward"), _count_convolution_backward),
    (re.compile(r"^_?convolution(?:_overrideable)?$"), _count_convolution),
    (re.compile(r"^\w*mm\w*$"), _count_product),
    (re.compile(r"(?:Func|Linear|MLP)Backward$"), _count_backward),
    (
        re.compile(r"^(?!vllm|_C::|.*paged)(?:.*(?:attention|attn|Attn|fmha)|.*mha_(?:fwd|bwd)$)"),
        _count_attention,
    ),
    (re.compile(r"^_(?:LayerNorm|Grouped)?Linear$"), _count_function),
    (re.compile(r"^_LayerNormMLP$"), _count_mlp),
)
