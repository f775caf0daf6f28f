"""The history of one device's allocator."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec import Struct, field

from perfscope.tables.columns import Bool, Int64, nothing
from perfscope.wire.memory import MemoryHeader


class Frame(NamedTuple):
    """A frame of a stack."""

    file: str
    line: int
    function: str


class AllocatorEvents(Struct, frozen=True, eq=False):
    """What the allocator did, in the order of time; one row an event.

    Attributes:
        actions: The letters of ``perfscope.wire.memory.ACTIONS``.
        addresses: The address; the free bytes of the device at an out-of-memory error.
        times_us: The wall clock; 0 where it was not recorded.
        stacks: The number of the stack, -1 without one.
    """

    actions: npt.NDArray[np.bytes_]
    addresses: Int64
    sizes: Int64
    times_us: Int64
    stacks: Int64

    def __len__(self) -> int:
        return len(self.actions)

    def select(self, rows: Bool) -> AllocatorEvents:
        """Some of the rows."""
        return AllocatorEvents(
            self.actions[rows], self.addresses[rows], self.sizes[rows], self.times_us[rows], self.stacks[rows]
        )


class Blocks(Struct, frozen=True, eq=False):
    """The blocks at the end of the history that tensors hold; one row a block.

    ``requested`` is the bytes that were asked for, ``stacks`` the number of the stack that allocated it, -1 without
    one.
    """

    addresses: Int64
    sizes: Int64
    requested: Int64
    stacks: Int64


class Tensors(Struct, frozen=True, eq=False):
    """Stretches of memory whose purpose the process knew at one moment.

    ``roles`` are ``weights``, ``gradients`` or ``optimizer``; ``names`` the parameter, or the state.
    """

    addresses: Int64 = field(default_factory=nothing)
    sizes: Int64 = field(default_factory=nothing)
    roles: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


class Marks(Struct, frozen=True, eq=False):
    """When modules ran forward and steps began, on the wall clock.

    ``signs``: ``>`` a module's forward pass begins, ``<`` it ends, ``|`` a step begins. ``names``: the module's path,
    or the step.
    """

    times_ns: Int64 = field(default_factory=nothing)
    signs: str = ""
    names: tuple[str, ...] = ()


class AllocatorHistory(Struct, frozen=True, eq=False):
    """The history of one device's allocator, and what it held at the end.

    Attributes:
        header: What the process knew; None in snapshots that torch wrote.
        blocks: The blocks that tensors hold at the end.
        reserved_bytes: What the allocator held of the device's memory at the end.
        stacks: Numbers of frames, innermost first, of each stack.
        start, end: Tensors at the begin of the recording, and at its end.
    """

    path: str
    device: int
    header: MemoryHeader | None
    events: AllocatorEvents
    blocks: Blocks
    reserved_bytes: int
    stacks: tuple[tuple[int, ...], ...]
    frames: tuple[Frame, ...]
    start: Tensors = field(default_factory=Tensors)
    end: Tensors = field(default_factory=Tensors)
    marks: Marks = field(default_factory=Marks)
    damage: tuple[str, ...] = ()
