"""Collects the details of operators: their numbers in autograd, and their inputs, each distinct ones once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeAlias

import msgspec
import numpy as np

from perfscope.sources.traces.records import AnyEvent, ShapedArgs
from perfscope.sources.traces.stream import FAILURES
from perfscope.tables.columns import Int64
from perfscope.tables.operator_details import Operand, OperatorDetails, OperatorInputs, TensorInput
from perfscope.tables.trace import ABSENT

#: Operators whose costs follow from numbers among their inputs, too; of others these are left out, because a
#: learning rate that changes with each step would make every call a distinct one.
_NEEDS_VALUES = re.compile(
    r"conv|attention|varlen|\bfwd|\bbwd|embedding|topk|narrow|repeat|one_hot|sum|mean|amax|argmax|norm|cumsum|"
    r"dropout|pad|upsample|pool|_to_copy|full|arange|softmax"
)
_LISTS = "TensorList"
_NO_TENSORS = ("", "Scalar", "ScalarList", "Int", "Double", "Bool", "Str", "None", "GenericList")
_Texts: TypeAlias = tuple[bytes, bytes, bytes, bytes]


class InputTexts:
    """The inputs of operators as they are written, each distinct ones with a number."""

    def __init__(self) -> None:
        self._numbers: dict[_Texts, int] = {}
        self._needs_values: dict[str, bool] = {}

    def number(self, events: Sequence[AnyEvent]) -> Int64:
        """The number of the inputs of each operator, or ABSENT."""
        numbers = self._numbers
        column = np.full(len(events), ABSENT, np.int64)
        for row, event in enumerate(events):
            args = event.args
            if not isinstance(args, ShapedArgs) or not args.dims:
                continue
            values = bytes(args.values) if self._are_values_needed(event.name) else b""
            texts = bytes(args.dims), bytes(args.strides), bytes(args.types), values
            column[row] = numbers.setdefault(texts, len(numbers))
        return column

    def _are_values_needed(self, name: str) -> bool:
        needed = self._needs_values.get(name)
        if needed is None:
            needed = self._needs_values[name] = bool(_NEEDS_VALUES.search(name))
        return needed

    def details(self, sequence: Int64, forward_thread: Int64, inputs: Int64) -> OperatorDetails:
        """Finish the columns."""
        return OperatorDetails(sequence, forward_thread, inputs, tuple(map(_parse, self._numbers)))


def _parse(texts: _Texts) -> OperatorInputs:
    dims, strides, types, values = (_decode(text) for text in texts)
    operands = tuple(
        _operand(shape, _at(strides, index), _at(types, index)) if _is_tensor(_at(types, index)) else None
        for index, shape in enumerate(dims)
    )
    return OperatorInputs(operands, tuple(map(str, types)), tuple(map(str, values)))


def _decode(text: bytes) -> list[object]:
    try:
        return msgspec.json.decode(text, type=list[object]) if text else []
    except FAILURES:
        return []


def _at(values: Sequence[object], index: int) -> object:
    return values[index] if index < len(values) else None


def _is_tensor(kind: object) -> bool:
    """Whether an input of a type is a tensor, or a list of them; a type that is not stated may be."""
    return kind is None or kind not in _NO_TENSORS


def _operand(shape: object, strides: object, kind: object) -> Operand:
    if not isinstance(shape, list):
        return None
    if kind == _LISTS or any(isinstance(size, list) for size in shape):
        steps = strides if isinstance(strides, list) else []
        return tuple(_tensor(inner, _at(steps, index), "") for index, inner in enumerate(shape))
    return _tensor(shape, strides, str(kind or ""))


def _tensor(shape: object, strides: object, element: str) -> TensorInput:
    return TensorInput(_integers(shape), _integers(strides), element)


def _integers(values: object) -> tuple[int, ...]:
    return tuple(value for value in values if isinstance(value, int)) if isinstance(values, list) else ()
