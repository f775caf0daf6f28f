"""What a process group is for: the axis of parallelism that its communication serves.

Frameworks describe their groups in words (``TENSOR_MODEL_PARALLEL_GROUP``, ``mesh_dp``). Where they do not, the axis is
the only one on which the group's ranks differ, if the layout is known. Else a group with sends and receives alone is a
pipeline's. Gradients are reduced over the data and context axes together, which is DP. Any other group of all ranks
that differ on several axes serves none: it is called ``world``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

from perfscope.tables.trace import Trace
from perfscope.wire.axes import FACTORS, MESH_AXES

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
_PATTERNS = tuple((role, re.compile(pattern, re.IGNORECASE)) for role, pattern in _ROLES)
#: In the names of NCCL's and RCCL's kernels for sends and receives.
TRANSFER = re.compile(r"sendrecv", re.IGNORECASE)
_EXCHANGE = re.compile(r"all_?to_?all", re.IGNORECASE)
_POINT_TO_POINT = frozenset(("send", "recv", "isend", "irecv"))
#: torch's prefix of the groups of device meshes.
_OF_MESH = "mesh_"
#: The axes of experts as roles: their tensors are split as others are, and their replicas reduce gradients.
_OF_EXPERTS = {"etp": "TP", "edp": "DP"}


def described_role(description: str) -> str:
    """The axis that the framework's words for a group state: PP, TP, MP (both), EP, CP, DP, or ``""``.

    >>> described_role("TENSOR_MODEL_PARALLEL_GROUP"), described_role("mesh_loss_mesh"), described_role("undefined")
    ('TP', 'DP', '')
    """
    axis = MESH_AXES.get(description.removeprefix(_OF_MESH)) if description.startswith(_OF_MESH) else None
    if axis is not None:
        return _OF_EXPERTS.get(axis, axis.upper())
    return next((role for role, pattern in _PATTERNS if pattern.search(description)), "")


def role_of(description: str, operation: str, ranks: Sequence[int], lines: Mapping[str, Sequence[int]]) -> str:
    """The axis that a group serves, by its description, or else by its ranks; ``""`` where it is unknown.

    ``operation`` is ``""`` for all of them together. ``lines`` are by axis the ranks that one rank shares it with.

    >>> lines = {"dp": (0, 2), "tp": (0, 1)}
    >>> role_of("undefined", "allreduce", (0, 2), lines), role_of("default_pg", "allreduce", (0, 1, 2, 3), lines)
    ('DP', '')

    >>> experts = {"dp": (0, 1), "ep": (0, 1)}
    >>> [role_of("default_pg", operation, (0, 1), experts) for operation in ("allreduce", "alltoallv", "")]
    ['DP', 'EP', '']

    >>> role_of("default_pg", "allgather", (0, 1, 2, 3), {"dp": (0, 2), "cp": (0, 1)})
    'DP'
    """
    role = described_role(description)
    if role or len(ranks) < 2:  # noqa: PLR2004 - one rank communicates with nobody
        return role
    axes = [axis for axis, line in lines.items() if set(line).issuperset(ranks)]
    if "ep" in axes and (not operation or _EXCHANGE.search(operation)):
        return "EP" if operation else ""
    if not axes and _reduces_gradients(ranks, lines):
        return "DP"
    return next((axis.upper() for axis in axes if axis in FACTORS), "")


def _reduces_gradients(ranks: Sequence[int], lines: Mapping[str, Sequence[int]]) -> bool:
    """Whether a group holds all ranks of the data and the context axis together: FSDP shards over both."""
    data, context = lines.get("dp", ()), lines.get("cp", ())
    return set(ranks).issuperset((*data, *context)) and len(ranks) == len(data) * len(context)


def roles_in(trace: Trace) -> Callable[[str, str], str]:
    """A function that gives the axis that an operation of a group serves, by the group's name and the operation.

    It is ``world`` for a group of all ranks, where they share no axis.
    """

    @cache
    def find_role(name: str, operation: str) -> str:
        group = trace.groups.get(name)
        description, size, ranks = (group.description, group.size, group.ranks) if group else ("", 0, ())
        has_all_ranks = description == "default_pg" or (size > 0 and size == trace.world_size)
        if has_all_ranks and not ranks:
            ranks = tuple(range(trace.world_size or 0))
        role = role_of(description, operation, ranks, trace.axes)
        if role:
            return role
        if is_point_to_point(operation):
            return "PP"
        return "world" if has_all_ranks else ""

    return find_role


def is_point_to_point(operation: str) -> bool:
    """Whether an operation has one sender and one receiver."""
    return operation in _POINT_TO_POINT
