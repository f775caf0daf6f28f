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


def count_gradients(product: Product, kernels: int) -> int | None:
    """Operations of a backward pass, by its number of kernels that multiply; None where they do not follow.

    Where kernels are half as many as the gradients of inputs and weights, they compute one kind alone. The first layer
    needs no gradient of its input, a frozen one no gradient of its weight.
    """
    flops = count_flops(product)
    gradients = next((count for pattern, count in _GRADIENTS if pattern.search(product.operator)), 0)
    if flops is None or not product.of_forward or not gradients or 2 * kernels != gradients:
        return flops
    return flops // 2


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


def _count_linear(product: Product) -> int | None:
    """A product with a weight of (outputs, inputs), as layers have it."""
    if len(product.shapes) < _MATRIX:
        return None
    inputs, weight = product.shapes[:2]
    if len(weight) != _MATRIX or not inputs or inputs[-1] != weight[-1]:
        return None
    return 2 * prod(inputs) * weight[0] * (2 if "a4w4" in product.operator else _packed(product))


def _count_with_output(product: Product) -> int | None:
    """A product whose first input is what it writes to."""
    output, first = (*product.shapes, (), ())[:2]
    return 2 * prod(output) * first[-1] * _packed(product) if len(output) == len(first) == _MATRIX else None


def _count_experts(product: Product) -> int | None:
    """Both products of each expert that a token is sent to: (tokens, h), (E, 2 f or f, h), (E, h, f), (tokens, k)."""
    if len(product.shapes) < _BATCH_OF_HEADS:
        return None
    tokens, inward, outward, chosen = product.shapes[:4]
    if not (len(tokens) == len(chosen) == _MATRIX and len(inward) == len(outward) == _STACK):
        return None
    hidden = tokens[1]
    packed = hidden // inward[2] if inward[2] else 0
    if inward[2] * packed != hidden or outward[1] != hidden or tokens[0] != chosen[0]:
        return None
    return 2 * tokens[0] * chosen[1] * hidden * (inward[1] + outward[2] * packed)


def _count_stage_of_experts(product: Product) -> int | None:
    """One of aiter's two products of experts.

    (tokens, h) or (tokens, k, f), (E, 2 f or f, h), (E, h, f), three lists, (tokens, k, f) or (tokens, h).
    """
    written = 6
    if len(product.shapes) <= written:
        return None
    tokens, inward, outward = product.shapes[:3]
    is_first = product.operator.endswith("1")
    routed, weight = (product.shapes[written], inward) if is_first else (tokens, outward)
    if not len(routed) == len(weight) == _STACK or tokens[-1:] != weight[-1:]:
        return None
    return 2 * routed[0] * routed[1] * weight[1] * weight[2]


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


class _Convolution(NamedTuple):
    """Where the inputs of a convolution stand among those of an operator."""

    stride: int
    padding: int
    dilation: int
    transposed: int | None


def convolution_output(product: Product) -> int | None:
    """Elements of the output of a convolution; None where they do not follow from what the trace states."""
    flops = _count_convolution(product)
    if flops is None or len(product.shapes) < _MATRIX:
        return None
    weight = product.shapes[1]
    reached = prod(weight[1:])
    is_transposed = len(product.values) > _TRANSPOSED and product.values[_TRANSPOSED] == "True"
    return None if is_transposed or not reached else flops // (2 * reached)


def _count_convolution(product: Product) -> int | None:
    places = next((places for name, places in _CONVOLUTIONS.items() if product.operator == name), None)
    if places is None or len(product.shapes) < _MATRIX or len(product.values) <= max(places[:3]):
        return None
    image, weight = product.shapes[:2]
    if len(image) != len(weight) or len(image) < _STACK:
        return None
    is_transposed = places.transposed is not None and product.values[places.transposed] == "True"
    stride, padding, dilation = (_sizes(product.values[index], len(image) - 2) for index in places[:3])
    if is_transposed:
        return 2 * image[0] * prod(image[2:]) * prod(weight)
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
        pages: The place of a table of pages, with which key and value are those of a whole cache.
    """

    query: int
    heads_last: bool = True
    bounds: tuple[int, int] | None = None
    longest: tuple[int, int] | None = None
    pages: int | None = None


def _count_attention(product: Product) -> int | None:
    """Both products of attention: queries by keys, and weights by values."""
    layout = next((layout for pattern, layout in _LAYOUTS if pattern.search(product.operator)), _Layout(0))
    operands = product.shapes[layout.query : layout.query + 3]
    if len(operands) < _STACK or any(len(operand) < _STACK for operand in operands):
        return None
    if layout.pages is not None and any(product.shapes[layout.pages : layout.pages + 1]):
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


#: How many products a backward pass has.
_GRADIENTS = ((re.compile(r"^_(?:LayerNorm)?LinearBackward$"), 2), (re.compile(r"^_LayerNormMLPBackward$"), 4))
_CONVOLUTIONS = {
    "convolution": _Convolution(3, 4, 5, 6),
    "convolution_overrideable": _Convolution(3, 4, 5, 6),
    "_convolution": _Convolution(3, 4, 5, 6),
    "cudnn_convolution_relu": _Convolution(3, 4, 5, None),
    "cudnn_convolution_add_relu": _Convolution(5, 6, 7, None),
    "miopen_convolution_relu": _Convolution(3, 4, 5, None),
    "miopen_convolution_add_relu": _Convolution(5, 6, 7, None),
}
_LAYOUTS = (
    (re.compile(r"^_scaled_dot_product.*_backward|^_cudnn_attention_backward"), _Layout(1, heads_last=False)),
    (re.compile(r"^_scaled_dot_product|^sage_fwd|^_cudnn_attention_forward"), _Layout(0, heads_last=False)),
    (re.compile(r"^_flash_attention_forward"), _Layout(0, bounds=(3, 4), longest=(5, 6))),
    (re.compile(r"^_flash_attention_backward"), _Layout(1, bounds=(6, 7), longest=(8, 9))),
    (re.compile(r"^_efficient_attention_forward"), _Layout(0, bounds=(4, 5), longest=(6, 7))),
    (re.compile(r"^_efficient_attention_backward"), _Layout(1, bounds=(5, 6), longest=(7, 8))),
    (re.compile(r"varlen_forward$"), _Layout(0, bounds=(3, 4), longest=(5, 6))),
    (re.compile(r"varlen_backward$"), _Layout(1, bounds=(9, 10), longest=(11, 12))),
    (re.compile(r"^flash_attn_3::fwd$"), _Layout(0, bounds=(7, 8), longest=(12, 13), pages=14)),
    (re.compile(r"^flash_attn_3::bwd$"), _Layout(1, bounds=(9, 10), longest=(13, 14))),
    (re.compile(r"mha_batch_prefill|varlen|paged|_C::"), _Layout(0, pages=0)),
    (BACKWARD, _Layout(1)),
)
_RULES: tuple[tuple[re.Pattern[str], _Rule], ...] = (
    (re.compile(r"^convolution_backward"), _count_convolution_backward),
    (re.compile(r"convolution"), _count_convolution),
    (re.compile(r"^\w*mm\w*$"), _count_product),
    (re.compile(r"(?:Func|Linear|MLP)Backward$"), _count_backward),
    (re.compile(r"attention|attn|Attn|fmha|mha_(?:fwd|bwd)$|sage_fwd|^flash_attn_3::"), _count_attention),
    (re.compile(r"fused_experts|fused_moe"), _count_experts),
    (re.compile(r"ck_moe_stage[12]$"), _count_stage_of_experts),
    (re.compile(r"^_(?:LayerNorm|Grouped)?Linear$"), _count_function),
    (re.compile(r"^_LayerNormMLP$"), _count_mlp),
    (re.compile(r"_C::cutlass_scaled_mm"), _count_with_output),
    (re.compile(r"cublas_scaled_mm|rowwise_mm"), _count_product),
    (re.compile(r"unquantized_gemm|aiter::\w*gemm_a\d|int8_linear_matmul|f8f8bf16_rowwise"), _count_linear),
)
