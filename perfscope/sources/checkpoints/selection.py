"""Which checkpoint of a folder is the newest one, and which others there are.

The newest is the one that the tracker file names, else that of a link ``latest`` or ``last``. Without these it has the
highest step or epoch in its name, or else it was modified last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.files import read_text
from perfscope.sources.checkpoints.completeness import find_problems
from perfscope.sources.checkpoints.file_names import is_tracker, parse_name
from perfscope.sources.checkpoints.listing import MOST_LISTED, Listing
from perfscope.sources.checkpoints.partition import Unit, find_tracker, find_units, read_tracked_tag
from perfscope.sources.pickles import LONGEST_NAME
from perfscope.tables.checkpoint import CheckpointSummary, Kind

NO_CHECKPOINT = "no file in it has a name that a checkpoint's files have"
#: The ends of so many files are checked; of others only names and sizes.
_MOST_OPENED = 2000


@dataclass(frozen=True, slots=True)
class SelectedCheckpoint:
    """One checkpoint of a folder, and summaries of all; tag and folder are empty for the folder itself."""

    tag: str
    folder: str
    sizes: Mapping[str, int]
    summaries: tuple[CheckpointSummary, ...] = ()
    damage: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    unit: Unit
    summary: CheckpointSummary

    @property
    def number(self) -> int:
        """Its step, or its epoch."""
        identity = self.unit.identity
        return next((each for each in (identity.step, identity.epoch) if each is not None), -1)

    @property
    def modified_ns(self) -> int:
        """When it was modified last."""
        return self.summary.modified_ns or 0


def select_checkpoint(path: Path, listing: Listing, tag: str | None = None) -> SelectedCheckpoint:
    """Select the newest checkpoint, or the one named ``tag``.

    Raises:
        SourceError: There is no checkpoint, or none of this name.
    """
    name = find_tracker(listing.sizes)
    tracked = None if name is None else read_tracked_tag(name, read_text(path / name).strip()[:LONGEST_NAME])
    candidates = _find_candidates(path, listing, tracked)
    unreadable = [f"{name} {reason}" for name, reason in listing.unreadable.items() if _is_relevant(name)]
    if not candidates:
        empty = not listing.sizes and not listing.broken and not unreadable
        problem = "; ".join(["contains no checkpoint", *unreadable[:MOST_LISTED]])
        raise SourceError(path, "holds no file" if empty else problem, hint=NO_CHECKPOINT)
    newest, reason = _find_newest(candidates, tracked, listing.aliases)
    chosen = newest
    if tag is not None:
        named = [each for each in candidates if each.unit.name == tag]
        if not named:
            raise SourceError(path, f"holds no checkpoint named {tag}")
        chosen = named[0]
    damage = [f"{name} is a link to {target}, which does not exist" for name, target in listing.broken.items()]
    damage.extend(unreadable[:MOST_LISTED])
    if len(unreadable) > MOST_LISTED:
        damage.append(f"{len(unreadable) - MOST_LISTED} more cannot be read")
    if tracked is not None and not any(_is_named(each.unit, tracked) for each in candidates):
        damage.append(f"the tracker file names {tracked} as the latest checkpoint, which is missing")
    summaries = tuple(replace(each.summary, newest=each is newest, shown=each is chosen) for each in candidates)
    notes = (f"{newest.unit.name or 'The folder itself'} is the newest {reason}.",) if len(candidates) > 1 else ()
    return SelectedCheckpoint(chosen.unit.name, chosen.unit.folder, chosen.unit.sizes, summaries, tuple(damage), notes)


def _is_relevant(name: str) -> bool:
    """Whether what cannot be read may belong to a checkpoint: a socket of a debugger does not."""
    last = name.rpartition("/")[2]
    return parse_name(name).kind is not Kind.OTHER or is_tracker(last) or "." not in last


def _find_candidates(path: Path, listing: Listing, tracked: str | None) -> list[_Candidate]:
    opened = 0
    candidates = []
    for unit in find_units(listing.sizes, tracked):
        is_opened = opened < _MOST_OPENED
        opened += len(unit.sizes)
        problems = find_problems(path / unit.folder if is_opened else None, unit.sizes)
        if unit.identity.mark.startswith(("tmp", "temp")):
            problems.append("it is the temporary folder of a save")
        modified = [listing.modified_ns[name] for name in unit.paths() if name in listing.modified_ns]
        summary = CheckpointSummary(
            name=unit.name,
            step=unit.identity.step,
            epoch=unit.identity.epoch,
            files=len(unit.sizes),
            bytes=sum(unit.sizes.values()),
            modified_ns=max(modified, default=None),
            problems=tuple(problems),
            complete=not problems,
        )
        candidates.append(_Candidate(unit, summary))
    return sorted(candidates, key=lambda each: (each.number, each.modified_ns, each.unit.name))


def _is_named(unit: Unit, tag: str) -> bool:
    return tag in (unit.name, unit.folder, *unit.paths())


def _find_newest(
    candidates: Sequence[_Candidate], tracked: str | None, links: Mapping[str, str]
) -> tuple[_Candidate, str]:
    linked = next((links[name] for name in links if name.partition(".")[0] in ("latest", "last")), None)
    for target, reason in ((tracked, "by the tracker file"), (linked, "by a link")):
        named = [each for each in candidates if target is not None and _is_named(each.unit, target)]
        if named:
            return named[0], reason
    series = {each.unit.identity.series for each in candidates}
    if candidates[-1].number >= 0 and len(series) == 1:
        return candidates[-1], "by its number"
    return max(candidates, key=lambda each: (each.modified_ns, each.number)), "by its time of modification"
