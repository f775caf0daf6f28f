"""The utilisation that the GPUs' own counters state: how long tensor cores were active, times the clock.

An active tensor core does the same number of operations of a type in each cycle. So activity x clock / clock of the
datasheet's peak is the share of the peak that ran. It counts recomputation and the padding of tiles and of the
vocabulary, but no product that ran elsewhere. (OFU, arXiv 2605.20799.) Operations and counters are of the same windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from perfscope.analyzers.shared.gpu_steps import UsedGpu, used_gpus
from perfscope.analyzers.shared.step_selection import find_undisturbed, job_times_ns
from perfscope.errors import MissingInput
from perfscope.models.hardware import Gpu
from perfscope.report import Section, percent
from perfscope.result import PERCENT, Column, Doc, Figures, Table, figure
from perfscope.tables.columns import Int64, present
from perfscope.tables.run import Run

_PPM = 1_000_000
#: So much of a window of the counters lies in steady-state steps.
_COVERED = 0.95
#: A difference in points that is worth an explanation.
_AGREEMENT = 0.02
_ABOVE = (
    "tensor cores also work on the padding of tiles and vocabulary, on the masked half of attention, and on "
    "recomputation that nobody saw. At the power limit a GPU does about a tenth fewer operations than its active "
    "cycles allow."
)
_BELOW = (
    "operations were counted that did not run, as the last product of a layer that torch's checkpoint leaves out (only "
    "--shapes shows it), or not on tensor cores of this type (products in fp8 take half the cycles)."
)


class CountedActivity(Figures, frozen=True):
    """What NVML's counters of one GPU say of its steady-state steps."""

    ranks: Annotated[tuple[int, ...], Doc("The ranks that trained on it.")]
    windows: Annotated[int, Doc("Windows of the counters in these steps.")]
    steps: Annotated[float, Doc("How many steps they hold, whole ones and parts.")]
    duration_ns: Annotated[int, Doc("How long they are together.")]
    tensor_activity: Annotated[float, Doc("Share of cycles in which tensor cores were active.")]
    sm_activity: Annotated[float | None, Doc("Share of multiprocessors that were active; None where not reported.")]
    sm_occupancy: Annotated[float | None, Doc("Share of their warps; None where not reported.")]
    clock_mhz: Annotated[float | None, Doc("Mean clock meanwhile; None where not sampled.")]
    utilisation: Annotated[float | None, Doc("Share of the dense peak; None where the clock of the peak is unknown.")]


_TABLE = Table(
    "Tensor cores by NVML's counters",
    "gpus",
    (
        Column("Rank", lambda gpu: ", ".join(map(str, gpu.ranks))),
        Column("Tensor cores active (%)", "tensor_activity", PERCENT, 2),
        Column("SMs active (%)", "sm_activity", PERCENT, 2),
        Column("SM occupancy (%)", "sm_occupancy", PERCENT, 2),
        Column("SM clock (MHz)", "clock_mhz", None, 0),
        Column("Share of the peak (%)", "utilisation", PERCENT, 2),
        Column("Samples", "windows", None, 0),
    ),
)


class CounterCheck(Figures, frozen=True):
    """The utilisation by counters beside the one by operations."""

    utilisation: Annotated[float | None, Doc("The mean over the GPUs; None where one has none.")] = None
    counted: Annotated[
        float | None,
        Doc("The share of the peak by operations that ran, recomputation included, in the same windows."),
    ] = None
    reason: Annotated[str | None, Doc("Why there is none; None where there is one.")] = None
    gpus: Annotated[tuple[CountedActivity, ...], Doc("Each GPU.")] = ()

    @figure
    def difference(self) -> float | None:
        """By how much the counters are above the operations; None where one is unknown."""
        return None if self.utilisation is None or self.counted is None else self.utilisation - self.counted

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU; nothing where the counters were not sampled."""
        return (_TABLE.section(self.gpus, self._notes()),) if self.gpus else ()

    def _notes(self) -> Iterator[str]:
        yield "Share of the peak: tensor cores active x clock / clock of the datasheet's peak."
        if self.reason:
            yield f"No share: {self.reason}."
        if self.difference is None:
            return
        points = f"{abs(100 * self.difference):.1f} points"
        yield f"By operations that ran it is {percent(self.counted):.2f} % in the same windows."
        if abs(self.difference) <= _AGREEMENT:
            yield f"Counters and operations agree within {points}."
        else:
            above = self.difference > 0
            yield f"Counters are {points} {'above' if above else 'below'} that: {_ABOVE if above else _BELOW}"


def check_by_counters(run: Run, gpu: Gpu | None, counted: float | None, step_ns: int) -> CounterCheck:
    """Compare the counters of a run's GPUs in steady-state steps with the operations of the same time.

    Args:
        run: The run.
        gpu: Its GPU.
        counted: The share of the peak by operations that ran.
        step_ns: The time of the step that this is of.
    """
    try:
        used = used_gpus(run)
    except MissingInput as error:
        return CounterCheck(reason=error.problem)
    sampled = [each for each in used if "tensor_activity_ppm" in each.samples.gpm]
    if not any(present(each.samples.gpm["tensor_activity_ppm"]).any() for each in sampled):
        missing = "NVML's GPM was not sampled: `perfscope profile --gpm` does where Hopper or newer permits it"
        return CounterCheck(counted=counted, reason=missing)
    begins, ends = _steady_intervals(run)
    clock = None if gpu is None else gpu.tensor_clock_mhz
    gpus = tuple(found for each in used if (found := _measure(each, begins, ends, clock)) is not None)
    if not gpus:
        return CounterCheck(counted=counted, reason="no sample of NVML's GPM lies in steady-state steps")
    reason = None if clock is not None else "the clock of the datasheet's peak is unknown for this GPU"
    stated = [each.utilisation for each in gpus if each.utilisation is not None]
    mean = sum(stated) / len(stated) if len(stated) == len(gpus) else None
    if counted is not None:
        counted *= sum(each.steps for each in gpus) * step_ns / sum(each.duration_ns for each in gpus)
    return CounterCheck(mean, counted, reason, gpus)


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
    columns = used.samples.gpm
    is_read = present(columns["tensor_activity_ppm"]) & present(columns["gpm_from_ns"])
    from_ns, to_ns = (columns[name].data[is_read] for name in ("gpm_from_ns", "gpm_to_ns"))
    overlaps = np.minimum(to_ns[:, None], ends) - np.maximum(from_ns[:, None], begins)
    overlaps = np.maximum(overlaps, 0)
    covered = overlaps.sum(axis=1) >= _COVERED * (to_ns - from_ns)
    if not covered.any():
        return None
    weights = (to_ns - from_ns)[covered].astype(np.float64)
    rows = np.flatnonzero(is_read)[covered]

    def mean(name: str) -> float | None:
        column = columns[name]
        known = bool(present(column)[rows].all())
        return float(np.average(column.data[rows], weights=weights)) / _PPM if known else None

    tensor = mean("tensor_activity_ppm")
    assert tensor is not None
    clock = _mean_clock(used, from_ns[covered], to_ns[covered])
    return CountedActivity(
        ranks=used.ranks,
        windows=len(rows),
        steps=float((overlaps[covered] / np.maximum(ends - begins, 1)).sum()),
        duration_ns=int((to_ns - from_ns)[covered].sum()),
        tensor_activity=tensor,
        sm_activity=mean("sm_activity_ppm"),
        sm_occupancy=mean("sm_occupancy_ppm"),
        clock_mhz=clock,
        utilisation=tensor * clock / peak_clock_mhz if clock and peak_clock_mhz else None,
    )


def _mean_clock(used: UsedGpu, from_ns: Int64, to_ns: Int64) -> float | None:
    """The mean clock in some windows."""
    samples = used.samples
    inside = ((samples.t_ns[:, None] >= from_ns) & (samples.t_ns[:, None] <= to_ns)).any(axis=1)
    clocks = samples.sm_clock_mhz[inside & present(samples.sm_clock_mhz)]
    return float(clocks.mean()) if len(clocks) else None
