"""What one rank sends about its communication, its computing and its steps, and how ranks are put side by side."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.communication.calls import GroupCalls, GroupKey, calls_by_group, operation_named
from perfscope.analyzers.communication.matching import join_windows
from perfscope.analyzers.communication.process_groups import described_role, is_point_to_point, is_transfer, roles_in
from perfscope.analyzers.shared.intervals import covered
from perfscope.analyzers.shared.kernel_medians import KernelMedians, measure_kernels
from perfscope.analyzers.shared.marked_steps import step_numbers
from perfscope.analyzers.shared.step_profile import StepProfile, measure_steps
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.trace import ABSENT, Trace, Work

_MOST_ENDS = 256


class RankCalls(Struct, frozen=True, eq=False, array_like=True):
    """The communication of one device of one rank.

    Attributes:
        rank: The rank; absent where nothing states it.
        device: Index of its GPU.
        process: The id of the profiled process, or ABSENT.
        trace: The file.
        host: The machine; ``""`` where not stated.
        first_ns, last_ns: When its first device event began and its last one ended, on the wall clock.
        compute: The time that compute covers, in nanoseconds.
        groups: Its operations by group.
        transfers: How many kernels of transfers between the stages of a pipeline it ran.
        kernels: Its compute kernels by step; absent where it does not communicate, or does not compute.
        profile: What it did in each step; absent where it does not communicate.
        gpu: Name of the GPU; ``""`` where not stated.
    """

    rank: int | None
    device: int
    process: int
    trace: str
    host: str
    first_ns: int
    last_ns: int
    compute: int
    groups: tuple[GroupCalls, ...]
    transfers: int
    kernels: KernelMedians | None
    profile: StepProfile | None
    gpu: str = ""

    @property
    def span_ns(self) -> int:
        """The time of its marked steps, or of its window where none is marked."""
        return self.last_ns - self.first_ns if self.profile is None else int(self.profile.parts.sum())


def measure_device(trace: Trace, device: int) -> RankCalls:
    """The communication of one device of a trace."""
    events = trace.device
    rows = events.device == device
    compute = covered(events, rows & events.is_work(Work.COMPUTE, Work.FUSED))
    communicates = rows & events.is_work(Work.COMMUNICATION, Work.FUSED)
    is_compared = bool(communicates.any())
    numbers = step_numbers(trace)
    communication = covered(events, communicates)
    return RankCalls(
        rank=trace.rank,
        device=device,
        process=trace.process,
        trace=trace.path,
        host=trace.host,
        first_ns=trace.base_ns + int(events.start_ns[rows].min()),
        last_ns=trace.base_ns + int(events.end_ns[rows].max()),
        compute=compute.measure,
        groups=calls_by_group(trace, device, compute, _MOST_ENDS),
        transfers=_count_transfers(trace, communicates),
        kernels=measure_kernels(trace, rows, numbers, communication) if is_compared else None,
        profile=measure_steps(trace, device, rows, numbers) if is_compared else None,
        gpu=trace.devices[device] if 0 <= device < len(trace.devices) else "",
    )


def _count_transfers(trace: Trace, communicates: Bool) -> int:
    """How many transfers between the stages of a pipeline there are.

    Transfers that a framework batches carry no metadata; they are a pipeline's unless another axis than a pipeline is
    described, as that of a ring of context-parallel ranks.
    """
    described = {described_role(group.description) for group in trace.groups.values() if group.size > 1}
    batches_are_stages = "PP" in described or not described & {"CP", "EP"}
    find_role = roles_in(trace)
    count = 0
    for call, name in zip(trace.device.collective[communicates].tolist(), trace.device.name[communicates], strict=True):
        if call == ABSENT:
            count += batches_are_stages and is_transfer(trace.names[name])
            continue
        metadata = trace.collectives[call]
        operation = operation_named(metadata.operation)
        if is_point_to_point(operation):
            count += find_role(metadata.group, operation) == "PP"
    return count


class RanksOfGroup(Mapping[int, GroupCalls]):
    """The operations of the ranks of one group, in the order of ranks.

    Args:
        calls: The operations of all groups.
        ranks: The ranks, in order: columns, because a group may have all ranks of a job.
        begins: Where among them the windows of each rank begin, which are joined, and where those of the last one end.
    """

    def __init__(self, calls: Sequence[GroupCalls], ranks: Int64, begins: Int64) -> None:
        self._calls, self._ranks, self._begins = calls, ranks, begins

    def __getitem__(self, rank: int) -> GroupCalls:
        row = int(self._ranks.searchsorted(rank))
        if row == len(self._ranks) or self._ranks[row] != rank:
            raise KeyError(rank)
        return reduce(join_windows, map(self._calls.__getitem__, range(self._begins[row], self._begins[row + 1])))

    def __iter__(self) -> Iterator[int]:
        return map(int, self._ranks)

    def __len__(self) -> int:
        return len(self._ranks)

    def numbered(self) -> RanksOfGroup:
        """Those whose number is known."""
        first = int(self._ranks.searchsorted(0))
        return RanksOfGroup(self._calls, self._ranks[first:], self._begins[first:])


class CallsByGroup:
    """The operations of each group by rank.

    The windows of a process are joined; of two of its traces that overlap in time the first counts. Another process of
    the same rank belongs to another run: the first processes of all ranks are matched to each other, then the second
    ones.
    """

    def __init__(self, partials: Sequence[tuple[RankCalls, ...]]) -> None:
        number_of: dict[GroupKey, int] = {}
        groups, moments, ranks = array("i"), array("i"), array("q")
        every: list[GroupCalls] = []
        for numbered in number_ranks_and_runs(partials):
            for calls in numbered.part.groups if numbered.counts else ():
                key = replace(calls.key, run=numbered.run) if numbered.run else calls.key
                groups.append(number_of.setdefault(key, len(number_of)))
                moments.append(numbered.moment)
                ranks.append(numbered.rank)
                every.append(calls)
        self._keys = sorted(number_of)
        place_of = np.empty(len(number_of), np.int32)
        place_of[[number_of[key] for key in self._keys]] = np.arange(len(number_of))
        of_rank = np.frombuffer(ranks, np.int64)
        group = place_of[np.frombuffer(groups, np.int32)]
        order = np.lexsort((np.frombuffer(moments, np.int32), of_rank, group)).astype(np.int32)
        self._group, self._ranks = group[order], of_rank[order]
        self._calls = [every[place] for place in order]

    def __len__(self) -> int:
        return len(self._keys)

    def items(self) -> Iterator[tuple[GroupKey, RanksOfGroup]]:
        """Each group, by its key, with the operations of its ranks in their order."""
        ends = np.searchsorted(self._group, np.arange(len(self._keys)), side="right").tolist()
        for key, (begin, end) in zip(self._keys, pairwise([0, *ends]), strict=True):
            ranks, begins = np.unique(self._ranks[begin:end], return_index=True)
            yield key, RanksOfGroup(self._calls, ranks, np.append(begins + begin, end))


class NumberedCalls(NamedTuple):
    """The calls of one device, and which of all they are.

    Attributes:
        part: The calls.
        rank: The number of its rank: negative where it is not known, and for each device but the first of a rank.
        run: The number of its run.
        moment: Its place among all in the order of time.
        counts: Whether no earlier window of the same process overlaps it.
    """

    part: RankCalls
    rank: int
    run: int
    moment: int
    counts: bool


class _Head(NamedTuple):
    """What says which calls are whose, in the order of time."""

    first_ns: int
    device: int
    trace: str
    place: int
    rank: int | None
    process: int
    last_ns: int


def number_ranks_and_runs(partials: Iterable[tuple[RankCalls, ...]]) -> Iterator[NumberedCalls]:
    """The calls of each device, in the order of the partials, which are read twice."""
    ranks, runs, moments, counting = _number_alone(chain.from_iterable(partials)) or _number(
        sorted(
            _Head(part.first_ns, part.device, part.trace, place, part.rank, part.process, part.last_ns)
            for place, part in enumerate(chain.from_iterable(partials))
        )
    )
    every = chain.from_iterable(partials)
    return (NumberedCalls(*each) for each in zip(every, ranks, runs, moments, map(bool, counting), strict=True))


def _number_alone(parts: Iterable[RankCalls]) -> tuple[array[int], ...] | None:
    """The same as ``_number`` where each rank has one device and one window: columns take less than a tuple a rank.

    None where that is not so, or the parts are not in the order of their traces.
    """
    ranks, first_ns, devices, trace = array("q"), array("q"), array("q"), ""
    for part in parts:
        if part.rank is None or part.trace < trace:
            return None
        ranks.append(part.rank)
        first_ns.append(part.first_ns)
        devices.append(part.device)
        trace = part.trace
    ordered = np.sort(np.array(ranks, np.int64))
    if (ordered[1:] == ordered[:-1]).any():  # np.unique would import masked arrays
        return None
    moments = np.empty(len(ranks), np.int64)
    moments[np.lexsort((devices, first_ns))] = np.arange(len(ranks))
    return ranks, array("q", bytes(8 * len(ranks))), array("q", moments.tobytes()), array("q", [1]) * len(ranks)


def _number(heads: Sequence[_Head]) -> tuple[array[int], ...]:
    """The ranks, the runs and the moments of calls in the order of their places, and which of them count."""
    first_device: dict[int, int] = {}
    for head in heads:
        if head.rank is not None:
            first_device[head.rank] = min(head.device, first_device.get(head.rank, head.device))
    numbers: dict[tuple[str | int, int], int] = {}
    processes: dict[str | int, list[int]] = {}
    seen_until: dict[tuple[int, int], int] = {}
    columns = tuple(array("q", bytes(8 * len(heads))) for _ in range(4))
    for moment, head in enumerate(heads):
        owner = head.trace if head.rank is None else head.rank
        own = processes.setdefault(owner, [])
        if head.process not in own:
            own.append(head.process)
        if head.rank is not None and head.device == first_device[head.rank]:
            rank = head.rank
        else:
            rank = numbers.setdefault((owner, head.device), -1 - len(numbers))
        run = own.index(head.process)
        counts = head.first_ns >= seen_until.get((rank, run), head.first_ns)
        if counts:
            seen_until[rank, run] = head.last_ns
        for column, value in zip(columns, (rank, run, moment, counts), strict=True):
            column[head.place] = value
    return columns
