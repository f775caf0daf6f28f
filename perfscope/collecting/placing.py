"""Decides where the files of a part go in a run, and moves them there; what differs is never overwritten.

A file of lines that only grows (``.jsonl``) may replace its own beginning. Two processes that had a rank one after the
other, as after an elastic restart, are its attempts, in order of time.
"""

from __future__ import annotations

import filecmp
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from perfscope import wire
from perfscope.collecting.agreement import Process, read_process
from perfscope.errors import SourceError

_RANK_FOLDER = re.compile(r"(\d{5,})(?:\.(\d+))?")
_BLOCK = 2**20


@dataclass(slots=True)
class Placing:
    """What is to be done.

    Attributes:
        renames: Folders of ranks that get another number, in order.
        moves: Files that go to a new place, or replace their own beginning.
        same: Files that are there already.
    """

    renames: list[tuple[Path, Path]] = field(default_factory=list)
    moves: list[tuple[Path, Path]] = field(default_factory=list)
    same: list[Path] = field(default_factory=list)


def plan_placing(staged: Path, run: Path) -> Placing:
    """Decide, without writing anything.

    Args:
        staged: The part, in a folder of its own on the run's file system.
        run: The run that it goes into; it may be empty or hold parts.

    Raises:
        SourceError: A file differs from the one that is there.
    """
    placing = Placing()
    folders = _place_ranks(staged / wire.RANKS_FOLDER, run / wire.RANKS_FOLDER, placing)
    for path in sorted(path for path in staged.rglob("*") if path.is_file()):
        name = path.relative_to(staged)
        if name.parts[0] == wire.RANKS_FOLDER and len(name.parts) > 1 and name.parts[1] in folders:
            _place_file(path, folders[name.parts[1]].below(Path(*name.parts[2:])), placing)
        elif name.parts[0] == wire.NVML_FOLDER:
            _place_file(path, _free_name(path, run / name), placing)
        elif name.as_posix() == wire.RUN_FILE:
            continue  # one run has one; see ``runs``
        elif name.parts[0] == wire.TRACES_FOLDER and (run / f"{name}.gz").is_file():
            placing.same.append(path)
        else:
            _place_file(path, _Place(run / name, run / name), placing)
    return placing


def carry_out(placing: Placing) -> None:
    """Move everything; each step leaves a run that can be read, and may be done again."""
    for source, target in placing.renames:
        source.rename(target)
    for source, target in placing.moves:
        target.parent.mkdir(parents=True, exist_ok=True)
        source.replace(target)
    for path in placing.same:
        path.unlink()


@dataclass(frozen=True)
class _Place:
    """Where a file, or a rank's folder, goes.

    Attributes:
        target: Where it will be.
        now: Where the run's own copy is, before folders are renamed; None where it has none.
        is_newer: Whether the part's copy is a later state of it.
    """

    target: Path
    now: Path | None
    is_newer: bool = False

    def below(self, name: Path) -> _Place:
        """The place of a file in a rank's folder."""
        return _Place(self.target / name, self.now / name if self.now else None, self.is_newer)


def _place_ranks(staged: Path, ranks: Path, placing: Placing) -> dict[str, _Place]:
    """Number the attempts of each rank over what is there and what comes."""
    places: dict[str, _Place] = {}
    there, coming = _by_rank(ranks), _by_rank(staged)
    for rank, arriving in coming.items():
        held = there.get(rank, [])
        known = {process.identity: process for process in held}
        new = [process for process in arriving if process.identity not in known]
        ordered = sorted([*held, *new], key=lambda one: (one.first_ns, one.folder.name))
        number = {process.identity: ranks / wire.rank_folder(rank, at) for at, process in enumerate(ordered)}
        moving = [process for process in held if process.folder != number[process.identity]]
        # Two steps, because one's new name can be another's old one.
        placing.renames += [(one.folder, one.folder.with_name(f"{one.folder.name}.moving")) for one in moving]
        placing.renames += [(one.folder.with_name(f"{one.folder.name}.moving"), number[one.identity]) for one in moving]
        for process in arriving:
            before = known.get(process.identity)
            is_newer = before is not None and len(process.ends_ns) > len(before.ends_ns)
            target = number[process.identity]
            renamed = {one.folder for one in moving}
            now = before.folder if before else target if target not in renamed else None
            places[process.folder.name] = _Place(target, now, is_newer)
    return places


def _by_rank(ranks: Path) -> dict[int, list[Process]]:
    found: dict[int, list[Process]] = {}
    for folder in sorted(ranks.iterdir()) if ranks.is_dir() else ():
        match = _RANK_FOLDER.fullmatch(folder.name)
        process = read_process(folder) if match else None
        if match and process is not None:
            found.setdefault(int(match[1]), []).append(process)
    return found


def _free_name(path: Path, target: Path) -> _Place:
    """The place of a host's samples: the same file, else the first number that is free."""
    for candidate in _numbered(target):
        if not candidate.exists() or _is_beginning(path, candidate) or _is_beginning(candidate, path):
            return _Place(candidate, candidate)
    raise AssertionError("numbers do not end")


def _numbered(target: Path) -> Iterator[Path]:
    yield target
    for number in itertools.count(1):
        yield target.with_name(f"{target.stem}.{number}{target.suffix}")


def _place_file(path: Path, place: _Place, placing: Placing) -> None:
    now = place.now
    if now is None or not now.exists():
        placing.moves.append((path, place.target))
    elif filecmp.cmp(path, now, shallow=False) or (path.suffix == ".jsonl" and _is_beginning(path, now)):
        placing.same.append(path)
    elif (path.suffix == ".jsonl" and _is_beginning(now, path)) or place.is_newer:
        placing.moves.append((path, place.target))
    else:
        raise SourceError(
            now, "is there with other content", hint=f"it was left as it is; {path} was not put in its place"
        )


def _is_beginning(short: Path, whole: Path) -> bool:
    """Whether a file is how another one begins, or all of it."""
    if short.stat().st_size > whole.stat().st_size:
        return False
    with short.open("rb") as one, whole.open("rb") as other:
        while block := one.read(_BLOCK):
            if other.read(len(block)) != block:
                return False
    return True
