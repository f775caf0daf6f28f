"""Folders of runs as a scaling study: what each run was, from its name, its log and the samples beside it.

A run is a log, or a folder of ``perfscope profile``. Samples of its GPUs are in the run's ``nvml/``, or in a CSV of
nvidia-smi that has the log's name or is the only one in the log's folder.
"""

from __future__ import annotations

import re
from pathlib import Path

from perfscope.sources.joblog.file_names import parse_file_name
from perfscope.sources.runs.nvml import read_gpus
from perfscope.sources.scaling.nvidia_smi import is_smi, read_smi
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.joblog import JobLog
from perfscope.tables.scaling import Case, DeviceUse

_MODEL = re.compile(r"([A-Za-z][A-Za-z0-9.+-]*?)_b\d+_")
_SHORT = re.compile(
    r"(?:^|[-_])((?:gpt|bert|llama|resnet|vgg|t5|opt|bloom|mixtral|qwen)[a-z0-9.-]*)(?=[-_]|$)", re.IGNORECASE
)


def case_of(path: Path, log: JobLog | None, world_size: int | None = None, hosts: int | None = None) -> Case | None:
    """Nodes and GPUs of a run: from its name or folder, else from what it says of itself; None where nothing tells."""
    facts = parse_file_name(path).facts
    nodes, per_node = facts.get("nodes"), facts.get("gpus_per_node")
    if isinstance(nodes, int) and isinstance(per_node, int):
        return Case(nodes, per_node) if nodes and per_node else None
    gpus = world_size or (log.number("gpus") if log is not None else None)
    known = hosts or (log.number("nodes") if log is not None else None) or 1
    if gpus is None or gpus < 1:
        return None
    return Case(known, gpus // known) if gpus % known == 0 else Case(1, gpus)


def model_of(path: Path, log: JobLog | None) -> str:
    """What was trained: from the log's name, else its size, else its framework."""
    for name in (path.name, path.parent.name):
        match = _MODEL.match(name) or _SHORT.search(name)
        if match:
            return match[1].rstrip("-.")
    size = log.number("parameters") if log is not None else None
    if size:
        return f"{size / 1e9:.3g}B"
    return (log.framework if log is not None else None) or "unknown"


def device_beside(log: Path) -> DeviceUse | None:
    """Samples of nvidia-smi for a log; None where there are none."""
    named = [log.with_suffix(suffix) for suffix in (".csv", ".gpu.csv", ".smi.csv")]
    for path in named:
        if path.is_file() and is_smi(path):
            return read_smi(path)
    others = [path for path in log.parent.glob("*.csv") if is_smi(path)]
    logs = [path for path in log.parent.iterdir() if path.suffix in (".log", ".out", ".txt")]
    return read_smi(others[0]) if len(others) == 1 and len(logs) == 1 else None


def device_of_run(run: Path) -> DeviceUse | None:
    """The NVML samples of a run's folder; None where there are none."""
    gpus, _ = read_gpus(run, [])
    return device_use(gpus)


def device_use(gpus: tuple[GpuSamples, ...]) -> DeviceUse | None:
    """The fullest GPU, and the mean utilisation of all."""
    fullest: tuple[int, int | None] | None = None
    shares: list[float] = []
    for gpu in gpus:
        used = gpu.memory_used_bytes.compressed()
        if len(used) and (fullest is None or used.max() > fullest[0]):
            fullest = (int(used.max()), gpu.memory_total_bytes)
        shares += gpu.util_percent.compressed().tolist()
    if fullest is None:
        return None
    return DeviceUse(fullest[0], fullest[1], sum(shares) / len(shares) if shares else None)
