"""Whether the shards that several ranks wrote to safetensors files leave gaps: then the file of a rank is missing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from perfscope.sources.checkpoints.safetensors import StoredTensor


@dataclass(slots=True)
class _Extent:
    """What is there of a tensor: where its shards end along each axis, and their elements."""

    ends: list[int]
    elements: int = 0


class ShardExtents:
    """The tensors whose shards state their places. No file states the whole size, so a last shard is not missed."""

    def __init__(self) -> None:
        self._extents: dict[str, _Extent] = {}

    def add(self, tensors: Iterable[StoredTensor]) -> None:
        """Add the tensors of a file."""
        for tensor in tensors:
            if tensor.offsets is None or len(tensor.offsets) != len(tensor.shape):
                continue
            ends = [offset + size for offset, size in zip(tensor.offsets, tensor.shape, strict=True)]
            extent = self._extents.setdefault(tensor.name, _Extent(ends))
            extent.ends = list(map(max, extent.ends, ends))
            extent.elements += tensor.elements

    def find_gaps(self) -> list[str]:
        """That tensors lack shards before others of theirs, in words."""
        lacking = [name for name, extent in self._extents.items() if 0 < extent.elements < prod(extent.ends)]
        if not lacking:
            return []
        what = f"{len(lacking):,} tensors lack shards" if len(lacking) > 1 else "1 tensor lacks shards"
        return [f"{what} before others of theirs, {lacking[0][:60]!r} first: the file of a rank is missing"]
