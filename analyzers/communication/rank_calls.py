"""What one rank sends about its communication, its computing and its steps, and how ranks are put side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perfscope.analyzers.communication.calls import GroupCalls, GroupKey, calls_by_group, operation_named
from perfscope.analyzers.communication.matching import join_windows
from perfscope.analyzers.communication.process_groups import is_point_to_point, is_transfer, role_of
from perfscope.analyzers.shared.compute_pace import KernelMedians, measure_kernels
from perfscope.analyzers.shared.intervals import covered
from perfscope.analyzers.shared.marked_steps import step_numbers
from perfscope.analyzers.shared.step_profile import StepProfile, measure_steps
from perfscope.tables.columns import Bool
from perfscope.tables.trace import ABSENT, Trace, Work

_MOST_ENDS = 256


class RankCalls(Struct, frozen=True, eq=False):
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
    described = {role_of(group.description, (), 0, 0) for group in trace.groups.values() if group.size > 1}
    batches_are_stages = "PP" in described or not described & {"CP", "EP"}
    count = 0
    for call, name in zip(trace.device.collective[communicates].tolist(), trace.device.name[communicates], strict=True):
        if call == ABSENT:
            count += batches_are_stages and is_transfer(trace.names[name])
            continue
        metadata = trace.collectives[call]
        operation, group = operation_named(metadata.operation), trace.groups.get(metadata.group)
        if is_point_to_point(operation):
            count += role_of(group.description if group else "", (operation,), 0, 0) == "PP"
    return count


def by_group(partials: Sequence[tuple[RankCalls, ...]]) -> dict[GroupKey, dict[int, GroupCalls]]:
    """The operations of each group by rank.

    The windows of a process are joined; of two of its traces that overlap in time the first counts. Another process of
    the same rank belongs to another run: the first processes of all ranks are matched to each other, then the second
    ones.
    """
    groups: dict[GroupKey, dict[int, GroupCalls]] = {}
    seen_until: dict[tuple[int, int], int] = {}
    for part, rank, run in number_ranks_and_runs([part for partial in partials for part in partial]):
        if part.first_ns < seen_until.get((rank, run), part.first_ns):
            continue
        seen_until[rank, run] = part.last_ns
        for calls in part.groups:
            members = groups.setdefault(replace(calls.key, run=run) if run else calls.key, {})
            members[rank] = join_windows(members[rank], calls) if rank in members else calls
    return dict(sorted(groups.items()))


def number_ranks_and_runs(parts: Sequence[RankCalls]) -> Iterator[tuple[RankCalls, int, int]]:
    """Each device's calls in the order of time, with the numbers of its rank and of its run.

    A rank that is not known gets a negative number, and so does each device but the first of a rank that drives more.
    """
    first_device: dict[int, int] = {}
    for part in parts:
        if part.rank is not None:
            first_device[part.rank] = min(part.device, first_device.get(part.rank, part.device))
    numbers: dict[tuple[str | int, int], int] = {}
    processes: dict[str | int, list[int]] = {}
    for part in sorted(parts, key=lambda part: (part.first_ns, part.device, part.trace)):
        owner = part.trace if part.rank is None else part.rank
        runs = processes.setdefault(owner, [])
        if part.process not in runs:
            runs.append(part.process)
        if part.rank is not None and part.device == first_device[part.rank]:
            rank = part.rank
        else:
            rank = numbers.setdefault((owner, part.device), -1 - len(numbers))
        yield part, rank, runs.index(part.process)
