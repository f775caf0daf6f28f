"""What one rank sends about its communication, its computing and its steps, and how ranks are put side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from itertools import chain
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.collectives.calls import GroupCalls, GroupKey, calls_by_group, operation_named
from perfscope.analyzers.collectives.matching import join_windows
from perfscope.analyzers.collectives.process_groups import TRANSFER, described_role, is_point_to_point, roles_in
from perfscope.measures.kernel_medians import KernelMedians, measure_kernels
from perfscope.measures.marked_steps import step_numbers
from perfscope.measures.step_profile import StepProfile, measure_steps
from perfscope.tables.columns import Bool
from perfscope.tables.intervals import covered
from perfscope.tables.trace import ABSENT, Trace, Work

_MOST_ENDS = 256


class RankCalls(Struct, frozen=True, eq=False, array_like=True):
    """The communication of one device of one rank.

    Attributes:
        first_ns, last_ns: When its first device event began and its last one ended, on the wall clock.
        transfers: How many kernels of transfers between the stages of a pipeline it ran.
        kernels: Its compute kernels by step; absent where it does not communicate, or does not compute.
        profile: What it did in each step; absent where it does not communicate.
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
            count += batches_are_stages and TRANSFER.search(trace.names[name]) is not None
            continue
        metadata = trace.collectives[call]
        operation = operation_named(metadata.operation)
        if is_point_to_point(operation):
            count += find_role(metadata.group, operation) == "PP"
    return count


def calls_of_groups(partials: Sequence[tuple[RankCalls, ...]]) -> dict[GroupKey, dict[int, GroupCalls]]:
    """The operations of each group by rank, both in order.

    The windows of a process are joined; of two of its traces that overlap in time the first counts. Another process of
    the same rank belongs to another run: the first processes of all ranks are matched to each other, then the second
    ones.
    """
    windows: dict[GroupKey, dict[int, list[tuple[int, GroupCalls]]]] = {}
    for numbered in number_ranks_and_runs(partials):
        for calls in numbered.part.groups if numbered.counts else ():
            key = replace(calls.key, run=numbered.run) if numbered.run else calls.key
            windows.setdefault(key, {}).setdefault(numbered.rank, []).append((numbered.moment, calls))
    return {key: {rank: _join(own) for rank, own in sorted(windows[key].items())} for key in sorted(windows)}


def _join(windows: list[tuple[int, GroupCalls]]) -> GroupCalls:
    return reduce(join_windows, (calls for _, calls in sorted(windows, key=lambda window: window[0])))


class NumberedCalls(NamedTuple):
    """The calls of one device, and which of all they are.

    ``rank`` is negative where it is not known, and for each device but the first of a rank. ``moment`` is the place
    among all in the order of time. ``counts``: no earlier window of the same process overlaps it.
    """

    part: RankCalls
    rank: int
    run: int
    moment: int
    counts: bool


def number_ranks_and_runs(partials: Iterable[tuple[RankCalls, ...]]) -> list[NumberedCalls]:
    """The calls of each device, in the order of the partials."""
    parts = list(chain.from_iterable(partials))
    first_device: dict[int, int] = {}
    for part in parts:
        if part.rank is not None:
            first_device[part.rank] = min(part.device, first_device.get(part.rank, part.device))
    numbers: dict[tuple[str | int, int], int] = {}
    processes: dict[str | int, list[int]] = {}
    seen_until: dict[tuple[int, int], int] = {}
    found: dict[int, NumberedCalls] = {}
    order = sorted(range(len(parts)), key=lambda at: (parts[at].first_ns, parts[at].device, parts[at].trace, at))
    for moment, place in enumerate(order):
        part = parts[place]
        owner = part.trace if part.rank is None else part.rank
        own = processes.setdefault(owner, [])
        if part.process not in own:
            own.append(part.process)
        if part.rank is not None and part.device == first_device[part.rank]:
            rank = part.rank
        else:
            rank = numbers.setdefault((owner, part.device), -1 - len(numbers))
        run = own.index(part.process)
        counts = part.first_ns >= seen_until.get((rank, run), part.first_ns)
        if counts:
            seen_until[rank, run] = part.last_ns
        found[place] = NumberedCalls(part, rank, run, moment, counts)
    return [found[place] for place in range(len(parts))]
