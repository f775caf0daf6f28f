"""Whether the parts belong to one run.

Parts belong to one run where they share the id that ``perfscope profile`` gave it. Hosts that each ran their own
``perfscope profile`` (torchrun is started on every host) have different ids: their parts belong to one run where their
ranks met at the same address and trained at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from perfscope import wire
from perfscope.constants import NS_PER_S, S_PER_MINUTE
from perfscope.errors import SourceError
from perfscope.sources.runs.processes import RankProcess, read_description, read_rank_process

#: Hosts of one run may start and end this much apart.
_START_SLACK_NS = S_PER_MINUTE * NS_PER_S
#: Clocks of hosts may differ by this before two attempts look as if they had lived at the same time.
_RESTART_SLACK_NS = 5 * NS_PER_S


@dataclass(frozen=True)
class PartFacts:
    """The processes and the identity of a part.

    Attributes:
        name: The part's name, as the user typed it.
        processes: Its processes.
        run_ids: Ids of the run that its processes and its run.json name.
        rendezvous: Addresses at which its ranks met, with the number of ranks.
    """

    name: str
    processes: tuple[RankProcess, ...]
    run_ids: frozenset[str]
    rendezvous: frozenset[str]

    @property
    def hosts(self) -> list[str]:
        """The hosts of its processes."""
        return sorted({process.record.host for process in self.processes})

    @property
    def ranks(self) -> list[int]:
        """The ranks of its processes."""
        return sorted({process.record.rank for process in self.processes})


def read_part_facts(name: str, folder: Path) -> PartFacts:
    """Read the processes and the identity of a part, or of an existing run."""
    ranks = folder / wire.RANKS_FOLDER
    rank_folders = sorted(path for path in ranks.iterdir() if path.is_dir()) if ranks.is_dir() else []
    processes = tuple(
        process for rank_folder in rank_folders if (process := read_rank_process(rank_folder)) is not None
    )
    run_files = [folder / wire.RUN_FILE, *(folder / wire.HOSTS_FOLDER).glob("*.json")]
    descriptions = [description for path in run_files if (description := read_description(path)) is not None]
    run_ids = {description.run_id for description in descriptions if description.run_id}
    run_ids |= {process.record.run_id for process in processes if process.record.run_id}
    rendezvous = {
        f"{process.record.rendezvous} with {process.record.world_size} ranks"
        for process in processes
        if process.record.rendezvous
    }
    return PartFacts(name, processes, frozenset(run_ids), frozenset(rendezvous))


def require_one_run(parts: Sequence[PartFacts]) -> list[str]:
    """Check that all parts belong to one run.

    Returns:
        What could not be checked, in words.

    Raises:
        SourceError: A part belongs to another run.
    """
    notes = []
    accepted: list[PartFacts] = []
    remaining = [part for part in parts if part.processes or part.run_ids]
    while remaining:
        related = [part for part in remaining if not accepted or any(_are_one_run(part, peer) for peer in accepted)]
        if not related:
            break
        accepted.append(related[0])
        remaining.remove(related[0])
    for part in remaining:
        if part.run_ids or part.rendezvous:
            raise SourceError(
                part.name,
                f"is not of the same run as {accepted[0].name}: {_describe_identity(part)}, "
                f"against {_describe_identity(accepted[0])}",
                hint="nothing was changed; collect the parts of one run",
            )
        notes.append(f"{part.name} names no run, so it cannot be checked whether it belongs to the same run")
    world_sizes = {process.record.world_size for part in parts for process in part.processes}
    if len(world_sizes) > 1:
        notes.append(f"the ranks report different world sizes: {', '.join(str(size) for size in sorted(world_sizes))}")
    return notes


def _are_one_run(part: PartFacts, peer: PartFacts) -> bool:
    return bool(part.run_ids & peer.run_ids) or (
        bool(part.rendezvous & peer.rendezvous) and _trained_together(part, peer)
    )


def _trained_together(part: PartFacts, peer: PartFacts) -> bool:
    first_ns, last_ns = _lifetime_ns(part.processes)
    peer_first_ns, peer_last_ns = _lifetime_ns(peer.processes)
    return first_ns <= peer_last_ns + _START_SLACK_NS and peer_first_ns <= last_ns + _START_SLACK_NS


def _lifetime_ns(processes: Sequence[RankProcess]) -> tuple[int, int]:
    return min(process.first_ns for process in processes), max(process.last_ns for process in processes)


def _describe_identity(part: PartFacts) -> str:
    run_ids = [f"run {run_id}" for run_id in sorted(part.run_ids)]
    return ", ".join([*run_ids, *(f"met at {address}" for address in sorted(part.rendezvous))])


def require_distinct_ranks(processes: Sequence[RankProcess]) -> None:
    """Check that no rank was two processes at the same time.

    Raises:
        SourceError: A rank was.
    """
    ordered = sorted(processes, key=lambda process: (process.record.rank, process.first_ns))
    for earlier, later in pairwise(ordered):
        if earlier.record.rank == later.record.rank and later.first_ns < earlier.last_ns - _RESTART_SLACK_NS:
            raise SourceError(
                later.folder,
                f"and {earlier.folder} are rank {earlier.record.rank} at the same time: process {earlier.record.pid} "
                f"on {earlier.record.host} and {later.record.pid} on {later.record.host}",
                hint="nothing was changed; these are parts of different runs",
            )


def find_missing_ranks(processes: Sequence[RankProcess]) -> list[int]:
    """Find the ranks without any process."""
    if not processes:
        return []
    world_size = max(process.record.world_size for process in processes)
    return sorted(set(range(world_size)) - {process.record.rank for process in processes})
