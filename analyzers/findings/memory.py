"""How much of a GPU's memory tensors never used."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.analyzers.findings.training import Training


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The fullest GPU.

    Attributes:
        free: The share that tensors never used.
        pointers: Where the peak and the whole are.
    """

    free: float
    pointers: tuple[str, ...]


def free_memory(training: Training) -> FreeMemory | None:
    """The memory that was never used; None where the peak or the whole is unknown."""
    facts = training.facts
    peaks = {f"{row}/memory_peak_bytes": facts.amount(f"{row}/memory_peak_bytes") for row in facts.rows("/steps/ranks")}
    totals = {f"{row}/memory_total_bytes": facts.amount(f"{row}/memory_total_bytes") for row in facts.rows("/gpus")}
    peak = max(peaks, key=lambda pointer: peaks[pointer], default="")
    total = max(totals, key=lambda pointer: totals[pointer], default="")
    if not peaks.get(peak) or not totals.get(total):
        return None
    return FreeMemory(1 - peaks[peak] / totals[total], (peak, total))
