"""What a process group is for: the axis of parallelism that its communication serves.

Frameworks describe their groups in words (``TENSOR_MODEL_PARALLEL_GROUP``, ``mesh_dp``); where they do not, a group
with sends and receives alone is a pipeline's. A group of all ranks serves no axis by itself and is called ``world``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from perfscope.patterns import compile_later

#: The order in which exposed time counts for groups that communicate at the same time: the most urgent first.
PRIORITY = ("PP", "TP", "MP", "EP", "CP", "DP", "world", "")

# The first that matches decides: gradients are reduced over data and context ranks together, which is still DP.
_ROLES = (
    ("PP", r"pipeline|pipe_parallel|(?:^|_)pp(?:_|$)|embedding"),
    ("DP", r"data|(?:^|_)(?:dp|fsdp|hsdp|ddp)(?:_|$)|shard|replicate|distributed_optimizer|zero"),
    ("CP", r"context|(?:^|_)cp(?:_|$)|sequence_parallel|ulysses"),
    ("TP", r"expert_tensor_parallel"),
    ("EP", r"expert|(?:^|_)ep(?:_|$)"),
    ("MP", r"^model_parallel_group$"),  # Megatron's group of tensor- and pipeline-parallel ranks together
    ("TP", r"tensor|(?:^|_)tp(?:_|$)|model_parallel"),
)
_PATTERNS = tuple((role, compile_later(pattern, re.IGNORECASE)) for role, pattern in _ROLES)
_TRANSFER = compile_later(r"sendrecv", re.IGNORECASE)
_POINT_TO_POINT = frozenset(("send", "recv", "isend", "irecv"))
_UNDESCRIBED = frozenset(("", "undefined", "default_pg"))


def role_of(description: str, operations: Iterable[str], size: int | None, world_size: int | None) -> str:
    """The axis that a group serves: PP, TP, MP (both), EP, CP, DP, ``world``, or ``""`` where it is unknown.

    >>> role_of("TENSOR_MODEL_PARALLEL_GROUP", (), 2, 8), role_of("undefined", ["send", "recv"], 2, 8)
    ('TP', 'PP')
    >>> role_of("undefined", ["allreduce"], 8, 8), role_of("undefined", ["allreduce"], 2, 8)
    ('world', '')
    """
    if description in _UNDESCRIBED:
        distinct = frozenset(operations)
        if distinct and distinct <= _POINT_TO_POINT:
            return "PP"
        has_all_ranks = description == "default_pg" or (size is not None and size == world_size)
        return "world" if has_all_ranks else ""
    return next((role for role, pattern in _PATTERNS if pattern.search(description)), "")


def is_point_to_point(operation: str) -> bool:
    """Whether an operation has one sender and one receiver."""
    return operation in _POINT_TO_POINT


def is_transfer(kernel: str) -> bool:
    """Whether a kernel is NCCL's or RCCL's for sends and receives, by its name alone."""
    return _TRANSFER.search(kernel) is not None
