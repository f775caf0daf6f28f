"""What would lower the peak: the window replayed with some tensors freed, smaller, or recomputed.

Each change is replayed over the whole window, because the peak moves: bytes saved at one moment need not lower it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated

import numpy as np

from perfscope.analyzers.memory.categories import Category, Purposes
from perfscope.analyzers.memory.lifetimes import BEFORE, Lifetimes
from perfscope.result import Doc, Figures
from perfscope.tables.columns import Bool, Int64

_CHUNKS = 8
_LAYER = re.compile(r"^(?P<stack>(?:[^.]+\.)*?)(?P<number>\d+)(?:\.|$)")
_LOSS = ("cross_entropy", "log_softmax", "nll_loss")
#: A smaller saving is not worth a change.
_SMALLEST_SHARE = 0.01


class Saving(Figures, frozen=True):
    """A change that lowers the peak."""

    change: Annotated[str, Doc("What to change, and how.")]
    saved_bytes: Annotated[int, Doc("How much lower the peak of the window is.")]
    price: Annotated[str, Doc("What it costs, in words.")]


def find_savings(lifetimes: Lifetimes, purposes: Purposes, peak: int, *, replicas: int = 1) -> tuple[Saving, ...]:
    """The changes that lower the peak by a percent or more, the most effective first."""
    present = int(lifetimes.allocated[peak]) if peak > BEFORE else lifetimes.initial
    finders = (_recompute_layers, _chunk_loss)
    savings = [saving for find in finders for saving in find(lifetimes, purposes, present)]
    if replicas > 1:
        savings += _shard_states(lifetimes, purposes, present, replicas)
    worthwhile = (saving for saving in savings if saving.saved_bytes >= _SMALLEST_SHARE * present)
    return tuple(sorted(worthwhile, key=lambda saving: -saving.saved_bytes))


def _peak_with(lifetimes: Lifetimes, deltas: Int64) -> int:
    changed = lifetimes.allocated + np.cumsum(deltas[:-1])
    return int(changed.max()) if len(changed) else lifetimes.initial


def _without(lifetimes: Lifetimes, rows: Bool, share: float) -> Int64:
    deltas = np.zeros(len(lifetimes.allocated) + 1, np.int64)
    sizes = (lifetimes.rounded[rows] * share).astype(np.int64)
    np.subtract.at(deltas, np.maximum(lifetimes.begins[rows], 0), sizes)
    np.add.at(deltas, lifetimes.ends[rows], sizes)
    return deltas


def _recompute_layers(lifetimes: Lifetimes, purposes: Purposes, present: int) -> Iterator[Saving]:
    """Keep the output of each repeated layer alone, and run its forward pass again in the backward pass."""
    for stack, layers in _find_layers(lifetimes, purposes).items():
        deltas = np.zeros(len(lifetimes.allocated) + 1, np.int64)
        for rows in layers:
            deltas += _recompute_layer(lifetimes, rows)
        saved = present - _peak_with(lifetimes, deltas)
        yield Saving(
            f"recompute each of the {_count_layers(purposes, stack)} layers of {_name_stack(stack)} "
            "in the backward pass (activation checkpointing)",
            saved,
            "their forward pass runs once more: up to a third more operations",
        )


def _name_stack(stack: str) -> str:
    return f"`{stack}`" if stack else "the model"


def _count_layers(purposes: Purposes, stack: str) -> int:
    numbers = (_LAYER.match(name) for name in purposes.module_names)
    return len({match["number"] for match in numbers if match is not None and match["stack"].rstrip(".") == stack})


def _find_layers(lifetimes: Lifetimes, purposes: Purposes) -> dict[str, list[Int64]]:
    """The kept activations of each repeated layer in each step, by the path of the layers' container."""
    is_kept = purposes.is_forward & (purposes.categories == Category.ACTIVATIONS) & (purposes.modules >= 0)
    boundaries = np.array([event for event, _ in purposes.steps], np.int64)
    names = [_LAYER.match(name) for name in purposes.module_names]
    groups: dict[str, dict[tuple[str, int], list[int]]] = {}
    for row in np.flatnonzero(is_kept):
        match = names[purposes.modules[row]]
        if match is not None:
            step = int(np.searchsorted(boundaries, lifetimes.begins[row], side="right"))
            layer = groups.setdefault(match["stack"].rstrip("."), {})
            layer.setdefault((match["number"], step), []).append(int(row))
    return {
        stack: [np.array(rows, np.int64) for rows in layers.values()]
        for stack, layers in groups.items()
        if len({number for number, _ in layers}) > 1
    }


def _recompute_layer(lifetimes: Lifetimes, rows: Int64) -> Int64:
    """Deltas where one layer keeps its output alone until its backward pass begins, which makes the rest again."""
    begins, ends, sizes = lifetimes.begins[rows], lifetimes.ends[rows], lifetimes.rounded[rows]
    output = int(np.argmax(begins))
    last_begin = int(begins.max())
    first_end = int(ends.min())
    deltas = np.zeros(len(lifetimes.allocated) + 1, np.int64)
    is_freed = np.ones(len(rows), np.bool_)
    is_freed[output] = False
    is_freed &= ends > last_begin
    if first_end > last_begin:
        deltas[last_begin] -= int(sizes[is_freed].sum())
        deltas[first_end] += int(sizes[is_freed].sum())
    return deltas


def _chunk_loss(lifetimes: Lifetimes, purposes: Purposes, present: int) -> Iterator[Saving]:
    """The logits, what the cross entropy makes of them, and their gradients: tensors of one number of elements."""
    is_loss = [any(name in fact.operation for name in _LOSS) for fact in purposes.stack_facts]
    rows = np.flatnonzero(np.array([*is_loss, False])[lifetimes.stacks] & (lifetimes.begins > BEFORE))
    if not len(rows):
        return
    largest = int(lifetimes.rounded[rows].max())
    sizes = lifetimes.rounded
    temporary = np.isin(purposes.categories, (Category.ACTIVATIONS, Category.WORKSPACE)) & (lifetimes.begins > BEFORE)
    chunked = temporary & ((sizes == largest) | (2 * sizes == largest))
    deltas = _without(lifetimes, chunked, 1 - 1 / _CHUNKS)
    yield Saving(
        f"compute the output layer and the loss in {_CHUNKS} chunks of the tokens, or by a fused cross entropy",
        present - _peak_with(lifetimes, deltas),
        "the output layer runs once more in the backward pass; a fused kernel needs no more operations",
    )


def _shard_states(lifetimes: Lifetimes, purposes: Purposes, present: int, replicas: int) -> Iterator[Saving]:
    shared = [Category.OPTIMIZER]
    for stage, (word, category) in enumerate(
        (("optimizer states", Category.OPTIMIZER), ("gradients, too", Category.GRADIENTS)), start=1
    ):
        shared.append(category)
        deltas = _without(lifetimes, np.isin(purposes.categories, shared), 1 - 1 / replicas)
        yield Saving(
            f"split the {word} over {replicas} ranks (ZeRO stage {stage})",
            present - _peak_with(lifetimes, deltas),
            "none: as many bytes are sent",
        )
