"""Plans where the files of a part go in a run, and moves them there; a different file is never overwritten.

A file of lines that only grows (``.jsonl``) may replace its own beginning. Two processes that had a rank one after the
other, as after an elastic restart, become its attempts, in order of time.
"""

from __future__ import annotations

import filecmp
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from perfscope import wire
from perfscope.constants import MIB, NS_PER_S, S_PER_MINUTE
from perfscope.errors import SourceError
from perfscope.files import replace_file
from perfscope.sources.runs.processes import RankProcess, RunDescription, read_description, read_rank_process
from perfscope.wire.records import to_file


@dataclass(slots=True)
class MergePlan:
    """The changes that merge a part into a run; ``duplicates`` are files of the part that the run has already."""

    renames: list[tuple[Path, Path]] = field(default_factory=list)
    moves: list[tuple[Path, Path]] = field(default_factory=list)
    duplicates: list[Path] = field(default_factory=list)


def plan_merge(staged: Path, run: Path) -> MergePlan:
    """Plan the merge of a part, which is staged on the run's file system, without writing anything.

    Raises SourceError: a file differs from the run's file of the same name.
    """
    plan = MergePlan()
    rank_targets = _plan_ranks(staged / wire.RANKS_FOLDER, run / wire.RANKS_FOLDER, plan)
    for path in sorted(path for path in staged.rglob("*") if path.is_file()):
        name = path.relative_to(staged)
        if name.parts[0] == wire.RANKS_FOLDER and len(name.parts) > 1 and name.parts[1] in rank_targets:
            _plan_file(path, rank_targets[name.parts[1]].below(Path(*name.parts[2:])), plan)
        elif name.parts[0] == wire.NVML_FOLDER:
            target = _find_samples_target(path, run / name)
            _plan_file(path, _Target(target, target), plan)
        elif name.as_posix() == wire.RUN_FILE:
            continue  # ``descriptions`` merges it
        elif name.as_posix() == wire.PAGE_FILE:
            continue  # it shows one part; `perfscope export` draws the whole run
        elif name.parts[0] == wire.TRACES_FOLDER and (run / f"{name}.gz").is_file():
            plan.duplicates.append(path)
        else:
            _plan_file(path, _Target(run / name, run / name), plan)
    return plan


def apply_merge(plan: MergePlan) -> None:
    """Move the files; the run can be read after every single move, and an interrupted merge can be planned again."""
    for source, target in plan.renames:
        source.rename(target)
    for source, target in plan.moves:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    for path in plan.duplicates:
        path.unlink()


@dataclass(frozen=True)
class _Target:
    """Where a file or a rank's folder goes; ``existing`` is the run's own copy, before folders are renamed.

    ``new_steps`` are the steps that the part has of a process beyond those of the run's own copy.
    """

    path: Path
    existing: Path | None
    new_steps: int = 0

    def below(self, name: Path) -> _Target:
        return _Target(self.path / name, self.existing / name if self.existing else None, self.new_steps)


def _plan_ranks(staged: Path, ranks: Path, plan: MergePlan) -> dict[str, _Target]:
    """Number the attempts of each rank over the processes of the run and of the part."""
    targets: dict[str, _Target] = {}
    existing_by_rank = _read_processes(ranks)
    for rank, arriving in _read_processes(staged).items():
        existing = existing_by_rank.get(rank, [])
        by_identity = {process.identity: process for process in existing}
        new = [process for process in arriving if process.identity not in by_identity]
        ordered = sorted([*existing, *new], key=lambda process: (process.first_ns, process.folder.name))
        folders = {process.identity: ranks / wire.rank_folder(rank, attempt) for attempt, process in enumerate(ordered)}
        target_of = {process.folder: folders[process.identity] for process in existing}
        renamed = [folder for folder, target in target_of.items() if folder != target]
        numbers = (ranks / wire.rank_folder(rank, attempt) for attempt in itertools.count(len(ordered)))
        plan.renames += _order(target_of, numbers)
        for process in arriving:
            path = folders[process.identity]
            counterpart = by_identity.get(process.identity)
            if counterpart is not None:
                targets[process.folder.name] = _Target(path, counterpart.folder, process.steps - counterpart.steps)
            else:
                targets[process.folder.name] = _Target(path, None if path in renamed else path)
    return targets


def _order(target_of: Mapping[Path, Path], others: Iterator[Path]) -> Iterator[tuple[Path, Path]]:
    """Renames one after the other, each to a name that is free by then; ``others`` are for folders that swap names.

    Whoever reads the run, or goes on with a merge that was interrupted, finds every folder under a name of its rank.
    """
    taken = set(target_of)
    waiting = {folder: target for folder, target in target_of.items() if folder != target}
    while waiting:
        folder = next((folder for folder, target in waiting.items() if target not in taken), None)
        if folder is None:
            folder, target = waiting.popitem()
            name = next(name for name in others if name not in taken)
            waiting[name] = target
        else:
            name = waiting.pop(folder)
        taken = (taken - {folder}) | {name}
        yield folder, name


def _read_processes(ranks: Path) -> dict[int, list[RankProcess]]:
    by_rank: dict[int, list[RankProcess]] = {}
    for folder in sorted(ranks.iterdir()) if ranks.is_dir() else ():
        number = wire.parse_rank_folder(folder.name)
        process = read_rank_process(folder) if number is not None else None
        if number is not None and process is not None:
            by_rank.setdefault(number[0], []).append(process)
    return by_rank


def _find_samples_target(path: Path, target: Path) -> Path:
    """Where a host's samples go: the same file in an earlier or later state, else the first free number."""
    numbered = (target.with_name(f"{target.stem}.{number}{target.suffix}") for number in itertools.count(1))
    return next(
        candidate
        for candidate in itertools.chain((target,), numbered)
        if not candidate.exists() or _is_beginning(path, candidate) or _is_beginning(candidate, path)
    )


def _plan_file(path: Path, target: _Target, plan: MergePlan) -> None:
    existing = target.existing
    grows = path.suffix == ".jsonl"
    changes = path.name == wire.PLACES_FILE  # a running job writes it again and again
    if existing is None or not existing.exists():
        plan.moves.append((path, target.path))
    elif filecmp.cmp(path, existing, shallow=False) or (
        _is_beginning(path, existing) if grows else changes and target.new_steps < 0
    ):
        plan.duplicates.append(path)
    elif (grows and _is_beginning(existing, path)) or target.new_steps > 0 or changes:
        plan.moves.append((path, target.path))
    else:
        raise SourceError(
            existing, "exists with other content", hint=f"it was left as it is; {path} was not put in its place"
        )


def _is_beginning(shorter: Path, longer: Path) -> bool:
    """Whether the content of a file begins with all of another one's."""
    if shorter.stat().st_size > longer.stat().st_size:
        return False
    with shorter.open("rb") as shorter_file, longer.open("rb") as longer_file:
        while block := shorter_file.read(MIB):
            if longer_file.read(len(block)) != block:
                return False
    return True


#: Hosts of one run may start and end this much apart.
_START_SLACK_NS = S_PER_MINUTE * NS_PER_S
#: Clocks of hosts may differ by this before two attempts look as if they had lived at the same time.
_RESTART_SLACK_NS = 5 * NS_PER_S


@dataclass(frozen=True)
class PartFacts:
    """The processes of a part, the ids of the run that they and run.json name, and where its ranks met."""

    name: str = ""
    processes: tuple[RankProcess, ...] = ()
    run_ids: frozenset[str] = frozenset()
    rendezvous: frozenset[str] = frozenset()

    @property
    def hosts(self) -> list[str]:
        """Sorted, each once."""
        return sorted({process.record.host for process in self.processes})

    @property
    def ranks(self) -> list[int]:
        """Sorted, each once."""
        return sorted({process.record.rank for process in self.processes})


#: Of a part that could not be copied.
NOTHING_KNOWN = PartFacts()


def read_part_facts(name: str, folder: Path) -> PartFacts:
    """Read the processes and the identity of a part, or of an existing run."""
    folders = sorted((folder / wire.RANKS_FOLDER).glob("*/"))
    processes = tuple(process for path in folders if (process := read_rank_process(path)) is not None)
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
    """Check that all parts belong to one run; returns what could not be checked, in words.

    Raises SourceError: a part belongs to another run.
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
    (first_ns, last_ns), (peer_first_ns, peer_last_ns) = (
        (min(process.first_ns for process in one.processes), max(process.last_ns for process in one.processes))
        for one in (part, peer)
    )
    return first_ns <= peer_last_ns + _START_SLACK_NS and peer_first_ns <= last_ns + _START_SLACK_NS


def _describe_identity(part: PartFacts) -> str:
    run_ids = [f"run {run_id}" for run_id in sorted(part.run_ids)]
    return ", ".join([*run_ids, *(f"met at {address}" for address in sorted(part.rendezvous))])


def require_distinct_ranks(processes: Sequence[RankProcess]) -> None:
    """Raise SourceError where a rank was two processes at the same time."""
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
    """The ranks without any process."""
    if not processes:
        return []
    world_size = max(process.record.world_size for process in processes)
    return sorted(set(range(world_size)) - {process.record.rank for process in processes})


def merge_descriptions(staged: Sequence[Path], run: Path, processes: Sequence[RankProcess]) -> None:
    """Write run.json, and hosts/HOST.json for each host where there are several.

    Raises SourceError: two descriptions of one host belong to different runs.
    """
    paths = [
        *(part / wire.RUN_FILE for part in staged),
        run / wire.RUN_FILE,
        *(run / wire.HOSTS_FOLDER).glob("*.json"),
    ]
    by_host: dict[str, RunDescription] = {}
    for path in paths:
        description = read_description(path)
        if description is not None:
            earlier = by_host.get(description.host)
            by_host[description.host] = description if earlier is None else _choose_later(earlier, description, path)
    if not by_host:
        return
    leader = min(processes, key=lambda process: (process.record.rank, process.first_ns)) if processes else None
    leading = by_host.get(leader.record.host) if leader is not None else None
    chosen = leading or min(by_host.values(), key=lambda description: description.started_ns)
    if len(by_host) > 1:
        (run / wire.HOSTS_FOLDER).mkdir(exist_ok=True)
        for host, description in by_host.items():
            path = run / wire.HOSTS_FOLDER / f"{host.replace('/', '_')}.json"
            replace_file(path, to_file(description.document))
    replace_file(run / wire.RUN_FILE, to_file(chosen.document))
    for part in staged:
        (part / wire.RUN_FILE).unlink(missing_ok=True)


def _choose_later(earlier: RunDescription, description: RunDescription, path: Path) -> RunDescription:
    """Choose, of two descriptions by one host, the description that says how the command ended."""
    if (earlier.run_id, earlier.started_ns) != (description.run_id, description.started_ns):
        raise SourceError(path, f"is of another run on {earlier.host}", hint="nothing was overwritten")
    return earlier if earlier.has_ended else description
