"""How near an operator is to what its GPU can do.

An operator needs at least ``flops / peak`` and at least ``bytes / bandwidth``; the longer of the two is its attainable
time, and says what bounds it. Peaks are those of hardware.toml, or what ``perfscope ceiling`` measured, where that is
known. A collective needs the bytes that nccl-tests counts for busbw over the link. A share above 1 cannot be: the data
was in the cache, or the count is wrong. It is doubted, and regains nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.roofline.measurement import OperatorWork
from perfscope.constants import GIGA, NS_PER_S, TERA
from perfscope.models.hardware import Gpu
from perfscope.tables.ceiling import Ceiling

COMPUTE, MEMORY, LINK = "compute", "memory", "link"
#: Times are exact to a nanosecond, but clocks boost and a kernel may start in the shadow of another one.
_TOLERANCE = 1.02
#: Data that fits in the cache of a large GPU need not come from its memory.
_CACHE_BYTES = 50_000_000


@dataclass(frozen=True, slots=True)
class Bound:
    """What an operator attains.

    Attributes:
        tflops: Attained TFLOP/s; absent without operations.
        tb_s: Attained TB/s, of its memory or over the link; absent where the bytes are not known.
        bound: COMPUTE, MEMORY or LINK; absent where no ceiling is known.
        share: Attainable time over measured time; absent where it is not known or doubted.
        regain_ns: Measured less attainable time of all calls; absent likewise.
        doubt: Why the share is doubted; ``""`` where it is not.
    """

    tflops: float | None
    tb_s: float | None
    bound: str | None
    share: float | None
    regain_ns: float | None
    doubt: str = ""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The rates that a machine can reach.

    Attributes:
        gpu: Its GPU; absent where that is not listed.
        measured: What was measured on it; absent where it was not.
    """

    gpu: Gpu | None
    measured: Ceiling | None = None

    def tflops(self, dtype: str, *, of_datasheet: bool = False) -> float | None:
        """The ceiling of operations in a data type."""
        peak = self.gpu.dense_tflops.get(dtype) if self.gpu else None
        measured = self.measured.tflops(dtype) if self.measured and not of_datasheet else None
        return measured or peak

    def tb_s(self, *, of_datasheet: bool = False) -> float | None:
        """The ceiling of memory."""
        peak = self.gpu.memory_tb_s if self.gpu else None
        measured = self.measured.tb_s if self.measured and not of_datasheet else None
        return measured or peak

    def link_gb_s(self, operation: str, *, of_datasheet: bool = False) -> float | None:
        """The ceiling of a collective's busbw."""
        peak = self.gpu.link.gb_s if self.gpu and self.gpu.link else None
        measured = self.measured.busbw_gb_s(operation) if self.measured and not of_datasheet else None
        return measured or peak


def find_bound(work: OperatorWork, ceilings: Ceilings) -> Bound:
    """What an operator attains, against what was measured; against the datasheet where it exceeds that."""
    bound = _against(work, ceilings, of_datasheet=False)
    if bound.doubt and ceilings.measured is not None:
        return _against(work, ceilings, of_datasheet=True)
    return bound


def _against(work: OperatorWork, ceilings: Ceilings, *, of_datasheet: bool) -> Bound:
    seconds = work.device_ns / NS_PER_S
    if not seconds:
        return Bound(None, None, None, None, None)
    tflops = work.flops / TERA / seconds if work.flops else None
    tb_s = work.bytes / TERA / seconds if work.bytes is not None else None
    needs: list[tuple[float, str]] = []
    if work.moved_over_link:
        link = ceilings.link_gb_s(work.operator, of_datasheet=of_datasheet)
        if link and work.bytes:
            needs.append((work.bytes / (link * GIGA), LINK))
    else:
        peak, memory = ceilings.tflops(work.dtype, of_datasheet=of_datasheet), ceilings.tb_s(of_datasheet=of_datasheet)
        if work.flops and peak is None:
            return Bound(tflops, tb_s, None, None, None)
        if work.flops and peak:
            needs.append((work.flops / (peak * TERA), COMPUTE))
        if work.bytes and memory:
            needs.append((work.bytes / (memory * TERA), MEMORY))
    if not needs or work.flops is None:
        return Bound(tflops, tb_s, None, None, None)
    attainable, bound = max(needs)
    share = attainable / seconds
    if share > _TOLERANCE:
        return Bound(tflops, tb_s, bound, None, None, _doubt(work, bound))
    share = min(share, 1.0)
    return Bound(tflops, tb_s, bound, share, work.device_ns * (1 - share))


def _doubt(work: OperatorWork, bound: str) -> str:
    if bound == MEMORY and work.bytes is not None and work.bytes / work.calls < _CACHE_BYTES:
        return "faster than the memory: its data fits in the cache"
    if bound == MEMORY:
        return "faster than the memory: it may not touch all of its inputs"
    return f"faster than the {'link' if bound == LINK else 'peak'}: what it did is not what its inputs say"
