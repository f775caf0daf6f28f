"""The tensors of a torch distributed checkpoint, from its ``.metadata``: a pickle, which is read and never loaded.

``state_dict_metadata`` has the whole shape of each tensor and the chunks that the ranks hold; ``storage_data`` has the
file, the offset and the length of each chunk. A chunk is a small file of ``torch.save`` of its own, 1 kB longer than
its tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from perfscope.constants import MIB
from perfscope.files import open_regular
from perfscope.sources.checkpoints.listing import MOST_LISTED, FileDamage
from perfscope.sources.checkpoints.torch_files import item_bytes
from perfscope.sources.pickles import (
    LARGEST_PICKLE,
    LARGEST_SIZE,
    LONGEST_NAME,
    Call,
    GlobalName,
    PickleDamage,
    parse_shape,
    read_pickle,
)

METADATA_FILE = ".metadata"
_CLASS = b"torch.distributed.checkpoint.metadata"
#: Where the class stands; what is searched for calls where it is missing.
_SEARCHED = MIB


@dataclass(frozen=True, slots=True)
class DcpTensor:
    """One tensor over all ranks; ``chunks`` has the elements of each by its offsets in the tensor."""

    name: str
    dtype: str
    elements: int
    chunks: dict[tuple[int, ...], int]


@dataclass(slots=True)
class ShardPart:
    """What a shard file holds of one tensor."""

    elements: int = 0
    tensor_bytes: int = 0


@dataclass(slots=True)
class DcpMetadata:
    """The content of ``.metadata``; a shard file must have at least the bytes of its extent."""

    tensors: dict[str, DcpTensor]
    names: frozenset[str]
    files: dict[str, dict[str, ShardPart]] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Piece:
    name: str
    offsets: tuple[int, ...] | None
    file: str
    offset: int
    length: int


def read_metadata(path: Path) -> DcpMetadata:
    """Read a checkpoint's ``.metadata``.

    Raises FileDamage: it is not a complete pickle of a checkpoint's metadata. OSError: it cannot be read.
    """
    with open_regular(path) as file:
        content = file.read(LARGEST_PICKLE + 1)
    if len(content) > LARGEST_PICKLE:
        raise FileDamage(f"is larger than {LARGEST_PICKLE // MIB} MiB; it is not read")
    is_foreign = _CLASS not in content[:_SEARCHED]
    try:
        replayed = read_pickle(content[:_SEARCHED] if is_foreign else content)
    except PickleDamage as damage:
        raise FileDamage(_NOT_METADATA if is_foreign else str(damage), damage.names) from None
    root = replayed.value
    if is_foreign or not isinstance(root, Call) or not isinstance(root.state, dict):
        raise FileDamage(_NOT_METADATA, replayed.names)
    described = root.state.get("state_dict_metadata")
    stored = root.state.get("storage_data")
    if not isinstance(described, dict):
        raise FileDamage("lists no tensors", replayed.names)
    metadata = DcpMetadata({tensor.name: tensor for tensor in _tensors(described, replayed.names)}, replayed.names)
    _place_pieces(metadata, list(_pieces(stored)))
    return metadata


_NOT_METADATA = "is not the metadata of a distributed checkpoint"


def _tensors(described: dict[object, object], names: frozenset[str]) -> Iterator[DcpTensor]:
    for name, entry in described.items():
        if not isinstance(name, str) or not isinstance(entry, Call) or not isinstance(entry.state, dict):
            continue
        stated = entry.state.get("size")
        size = parse_shape(stated)
        if stated is not None and (size is None or prod(size) > LARGEST_SIZE):
            raise FileDamage(f"states a shape of {name[:LONGEST_NAME]} that no tensor can have", names)
        dtype = _dtype(entry.state.get("properties"))
        if size is not None and dtype is not None:
            chunks = dict(_chunks(entry.state.get("chunks")))
            yield DcpTensor(name[:LONGEST_NAME], dtype, prod(size), chunks)


def _chunks(chunks: object) -> Iterator[tuple[tuple[int, ...], int]]:
    for chunk in chunks if isinstance(chunks, list | tuple) else ():
        if isinstance(chunk, Call) and isinstance(chunk.state, dict):
            offsets, sizes = parse_shape(chunk.state.get("offsets")), parse_shape(chunk.state.get("sizes"))
            if offsets is not None and sizes is not None:
                yield offsets, prod(sizes)


def _dtype(properties: object) -> str | None:
    state = properties.state if isinstance(properties, Call) else None
    values = state if isinstance(state, tuple) else list(state.values()) if isinstance(state, dict) else ()
    names = (value.text for value in values if isinstance(value, GlobalName) and value.text.startswith("torch."))
    name = next(names, None)
    return None if name is None else name.removeprefix("torch.")


def _pieces(stored: object) -> Iterator[_Piece]:
    for index, info in stored.items() if isinstance(stored, dict) else ():
        match index, info:
            case Call(state=dict() as tensor), Call(state=dict() as position):
                fields = tensor.get("fqn"), *(position.get(key) for key in ("relative_path", "offset", "length"))
            case _:
                continue
        match fields:
            case str(name), str(file), int(offset), int(length) if (
                0 <= offset <= LARGEST_SIZE and 0 <= length <= LARGEST_SIZE
            ):
                offsets = parse_shape(tensor.get("offset"))
                yield _Piece(name[:LONGEST_NAME], offsets, file[:LONGEST_NAME], offset, length)


def _place_pieces(metadata: DcpMetadata, pieces: list[_Piece]) -> None:
    covered: dict[str, int] = {}
    for piece in pieces:
        part = metadata.files.setdefault(piece.file, {}).setdefault(piece.name, ShardPart())
        metadata.extents[piece.file] = max(metadata.extents.get(piece.file, 0), piece.offset + piece.length)
        tensor = metadata.tensors.get(piece.name)
        elements = 0 if tensor is None else tensor.chunks.get(piece.offsets or _origin(tensor), 0)
        if tensor is None or not elements:
            continue
        size = elements * (item_bytes(tensor.dtype) or 0)
        part.elements += elements
        part.tensor_bytes += min(size, piece.length)  # a compressed chunk is shorter than its tensor
        covered[piece.name] = covered.get(piece.name, 0) + elements
    _check_cover(metadata, covered)


def _origin(tensor: DcpTensor) -> tuple[int, ...]:
    """The offsets of the only chunk of a tensor whose index states none."""
    return next(iter(tensor.chunks)) if len(tensor.chunks) == 1 else ()


def _check_cover(metadata: DcpMetadata, covered: dict[str, int]) -> None:
    split = [tensor for tensor in metadata.tensors.values() if tensor.chunks]
    lacking = [tensor for tensor in split if covered.get(tensor.name, 0) < tensor.elements]
    excessive = [name for name, elements in covered.items() if elements > metadata.tensors[name].elements]
    metadata.problems.extend(
        f"lists {covered.get(tensor.name, 0):,} of the {tensor.elements:,} elements of {tensor.name}: a rank is missing"
        for tensor in lacking[:MOST_LISTED]
    )
    metadata.problems.extend(f"lists more elements of {name} than it has" for name in excessive[:MOST_LISTED])
