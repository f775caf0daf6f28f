"""The state of a running job in the text format of OpenMetrics, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable

from perfscope.constants import KILO, NS_PER_S
from perfscope.report import in_unit
from perfscope.watching.job import WatchedJob

_Sample = tuple[dict[str, str], float | int | None]


def to_openmetrics(job: WatchedJob) -> str:
    """Write the metrics; what is not known is left out."""
    ranks = [(rank, {"rank": str(number), "host": rank.record.host}) for number, rank in sorted(job.ranks.items())]
    ages = [(at, in_unit(rank.age_ns(job.wall_ns), NS_PER_S)) for rank, at in ranks if not rank.has_ended]
    gpus = [(gpu, {"host": gpu.host, "gpu": str(gpu.index), "uuid": gpu.uuid, "name": gpu.name}) for gpu in job.gpus]
    metrics: list[tuple[str, str, str, list[_Sample]]] = [
        ("steps", "", "Completed training steps.", [(at, rank.step) for rank, at in ranks]),
        ("step_seconds", "seconds", "Step time of the job.", [({}, in_unit(job.step_ns(), NS_PER_S))]),
        ("samples_per_second", "", "Samples of all ranks.", [({}, job.per_second("samples"))]),
        ("tokens_per_second", "", "Tokens of all ranks.", [({}, job.per_second("tokens"))]),
        ("mfu_ratio", "ratio", "Model FLOPs utilisation.", [({}, job.mfu)]),
        ("step_age_seconds", "seconds", "Time since the last completed step.", ages),
        ("rank_running", "", "1 while it runs.", [(at, int(not rank.has_ended)) for rank, at in ranks]),
        ("rank_stalled", "", "1 while stalled.", [(at, int(job.is_stalled(rank))) for rank, at in ranks]),
        (
            "gpu_utilization_ratio",
            "ratio",
            "Share of time with a kernel.",
            [(at, in_unit(gpu.gpu_util_percent, 100)) for gpu, at in gpus],
        ),
        ("gpu_memory_used_bytes", "bytes", "Memory in use.", [(at, gpu.memory_used_bytes) for gpu, at in gpus]),
        ("gpu_power_watts", "watts", "Power.", [(at, in_unit(gpu.power_mw, KILO)) for gpu, at in gpus]),
        ("gpu_temperature_celsius", "celsius", "Temperature.", [(at, gpu.temperature_c) for gpu, at in gpus]),
    ]
    lines = [
        line for name, unit, text, samples in metrics for line in _metric(f"perfscope_{name}", unit, text, samples)
    ]
    return "\n".join([*lines, "# EOF"]) + "\n"


def _metric(name: str, unit: str, text: str, samples: Iterable[_Sample]) -> list[str]:
    known = [(labels, value) for labels, value in samples if value is not None]
    if not known:
        return []
    kind, suffix = ("counter", "_total") if name == "perfscope_steps" else ("gauge", "")
    return [
        f"# TYPE {name} {kind}",
        *([f"# UNIT {name} {unit}"] if unit else []),
        f"# HELP {name} {text}",
        *(f"{name}{suffix}{_labels(labels)} {value!r}" for labels, value in known),
    ]


def _labels(labels: dict[str, str]) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escape(value)}"' for name, value in labels.items()) + "}"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
