"""The communication operations of one rank, group by group, as small as a driver of many ranks needs them."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from perfscope.analyzers.collectives.process_groups import is_point_to_point, roles_in
from perfscope.measures.marked_steps import step_numbers
from perfscope.tables.columns import Int64
from perfscope.tables.intervals import Intervals, covered
from perfscope.tables.trace import ABSENT, Collective, Trace, Work

Integers: TypeAlias = npt.NDArray[np.int16 | np.int32 | np.int64]

_DTYPE_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "float8": 1,
    "short": 2, "half": 2, "bfloat16": 2, "float16": 2, "int16": 2,
    "int": 4, "float": 4, "float32": 4, "int32": 4,
    "long": 8, "double": 8, "int64": 8, "float64": 8, "complexfloat": 8,
}  # fmt: skip
_OPERATIONS = (
    ("all_reduce", r"all_?reduce|cross_device_reduce"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
    ("all_to_all_v", r"all_?to_?all_?v"),
    ("all_to_all", r"all_?to_?all"),
    ("broadcast", r"broadcast"),
    ("send_recv", r"send_?recv"),
    ("barrier", r"barrier"),
    ("reduce", r"reduce"),
    ("gather", r"gather"),
    ("scatter", r"scatter"),
    ("send", r"send"),
    ("recv", r"recv"),
)
_PATTERNS = tuple((name, re.compile(pattern, re.IGNORECASE)) for name, pattern in _OPERATIONS)
_MOST_LISTED = 16
_SIZED_BY_OUTPUT = frozenset(("all_gather", "gather"))
#: Operations that no rank can leave before every rank has arrived. An all_to_all_v is none of them: who sends nothing
#: to a rank does not keep it waiting.
SYNCHRONISING = frozenset(("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"))
#: Operations in which every rank sends a part to every other one: equal parts, or (``_v``) unequal ones.
EXCHANGES = frozenset(("all_to_all", "all_to_all_v"))
#: Operations that move the same number of elements on every rank.
EVEN = frozenset(("all_reduce", "broadcast", "barrier", "reduce"))


class OperationKind(Struct, frozen=True, order=True, array_like=True):
    """One kind of operation in a group; ``""`` is not stated.

    ``bytes`` is as in nccl-tests: the output of an all_gather and a gather, else the input. The input of a
    reduce_scatter and a scatter is of all ranks together. It is ABSENT where not stated, and for an all_to_all_v.
    """

    operation: str
    dtype: str
    bytes: int


class GroupKey(Struct, frozen=True, order=True, array_like=True):
    """A group of ranks, or one direction between two of them, as every member names it.

    ``members`` is as ``members_of`` writes them; ``run`` counts the runs of which traces were given. One group may
    serve two axes, ``role``.
    """

    name: str
    members: str
    sender: int = ABSENT
    receiver: int = ABSENT
    run: int = 0
    role: str = ""


class GroupCalls(Struct, frozen=True, eq=False, array_like=True):
    """One rank's operations in one group, in the order of their start.

    ``kind`` is an index in ``kinds``, ``step`` a number or ABSENT, ``sequence`` NCCL's number, empty where one lacks.
    ``end_ns`` is on the wall clock, of the first few operations. ``hidden_ns`` is the part of ``covered_ns`` of a kind
    during which compute runs.
    """

    key: GroupKey
    description: str
    size: int | None
    kinds: tuple[OperationKind, ...]
    kind: Integers
    step: Integers
    sequence: Int64
    duration_ns: Integers
    end_ns: Int64
    covered_ns: Int64
    hidden_ns: Int64

    @property
    def role(self) -> str:
        """The axis of parallelism that it serves; ``""`` where it is unknown."""
        return self.key.role


def operation_named(text: str) -> str:
    """The operation that a name of the profiler or of a kernel stands for, ``""`` where there is none.

    >>> operation_named("_allgather_base"), operation_named("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)")
    ('all_gather', 'reduce_scatter')
    """
    return next((name for name, pattern in _PATTERNS if pattern.search(text)), "")


def members_of(ranks: Sequence[int]) -> str:
    """The members of a group in a few bytes: else each of ten thousand ranks would carry a list of ten thousand.

    >>> members_of([0, 8, 16]), members_of(range(1024))
    ('0,8,16', '1024 ranks 0-1023 31dec690')
    """
    if len(ranks) <= _MOST_LISTED:
        return ",".join(str(rank) for rank in ranks)
    checksum = zlib.crc32(np.asarray(ranks, "<i8").tobytes())
    return f"{len(ranks)} ranks {min(ranks)}-{max(ranks)} {checksum:08x}"


def size_of(operation: str, call: Collective) -> int:
    """The size of an operation as in nccl-tests, in bytes, or ABSENT."""
    name = call.dtype.lower().removeprefix("c10::")
    width = _DTYPE_BYTES.get("float8" if name.startswith("float8") else name)
    elements = call.out_elements if operation in _SIZED_BY_OUTPUT else call.in_elements
    return ABSENT if width is None or elements is None else elements * width


def kind_of(call: Collective) -> OperationKind:
    """The kind of an operation by its metadata.

    An all_to_all is one of equal parts only where nothing in the metadata contradicts it, and an all_to_all_v is one
    only where its split sizes are stated, and equal.
    """
    operation = operation_named(call.operation)
    if operation in EXCHANGES:
        splits = (call.in_split, call.out_split)
        stated = [size for split in splits if split is not None for size in split]
        is_even = len(set(stated)) <= 1 and call.in_elements == call.out_elements
        is_stated = operation == "all_to_all" or (None not in splits and len(stated) > 0)
        if not is_even or not is_stated:
            return uneven(OperationKind(operation, call.dtype, ABSENT))
        operation = "all_to_all"
    return OperationKind(operation, call.dtype, size_of(operation, call))


def uneven(kind: OperationKind) -> OperationKind:
    """The kind of an exchange whose parts are not equal."""
    return OperationKind("all_to_all_v", kind.dtype, ABSENT)


def calls_by_group(trace: Trace, device: int, compute: Intervals, most_ends: int) -> tuple[GroupCalls, ...]:
    """The communication operations of one device, by group; ``compute`` is when the device computed.

    Sends and receives whose peer is not stated cannot be matched and are left out.
    """
    groups = _kinds_by_group(trace, device)
    return tuple(_group_calls(trace, key, groups[key], compute, most_ends) for key in sorted(groups))


def rows_by_group(trace: Trace, device: int) -> dict[GroupKey, Int64]:
    """The rows of ``trace.device`` that hold the operations of ``calls_by_group``, by group, in their order."""
    groups = _kinds_by_group(trace, device)
    return {key: np.array(list(groups[key]), np.int64) for key in sorted(groups)}


def _kinds_by_group(trace: Trace, device: int) -> dict[GroupKey, dict[int, OperationKind]]:
    events = trace.device
    rows = np.flatnonzero((events.device == device) & events.is_work(Work.COMMUNICATION))
    groups: dict[GroupKey, dict[int, OperationKind]] = {}
    find_role = roles_in(trace)
    for row in rows.tolist():
        key, kind = _describe(trace, row, find_role)
        if key is not None:
            groups.setdefault(key, {})[row] = kind
    return groups


def _describe(trace: Trace, row: int, find_role: Callable[[str, str], str]) -> tuple[GroupKey | None, OperationKind]:
    number = int(trace.device.collective[row])
    if number == ABSENT:
        operation = operation_named(trace.names[trace.device.name[row]])
        kind = OperationKind(operation, "", ABSENT)
        return (None if operation in ("send_recv", "send", "recv") else GroupKey("", "")), kind
    call = trace.collectives[number]
    kind = kind_of(call)
    operation = kind.operation
    group = trace.groups.get(call.group)
    ranks = group.ranks if group else ()
    if not is_point_to_point(operation):
        return GroupKey(call.group, members_of(ranks), role=find_role(call.group, operation)), kind
    if call.peer is None or trace.rank is None:
        return None, kind
    peer = ranks[call.peer] if ranks and 0 <= call.peer < len(ranks) else call.peer
    sender, receiver = (trace.rank, peer) if operation == "send" else (peer, trace.rank)
    key = GroupKey(call.group, members_of(ranks), sender, receiver, role=find_role(call.group, operation))
    return key, OperationKind("send_recv", call.dtype, kind.bytes)


def _group_calls(
    trace: Trace, key: GroupKey, calls: Mapping[int, OperationKind], compute: Intervals, most_ends: int
) -> GroupCalls:
    group, index = trace.groups.get(key.name), np.array(list(calls), np.int64)
    kinds = sorted(set(calls.values()))
    kind_of = np.array([kinds.index(kind) for kind in calls.values()], np.int16)
    intervals = [covered(trace.device, index[kind_of == kind]) for kind in range(len(kinds))]
    duration_ns = trace.device.duration_ns[index]
    sequence = [trace.collectives[call].sequence if call != ABSENT else None for call in trace.device.collective[index]]
    return GroupCalls(
        key=key,
        description=group.description if group else "",
        size=group.size if group else None,
        kinds=tuple(kinds),
        kind=kind_of,
        step=step_numbers(trace)[index].astype(np.int32),
        sequence=np.array([] if None in sequence else sequence, np.int64),
        # The driver keeps those of every rank: in 32 bits where they fit.
        duration_ns=duration_ns.astype(np.int32) if duration_ns.max() < 1 << 31 else duration_ns,
        end_ns=(trace.base_ns + trace.device.end_ns[index])[:most_ends],
        covered_ns=np.array([busy.measure for busy in intervals], np.int64),
        hidden_ns=np.array([(busy & compute).measure for busy in intervals], np.int64),
    )
