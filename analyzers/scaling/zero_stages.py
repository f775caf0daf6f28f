"""The effect of ZeRO stages: memory, utilisation and throughput of each stage, and the change against stage 0.

Memory is the peak of memory in use on any GPU as NVML counts it, utilisation the mean over samples and GPUs; throughput
is the median of the runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean, median

from perfscope.constants import MIB
from perfscope.report import Json
from perfscope.tables.scaling import ScalingRun


@dataclass(frozen=True, slots=True)
class ZeroStage:
    """One ZeRO stage of one set-up.

    Attributes:
        name: The set-up as DLPerf writes it.
        model: The trained model.
        stage: The ZeRO stage.
        memory_bytes: Peak of memory in use on a GPU; absent without samples.
        util_percent: Mean utilisation; absent without samples.
        samples_per_s: Median throughput; absent without a successful run.
        memory_change, samples_change: Change against stage 0, as a fraction; absent where either value is.
        memory_saved_bytes: Memory less than stage 0; absent where either value is.
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


def compare_zero_stages(runs: Sequence[ScalingRun]) -> tuple[ZeroStage, ...]:
    """The stages of every set-up that was run with more than one stage."""
    groups: dict[tuple[str, str, str | None, int | None], dict[int, list[ScalingRun]]] = {}
    for run in runs:
        if run.zero_stage is not None:
            key = (run.model, run.name, run.precision, run.seq_len)
            groups.setdefault(key, {}).setdefault(run.zero_stage, []).append(run)
    return tuple(row for stages in groups.values() if len(stages) > 1 for row in _compare_stages(stages))


def _compare_stages(stages: dict[int, list[ScalingRun]]) -> Iterator[ZeroStage]:
    base_memory, _, base_speed = _summarize_stage(stages[0]) if 0 in stages else (None, None, None)
    for stage in sorted(stages):
        memory, util, speed = _summarize_stage(stages[stage])
        yield ZeroStage(
            name=stages[stage][0].name,
            model=stages[stage][0].model,
            stage=stage,
            memory_bytes=memory,
            util_percent=util,
            samples_per_s=speed,
            memory_change=_relative_change(memory, base_memory) if stage else None,
            memory_saved_bytes=_saving(memory, base_memory) if stage else None,
            samples_change=_relative_change(speed, base_speed) if stage else None,
        )


def _summarize_stage(runs: Sequence[ScalingRun]) -> tuple[int | None, float | None, float | None]:
    devices = [run.device for run in runs if run.device is not None]
    utilisation = [device.util_percent for device in devices if device.util_percent is not None]
    speeds = [run.samples_per_s for run in runs if run.samples_per_s is not None]
    return (
        max((device.memory_used_bytes for device in devices), default=None),
        mean(utilisation) if utilisation else None,
        median(speeds) if speeds else None,
    )


def _relative_change(value: float | None, base: float | None) -> float | None:
    return value / base - 1 if value is not None and base else None


def _saving(memory: int | None, base_memory: int | None) -> int | None:
    return base_memory - memory if base_memory is not None and memory is not None else None
