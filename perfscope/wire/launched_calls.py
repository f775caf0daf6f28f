"""The last collectives that a rank launched, as words in memory that outlives its process.

A library that gives up ends a process at once, and a launcher then ends the others: no process is left to record their
calls. The memory is a file without a name in any folder (memfd). The process that waits for the ends of ranks
(``hooks/watch/coroner.py``) holds it open. It writes the calls down after a rank has ended badly.

The first word counts the calls; then comes a ring of them. A word holds an operation's number (8 bits), its group's
number (8 bits, 255 for none) and the elements of its first tensor (48 bits).

This module is imported inside training jobs: standard library only.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

#: The name of the memory in ``/proc/PID/fd``.
MEMORY_NAME = "perfscope-launched-calls"
SIZE_BYTES = 4096
#: Words of the ring.
RING = SIZE_BYTES // 8 - 1
UNKNOWN_GROUP = 255
_ELEMENTS_SHIFT, _GROUP_SHIFT, _BYTE = 16, 8, 0xFF
#: A backward pass, which launches the exchanges of DistributedDataParallel without Python.
BACKWARD = "backward"
_STEP = "step"
#: Methods of ``ProcessGroup``, and what torch's Flight Recorder calls them; the place is the operation's number.
_OPERATIONS = {
    _STEP: _STEP,
    BACKWARD: BACKWARD,
    "allreduce": "all_reduce",
    "allreduce_coalesced": "allreduce_coalesced",
    "allgather": "all_gather",
    "_allgather_base": "_all_gather_base",
    "allgather_coalesced": "all_gather_coalesced",
    "allgather_into_tensor_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "_reduce_scatter_base",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_tensor_coalesced",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "_end_coalescing": "coalesced",
    "all_gather_single": "_all_gather_base",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    "all_to_all_single": "all_to_all",
}
LAUNCHES = tuple(name for name in _OPERATIONS if name not in (_STEP, BACKWARD))
NUMBERS = {name: number for number, name in enumerate(_OPERATIONS)}
_NAMES = tuple(_OPERATIONS.values())
#: The end of a step, with its number instead of elements.
STEP_NUMBER = NUMBERS[_STEP]


class LaunchedCall(NamedTuple):
    """A collective, or a backward pass.

    Attributes:
        step: The number of steps whose ends were noted before it, and one.
        operation: As the Flight Recorder calls it, or ``backward``.
        group: The number of its group; None where it is not known.
        elements: Of its first tensor; 0 without one.
    """

    step: int
    operation: str
    group: int | None
    elements: int


def to_word(operation: int, group: int | None, elements: int) -> int:
    """Pack one call.

    >>> hex(to_word(2, 1, 4)), hex(to_word(2, None, 4))
    ('0x40102', '0x4ff02')
    """
    return elements << _ELEMENTS_SHIFT | (UNKNOWN_GROUP if group is None else group) << _GROUP_SHIFT | operation


def parse_memory(memory: bytes) -> tuple[LaunchedCall, ...]:
    """The calls that are remembered, the oldest first, from the beginning of a step on.

    Bytes that are no such memory give none.
    """
    if len(memory) != SIZE_BYTES:
        return ()
    count, *ring = struct.unpack(f"={SIZE_BYTES // 8}Q", memory)
    words = [ring[number % RING] for number in range(max(0, count - RING), count)]
    calls: list[LaunchedCall] = []
    step = 1 if count <= RING else None
    for word in words:
        operation, group, elements = word & _BYTE, word >> _GROUP_SHIFT & _BYTE, word >> _ELEMENTS_SHIFT
        if operation == STEP_NUMBER:
            step = elements + 1
        elif step is not None and operation < len(_NAMES):
            calls.append(LaunchedCall(step, _NAMES[operation], None if group == UNKNOWN_GROUP else group, elements))
    return tuple(calls)
