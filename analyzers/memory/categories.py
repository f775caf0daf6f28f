"""When each allocation lived, and what it is for.

Weights, gradients and optimizer states are known by their addresses, where the hooks noted them; else by when they
live. An activation is allocated by a forward pass and still live when a backward pass begins to allocate. Workspace is
temporary tensors: freed before that, or allocated and freed within a backward pass or an optimizer step.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from perfscope.constants import NS_PER_US
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.memory import AllocatorHistory, Frame, Tensors
from perfscope.wire.memory import BEGIN, COMMUNICATION, END, GRADIENTS, OPTIMIZER, STEP, WEIGHTS

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


def follow(history: AllocatorHistory) -> Lifetimes:
    """Pair each allocation with its free, address by address."""
    events, blocks = history.events, history.blocks
    count = len(events)
    rows = np.flatnonzero((events.actions == _ALLOC) | (events.actions == _FREE))
    rows = rows[np.argsort(events.addresses[rows], kind="stable")]
    is_alloc, addresses = events.actions[rows] == _ALLOC, events.addresses[rows]
    same_next = addresses == np.roll(addresses, -1)
    same_next[-1:] = False  # behind the last one stands the first
    same_before = np.roll(same_next, 1)
    allocs, stray = rows[is_alloc], rows[~is_alloc & ~(same_before & np.roll(is_alloc, 1))]
    ends = np.where(same_next, np.roll(rows, -1), count)[is_alloc]
    first_frees = rows[~is_alloc & ~same_before]
    twice = int((is_alloc & same_next & np.roll(is_alloc, -1)).sum())
    is_old = ~np.isin(blocks.addresses, events.addresses[allocs[ends == count]])
    old_frees = first_frees[events.sizes[first_frees] > 0]
    begins = np.concatenate([np.full(int(is_old.sum()) + len(old_frees), BEFORE), allocs])
    all_ends = np.concatenate([np.full(int(is_old.sum()), count), old_frees, ends])
    all_addresses = np.concatenate([blocks.addresses[is_old], events.addresses[old_frees], events.addresses[allocs]])
    sizes = np.concatenate([blocks.requested[is_old], events.sizes[old_frees], events.sizes[allocs]])
    stacks = np.concatenate([blocks.stacks[is_old], np.full(len(old_frees), -1), events.stacks[allocs]])
    rounded = _take_block_sizes(history, all_addresses, -(-sizes // ROUNDING_BYTES) * ROUNDING_BYTES, all_ends == count)
    allocated, initial = add_up_living(begins, all_ends, rounded, count)
    reserved, initial_reserved = _reserved_curve(history)
    lost = twice + len(stray) - len(first_frees)
    return Lifetimes(
        begins, all_ends, all_addresses, sizes, rounded, stacks, allocated, reserved, initial, initial_reserved, lost
    )


def _take_block_sizes(history: AllocatorHistory, addresses: Int64, rounded: Int64, is_live: Bool) -> Int64:
    """The sizes of the blocks at the end, which may be larger than a request rounded up: a rest too small to split."""
    order = np.argsort(history.blocks.addresses)
    begins = history.blocks.addresses[order]
    places = np.searchsorted(begins, addresses)
    inside = np.minimum(places, max(len(begins) - 1, 0))
    matches = is_live & (places < len(begins)) & (begins[inside] == addresses if len(begins) else False)
    return np.where(matches, history.blocks.sizes[order][inside] if len(begins) else 0, rounded)


def add_up_living(begins: Int64, ends: Int64, sizes: Int64, count: int) -> tuple[Int64, int]:
    """The bytes of some allocations that live after each of ``count`` events, and before the first one."""
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


#: Frames that stand at the root of a thread that runs a script.
_ROOTS = ("<module>", "_run_module_as_main", "_bootstrap", "_run_code")
_COMMUNICATION = (
    "torch/distributed/fsdp/",
    "torch/distributed/distributed_c10d.py",
    "torch/distributed/_functional_collectives.py",
    "torch/distributed/_tensor/",
    "torch/distributed/tensor/",
    "torch/distributed/algorithms/",
    "deepspeed/comm/",
    "deepspeed/runtime/comm/",
    "deepspeed/runtime/zero/partition_parameters.py",
    "deepspeed/runtime/zero/partitioned_param_coordinator.py",
    "megatron/core/distributed/",
    "megatron/core/tensor_parallel/mappings.py",
)
_OPTIMIZER = ("torch/optim/", "deepspeed/runtime/bf16_optimizer.py", "deepspeed/runtime/fp16/", "apex/optimizers/")
_OPTIMIZER_FUNCTIONS = ("step", "_optimizer_step", "_take_model_step")
_BACKWARD = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
_RECOMPUTATION = "torch/utils/checkpoint.py"
_MODULE = "torch/nn/modules/module.py"
_MOVES = ("_apply", "convert", "to", "cuda")
_LIBRARIES = (
    "/torch/", "site-packages", "dist-packages", "/lib/python", "<frozen", "importlib",
    "/deepspeed/runtime/", "/deepspeed/utils/", "/deepspeed/comm/", "/megatron/core/",
)  # fmt: skip
#: What torch.compile generates; the frame behind it is the line of the script that it was made of.
_GENERATED = "/torchinductor_"


class StepPhase(IntEnum):
    """A part of a training step."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    UNKNOWN = 3


class StackFacts(NamedTuple):
    """What a stack tells; ``place`` is the innermost line of the script or what it calls: ``train.py:12 forward``."""

    phase: StepPhase
    is_communication: bool = False
    is_recomputed: bool = False
    is_move: bool = False
    place: str = ""
    operation: str = ""


def _read_stack(frames: Sequence[Frame]) -> StackFacts:
    inner = frames[:6]  # those of a library around an allocation
    is_main = any(frame.function in _ROOTS for frame in frames)
    is_recomputed = not is_main and any(frame.file.endswith(_RECOMPUTATION) for frame in frames)
    return StackFacts(
        phase=_find_phase(frames, is_main=is_main),
        is_communication=any(_is_in(frame, _COMMUNICATION) for frame in inner),
        is_recomputed=is_recomputed,
        is_move=any(frame.file.endswith(_MODULE) and frame.function in _MOVES for frame in inner),
        place=next((_show(frame) for frame in frames if not _is_in(frame, (*_LIBRARIES, _GENERATED))), ""),
        operation=next((_show(frame) for frame in frames if _GENERATED not in frame.file), ""),
    )


def _find_phase(frames: Sequence[Frame], *, is_main: bool) -> StepPhase:
    if any(_is_in(frame, _OPTIMIZER) and not frame.function.startswith("zero_grad") for frame in frames):
        return StepPhase.OPTIMIZER
    if not is_main or any(frame.file.endswith(_BACKWARD) for frame in frames):
        return StepPhase.BACKWARD
    if any(frame.function in _OPTIMIZER_FUNCTIONS and "deepspeed/runtime" in frame.file for frame in frames):
        return StepPhase.OPTIMIZER
    return StepPhase.FORWARD


def _is_in(frame: Frame, folders: Sequence[str]) -> bool:
    return any(folder in frame.file for folder in folders)


def _show(frame: Frame) -> str:
    return f"{frame.file.rpartition('/')[2]}:{frame.line} {frame.function}"


_NUMBERS = re.compile(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)")


class Category(IntEnum):
    """What an allocation is for, in the order of tables and drawings."""

    WEIGHTS = 0
    GRADIENTS = 1
    OPTIMIZER = 2
    ACTIVATIONS = 3
    COMMUNICATION = 4
    WORKSPACE = 5
    BEFORE = 6
    OTHER = 7


#: The words of tables; fragmentation is no allocation.
CATEGORY_NAMES = (
    "weights", "gradients", "optimizer states", "activations", "communication buffers", "workspace",
    "from before the window", "not attributed",
)  # fmt: skip
_ROLES = {
    WEIGHTS: Category.WEIGHTS,
    GRADIENTS: Category.GRADIENTS,
    OPTIMIZER: Category.OPTIMIZER,
    COMMUNICATION: Category.COMMUNICATION,
}


@dataclass(frozen=True, slots=True, eq=False)
class Purposes:
    """The purpose of each allocation, one row each; a module is -1 for none, ``names`` are of parameters."""

    categories: npt.NDArray[np.int8]
    modules: Int64
    module_names: tuple[str, ...]
    names: dict[int, str]
    stack_facts: list[StackFacts]
    steps: tuple[tuple[int, int], ...]
    is_forward: Bool

    def place(self, stack: int) -> StackFacts | None:
        """What a stack tells, where there is one."""
        return self.stack_facts[stack] if 0 <= stack < len(self.stack_facts) else None


def fold_layers(path: str) -> str:
    """A module's path without the numbers of repeated layers.

    >>> fold_layers("model.layers.11.mlp.0")
    'model.layers.*.mlp.*'
    """
    return _NUMBERS.sub("*", path)


def find_purposes(history: AllocatorHistory, lifetimes: Lifetimes) -> Purposes:
    """Decide what each allocation is for."""
    facts = [_read_stack([history.frames[frame] for frame in stack]) for stack in history.stacks]
    nowhere = StackFacts(StepPhase.BACKWARD if facts else StepPhase.UNKNOWN)  # a stack of -1 is the last one
    table = np.array([fact[:4] for fact in (*facts, nowhere)], np.int64)
    stacks = np.where((lifetimes.stacks >= 0) & (lifetimes.stacks < len(facts)), lifetimes.stacks, -1)
    inside = lifetimes.begins > BEFORE
    forward, backward, optimizer = (inside & (table[stacks, 0] == phase) for phase in list(StepPhase)[:3])
    communication, recomputed, moved = (inside & (table[stacks, column] > 0) for column in (1, 2, 3))
    steps = _find_steps(history)
    modules, module_names = _find_modules(history, lifetimes)
    recomputed |= backward & (modules >= 0)
    backward_events = np.sort(lifetimes.begins[backward & ~recomputed & ~communication])

    categories = np.full(len(lifetimes.begins), Category.OTHER, np.int8)
    categories[~inside] = Category.BEFORE
    categories[forward | backward | optimizer] = Category.WORKSPACE
    lives_on = _lives_beyond_next(lifetimes, backward_events)
    categories[(forward & lives_on) | recomputed] = Category.ACTIVATIONS
    categories[optimizer & (lifetimes.ends == len(history.events))] = Category.OPTIMIZER
    boundaries = np.array([event for event, _ in steps], np.int64)
    if not len(boundaries):
        boundaries = np.sort(lifetimes.begins[optimizer])
    gradients = backward & ~recomputed & _lives_beyond_next(lifetimes, boundaries)
    categories[communication] = Category.COMMUNICATION
    categories[gradients] = Category.GRADIENTS
    categories[moved & (lifetimes.ends == len(history.events))] = Category.WEIGHTS
    names: dict[int, str] = {}
    _apply_tensors(history, lifetimes, categories, names)
    _apply_buckets(history, lifetimes, categories)
    return Purposes(categories, modules, module_names, names, facts, steps, forward | recomputed)


def _lives_beyond_next(lifetimes: Lifetimes, events: Int64) -> Bool:
    """Which allocations are still there at the next of some events behind their own."""
    if not len(events):
        return np.zeros(len(lifetimes.begins), np.bool_)
    places = np.searchsorted(events, lifetimes.begins, side="right")
    following = np.append(events, np.iinfo(np.int64).max)[places]
    return lifetimes.ends > following


def _find_steps(history: AllocatorHistory) -> tuple[tuple[int, int], ...]:
    """The first event of each step, and its number; events are recorded in whole microseconds."""
    marks = history.marks
    rows = [row for row, sign in enumerate(marks.signs) if sign == STEP and marks.names[row].isdigit()]
    events = np.searchsorted(history.events.times_us, marks.times_ns[rows] // NS_PER_US, side="left")
    return tuple((int(event), int(marks.names[row])) for event, row in zip(events, rows, strict=True))


def _find_modules(history: AllocatorHistory, lifetimes: Lifetimes) -> tuple[Int64, tuple[str, ...]]:
    """The innermost module that runs forward at each allocation; marks that do not pair close what is inside them."""
    marks = history.marks
    numbers: dict[str, int] = {}
    open_modules: list[int] = []
    innermost = [-1]
    for sign, name in zip(marks.signs, marks.names, strict=True):
        number = numbers.setdefault(name, len(numbers)) if sign in (BEGIN, END) else -1
        if sign == BEGIN:
            open_modules.append(number)
        elif sign == END and number in open_modules:
            while open_modules.pop() != number:
                pass
        elif sign == STEP:
            open_modules.clear()
        innermost.append(open_modules[-1] if open_modules else -1)
    inside = lifetimes.begins > BEFORE
    times_us = history.events.times_us[np.where(inside, lifetimes.begins, 0)] if len(history.events) else inside * 0
    places = np.searchsorted(marks.times_ns // NS_PER_US, times_us, side="right")
    modules = np.where(inside & (times_us > 0), np.array(innermost, np.int64)[places], -1)
    return modules, tuple(numbers)


def _apply_tensors(
    history: AllocatorHistory, lifetimes: Lifetimes, categories: npt.NDArray[np.int8], names: dict[int, str]
) -> None:
    """Weights, gradients and states by their addresses: those at the begin, and those at the end, which count more."""
    count = len(history.events)
    at_start, at_end = lifetimes.begins == BEFORE, lifetimes.ends == count
    for tensors, candidates in ((history.start, at_start), (history.end, at_end)):
        rows = np.flatnonzero(candidates)
        rows = rows[np.argsort(lifetimes.addresses[rows])]
        for row, tensor in _match(tensors, lifetimes, rows):
            categories[row] = _ROLES.get(tensors.roles[tensor], Category.OTHER)
            names[row] = tensors.names[tensor]


def _match(tensors: Tensors, lifetimes: Lifetimes, rows: Int64) -> list[tuple[int, int]]:
    """The allocation in which each tensor lies; of several tensors in one, the largest names it."""
    begins = lifetimes.addresses[rows]
    if not len(begins) or not len(tensors.addresses):
        return []
    places = np.searchsorted(begins, tensors.addresses, side="right") - 1
    ends = begins[np.maximum(places, 0)] + lifetimes.rounded[rows][np.maximum(places, 0)]
    matched = (places >= 0) & (tensors.addresses < ends)
    order = np.argsort(tensors.sizes, kind="stable")
    return [(int(rows[places[tensor]]), int(tensor)) for tensor in order if matched[tensor]]


def _apply_buckets(history: AllocatorHistory, lifetimes: Lifetimes, categories: npt.NDArray[np.int8]) -> None:
    """DDP's buckets are from before the window, have no stack of their own, and exactly these sizes."""
    sizes = Counter(history.header.bucket_bytes or ()) if history.header is not None else Counter[int]()
    for row in np.flatnonzero((categories == Category.BEFORE) & (lifetimes.ends == len(history.events))):
        size = int(lifetimes.sizes[row])
        if sizes[size] > 0:
            sizes[size] -= 1
            categories[row] = Category.COMMUNICATION
