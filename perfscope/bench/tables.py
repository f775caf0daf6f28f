"""The rows of a benchmark as tables for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from perfscope.bench.rows import BenchRow
from perfscope.constants import GB, NS_PER_S
from perfscope.report import Cell, Section, in_unit
from perfscope.result import GIGABYTES, MS, PERCENT, Column, Table

#: Why a figure of where the time goes may be absent, by its column.
_WHY_ABSENT = {
    "Compute (%)": "No shares: the trace of the profiled step shows no GPU.",
    "Overlap (%)": "No overlap: no communication ran on a GPU.",
    "Bubble (%)": "No bubble: no micro-batches pass between processes.",
    "TFLOPs": "No TFLOPs: the model's products and convolutions cannot be counted.",
    "MFU (%)": "No MFU: it is of a GPT whose shapes the run records, on GPUs whose peak is known.",
    "J/sample": "No energy: NVML sampled none, not every rank marks steps, as in an RPC pipeline, or the measured "
    "steps last less than 2 s: NVML's power is a mean over up to 1 s.",
    "Checkpoint (GB)": "No checkpoint was saved.",
}


def comparison_section(rows: Sequence[BenchRow], *, is_cpu: bool) -> Section:
    """The seeds' table: throughput, speed-up, efficiency, memory, utilisation, loss, accuracy."""
    columns = (
        Column("Strategy", "title"),
        Column("Devices", lambda row: row.variant.nproc),
        Column("Options", lambda row: ", ".join((row.variant.precision, *row.variant.changes))),
        Column("Samples/s", "samples_per_s"),
        Column("95 % interval", "samples_per_s_interval", lambda interval: "{:.1f} to {:.1f}".format(*interval)),
        Column("Speed-up", "against_first", lambda against: against.ratio, 2),
        Column("Efficiency (%)", "efficiency", PERCENT),
        Column("Differs", _describe_difference),
        Column(f"Memory of a {'process' if is_cpu else 'device'} (GB)", "memory_bytes", describe_memory),
        Column("Change (%)", "memory_change", PERCENT),
        Column("Utilisation (%)", "util_percent"),
        Column("Loss", "last_loss", decimals=4),
        Column("Accuracy", "accuracy", decimals=2),
        Column("Notes", "notes", "; ".join),
    )
    notes = [
        "Samples/s: of all devices, from the step time. The interval is over a row's trainings; n/a with one.",
        "Differs: whether the speed truly differs from the first row's, at 95 %; n/a with one training.",
        "Memory: the peak of the processes' memory." if is_cpu else "Memory: the peak of tensors in the allocator.",
        "Change: of the fullest device's memory against the first row. Loss, accuracy: mean of the last quarter.",
    ]
    if any(row.util_percent is not None for row in rows):
        notes.append("Utilisation: NVML's mean between the first and the last step, the profiled one's pause included.")
    return Table("Strategies", "", columns).section(rows, notes)


def time_section(rows: Sequence[BenchRow]) -> Section:
    """Where the time of a step goes, what it costs, and what a checkpoint costs."""
    has_precision = len({row.variant.precision for row in rows}) > 1

    def name(row: BenchRow) -> str:
        options = [*([row.variant.precision] if has_precision else []), *row.variant.changes]
        return " ".join((f"{row.variant.strategy} x {row.variant.nproc}", *options))

    columns = (
        Column("Row", name),
        Column("Step (ms)", "step_s", MS, 2),
        Column("Compute (%)", _mean("shares", "compute"), PERCENT),
        Column("Exposed communication (%)", _mean("shares", "exposed_communication"), PERCENT),
        Column("Exposed copies (%)", _mean("shares", "exposed_copy"), PERCENT),
        Column("Idle (%)", _mean("shares", "idle"), PERCENT),
        Column("Overlap (%)", _mean("overlap"), PERCENT),
        Column("Bubble (%)", _mean("bubble"), PERCENT),
        Column("TFLOPs", _mean("tflops", "products"), decimals=2),
        Column("MFU (%)", _mean("mfu"), PERCENT),
        Column("J/sample", "joules_per_sample", decimals=3),
        Column("Checkpoint (GB)", _mean("save_bytes"), GIGABYTES, 3),
        Column("Checkpoint (s)", _mean("save_ns"), lambda ns: in_unit(ns, NS_PER_S), 2),
    )
    note = (
        "Compute, exposed communication, exposed copies and idle are shares of the profiled step on GPUs. Overlap is "
        "the share of communication that computation hides, bubble the idle share of a pipeline's stages. TFLOPs of a "
        "device count the model's own products and convolutions; MFU is by `megatron_core`."
    )
    section = Table("Where the time goes", "", columns).section([row for row in rows if row.measurements])
    absent = {column.heading for place, column in enumerate(columns) if any(row[place] is None for row in section.rows)}
    reasons = (reason for heading, reason in _WHY_ABSENT.items() if heading in absent)
    return replace(section, notes=(note, *reasons))


def _mean(name: str, part: str = "") -> Callable[[BenchRow], float | None]:
    return lambda row: row.mean(name, part)


def _describe_difference(row: BenchRow) -> Cell:
    if row.first is None and row.measurements:
        return "first row"
    differs = row.against_first.differs if row.against_first else None
    return None if differs is None else "yes" if differs else "no"


def describe_memory(memory_bytes: Sequence[int]) -> Cell:
    """The memory of each device as the seeds write it: one figure, or ``5.90 + 3.40`` where devices differ.

    >>> describe_memory([5_900_000_000, 3_400_000_000]), describe_memory([7_700_000_000] * 4)
    ('5.90 + 3.40', '7.70 each')
    """
    figures = [f"{device / GB:.2f}" for device in memory_bytes]
    if figures[1:] and len(set(figures)) == 1:
        return f"{figures[0]} each"
    return " + ".join(figures) or None
