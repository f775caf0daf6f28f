"""Which training steps ran while a GPU's clock was held down, why, and what that cost.

NVML tells at each sample why the clock is not higher. A step is hit where a sample inside it, or the last one before
it, names a cause that is throttling: a power or thermal limit, a hardware slowdown, a brake of the power supply, the
slower clock of a synchronised group. That the GPU is idle, or that somebody set its clock, is no throttling. The
resolution is that of the samples: a cause shorter than their distance can be missed. The GPUs' own counters of the
time that each cause was active miss nothing and are given beside it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfscope.analyzers.shared.gpu_steps import UsedGpu, intervals_ns, ranks_text, used_gpus
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Run
from perfscope.units import format_ranges

#: NVML's bits of what is throttling, and the counter of the time that it was active.
CAUSES = {
    0x004: ("software power cap", "sw_power_cap_ns"),
    0x008: ("hardware slowdown", None),
    0x010: ("sync boost", "sync_boost_ns"),
    0x020: ("software thermal slowdown", "sw_thermal_ns"),
    0x040: ("hardware thermal slowdown", "hw_thermal_ns"),
    0x080: ("hardware power brake", "hw_power_brake_ns"),
    0x200: ("board limit", None),
    0x400: ("reliability voltage", None),
}
_LONGEST_HELD_NS = 2_500_000_000


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause on one GPU.

    Attributes:
        cause: In words.
        steps: The steps that it hit.
        time_fraction: The share of training in which it was active, by the GPU's counter; absent without one.
    """

    cause: str
    steps: tuple[int, ...]
    time_fraction: float | None


@dataclass(frozen=True, slots=True)
class GpuThrottling:
    """One GPU.

    Attributes:
        host, uuid, name: Which one.
        ranks: The ranks that trained on it.
        known: Steps of which it is known.
        steps: Those that were hit by any cause.
        causes: By cause.
        hit_s, clear_s: Median undisturbed step that was hit, and that was not; absent where there is none.
        hit_mhz, clear_mhz: Mean clock in them; absent where it is not known.
    """

    host: str
    uuid: str
    name: str
    ranks: tuple[int, ...]
    known: int
    steps: tuple[int, ...]
    causes: tuple[Cause, ...]
    hit_s: float | None
    clear_s: float | None
    hit_mhz: float | None
    clear_mhz: float | None


@dataclass(frozen=True, slots=True)
class Throttling:
    """Every GPU that a rank trained on."""

    gpus: tuple[GpuThrottling, ...]

    def data(self) -> Json:
        """The value of ``results.throttling``."""
        return [
            {
                "host": gpu.host,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "ranks": list(gpu.ranks),
                "known_steps": gpu.known,
                "steps": list(gpu.steps),
                "causes": [
                    {"cause": one.cause, "steps": list(one.steps), "time_fraction": one.time_fraction}
                    for one in gpu.causes
                ],
                "hit_s": gpu.hit_s,
                "clear_s": gpu.clear_s,
                "hit_mhz": gpu.hit_mhz,
                "clear_mhz": gpu.clear_mhz,
            }
            for gpu in self.gpus
        ]

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU and cause; a sentence where there is none."""
        note = (
            "A step is hit where a sample in it, or the last one before, names the cause; idleness and clocks that "
            "somebody set are none. The share of time is by the GPU's own counter, which misses nothing."
        )
        rows = tuple(
            (
                gpu.host,
                ranks_text(gpu.ranks),
                one.cause,
                format_ranges(one.steps) or "none",
                f"{len(one.steps)} of {gpu.known}",
                None if one.time_fraction is None else 100 * one.time_fraction,
                None if gpu.hit_s is None else 1e3 * gpu.hit_s,
                None if gpu.clear_s is None else 1e3 * gpu.clear_s,
                gpu.hit_mhz,
                gpu.clear_mhz,
            )
            for gpu in self.gpus
            for one in gpu.causes
        )
        if not rows:
            known = min(gpu.known for gpu in self.gpus)
            return (Section("Throttling", notes=(f"No GPU was throttled in the {known} steps that are known.", note)),)
        columns = (
            Column("Host"),
            Column("Rank"),
            Column("Cause"),
            Column("Steps hit"),
            Column("Count"),
            Column("Time (%)"),
            Column("Median hit (ms)"),
            Column("Median clear (ms)"),
            Column("SM clock hit (MHz)", 0),
            Column("clear (MHz)", 0),
        )
        return (Section("Throttling", columns, rows, notes=(note,)),)


def analyze(run: Run) -> Throttling:
    """Find the steps that throttling hit, GPU by GPU.

    Raises:
        MissingInput: No GPU that a rank trained on tells why its clock is held down.
    """
    gpus = tuple(_throttling(gpu) for gpu in used_gpus(run) if gpu.samples.throttle.count())
    gpus = tuple(gpu for gpu in gpus if gpu.known)
    if not gpus:
        raise MissingInput("NVML did not tell why clocks were held down while a step ran")
    return Throttling(gpus)


def _throttling(used: UsedGpu) -> GpuThrottling:
    starts, ends, rows = intervals_ns(used.steps)
    known, bits = _bits_of_steps(used.samples, starts, ends)
    step = used.steps.step[rows]
    hit = known & (bits & sum(CAUSES) != 0)
    clear = known & ~hit
    undisturbed = used.steps.steady[rows]
    walls_s = (ends - starts) / 1e9
    clocks = _clocks_of_steps(used.samples, starts, ends)
    span = (int(starts.min()), int(ends.max())) if len(starts) else (0, 0)
    causes = [
        Cause(text, tuple(int(one) for one in step[known & (bits & bit != 0)]), _active(used.samples, counter, span))
        for bit, (text, counter) in CAUSES.items()
    ]
    return GpuThrottling(
        host=used.samples.host,
        uuid=used.samples.uuid,
        name=used.samples.name,
        ranks=used.ranks,
        known=int(known.sum()),
        steps=tuple(int(one) for one in step[hit]),
        causes=tuple(cause for cause in causes if cause.steps or cause.time_fraction),
        hit_s=_median(walls_s[hit & undisturbed]),
        clear_s=_median(walls_s[clear & undisturbed]),
        hit_mhz=_mean(clocks[hit & undisturbed]),
        clear_mhz=_mean(clocks[clear & undisturbed]),
    )


def _bits_of_steps(samples: GpuSamples, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Whether each step is known, and all bits of its samples and of the last one before it."""
    told = ~np.ma.getmaskarray(samples.throttle)
    times, bits = samples.t_ns[told], np.asarray(samples.throttle.data[told])
    known, found = np.zeros(len(starts), bool), np.zeros(len(starts), np.int64)
    first = np.searchsorted(times, starts, "right") - 1
    last = np.searchsorted(times, ends, "right")
    for row, (low, high) in enumerate(zip(first, last, strict=True)):
        low = max(low, 0)  # noqa: PLW2901 - the sample before the step, where there is one
        if low < high and times[low] < starts[row] - _LONGEST_HELD_NS:
            low += 1  # noqa: PLW2901 - too old to be held
        if low < high:
            known[row], found[row] = True, np.bitwise_or.reduce(bits[low:high])
    return known, found


def _clocks_of_steps(samples: GpuSamples, starts: np.ndarray, ends: np.ndarray) -> np.ma.MaskedArray[Any, Any]:
    """The clock at the middle of each step, between the samples around it."""
    told = ~np.ma.getmaskarray(samples.sm_clock_mhz)
    times, clocks = samples.t_ns[told], np.asarray(samples.sm_clock_mhz.data[told], float)
    if not len(times):
        return np.ma.MaskedArray(np.zeros(len(starts)), mask=True)
    middles = starts + (ends - starts) // 2
    values = np.interp((middles - times[0]).astype(float), (times - times[0]).astype(float), clocks)
    return np.ma.MaskedArray(values, mask=(middles < times[0]) | (middles > times[-1]))


def _active(samples: GpuSamples, counter: str | None, span_ns: tuple[int, int]) -> float | None:
    """The share of training in which a cause was active."""
    values = samples.counters.get(counter) if counter else None
    if values is None:
        return None
    told = ~np.ma.getmaskarray(values) & (samples.t_ns >= span_ns[0]) & (samples.t_ns <= span_ns[1])
    times, moved = samples.t_ns[told], np.asarray(values.data)[told]
    if len(times) < 2 or moved[-1] < moved[0]:  # noqa: PLR2004 - a difference has two ends
        return None
    return float(moved[-1] - moved[0]) / float(times[-1] - times[0])


def _median(values: np.ndarray) -> float | None:
    return float(np.median(values)) if len(values) else None


def _mean(values: np.ma.MaskedArray) -> float | None:
    known = values.compressed()
    return float(known.mean()) if len(known) else None
