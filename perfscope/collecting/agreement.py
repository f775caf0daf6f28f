"""Whether the parts are of one run, and how their hosts' clocks stand to each other.

Parts are of one run where they share the id that ``perfscope profile`` gave it. Hosts that each ran their own
``perfscope profile`` (torchrun is started on every host) have ids of their own: they are of one run where their ranks
met at the same address and trained at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from perfscope import wire
from perfscope.errors import SourceError

_SLACK_NS = 60 * 10**9
#: Clocks of hosts may differ by this before two attempts look as if they had lived at once.
_RESTART_SLACK_NS = 5 * 10**9
_SECONDS_APART = 0.1


@dataclass(frozen=True)
class Process:
    """One process that had a rank.

    Attributes:
        folder: Its folder.
        record: Who it was.
        first_ns, last_ns: When it is known to have lived, on its host's wall clock.
        ends_ns: When each of its steps ended, by number, on that clock.
    """

    folder: Path
    record: wire.RankRecord
    first_ns: int
    last_ns: int
    ends_ns: Mapping[int, int]

    @property
    def identity(self) -> tuple[str, int]:
        """What tells it from other processes of its rank."""
        return self.record.host, self.record.pid


@dataclass(frozen=True)
class PartFacts:
    """What a part says about itself.

    Attributes:
        name: The part.
        processes: Its processes.
        ids: Ids of the run that they and its run.json name.
        meetings: Where its ranks met, with how many.
    """

    name: str
    processes: tuple[Process, ...]
    ids: frozenset[str]
    meetings: frozenset[str]


@dataclass(frozen=True)
class Clock:
    """One host's wall clock against that of rank 0's host.

    Attributes:
        host: Which one.
        ahead_s: By how much it is ahead: the median over common steps, which all ranks end together.
        steps: How many steps that is over.
    """

    host: str
    ahead_s: float
    steps: int


def read_facts(name: str, folder: Path) -> PartFacts:
    """Read what a part, or a run that is there already, says about itself."""
    ranks = folder / wire.RANKS_FOLDER
    folders = sorted(path for path in ranks.iterdir() if path.is_dir()) if ranks.is_dir() else []
    processes = tuple(process for one in folders if (process := read_process(one)) is not None)
    described = [read_json(path) for path in (folder / wire.RUN_FILE, *(folder / wire.HOSTS_FOLDER).glob("*.json"))]
    ids = {str(one["run_id"]) for one in described if one.get("run_id")}
    ids |= {process.record.run_id for process in processes if process.record.run_id}
    meetings = {
        f"{process.record.rendezvous} with {process.record.world_size} ranks"
        for process in processes
        if process.record.rendezvous
    }
    return PartFacts(name, processes, frozenset(ids), frozenset(meetings))


def read_process(folder: Path) -> Process | None:
    """Read who a rank's process was; None where its rank.json is missing or damaged."""
    try:
        record = msgspec.json.decode((folder / wire.RANK_FILE).read_bytes(), type=wire.RankRecord)
    except (OSError, msgspec.MsgspecError):
        return None
    shift_ns = record.wall_ns - record.monotonic_ns
    ends = {step: end_ns + shift_ns for step, end_ns in _step_ends(folder / wire.STEPS_FILE)}
    times = [record.wall_ns, *ends.values()]
    return Process(folder, record, min(times), max(times), ends)


def _step_ends(path: Path) -> list[tuple[int, int]]:
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        try:
            value = json.loads(line)
            found.append((int(value["step"]), int(value["end_ns"])))
        except (ValueError, KeyError, TypeError):
            continue  # half a line of a process that was killed
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Read an object; empty where the file is missing or damaged."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def require_one_run(parts: Sequence[PartFacts]) -> list[str]:
    """Check that all parts are of one run.

    Returns:
        What could not be checked, in words.

    Raises:
        SourceError: A part is of another run.
    """
    notes = []
    united: list[PartFacts] = []
    waiting = [part for part in parts if part.processes or part.ids]
    while waiting:
        met = [part for part in waiting if not united or any(_are_one_run(part, other) for other in united)]
        if not met:
            break
        united.append(met[0])
        waiting.remove(met[0])
    for part in waiting:
        if part.ids or part.meetings:
            raise SourceError(
                part.name,
                f"is not of the same run as {united[0].name}: {_who(part)}, against {_who(united[0])}",
                hint="nothing was changed; collect the parts of one run",
            )
        notes.append(f"{part.name} names no run, so that it cannot be checked whether it belongs to the others")
    sizes = {process.record.world_size for part in parts for process in part.processes}
    if len(sizes) > 1:
        notes.append(f"the ranks do not agree on how many they are: {', '.join(str(size) for size in sorted(sizes))}")
    return notes


def _are_one_run(one: PartFacts, other: PartFacts) -> bool:
    return bool(one.ids & other.ids) or (bool(one.meetings & other.meetings) and _lived_together(one, other))


def _lived_together(one: PartFacts, other: PartFacts) -> bool:
    first, last = _life(one.processes)
    other_first, other_last = _life(other.processes)
    return first <= other_last + _SLACK_NS and other_first <= last + _SLACK_NS


def _life(processes: Sequence[Process]) -> tuple[int, int]:
    return min(process.first_ns for process in processes), max(process.last_ns for process in processes)


def _who(part: PartFacts) -> str:
    return ", ".join([*(f"run {one}" for one in sorted(part.ids)), *(f"met at {one}" for one in sorted(part.meetings))])


def require_one_process_a_time(processes: Sequence[Process]) -> None:
    """Check that no rank was two processes at once.

    Raises:
        SourceError: One was.
    """
    ordered = sorted(processes, key=lambda one: (one.record.rank, one.first_ns))
    for one, other in pairwise(ordered):
        if one.record.rank == other.record.rank and other.first_ns < one.last_ns - _RESTART_SLACK_NS:
            raise SourceError(
                other.folder,
                f"and {one.folder} are rank {one.record.rank} at the same time: process {one.record.pid} on "
                f"{one.record.host} and {other.record.pid} on {other.record.host}",
                hint="nothing was changed; these are parts of different runs",
            )


def missing_ranks(processes: Sequence[Process]) -> list[int]:
    """The ranks of which there is no process."""
    if not processes:
        return []
    size = max(process.record.world_size for process in processes)
    return sorted(set(range(size)) - {process.record.rank for process in processes})


def compare_clocks(processes: Sequence[Process]) -> tuple[Clock, ...]:
    """How far each host's clock is ahead of that of the lowest rank's host, by the ends of common steps."""
    longest: dict[str, Process] = {}
    for process in sorted(processes, key=lambda one: (one.record.rank, one.first_ns)):
        held = longest.get(process.record.host)
        if held is None or len(process.ends_ns) > len(held.ends_ns):
            longest[process.record.host] = process
    if not longest:
        return ()
    reference = next(iter(longest.values()))
    clocks = []
    for host, process in longest.items():
        common = sorted(set(process.ends_ns) & set(reference.ends_ns))
        if process is not reference and common:
            apart = median(process.ends_ns[step] - reference.ends_ns[step] for step in common)
            clocks.append(Clock(host, apart / 1e9, len(common)))
    return tuple(clocks)


def doubts_about(clocks: Sequence[Clock], processes: Sequence[Process]) -> list[str]:
    """The clocks that differ by more than a step can explain, in words."""
    lengths = [
        (max(process.ends_ns.values()) - min(process.ends_ns.values())) / 1e9 / (len(process.ends_ns) - 1)
        for process in processes
        if len(process.ends_ns) > 1
    ]
    explained = max([_SECONDS_APART, *lengths])
    return [
        f"the clock of {clock.host} is {abs(clock.ahead_s):.3g} s {'ahead' if clock.ahead_s > 0 else 'behind'} "
        f"by the ends of {clock.steps} common steps"
        for clock in clocks
        if abs(clock.ahead_s) > explained
    ]
