"""The tensors of a torch distributed checkpoint, from its ``.metadata``: a pickle, which is read and never loaded."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from perfscope.constants import MIB
from perfscope.sources.checkpoints.pickles import Call, GlobalName, InertDict, PickleDamage, replay
from perfscope.sources.checkpoints.torch_files import LARGEST_PICKLE, item_bytes

METADATA_FILE = ".metadata"


class DcpDamage(Exception):
    """A ``.metadata`` file is not complete; the text is the problem."""


@dataclass(frozen=True, slots=True)
class DcpTensor:
    """One tensor of the model, over all shards."""

    name: str
    dtype: str
    elements: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class DcpMetadata:
    """The content of ``.metadata``.

    Attributes:
        tensors: Every tensor, by its name.
        files: The bytes of each tensor in each shard file, by the names of the file and the tensor.
        extents: The size that each shard file must have at least, in bytes.
        names: Functions and classes that loading it would look up.
    """

    tensors: dict[str, DcpTensor]
    files: dict[str, dict[str, int]]
    extents: dict[str, int]
    names: frozenset[str]


def read_metadata(path: Path) -> DcpMetadata:
    """Read a checkpoint's ``.metadata``.

    Raises:
        DcpDamage: It is not a complete pickle of a checkpoint's metadata.
        OSError: It cannot be read.
    """
    if path.stat().st_size > LARGEST_PICKLE:
        raise DcpDamage(f"is larger than {LARGEST_PICKLE // MIB} MiB; it is not read")
    try:
        replayed = replay(io.BytesIO(path.read_bytes()))
    except PickleDamage as damage:
        raise DcpDamage(str(damage)) from None
    root = replayed.value
    if not isinstance(root, Call) or not isinstance(root.state, InertDict):
        raise DcpDamage("is not the metadata of a distributed checkpoint")
    described = root.state.get("state_dict_metadata")
    stored = root.state.get("storage_data")
    if not isinstance(described, InertDict):
        raise DcpDamage("lists no tensors")
    tensors = {tensor.name: tensor for tensor in _tensors(described)}
    files: dict[str, dict[str, int]] = {}
    extents: dict[str, int] = {}
    for name, file, offset, length in _pieces(stored):
        lengths = files.setdefault(file, {})
        lengths[name] = lengths.get(name, 0) + length
        extents[file] = max(extents.get(file, 0), offset + length)
    return DcpMetadata(tensors, files, extents, replayed.names)


def _tensors(described: InertDict) -> Iterator[DcpTensor]:
    for name, entry in described.items:
        if not isinstance(name, str) or not isinstance(entry, Call) or not isinstance(entry.state, InertDict):
            continue
        size = _size(entry.state.get("size"))
        dtype = _dtype(entry.state.get("properties"))
        if size is not None and dtype is not None:
            yield DcpTensor(name, dtype, prod(size), prod(size) * (item_bytes(dtype) or 0))


def _size(value: object) -> tuple[int, ...] | None:
    if isinstance(value, Call) and isinstance(value.arguments, tuple) and len(value.arguments) == 1:
        parts = value.arguments[0]
        if isinstance(parts, tuple | list) and all(isinstance(part, int) and part >= 0 for part in parts):
            return tuple(parts)
    return None


def _dtype(properties: object) -> str | None:
    state = properties.state if isinstance(properties, Call) else None
    values = state if isinstance(state, tuple) else [v for _, v in state.items] if isinstance(state, InertDict) else ()
    names = [value.text for value in values if isinstance(value, GlobalName) and value.text.startswith("torch.")]
    return names[0].removeprefix("torch.") if names else None


def _pieces(stored: object) -> Iterator[tuple[str, str, int, int]]:
    """Each stored piece: the name of its tensor, its file, its offset and its length in bytes."""
    for index, info in stored.items if isinstance(stored, InertDict) else ():
        match index, info:
            case Call(state=InertDict() as tensor), Call(state=InertDict() as position):
                fields = tensor.get("fqn"), *(position.get(key) for key in ("relative_path", "offset", "length"))
            case _:
                continue
        match fields:
            case str(name), str(file), int(offset), int(length) if offset >= 0 and length >= 0:
                yield name, file, offset, length
