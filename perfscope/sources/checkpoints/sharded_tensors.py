"""Tensors of which each rank wrote its shard, or a copy, to a file of its own with ``torch.save``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from perfscope.sources.checkpoints.roles import find_role
from perfscope.sources.checkpoints.torch_files import TorchFile
from perfscope.tables.checkpoint import Kind, Role

_STATE = (Role.WEIGHTS, Role.MASTER, Role.MOMENTS)
_FEWEST_CHECKSUMS = 3
_NUMBER = re.compile(r"\d+")
_Path = tuple[str, ...]


@dataclass
class ShardedTensors:
    """The weights over the files of all ranks.

    Attributes:
        whole: Elements of each weight over all ranks, by the keys on the path to it.
        has_shards: Whether a file states the whole shape of a tensor of which it holds a shard.
    """

    whole: dict[_Path, int] = field(default_factory=dict)
    has_shards: bool = False
    _written: dict[tuple[str, frozenset[tuple[object, ...]]], str] = field(default_factory=dict)

    def find_copy(self, name: str, file: TorchFile, kind: Kind) -> str | None:
        """The file of another rank with the same tensors, added before: names, shapes and checksums are equal."""
        content = frozenset(
            (tensor.path, tensor.dtype, tensor.shape, tensor.offset, file.checksums.get(tensor.storage.key))
            for tensor in file.tensors
            if tensor.items and find_role(tensor.path, tensor.dtype, kind) in _STATE
        )
        # Without checksums, which torch can leave out, equal shapes say nothing; one tensor may be equal by chance.
        if len({entry[-1] for entry in content} - {None, 0}) < _FEWEST_CHECKSUMS:
            return None
        first = self._written.setdefault((_NUMBER.sub("#", name), content), name)
        return None if first == name else first

    def add(self, file: TorchFile, kind: Kind) -> None:
        """Add the weights of a file of one rank."""
        if not file.whole_elements:
            return
        self.has_shards = True
        for path, elements in file.whole_elements.items():
            if find_role(path, "float32", kind) is Role.WEIGHTS:
                self.whole[path] = elements
        for tensor in file.tensors:
            is_shard = any(tensor.path[:length] in file.whole_elements for length in range(len(tensor.path) + 1))
            if not is_shard and find_role(tensor.path, tensor.dtype, kind) is Role.WEIGHTS:
                self.whole[tensor.path] = tensor.items

    def count_parameters(self) -> int | None:
        """Elements of all weights, each once; None where no file states a whole shape."""
        return sum(self.whole.values()) or None if self.has_shards else None
