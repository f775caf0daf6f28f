"""What the host did in each step, from counters that were read at the end of some.

A read counts for all steps since the previous one. The sums are exact; the share of each step is an estimate. Steps of
one read share in proportion to their durations. Where the last step is longer than the others, those get the rate of
the latest earlier read that ended with a usual step. The last step gets the rest, which exceeds its usual time by at
most its excess duration. This suffices to find late steps: a step that was not read took no longer than usual.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfscope.sources.runs.step_columns import StepColumns
from perfscope.tables.columns import Bool, Float64, Int64, MaskedInt64, present
from perfscope.tables.steps import HostTimes
from perfscope.wire.host import HostWaits, HostWork

#: A step is long where it takes longer than the unread ones before it by more than this part of their mean.
_LONG_SHARE = 1 / 8


def to_host_times(columns: StepColumns) -> HostTimes | None:
    """What the host did in each step of a process; None where it was not recorded.

    Reads before or behind which steps are missing, or the clock jumps, are masked with the steps they count for.
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


def _spread_known(blocks: _Blocks, delay_ns: MaskedInt64) -> MaskedInt64:
    """Spread what was read in most processes only, and there from when its thread was found."""
    if not present(delay_ns).any():
        return delay_ns
    return blocks.spread(np.ma.MaskedArray(np.ma.filled(delay_ns, 0)), blocks.last_ns)


@dataclass(frozen=True, slots=True, eq=False)
class _Blocks:
    """Steps that were read together; all arrays but ``rows`` and ``shares`` have one value a block.

    Attributes:
        steps: How many steps the process has.
        rows: The rows of all blocks, one after the other, and ``shares`` what part of its block's unread steps came
            before the end of each.
        firsts: Where the first row of each block stands among these.
        last: The row that was read, the last one of the block.
        counts: How many rows the block has.
        unread_ns: How long the others took together; 0 where there are none.
        last_ns: How long the last one took.
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
        """Spread what was counted over the steps of its block.

        Args:
            column: What was counted, in the rows that were read.
            most: Of a time, how much the last step of each block can have; the others are as long as they are, too.
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


def _find_blocks(step: Int64, end_ns: Int64, is_read: Bool, counts: Int64) -> _Blocks:
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
    return _Blocks(len(end_ns), rows, shares, firsts, last, sizes, unread_ns, last_ns, rated)


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
