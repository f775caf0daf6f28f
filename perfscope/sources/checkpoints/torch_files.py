"""The tensors of a file of ``torch.save``, from its table of contents: no tensor is read and no code runs.

A file of torch 1.6 or later is a zip archive: ``data.pkl`` lists the tensors, ``data/<key>`` are their storages. Older
files are a sequence of pickles, followed by the storages.
"""

from __future__ import annotations

import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import IO

from perfscope.constants import MIB
from perfscope.files import open_regular
from perfscope.sources.checkpoints.listing import FileDamage
from perfscope.sources.pickles import (
    LARGEST_PICKLE,
    LARGEST_SIZE,
    LONGEST_NAME,
    Call,
    GlobalName,
    InertPickle,
    PersistentId,
    PickleDamage,
    parse_shape,
    read_pickle,
    walk,
)

#: Room for 200,000 tensors; a larger one makes zipfile fill gigabytes.
LARGEST_DIRECTORY = 16 * MIB
#: torch.save does not compress; a text-like pickle that somebody packed again shrinks to a tenth.
_HIGHEST_COMPRESSION = 50
# The exceptions of zipfile for changed bytes: names that are no UTF-8, offsets before the file, unknown compression.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    ValueError,
    IndexError,
    OverflowError,
    struct.error,
)
_LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
_ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("Double", "float64", "Long", "int64", "ComplexFloat", "complex64"), 8),
    **dict.fromkeys(("Float", "float32", "Int", "int32"), 4),
    **dict.fromkeys(("Half", "float16", "BFloat16", "bfloat16", "Short", "int16", "uint16"), 2),
    **dict.fromkeys(("Byte", "uint8", "Char", "int8", "Bool", "bool", "Untyped", "QInt8", "QUInt8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"), 1),
    **dict.fromkeys(("ComplexDouble", "complex128"), 16),
    **dict.fromkeys(("uint32",), 4),
    **dict.fromkeys(("uint64",), 8),
}
_DTYPES = {"Double": "float64", "Float": "float32", "Half": "float16", "BFloat16": "bfloat16", "Long": "int64",
           "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8", "Bool": "bool"}  # fmt: skip
_SHARDED_TENSORS = (".DTensor", ".ShardedTensor")
_REBUILDS = ("_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3")


@dataclass(frozen=True, slots=True)
class Storage:
    """The bytes of one or more tensors: the key of their archive member, their dtype and their number of elements."""

    key: str
    dtype: str
    items: int


@dataclass(frozen=True, slots=True)
class TorchTensor:
    """One tensor of a file: the keys on the path to it, and its part of a storage."""

    path: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    storage: Storage
    offset: int

    @property
    def items(self) -> int:
        """Its number of elements."""
        return prod(self.shape)


@dataclass(frozen=True, slots=True)
class TorchFile:
    """The content of a file of ``torch.save`` in inert form.

    ``stored_bytes`` is empty for the old format; ``whole_elements`` are of tensors of which it has the shard of a rank.
    """

    value: object
    tensors: tuple[TorchTensor, ...]
    names: frozenset[str]
    stored_bytes: Mapping[str, int]
    whole_elements: Mapping[tuple[str, ...], int]


def item_bytes(dtype: str) -> int | None:
    """The size of one element; None for an unknown dtype."""
    return _ITEM_BYTES.get(dtype)


def read_torch_file(path: Path) -> TorchFile:
    """Read a file's table of contents; a longer list of tensors is refused.

    Raises FileDamage: the file is not complete, or was made to harm its reader. OSError: the file cannot be read.
    """
    with open_regular(path) as file:
        start = file.read(4096)
        if not start:
            raise FileDamage("is empty")
        if start.startswith(b"PK"):
            return _read_zip(file)
        file.seek(0)
        if start[:1] == b"\x80":
            return _read_legacy(file)
        if not start.strip(b"\0"):
            raise FileDamage("begins with zeros only: it was not written whole")
        raise FileDamage("is not a torch.save file")


def check_end(path: Path) -> None:
    """Check that a file has its end, without reading what is in it; only zip archives have one that says so.

    Raises FileDamage: it is cut off, or was never written. OSError: it cannot be read.
    """
    with open_regular(path) as file:
        start = file.read(4096)
        if start.startswith(b"PK"):
            _require_end(file)
        elif not start.strip(b"\0"):
            raise FileDamage("begins with zeros only: it was not written whole")


def _read_zip(file: IO[bytes]) -> TorchFile:
    _require_end(file)
    try:
        with zipfile.ZipFile(file) as archive:
            members = {entry.filename: entry for entry in archive.infolist()}
            _refuse_bomb(members, os.fstat(file.fileno()).st_size, len(archive.infolist()))
            pickles = [name for name in members if name == "data.pkl" or name.endswith("/data.pkl")]
            if len(pickles) != 1:
                raise FileDamage(f"is a zip archive with {len(pickles) or 'no'} data.pkl, not a file of torch.save")
            entry = members[pickles[0]]
            if entry.file_size > MIB + _HIGHEST_COMPRESSION * entry.compress_size:
                raise FileDamage(f"is a zip bomb: its data.pkl is packed into {entry.compress_size:,} bytes")
            if not entry.CRC:  # torch can leave checksums out
                del entry.CRC
            with archive.open(pickles[0]) as stream:
                replayed = _replay(stream.read(LARGEST_PICKLE + 1))
    except _ZIP_ERRORS as error:
        raise FileDamage(f"is not a complete zip archive ({error})") from None
    folder = pickles[0].removesuffix("data.pkl") + "data/"
    storages = {name.removeprefix(folder): entry for name, entry in members.items() if name.startswith(folder)}
    stored = {key: entry.file_size for key, entry in storages.items()}
    file_content = _describe(replayed, stored)
    _check_storages(file_content)
    return file_content


def _require_end(file: IO[bytes]) -> None:
    try:
        # ZipFile reads all of a directory before it states its size.
        end = vars(zipfile)["_EndRecData"](file)
    except _ZIP_ERRORS as error:
        raise FileDamage(f"is not a complete zip archive ({error})") from None
    if not end:
        raise FileDamage("has no end of its zip directory: it is cut off, or was still being written")
    size = end[vars(zipfile)["_ECD_SIZE"]]
    if size > LARGEST_DIRECTORY:
        raise FileDamage(f"has a zip directory of {size:,} bytes; it is not read")


def _refuse_bomb(members: Mapping[str, zipfile.ZipInfo], size: int, count: int) -> None:
    if len(members) != count:
        raise FileDamage("has two archive members of one name")
    declared = sum(entry.file_size for entry in members.values())
    if declared > size + LARGEST_PICKLE:
        raise FileDamage(f"is a zip bomb: {declared:,} bytes are packed into {size:,}; it is not unpacked")


def _replay(content: bytes) -> InertPickle:
    if len(content) > LARGEST_PICKLE:
        raise FileDamage(f"has a data.pkl of more than {LARGEST_PICKLE:,} bytes; it is not read")
    try:
        return read_pickle(content)
    except PickleDamage as damage:
        raise FileDamage(f"has a data.pkl that {damage}", damage.names) from None


def _read_legacy(file: IO[bytes]) -> TorchFile:
    """Five pickles: magic number, protocol, system, object, keys. Only files of torch begin with the first one."""
    try:
        content = file.read(LARGEST_PICKLE)
        replayed = read_pickle(content)
        if replayed.value == _LEGACY_MAGIC:
            for _ in range(3):
                replayed = read_pickle(content, replayed.end)
        return _describe(replayed, {})
    except PickleDamage as damage:
        raise FileDamage(f"holds a pickle that {damage}", damage.names) from None


def _describe(replayed: InertPickle, stored: Mapping[str, int]) -> TorchFile:
    tensors: list[TorchTensor] = []
    whole: dict[tuple[str, ...], int] = {}
    try:
        for path, call in walk(replayed.value):
            tensor = _find_tensor(path, call)
            if tensor is not None:
                tensors.append(tensor)
            shape = _whole_shape(call)
            if shape is not None:
                whole[path] = prod(shape)
    except PickleDamage as damage:
        raise FileDamage(f"has a pickle that {damage}", replayed.names) from None
    return TorchFile(replayed.value, tuple(tensors), replayed.names, stored, whole)


def _find_tensor(path: tuple[str, ...], call: Call) -> TorchTensor | None:
    match call:
        case Call(function=function, arguments=arguments) if function.rpartition(".")[2] in _REBUILDS:
            return _tensor(path, arguments)
        case Call(function=function, arguments=(GlobalName(text=rebuild), GlobalName(), tuple(arguments), *_)) if (
            "_rebuild_from_type" in function and rebuild.rpartition(".")[2] in _REBUILDS
        ):  # a tensor with further attributes, as DeepSpeed saves it
            return _tensor(path, arguments)
    return None


def _whole_shape(call: Call) -> tuple[int, ...] | None:
    """The shape over all ranks of a DTensor or ShardedTensor, of which a file holds the shard of one rank."""
    match call:
        case Call(
            arguments=(GlobalName(text=rebuild), GlobalName(text=kind), (_, GlobalName(), tuple(size), *_), *_)
        ) if rebuild.endswith("_rebuild_wrapper_subclass") and kind.endswith(_SHARDED_TENSORS):
            return parse_shape(size)
    return None


def _tensor(path: tuple[str, ...], arguments: object) -> TorchTensor | None:
    """Parse the arguments of the functions that rebuild a tensor: storage, offset, shape, strides and, in v3, dtype."""
    match arguments:
        case (
            PersistentId(id=(_, GlobalName(text=kind), str(key), _, int(items), *_)),
            int(offset),
            size,
            _,
            *options,
        ) if 0 <= items <= LARGEST_SIZE and 0 <= offset <= LARGEST_SIZE:
            shape = parse_shape(size)
        case _:
            return None
    if shape is None:
        return None
    storage = Storage(key, kind.rpartition(".")[2].removesuffix("Storage"), items)
    dtype_name = next((part.text for part in options if isinstance(part, GlobalName)), "")
    is_untyped = storage.dtype == "Untyped" and dtype_name.startswith("torch.")
    dtype = dtype_name.removeprefix("torch.") if is_untyped else _DTYPES.get(storage.dtype, storage.dtype)
    return TorchTensor(path, dtype, shape, storage, offset)


def _check_storages(file: TorchFile) -> None:
    for tensor in file.tensors:
        size = item_bytes(tensor.storage.dtype)
        stored = file.stored_bytes.get(tensor.storage.key)
        if stored is None:
            name = ".".join(tensor.path)[:LONGEST_NAME] or "a tensor"
            raise FileDamage(f"lacks the storage {tensor.storage.key[:LONGEST_NAME]} of {name}", file.names)
        if size is not None and stored < tensor.storage.items * size:
            text = f"holds {stored:,} bytes for a storage of {tensor.storage.items * size:,}"
            raise FileDamage(text, file.names)
