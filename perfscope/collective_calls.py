"""The communication operations of a rank, and how those of several ranks are matched to each other.

Ranks of a group call its operations in the same order, so the n-th call of a step on one rank is the n-th call of that
step on every other. Where profiler windows do not begin at the same call the shorter sequence is moved along the longer
one until the operations agree. NCCL's sequence numbers, where the trace holds them, need none of that.

Nothing here compares clocks: an operation's *transfer* is its shortest duration on any rank, and what it takes longer
on another rank was *waiting*.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from perfscope.intervals import Intervals, union
from perfscope.process_groups import is_point_to_point, role_of
from perfscope.tables import Int64
from perfscope.tables.trace import ABSENT, Collective, Trace, Work

Integers: TypeAlias = npt.NDArray[np.int16] | npt.NDArray[np.int32] | Int64

_DTYPE_BYTES = {
    "byte": 1, "char": 1, "bool": 1, "int8": 1, "uint8": 1, "float8": 1,
    "short": 2, "half": 2, "bfloat16": 2, "float16": 2, "int16": 2,
    "int": 4, "float": 4, "float32": 4, "int32": 4,
    "long": 8, "double": 8, "int64": 8, "float64": 8, "complexfloat": 8,
}  # fmt: skip
_OPERATIONS = (
    ("all_reduce", r"all_?reduce"),
    ("reduce_scatter", r"reduce_?scatter"),
    ("all_gather", r"all_?gather"),
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
_FEWEST_ENDS = 3
#: Operations that no rank can leave before every rank has come.
SYNCHRONISING = frozenset(("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "barrier"))
#: Operations that move the same number of elements on every rank.
_EVEN = frozenset(("all_reduce", "broadcast", "barrier", "reduce"))


@dataclass(frozen=True, slots=True, order=True)
class Kind:
    """One kind of operation in a group.

    Attributes:
        operation: A name such as ``all_reduce``; ``""`` where nothing tells.
        dtype: Element type; ``""`` where not stated.
        bytes: Its size as nccl-tests counts it: the whole of what an all_gather gives or a reduce_scatter takes, else
            what goes in; ABSENT where not stated.
    """

    operation: str
    dtype: str
    bytes: int


@dataclass(frozen=True, slots=True, order=True)
class GroupKey:
    """A group of ranks, or one direction between two of them, as every member names it.

    Attributes:
        name: The group's name; ``""`` where not stated.
        ranks: Its members; empty where not listed.
        sender: The rank that sends, for sends and receives; ABSENT for collectives.
        receiver: The rank that receives, likewise.
    """

    name: str
    ranks: tuple[int, ...]
    sender: int = ABSENT
    receiver: int = ABSENT


@dataclass(frozen=True, slots=True, eq=False)
class GroupCalls:
    """One rank's operations in one group, in the order of their start.

    Attributes:
        key: The group.
        description: What the framework calls it.
        role: The axis of parallelism that it serves; ``""`` where nothing tells.
        size: Ranks in it; absent where not stated.
        kinds: The kinds of operations.
        kind: For each operation its index in ``kinds``.
        step: For each the number of the profiler step that launched it, or ABSENT.
        sequence: For each the number that NCCL gave it; empty where one of them has none.
        duration_ns: How long each took.
        end_ns: When each ended on the wall clock; only of the first few, to align clocks.
        covered_ns: For each of ``kinds`` the time that its operations cover.
        hidden_ns: For each of ``kinds`` how much of that compute hides.
    """

    key: GroupKey
    description: str
    role: str
    size: int | None
    kinds: tuple[Kind, ...]
    kind: Integers
    step: Integers
    sequence: Int64
    duration_ns: Integers
    end_ns: Int64
    covered_ns: Int64
    hidden_ns: Int64


@dataclass(frozen=True, slots=True, eq=False)
class Matched:
    """Operations of one group that were found on several ranks.

    Attributes:
        ranks: The ranks, in order; the rows of ``duration_ns``.
        kinds: The kinds of operations.
        kind: For each operation its index in ``kinds``.
        duration_ns: One row a rank, one column an operation.
        end_ns: The same shape; masked (ABSENT) where not known.
        unmatched: Operations of some rank that were not found on every other.
    """

    ranks: tuple[int, ...]
    kinds: tuple[Kind, ...]
    kind: Int64
    duration_ns: Int64
    end_ns: Int64
    unmatched: int

    @property
    def transfer_ns(self) -> Int64:
        """Each operation's shortest duration."""
        return np.asarray(self.duration_ns.min(axis=0))

    @property
    def wait_ns(self) -> Int64:
        """One row a rank, one column an operation: how much longer it took there."""
        return np.asarray(self.duration_ns - self.transfer_ns)


def operation_named(text: str) -> str:
    """The operation that a name of the profiler or of a kernel stands for, ``""`` where it tells none.

    >>> operation_named("_allgather_base"), operation_named("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(...)")
    ('all_gather', 'reduce_scatter')
    """
    return next((name for name, pattern in _PATTERNS if pattern.search(text)), "")


def dtype_bytes(dtype: str) -> int | None:
    """Bytes of one element, or None for a type that is not known."""
    name = dtype.lower().removeprefix("c10::")
    return _DTYPE_BYTES.get("float8" if name.startswith("float8") else name)


def size_of(operation: str, call: Collective) -> int:
    """The size of an operation as nccl-tests counts it, in bytes, or ABSENT."""
    width = dtype_bytes(call.dtype)
    elements = call.out_elements if operation == "all_gather" else call.in_elements
    return ABSENT if width is None or elements is None else elements * width


def calls_by_group(trace: Trace, device: int, compute: Intervals, most_ends: int) -> tuple[GroupCalls, ...]:
    """The communication operations of one device, by group; ``compute`` is when the device computed.

    Sends and receives whose peer is not stated cannot be matched and are left out.
    """
    events = trace.device
    rows = np.flatnonzero((events.device == device) & events.is_work(Work.COMMUNICATION))
    groups: dict[GroupKey, dict[int, Kind]] = {}
    for row in rows.tolist():
        key, kind = _describe(trace, row)
        if key is not None:
            groups.setdefault(key, {})[row] = kind
    return tuple(_calls(trace, key, groups[key], compute, most_ends) for key in sorted(groups))


def _describe(trace: Trace, row: int) -> tuple[GroupKey | None, Kind]:
    number = int(trace.device.collective[row])
    if number == ABSENT:
        operation = operation_named(trace.names[trace.device.name[row]])
        kind = Kind(operation, "", ABSENT)
        return (None if operation in ("send_recv", "send", "recv") else GroupKey("", ())), kind
    call = trace.collectives[number]
    operation = operation_named(call.operation)
    kind = Kind(operation, call.dtype, size_of(operation, call))
    known = trace.groups.get(call.group)
    ranks = known.ranks if known else ()
    if not is_point_to_point(operation):
        return GroupKey(call.group, ranks), kind
    if call.peer is None or trace.rank is None:
        return None, kind
    peer = ranks[call.peer] if ranks and 0 <= call.peer < len(ranks) else call.peer
    sender, receiver = (trace.rank, peer) if operation == "send" else (peer, trace.rank)
    return GroupKey(call.group, ranks, sender, receiver), Kind("send_recv", call.dtype, kind.bytes)


def _calls(
    trace: Trace,
    key: GroupKey,
    calls: Mapping[int, Kind],
    compute: Intervals,
    most_ends: int,
) -> GroupCalls:
    rows = list(calls)
    known = trace.groups.get(key.name)
    description, size = (known.description, known.size) if known else ("", None)
    distinct = sorted(set(calls.values()))
    number = {kind: index for index, kind in enumerate(distinct)}
    index = np.array(rows, np.int64)
    operations = ("send",) if key.sender != ABSENT else ()
    kind_of = np.array([number[kind] for kind in calls.values()], np.int16)
    covered = [
        union(trace.device.start_ns[chosen], trace.device.end_ns[chosen])
        for chosen in (index[kind_of == one] for one in range(len(distinct)))
    ]
    return GroupCalls(
        key=key,
        description=description,
        role=role_of(description, operations, size, trace.world_size),
        size=size,
        kinds=tuple(distinct),
        kind=kind_of,
        step=step_numbers(trace)[index].astype(np.int32),
        sequence=_sequence(trace, index),
        duration_ns=_narrow(trace.device.duration_ns[index]),
        end_ns=(trace.base_ns + trace.device.end_ns[index])[:most_ends],
        covered_ns=np.array([one.measure for one in covered], np.int64),
        hidden_ns=np.array([(one & compute).measure for one in covered], np.int64),
    )


def _sequence(trace: Trace, rows: Int64) -> Int64:
    """The sequence numbers of operations, or nothing where one has none."""
    numbers = [trace.collectives[one].sequence if one != ABSENT else None for one in trace.device.collective[rows]]
    return np.array([] if None in numbers else numbers, np.int64)


def _narrow(values: Int64) -> Integers:
    """The same numbers in 32 bits where they fit: the driver keeps those of every rank."""
    return values.astype(np.int32) if len(values) and values.max() < 1 << 31 else values


def step_numbers(trace: Trace) -> Int64:
    """For each device event the number of the profiler step that launched it, or ABSENT."""
    numbers = [_number_in(trace.names[name]) for name in trace.steps.name]
    return np.array([*numbers, ABSENT], np.int64)[trace.step]


def _number_in(name: str) -> int:
    digits = name.rpartition("#")[2]
    return int(digits) if digits.isdigit() else ABSENT


def join_windows(first: GroupCalls, later: GroupCalls) -> GroupCalls:
    """The operations of two windows of one rank in one group."""
    kinds = tuple(sorted({*first.kinds, *later.kinds}))
    of_first = np.array([kinds.index(kind) for kind in first.kinds], np.int64)
    of_later = np.array([kinds.index(kind) for kind in later.kinds], np.int64)
    covered_ns, hidden_ns = np.zeros(len(kinds), np.int64), np.zeros(len(kinds), np.int64)
    for index, calls in ((of_first, first), (of_later, later)):
        covered_ns[index] += calls.covered_ns
        hidden_ns[index] += calls.hidden_ns
    # The ends are those of the first operations; a gap in them would shift the others.
    all_ends = len(first.end_ns) == len(first.kind)
    has_sequences = len(first.sequence) > 0 and len(later.sequence) > 0
    return GroupCalls(
        key=first.key,
        description=first.description,
        role=first.role,
        size=first.size,
        kinds=kinds,
        kind=np.concatenate([of_first[first.kind], of_later[later.kind]]),
        step=np.concatenate([first.step, later.step]),
        sequence=np.concatenate([first.sequence, later.sequence]) if has_sequences else np.zeros(0, np.int64),
        duration_ns=np.concatenate([first.duration_ns, later.duration_ns]),
        end_ns=np.concatenate([first.end_ns, later.end_ns]) if all_ends else first.end_ns,
        covered_ns=covered_ns,
        hidden_ns=hidden_ns,
    )


def match(calls: Mapping[int, GroupCalls]) -> Matched:
    """Match the operations that several ranks made in one group; ``calls`` is by rank.

    An operation that some rank does not have is left out and counted.
    """
    ranks = tuple(sorted(calls))
    kinds = tuple(sorted({kind for rank in ranks for kind in calls[rank].kinds}))
    rows = _common_rows([_labels(calls[rank]) for rank in ranks], [calls[rank].end_ns for rank in ranks])
    number = {kind: index for index, kind in enumerate(kinds)}
    first = calls[ranks[0]]
    kind = np.array([number[first.kinds[one]] for one in first.kind[rows[0]]], np.int64)
    duration_ns = np.stack(
        [calls[rank].duration_ns[index].astype(np.int64) for rank, index in zip(ranks, rows, strict=True)]
    )
    end_ns = np.stack([_padded(calls[rank].end_ns, index) for rank, index in zip(ranks, rows, strict=True)])
    longest = max(len(calls[rank].kind) for rank in ranks)
    return Matched(ranks, kinds, kind, duration_ns, end_ns, unmatched=longest - len(kind))


def _padded(ends: Int64, index: Int64) -> Int64:
    return np.where(index < len(ends), ends[np.minimum(index, len(ends) - 1)], ABSENT)


_Label = tuple[int, str, str, int]


def _labels(calls: GroupCalls) -> list[tuple[int, _Label]]:
    """For each operation its step (or sequence number) and what must agree on every rank."""
    agreed = [(kind.operation, kind.dtype, kind.bytes if kind.operation in _EVEN else ABSENT) for kind in calls.kinds]
    sequence = calls.sequence if len(calls.sequence) else np.full(len(calls.kind), ABSENT)
    return [
        (int(step), (int(number), *agreed[kind]))
        for step, number, kind in zip(calls.step, sequence, calls.kind, strict=True)
    ]


def _common_rows(labels: Sequence[list[tuple[int, _Label]]], ends: Sequence[Int64]) -> list[Int64]:
    """For each rank the rows of the operations that all ranks have, in the same order."""
    if all(sequence == labels[0] for sequence in labels):
        return [np.arange(len(labels[0])) for _ in labels]
    rows: list[list[int]] = [[] for _ in labels]
    steps = [_by_step(sequence) for sequence in labels]
    for step in sorted(set.intersection(*(set(of_rank) for of_rank in steps))):
        for mine, found in zip(rows, _aligned([of_rank[step] for of_rank in steps], ends), strict=True):
            mine.extend(found)
    return [np.array(mine, np.int64) for mine in rows]


def _by_step(labels: Sequence[tuple[int, _Label]]) -> dict[int, list[tuple[int, _Label]]]:
    """The rows and labels of each step."""
    steps: dict[int, list[tuple[int, _Label]]] = {}
    for row, (step, label) in enumerate(labels):
        steps.setdefault(step, []).append((row, label))
    return steps


def _aligned(sequences: Sequence[list[tuple[int, _Label]]], ends: Sequence[Int64]) -> list[list[int]]:
    """The rows of the longest run of operations that all ranks have in the same order; none where that is unclear."""
    begin, end = 0, len(sequences[0])
    shifts = []
    for sequence, end_ns in zip(sequences, ends, strict=True):
        shift = _best_shift(sequences[0], sequence, ends[0], end_ns)
        if shift is None:
            return [[] for _ in sequences]
        shifts.append(shift)
        begin, end = max(begin, shift), min(end, shift + len(sequence))
    if end <= begin:
        return [[] for _ in sequences]
    return [
        [row for row, _ in sequence[begin - shift : end - shift]]
        for sequence, shift in zip(sequences, shifts, strict=True)
    ]


def _best_shift(
    reference: list[tuple[int, _Label]], sequence: list[tuple[int, _Label]], reference_ends: Int64, ends: Int64
) -> int | None:
    """How far a sequence must be moved along the reference so that what they share agrees, sharing the most.

    Where several shifts are as good the right one is that for which the ends differ by the same time throughout.
    """
    wanted, labels = [label for _, label in reference], [label for _, label in sequence]
    agreeing: dict[int, list[int]] = {}
    for shift in range(-len(labels) + 1, len(wanted)):
        begin, end = max(0, shift), min(len(wanted), shift + len(labels))
        if wanted[begin:end] == labels[begin - shift : end - shift]:
            agreeing.setdefault(end - begin, []).append(shift)
    if not agreeing:
        return None
    best = agreeing[max(agreeing)]
    if len(best) == 1:
        return best[0]
    spreads = [(_spread(reference, sequence, shift, reference_ends, ends), abs(shift), shift) for shift in best]
    known = sorted((spread, distance, shift) for spread, distance, shift in spreads if spread is not None)
    return known[0][2] if known else None


def _spread(
    reference: list[tuple[int, _Label]],
    sequence: list[tuple[int, _Label]],
    shift: int,
    reference_ends: Int64,
    ends: Int64,
) -> float | None:
    """How much the difference of the ends varies under a shift, or None where too few ends are known."""
    begin, end = max(0, shift), min(len(reference), shift + len(sequence))
    pairs = [(reference[place][0], sequence[place - shift][0]) for place in range(begin, end)]
    known = [(one, other) for one, other in pairs if one < len(reference_ends) and other < len(ends)]
    if len(known) < _FEWEST_ENDS:
        return None
    one, other = np.array(known).T
    difference = ends[other] - reference_ends[one]
    return float(np.median(np.abs(difference - np.median(difference))))
