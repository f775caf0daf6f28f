"""Schedules whose backward pass is not split: GPipe, 1F1B and interleaved 1F1B."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from perfscope.schedules.operations import Block, PassKind, Plan, linear_plan, single_block


def gpipe_order(device: int, _devices: int, microbatches: int) -> Iterator[Block]:
    """All forward passes, then all backward passes (Huang et al. 2019, arXiv 1811.06965)."""
    yield from (single_block(PassKind.FORWARD, index, device) for index in range(microbatches))
    yield from (single_block(PassKind.BACKWARD, index, device) for index in range(microbatches))


def one_f_one_b_order(device: int, devices: int, microbatches: int) -> Iterator[Block]:
    """Forward passes until the first gradient can return, then one backward for each forward (arXiv 1806.03377)."""
    warmup = min(devices - 1 - device, microbatches)
    yield from (single_block(PassKind.FORWARD, index, device) for index in range(warmup))
    for index in range(microbatches):
        if warmup + index < microbatches:
            yield single_block(PassKind.FORWARD, warmup + index, device)
        yield single_block(PassKind.BACKWARD, index, device)


def interleaved_plan(devices: int, microbatches: int, chunks: int) -> Plan:
    """1F1B over v virtual stages a device, in groups of at least p micro-batches (Narayanan et al., arXiv 2104.04473).

    Where m is not a multiple of p the groups are as equal as they can be, as in torch.distributed.pipelining.
    """
    if chunks == 1:
        return linear_plan(one_f_one_b_order, devices, microbatches)
    groups = _group_microbatches(devices, microbatches)
    forwards = [(microbatch, chunk) for group in groups for chunk in range(chunks) for microbatch in group]
    backwards = [(microbatch, chunk) for group in groups for chunk in range(chunks - 1, -1, -1) for microbatch in group]

    def order(device: int) -> Iterator[Block]:
        warmup = min(2 * (devices - device - 1) + (chunks - 1) * len(groups[0]), len(forwards))
        for index in range(warmup + len(backwards)):
            if index < len(forwards):
                microbatch, chunk = forwards[index]
                yield single_block(PassKind.FORWARD, microbatch, chunk * devices + device)
            if index >= warmup:
                microbatch, chunk = backwards[index - warmup]
                yield single_block(PassKind.BACKWARD, microbatch, chunk * devices + device)

    return Plan(microbatches, devices * chunks, tuple(tuple(order(device)) for device in range(devices)))


def _group_microbatches(devices: int, microbatches: int) -> list[range]:
    """As many groups as hold p micro-batches each, the larger ones first."""
    count = max(1, microbatches // devices)
    size, larger = divmod(microbatches, count)
    starts = [index * size + min(index, larger) for index in range(count + 1)]
    return [range(start, stop) for start, stop in pairwise(starts)]
