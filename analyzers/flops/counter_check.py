"""The utilisation that the GPUs' own counters state: how long tensor cores were active, times the clock.

An active tensor core does the same number of operations in each cycle, by their type: activity x clock / clock of the
datasheet's peak is the share of the peak that tensor cores were busy for. It counts what ran: recomputation,
padding of tiles and of the vocabulary too, and no product that ran elsewhere. (OFU, arXiv 2605.20799.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.shared.gpu_steps import UsedGpu, used_gpus
from perfscope.analyzers.shared.step_selection import find_undisturbed
from perfscope.errors import MissingInput
from perfscope.models.hardware import Gpu
from perfscope.report import Column, Json, Row, Section, percent
from perfscope.tables.columns import Int64, present
from perfscope.tables.run import Run

_PPM = 1_000_000
#: So much of a window of the counters lies in undisturbed steps.
_COVERED = 0.95
#: A difference in points that is worth an explanation.
AGREEMENT = 0.02


@dataclass(frozen=True, slots=True)
class CountedActivity:
    """What the counters of one GPU say of its undisturbed steps.

    Attributes:
        ranks: The ranks that trained on it.
        windows: Windows of the counters in undisturbed steps.
        tensor_activity: Share of cycles in which tensor cores were active.
        sm_activity, sm_occupancy: Shares of multiprocessors and of their warps; None where not reported.
        clock_mhz: Mean clock meanwhile; None where not sampled.
        utilisation: Share of the dense peak; None where the peak's clock is unknown.
    """

    ranks: tuple[int, ...]
    windows: int
    tensor_activity: float
    sm_activity: float | None
    sm_occupancy: float | None
    clock_mhz: float | None
    utilisation: float | None

    def data(self) -> Json:
        """Its value in JSON."""
        return {
            "ranks": list(self.ranks),
            "windows": self.windows,
            "tensor_activity": self.tensor_activity,
            "sm_activity": self.sm_activity,
            "sm_occupancy": self.sm_occupancy,
            "clock_mhz": self.clock_mhz,
            "utilisation": self.utilisation,
        }


@dataclass(frozen=True, slots=True)
class CounterCheck:
    """The utilisation by counters beside the one by operations.

    Attributes:
        gpus: What the counters of each GPU say.
        utilisation: The mean over the GPUs; None where one has none.
        counted: The share of the peak by operations that ran, recomputation included (HFU); None where unknown.
        reason: Why there is none; empty where there is one.
    """

    gpus: tuple[CountedActivity, ...] = ()
    utilisation: float | None = None
    counted: float | None = None
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """By how much the counters are above the operations, as a share of the peak."""
        return None if self.utilisation is None or self.counted is None else self.utilisation - self.counted

    def data(self) -> Json:
        """Its value in JSON."""
        return {
            "utilisation": self.utilisation,
            "counted": self.counted,
            "difference": self.difference,
            "reason": self.reason or None,
            "gpus": [gpu.data() for gpu in self.gpus],
        }

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU; nothing where the counters were not sampled."""
        if not self.gpus:
            return ()
        rows: tuple[Row, ...] = tuple(
            (
                ", ".join(map(str, gpu.ranks)),
                percent(gpu.tensor_activity),
                percent(gpu.sm_activity),
                percent(gpu.sm_occupancy),
                gpu.clock_mhz,
                percent(gpu.utilisation),
                gpu.windows,
            )
            for gpu in self.gpus
        )
        columns = (
            Column("Rank"),
            Column("Tensor cores active (%)", 2),
            Column("SMs active (%)", 2),
            Column("SM occupancy (%)", 2),
            Column("SM clock (MHz)", 0),
            Column("Share of the peak (%)", 2),
            Column("Samples", 0),
        )
        return (Section("Tensor cores by NVML's counters", columns, rows, tuple(self._notes())),)

    def _notes(self) -> Sequence[str]:
        notes = ["Share of the peak: tensor cores active x clock / clock of the datasheet's peak."]
        if self.reason:
            notes.append(f"No share: {self.reason}.")
        difference = self.difference
        if difference is None or self.counted is None:
            return notes
        points = f"{abs(100 * difference):.1f} points"
        if abs(difference) <= AGREEMENT:
            notes.append(f"By operations it is {percent(self.counted):.2f} %: they agree within {points}.")
        elif difference > 0:
            notes.append(
                f"By operations it is {percent(self.counted):.2f} %, {points} less: tensor cores also work on the "
                "padding of tiles and vocabulary, on the masked half of attention, on recomputation that nobody saw."
            )
        else:
            notes.append(
                f"By operations it is {percent(self.counted):.2f} %, {points} more: operations were counted that did "
                "not run on tensor cores of this type (products in fp8 take half the cycles, in fp32 other units)."
            )
        return notes


def check_by_counters(run: Run, gpu: Gpu | None, counted: float | None) -> CounterCheck:
    """Compare the counters of a run's GPUs in undisturbed steps with the share that was counted."""
    try:
        used = used_gpus(run)
    except MissingInput as missing:
        return CounterCheck(reason=missing.problem)
    if not any("tensor_activity_ppm" in each.samples.gpm for each in used) or not any(
        present(each.samples.gpm["tensor_activity_ppm"]).any() for each in used
    ):
        return CounterCheck(
            counted=counted,
            reason="NVML's GPM was not sampled: `perfscope profile --gpm` does where Hopper or newer permits it",
        )
    begins, ends = _undisturbed_intervals(run)
    clock = None if gpu is None else gpu.tensor_clock_mhz
    activities = [activity for each in used if (activity := _measure(each, begins, ends, clock)) is not None]
    if not activities:
        return CounterCheck(counted=counted, reason="no sample of NVML's GPM lies in undisturbed steps")
    shares = [activity.utilisation for activity in activities]
    stated = [share for share in shares if share is not None]
    reason = "" if clock is not None else "the clock of the datasheet's peak is unknown for this GPU"
    mean = sum(stated) / len(stated) if stated and len(stated) == len(shares) else None
    return CounterCheck(tuple(activities), mean, counted, reason)


def _undisturbed_intervals(run: Run) -> tuple[Int64, Int64]:
    """Begin and end of the stretches of undisturbed steps, on the host's monotonic clock."""
    times = find_undisturbed(run.steps).times_ns()
    table = run.steps[0]
    rows = [row for row, step in enumerate(table.step.tolist()) if step in times]
    ends = table.end_ns[rows]
    lengths = np.array([times[int(table.step[row])] for row in rows], np.int64)
    return ends - lengths, ends


def _measure(used: UsedGpu, begins: Int64, ends: Int64, peak_clock_mhz: float | None) -> CountedActivity | None:
    """The means over the windows that lie in undisturbed steps; None without one."""
    samples = used.samples
    columns = samples.gpm
    is_read = present(columns["tensor_activity_ppm"]) & present(columns["gpm_from_ns"])
    from_ns, to_ns = (columns[name].data[is_read] for name in ("gpm_from_ns", "gpm_to_ns"))
    covered = _covered(from_ns, to_ns, begins, ends) >= _COVERED * (to_ns - from_ns)
    if not covered.any():
        return None
    weights = (to_ns - from_ns)[covered].astype(np.float64)
    rows = np.flatnonzero(is_read)[covered]

    def mean(name: str) -> float | None:
        column = columns[name]
        if not present(column)[rows].all():
            return None
        return float(np.average(column.data[rows], weights=weights)) / _PPM

    tensor = mean("tensor_activity_ppm")
    assert tensor is not None
    clock = _mean_clock(used, from_ns[covered], to_ns[covered])
    return CountedActivity(
        ranks=used.ranks,
        windows=len(rows),
        tensor_activity=tensor,
        sm_activity=mean("sm_activity_ppm"),
        sm_occupancy=mean("sm_occupancy_ppm"),
        clock_mhz=clock,
        utilisation=tensor * clock / peak_clock_mhz if clock and peak_clock_mhz else None,
    )


def _covered(from_ns: Int64, to_ns: Int64, begins: Int64, ends: Int64) -> Int64:
    """How much of each window lies in steps."""
    lower = np.maximum(from_ns[:, None], begins[None, :])
    upper = np.minimum(to_ns[:, None], ends[None, :])
    covered: Int64 = np.maximum(upper - lower, 0).sum(axis=1)
    return covered


def _mean_clock(used: UsedGpu, from_ns: Int64, to_ns: Int64) -> float | None:
    samples = used.samples
    between = (samples.t_ns[:, None] >= from_ns) & (samples.t_ns[:, None] <= to_ns)
    inside = between.any(axis=1)
    clocks = samples.sm_clock_mhz[inside & present(samples.sm_clock_mhz)]
    return float(clocks.mean()) if len(clocks) else None
