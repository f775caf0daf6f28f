"""A checkpoint's folder, or a list of its files, as a Checkpoint. Nothing is unpickled and no tensor is read."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.files import read_text
from perfscope.sources.checkpoints.completeness import check_indexes, find_missing
from perfscope.sources.checkpoints.dangerous_calls import find_dangerous_calls
from perfscope.sources.checkpoints.dcp import METADATA_FILE, DcpDamage, DcpMetadata, read_metadata
from perfscope.sources.checkpoints.file_names import find_layout, parse_name
from perfscope.sources.checkpoints.listing import Listing, list_files
from perfscope.sources.checkpoints.roles import find_role, sum_safetensors, sum_torch_tensors
from perfscope.sources.checkpoints.safetensors import SafetensorsDamage, read_safetensors
from perfscope.sources.checkpoints.selection import NO_CHECKPOINT, Selection, select_checkpoint
from perfscope.sources.checkpoints.torch_files import TorchDamage, read_torch_file
from perfscope.sources.checkpoints.zero_shapes import parse_parameter_sizes
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, Kind, Layout, Role, TensorGroup

_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_EXPERT_KINDS = (Kind.EXPERT, Kind.EXPERT_OPTIMIZER)


@dataclass
class _Reading:
    """What is gathered while the files of a checkpoint are read.

    Attributes:
        folder: The checkpoint.
        damage: Problems so far, in words.
        parameter_sizes: Elements of each parameter; ZeRO 3 stores shapes where the weights would be.
        dcp: The content of ``.metadata``; absent if there is none.
    """

    folder: Path
    damage: list[str] = field(default_factory=list)
    parameter_sizes: dict[str, int] = field(default_factory=dict)
    dcp: DcpMetadata | None = None


@dataclass
class _Contents:
    """What is read from one file; the attributes are those of a CheckpointFile."""

    groups: tuple[TensorGroup, ...] | None = None
    unused_bytes: int = 0
    unread: str | None = None
    dangerous_calls: tuple[str, ...] = ()


def read_checkpoint(path: Path, tag: str | None = None) -> Checkpoint:
    """Read a checkpoint: its folder, the folder of several (the newest is taken), one file, or a list of files.

    A list is a CSV file of ``path,bytes``, for a checkpoint on another machine; only its names and sizes are known.

    Args:
        path: The folder or file.
        tag: Read the one of this name of several instead.

    Raises:
        SourceError: There is no checkpoint.
    """
    if path.is_file() and path.suffix.lower() == ".csv":
        return _read_list(path, tag)
    if path.is_file():
        return _read_files(path, path.parent, Selection("", "", {path.name: path.stat().st_size}))
    if not path.is_dir():
        raise SourceError(path, "does not exist")
    selection = select_checkpoint(path, list_files(path), tag)
    return _read_files(path, path / selection.folder, selection)


def _read_files(path: Path, folder: Path, selection: Selection) -> Checkpoint:
    layout = find_layout(list(selection.sizes))
    if layout is Layout.UNKNOWN:
        raise SourceError(path, "contains no checkpoint", hint=NO_CHECKPOINT)
    reading = _Reading(folder, list(selection.damage))
    if METADATA_FILE in selection.sizes:
        reading.dcp = _read_dcp(folder, reading.damage)
    files = tuple(_read_file(reading, name, size) for name, size in selection.sizes.items())
    damage = [*reading.damage, *find_missing(layout, selection.sizes), *check_indexes(folder, files)]
    return Checkpoint(
        path=str(path),
        tag=selection.tag,
        layout=layout,
        files=files,
        has_experts=any(file.kind in _EXPERT_KINDS for file in files),
        parameters=_count_stated_parameters(reading),
        siblings=selection.summaries,
        damage=tuple(dict.fromkeys(damage)),
        notes=selection.notes,
    )


def _read_file(reading: _Reading, name: str, size: int) -> CheckpointFile:
    parsed = parse_name(name)
    try:
        contents = _read_contents(reading, name, parsed.kind, size)
    except (TorchDamage, SafetensorsDamage) as damage:
        contents = _Contents(unread=str(damage))
        reading.damage.append(f"{name} {damage}")
    except OSError as error:
        contents = _Contents(unread=f"cannot be read: {error.strerror}")
        reading.damage.append(f"{name} {contents.unread}")
    calls = contents.dangerous_calls
    if calls:
        reading.damage.append(f"{name} would call {', '.join(calls)} when it is loaded: do not load it")
    return CheckpointFile(
        name, size, parsed.kind, parsed.ranks, contents.groups, contents.unused_bytes, contents.unread, calls
    )


def _read_contents(reading: _Reading, name: str, kind: Kind, size: int) -> _Contents:
    """Read the table of contents of a file, if it has one."""
    path = reading.folder / name
    if name.endswith(".safetensors"):
        return _Contents(sum_safetensors(read_safetensors(path), path.name))
    if name.endswith(_TORCH_ENDINGS):
        file = read_torch_file(path)
        groups, unused_bytes = sum_torch_tensors(file, kind, path.name)
        reading.parameter_sizes.update(parse_parameter_sizes(file.value))
        return _Contents(groups, unused_bytes, None, find_dangerous_calls(file.names))
    if name.endswith(".distcp"):
        return _read_shard(reading, name, size)
    if name == METADATA_FILE and reading.dcp is not None:
        return _Contents(dangerous_calls=find_dangerous_calls(reading.dcp.names))
    return _Contents()


def _count_stated_parameters(reading: _Reading) -> int | None:
    if reading.dcp is not None:
        weights = sum(
            tensor.elements
            for tensor in reading.dcp.tensors.values()
            if find_role([tensor.name], tensor.dtype, Kind.SHARD) is Role.WEIGHTS
        )
        return weights or None
    return sum(reading.parameter_sizes.values()) or None


def _read_dcp(folder: Path, damage: list[str]) -> DcpMetadata | None:
    try:
        return read_metadata(folder / METADATA_FILE)
    except DcpDamage as problem:
        damage.append(f"{METADATA_FILE} {problem}")
    except OSError as error:
        damage.append(f"{METADATA_FILE} cannot be read: {error.strerror}")
    return None


def _read_shard(reading: _Reading, name: str, size: int) -> _Contents:
    """The tensors of a shard of a distributed checkpoint, by ``.metadata``."""
    if reading.dcp is None:
        return _Contents(unread="only .metadata lists the contents of a shard")
    file_name = name.rpartition("/")[2]
    extent = reading.dcp.extents.get(file_name, 0)
    if extent > size:
        reading.damage.append(f"{name} is cut off: .metadata states {extent:,} bytes, not {size:,}")
    sums: dict[tuple[Role, str], list[int]] = {}
    for tensor_name, length in reading.dcp.files.get(file_name, {}).items():
        tensor = reading.dcp.tensors.get(tensor_name)
        dtype = tensor.dtype if tensor else "bytes"
        role = find_role([tensor_name], dtype, Kind.SHARD) if tensor else Role.OTHER
        entry = sums.setdefault((role, dtype), [0, 0])
        entry[0] += tensor.elements if tensor else 0
        entry[1] += length
    return _Contents(tuple(TensorGroup(role, dtype, *counts) for (role, dtype), counts in sorted(sums.items())))


def _read_list(path: Path, tag: str | None) -> Checkpoint:
    """A CSV file of ``path,bytes``."""
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
    selection = select_checkpoint(path, Listing(sizes), tag)
    layout = find_layout(list(selection.sizes))
    unread = "only its name and size are known"
    files = tuple(
        CheckpointFile(name, size, parse_name(name).kind, parse_name(name).ranks, None, 0, unread, ())
        for name, size in sorted(selection.sizes.items())
    )
    return Checkpoint(
        path=str(path),
        tag=selection.tag,
        layout=layout,
        files=files,
        has_experts=any(file.kind in _EXPERT_KINDS for file in files),
        parameters=None,
        siblings=selection.summaries,
        damage=(*selection.damage, *find_missing(layout, selection.sizes)),
        notes=selection.notes,
    )
