"""A checkpoint's folder, or a list of its files, as a Checkpoint. Nothing is unpickled and no tensor is read."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.files import read_text
from perfscope.sources.checkpoints.dangers import dangers
from perfscope.sources.checkpoints.dcp import METADATA_FILE, DcpDamage, DcpMetadata, read_metadata
from perfscope.sources.checkpoints.names import is_tracker, iteration, layout_of, read_name
from perfscope.sources.checkpoints.roles import held_in_safetensors, held_in_torch_file, role_of
from perfscope.sources.checkpoints.safetensors import SafetensorsDamage, read_safetensors
from perfscope.sources.checkpoints.torch_files import TorchDamage, TorchFile, read_torch_file
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, Held, Kind, Layout, Role

_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_STATE_KINDS = frozenset(Kind) - {Kind.OTHER, Kind.METADATA}
_MOST_FILES = 1_000_000
_NO_CHECKPOINT = "no file in it has a name that a checkpoint's files have"
_TAG = re.compile(r"(global_step|iter_|step|checkpoint|epoch|ckpt)[-_]?\d+(_universal)?")


@dataclass
class _Reading:
    """What is gathered while a checkpoint's files are read."""

    folder: Path
    damage: list[str] = field(default_factory=list)
    shapes: dict[str, int] = field(default_factory=dict)  # ZeRO 3 keeps shapes where the weights would be
    dcp: DcpMetadata | None = None


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint: its folder, the folder of several (the latest is taken), one file, or a list of files.

    A list is a CSV of ``path,bytes``, for a checkpoint that lies elsewhere; only names and sizes are known of it.

    Raises:
        SourceError: There is no checkpoint.
    """
    if path.is_file():
        return _read_list(path) if path.suffix.lower() == ".csv" else _read_one(path)
    if not path.is_dir():
        raise SourceError(path, "does not exist")
    chosen = _choose(path, _files_below(path))
    return _read_folder(path, chosen)


def _files_below(folder: Path) -> dict[str, int]:
    """Every file below a folder with its size, by its path in the folder."""
    sizes: dict[str, int] = {}
    for parent, _, names in os.walk(folder, onerror=_cannot_read):
        for name in names:
            file = Path(parent, name)
            try:
                size = file.stat().st_size
            except OSError:  # a link to nowhere: reading it says so
                size = 0
            sizes[file.relative_to(folder).as_posix()] = size
        if len(sizes) > _MOST_FILES:
            raise SourceError(folder, f"holds more than {_MOST_FILES:,} files", hint="name one checkpoint in it")
    return dict(sorted(sizes.items()))


def _cannot_read(error: OSError) -> None:
    raise SourceError(error.filename or "a folder", f"cannot be read: {error.strerror}")


@dataclass(frozen=True, slots=True)
class _Chosen:
    """One checkpoint of a folder: its name in it (empty for the folder itself), its files, and what lies beside it."""

    tag: str
    sizes: Mapping[str, int]
    others: Mapping[str, int]
    damage: tuple[str, ...] = ()


def _choose(path: Path, sizes: Mapping[str, int]) -> _Chosen:
    """Choose the checkpoint that the tracker names, else the one of the highest number."""
    by_tag: dict[str, dict[str, int]] = {}
    for name, size in sizes.items():
        tag, _, rest = name.rpartition("/") if "/" not in name else name.partition("/")
        by_tag.setdefault(tag, {})[rest] = size
    stateful = {tag for tag, inside in by_tag.items() if tag and any(map(_matters, inside))}
    if any(map(_matters, by_tag.get("", ()))) or _is_split(sizes):
        beside = sorted((tag for tag in stateful if _TAG.fullmatch(tag)), key=iteration)
        own = {name: size for name, size in sizes.items() if name.partition("/")[0] not in beside}
        return _Chosen("", own, {tag: sum(by_tag[tag].values()) for tag in beside})
    if not stateful:
        raise SourceError(path, "holds no checkpoint", hint=_NO_CHECKPOINT)
    named = _tracked(path, sizes)
    lost = named is not None and named not in stateful
    damage = (f"the latest checkpoint is said to be {named}, which is not there",) if lost else ()
    tag = named if named in stateful and named else max(stateful, key=iteration)
    others = sorted(stateful - {tag}, key=iteration)
    return _Chosen(tag, by_tag[tag], {other: sum(by_tag[other].values()) for other in others}, damage)


def _is_split(sizes: Mapping[str, int]) -> bool:
    """Whether the folder is one checkpoint whose files lie in folders: Megatron's ranks, universal parameters."""
    return any(name.startswith(("mp_rank_", "zero/")) and "/" in name for name in sizes)


def _tracked(path: Path, sizes: Mapping[str, int]) -> str | None:
    for name in sizes:
        if is_tracker(name) and path.is_dir():
            text = read_text(path / name).strip()[:200]
            return f"iter_{int(text):07d}" if text.isdigit() and name.endswith(".txt") else text
    return None


def _read_folder(root: Path, chosen: _Chosen) -> Checkpoint:
    folder = root.parent if root.is_file() else root / chosen.tag
    sizes = chosen.sizes
    layout = layout_of(list(sizes))
    if layout is Layout.UNKNOWN:
        raise SourceError(root, "holds no checkpoint", hint=_NO_CHECKPOINT)
    reading = _Reading(folder, list(chosen.damage))
    if METADATA_FILE in sizes:
        reading.dcp = _read_dcp(folder, reading.damage)
    files = tuple(_read_file(reading, name, size) for name, size in sizes.items())
    return Checkpoint(
        path=str(root),
        tag=chosen.tag,
        layout=layout,
        files=files,
        has_experts=any(file.kind in (Kind.EXPERT, Kind.EXPERT_OPTIMIZER) for file in files),
        parameters=_stated_parameters(reading),
        other_tags=chosen.others,
        damage=tuple(dict.fromkeys([*reading.damage, *_missing(layout, sizes), *_index_damage(folder, files)])),
    )


def _read_file(reading: _Reading, name: str, size: int) -> CheckpointFile:
    named = read_name(name)
    held: tuple[Held, ...] | None = None
    unused = 0
    unread: str | None = None
    found: tuple[str, ...] = ()
    try:
        if name.endswith(".safetensors"):
            held = held_in_safetensors(read_safetensors(reading.folder / name))
        elif name.endswith(_TORCH_ENDINGS):
            torch_file = read_torch_file(reading.folder / name)
            held, unused = held_in_torch_file(torch_file, named.kind, name.rpartition("/")[2])
            found = dangers(torch_file.names)
            _note_shapes(reading, torch_file)
        elif name.endswith(".distcp"):
            held, unread = _held_in_shard(reading, name, size)
        elif name == METADATA_FILE and reading.dcp is not None:
            found = dangers(reading.dcp.names)
    except (TorchDamage, SafetensorsDamage) as damage:
        unread = str(damage)
        reading.damage.append(f"{name} {damage}")
    except OSError as error:
        unread = f"cannot be read: {error.strerror}"
        reading.damage.append(f"{name} {unread}")
    if found:
        reading.damage.append(f"{name} would call {', '.join(found)} when it is loaded: do not load it")
    return CheckpointFile(name, size, named.kind, named.ranks, held, unused, unread, found)


def _note_shapes(reading: _Reading, file: TorchFile) -> None:
    """ZeRO 3 writes ``param_shapes``, the shapes of the weights that lie in the optimizer's shards."""
    from perfscope.sources.checkpoints.zero_shapes import parameter_shapes

    for name, elements in parameter_shapes(file.value):
        reading.shapes[name] = elements


def _stated_parameters(reading: _Reading) -> int | None:
    if reading.dcp is not None:
        weights = sum(
            tensor.elements
            for tensor in reading.dcp.tensors.values()
            if role_of([tensor.name], tensor.dtype, Kind.SHARD) is Role.WEIGHTS
        )
        return weights or None
    return sum(reading.shapes.values()) or None


def _read_dcp(folder: Path, damage: list[str]) -> DcpMetadata | None:
    try:
        return read_metadata(folder / METADATA_FILE)
    except DcpDamage as problem:
        damage.append(f"{METADATA_FILE} {problem}")
    except OSError as error:
        damage.append(f"{METADATA_FILE} cannot be read: {error.strerror}")
    return None


def _held_in_shard(reading: _Reading, name: str, size: int) -> tuple[tuple[Held, ...] | None, str | None]:
    if reading.dcp is None:
        return None, "only .metadata says what a shard holds"
    short = name.rpartition("/")[2]
    if reading.dcp.extents.get(short, 0) > size:
        reading.damage.append(f"{name} is cut off: .metadata says {reading.dcp.extents[short]:,} bytes, not {size:,}")
    sums: dict[tuple[Role, str], list[int]] = {}
    for tensor_name, length in reading.dcp.files.get(short, {}).items():
        tensor = reading.dcp.tensors.get(tensor_name)
        dtype = tensor.dtype if tensor else "bytes"
        role = role_of([tensor_name], dtype, Kind.SHARD) if tensor else Role.OTHER
        entry = sums.setdefault((role, dtype), [0, 0])
        entry[0] += tensor.elements if tensor else 0
        entry[1] += length
    return tuple(Held(role, dtype, *counts) for (role, dtype), counts in sorted(sums.items())), None


def _missing(layout: Layout, sizes: Mapping[str, int]) -> list[str]:
    """Files that a complete checkpoint of this layout would hold."""
    missing: list[str] = []
    if layout in (Layout.TORCH_DCP, Layout.MEGATRON_DIST) and METADATA_FILE not in sizes:
        missing.append(f"{METADATA_FILE} is missing: it is written last, so the save did not complete")
    grids: dict[Kind, list[Mapping[str, int]]] = {}
    for name in sizes:
        named = read_name(name)
        grids.setdefault(named.kind, []).append(named.ranks)
    for kind, ranks in grids.items():
        if kind in (Kind.OPTIMIZER, Kind.MODEL, Kind.MODEL_METADATA, Kind.MODEL_AND_OPTIMIZER, Kind.EXPERT_OPTIMIZER):
            missing.extend(_gaps(kind, ranks))
    missing.extend(f"{name} is empty" for name, size in sizes.items() if size == 0 and _matters(name))
    return missing


def _matters(name: str) -> bool:
    return read_name(name).kind in _STATE_KINDS


def _gaps(kind: Kind, ranks: Sequence[Mapping[str, int]]) -> list[str]:
    """Ranks that lack a file: the files of one kind cover every rank up to the highest of each axis."""
    axes = sorted({axis for rank in ranks for axis in rank} - {"part"})
    if not axes:
        return []
    present = {tuple(rank.get(axis, 0) for axis in axes) for rank in ranks}
    highest = [max(rank[index] for rank in present) for index in range(len(axes))]
    expected = 1
    for top in highest:
        expected *= top + 1
    if expected == len(present) or expected > _MOST_FILES:
        return []
    absent = expected - len(present)
    axis_names = " x ".join(f"{axis} 0-{top}" for axis, top in zip(axes, highest, strict=True))
    return [f"{absent} of {expected} files of {kind} are missing ({axis_names})"]


def _index_damage(folder: Path, files: Sequence[CheckpointFile]) -> list[str]:
    """What a Hugging Face index says that is not so: missing files, and a total that the headers do not give."""
    problems: list[str] = []
    present = {file.path for file in files}
    for name in sorted(present):
        if not name.endswith((".safetensors.index.json", ".bin.index.json")):
            continue
        try:
            index = json.loads(read_text(folder / name))
            wanted = {str(file) for file in index["weight_map"].values()}
            stated = index.get("metadata", {}).get("total_size")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            problems.append(f"{name} is no whole index")
            continue
        problems.extend(f"{file} is missing: {name} lists it" for file in sorted(wanted - present)[:10])
        held = [one.size_bytes for file in files if file.path in wanted for one in file.held or ()]
        if (
            wanted <= present
            and name.endswith(".safetensors.index.json")
            and isinstance(stated, int)
            and stated != sum(held)
        ):
            problems.append(f"{name} states {stated:,} bytes of tensors, the headers {sum(held):,}")
    return problems


def _read_one(path: Path) -> Checkpoint:
    return _read_folder(path, _Chosen("", {path.name: path.stat().st_size}, {}))


def _read_list(path: Path) -> Checkpoint:
    """A CSV of ``path,bytes``."""
    sizes: dict[str, int] = {}
    for number, row in enumerate(csv.reader(read_text(path).splitlines()), 1):
        match [cell.strip() for cell in row]:
            case [] | [""]:
                continue
            case [name, size] if size.isdecimal():
                sizes[name] = int(size)
            case _ if number > 1:
                raise SourceError(
                    path, f"line {number} is not `path,bytes`", hint="find DIR -type f -printf '%P,%s\\n'"
                )
    chosen = _choose(path, sizes)
    layout = layout_of(list(chosen.sizes))
    unread = "only its name and size are known"
    files = tuple(
        CheckpointFile(name, size, read_name(name).kind, read_name(name).ranks, None, 0, unread, ())
        for name, size in sorted(chosen.sizes.items())
    )
    experts = any(file.kind in (Kind.EXPERT, Kind.EXPERT_OPTIMIZER) for file in files)
    missing = tuple(_missing(layout, chosen.sizes))
    return Checkpoint(str(path), chosen.tag, layout, files, experts, None, chosen.others, missing)
