"""The bus bandwidth of collective operations, in the units of nccl-tests, and whether a link can carry it."""

from __future__ import annotations

from perfscope.analyzers.shared.doubt import Checked, check_rate
from perfscope.models.hardware import Link

_ALL_TO_ALL_LIKE = frozenset(("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"))
_ONE_TO_ONE_LIKE = frozenset(("broadcast", "reduce", "send_recv", "send", "recv"))
_CAUSES = "the size that the profiler states, a kernel that ends before its transfer does, or the clock of the device"


def bus_factor(operation: str, ranks: int | None) -> float | None:
    """The factor from algbw to busbw in nccl-tests for a group of n ranks.

    Absent where it needs an unknown n, and of operations for which nccl-tests has none.

    >>> bus_factor("all_reduce", 4), bus_factor("all_gather", 4), bus_factor("broadcast", None)
    (1.5, 0.75, 1.0)
    >>> bus_factor("all_to_all_v", 4), bus_factor("", 4)
    (None, None)
    """
    if operation == "all_reduce":
        return None if not ranks else 2 * (ranks - 1) / ranks
    if operation in _ALL_TO_ALL_LIKE:
        return None if not ranks else (ranks - 1) / ranks
    return 1.0 if operation in _ONE_TO_ONE_LIKE else None


def check_busbw(algbw_gb_s: float | None, operation: str, ranks: int | None, link: Link | None, what: str) -> Checked:
    """The bus bandwidth of an operation, unless the link of its GPUs cannot carry it.

    Switches that add up what passes through them halve what an all_reduce moves; its busbw counts both halves, so that
    it may be that much higher than the link's rate.
    """
    factor = bus_factor(operation, ranks)
    if factor is None or algbw_gb_s is None:
        return Checked(None)
    if link is None:
        return Checked(algbw_gb_s * factor)
    most = link.gb_s * (max(1.0, factor) if link.reduces and operation == "all_reduce" else 1.0)
    in_words = f"the {link.gb_s:g} GB/s of {link.name} in each direction ({link.source})"
    return check_rate(algbw_gb_s * factor, most, f"the busbw of {what}", in_words, _CAUSES)
