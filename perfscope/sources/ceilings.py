"""Reads what ``perfscope doctor --ceiling -o FILE`` wrote."""

from __future__ import annotations

from pathlib import Path

import msgspec

from perfscope.errors import SourceError
from perfscope.files import read_regular
from perfscope.tables.ceiling import Ceiling, CollectiveRate, MemoryRate, ProductRate

SCHEMA = "perfscope/ceiling/1"


class _Product(msgspec.Struct):
    dtype: str
    rows: int
    columns: int
    inner: int
    tflops: float


class _Memory(msgspec.Struct, rename={"size": "bytes"}):
    operation: str
    size: int
    tb_s: float


class _Collective(msgspec.Struct, rename={"size": "bytes"}):
    operation: str
    ranks: int
    size: int
    busbw_gb_s: float


class _File(msgspec.Struct):
    schema: str
    device: str
    devices: int
    torch: str
    products: list[_Product]
    memory: list[_Memory]
    collectives: list[_Collective]


def read_ceiling(path: Path) -> Ceiling:
    """Read the ceilings of a machine.

    Raises:
        SourceError: The file cannot be read, or is something else.
    """
    try:
        content = read_regular(path)
    except OSError as error:
        raise SourceError(path, f"cannot be read: {error.strerror}") from None
    return parse_ceiling(path, content)


def parse_ceiling(path: Path, content: bytes) -> Ceiling:
    """Parse the ceilings of a machine.

    Raises:
        SourceError: They cannot be read, or are something else.
    """
    try:
        file = msgspec.json.decode(content, type=_File)
    except msgspec.MsgspecError as error:
        raise SourceError(path, f"is no file of `perfscope doctor --ceiling`: {error}") from None
    if file.schema != SCHEMA:
        raise SourceError(path, f"has the schema {file.schema!r}, not {SCHEMA!r}")
    return Ceiling(
        device=file.device,
        devices=file.devices,
        torch=file.torch,
        products=tuple(ProductRate(*msgspec.structs.astuple(entry)) for entry in file.products),
        memory=tuple(MemoryRate(*msgspec.structs.astuple(entry)) for entry in file.memory),
        collectives=tuple(CollectiveRate(*msgspec.structs.astuple(entry)) for entry in file.collectives),
    )
