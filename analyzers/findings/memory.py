"""Findings about a memory that is nearly full, and how much of it tensors never used.

What such a finding regains is bytes: what they are worth in time depends on what takes their place.
"""

from __future__ import annotations

from msgspec import Struct

from perfscope.analyzers.findings.facts import Evidence
from perfscope.analyzers.findings.finding import Account, Basis, Cause, Confidence, Rule, Rules
from perfscope.analyzers.findings.in_use import has_expandable_segments, offer
from perfscope.analyzers.findings.training import Training
from perfscope.constants import GB
from perfscope.report import percent

#: Less free memory than this share of the GPU's is short.
_SHORT = 0.1
#: A larger share of the GPU's memory that is reserved and holds no tensor at the peak is worth a change.
_UNUSED = 0.1
_MOST_NAMED = 2


class FreeMemory(Struct, frozen=True):
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


def _fullest(training: Training) -> str | None:
    """The device whose memory is short; None where none is, or where no history was recorded."""
    facts = training.facts
    rows = facts.rows("/memory/devices")
    short = {row: _used(training, row) for row in rows if _used(training, row) > 1 - _SHORT}
    return max(short, key=lambda row: short[row], default=None)


def _used(training: Training, row: str) -> float:
    """How much of a device's memory is taken at its peak; more than 1 where more was asked for."""
    facts = training.facts
    names = ("reserved_bytes", "outside_bytes", "request_bytes")
    whole = _of_device(training, row)
    return sum(facts.amount(f"{row}/{name}") for name in names) / whole if whole else 0.0


def _of_device(training: Training, row: str) -> float:
    return training.facts.amount(f"{row}/device_bytes")


def find_full_memory(training: Training) -> Cause | None:
    """Tensors fill the GPU: what lowers their peak most makes room for a larger micro-batch."""
    facts, row = training.facts, _fullest(training)
    savings = [] if row is None else facts.rows(f"{row}/savings")
    if row is None or not savings or facts.amount(f"{row}/unused_bytes") >= _UNUSED * _of_device(training, row):
        return None
    evidence = [
        Evidence(
            f"Tensors take {facts.amount(f'{row}/peak_bytes') / GB:.2f} GB at the peak, of "
            f"{_of_device(training, row) / GB:.2f} GB of the GPU.",
            (f"{row}/peak_bytes", f"{row}/device_bytes"),
        )
    ]
    for saving in savings[:_MOST_NAMED]:
        share = facts.amount(f"{saving}/saved_bytes") / facts.amount(f"{row}/peak_bytes")
        evidence.append(
            Evidence(
                f"{facts.amount(f'{saving}/saved_bytes') / GB:.2f} GB ({percent(share):.0f} %) less: "
                f"{facts.text(f'{saving}/change')}; its price: {facts.text(f'{saving}/price')}.",
                (f"{saving}/saved_bytes", f"{saving}/change", f"{saving}/price"),
            )
        )
    change = facts.text(f"{savings[0]}/change")
    saved = round(facts.amount(f"{savings[0]}/saved_bytes"))
    return _of_bytes(training, row, saved, evidence, f"{change[:1].upper()}{change[1:]}.")


def find_fragmentation(training: Training) -> Cause | None:
    """The allocator holds memory in pieces that no tensor fits into."""
    facts, row = training.facts, _fullest(training)
    if row is None:
        return None
    unused = facts.amount(f"{row}/unused_bytes")
    if unused < _UNUSED * _of_device(training, row):
        return None
    evidence = Evidence(
        f"The allocator holds {facts.amount(f'{row}/reserved_bytes') / GB:.2f} GB at the peak, of which "
        f"{unused / GB:.2f} GB hold no tensor.",
        (f"{row}/reserved_bytes", f"{row}/unused_bytes", f"{row}/device_bytes"),
    )
    segments = "`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`", has_expandable_segments(training)
    advice = f"Try {offer(segments, ('inputs of fewer lengths.', False))}"
    return _of_bytes(training, row, round(unused), [evidence], advice)


def _of_bytes(training: Training, row: str, saved: int, evidence: list[Evidence], advice: str) -> Cause:
    ranks = (training.facts.rank(row),)
    return Cause(
        0.0, (0.0, 0.0), ranks, tuple(evidence), advice, Confidence.MEDIUM, Basis.BOUND, saved_bytes=saved
    )  # fmt: skip


RULES: Rules = (
    Rule("full_memory", "Memory nearly full", (Account.BESIDE,), find_full_memory),
    Rule("fragmentation", "Fragmented memory", (Account.BESIDE,), find_fragmentation),
)
