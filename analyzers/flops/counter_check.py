"""The utilisation that the GPUs' own counters state: how long tensor cores were active, times the clock.

An active tensor core does the same number of operations of a type in each cycle. So activity x clock / clock of the
datasheet's peak is the share of the peak that ran. It counts recomputation and the padding of tiles and of the
vocabulary, but no product that ran elsewhere. (OFU, arXiv 2605.20799.)

Operations and counters are those of the same windows. While a GPU is at its power limit, active cycles at the clock
that NVML states amount to more than the operations that ran; below the limit they do not. How much was measured with
products of known size (``capped_rate`` of a GPU).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.shared.gpu_steps import UsedGpu, used_gpus
from perfscope.analyzers.shared.step_selection import find_undisturbed, job_times_ns
from perfscope.errors import MissingInput
from perfscope.models.hardware import Gpu
from perfscope.report import Column, Json, Row, Section, percent
from perfscope.tables.columns import Int64, present
from perfscope.tables.run import Run

_PPM = 1_000_000
#: NVML's bit for a clock that the power limit reduces (``nvmlClocksThrottleReasonSwPowerCap``).
_POWER_LIMIT = 0x4
#: So much of a window of the counters lies in steady-state steps.
_COVERED = 0.95
#: A difference in points that is worth an explanation.
AGREEMENT = 0.02


@dataclass(frozen=True, slots=True)
class CountedOperations:
    """The operations of a step as a share of what the peak allows in its time.

    Attributes:
        model: What the model needs: half of the attention matrix, no recomputation.
        recomputed: What ran beyond that.
        step_ns: The time of this step.
    """

    model: float
    recomputed: float
    step_ns: int


@dataclass(frozen=True, slots=True)
class CountedActivity:
    """What the counters of one GPU say of its steady-state steps.

    Attributes:
        ranks: The ranks that trained on it.
        windows: Windows of the counters in these steps.
        steps: How many steps they hold, whole ones and parts.
        duration_ns: How long they are together.
        tensor_activity: Share of cycles in which tensor cores were active.
        sm_activity, sm_occupancy: Shares of multiprocessors and of their warps; None where not reported.
        clock_mhz: Mean clock meanwhile; None where not sampled.
        power_capped: Share of the samples meanwhile at which the power limit reduced the clock; None where not sampled.
        utilisation: Share of the dense peak; None where the peak's clock is unknown.
    """

    ranks: tuple[int, ...]
    windows: int
    steps: float
    duration_ns: int
    tensor_activity: float
    sm_activity: float | None
    sm_occupancy: float | None
    clock_mhz: float | None
    power_capped: float | None
    utilisation: float | None

    def data(self) -> Json:
        """Its value in JSON."""
        return {
            "ranks": list(self.ranks),
            "windows": self.windows,
            "steps": self.steps,
            "duration_ns": self.duration_ns,
            "tensor_activity": self.tensor_activity,
            "sm_activity": self.sm_activity,
            "sm_occupancy": self.sm_occupancy,
            "clock_mhz": self.clock_mhz,
            "power_capped": self.power_capped,
            "utilisation": self.utilisation,
        }


@dataclass(frozen=True, slots=True)
class CounterCheck:
    """The utilisation by counters beside the one by operations.

    Attributes:
        gpus: What the counters of each GPU say.
        utilisation: The mean over the GPUs; None where one has none.
        counted: The share of the peak by operations that ran, recomputation included (HFU), in the same windows where
            there are any; None where unknown.
        recomputed: What recomputation has of it.
        capped_rate: At the power limit, operations as a share of what active cycles amount to; None where that was not
            measured.
        reason: Why there is none; empty where there is one.
    """

    gpus: tuple[CountedActivity, ...] = ()
    utilisation: float | None = None
    counted: float | None = None
    recomputed: float = 0.0
    capped_rate: float | None = None
    reason: str = ""

    @property
    def difference(self) -> float | None:
        """By how much the counters are above the operations, as a share of the peak."""
        return None if self.utilisation is None or self.counted is None else self.utilisation - self.counted

    @property
    def by_power_limit(self) -> float | None:
        """What the power limit has of the difference."""
        capped = [gpu.power_capped for gpu in self.gpus]
        if self.capped_rate is None or self.difference is None or self.counted is None or None in capped:
            return None
        share = sum(each or 0.0 for each in capped) / len(capped)
        return share * (self.counted / self.capped_rate - self.counted)

    @property
    def unexplained(self) -> float | None:
        """What is left of the difference."""
        return None if self.difference is None else self.difference - (self.by_power_limit or 0.0)

    def data(self) -> Json:
        """Its value in JSON."""
        return {
            "utilisation": self.utilisation,
            "counted": self.counted,
            "recomputed": self.recomputed if self.counted is not None else None,
            "difference": self.difference,
            "by_power_limit": self.by_power_limit,
            "unexplained": self.unexplained,
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
        left = self.unexplained
        if left is None or self.counted is None:
            return notes
        recomputed = f", {100 * self.recomputed:.1f} points of it recomputed" if self.recomputed else ""
        notes.append(f"By operations it is {percent(self.counted):.2f} % in the same windows{recomputed}.")
        if self.by_power_limit and self.capped_rate is not None:
            notes.append(
                f"{100 * self.by_power_limit:.1f} points of the difference come from the power limit: while it reduces "
                f"the clock, this GPU does {percent(self.capped_rate):.0f} % of the operations that active cycles at "
                "the stated clock amount to, as products of known size show."
            )
        points = f"{abs(100 * left):.1f} points"
        if abs(left) <= AGREEMENT:
            notes.append(f"Counters and operations agree within {points}.")
        elif left > 0:
            notes.append(
                f"Counters are {points} above that: tensor cores also work on the "
                "padding of tiles and vocabulary, on the masked half of attention, on recomputation that nobody saw."
            )
        else:
            notes.append(
                f"Counters are {points} below that: operations were counted that did not run, as the last product "
                "of a layer that torch's checkpoint leaves out (only --shapes shows it), or not on tensor cores of "
                "this type (products in fp8 take half the cycles, in fp32 other units)."
            )
        return notes


def check_by_counters(run: Run, gpu: Gpu | None, operations: CountedOperations | None) -> CounterCheck:
    """Compare the counters of a run's GPUs in steady-state steps with the operations of the same time."""
    counted = None if operations is None else operations.model + operations.recomputed
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
    begins, ends = _steady_intervals(run)
    clock = None if gpu is None else gpu.tensor_clock_mhz
    activities = [activity for each in used if (activity := _measure(each, begins, ends, clock)) is not None]
    if not activities:
        return CounterCheck(counted=counted, reason="no sample of NVML's GPM lies in steady-state steps")
    shares = [activity.utilisation for activity in activities]
    stated = [share for share in shares if share is not None]
    reason = "" if clock is not None else "the clock of the datasheet's peak is unknown for this GPU"
    mean = sum(stated) / len(stated) if stated and len(stated) == len(shares) else None
    rate = None if gpu is None else gpu.capped_rate
    if operations is None:
        return CounterCheck(tuple(activities), mean, capped_rate=rate, reason=reason)
    steps, duration_ns = (sum(getattr(each, name) for each in activities) for name in ("steps", "duration_ns"))
    pace = steps * operations.step_ns / duration_ns
    recomputed = pace * operations.recomputed
    return CounterCheck(tuple(activities), mean, pace * operations.model + recomputed, recomputed, rate, reason)


def _steady_intervals(run: Run) -> tuple[Int64, Int64]:
    """Begin and end of each steady-state step, on the host's monotonic clock."""
    chosen = find_undisturbed(run.steps)
    numbers, times_ns = job_times_ns(chosen.tables, lambda table: np.isin(table.step, chosen.steady))
    table = run.steps[0]
    lengths = dict(zip(numbers.tolist(), times_ns.tolist(), strict=True))
    rows = [row for row, step in enumerate(table.step.tolist()) if step in lengths]
    ends = table.end_ns[rows]
    return ends - np.array([lengths[int(table.step[row])] for row in rows], np.int64), ends


def _measure(used: UsedGpu, begins: Int64, ends: Int64, peak_clock_mhz: float | None) -> CountedActivity | None:
    """The means over the windows that lie in steady-state steps; None without one."""
    samples = used.samples
    columns = samples.gpm
    is_read = present(columns["tensor_activity_ppm"]) & present(columns["gpm_from_ns"])
    from_ns, to_ns = (columns[name].data[is_read] for name in ("gpm_from_ns", "gpm_to_ns"))
    overlaps = _overlaps(from_ns, to_ns, begins, ends)
    covered = overlaps.sum(axis=1) >= _COVERED * (to_ns - from_ns)
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
    clock, capped = _mean_clock(used, from_ns[covered], to_ns[covered])
    return CountedActivity(
        ranks=used.ranks,
        windows=len(rows),
        steps=float((overlaps[covered] / np.maximum(ends - begins, 1)).sum()),
        duration_ns=int((to_ns - from_ns)[covered].sum()),
        tensor_activity=tensor,
        sm_activity=mean("sm_activity_ppm"),
        sm_occupancy=mean("sm_occupancy_ppm"),
        clock_mhz=clock,
        power_capped=capped,
        utilisation=tensor * clock / peak_clock_mhz if clock and peak_clock_mhz else None,
    )


def _overlaps(from_ns: Int64, to_ns: Int64, begins: Int64, ends: Int64) -> Int64:
    """How much of each window lies in each step; shape (windows, steps)."""
    lower = np.maximum(from_ns[:, None], begins[None, :])
    upper = np.minimum(to_ns[:, None], ends[None, :])
    overlaps: Int64 = np.maximum(upper - lower, 0)
    return overlaps


def _mean_clock(used: UsedGpu, from_ns: Int64, to_ns: Int64) -> tuple[float | None, float | None]:
    """The mean clock in some windows, and the share of samples at which the power limit reduced it."""
    samples = used.samples
    between = (samples.t_ns[:, None] >= from_ns) & (samples.t_ns[:, None] <= to_ns)
    inside = between.any(axis=1)
    clocks = samples.sm_clock_mhz[inside & present(samples.sm_clock_mhz)]
    reasons = samples.throttle[inside & present(samples.throttle)]
    return (
        float(clocks.mean()) if len(clocks) else None,
        float((reasons & _POWER_LIMIT != 0).mean()) if len(reasons) else None,
    )
