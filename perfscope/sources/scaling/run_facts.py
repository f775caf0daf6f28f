"""The size of a run's cluster, its model and its GPU samples, from names, the log and the files beside it.

A run is a log, or a folder of ``perfscope profile``. Samples of its GPUs are in the run's ``nvml/``, or in a CSV of
nvidia-smi that has the log's name or is the only CSV beside a single log.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfscope.constants import GIGA
from perfscope.sources.joblog.file_names import parse_file_name
from perfscope.sources.runs.nvml import read_gpus
from perfscope.sources.scaling.nvidia_smi import is_smi, read_smi
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.joblog import JobLog
from perfscope.tables.scaling import ClusterSize, DeviceUse

_MODEL = re.compile(r"([A-Za-z][A-Za-z0-9.+-]*?)_b\d+_")
_KNOWN_MODEL = re.compile(
    r"(?:^|[-_])((?:gpt|bert|llama|resnet|vgg|t5|opt|bloom|mixtral|qwen)[a-z0-9.-]*)(?=[-_]|$)", re.IGNORECASE
)


def find_cluster_size(
    path: Path, log: JobLog | None, world_size: int | None = None, hosts: int | None = None
) -> ClusterSize | None:
    """Nodes and GPUs of a run: from its name or folder, else from the run itself; None where they are unknown."""
    facts = parse_file_name(path).facts
    nodes, per_node = facts.get("nodes"), facts.get("gpus_per_node")
    if isinstance(nodes, int) and isinstance(per_node, int):
        return ClusterSize(nodes, per_node) if nodes and per_node else None
    gpus = world_size or (log.number("gpus") if log is not None else None)
    node_count = hosts or (log.number("nodes") if log is not None else None) or 1
    if gpus is None or gpus < 1:
        return None
    return ClusterSize(node_count, gpus // node_count) if gpus % node_count == 0 else ClusterSize(1, gpus)


def find_model_name(path: Path, log: JobLog | None) -> str:
    """The trained model: from the log's name, else its size, else its framework."""
    for name in (path.name, path.parent.name):
        match = _MODEL.match(name) or _KNOWN_MODEL.search(name)
        if match:
            return match[1].rstrip("-.")
    size = log.number("parameters") if log is not None else None
    if size:
        return f"{size / GIGA:.3g}B"
    return (log.framework if log is not None else None) or "unknown"


def find_smi_samples(log: Path) -> DeviceUse | None:
    """Samples of nvidia-smi for a log; None where no CSV can be assigned to it."""
    same_name = [log.with_suffix(suffix) for suffix in (".csv", ".gpu.csv", ".smi.csv")]
    for path in same_name:
        if path.is_file() and is_smi(path):
            return read_smi(path)
    samples = [path for path in log.parent.glob("*.csv") if is_smi(path)]
    logs = [path for path in log.parent.iterdir() if path.suffix in (".log", ".out", ".txt")]
    return read_smi(samples[0]) if len(samples) == 1 and len(logs) == 1 else None


def read_nvml_use(run: Path) -> DeviceUse | None:
    """The NVML samples of a run's folder; None where there are none."""
    gpus, _ = read_gpus(run, [])
    return _summarize_use(gpus)


def _summarize_use(gpus: tuple[GpuSamples, ...]) -> DeviceUse | None:
    """The fullest GPU, and the mean utilisation of all."""
    fullest: tuple[int, int | None] | None = None
    utilisation: list[float] = []
    for gpu in gpus:
        used = gpu.memory_used_bytes.compressed()
        if len(used) and (fullest is None or used.max() > fullest[0]):
            fullest = (int(used.max()), gpu.memory_total_bytes)
        utilisation += gpu.util_percent.compressed().tolist()
    if fullest is None:
        return None
    return DeviceUse(fullest[0], fullest[1], sum(utilisation) / len(utilisation) if utilisation else None)
