"""What a machine attains at best, as ``perfscope doctor --ceiling`` measured it."""

from __future__ import annotations

from msgspec import Struct


class ProductRate(Struct, frozen=True):
    """The rate of a product of (rows, inner) and (inner, columns) in one data type, in TFLOP/s."""

    dtype: str
    rows: int
    columns: int
    inner: int
    tflops: float


class MemoryRate(Struct, frozen=True, rename={"size": "bytes"}):
    """The rate of a copy, a sum or a fill, in TB/s of the bytes that are read and written."""

    operation: str
    size: int
    tb_s: float


class CollectiveRate(Struct, frozen=True, rename={"size": "bytes"}):
    """The bus bandwidth of a collective as nccl-tests defines it, in GB/s."""

    operation: str
    ranks: int
    size: int
    busbw_gb_s: float


class Ceiling(Struct, frozen=True):
    """The ceilings of a machine: of its GPU, ``""`` for processors, and of how many of them took part.

    ``torch`` is the version that measured; ``collectives`` are empty for a single device.
    """

    device: str
    devices: int
    torch: str
    products: tuple[ProductRate, ...]
    memory: tuple[MemoryRate, ...]
    collectives: tuple[CollectiveRate, ...]

    def tflops(self, dtype: str) -> float | None:
        """The highest rate of products in a data type; None where none was measured."""
        return max((product.tflops for product in self.products if product.dtype == dtype), default=None)

    @property
    def tb_s(self) -> float | None:
        """The highest rate of memory; None where none was measured."""
        return max((rate.tb_s for rate in self.memory), default=None)

    def busbw_gb_s(self, operation: str) -> float | None:
        """The highest bus bandwidth of a collective; None where it was not measured."""
        return max((rate.busbw_gb_s for rate in self.collectives if rate.operation == operation), default=None)
