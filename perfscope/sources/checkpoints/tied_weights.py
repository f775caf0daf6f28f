"""Tied weights, which torch's DCP stores once under each of their names.

An optimizer has one state for both names. So an embedding or an output layer without a state is taken for the copy of
another weight of the same size where it is the only weight without one; several of them are frozen rather than tied.
"""

from __future__ import annotations

from collections.abc import Mapping

from perfscope.sources.checkpoints.dcp import DcpTensor
from perfscope.sources.checkpoints.roles import find_role
from perfscope.tables.checkpoint import Kind, Role

_TIED = ("emb", "head", "output", "shared", "wte", "decoder")


def find_tied_copy(tensors: Mapping[str, DcpTensor]) -> str | None:
    """The name of the weight that is stored again under it; None where no weight is."""
    roles = {name: find_role([name], tensor.dtype, Kind.SHARD) for name, tensor in tensors.items()}
    owners = {tail for name, role in roles.items() if role is Role.MOMENTS for tail in _tails(name.rpartition(".")[0])}
    weights = [name for name, role in roles.items() if role is Role.WEIGHTS]
    # The prefixes of a weight and of its state differ.
    trained = {name for name in weights if name in owners or name.partition(".")[2] in owners}
    stateless = [name for name in weights if name not in trained]
    if len(stateless) != 1 or not any(word in stateless[0].lower() for word in _TIED):
        return None
    is_copy = tensors[stateless[0]].elements in {tensors[name].elements for name in trained}
    return stateless[0] if is_copy else None


def _tails(name: str) -> list[str]:
    """What is left of a name without its first words."""
    words = name.split(".")
    return [".".join(words[first:]) for first in range(1, len(words))]
