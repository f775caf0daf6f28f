"""Takes a folder of several checkpoints apart, and selects the newest; says what is missing of each.

The newest is the one that the tracker file names, else that of a link ``latest`` or ``last``. Without these it has the
highest step or epoch in its name, or else it was modified last.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from pathlib import Path
from typing import NamedTuple

from perfscope.errors import SourceError
from perfscope.files import read_text
from perfscope.models.data_files import read_data
from perfscope.sources.checkpoints.dcp import METADATA_FILE
from perfscope.sources.checkpoints.file_names import holds_state, is_tracker, parse_name
from perfscope.sources.checkpoints.listing import MOST_FILES, MOST_LISTED, FileDamage, Listing
from perfscope.sources.checkpoints.safetensors import read_safetensors
from perfscope.sources.checkpoints.torch_files import check_end
from perfscope.sources.pickles import LONGEST_NAME
from perfscope.tables.checkpoint import CheckpointSummary, Kind

_ENDING = re.compile(r"\.(?:pt|pth|bin|ckpt|safetensors|tar|pkl)$")
_SHARD = re.compile(r"world[-_]?size[-_]?\d+|[-_.]\d+[-_]of[-_]\d+|consolidated\.\d+|(?:mp_)?rank[-_]?\d+(?:_\d+)*")
_METRIC = re.compile(r"(?:^|(?<=[-_=]))(?:\w+_)?(?:loss|acc|accuracy|metric|ppl|score|f1)[-_=]?\d+(?:\.\d+)?")
_EPOCH = re.compile(r"(?<![a-z])(?:epoch|ep)[-_=]?(\d+)(?![0-9a-z])")
_STEPS = (
    re.compile(r"(?<![a-z])(?:global[-_]?)?(?:steps?|iter|iters|iteration|update|batch)[-_=]?(\d+)(?![0-9a-z])"),
    re.compile(r"(?<![a-z])(?:checkpoint|ckpt|chkpt)[-_=]?(\d+)(?![0-9a-z])"),
)
_TRAILING = re.compile(r"(?:^|[-_.=])(\d+)$")
#: Lightning numbers the files of one step: ``epoch=0-step=9-v1.ckpt`` is a checkpoint of its own.
_VERSION = re.compile(r"[-_](v\d+)$")
_WORDS: dict[str, list[str]] = read_data("checkpoint_names")["words"]


class CheckpointName(NamedTuple):
    """What tells the checkpoints of a folder apart; the series is what is left of the name."""

    series: str
    step: int | None
    epoch: int | None
    mark: str


def parse_identity(name: str) -> CheckpointName:
    """Parse the name of a file or folder.

    >>> parse_identity("epoch=3-step=120.ckpt"), parse_identity("optimizer_epoch2.pt").epoch
    (CheckpointName(series='', step=120, epoch=3, mark=''), 2)
    >>> parse_identity("resnet50.pth"), parse_identity("best_model.pt").mark
    (CheckpointName(series='resnet50', step=None, epoch=None, mark=''), 'best')
    """
    rest = _METRIC.sub("", _SHARD.sub("", _ENDING.sub("", name.lower())))
    version = _VERSION.search(rest)
    rest = _VERSION.sub("", rest)
    epoch, rest = _take(_EPOCH, rest)
    step = None
    for pattern in (*_STEPS, _TRAILING):
        if step is None and not (pattern is _TRAILING and epoch is not None):
            step, rest = _take(pattern, rest)
    words = re.split(r"[-_.=\s]+", rest)
    marks = [*(word for word in words if word in _WORDS["marks"]), *([version[1]] if version else ())]
    series = "-".join(word for word in words if word not in (*_WORDS["marks"], *_WORDS["parts"]))
    return CheckpointName(series, step, epoch, "-".join(marks))


def _take(pattern: re.Pattern[str], text: str) -> tuple[int | None, str]:
    match = pattern.search(text)
    if match is None:
        return None, text
    return int(match[1][:18]), f"{text[: match.start()]}_{text[match.end() :]}"


_TAG = re.compile(r"(?:tmp-)?(?:global[-_]?step|iter|step|checkpoint|epoch|ckpt)[-_=]?\d+.*|.*\.ckpt", re.IGNORECASE)
#: Folders that are always a part: of one of Megatron's ranks, and DeepSpeed's universal parameters.
_SPLIT = re.compile(r"mp_rank_\d+.*|zero")
#: Folders inside a checkpoint, one for each part.
_PART = re.compile(
    r"(?:model|optim|optimizer|ema|state|lr_scheduler|scheduler|dataloader|pytorch_model_fsdp)(?:_\d+)?",
    re.IGNORECASE,
)
_GENERIC = re.compile(r".*\.(?:pt|pth|ckpt|safetensors)")
_OWN_NAMES = re.compile(
    r"(?:shard-\d+-)?(?:model|adapter_model|diffusion_pytorch_model)(?:[-.].*)?\.safetensors|model_optim_rng\.pt|model_rng\.pt"
)
_UNNAMED = CheckpointName("", None, None, "")


@dataclass(frozen=True, slots=True)
class Unit:
    """One checkpoint of a folder; name and folder are empty for the folder itself."""

    name: str
    folder: str
    sizes: Mapping[str, int]
    identity: CheckpointName

    def paths(self) -> Iterable[str]:
        """The paths of its files below the folder that is taken apart."""
        return (f"{self.folder}/{name}" if self.folder else name for name in self.sizes)


@dataclass
class _Folder:
    files: dict[str, int] = field(default_factory=dict)
    folders: dict[str, _Folder] = field(default_factory=dict)

    def all_files(self, prefix: str = "") -> dict[str, int]:
        files = {f"{prefix}{name}": size for name, size in self.files.items()}
        for name, folder in self.folders.items():
            files.update(folder.all_files(f"{prefix}{name}/"))
        return files

    @cached_property
    def holds_state(self) -> bool:
        return any(map(holds_state, self.files)) or any(folder.holds_state for folder in self.folders.values())


def find_units(sizes: Mapping[str, int]) -> list[Unit]:
    """The checkpoints of a folder, by the sizes of its files."""
    root = _Folder()
    for path, size in sizes.items():
        *parents, name = path.split("/")
        folder = root
        for parent in parents:
            folder = folder.folders.setdefault(parent, _Folder())
        folder.files[name] = size
    return _take_apart(root, "")


def _take_apart(folder: _Folder, path: str) -> list[Unit]:
    name = path.rpartition("/")[2]
    inner = {sub: below for sub, below in folder.folders.items() if below.holds_state}
    if path and _is_whole(name, folder, inner):
        return [Unit(path, path, folder.all_files(), parse_identity(name))]
    states = {file: size for file, size in folder.files.items() if holds_state(file)}
    below = {
        sub: [] if _SPLIT.fullmatch(sub) else _take_apart(part, f"{path}/{sub}" if path else sub)
        for sub, part in inner.items()
    }
    parts = [sub for sub in inner if len(below[sub]) <= 1 and _is_part(sub, folder)]
    units = _group_files(folder.files, states, path)
    if parts:
        part_files = {f"{sub}/{file}": size for sub in parts for file, size in inner[sub].all_files().items()}
        units = _join_parts(units, part_files, folder.files, path)
    elif len(units) == 1 and "model_index.json" in folder.files:  # a pipeline of several models
        return [Unit(path, path, folder.all_files(), parse_identity(name))]
    if "model_index.json" in folder.files and not states:
        return [Unit(path, path, folder.all_files(), parse_identity(name))]
    below_units = [unit for sub in inner if sub not in parts for unit in below[sub]]
    return [*units, *below_units]


def _is_whole(name: str, folder: _Folder, inner: Mapping[str, _Folder]) -> bool:
    """Whether all below a folder is one checkpoint: its name says so, and it does not hold several itself."""
    if not _TAG.fullmatch(name):
        return False
    has_state = any(map(holds_state, folder.files))
    return has_state or sum(bool(_TAG.fullmatch(sub)) for sub in inner) <= 1


def _is_part(sub: str, folder: _Folder) -> bool:
    """Whether a folder holds a part of the checkpoint around it: of a rank, or DeepSpeed's part of a Trainer's."""
    is_of_trainer = sub.startswith("global_step") and "trainer_state.json" in folder.files
    return bool(_SPLIT.fullmatch(sub) or _PART.fullmatch(sub)) or is_of_trainer


def _join_parts(units: list[Unit], part_files: Mapping[str, int], files: Mapping[str, int], path: str) -> list[Unit]:
    if len(units) > 1:
        return [*units, Unit(path, path, part_files, parse_identity(path.rpartition("/")[2]))]
    return [Unit(path, path, {**files, **part_files}, parse_identity(path.rpartition("/")[2]))]


def _group_files(files: Mapping[str, int], states: Mapping[str, int], path: str) -> list[Unit]:
    framework = {name: None for name in states if not _is_generic(name)}
    series: dict[CheckpointName, list[str]] = {}
    for name in states:
        identity = parse_identity(name)
        if name not in framework and not (framework and identity == _UNNAMED):
            series.setdefault(identity, []).append(name)
    if set(framework) <= {name for name in framework if parse_name(name).kind is Kind.OPTIMIZER} and series:
        for name in framework:
            series.setdefault(parse_identity(name), []).append(name)
        framework = {}
    own = parse_identity(path.rpartition("/")[2])
    if not series or (not framework and len(series) == 1):
        # Its name matters where it is the only one: the name of the folder, else that of the file.
        identity = own if own.step is not None or not series else next(iter(series))
        return [Unit(path, path, dict(files), identity)] if states else []
    units = [
        Unit(_name_files(names, path), path, {name: files[name] for name in sorted(names)}, identity)
        for identity, names in series.items()
    ]
    if framework:
        taken = {name for names in series.values() for name in names}
        units.insert(0, Unit(path, path, {name: size for name, size in files.items() if name not in taken}, own))
    return units


def _is_generic(name: str) -> bool:
    """Whether a script chose the name of a file, and not a framework."""
    kind = parse_name(name).kind
    is_state = kind in (Kind.MODEL_AND_OPTIMIZER, Kind.WEIGHTS)
    return is_state and bool(_GENERIC.fullmatch(name)) and not _OWN_NAMES.fullmatch(name)


def _name_files(names: list[str], path: str) -> str:
    prefix = f"{path}/" if path else ""
    shown = " + ".join(sorted(names)[:MOST_LISTED])
    unnamed = len(names) - MOST_LISTED
    return f"{prefix}{shown}" + (f" and {unnamed} more" if unnamed > 0 else "")


INDEX_ENDINGS = (".safetensors.index.json", ".bin.index.json")
_RANK = re.compile(r"(?P<before>(?:.*[-_./])?rank[-_]?)(?P<rank>\d{1,7})(?P<after>(?:\.\w+)+)", re.IGNORECASE)
_WORLD_SIZE = re.compile(r"world[-_]?size[-_]?(\d{1,7})", re.IGNORECASE)
_KINDS_OF_SCRIPTS = (Kind.MODEL_AND_OPTIMIZER, Kind.WEIGHTS, Kind.OPTIMIZER)
_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_KINDS_OF_EVERY_RANK = (
    Kind.OPTIMIZER,
    Kind.MODEL,
    Kind.MODEL_METADATA,
    Kind.MODEL_AND_OPTIMIZER,
    Kind.EXPERT_OPTIMIZER,
)


def find_missing(sizes: Mapping[str, int], world: Mapping[str, int] | None = None) -> list[str]:
    """Files that a complete checkpoint has and this one lacks, in words; ``world`` states the size of axes."""
    missing: list[str] = []
    folders = sorted({name.rpartition("/")[0] for name in sizes if name.endswith(".distcp")})
    missing.extend(
        f"{metadata} is missing: it is written last, so the save did not complete"
        for metadata in (f"{folder}/{METADATA_FILE}" if folder else METADATA_FILE for folder in folders)
        if metadata not in sizes
    )
    ranks_by_kind: dict[Kind, list[Mapping[str, int]]] = {}
    for name in sizes:
        parsed = parse_name(name)
        ranks_by_kind.setdefault(parsed.kind, []).append(parsed.ranks)
    of_every_rank = {kind: ranks for kind, ranks in ranks_by_kind.items() if kind in _KINDS_OF_EVERY_RANK}
    sizes_of_axes = Counter(world or {})
    for ranks in of_every_rank.values():
        for rank in ranks:
            sizes_of_axes |= Counter({axis: number + 1 for axis, number in rank.items()})
    for kind, ranks in of_every_rank.items():
        missing.extend(_find_gaps(kind, ranks, sizes_of_axes))
    is_zero = any("dp" in rank for rank in ranks_by_kind.get(Kind.OPTIMIZER, ()))
    if is_zero and not {Kind.MODEL, Kind.MODEL_METADATA, Kind.LAYER} & set(ranks_by_kind):
        missing.append("the files of model states are missing")
    empty = [name for name, size in sizes.items() if size == 0 and holds_state(name)]
    missing.extend(f"{name} is empty" for name in empty[:MOST_LISTED])
    if len(empty) > MOST_LISTED:
        missing.append(f"{len(empty) - MOST_LISTED:,} more files are empty")
    missing.extend(_find_missing_ranks(sizes))
    return missing


def _find_missing_ranks(sizes: Mapping[str, int]) -> list[str]:
    """Ranks without a file among files that a script wrote, one a rank: ``model_world_size_4_rank_2.pt``."""
    ranks: dict[str, set[int]] = {}
    for name in sizes:
        match = _RANK.fullmatch(name)
        if match and parse_name(name).kind in _KINDS_OF_SCRIPTS:
            ranks.setdefault(f"{match['before']}#{match['after']}", set()).add(int(match["rank"]))
    missing = []
    for series, present in ranks.items():
        stated = _WORLD_SIZE.search(series)
        expected = int(stated[1]) if stated else max(present) + 1
        absent = [rank for rank in range(min(expected, MOST_FILES)) if rank not in present]
        if absent and (stated or len(present) > 1):
            listed = ", ".join(map(str, absent[:MOST_LISTED])) + (" ..." if len(absent) > MOST_LISTED else "")
            missing.append(f"{series} is missing for {len(absent):,} of {expected:,} ranks: {listed}")
    return missing


def find_problems(folder: Path | None, sizes: Mapping[str, int]) -> list[str]:
    """Why a checkpoint is not complete, by its names, its sizes and the ends of its files; empty where it seems to be.

    Without a folder, files are not opened.
    """
    problems = find_missing(sizes)
    if folder is None:
        return problems
    for name, size in sizes.items():
        if not size or not holds_state(name):
            continue
        try:
            if name.endswith(".safetensors"):
                read_safetensors(folder / name)
            elif name.endswith(_TORCH_ENDINGS):
                check_end(folder / name)
        except FileDamage as damage:
            problems.append(f"{name} {damage}")
        except OSError as error:
            problems.append(f"{name} cannot be read: {error.strerror}")
    indexes = [name for name in sizes if name.endswith(INDEX_ENDINGS)]
    return problems + [problem for name in indexes for problem in check_index(folder, name, sizes)]


def _find_gaps(kind: Kind, ranks: Sequence[Mapping[str, int]], world: Mapping[str, int]) -> list[str]:
    """Ranks without a file: the files of one kind cover every rank of each axis that their names have."""
    axes = sorted({axis for rank in ranks for axis in rank} - {"part"})
    if not axes:
        return []
    present = {tuple(rank.get(axis, 0) for axis in axes) for rank in ranks}
    expected = prod(world[axis] for axis in axes)
    if expected == len(present) or expected > MOST_FILES:
        return []
    axis_names = " x ".join(f"{axis} 0-{world[axis] - 1}" for axis in axes)
    return [f"{expected - len(present)} of {expected} files of {kind} are missing ({axis_names})"]


def check_index(folder: Path, name: str, sizes: Mapping[str, int], tensor_bytes: int | None = None) -> list[str]:
    """Problems with a Hugging Face index: missing files, and a total size that the headers do not give."""
    try:
        index = json.loads(read_text(folder / name))
        listed = {str(file) for file in index["weight_map"].values()}
        stated = index.get("metadata", {}).get("total_size")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, SourceError):
        return [f"{name} is not a complete index"]
    parent = name.rpartition("/")[0]
    absent = sorted(file for file in listed if (f"{parent}/{file}" if parent else file) not in sizes)
    if absent:
        return [f"{file} is missing: {name} lists it" for file in absent[:MOST_LISTED]]
    if name.endswith(".safetensors.index.json") and isinstance(stated, int) and tensor_bytes not in (None, stated):
        return [f"{name} states {stated:,} bytes of tensors, the headers {tensor_bytes:,}"]
    return []


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


def select_checkpoint(path: Path, listing: Listing, tag: str | None = None) -> SelectedCheckpoint:
    """Select the newest checkpoint, or the one named ``tag``.

    Raises SourceError: there is no checkpoint, or none of this name.
    """
    tracked = _read_tracker(path, listing)
    candidates = _find_candidates(path, listing)
    unreadable = [f"{name} {reason}" for name, reason in listing.unreadable.items() if _is_relevant(name)]
    if not candidates:
        empty = not listing.sizes and not listing.broken and not unreadable
        problem = "; ".join(["contains no checkpoint", *unreadable[:MOST_LISTED]])
        raise SourceError(path, "holds no file" if empty else problem, hint=NO_CHECKPOINT)
    newest, reason = _find_newest(candidates, tracked, listing.aliases)
    chosen = newest
    if tag is not None:
        named = [each for each in candidates if each[0].name == tag]
        if not named:
            raise SourceError(path, f"holds no checkpoint named {tag}")
        chosen = named[0]
    damage = [f"{name} is a link to {target}, which does not exist" for name, target in listing.broken.items()]
    damage.extend(unreadable[:MOST_LISTED])
    if len(unreadable) > MOST_LISTED:
        damage.append(f"{len(unreadable) - MOST_LISTED} more cannot be read")
    if tracked is not None and not any(_is_named(unit, tracked) for unit, _ in candidates):
        damage.append(f"the tracker file names {tracked} as the latest checkpoint, which is missing")
    summaries = tuple(replace(each[1], newest=each is newest, shown=each is chosen) for each in candidates)
    notes = (f"{newest[0].name or 'The folder itself'} is the newest {reason}.",) if len(candidates) > 1 else ()
    return SelectedCheckpoint(chosen[0].name, chosen[0].folder, chosen[0].sizes, summaries, tuple(damage), notes)


def _read_tracker(path: Path, listing: Listing) -> str | None:
    """The checkpoint that the tracker file names: Megatron's has the number of its folder."""
    name = next((name for name in listing.sizes if is_tracker(name)), None)
    if name is None:
        return None
    text = read_text(path / name).strip()[:LONGEST_NAME]
    return f"iter_{int(text):07d}" if text.isdecimal() and name.endswith(".txt") else text


def _is_relevant(name: str) -> bool:
    """Whether what cannot be read may belong to a checkpoint: a socket of a debugger does not."""
    last = name.rpartition("/")[2]
    return parse_name(name).kind is not Kind.OTHER or is_tracker(last) or "." not in last


_Candidate = tuple[Unit, CheckpointSummary]


def _find_candidates(path: Path, listing: Listing) -> list[_Candidate]:
    opened = 0
    candidates = []
    for unit in find_units(listing.sizes):
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
        candidates.append((unit, summary))
    return sorted(candidates, key=lambda each: (_number(each), each[1].modified_ns or 0, each[0].name))


def _number(candidate: _Candidate) -> int:
    """Its step, or its epoch."""
    identity = candidate[0].identity
    return next((each for each in (identity.step, identity.epoch) if each is not None), -1)


def _is_named(unit: Unit, tag: str) -> bool:
    return tag in (unit.name, unit.folder, *unit.paths())


def _find_newest(
    candidates: Sequence[_Candidate], tracked: str | None, links: Mapping[str, str]
) -> tuple[_Candidate, str]:
    linked = next((links[name] for name in links if name.partition(".")[0] in ("latest", "last")), None)
    for target, reason in ((tracked, "by the tracker file"), (linked, "by a link")):
        named = [each for each in candidates if target is not None and _is_named(each[0], target)]
        if named:
            return named[0], reason
    if _number(candidates[-1]) >= 0 and len({unit.identity.series for unit, _ in candidates}) == 1:
        return candidates[-1], "by its number"
    return max(candidates, key=lambda each: (each[1].modified_ns or 0, _number(each))), "by its time of modification"
