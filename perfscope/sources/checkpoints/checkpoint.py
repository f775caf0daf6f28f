"""A checkpoint's folder as a Checkpoint. No code of a file runs, no tensor is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from perfscope.errors import SourceError
from perfscope.files import describe_kind
from perfscope.models.data_files import read_data
from perfscope.sources.checkpoints.dcp import METADATA_FILE, DcpMetadata, DcpTensor, read_metadata
from perfscope.sources.checkpoints.file_names import find_layout, parse_name
from perfscope.sources.checkpoints.listing import MOST_LISTED, FileDamage, list_files
from perfscope.sources.checkpoints.roles import find_role, sum_by_role, sum_safetensors, sum_torch_tensors
from perfscope.sources.checkpoints.safetensors import read_safetensors
from perfscope.sources.checkpoints.selection import (
    INDEX_ENDINGS,
    NO_CHECKPOINT,
    SelectedCheckpoint,
    check_index,
    find_missing,
    select_checkpoint,
)
from perfscope.sources.checkpoints.torch_files import TorchFile, read_torch_file
from perfscope.sources.pickles import Call, entries, parse_shape, without_collection
from perfscope.tables.checkpoint import Checkpoint, CheckpointFile, Kind, Layout, Role

_DANGEROUS: dict[str, list[str]] = read_data("checkpoint_names")["dangerous"]


def find_dangerous_calls(names: Iterable[str]) -> tuple[str, ...]:
    """The dangerous functions among those that a pickle names."""
    return tuple(sorted({name or "a function with a computed name" for name in names if _is_dangerous(name)}))


def _is_dangerous(name: str) -> bool:
    if not name:
        return True
    module, _, function = name.partition(".")
    if module in ("builtins", "__builtin__", "__builtins__"):
        return function.split(".")[0] in _DANGEROUS["builtins"]
    is_inside = not set(_DANGEROUS["inner"]).isdisjoint(function.split("."))
    return module in _DANGEROUS["modules"] or name.startswith(tuple(_DANGEROUS["beginnings"])) or is_inside


def parse_parameter_sizes(value: object) -> Iterator[tuple[str, int]]:
    """The names and numbers of elements in ``param_shapes``, which holds one dict per parameter group."""
    groups = entries(value).get("param_shapes")
    for group in groups if isinstance(groups, list | tuple) else [groups]:
        for name, shape in entries(group).items():
            sizes = parse_shape(shape) if isinstance(shape, Call) else None
            if isinstance(name, str) and sizes is not None:
                yield name, prod(sizes)


_Path = tuple[str, ...]


@dataclass
class ShardedTensors:
    """The elements of the weights over the files of all ranks, by the keys on the path to each."""

    whole: dict[_Path, int] = field(default_factory=dict)
    has_shards: bool = False

    def add(self, file: TorchFile, kind: Kind) -> None:
        """Add the weights of a file of one rank."""
        if not file.whole_elements:
            return
        self.has_shards = True
        for path, elements in file.whole_elements.items():
            if find_role(path, "float32", kind) is Role.WEIGHTS:
                self.whole[path] = elements
        for tensor in file.tensors:
            is_shard = any(tensor.path[:length] in file.whole_elements for length in range(len(tensor.path) + 1))
            if not is_shard and find_role(tensor.path, tensor.dtype, kind) is Role.WEIGHTS:
                self.whole[tensor.path] = tensor.items

    def count_parameters(self) -> int | None:
        """Elements of all weights, each once; None where no file states a whole shape."""
        return sum(self.whole.values()) or None if self.has_shards else None


_TIED = ("emb", "head", "output", "shared", "wte", "decoder")


def find_tied_copy(tensors: Mapping[str, DcpTensor]) -> str | None:
    """The name of the weight that is stored again under it; None where no weight is."""
    roles = {name: find_role([name], tensor.dtype, Kind.SHARD) for name, tensor in tensors.items()}
    owners = {tail for name, role in roles.items() if role is Role.MOMENTS for tail in _tails(name.rpartition(".")[0])}
    weights = [name for name, role in roles.items() if role is Role.WEIGHTS]
    # The prefixes of a weight and of its state differ.
    trained = {name for name in weights if name in owners or name.partition(".")[2] in owners}
    stateless = [name for name in weights if name not in trained]
    if len(stateless) != 1 or not any(word in stateless[0].lower() for word in _TIED):
        return None
    is_copy = tensors[stateless[0]].elements in {tensors[name].elements for name in trained}
    return stateless[0] if is_copy else None


def _tails(name: str) -> list[str]:
    words = name.split(".")
    return [".".join(words[first:]) for first in range(1, len(words))]


_TORCH_ENDINGS = (".pt", ".pth", ".bin", ".ckpt")
_EXPERT_KINDS = (Kind.EXPERT, Kind.EXPERT_OPTIMIZER)


@dataclass
class _Reading:
    """What is gathered while the files of a checkpoint are read; ZeRO 3 stores shapes where the weights would be."""

    folder: Path
    damage: list[str] = field(default_factory=list)
    parameter_sizes: dict[str, int] = field(default_factory=dict)
    dcp: dict[str, DcpMetadata] = field(default_factory=dict)
    tied: dict[str, str] = field(default_factory=dict)
    metadata_calls: dict[str, tuple[str, ...]] = field(default_factory=dict)
    shards: ShardedTensors = field(default_factory=ShardedTensors)
    elements: list[int] = field(default_factory=list)
    world: dict[str, int] = field(default_factory=dict)


def read_checkpoint(path: Path, tag: str | None = None) -> Checkpoint:
    """Read a checkpoint: its folder, the folder of several (the newest, or the one named ``tag``), or one file.

    Raises SourceError: there is no checkpoint.
    """
    if path.is_file():
        return _read_files(path, path.parent, SelectedCheckpoint("", "", {path.name: path.stat().st_size}))
    if not path.is_dir():
        raise SourceError(path, _describe_absence(path))
    selection = select_checkpoint(path, list_files(path), tag)
    return _read_files(path, path / selection.folder, selection)


def _describe_absence(path: Path) -> str:
    try:
        return f"is {describe_kind(path.stat().st_mode) or 'no regular file'}, not a checkpoint"
    except FileNotFoundError:
        return "is a link that leads nowhere" if path.is_symlink() else "does not exist"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _read_files(path: Path, folder: Path, selection: SelectedCheckpoint) -> Checkpoint:
    layout = find_layout(list(selection.sizes))
    if layout is Layout.UNKNOWN:
        raise SourceError(path, "contains no checkpoint", hint=NO_CHECKPOINT)
    reading = _Reading(folder, list(selection.damage))
    for name in selection.sizes:
        if name.rpartition("/")[2] == METADATA_FILE:
            with without_collection():
                _read_dcp(reading, name, selection.sizes)
    files = tuple(_read_file(reading, name, size) for name, size in selection.sizes.items())
    missing = [] if path.is_file() else find_missing(selection.sizes, reading.world)  # one file is all that was asked
    indexes = [name for name in selection.sizes if name.endswith(INDEX_ENDINGS)]
    stored = {file.path: sum(group.bytes for group in file.holds or ()) for file in files}
    wrong = [text for name in indexes for text in check_index(folder, name, selection.sizes, sum(stored.values()))]
    damage = [*reading.damage, *missing, *wrong, *_find_emptiness(reading, files)]
    return Checkpoint(
        path=str(path),
        tag=selection.tag or None,
        layout=layout,
        files=files,
        mixture_of_experts=any(file.kind in _EXPERT_KINDS for file in files),
        stated_parameters=_count_stated_parameters(reading),
        checkpoints=selection.summaries,
        damage=tuple(dict.fromkeys(damage)),
        notes=selection.notes,
        tied=next(iter(reading.tied.values()), None),
    )


def _find_emptiness(reading: _Reading, files: Sequence[CheckpointFile]) -> list[str]:
    """What to say of a checkpoint whose tensors all have no element, as those of ZeRO 3 that are saved ungathered."""
    if not reading.elements or any(reading.elements) or any(file.unread for file in files):
        return []
    tensors = "its only tensor has" if len(reading.elements) == 1 else f"its {len(reading.elements):,} tensors have"
    return [f"{tensors} no element: there are names and shapes, but no values to load"]


def _read_file(reading: _Reading, name: str, size: int) -> CheckpointFile:
    parsed = parse_name(name)
    file = CheckpointFile(name, size, parsed.kind, parsed.ranks, None)
    if not size:
        return replace(file, unread="is empty")
    try:
        with without_collection():
            file = _read_contents(reading, file)
    except FileDamage as damage:
        file = replace(file, unread=str(damage), dangerous_calls=find_dangerous_calls(damage.names))
    except OSError as error:
        file = replace(file, unread=f"cannot be read: {error.strerror}")
    if file.unread not in (None, _UNLISTED_SHARD):
        reading.damage.append(f"{name} {file.unread}")
    if file.dangerous_calls:
        calls = ", ".join(file.dangerous_calls)
        reading.damage.append(f"{name} would call {calls} when it is loaded: do not load it")
    return file


_UNLISTED_SHARD = "only .metadata lists the contents of a shard"


def _read_contents(reading: _Reading, read: CheckpointFile) -> CheckpointFile:
    name, path = read.path, reading.folder / read.path
    if name.endswith(".safetensors"):
        tensors = read_safetensors(path)
        reading.elements.extend(tensor.elements for tensor in tensors)
        return replace(read, holds=sum_safetensors(tensors, path.name))
    if name.endswith(_TORCH_ENDINGS):
        file = read_torch_file(path)
        reading.elements.extend(tensor.items for tensor in file.tensors)
        groups, unused_bytes = sum_torch_tensors(file, read.kind, path.name)
        reading.parameter_sizes.update(parse_parameter_sizes(file.value))
        for axis in ("dp", "mp"):
            stated = file.value.get(f"{axis}_world_size") if isinstance(file.value, Mapping) else None
            if isinstance(stated, int):
                reading.world[axis] = stated
        reading.shards.add(file, read.kind)
        calls = find_dangerous_calls(file.names)
        return replace(read, holds=groups, unused_bytes=unused_bytes, dangerous_calls=calls)
    if name.endswith(".distcp"):
        return _read_shard(reading, read)
    return replace(read, dangerous_calls=reading.metadata_calls.get(name, ()))


def _count_stated_parameters(reading: _Reading) -> int | None:
    if reading.dcp:
        weights = sum(
            tensor.elements
            for parent, metadata in reading.dcp.items()
            for tensor in metadata.tensors.values()
            if find_role([tensor.name], tensor.dtype, Kind.SHARD) is Role.WEIGHTS
            if tensor.name != reading.tied.get(parent)
        )
        return weights or None
    return sum(reading.parameter_sizes.values()) or reading.shards.count_parameters()


def _read_dcp(reading: _Reading, name: str, sizes: Mapping[str, int]) -> None:
    parent = name.removesuffix(METADATA_FILE)
    names: frozenset[str] = frozenset()
    try:
        metadata = read_metadata(reading.folder / name)
        names = metadata.names
        reading.dcp[parent] = metadata
        reading.elements.extend(tensor.elements for tensor in metadata.tensors.values())
        if (copy := find_tied_copy(metadata.tensors)) is not None:
            reading.tied[parent] = copy
        reading.damage.extend(f"{name} {problem}" for problem in metadata.problems)
        absent = sorted(file for file in metadata.files if f"{parent}{file}" not in sizes)
        reading.damage.extend(f"{parent}{file} is missing: {name} lists it" for file in absent[:MOST_LISTED])
    except FileDamage as damage:
        names = damage.names
        reading.damage.append(f"{name} {damage}")
    except OSError as error:
        reading.damage.append(f"{name} cannot be read: {error.strerror}")
    reading.metadata_calls[name] = find_dangerous_calls(names)


def _read_shard(reading: _Reading, read: CheckpointFile) -> CheckpointFile:
    parent, _, file_name = read.path.rpartition("/")
    folder = f"{parent}/" if parent else ""
    metadata = reading.dcp.get(folder)
    if metadata is None:
        return replace(read, unread=_UNLISTED_SHARD)
    extent = metadata.extents.get(file_name, 0)
    if extent > read.bytes:
        reading.damage.append(f"{read.path} is cut off: .metadata states {extent:,} bytes, not {read.bytes:,}")
    sizes = []
    for tensor_name, part in metadata.files.get(file_name, {}).items():
        tensor = metadata.tensors.get(tensor_name)
        if tensor is None or not part.elements:
            continue  # objects, and the headers around every tensor, are bytes of the file beside its tensors
        is_copy = tensor_name == reading.tied.get(folder)
        role = Role.OTHER if is_copy else find_role([tensor_name], tensor.dtype, Kind.SHARD)
        sizes.append((role, tensor.dtype, part.elements, part.tensor_bytes))
    return replace(read, holds=sum_by_role(sizes))
