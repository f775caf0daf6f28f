"""Which checkpoint of a folder, or of a list of files, is the newest one, and which others there are."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfscope.constants import MIB
from perfscope.errors import SourceError
from perfscope.files import read_text
from perfscope.sources.checkpoints.completeness import SeriesNames, find_problems
from perfscope.sources.checkpoints.file_names import is_tracker, parse_name
from perfscope.sources.checkpoints.listing import Listing
from perfscope.sources.checkpoints.partition import Unit, find_tracker, find_units, read_tracked_tag
from perfscope.sources.checkpoints.torch_files import TorchDamage, read_torch_file, stated_numbers
from perfscope.tables.checkpoint import CheckpointSummary, Kind

NO_CHECKPOINT = "no file in it has a name that a checkpoint's files have"
_LONGEST_TAG = 200
_TRAINER_STATE = "trainer_state.json"
#: Files without a step in their names, such as last.ckpt, are asked for it, if their lists of tensors are short.
_MOST_ASKED = 20
_LARGEST_ASKED = 2 * MIB
#: The ends of so many files are checked; of others only names and sizes.
_MOST_OPENED = 2000
_MOST_NAMED = 10
_BY_TRACKER = "the one that the tracker file names"
_BY_LINK = "the one that a link names"
_BY_STEP = "the newest by its training step"
_BY_EPOCH = "the newest by its epoch"
_BY_TIME = "the newest by its time of modification"
_ONLY = "the only one"


@dataclass(frozen=True, slots=True)
class Selection:
    """One checkpoint of a folder.

    Attributes:
        tag: Its name in the folder; empty for the folder itself.
        folder: The folder of its files, below the one that was named.
        sizes: The size of each of its files in bytes, by path.
        summaries: All checkpoints of the folder, by series and step; empty for a single file.
        damage: Problems with the choice, in words.
        notes: What else a reader must know of the choice.
    """

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


def select_checkpoint(path: Path, listing: Listing, tag: str | None = None) -> Selection:
    """Select the newest checkpoint: the one that the tracker file names, else by step, else by time.

    Args:
        path: The folder, or a list of files, which cannot be read themselves.
        listing: Its files.
        tag: Select the one of this name instead.

    Raises:
        SourceError: There is no checkpoint, or none of this name.
    """
    tracked = _read_tracker(path, listing)
    links = {name: target for name, target in listing.aliases.items() if "/" not in name}
    candidates = _find_candidates(path, listing, tracked)
    unreadable = [f"{name} {reason}" for name, reason in listing.unreadable.items() if _is_relevant(name)]
    if not candidates:
        empty = not listing.sizes and not listing.broken and not unreadable
        problem = "; ".join(["contains no checkpoint", *unreadable[:_MOST_NAMED]])
        raise SourceError(path, "holds no file" if empty else problem, hint=NO_CHECKPOINT)
    newest, reason = _find_newest(candidates, tracked, links)
    chosen = newest
    if tag is not None:
        chosen = next((each for each in candidates if each.unit.name == tag), None) or _refuse(path, tag)
    damage = [f"{name} is a link to {target}, which does not exist" for name, target in listing.broken.items()]
    damage.extend(unreadable[:_MOST_NAMED])
    if len(unreadable) > _MOST_NAMED:
        damage.append(f"{len(unreadable) - _MOST_NAMED} more cannot be read")
    if tracked is not None and not any(_is_named(each.unit, tracked) for each in candidates):
        damage.append(f"the tracker file names {tracked} as the latest checkpoint, which is missing")
    summaries = tuple(replace(each.summary, is_newest=each is newest, is_shown=each is chosen) for each in candidates)
    notes = tuple(_notes(candidates, newest, reason, links)) if len(candidates) > 1 or links else ()
    return Selection(chosen.unit.name, chosen.unit.folder, chosen.unit.sizes, summaries, tuple(damage), notes)


def _is_relevant(name: str) -> bool:
    """Whether what cannot be read may belong to a checkpoint: a socket of a debugger does not."""
    last = name.rpartition("/")[2]
    return parse_name(name).kind is not Kind.OTHER or is_tracker(last) or "." not in last


def _refuse(path: Path, tag: str) -> _Candidate:
    raise SourceError(path, f"holds no checkpoint named {tag}")


def _read_tracker(path: Path, listing: Listing) -> str | None:
    """The tag that the tracker file names; None without a tracker file."""
    name = find_tracker(listing.sizes)
    if name is None or not path.is_dir():
        return None
    return read_tracked_tag(name, read_text(path / name).strip()[:_LONGEST_TAG])


def _find_candidates(path: Path, listing: Listing, tracked: str | None) -> list[_Candidate]:
    """The checkpoints, in the order of their series and steps."""
    units = find_units(listing.sizes, tracked)
    stepless = opened = 0
    candidates = []
    for unit in units:
        identity = unit.identity
        if identity.step is None and path.is_dir() and stepless < _MOST_ASKED:
            stated = _ask_for_step(path / unit.folder, unit)
            stepless += 1
            identity = identity._replace(step=stated[0], epoch=identity.epoch if stated[1] is None else stated[1])
        is_opened = path.is_dir() and opened < _MOST_OPENED
        opened += len(unit.sizes)
        problems = find_problems(path / unit.folder if is_opened else None, unit.sizes)
        if identity.mark.startswith(("tmp", "temp")):
            problems.append("it is the temporary folder of a save")
        modified = [listing.modified_ns[name] for name in unit.paths() if name in listing.modified_ns]
        summary = CheckpointSummary(
            name=unit.name,
            step=identity.step,
            epoch=identity.epoch,
            files=len(unit.sizes),
            size_bytes=sum(unit.sizes.values()),
            modified_ns=max(modified, default=None),
            problems=tuple(problems),
            is_newest=False,
            is_shown=False,
        )
        candidates.append(_Candidate(replace(unit, identity=identity), summary))
    return _with_lacking(sorted(candidates, key=_order))


def _with_lacking(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    """Name the files that a checkpoint lacks and all others of its series have."""
    complete: dict[tuple[str, str], list[Mapping[str, int]]] = {}
    for each in candidates:
        if _is_comparable(each) and not each.summary.problems:
            complete.setdefault(_series(each), []).append(each.unit.sizes)
    names = {series: SeriesNames(sizes) for series, sizes in complete.items()}
    lacking = {
        each.unit.name: names[_series(each)].find_lacking(each.unit.sizes, is_complete=not each.summary.problems)
        for each in candidates
        if _is_comparable(each) and _series(each) in names
    }
    return [
        replace(
            each, summary=replace(each.summary, problems=(*each.summary.problems, *lacking.get(each.unit.name, ())))
        )
        for each in candidates
    ]


def _is_comparable(candidate: _Candidate) -> bool:
    """Whether a checkpoint is one of a numbered series, whose files have the same names but for the numbers."""
    identity = candidate.unit.identity
    is_numbered = identity.step is not None or identity.epoch is not None
    return is_numbered and not identity.mark and bool(candidate.unit.name)


def _series(candidate: _Candidate) -> tuple[str, str]:
    name = candidate.unit.name
    return name.rpartition("/")[0], candidate.unit.identity.series


def _order(candidate: _Candidate) -> tuple[object, ...]:
    identity = candidate.unit.identity
    step, epoch = (-1 if number is None else number for number in (identity.step, identity.epoch))
    return (*_series(candidate), step, epoch, candidate.summary.modified_ns or 0, candidate.unit.name)


def _ask_for_step(folder: Path, unit: Unit) -> tuple[int | None, int | None]:
    """The step and the epoch that a checkpoint states in its files; None where it does not."""
    if _TRAINER_STATE in unit.sizes:
        try:
            state = json.loads(read_text(folder / _TRAINER_STATE))
            return _number(state.get("global_step")), None
        except (OSError, ValueError, AttributeError, SourceError, RecursionError):
            return None, None
    if len(unit.sizes) != 1:
        return None, None
    name = next(iter(unit.sizes))
    if not name.endswith((".pt", ".pth", ".ckpt")):
        return None, None
    try:
        numbers = stated_numbers(read_torch_file(folder / name, _LARGEST_ASKED).value)
    except (OSError, TorchDamage):
        return None, None
    step = next((numbers[key] for key in ("global_step", "step", "iteration", "iter") if key in numbers), None)
    return step, numbers.get("epoch")


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_named(unit: Unit, tag: str) -> bool:
    return tag in (unit.name, unit.folder, *unit.paths())


def _find_newest(
    candidates: Sequence[_Candidate], tracked: str | None, links: Mapping[str, str]
) -> tuple[_Candidate, str]:
    """The newest checkpoint, and why it is taken for it."""
    for target, reason in (
        (tracked, _BY_TRACKER),
        *((links[name], _BY_LINK) for name in links if name.partition(".")[0] in ("latest", "last")),
    ):
        named = [each for each in candidates if target is not None and _is_named(each.unit, target)]
        if named:
            return named[0], reason
    if len(candidates) == 1:
        return candidates[0], _ONLY
    tops = [_newest_of_series(own) for own in _by_series(candidates)]
    if len(tops) == 1 or all(top.summary.modified_ns is None for top, _ in tops):
        return max(tops, key=lambda top: _order(top[0])[2:]) if len(tops) > 1 else tops[0]
    return max(tops, key=lambda top: top[0].summary.modified_ns or 0)[0], _BY_TIME


def _by_series(candidates: Sequence[_Candidate]) -> list[list[_Candidate]]:
    """Checkpoints of one folder and one name; best and last belong to the only series beside them."""
    groups: dict[tuple[str, str], list[_Candidate]] = {}
    for candidate in candidates:
        groups.setdefault(_series(candidate), []).append(candidate)
    return list(groups.values())


def _newest_of_series(candidates: Sequence[_Candidate]) -> tuple[_Candidate, str]:
    readings: tuple[tuple[Callable[[_Candidate], int | None], str], ...] = (
        (lambda each: each.unit.identity.step, _BY_STEP),
        (lambda each: each.unit.identity.epoch, _BY_EPOCH),
        (lambda each: each.summary.modified_ns, _BY_TIME),
    )
    for read, reason in readings:
        values = [(read(each), each) for each in candidates]
        stated = [
            (value, not each.unit.identity.mark, _order(each)[3:], each) for value, each in values if value is not None
        ]
        if stated:
            return max(stated, key=lambda entry: entry[:3])[3], reason
    return candidates[-1], "the last by name"


def _notes(candidates: Sequence[_Candidate], newest: _Candidate, reason: str, links: Mapping[str, str]) -> list[str]:
    notes = [f"{newest.unit.name or 'The folder itself'} is {reason}."]
    later = [
        each.unit.name or "the folder itself"
        for each in candidates
        if each is not newest
        and each.unit.identity.step is None
        and each.unit.identity.epoch is None
        and (each.summary.modified_ns or 0) > (newest.summary.modified_ns or 0)
    ]
    if later and reason in (_BY_STEP, _BY_EPOCH):
        notes.append(f"Written later, without a step: {', '.join(later)}.")
    steps = [each.unit.identity.step or -1 for each in candidates if not each.unit.identity.mark]
    if reason in (_BY_TRACKER, _BY_LINK) and max(steps, default=-1) > (newest.unit.identity.step or -1):
        notes.append(f"A checkpoint of a later step, {max(steps):,}, is not the one that is named: was it completed?")
    series = {_series(each) for each in candidates}
    if len(series) > 1:
        names = sorted("/".join(part for part in name if part) or "." for name in series)
        notes.append(
            f"The folder holds {len(series)} series of checkpoints, maybe of several models: {', '.join(names)}."
        )
    notes.extend(f"{name} is a link to {target}, which is counted once." for name, target in links.items())
    return notes
