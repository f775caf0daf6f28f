"""A job of many ranks made from what was measured of real ones, with stragglers and skews of clocks that are known.

The partial results of two real traces of DistributedDataParallel on H200 (``fixtures/traces/ddp4``) are given to as
many ranks as wanted: groups of eight ranks of a host exchange activations (tensor parallel), ranks of the same place on
their hosts reduce gradients (data parallel). Only when ranks arrive and what they did longer is made up: each rank
arrives with a jitter of a few microseconds, a straggler by its lateness later, and who arrives early waits for it, in
its host's group first, then, with all of that host, everywhere.

``python -m benchmarks.synthetic_ranks FOLDER RANKS`` writes the partials of a job, and says what an analysis of them
takes: 16,384 ranks at most 60 s and 2 GB.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from benchmarks.processes import ROOT
from perfscope.analyzers.breakdown import RankParts
from perfscope.analyzers.collectives.calls import GroupCalls, GroupKey, OperationKind, members_of
from perfscope.analyzers.collectives.rank_calls import RankCalls
from perfscope.engine.measuring import measure
from perfscope.engine.partials import to_content
from perfscope.engine.registry import analyzers
from perfscope.engine.tasks import MeasuredTrace, MeasureTask, measuring_analyzers, wanted_events
from perfscope.engine.windows import TraceFiles
from perfscope.measures.step_profile import PARTS, StepProfile
from perfscope.sources.partials import Identity
from perfscope.wire.traces import partials_path

SOURCES = sorted((ROOT / "fixtures" / "traces" / "ddp4").glob("*.json.gz"))
#: Ranks of a host, which are one group of tensor parallelism.
ON_A_HOST = 8
#: The first and the largest exchange of a tensor-parallel layer, and how many there are in a step.
_TENSOR = OperationKind("all_reduce", "BFloat16", 33_554_432)
_TENSOR_CALLS, _TENSOR_NS = 8, 150_000
_JITTER_NS = 2_000
_LARGEST_SKEW_NS = 2_000_000
_SHORTEST_LATENESS, _LONGEST_LATENESS = 0.04, 0.2
_RANKS_OF_A_STRAGGLER = 1_024

#: Of so many stragglers one is late in one step only.
_ONE_OF = 3
_CAUSES = ("compute", "not_shown", "data_loading")

Int64: TypeAlias = npt.NDArray[np.int64]
#: A partial, which only its analyzer looks into.
Untyped: TypeAlias = Any


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that arrives late.

    Attributes:
        rank: Its number.
        cause: The part of ``step_profile.PARTS`` that takes longer on it.
        late_ns: How late it is in each step.
    """

    rank: int
    cause: str
    late_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Job:
    """What is known of a made job.

    Attributes:
        ranks: How many there are.
        stragglers: Those that are late.
        skew_ns: By host how far its clock is ahead of that of the first one.
        is_flat: Whether all ranks are one data-parallel group.
    """

    ranks: int
    stragglers: tuple[Straggler, ...]
    skew_ns: Int64
    is_flat: bool = False

    @property
    def on_a_host(self) -> int:
        """Ranks of each host."""
        return min(ON_A_HOST, self.ranks)

    @property
    def is_one_group(self) -> bool:
        """Whether all ranks call the same collectives."""
        return self.is_flat or self.ranks <= ON_A_HOST

    def path(self, rank: int) -> str:
        """The name of a rank's trace."""
        return f"rank{rank:05d}.pt.trace.json.gz"


def make_job(ranks: int, *, seed: int = 1, stragglers: int | None = None) -> Job:
    """A job with stragglers on hosts of their own; as many ranks as whole hosts have, or fewer than one has."""
    if ranks > ON_A_HOST and ranks % ON_A_HOST:
        raise ValueError(f"{ranks} ranks do not fill hosts of {ON_A_HOST}")
    random = np.random.default_rng(seed)
    steps, step_ns = len(_profile().steps), int(_profile().parts.sum(axis=0).mean())
    count = max(1, ranks // _RANKS_OF_A_STRAGGLER) if stragglers is None else stragglers
    hosts = max(1, ranks // ON_A_HOST)
    late = []
    for number, host in enumerate(random.choice(hosts, min(count, hosts), replace=False).tolist()):
        share = _SHORTEST_LATENESS + (_LONGEST_LATENESS - _SHORTEST_LATENESS) * random.random()
        rank = host * ON_A_HOST + int(random.integers(min(ON_A_HOST, ranks)))
        in_steps = [(number + 1) % _ONE_OF != 0 or step == number % steps for step in range(steps)]
        cause = _CAUSES[number % len(_CAUSES)]
        late.append(Straggler(rank, cause, tuple(int(share * step_ns) * is_late for is_late in in_steps)))
    skew_ns = random.integers(-_LARGEST_SKEW_NS, _LARGEST_SKEW_NS, hosts)
    skew_ns[0] = 0
    return Job(ranks, tuple(sorted(late, key=lambda straggler: straggler.rank)), skew_ns)


def _task() -> MeasureTask:
    """What is measured where no analyzer is named."""
    return MeasureTask(measuring_analyzers([analyzer for analyzer in analyzers() if analyzer.is_default]))


@cache
def sources() -> tuple[MeasuredTrace, ...]:
    """The real traces after the map step."""
    return tuple(measure(TraceFiles(str(path)), _task()) for path in SOURCES)


def _source_calls() -> Sequence[RankCalls]:
    every = [measured.partials["collectives"] for measured in sources()]
    return [calls for partial in every if isinstance(partial, tuple) for calls in partial]


def _profile() -> StepProfile:
    profile = _source_calls()[0].profile
    assert profile is not None
    return profile


class Made:
    """The measured traces of a job, one after the other."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._steps = _profile().steps
        self.late_ns = np.zeros((job.ranks, len(self._steps)), np.int64)
        for straggler in job.stragglers:
            self.late_ns[straggler.rank] = straggler.late_ns
        self._cause = {straggler.rank: straggler.cause for straggler in job.stragglers}
        self.latest_ns = self.late_ns.max(axis=0)
        self._random = np.random.default_rng(job.ranks)
        self._data = self._reductions([calls.groups[0] for calls in _source_calls()])
        self._tensor = None if job.is_one_group else self._exchanges()

    def __len__(self) -> int:
        return self.job.ranks

    def __iter__(self) -> Iterator[MeasuredTrace]:
        return (self.measured(rank) for rank in range(self.job.ranks))

    def measured(self, rank: int) -> MeasuredTrace:
        """One rank after the map step."""
        source = sources()[rank % len(sources())]
        path = self.job.path(rank)
        partials: dict[str, Untyped] = {
            name: self._renumber(partial, rank, path) for name, partial in source.partials.items()
        }
        partials["breakdown"] = tuple(self._late_parts(parts, rank) for parts in partials["breakdown"])
        partials["collectives"] = tuple(self._late_calls(calls, rank) for calls in partials["collectives"])
        assert source.summary is not None
        return replace(
            source,
            path=path,
            summary=replace(source.summary, path=path, rank=rank, world_size=self.job.ranks),
            partials=partials,
        )

    def _renumber(self, partial: Untyped, rank: int, path: str) -> Untyped:
        """A partial with the rank, the trace and the size of the job in all of its parts."""
        if isinstance(partial, tuple):
            return tuple(self._renumber(part, rank, path) for part in partial)
        facts = {"rank": rank, "trace": path, "world_size": self.job.ranks}
        if getattr(partial, "description", "") == "default_pg":
            facts["size"] = self.job.ranks
        changed = {name: value for name, value in facts.items() if hasattr(partial, name)}
        return replace(partial, **changed) if changed else partial

    def _late_parts(self, parts: RankParts, rank: int) -> RankParts:
        """What a rank's steps consist of: what is late takes longer, and who is less late waits for the latest."""
        steps, added = [], None
        for index, step in enumerate(parts.steps):
            late, wait = int(self.late_ns[rank, index]), int((self.latest_ns - self.late_ns[rank])[index])
            is_busy = self._cause.get(rank) == "compute"
            more = replace(
                step.parts,
                window=late + wait,
                compute=late if is_busy else 0,
                communication=wait,
                copy=0,
                exposed_communication=wait,
                exposed_copy=0,
                idle=0 if is_busy else late,
            )
            added = more if added is None else added + more
            steps.append(replace(step, parts=step.parts + more, host=step.host + late + wait))
        return parts if added is None else replace(parts, steps=tuple(steps), total=parts.total + added)

    def _late_calls(self, calls: RankCalls, rank: int) -> RankCalls:
        """The communication of a rank, what it did in its steps, and how long its kernels took."""
        host = rank // ON_A_HOST
        profile, kernels = calls.profile, calls.kernels
        assert profile is not None
        assert kernels is not None
        late = self.late_ns[rank]
        parts = profile.parts.copy()
        parts[PARTS.index(self._cause.get(rank, "host"))] += late
        parts[PARTS.index("communication")] += self.latest_ns - late
        if self._cause.get(rank) == "compute":
            slower = 1 + late / profile.parts[PARTS.index("compute")]
            kernels = replace(kernels, median_ns=(kernels.median_ns * slower.mean()).astype(np.int64))
        groups = [self._data.calls(rank, self.job, int(self.job.skew_ns[host]))]
        if self._tensor is not None:
            groups.append(self._tensor.calls(rank, self.job, int(self.job.skew_ns[host])))
        return replace(
            calls, host=f"node{host:04d}", groups=tuple(groups), profile=replace(profile, parts=parts), kernels=kernels
        )

    def _reductions(self, source: Sequence[GroupCalls]) -> _Timed:
        """The gradients' reductions: the first of a step waits for the latest rank of each host."""
        first = source[0]
        transfer_ns = np.min([calls.duration_ns for calls in source], axis=0).astype(np.int64)
        hosts = self.late_ns.reshape(-1, self.job.on_a_host, self.late_ns.shape[1])
        behind = hosts if self.job.is_one_group else hosts.max(axis=1, keepdims=True).repeat(ON_A_HOST, axis=1)
        arrival = behind.reshape(self.late_ns.shape)
        return self._timed(first, arrival, transfer_ns)

    def _exchanges(self) -> _Timed:
        """The exchanges of a host's ranks: the first of a step waits for its latest rank."""
        first = _source_calls()[0].groups[0]
        count = _TENSOR_CALLS * len(self._steps)
        ends = np.linspace(first.end_ns[0], first.end_ns[-1], count).astype(np.int64)
        exchanges = replace(
            first,
            key=GroupKey("1", "", role="TP"),
            description="TENSOR_MODEL_PARALLEL_GROUP",
            kinds=(_TENSOR,),
            kind=np.zeros(count, np.int16),
            step=np.repeat(self._steps, _TENSOR_CALLS).astype(np.int32),
            end_ns=ends,
            covered_ns=np.array([count * _TENSOR_NS]),
            hidden_ns=np.zeros(1, np.int64),
        )
        transfer_ns = np.full(count, _TENSOR_NS, np.int64)
        return self._timed(exchanges, self.late_ns, transfer_ns)

    def _timed(self, calls: GroupCalls, late_ns: Int64, transfer_ns: Int64) -> _Timed:
        """The durations of every rank's operations, from when the ranks arrive at them."""
        arrival = self._random.normal(0, _JITTER_NS, (self.job.ranks, len(calls.step))).astype(np.int64)
        for index, step in enumerate(self._steps):
            arrival[:, int(np.flatnonzero(calls.step == step)[0])] += late_ns[:, index]
        is_data = calls.role != "TP" and not self.job.is_one_group
        shape = (-1, self.job.ranks if self.job.is_one_group else self.job.on_a_host, arrival.shape[1])
        last = arrival.reshape(shape).max(axis=0 if is_data else 1, keepdims=True)
        wait = (last - arrival.reshape(shape)).reshape(arrival.shape)
        return _Timed(calls, (wait + transfer_ns).astype(np.int32), is_data)


@dataclass(frozen=True, slots=True, eq=False)
class _Timed:
    """The operations of all ranks in groups of one kind.

    Attributes:
        source: Those of a real rank.
        duration_ns: How long each took: one row a rank, one column an operation.
        is_across_hosts: Whether each group has one rank of each host.
    """

    source: GroupCalls
    duration_ns: npt.NDArray[np.int32]
    is_across_hosts: bool

    def calls(self, rank: int, job: Job, skew_ns: int) -> GroupCalls:
        """Those of one rank, by its own clock."""
        end_ns, duration_ns = self.source.end_ns + skew_ns, self.duration_ns[rank].copy()
        own = replace(self.source, duration_ns=duration_ns, end_ns=end_ns)
        if job.is_one_group:
            return replace(own, key=GroupKey(own.key.name, _members_of_all(job.ranks), role=own.role), size=job.ranks)
        place, host = rank % ON_A_HOST, rank // ON_A_HOST
        if not self.is_across_hosts:
            return replace(own, key=GroupKey("tensor", _members_of_host(host), role="TP"), size=ON_A_HOST)
        return replace(
            own,
            key=GroupKey("data", _members_of_place(job.ranks, place), role="DP"),
            size=job.ranks // ON_A_HOST,
            description="DATA_PARALLEL_GROUP",
        )


@cache
def _members_of_all(ranks: int) -> str:
    return members_of(range(ranks))


@cache
def _members_of_host(host: int) -> str:
    return members_of(range(host * ON_A_HOST, (host + 1) * ON_A_HOST))


@cache
def _members_of_place(ranks: int, place: int) -> str:
    return members_of(range(place, ranks, ON_A_HOST))


def write_partials(folder: Path, ranks: int) -> Path:
    """The partials of a job, one file a rank, whose traces stayed on their hosts."""
    events, _ = wanted_events(_task())
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    size = SOURCES[0].stat().st_size
    for measured in Made(make_job(ranks)):
        identities = (Identity(measured.path, size, "0" * 64),)
        content = to_content(measured, TraceFiles(measured.path), _task().analyzers, events, identities)
        (folder / partials_path(measured.path)).write_bytes(content)
    return folder


def main() -> None:
    folder, ranks = Path(sys.argv[1]), int(sys.argv[2])
    write_partials(folder, ranks)
    began = time.monotonic()
    words = [sys.executable, "-m", "perfscope", "analyze", str(folder), "--format", "json"]
    printed = subprocess.run(words, stdout=subprocess.PIPE, check=False).stdout
    seconds, used = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    named = json.loads(printed)["results"]["stragglers"]["straggler"]
    is_late = named in {straggler.rank for straggler in make_job(ranks).stragglers}
    print(
        f"{ranks:,} ranks: {seconds:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of processors, "
        f"{used.ru_maxrss / 1e6:.2f} GB; rank {named} is named, which {'is' if is_late else 'is NOT'} late"
    )


if __name__ == "__main__":
    main()
