"""The rows of a benchmark as tables for people and as data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from perfscope.bench.rows import BenchRow, Ratio, compare_rows
from perfscope.constants import GB, NS_PER_S
from perfscope.report import Cell, Column, Json, Section, in_unit, milliseconds, percent

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


def name_rows(rows: Sequence[BenchRow]) -> dict[str, str]:
    """A short name of each row: the strategy, its devices, and its options where rows differ in them."""
    precisions = {row.variant.precision for row in rows}
    return {row.variant.key: _name(row, with_precision=len(precisions) > 1) for row in rows}


def rows_data(rows: Sequence[BenchRow], first: BenchRow | None) -> list[Json]:
    """The rows for JSON."""
    return [_row_data(row, first) for row in rows]


def comparison_section(rows: Sequence[BenchRow], first: BenchRow | None, *, is_cpu: bool) -> Section:
    """The seeds' table: throughput, speed-up, efficiency, memory, utilisation, loss, accuracy."""
    columns = (
        Column("Strategy"),
        Column("Devices"),
        Column("Options"),
        Column("Samples/s"),
        Column("95 % interval"),
        Column("Speed-up", 2),
        Column("Efficiency (%)"),
        Column("Differs"),
        Column("Memory of a process (GB)" if is_cpu else "Memory of a device (GB)"),
        Column("Change (%)"),
        Column("Utilisation (%)"),
        Column("Loss", 4),
        Column("Accuracy", 2),
        Column("Notes"),
    )
    notes = [
        "Samples/s: of all devices, from the step time. The interval is over a row's trainings; n/a with one.",
        "Differs: whether the speed truly differs from the first row's, at 95 %; n/a with one training.",
        "Memory: the peak of the processes' memory." if is_cpu else "Memory: the peak of tensors in the allocator.",
        "Change: of the fullest device's memory against the first row. Loss, accuracy: mean of the last quarter.",
    ]
    if any(row.mean("util_percent") is not None for row in rows):
        notes.append("Utilisation: NVML's mean between the first and the last step, the profiled one's pause included.")
    return Section("Strategies", columns, tuple(_compared(row, first) for row in rows), tuple(notes))


def time_section(rows: Sequence[BenchRow]) -> Section:
    """Where the time of a step goes, what it costs, and what a checkpoint costs."""
    measured = [row for row in rows if row.trainings]
    names = name_rows(rows)
    columns = (
        Column("Row"),
        Column("Step (ms)", 2),
        Column("Compute (%)"),
        Column("Exposed communication (%)"),
        Column("Exposed copies (%)"),
        Column("Idle (%)"),
        Column("Overlap (%)"),
        Column("Bubble (%)"),
        Column("TFLOPs", 2),
        Column("MFU (%)"),
        Column("J/sample", 3),
        Column("Checkpoint (GB)", 3),
        Column("Checkpoint (s)", 2),
    )
    body = tuple(_timed(row, names[row.variant.key]) for row in measured)
    note = (
        "Compute, exposed communication, exposed copies and idle are shares of the profiled step on GPUs. Overlap is "
        "the share of communication that computation hides, bubble the idle share of a pipeline's stages. TFLOPs of a "
        "device count the model's own products and convolutions; MFU is by `megatron_core`."
    )
    absent = {column.heading for place, column in enumerate(columns) if any(line[place] is None for line in body)}
    reasons = (reason for heading, reason in _WHY_ABSENT.items() if heading in absent)
    return Section("Where the time goes", columns, body, (note, *reasons))


def _compared(row: BenchRow, first: BenchRow | None) -> tuple[Cell, ...]:
    ratio = compare_rows(row, first) if first is not None else None
    interval = row.interval
    return (
        row.variant.facts.title,
        row.variant.nproc,
        _options(row),
        row.samples_per_s,
        f"{interval[0]:.1f} to {interval[1]:.1f}" if interval else None,
        ratio.value if ratio else None,
        percent(_efficiency(row, first)),
        "first row" if row is first else _verdict(ratio),
        describe_memory(row.memory_bytes),
        percent(_memory_change(row, first)),
        row.mean("util_percent"),
        row.mean("last_loss"),
        row.mean("accuracy"),
        "; ".join(row.notes) or "",
    )


def _timed(row: BenchRow, name: str) -> tuple[Cell, ...]:
    save_ns, save_bytes = row.mean("save_ns"), row.mean("save_bytes")
    return (
        name,
        milliseconds(row.step_s),
        percent(row.mean_of("shares", "compute")),
        percent(row.mean_of("shares", "exposed_communication")),
        percent(row.mean_of("shares", "exposed_copy")),
        percent(row.mean_of("shares", "idle")),
        percent(row.mean("overlap")),
        percent(row.mean("bubble")),
        row.mean_of("tflops", "products"),
        percent(row.mean("mfu")),
        row.joules_per_sample,
        in_unit(save_bytes, GB),
        in_unit(save_ns, NS_PER_S),
    )


def _row_data(row: BenchRow, first: BenchRow | None) -> Json:
    ratio = compare_rows(row, first) if first is not None else None
    return {
        "name": row.variant.key,
        **asdict(row.variant),
        "title": row.variant.facts.title,
        "trainings": len(row.trainings),
        "reason": row.reason,
        "step_s": row.step_s,
        "samples_per_s": row.samples_per_s,
        "samples_per_s_interval": list(row.interval) if row.interval else None,
        "tokens_per_s": row.tokens_per_s,
        "against_first": ratio.data() if ratio else None,
        "efficiency": _efficiency(row, first),
        "memory_bytes": list(row.memory_bytes),
        "memory_change": _memory_change(row, first),
        "util_percent": row.mean("util_percent"),
        "first_loss": row.mean("first_loss"),
        "last_loss": row.mean("last_loss"),
        "accuracy": row.mean("accuracy"),
        "joules_per_sample": row.joules_per_sample,
        "measurements": [training.data() for training in row.trainings],
        "notes": list(row.notes),
    }


def describe_memory(memory_bytes: Sequence[int]) -> Cell:
    """The memory of each device as the seeds write it: one figure, or ``5.90 + 3.40`` where devices differ.

    >>> describe_memory([5_900_000_000, 3_400_000_000]), describe_memory([7_700_000_000] * 4)
    ('5.90 + 3.40', '7.70 each')
    """
    figures = [f"{device / GB:.2f}" for device in memory_bytes]
    if figures[1:] and len(set(figures)) == 1:
        return f"{figures[0]} each"
    return " + ".join(figures) or None


def _efficiency(row: BenchRow, first: BenchRow | None) -> float | None:
    if first is None or row.samples_per_s is None or not first.samples_per_s:
        return None
    return row.samples_per_s / row.variant.nproc / (first.samples_per_s / first.variant.nproc)


def _memory_change(row: BenchRow, first: BenchRow | None) -> float | None:
    if first is None or row is first or row.largest_memory_bytes is None or not first.largest_memory_bytes:
        return None
    return row.largest_memory_bytes / first.largest_memory_bytes - 1


def _verdict(ratio: Ratio | None) -> Cell:
    if ratio is None or ratio.differs is None:
        return None
    return "yes" if ratio.differs else "no"


def _options(row: BenchRow) -> str:
    return ", ".join((row.variant.precision, *row.variant.changes))


def _name(row: BenchRow, *, with_precision: bool) -> str:
    variant = row.variant
    options = [*([variant.precision] if with_precision else []), *variant.changes]
    return f"{variant.strategy} x {variant.nproc}{' ' if options else ''}{' '.join(options)}"


def sections_of(rows: Sequence[BenchRow], first: BenchRow | None, *, is_cpu: bool) -> Iterator[Section]:
    """All tables, in the order of a first reading."""
    yield comparison_section(rows, first, is_cpu=is_cpu)
    if first is None:
        return
    yield time_section(rows)
