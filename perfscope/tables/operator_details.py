"""What the profiler knows of operators besides their times: their node of autograd, and their inputs."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from perfscope.tables.columns import Bool, Int64

#: An integer that the trace does not state.
_ABSENT = -1


class TensorInput(Struct, frozen=True):
    """A tensor among the inputs of an operator.

    ``strides`` are none where they are not stated; ``element`` is as the profiler names it, ``""`` where it is not
    stated.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] = ()
    element: str = ""

    @property
    def elements(self) -> int:
        """How many elements it has in memory: those of an expanded dimension are there once."""
        if len(self.strides) != len(self.shape):
            return prod(self.shape)
        return prod(size for size, stride in zip(self.shape, self.strides, strict=True) if stride or not size)


#: An input: a tensor, a list of tensors, or None for anything else.
Operand: TypeAlias = "TensorInput | tuple[TensorInput, ...] | None"


class OperatorInputs(Struct, frozen=True):
    """The inputs of a call of an operator.

    Attributes:
        kinds: The type of each input as the profiler names it, ``TensorList`` of a list; none where not stated.
        values: Those that are numbers, as they are written; none where they are not stated, or not needed.
    """

    operands: tuple[Operand, ...]
    kinds: tuple[str, ...] = ()
    values: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[TensorInput, ...]:
        """All tensors, those of lists among them."""
        flat: list[TensorInput] = []
        for operand in self.operands:
            if isinstance(operand, TensorInput):
                flat.append(operand)
            elif operand:
                flat.extend(operand)
        return tuple(flat)


class OperatorDetails(Struct, frozen=True, eq=False):
    """Columns beside those of ``Trace.operators``, with as many rows.

    Attributes:
        sequence: The number that an operator shares with its node of autograd, or ABSENT; a thread counts its own.
        forward_thread: Of a node of autograd the profiler's number of the thread that ran its operator forward; 0 or
            ABSENT for others.
        inputs: Index into ``distinct_inputs``, or ABSENT.
        distinct_inputs: The inputs of calls, each distinct ones once.
    """

    sequence: Int64
    forward_thread: Int64
    inputs: Int64
    distinct_inputs: Sequence[OperatorInputs] = ()

    def take(self, index: Int64 | Bool) -> OperatorDetails:
        """Those of some rows."""
        return OperatorDetails(
            self.sequence[index], self.forward_thread[index], self.inputs[index], self.distinct_inputs
        )


def no_details(rows: int = 0) -> OperatorDetails:
    """Details that say nothing of some operators."""
    nothing = np.full(rows, _ABSENT, np.int64)
    return OperatorDetails(nothing, nothing, nothing)


def join_details(parts: Sequence[OperatorDetails]) -> OperatorDetails:
    """The rows of several tables, one after the other; they have the same distinct inputs, or none."""
    distinct = max((part.distinct_inputs for part in parts), key=len, default=())
    sequence, forward_thread, inputs = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("sequence", "forward_thread", "inputs")
    )
    return OperatorDetails(sequence, forward_thread, inputs, distinct)
