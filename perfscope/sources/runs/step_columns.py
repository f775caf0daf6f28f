"""The steps of one process: its records in columns, the table that they give, and what the host did in each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from perfscope import wire
from perfscope.sources.runs.records import decode_step, read_segments
from perfscope.tables.columns import Bool, Float64, Int64, MaskedInt64, join, masked, present
from perfscope.tables.steps import FEWEST_STEPS, HostTimes, Steps
from perfscope.wire.host import DeviceProbe, HostWaits, HostWork
from perfscope.wire.records import Span, StepRecord

_LISTS = {"host": len(HostWork._fields), "waits": len(HostWaits._fields)}
_NUMBERS = (
    "step", "end_ns", "wall_ns", "micro_batches", "samples", "tokens", "global_samples", "data_wait_ns", "save_ns",
    "no_grad_ns", "gap_ns", "hook_ns", "iteration", "memory_peak_bytes", "alloc_retries", "device_allocs",
    "launcher_delay_ns",
)  # fmt: skip
_TEXTS = ("source", "window")
_FLAGS = ("skipped", "draining")
#: Numbers that every step has, or that are no column of ``Steps``.
_OF_STEPS = ("step", "end_ns", "launcher_delay_ns")
#: A step is long where it takes longer than the unread ones before it by more than this part of their mean.
_LONG_SHARE = 1 / 8


@dataclass(frozen=True, slots=True, eq=False)
class StepColumns:
    """The steps of one process, in their order; columns are fields of ``StepRecord``.

    Columns of numbers are there as far as any step has them; those of lists are ``host.0`` and so on. Spans have the
    row that they were written with.
    """

    rows: int
    numbers: Mapping[str, MaskedInt64]
    texts: Mapping[str, npt.NDArray[np.str_]]
    flags: Mapping[str, Bool]
    spans: tuple[tuple[int, Span], ...] = ()
    probes: tuple[DeviceProbe, ...] = ()

    def number(self, name: str) -> MaskedInt64:
        """A column of numbers; all masked where no step has them."""
        column = self.numbers.get(name)
        return masked([None] * self.rows) if column is None else column

    def whole(self, name: str) -> Int64:
        """A column of numbers that every step has."""
        return np.asarray(np.ma.getdata(self.number(name)), np.int64)


def read_step_columns(folder: Path, damage: list[str]) -> StepColumns:
    """All steps in the folder of a rank; ``damage`` gets a text for each file and line that cannot be read."""
    return _join(list(map(from_records, read_segments(folder, wire.STEPS_FILE, decode_step, damage))))


def from_records(records: Sequence[StepRecord]) -> StepColumns:
    """The same as columns."""
    columns = {name: _to_column([getattr(record, name) for record in records]) for name in _NUMBERS}
    for name, places in _LISTS.items():
        lists = [getattr(record, name) for record in records]
        if any(lists):
            for index in range(places):
                columns[f"{name}.{index}"] = _to_column(
                    [values[index] if index < len(values or ()) else None for values in lists]
                )
    return StepColumns(
        rows=len(records),
        numbers={name: column for name, column in columns.items() if column is not None},
        texts={name: np.asarray([getattr(record, name) or "" for record in records], np.str_) for name in _TEXTS},
        flags={name: np.asarray([bool(getattr(record, name)) for record in records], np.bool_) for name in _FLAGS},
        spans=tuple((row, span) for row, record in enumerate(records) for span in record.spans or ()),
        probes=tuple(record.probe for record in records if record.probe is not None),
    )


def _to_column(values: Sequence[int | None]) -> MaskedInt64 | None:
    if None not in values:
        return np.ma.MaskedArray(np.asarray(values, np.int64)) if values else None
    column = masked(values)
    return column if present(column).any() else None


def _join(parts: Sequence[StepColumns]) -> StepColumns:
    filled = [part for part in parts if part.rows]
    if len(filled) <= 1:
        return filled[0] if filled else from_records([])
    first_rows = np.cumsum([0, *(part.rows for part in filled)]).tolist()
    names = dict.fromkeys(name for part in filled for name in part.numbers)
    return StepColumns(
        rows=first_rows[-1],
        numbers={name: join([part.number(name) for part in filled]) for name in names},
        texts={name: _join_texts([part.texts[name] for part in filled], first_rows[-1]) for name in _TEXTS},
        flags={name: np.concatenate([part.flags[name] for part in filled]) for name in _FLAGS},
        spans=tuple(
            (first + row, span) for first, part in zip(first_rows, filled, strict=False) for row, span in part.spans
        ),
        probes=tuple(probe for part in filled for probe in part.probes),
    )


def _join_texts(parts: Sequence[npt.NDArray[np.str_]], rows: int) -> npt.NDArray[np.str_]:
    """One after the other; a text that all of a million rows have is held once."""
    first = parts[0][0]
    if all((part == first).all() for part in parts):
        return np.broadcast_to(np.asarray(first), rows)
    return np.concatenate(parts)


def to_steps(rank: int, attempt: int, records: Sequence[StepRecord] | StepColumns) -> Steps:
    """The steps of one process.

    Time without gradients that most steps have, as in reinforcement learning, is a part of the step.
    """
    columns = records if isinstance(records, StepColumns) else from_records(records)
    step, wall_ns, no_grad_ns = columns.whole("step"), columns.number("wall_ns"), columns.number("no_grad_ns")
    if _is_in_most_steps(no_grad_ns, step):
        own_ns = np.ma.getdata(wall_ns) + np.ma.filled(no_grad_ns, 0)
        wall_ns = np.ma.MaskedArray(own_ns, mask=np.ma.getmaskarray(wall_ns))
        no_grad_ns = columns.number("")
    others: dict[str, Any] = {name: columns.number(name) for name in _NUMBERS if name not in _OF_STEPS}
    others |= {**columns.texts, **columns.flags, "wall_ns": wall_ns, "no_grad_ns": no_grad_ns}
    return Steps(
        rank=rank,
        attempt=attempt,
        step=step,
        end_ns=columns.whole("end_ns"),
        stalled_elsewhere=np.zeros(columns.rows, np.bool_),
        compile_ns=_span_ns(columns, wire.COMPILATION),
        garbage_ns=_span_ns(columns, wire.GARBAGE),
        host=to_host_times(columns),
        probes=columns.probes,
        **others,
    )


def _is_in_most_steps(no_grad_ns: MaskedInt64, step: Int64) -> bool:
    later = present(no_grad_ns)[step > 1]
    count = int(later.sum())
    return count >= FEWEST_STEPS and count > len(later) / 2


def _span_ns(columns: StepColumns, kind: str) -> MaskedInt64:
    times = np.zeros(columns.rows, np.int64)
    for row, span in columns.spans:
        if span.kind == kind:
            times[row] += span.end_ns - span.start_ns
    return np.ma.MaskedArray(times, mask=times == 0)


def to_host_times(columns: StepColumns) -> HostTimes | None:
    """What the host did in each step of a process; None where it was not recorded.

    A read counts for all steps since the previous one. The sums are exact; the share of each step is an estimate. Steps
    of one read share in proportion to their durations. Where the last step is longer than the others, those get the
    rate of the latest earlier read that ended with a usual step. The last step gets the rest, which exceeds its usual
    time by at most its excess duration. Steps around missing ones, or a clock that jumps, are masked.
    """
    if "host.0" not in columns.numbers:
        return None
    cpu_ns, delay_ns, system_ns, faults, preempted, steps = (
        columns.number(f"host.{index}") for index in range(len(HostWork._fields))
    )
    launcher_ns = columns.number("launcher_delay_ns")
    waits = [columns.number(f"waits.{index}") for index in range(len(HostWaits._fields))]
    # Records of earlier versions state no number of steps: each counts for its own.
    counts = np.maximum(np.ma.filled(steps, 1), 1)
    if not (counts > 1).any():
        return HostTimes(cpu_ns, delay_ns, system_ns, faults, preempted, launcher_ns, *waits)
    blocks = _find_blocks(columns.whole("step"), columns.whole("end_ns"), present(cpu_ns), counts)
    spread_cpu = blocks.spread(cpu_ns, blocks.last_ns)
    ran_ns = np.ma.getdata(spread_cpu)[blocks.last]
    return HostTimes(
        spread_cpu,
        blocks.spread(delay_ns, np.maximum(blocks.last_ns - ran_ns, 0)),
        blocks.spread(system_ns, ran_ns),
        blocks.spread(faults),
        blocks.spread(preempted),
        _spread_known(blocks, launcher_ns),
        *waits,
    )


def _spread_known(blocks: _StepBlocks, delay_ns: MaskedInt64) -> MaskedInt64:
    """Spread what was read in most processes only, and there from when its thread was found."""
    if not present(delay_ns).any():
        return delay_ns
    return blocks.spread(np.ma.MaskedArray(np.ma.filled(delay_ns, 0)), blocks.last_ns)


@dataclass(frozen=True, slots=True, eq=False)
class _StepBlocks:
    """Steps that were read together; all arrays but ``rows`` and ``shares`` have one value a block.

    Attributes:
        rows: The rows of all blocks, one after the other, and ``shares`` what part of its block's unread steps came
            before the end of each. In them ``firsts`` are where blocks begin.
        last: The row that was read, the last one of the block, which took ``last_ns``, and the others ``unread_ns``.
        rated: The block at whose rate the unread steps did their work: itself, where its last step is like the others.
    """

    steps: int
    rows: Int64
    shares: Float64
    firsts: Int64
    last: Int64
    counts: Int64
    unread_ns: Int64
    last_ns: Int64
    rated: Int64

    def spread(self, column: MaskedInt64, most: Int64 | None = None) -> MaskedInt64:
        """Spread what was counted in the rows that were read over the steps of its block.

        Of a time, the last step of each block can have at most ``most``, and the others their duration.
        """
        totals = np.ma.getdata(column)[self.last]
        rates = (totals / np.maximum(self.unread_ns + self.last_ns, 1))[self.rated]
        unread = np.minimum(np.floor(rates * self.unread_ns), totals).astype(np.int64)
        if most is not None:
            # A time can be more than usual in the last step by as much as that was longer; the rest is of all.
            usual_ns = np.minimum(self.unread_ns // np.maximum(self.counts - 1, 1), self.last_ns)
            least = np.minimum(np.floor(rates * usual_ns).astype(np.int64), most)
            last = np.clip(totals - unread, least, np.minimum(least + self.last_ns - usual_ns, most))
            unread = np.clip(totals - last, 0, np.minimum(self.unread_ns, totals))
        # Shares of what came before the end of each step, so that rounding adds up.
        sums = np.floor(np.repeat(unread, self.counts) * self.shares).astype(np.int64)
        sums[self.firsts + self.counts - 1] = totals
        values, absent = np.zeros(self.steps, np.int64), np.ones(self.steps, np.bool_)
        values[self.rows], absent[self.rows] = np.diff(sums, prepend=0), False
        values[self.rows[self.firsts]] = sums[self.firsts]
        return np.ma.MaskedArray(values, mask=absent)


def _find_blocks(step: Int64, end_ns: Int64, is_read: Bool, counts: Int64) -> _StepBlocks:
    last = np.flatnonzero(is_read)
    stated = counts[last]
    # A read counts for no step before the read that came before it.
    sizes = np.minimum(stated, np.diff(last, prepend=-1))
    before = last - sizes
    went_back = np.cumsum(np.diff(end_ns, prepend=end_ns[0]) <= 0)
    follows = (before >= 0) & (step[last] - step[before] == sizes) & (went_back[last] == went_back[before])
    chosen = (stated == 1) | follows
    last, sizes, before = last[chosen], sizes[chosen], before[chosen]
    unread_ns = np.where(sizes > 1, end_ns[last - 1] - end_ns[before], 0)
    last_ns = np.where(last > 0, end_ns[last] - end_ns[last - 1], 0)
    firsts = np.cumsum(sizes) - sizes
    rows = np.arange(int(sizes.sum())) + np.repeat(last + 1 - sizes - firsts, sizes)
    ran_ns = end_ns[rows] - np.repeat(end_ns[last - 1] - unread_ns, sizes)
    shares = ran_ns / np.repeat(np.maximum(unread_ns, 1), sizes)
    rated = _find_rated(sizes, unread_ns, last_ns)
    return _StepBlocks(len(end_ns), rows, shares, firsts, last, sizes, unread_ns, last_ns, rated)


def _find_rated(sizes: Int64, unread_ns: Int64, last_ns: Int64) -> Int64:
    """For each block the last one that ended with a usual step, or else the first such one, or else itself."""
    places = np.arange(len(sizes))
    means: Float64 = unread_ns / np.maximum(sizes - 1, 1)
    known = np.maximum.accumulate(np.where(sizes > 1, places, -1))
    usual = (known >= 0) & (last_ns > 0) & (last_ns <= means[known] * (1 + _LONG_SHARE))
    if not usual.any():
        return places
    rated = np.maximum.accumulate(np.where(usual, places, -1))
    return np.where(rated < 0, int(np.argmax(usual)), rated)
