"""Bytes that one call of an operator must read and write at least, from its inputs: each input once, each output once.

More bytes move through the GPU's memory where a product reads a matrix again for each tile, or a norm reads its input
twice. Fewer do where data is still in the cache. The elements of an expanded dimension count once. A list of tensors
states no type: its elements have that of the kernel that works on it. Of a fused kernel all tensors that it is given
count once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import TypeAlias

from perfscope.analyzers.flops.operator_rules import BACKWARD, convolution_output
from perfscope.tables.operator_details import Inputs, Tensor
from perfscope.tables.products import Product

_SIZES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "short": 2,
    "bool": 1, "unsigned char": 1, "signed char": 1, "char": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
#: The types of elements in the names of kernels that work on lists.
_IN_KERNELS = re.compile(r"(?<![\w:])(double|float|c10::BFloat16|c10::Half)(?![\w:])")
_STATISTICS = 4  # bytes of a mean, or of a logarithm of a sum, which are kept in fp32
_RANDOM_MASK = 1
_MATRIX = 2

_Rule: TypeAlias = Callable[[str, Inputs, int], int | None]


def count_bytes(operator: str, inputs: Inputs, kernel: str = "") -> int | None:
    """Bytes of one call; None where they do not follow from what the trace states.

    Args:
        operator: Its name, with its namespace.
        inputs: Its inputs.
        kernel: A kernel that it launched, whose name tells the type of elements in lists.
    """
    name = operator.removeprefix("aten::")
    match = _IN_KERNELS.search(kernel)
    in_lists = _SIZES[match[1]] if match else 0
    tensors = inputs.tensors
    if not tensors or any(not _size(tensor, in_lists) for tensor in tensors):
        return None
    for pattern, rule in _RULES:
        if pattern.search(name):
            counted: int | None = rule(name, inputs, in_lists)
            return counted
    return None


def _size(tensor: Tensor, in_lists: int) -> int:
    """Bytes of an element; 0 where its type is not known."""
    if tensor.element.startswith(("c10::Float8", "c10::Float4")):
        return 1
    return _SIZES.get(tensor.element, 0) if tensor.element else in_lists


def _bytes(tensor: Tensor, in_lists: int = 0) -> int:
    return tensor.elements * _size(tensor, in_lists)


def _read(inputs: Inputs, in_lists: int) -> int:
    """Every input once."""
    return sum(_bytes(tensor, in_lists) for tensor in inputs.tensors)


def _first(inputs: Inputs, place: int = 0) -> Tensor | None:
    operand = inputs.operands[place] if place < len(inputs.operands) else None
    return operand if isinstance(operand, Tensor) else None


def _dense(tensor: Tensor, in_lists: int = 0) -> int:
    """Bytes of a new tensor of the same shape and type, which has no expanded dimension."""
    return prod(tensor.shape) * _size(tensor, in_lists)


def _elementwise(name: str, inputs: Inputs, in_lists: int) -> int | None:
    """Inputs, and an output of the shape to which they broadcast; the widest floating type decides its own."""
    lists = [operand for operand in inputs.operands if isinstance(operand, tuple)]
    if lists:
        return _read(inputs, in_lists) + sum(_dense(tensor, in_lists) for tensor in lists[0])
    tensors = inputs.tensors
    length = max(len(tensor.shape) for tensor in tensors)
    shape = [
        max((tensor.shape[len(tensor.shape) - 1 - place] if place < len(tensor.shape) else 1) for tensor in tensors)
        for place in range(length)
    ]
    if any(not size for tensor in tensors for size in tensor.shape):
        return 0
    shaped = [tensor for tensor in tensors if tensor.shape] or list(tensors)
    size = 1 if _COMPARISON.search(name) else max(_size(tensor, in_lists) for tensor in shaped)
    return _read(inputs, in_lists) + prod(shape) * size


def _in_place(_name: str, inputs: Inputs, in_lists: int) -> int | None:
    """Inputs, and the first of them written again."""
    target = inputs.operands[0]
    written = target if isinstance(target, tuple) else (target,) if target else ()
    return _read(inputs, in_lists) + sum(_bytes(tensor, in_lists) for tensor in written)


def _written_alone(_name: str, inputs: Inputs, in_lists: int) -> int | None:
    target = inputs.operands[0]
    written = target if isinstance(target, tuple) else (target,) if target else ()
    return sum(_bytes(tensor, in_lists) for tensor in written)


def _copy(_name: str, inputs: Inputs, _in_lists: int) -> int | None:
    target, source = _first(inputs), _first(inputs, 1)
    return None if target is None or source is None else _bytes(target) + _bytes(source)


def _same_again(_name: str, inputs: Inputs, in_lists: int) -> int | None:
    """Inputs, and an output like the first of them."""
    first = _first(inputs)
    return None if first is None else _read(inputs, in_lists) + _dense(first)


def _read_alone(_name: str, inputs: Inputs, in_lists: int) -> int | None:
    """A reduction: its result is small."""
    return _read(inputs, in_lists)


def _joined(_name: str, inputs: Inputs, in_lists: int) -> int | None:
    read = _read(inputs, in_lists)
    return 2 * read


def _dropout(_name: str, inputs: Inputs, in_lists: int) -> int | None:
    first = _first(inputs)
    return None if first is None else _read(inputs, in_lists) + _dense(first) + prod(first.shape) * _RANDOM_MASK


def _normalized(name: str, inputs: Inputs, in_lists: int) -> int | None:
    """Forward the output like the input; backward a gradient like the input, and those of weights."""
    first = _first(inputs)
    if first is None:
        return None
    weights = sum(_bytes(tensor) for tensor in inputs.tensors if len(tensor.shape) == 1) if "backward" in name else 0
    return _read(inputs, in_lists) + _dense(first) + weights


def _product(name: str, inputs: Inputs, in_lists: int) -> int | None:
    """Both matrices, what is added, and the result; that of fp8 has 16 bits."""
    tensors = [tensor for tensor in inputs.tensors if len(tensor.shape) >= _MATRIX]
    if len(tensors) < _MATRIX:
        return None
    added = tensors[:1] if len(tensors) > _MATRIX and "add" in name else []
    first, second = tensors[len(added) : len(added) + 2]
    width = max(_size(first, in_lists), 2)
    stacked = first.shape[:-2] if len(first.shape) == len(second.shape) else ()
    return _read(inputs, in_lists) + prod(stacked) * first.shape[-2] * second.shape[-1] * width


def _convolution(name: str, inputs: Inputs, in_lists: int) -> int | None:
    read = _read(inputs, in_lists)
    if BACKWARD.search(name):
        image, weight = _first(inputs, 1), _first(inputs, 2)
        asked = [word == "True" for word in re.findall(r"True|False", inputs.values[-1])] if inputs.values else []
        if image is None or weight is None or len(asked) < _MATRIX:
            return None
        return read + (_dense(image) if asked[0] else 0) + (_dense(weight) if asked[1] else 0)
    image = _first(inputs)
    shapes = tuple(operand.shape if isinstance(operand, Tensor) else () for operand in inputs.operands)
    elements = convolution_output(Product(name, shapes, inputs.kinds, inputs.values))
    return None if image is None or elements is None else read + elements * _size(image, in_lists)


def _attention(name: str, inputs: Inputs, in_lists: int) -> int | None:
    """Queries, keys, values, the output, and a logarithm of a sum for each query; backward a gradient of each."""
    operands = [tensor for tensor in inputs.tensors if len(tensor.shape) in (3, 4)]
    is_backward = bool(BACKWARD.search(name))
    first = 1 if is_backward else 0
    if len(operands) < first + 3:
        return None
    query, key, value = operands[first : first + 3]
    if is_backward:
        return _read(inputs, in_lists) + _dense(query) + _dense(key) + _dense(value)
    output = prod(query.shape[:-1]) * value.shape[-1] * _size(query, in_lists)
    return _read(inputs, in_lists) + output + prod(query.shape[:-1]) * _STATISTICS


def _embedding(name: str, inputs: Inputs, in_lists: int) -> int | None:
    """The rows that are looked up, their numbers, and the output; backward the whole gradient of the table."""
    table, numbers = _first(inputs), _first(inputs, 1)
    if "index_select" in name:
        numbers = _first(inputs, 2)
    if table is None or numbers is None:
        return None
    if "backward" in name:
        rows = next((int(value) for value in inputs.values if value.isdigit()), 0)
        written = rows * table.shape[-1] * _size(table, in_lists)
        return _read(inputs, in_lists) + written
    looked_up = prod(numbers.shape) * prod(table.shape[1:]) * _size(table, in_lists)
    return 2 * looked_up + _bytes(numbers)


def _one_of_a_row(_name: str, inputs: Inputs, _in_lists: int) -> int | None:
    """Of each row of a matrix one element is touched."""
    numbers = next((tensor for tensor in inputs.tensors if tensor.element.startswith("long")), None)
    return None if numbers is None else _bytes(numbers) + 2 * prod(numbers.shape) * _STATISTICS


def _fused_optimizer(_name: str, inputs: Inputs, in_lists: int) -> int | None:
    """Lists of parameters, gradients and states: all are read, and all but the gradients are written."""
    lists = [operand for operand in inputs.operands if isinstance(operand, tuple) and operand and operand[0].shape]
    if len(lists) < _MATRIX or not in_lists:
        return None
    sizes = [sum(_bytes(tensor, in_lists) for tensor in operand) for operand in lists]
    return sum(sizes) + sum(sizes) - sizes[1]


def _fused_kernel(_name: str, inputs: Inputs, in_lists: int) -> int | None:
    return _read(inputs, in_lists)


_COMPARISON = re.compile(r"^(?:eq|ne|lt|le|gt|ge|isnan|isinf|logical_\w+|bitwise_\w+)\b")
_REDUCTION = re.compile(
    r"^(?:sum|mean|amax|amin|max|min|prod|norm|linalg_vector_norm|var|var_mean|std|any|all|argmax|argmin|logsumexp|"
    r"_foreach_norm|_amp_foreach_non_finite_check_and_unscale_|dot|nansum|count_nonzero)$"
)
_ELEMENTWISE = re.compile(
    r"^(?:add|sub|rsub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|sigmoid|tanh|silu|gelu|relu|clamp\w*|where|maximum|minimum|"
    r"sin|cos|reciprocal|square|erf|lerp|addcmul|addcdiv|masked_fill|threshold|leaky_relu|elu|softplus|hardtanh|"
    r"sign|floor|round|ceil|isnan|isinf|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|\w+_backward|_foreach_\w+?)$"
)
_RULES: tuple[tuple[re.Pattern[str], _Rule], ...] = (
    (re.compile(r"^triton_|^triton::"), _fused_kernel),
    (re.compile(r"convolution"), _convolution),
    (re.compile(r"^\w*mm\w*$"), _product),
    (re.compile(r"attention|_flash_attn|flash_attn"), _attention),
    (re.compile(r"^_fused_(?:adam|adamw|sgd|adagrad)"), _fused_optimizer),
    (re.compile(r"^embedding|^index_select"), _embedding),
    (re.compile(r"^nll_loss"), _one_of_a_row),
    (re.compile(r"^(?:copy_|_foreach_copy_)$"), _copy),
    (re.compile(r"^(?:zero_|fill_|_foreach_zero_|normal_|uniform_|bernoulli_|random_)$"), _written_alone),
    (re.compile(r"^(?:_log_softmax|_softmax)(?:_backward_data)?$|^(?:clone|triu|tril|cumsum|flip|roll)$"), _same_again),
    (re.compile(r"norm(?:_backward)?$|batch_norm"), _normalized),
    (re.compile(r"^native_dropout$"), _dropout),
    (re.compile(r"^(?:cat|stack)$"), _joined),
    (_REDUCTION, _read_alone),
    (re.compile(r"[a-z]_$"), _in_place),
    (_ELEMENTWISE, _elementwise),
)
