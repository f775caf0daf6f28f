"""Where each rank stands in a merged timeline: the numbers of its processes, of its arrows, and their names.

Traces of ranks on one host share process ids, thread ids of devices, and the ids of arrows. In the merged file every
rank has numbers of its own, in the order of the ranks, so that viewers sort and name it, and join nothing by accident.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perfscope.analyzers.tracks.rank_tracks import RankTracks
from perfscope.tables.run import Run
from perfscope.tables.trace import ABSENT

#: The process that holds the tracks of all ranks.
OVERVIEW = 1
_NUMBERS_PER_RANK = 10_000
_FIRST_DEVICE = 100
_FIRST_OTHER = 1_000
_ARROWS_PER_TRACE = 1 << 32


@dataclass(frozen=True, slots=True)
class Slot:
    """A rank's slot, or that of a trace whose rank is not known.

    Attributes:
        position: Its position among the ranks, from 1.
        label: Its name and its position in the layout: ``rank 3 (dp 1, pp 0)``.
        host: Its machine; ``""`` where not stated.
        process: The id of the process that was profiled, or ABSENT.
    """

    position: int
    label: str
    host: str
    process: int

    @property
    def host_process(self) -> int:
        """The number of its process on the host."""
        return self.position * _NUMBERS_PER_RANK

    def device_process(self, device: int) -> int:
        """The number that stands for one of its devices."""
        return self.host_process + _FIRST_DEVICE + device

    def other_process(self, index: int) -> int:
        """The number of whatever else its trace lists as a process."""
        return self.host_process + _FIRST_OTHER + index


def arrow_id(trace: int, arrow: int) -> int:
    """The id of an arrow of a trace; exact in a double for two million traces."""
    return (trace + 1) * _ARROWS_PER_TRACE + arrow % _ARROWS_PER_TRACE


def assign_slots(tracks: Sequence[RankTracks], run: Run | None) -> dict[str, Slot]:
    """The slot of each trace; ``tracks`` are in the order of the ranks."""
    coordinates = {rank.rank: rank.parallel for rank in run.ranks} if run else {}
    positions: dict[int | str, int] = {}
    slots = {}
    for rank in tracks:
        owner = rank.trace if rank.rank is None else rank.rank
        position = positions.setdefault(owner, len(positions) + 1)
        label = _label(rank.rank, coordinates.get(rank.rank, {}) if rank.rank is not None else {})
        slots[rank.trace] = Slot(position, label, rank.host, rank.process)
    return slots


def _label(rank: int | None, coordinates: Mapping[str, int]) -> str:
    if rank is None:
        return "unknown rank"
    axes = ", ".join(f"{axis} {index}" for axis, index in coordinates.items())
    return f"rank {rank} ({axes})" if axes else f"rank {rank}"


def name_host_process(slot: Slot) -> str:
    """What viewers call its process on the host."""
    where = f" {slot.host}" if slot.host else ""
    process = "" if slot.process == ABSENT else f", process {slot.process}"
    return f"{slot.label}: host{where}{process}"
