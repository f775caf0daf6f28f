"""Training steps during which a GPU was throttled, the causes, and what that cost.

NVML states at each sample why the clock is not higher. A step is throttled where a sample inside it, or the last one
before it, names a throttling cause. Causes are a power or thermal limit, a hardware slowdown, a brake of the power
supply, and the slower clock of a synchronised group. An idle GPU, or a clock that a user set, is not throttling. A
cause that is active for less than the time between two samples can be missed. The GPUs' own counters of the time that
each cause was active miss nothing and are reported, too.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.measures.doubt import TOLERANCE, check_share
from perfscope.measures.gpu_steps import THROTTLING_CAUSES, GpuOfRanks, UsedGpu, step_intervals_ns, used_gpus
from perfscope.measures.rank_labels import rank_cell
from perfscope.measures.readings import LONGEST_GAP_NS, read_column
from perfscope.measures.statistics import mean, median
from perfscope.measures.step_selection import UndisturbedSteps, find_undisturbed
from perfscope.report import Section, milliseconds, percent
from perfscope.result import Column, Doc, Figures, ResultList, Table
from perfscope.tables.columns import Bool, Int64, MaskedFloat64
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Run
from perfscope.units import format_ranges


class ThrottlingCause(Figures, frozen=True):
    """One cause on one GPU."""

    cause: Annotated[str, Doc("In words.")]
    steps: Annotated[tuple[int, ...], Doc("The throttled steps.")]
    time_fraction: Annotated[float | None, Doc("Share of training in which it was active, by the GPU's counter.")]


class GpuThrottling(GpuOfRanks, frozen=True):
    """An entry of ``results.throttling``: a GPU, and the steps in which it was throttled."""

    known_steps: Annotated[int, Doc("Number of steps that samples cover.")]
    steps: Annotated[tuple[int, ...], Doc("Steps that were throttled by any cause.")]
    causes: Annotated[tuple[ThrottlingCause, ...], Doc("By cause.")]
    hit_s: Annotated[float | None, Doc("Median undisturbed step that was throttled.")]
    clear_s: Annotated[float | None, Doc("Median undisturbed step that was not.")]
    hit_mhz: Annotated[float | None, Doc("Mean clock in the former.")]
    clear_mhz: Annotated[float | None, Doc("Mean clock in the latter.")]


class Throttling(ResultList, frozen=True):
    """``results.throttling``: every GPU that a rank trained on, and the steps in which it was throttled."""

    gpus: tuple[GpuThrottling, ...]

    TABLES = (
        Table(
            "Throttling",
            "",
            (
                Column("Host", lambda row: row[0].host),
                Column("Rank", lambda row: rank_cell(row[0].ranks)),
                Column("Cause", lambda row: row[1].cause),
                Column("Throttled steps", lambda row: format_ranges(row[1].steps) or "none"),
                Column("Count", lambda row: f"{len(row[1].steps)} of {row[0].known_steps}"),
                Column("Time (%)", lambda row: percent(row[1].time_fraction)),
                Column("Throttled step (ms)", lambda row: milliseconds(row[0].hit_s)),
                Column("Other steps (ms)", lambda row: milliseconds(row[0].clear_s)),
                Column("SM clock throttled (MHz)", lambda row: row[0].hit_mhz, None, 0),
                Column("SM clock otherwise (MHz)", lambda row: row[0].clear_mhz, None, 0),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU and cause; a sentence where there is none."""
        note = (
            "A step is throttled where a sample in it, or the last one before it, names the cause; idle GPUs and "
            "clocks set by a user do not count. Time (%) is from the GPU's own counter, which also covers the time "
            "between samples."
        )
        rows = [(gpu, cause) for gpu in self.gpus for cause in gpu.causes]
        if not rows:
            known = min(gpu.known_steps for gpu in self.gpus)
            return (Section("Throttling", notes=(f"No GPU was throttled in {known} steps.", note)),)
        return (self.TABLES[0].section(rows, [note]),)


def analyze(run: Run) -> Throttling:
    """Find the throttled steps of each GPU; MissingInput where none reports why its clock is reduced."""
    undisturbed = find_undisturbed(run.steps)
    gpus = tuple(_find_throttled_steps(gpu, undisturbed) for gpu in used_gpus(run) if gpu.samples.throttle.count())
    gpus = tuple(gpu for gpu in gpus if gpu.known_steps)
    if not gpus:
        raise MissingInput("NVML did not report why clocks were reduced while a step ran")
    return Throttling(gpus)


def _find_throttled_steps(used: UsedGpu, undisturbed: UndisturbedSteps) -> GpuThrottling:
    starts_ns, ends_ns, rows = step_intervals_ns(used.steps)
    covered, bits = _bits_of_steps(used.samples, starts_ns, ends_ns)
    step = used.steps.step[rows]
    throttled = covered & (bits & sum(THROTTLING_CAUSES) != 0)
    unthrottled = covered & ~throttled
    steady = undisturbed.mask(used.steps)[rows]
    times_s = (ends_ns - starts_ns) / NS_PER_S
    clocks_mhz = _clocks_of_steps(used.samples, starts_ns, ends_ns)
    training_ns = (int(starts_ns.min()), int(ends_ns.max())) if len(starts_ns) else (0, 0)
    causes = [
        ThrottlingCause(
            cause=name,
            steps=tuple(step[covered & (bits & bit != 0)].tolist()),
            time_fraction=_active_fraction(used.samples, counter, training_ns),
        )
        for bit, (name, counter) in THROTTLING_CAUSES.items()
    ]
    return GpuThrottling(
        *used.identity,
        known_steps=int(covered.sum()),
        steps=tuple(step[throttled].tolist()),
        causes=tuple(cause for cause in causes if cause.steps or cause.time_fraction),
        hit_s=median(times_s[throttled & steady]),
        clear_s=median(times_s[unthrottled & steady]),
        hit_mhz=mean(clocks_mhz[throttled & steady]),
        clear_mhz=mean(clocks_mhz[unthrottled & steady]),
    )


def _bits_of_steps(samples: GpuSamples, starts_ns: Int64, ends_ns: Int64) -> tuple[Bool, Int64]:
    """Whether samples cover each step, and all bits of its samples and of the last one before it."""
    causes = read_column(samples.t_ns, samples.throttle)
    first = np.maximum(np.searchsorted(causes.t_ns, starts_ns, "right") - 1, 0)
    end = np.searchsorted(causes.t_ns, ends_ns, "right")
    # The sample before a step counts, unless it is too old.
    first[first < end] += causes.t_ns[first[first < end]] < starts_ns[first < end] - LONGEST_GAP_NS
    covered, bits = first < end, np.zeros(len(first), np.int64)
    edges = np.stack([first[covered], end[covered]], axis=1).reshape(-1)
    if len(edges):  # of each pair of edges, what lies between them
        bits[covered] = np.bitwise_or.reduceat(np.append(causes.value, 0), edges)[::2]
    return covered, bits


def _clocks_of_steps(samples: GpuSamples, starts_ns: Int64, ends_ns: Int64) -> MaskedFloat64:
    clock_mhz = read_column(samples.t_ns, samples.sm_clock_mhz)
    if not len(clock_mhz.t_ns):
        return np.ma.MaskedArray(np.zeros(len(starts_ns)), mask=True)
    first_ns, last_ns = clock_mhz.t_ns[0], clock_mhz.t_ns[-1]
    middles_ns = starts_ns + (ends_ns - starts_ns) // 2
    clocks_mhz = np.interp(
        (middles_ns - first_ns).astype(float), (clock_mhz.t_ns - first_ns).astype(float), clock_mhz.value.astype(float)
    )
    return np.ma.MaskedArray(clocks_mhz, mask=(middles_ns < first_ns) | (middles_ns > last_ns))


def _active_fraction(samples: GpuSamples, counter: str | None, training_ns: tuple[int, int]) -> float | None:
    column = samples.counters.get(counter) if counter else None
    if column is None:
        return None
    active_ns = read_column(samples.t_ns, column).during(*training_ns)
    share = active_ns.change / active_ns.span_ns if active_ns.span_ns and active_ns.change >= 0 else None
    return check_share(share, f"the share of time of {counter}", "the GPU's counter", TOLERANCE).value
