"""Communication operations that several ranks made together."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

from perfscope.analyzers.communication.calls import GroupKey, Kind
from perfscope.tables.trace import ABSENT

#: One rank's part in an operation: the position of the rank in ``JobGraph.ranks``, and its event.
Member: TypeAlias = tuple[int, int]


class Operation(Struct, frozen=True):
    """A communication operation that several ranks made together.

    Attributes:
        group: Its group.
        role: The axis of parallelism that the group serves; ``""`` where unknown.
        kind: Operation, element type and size.
        members: Each rank's part in it.
        transfer_ns: The shortest duration on any rank: the time from the arrival of the last rank on.
    """

    group: GroupKey
    role: str
    kind: Kind
    members: tuple[Member, ...]
    transfer_ns: int

    @property
    def is_point_to_point(self) -> bool:
        """Whether one rank sends to another, which needs what it receives."""
        return self.group.sender != ABSENT
