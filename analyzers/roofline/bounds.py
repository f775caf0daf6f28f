"""How near an operator is to what its GPU can do.

An operator needs at least ``flops / peak`` and at least ``bytes / bandwidth``; the longer of the two is its attainable
time, and says what bounds it. Peaks are those of hardware.toml, or what ``doctor --ceiling`` measured, where that is
known. A collective needs the bytes that nccl-tests counts for busbw over the link. A share above 1 cannot be: the data
was in the cache, or the count is wrong. It is doubted, and regains nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from perfscope.analyzers.roofline.measurement import OperatorWork
from perfscope.constants import GIGA, NS_PER_S, TERA
from perfscope.models.hardware import Gpu
from perfscope.tables.ceiling import Ceiling

COMPUTE, MEMORY, LINK = "compute", "memory", "link"
#: Times are exact to a nanosecond, but clocks boost and a kernel may start in the shadow of another one.
_TOLERANCE = 1.02
#: Data that fits in the cache of a large GPU need not come from its memory.
_CACHE_BYTES = 50_000_000


class Bound(NamedTuple):
    """What an operator attains.

    Attributes:
        tflops: Attained TFLOP/s; absent without operations.
        tb_s: Attained TB/s, of its memory or over the link; absent where the bytes are not known.
        bound: COMPUTE, MEMORY or LINK; absent where no ceiling is known.
        share: Attainable time over measured time; absent where it is not known or doubted.
        regain_ns: Measured less attainable time of all calls; absent likewise.
        doubt: Why the share is doubted; absent where it is not.
    """

    tflops: float | None = None
    tb_s: float | None = None
    bound: str | None = None
    share: float | None = None
    regain_ns: float | None = None
    doubt: str | None = None


class Ceilings(NamedTuple):
    """The rates that a machine can reach: its GPU's, where that is listed, and what was measured on it."""

    gpu: Gpu | None
    measured: Ceiling | None = None

    def tflops(self, dtype: str) -> float | None:
        """The ceiling of operations in a data type."""
        measured = self.measured.tflops(dtype) if self.measured else None
        return measured or (self.gpu.dense_tflops.get(dtype) if self.gpu else None)

    def tb_s(self) -> float | None:
        """The ceiling of memory."""
        return (self.measured.tb_s if self.measured else None) or (self.gpu.memory_tb_s if self.gpu else None)

    def link_gb_s(self, operation: str) -> float | None:
        """The ceiling of a collective's busbw."""
        measured = self.measured.busbw_gb_s(operation) if self.measured else None
        return measured or (self.gpu.link.gb_s if self.gpu and self.gpu.link else None)


def find_bound(work: OperatorWork, ceilings: Ceilings) -> Bound:
    """What an operator attains, against what was measured; against the datasheet where it exceeds that."""
    bound = _against(work, ceilings)
    return _against(work, ceilings._replace(measured=None)) if bound.doubt and ceilings.measured else bound


def _against(work: OperatorWork, ceilings: Ceilings) -> Bound:
    seconds = work.device_ns / NS_PER_S
    if not seconds:
        return Bound()
    attained = Bound(
        work.flops / TERA / seconds if work.flops else None, None if work.bytes is None else work.bytes / TERA / seconds
    )
    needs: list[tuple[float, str]] = []
    peak, memory = ceilings.tflops(work.dtype), ceilings.tb_s()
    if work.moved_over_link:
        link = ceilings.link_gb_s(work.operator)
        if link and work.bytes:
            needs.append((work.bytes / (link * GIGA), LINK))
    elif not work.flops or peak:
        if work.flops and peak:
            needs.append((work.flops / (peak * TERA), COMPUTE))
        if work.bytes and memory:
            needs.append((work.bytes / (memory * TERA), MEMORY))
    if not needs or work.flops is None:
        return attained
    attainable, bound = max(needs)
    share = attainable / seconds
    if share > _TOLERANCE:
        return attained._replace(bound=bound, doubt=_doubt(work, bound))
    share = min(share, 1.0)
    return attained._replace(bound=bound, share=share, regain_ns=work.device_ns * (1 - share))


def _doubt(work: OperatorWork, bound: str) -> str:
    if bound != MEMORY:
        return f"faster than the {'link' if bound == LINK else 'peak'}: what it did is not what its inputs say"
    if work.bytes is not None and work.bytes / work.calls < _CACHE_BYTES:
        return "faster than the memory: its data fits in the cache"
    return "faster than the memory: it may not touch all of its inputs"
