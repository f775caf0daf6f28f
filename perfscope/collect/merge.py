"""Plans where the files of a part go in a run, and moves them there; a different file is never overwritten.

A file of lines that only grows (``.jsonl``) may replace its own beginning. Two processes that had a rank one after the
other, as after an elastic restart, become its attempts, in order of time.
"""

from __future__ import annotations

import filecmp
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from perfscope import wire
from perfscope.constants import MIB
from perfscope.errors import SourceError
from perfscope.sources.runs.processes import RankProcess, read_rank_process

_LINES_SUFFIX = ".jsonl"


@dataclass(slots=True)
class MergePlan:
    """The changes that merge a part into a run.

    Attributes:
        renames: Rank folders of the run that get another number, in order.
        moves: Files of the part that are new, or that replace their own beginning.
        duplicates: Files of the part that the run has already.
    """

    renames: list[tuple[Path, Path]] = field(default_factory=list)
    moves: list[tuple[Path, Path]] = field(default_factory=list)
    duplicates: list[Path] = field(default_factory=list)


def plan_merge(staged: Path, run: Path) -> MergePlan:
    """Plan the merge of a part without writing anything.

    Args:
        staged: The part, in a folder of its own on the run's file system.
        run: The run's folder; it may be empty or hold parts.

    Raises:
        SourceError: A file differs from the run's file of the same name.
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
            continue  # it shows one part; `perfscope page` draws the whole run
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
    """Where a file, or a rank's folder, goes.

    Attributes:
        path: Its path after the merge.
        existing: The run's own copy, before folders are renamed; None where it has none.
        is_newer: Whether the part's copy is a later state of the existing one.
    """

    path: Path
    existing: Path | None
    is_newer: bool = False

    def below(self, name: Path) -> _Target:
        """The target of a file in a rank's folder."""
        return _Target(self.path / name, self.existing / name if self.existing else None, self.is_newer)


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
                is_newer = len(process.step_ends_ns) > len(counterpart.step_ends_ns)
                targets[process.folder.name] = _Target(path, counterpart.folder, is_newer)
            else:
                targets[process.folder.name] = _Target(path, None if path in renamed else path)
    return targets


def _order(target_of: Mapping[Path, Path], others: Iterator[Path]) -> Iterator[tuple[Path, Path]]:
    """Renames one after the other, each to a name that is free by then.

    Whoever reads the run, or goes on with a merge that was interrupted, finds every folder under a name of its rank.

    Args:
        target_of: What each folder is to be called.
        others: Further names, for folders that exchange theirs.
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
    """The processes of each rank, by the names of their folders."""
    by_rank: dict[int, list[RankProcess]] = {}
    for folder in sorted(ranks.iterdir()) if ranks.is_dir() else ():
        number = wire.parse_rank_folder(folder.name)
        process = read_rank_process(folder) if number is not None else None
        if number is not None and process is not None:
            by_rank.setdefault(number[0], []).append(process)
    return by_rank


def _find_samples_target(path: Path, target: Path) -> Path:
    """Where a host's samples go: the same file in an earlier or later state, else the first free number."""
    return next(
        candidate
        for candidate in _numbered_names(target)
        if not candidate.exists() or _is_beginning(path, candidate) or _is_beginning(candidate, path)
    )


def _numbered_names(target: Path) -> Iterator[Path]:
    yield target
    for number in itertools.count(1):
        yield target.with_name(f"{target.stem}.{number}{target.suffix}")


def _plan_file(path: Path, target: _Target, plan: MergePlan) -> None:
    existing = target.existing
    grows = path.suffix == _LINES_SUFFIX
    if existing is None or not existing.exists():
        plan.moves.append((path, target.path))
    elif filecmp.cmp(path, existing, shallow=False) or (grows and _is_beginning(path, existing)):
        plan.duplicates.append(path)
    elif (grows and _is_beginning(existing, path)) or target.is_newer:
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
