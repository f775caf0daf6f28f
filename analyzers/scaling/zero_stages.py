"""What ZeRO saves and costs: memory, utilisation and throughput of each stage, and the change against stage 0.

Memory is the most that any GPU had in use as NVML counts it, utilisation the mean over samples and GPUs; throughput is
the median of the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from perfscope.constants import MIB
from perfscope.report import Json
from perfscope.tables.scaling import ScalingRun


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage on one set-up.

    Attributes:
        name: The set-up as DLPerf writes it.
        model: What was trained.
        stage: ZeRO's stage.
        memory_bytes: Most memory in use on a GPU; absent without samples.
        util_percent: Mean utilisation; absent without samples.
        samples_per_s: Median throughput; absent where no run had one.
        memory_change, samples_change: Against stage 0, as fractions; absent without both.
        memory_saved_bytes: Less than stage 0 by so much; absent without both.
    """

    name: str
    model: str
    stage: int
    memory_bytes: int | None
    util_percent: float | None
    samples_per_s: float | None
    memory_change: float | None
    memory_saved_bytes: int | None
    samples_change: float | None

    def data(self) -> dict[str, Json]:
        """The row for JSON."""
        return {
            "xn_xg_xdp_xmp_xbs": self.name,
            "model": self.model,
            "zero_stage": self.stage,
            "gpu_mem_mib": None if self.memory_bytes is None else self.memory_bytes / MIB,
            "gpu_mem_change": self.memory_change,
            "gpu_mem_saved_mib": None if self.memory_saved_bytes is None else self.memory_saved_bytes / MIB,
            "gpu_util_percent": self.util_percent,
            "samples_per_s": self.samples_per_s,
            "samples_per_s_change": self.samples_change,
        }


def compare(runs: Sequence[ScalingRun]) -> tuple[Stage, ...]:
    """Every set-up that was run with more than one stage, stage by stage."""
    groups: dict[tuple[str, str, str | None, int | None], dict[int, list[ScalingRun]]] = {}
    for run in runs:
        if run.zero_stage is not None:
            key = (run.model, run.name, run.precision, run.seq_len)
            groups.setdefault(key, {}).setdefault(run.zero_stage, []).append(run)
    return tuple(row for stages in groups.values() if len(stages) > 1 for row in _rows(stages))


def _rows(stages: dict[int, list[ScalingRun]]) -> Iterator[Stage]:
    base = _measure(stages[0]) if 0 in stages else (None, None, None)
    for stage in sorted(stages):
        memory, util, speed = _measure(stages[stage])
        known = memory is not None and base[0] is not None and stage > 0
        yield Stage(
            name=stages[stage][0].name,
            model=stages[stage][0].model,
            stage=stage,
            memory_bytes=memory,
            util_percent=util,
            samples_per_s=speed,
            memory_change=_change(memory, base[0]) if stage else None,
            memory_saved_bytes=(base[0] or 0) - (memory or 0) if known else None,
            samples_change=_change(speed, base[2]) if stage else None,
        )


def _measure(runs: Sequence[ScalingRun]) -> tuple[int | None, float | None, float | None]:
    devices = [run.device for run in runs if run.device is not None]
    shares = [device.util_percent for device in devices if device.util_percent is not None]
    speeds = [run.samples_per_s for run in runs if run.samples_per_s is not None]
    return (
        max((device.memory_used_bytes for device in devices), default=None),
        mean(shares) if shares else None,
        median(speeds) if speeds else None,
    )


def _change(value: float | None, base: float | None) -> float | None:
    return value / base - 1 if value is not None and base else None
