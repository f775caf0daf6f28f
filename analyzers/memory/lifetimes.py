"""From when to when each allocation lived, the bytes that were allocated meanwhile, and when they were the most."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.tables.columns import Bool, Int64
from perfscope.tables.memory import AllocatorHistory

#: The allocator rounds each request up to a multiple of this.
ROUNDING_BYTES = 512
BEFORE = -1
_ALLOC, _FREE = b"a", b"f"
_SEGMENT_SIGNS = {b"S": 1, b"M": 1, b"F": -1, b"U": -1}


@dataclass(frozen=True, slots=True, eq=False)
class Lifetimes:
    """Every allocation of a history; one row an allocation, those from before the history first.

    Attributes:
        begins, ends: The events that allocated and freed it; -1 and the number of events where the history has none.
        rounded: The bytes that it took: as the snapshot says, else rounded up.
        allocated, reserved: The bytes of all allocations, and of the allocator, after each event.
        lost: Events that contradict each other: a free without an allocation, an address allocated twice.
    """

    begins: Int64
    ends: Int64
    addresses: Int64
    sizes: Int64
    rounded: Int64
    stacks: Int64
    allocated: Int64
    reserved: Int64
    initial: int
    initial_reserved: int
    lost: int

    @property
    def peak(self) -> int:
        """The event behind which most was allocated; -1 where that was before the first one."""
        if not len(self.allocated):
            return BEFORE
        event = int(np.argmax(self.allocated))
        return event if self.allocated[event] > self.initial else BEFORE

    def alive_behind(self, event: int) -> Bool:
        """Which allocations lived behind an event."""
        return (self.begins <= event) & (self.ends > event)


def follow(history: AllocatorHistory) -> Lifetimes:
    """Pair each allocation with its free, address by address."""
    events, blocks = history.events, history.blocks
    count = len(events)
    rows = np.flatnonzero((events.actions == _ALLOC) | (events.actions == _FREE))
    rows = rows[np.argsort(events.addresses[rows], kind="stable")]
    is_alloc, addresses = events.actions[rows] == _ALLOC, events.addresses[rows]
    same_next = np.append(addresses[1:] == addresses[:-1], False) if len(rows) else np.zeros(0, np.bool_)
    next_row = np.append(rows[1:], count) if len(rows) else rows
    same_before = np.concatenate(([False], same_next[:-1])) if len(rows) else same_next
    before_is_alloc = np.concatenate(([False], is_alloc[:-1])) if len(rows) else is_alloc
    allocs, stray = rows[is_alloc], rows[~is_alloc & ~(same_before & before_is_alloc)]
    ends = np.where(same_next, next_row, count)[is_alloc]
    first_frees = rows[~is_alloc & ~same_before]
    twice = int((is_alloc & same_next & np.append(is_alloc[1:], False)).sum()) if len(rows) else 0
    is_old = ~np.isin(blocks.addresses, events.addresses[allocs[ends == count]])
    old_frees = first_frees[events.sizes[first_frees] > 0]
    begins = np.concatenate([np.full(int(is_old.sum()) + len(old_frees), BEFORE), allocs])
    all_ends = np.concatenate([np.full(int(is_old.sum()), count), old_frees, ends])
    all_addresses = np.concatenate([blocks.addresses[is_old], events.addresses[old_frees], events.addresses[allocs]])
    sizes = np.concatenate([blocks.requested[is_old], events.sizes[old_frees], events.sizes[allocs]])
    stacks = np.concatenate([blocks.stacks[is_old], np.full(len(old_frees), -1), events.stacks[allocs]])
    rounded = _take_block_sizes(history, all_addresses, _round_up(sizes), all_ends == count)
    allocated, initial = _curve(begins, all_ends, rounded, count)
    reserved, initial_reserved = _reserved_curve(history)
    lost = twice + len(stray) - len(first_frees)
    return Lifetimes(
        begins, all_ends, all_addresses, sizes, rounded, stacks, allocated, reserved, initial, initial_reserved, lost
    )


def _round_up(sizes: Int64) -> Int64:
    rounded: Int64 = -(-sizes // ROUNDING_BYTES) * ROUNDING_BYTES
    return rounded


def _take_block_sizes(history: AllocatorHistory, addresses: Int64, rounded: Int64, is_live: Bool) -> Int64:
    """The sizes of the blocks at the end, which may be larger than a request rounded up: a rest too small to split."""
    order = np.argsort(history.blocks.addresses)
    begins = history.blocks.addresses[order]
    places = np.searchsorted(begins, addresses)
    inside = np.minimum(places, max(len(begins) - 1, 0))
    matches = is_live & (places < len(begins)) & (begins[inside] == addresses if len(begins) else False)
    return np.where(matches, history.blocks.sizes[order][inside] if len(begins) else 0, rounded)


def _curve(begins: Int64, ends: Int64, sizes: Int64, count: int) -> tuple[Int64, int]:
    """The sum behind each event, and before the first one."""
    deltas = np.zeros(count + 1, np.int64)
    inside = begins >= 0
    np.add.at(deltas, begins[inside], sizes[inside])
    np.subtract.at(deltas, ends, sizes)
    initial = int(sizes[~inside].sum())
    return initial + np.cumsum(deltas[:count]), initial


def _reserved_curve(history: AllocatorHistory) -> tuple[Int64, int]:
    """The reserved bytes are known at the end; segments that came and went say what they were before."""
    events = history.events
    deltas = np.zeros(len(events), np.int64)
    for action, sign in _SEGMENT_SIGNS.items():
        rows = events.actions == action
        deltas[rows] = sign * events.sizes[rows]
    initial = history.reserved_bytes - int(deltas.sum())
    return initial + np.cumsum(deltas), initial
