"""Takes a folder of several checkpoints apart, whatever lies in it: folders, files, or both."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from perfscope.sources.checkpoints.file_names import holds_state, is_tracker, parse_name
from perfscope.tables.checkpoint import Kind

_ENDING = re.compile(r"\.(?:pt|pth|bin|ckpt|safetensors|tar|pkl)$")
_SHARD = re.compile(r"world[-_]?size[-_]?\d+|[-_.]\d+[-_]of[-_]\d+|consolidated\.\d+|(?:mp_)?rank[-_]?\d+(?:_\d+)*")
_METRIC = re.compile(r"(?:^|(?<=[-_=]))(?:\w+_)?(?:loss|acc|accuracy|metric|ppl|score|f1)[-_=]?\d+(?:\.\d+)?")
_EPOCH = re.compile(r"(?<![a-z])(?:epoch|ep)[-_=]?(\d+)(?![0-9a-z])")
_STEPS = (
    re.compile(r"(?<![a-z])(?:global[-_]?)?(?:steps?|iter|iters|iteration|update|batch)[-_=]?(\d+)(?![0-9a-z])"),
    re.compile(r"(?<![a-z])(?:checkpoint|ckpt|chkpt)[-_=]?(\d+)(?![0-9a-z])"),
)
_TRAILING = re.compile(r"(?:^|[-_.=])(\d+)$")
_VERSION = re.compile(r"[-_]v\d+$")
_MARKS = frozenset({"best", "last", "latest", "final", "newest", "current", "tmp", "temp"})
_ROLES = frozenset({
    "model", "models", "optimizer", "optim", "opt", "scheduler", "lr", "sched", "ema", "weights", "state", "states",
    "dict", "params", "net", "rng", "scaler", "trainer", "training", "train", "full", "checkpoint", "ckpt", "chkpt",
    "extra", "meta", "universal", "global", "pytorch", "sd", "",
})  # fmt: skip


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
    rest = _VERSION.sub("", rest)
    epoch, rest = _take(_EPOCH, rest)
    step = None
    for pattern in (*_STEPS, _TRAILING):
        if step is None and not (pattern is _TRAILING and epoch is not None):
            step, rest = _take(pattern, rest)
    words = re.split(r"[-_.=\s]+", rest)
    marks = [word for word in words if word in _MARKS]
    series = "-".join(word for word in words if word not in _MARKS and word not in _ROLES)
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
_MOST_NAMED = 3


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


def find_units(sizes: Mapping[str, int], tracked: str | None) -> list[Unit]:
    """The checkpoints of a folder, by the sizes of its files; ``tracked`` is what its tracker file names."""
    root = _Folder()
    for path, size in sizes.items():
        *parents, name = path.split("/")
        folder = root
        for parent in parents:
            folder = folder.folders.setdefault(parent, _Folder())
        folder.files[name] = size
    return _take_apart(root, "", tracked)


def _take_apart(folder: _Folder, path: str, tracked: str | None) -> list[Unit]:
    name = path.rpartition("/")[2]
    inner = {sub: below for sub, below in folder.folders.items() if below.holds_state}
    if path and _is_whole(name, folder, inner):
        return [Unit(path, path, folder.all_files(), parse_identity(name))]
    states = {file: size for file, size in folder.files.items() if holds_state(file)}
    below = {
        sub: [] if _SPLIT.fullmatch(sub) else _take_apart(part, f"{path}/{sub}" if path else sub, None)
        for sub, part in inner.items()
    }
    parts = [sub for sub in inner if len(below[sub]) <= 1 and _is_part(sub, folder, states, tracked)]
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


def _is_part(sub: str, folder: _Folder, states: Mapping[str, int], tracked: str | None) -> bool:
    """Whether a folder holds a part of the checkpoint around it: of a rank, or DeepSpeed's part of a Trainer's."""
    if _SPLIT.fullmatch(sub) or _PART.fullmatch(sub):
        return True
    return bool(states) and sub == tracked and "trainer_state.json" in folder.files


def _join_parts(units: list[Unit], part_files: Mapping[str, int], files: Mapping[str, int], path: str) -> list[Unit]:
    if len(units) > 1:
        return [*units, Unit(path, path, part_files, parse_identity(path.rpartition("/")[2]))]
    return [Unit(path, path, {**files, **part_files}, parse_identity(path.rpartition("/")[2]))]


def _group_files(files: Mapping[str, int], states: Mapping[str, int], path: str) -> list[Unit]:
    """The checkpoints that the files of one folder are."""
    framework = {name: None for name in states if not _is_generic(name)}
    series: dict[CheckpointName, list[str]] = {}
    for name in states:
        identity = parse_identity(name)
        if name not in framework and not (framework and _belongs_to_framework(identity)):
            series.setdefault(_with_version(identity, name), []).append(name)
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


def _with_version(identity: CheckpointName, name: str) -> CheckpointName:
    """Lightning numbers the files of one step: ``epoch=0-step=9-v1.ckpt`` is a checkpoint of its own."""
    version = re.search(r"-(v\d+)\.ckpt$", name)
    return identity if version is None else identity._replace(mark=version[1])


def _is_generic(name: str) -> bool:
    """Whether a script chose the name of a file, and not a framework."""
    kind = parse_name(name).kind
    is_state = kind in (Kind.MODEL_AND_OPTIMIZER, Kind.WEIGHTS)
    return is_state and bool(_GENERIC.fullmatch(name)) and not _OWN_NAMES.fullmatch(name)


def _belongs_to_framework(identity: CheckpointName) -> bool:
    return identity == CheckpointName("", None, None, "")


def _name_files(names: list[str], path: str) -> str:
    prefix = f"{path}/" if path else ""
    shown = " + ".join(sorted(names)[:_MOST_NAMED])
    unnamed = len(names) - _MOST_NAMED
    return f"{prefix}{shown}" + (f" and {unnamed} more" if unnamed > 0 else "")


def read_tracked_tag(name: str, text: str) -> str:
    """The checkpoint that the text of a tracker file names.

    >>> read_tracked_tag("latest_checkpointed_iteration.txt", "20"), read_tracked_tag("latest", "global_step5")
    ('iter_0000020', 'global_step5')
    """
    return f"iter_{int(text):07d}" if text.isdigit() and name.endswith(".txt") else text


def find_tracker(names: Iterable[str]) -> str | None:
    """The tracker file among the files of a folder; None without one."""
    return next((name for name in names if is_tracker(name)), None)
