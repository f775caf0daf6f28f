"""Bytes that one call of an operator must read and write at least, from its inputs: each input once, each output once.

The elements of an expanded dimension count once. A list of tensors states no type: its elements have the type of the
kernel that works on it. Of a fused kernel all tensors that it is given count once.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod
from typing import NamedTuple, TypeAlias

from perfscope.analyzers.tflops.operator_rules import BACKWARD, count_flops
from perfscope.tables.operator_details import OperatorInputs, TensorInput
from perfscope.tables.products import Product

_SIZES = {
    "float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2, "long int": 8, "long": 8, "int": 4, "short": 2,
    "bool": 1, "unsigned char": 1, "signed char": 1, "char": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
}  # fmt: skip
#: The types of elements in the names of kernels that work on lists.
_IN_KERNELS = re.compile(r"(?<![\w:])(double|float|c10::BFloat16|c10::Half)(?![\w:])")


class _Call(NamedTuple):
    """A call: the operator without ``aten::``, its inputs, and bytes of an element in lists, 0 where unknown."""

    name: str
    inputs: OperatorInputs
    in_lists: int

    def size(self, tensor: TensorInput) -> int:
        if tensor.element.startswith(("c10::Float8", "c10::Float4")):
            return 1
        return _SIZES.get(tensor.element, 0) if tensor.element else self.in_lists

    def bytes(self, *tensors: TensorInput) -> int:
        return sum(tensor.elements * self.size(tensor) for tensor in tensors)

    def dense(self, *tensors: TensorInput) -> int:
        return sum(prod(tensor.shape) * self.size(tensor) for tensor in tensors)

    def at(self, place: int) -> TensorInput | None:
        operand = self.inputs.operands[place] if place < len(self.inputs.operands) else None
        return operand if isinstance(operand, TensorInput) else None

    @property
    def read(self) -> int:
        return self.bytes(*self.inputs.tensors)

    @property
    def target(self) -> int:
        first = self.inputs.operands[0]
        return self.bytes(*(first if isinstance(first, tuple) else (first,) if first else ()))


_Rule: TypeAlias = Callable[[_Call], int | None]


def count_bytes(operator: str, inputs: OperatorInputs, kernel: str = "") -> int | None:
    """Bytes of one call; None where they do not follow from the trace. A kernel's name tells the type in lists."""
    match = _IN_KERNELS.search(kernel)
    call = _Call(operator.removeprefix("aten::"), inputs, _SIZES[match[1]] if match else 0)
    if not inputs.tensors or not all(map(call.size, inputs.tensors)):
        return None
    rule = next((rule for pattern, rule in _RULES if pattern.search(call.name)), None)
    counted: int | None = rule(call) if rule else None
    return counted


def _elementwise(call: _Call) -> int | None:
    """Inputs, and an output of the shape to which they broadcast; the widest type decides its own."""
    lists = [operand for operand in call.inputs.operands if isinstance(operand, tuple)]
    if lists:
        return call.read + call.dense(*lists[0])
    tensors = call.inputs.tensors
    if any(not size for tensor in tensors for size in tensor.shape):
        return 0
    length = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (length - len(tensor.shape)) + tensor.shape for tensor in tensors]
    size = 1 if _COMPARISON.search(call.name) else max(map(call.size, [t for t in tensors if t.shape] or tensors))
    shape: list[int] = [max(sizes) for sizes in zip(*padded, strict=True)]
    return call.read + prod(shape) * size


def _copy(call: _Call) -> int | None:
    target, source = call.at(0), call.at(1)
    return None if target is None or source is None else call.bytes(target, source)


def _like_first(call: _Call) -> int | None:
    first = call.at(0)
    return None if first is None else call.read + call.dense(first)


def _product(call: _Call) -> int | None:
    """Both matrices, what is added, and the result; that of fp8 has 16 bits."""
    tensors = [tensor for tensor in call.inputs.tensors if len(tensor.shape) > 1]
    added = "add" in call.name and len(tensors[2:]) > 0
    if len(tensors) < added + 2:
        return None
    first, second = tensors[added : added + 2]
    stacked = first.shape[:-2] if len(first.shape) == len(second.shape) else ()
    return call.read + prod(stacked) * first.shape[-2] * second.shape[-1] * max(call.size(first), 2)


def _convolution(call: _Call) -> int | None:
    """Inputs and the output, of 2 operations for each weight that reaches it; backward the gradients asked for."""
    inputs = call.inputs
    is_backward = bool(BACKWARD.search(call.name))
    image, weight = call.at(is_backward), call.at(is_backward + 1)
    if image is None or weight is None or not inputs.values:
        return None
    if is_backward:
        asked = re.findall(r"True|False", inputs.values[-1])
        return call.read + sum(
            call.dense(each) for each, word in zip((image, weight), asked, strict=False) if word == "True"
        )
    shapes = tuple(operand.shape if isinstance(operand, TensorInput) else () for operand in inputs.operands)
    flops = count_flops(Product(call.name, shapes, inputs.kinds, inputs.values))
    return None if flops is None else call.read + flops // (2 * prod(weight.shape[1:])) * call.size(image)


def _attention(call: _Call) -> int | None:
    """Queries, keys, values, the output, and a logarithm of a sum in fp32 for each query; backward each gradient."""
    operands = [tensor for tensor in call.inputs.tensors if len(tensor.shape) in (3, 4)]
    is_backward = bool(BACKWARD.search(call.name))
    if len(operands) < is_backward + 3:
        return None
    query, key, value = operands[is_backward : is_backward + 3]
    if is_backward:
        return call.read + call.dense(query, key, value)
    return call.read + prod(query.shape[:-1]) * (value.shape[-1] * call.size(query) + 4)


def _embedding(call: _Call) -> int | None:
    table, numbers = call.at(0), call.at(1)
    if table is None or numbers is None:
        return None
    if "backward" in call.name:
        rows = next((int(value) for value in call.inputs.values if value.isdigit()), 0)
        return call.read + rows * table.shape[-1] * call.size(table)
    return 2 * prod(numbers.shape) * prod(table.shape[1:]) * call.size(table) + call.bytes(numbers)


def _fused_optimizer(call: _Call) -> int | None:
    lists = [each for each in call.inputs.operands if isinstance(each, tuple) and each and each[0].shape]
    sizes = [call.bytes(*operand) for operand in lists]
    return 2 * sum(sizes) - sizes[1] if sizes[1:] and call.in_lists else None


_COMPARISON = re.compile(r"^(?:eq|ne|lt|le|gt|ge|isnan|isinf|logical_\w+|bitwise_\w+)\b")
_RULES: tuple[tuple[re.Pattern[str], _Rule], ...] = (
    (re.compile(r"^triton_|^triton::"), lambda call: call.read),
    (re.compile(r"convolution"), _convolution),
    (re.compile(r"^\w*mm\w*$"), _product),
    (re.compile(r"attention|_flash_attn|flash_attn"), _attention),
    (re.compile(r"^_fused_(?:adam|adamw|sgd|adagrad)"), _fused_optimizer),
    (re.compile(r"^embedding"), _embedding),
    (re.compile(r"^nll_loss"), lambda _: None),
    (re.compile(r"^(?:copy_|_foreach_copy_)$"), _copy),
    (re.compile(r"^(?:zero_|fill_|_foreach_zero_|normal_|uniform_|bernoulli_|random_)$"), lambda call: call.target),
    (
        re.compile(
            r"^(?:sum|mean|amax|amin|max|min|prod|norm|linalg_vector_norm|var|var_mean|std|any|all|logsumexp|_foreach_norm|"
            r"_amp_foreach_non_finite_check_and_unscale_)$"
        ),
        lambda call: call.read,
    ),
    (re.compile(r"^_(?:log_)?softmax|^(?:clone|triu|tril|cumsum|native_dropout)$|norm(?:_backward)?$"), _like_first),
    (re.compile(r"^(?:cat|stack)$"), lambda call: 2 * call.read),
    (re.compile(r"[a-z]_$"), lambda call: call.read + call.target),
    (
        re.compile(
            r"^(?:add|sub|rsub|mul|div|pow|sqrt|rsqrt|exp|log|neg|abs|sigmoid|tanh|silu|gelu|relu|clamp\w*|where|"
            r"maximum|minimum|sin|cos|reciprocal|square|erf|lerp|addcmul|addcdiv|masked_fill|threshold|leaky_relu|"
            r"sign|isnan|isinf|eq|ne|lt|le|gt|ge|logical_\w+|bitwise_\w+|\w+_backward|_foreach_\w+?)$"
        ),
        _elementwise,
    ),
)
