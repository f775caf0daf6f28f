"""What each GPU drew, how busy NVML saw it and how much memory was in use while training went on.

Means are over the samples between the first and the last training step of the host's ranks. NVML's utilisation is the
share of its own sampling period in which any kernel ran: 100 % says that the GPU was never left alone, not that it was
used well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section
from perfscope.tables import Run
from perfscope.tables.gpus import GpuSamples


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU.

    Attributes:
        host, uuid, name: Which one.
        rank: The rank that trained on it; absent where none did, or where the rank's device is not known.
        samples: How many samples the means are over.
        power_w: Mean power; absent where NVML does not tell.
        power_limit_w: The enforced limit; absent where NVML does not tell.
        util_percent: Mean utilisation; absent where NVML does not tell.
        memory_used_bytes: Most memory in use, other processes included; absent where NVML does not tell.
        memory_total_bytes: Its memory; absent where NVML does not tell.
    """

    host: str
    uuid: str
    name: str
    rank: int | None
    samples: int
    power_w: float | None
    power_limit_w: float | None
    util_percent: float | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True)
class Gpus:
    """Every GPU that was sampled."""

    gpus: tuple[Gpu, ...]

    def data(self) -> Json:
        """The value of ``results.gpus``."""
        return [
            {
                "host": gpu.host,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "rank": gpu.rank,
                "samples": gpu.samples,
                "power_w": gpu.power_w,
                "power_limit_w": gpu.power_limit_w,
                "util_percent": gpu.util_percent,
                "memory_used_bytes": gpu.memory_used_bytes,
                "memory_total_bytes": gpu.memory_total_bytes,
            }
            for gpu in self.gpus
        ]

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU."""
        columns = (
            Column("Host"),
            Column("Rank"),
            Column("GPU"),
            Column("Power (W)"),
            Column("Limit (W)", 0),
            Column("NVML util. (%)"),
            Column("Memory used (GB)"),
            Column("of (GB)"),
            Column("Samples"),
        )
        rows = tuple(
            (
                gpu.host,
                gpu.rank,
                gpu.name,
                gpu.power_w,
                gpu.power_limit_w,
                gpu.util_percent,
                _gigabytes(gpu.memory_used_bytes),
                _gigabytes(gpu.memory_total_bytes),
                gpu.samples,
            )
            for gpu in self.gpus
        )
        note = (
            "NVML, from the first to the last training step: mean power and utilisation, most memory in use. "
            "Utilisation says that some kernel ran, not that the GPU was used well. GB is 10^9 bytes."
        )
        return (Section("GPUs", columns, rows, notes=(note,)),)


def analyze(run: Run) -> Gpus:
    """Summarise every GPU's samples over the training steps.

    Raises:
        MissingInput: There are no samples between the first and the last step.
    """
    if not run.gpus:
        raise MissingInput(run.gpu_notes[0] if run.gpu_notes else "no NVML samples were taken")
    ranks = {rank.device_uuid: rank.rank for rank in run.ranks if rank.device_uuid}
    gpus = [_summarise(gpu, run, ranks.get(gpu.uuid)) for gpu in run.gpus]
    sampled = tuple(gpu for gpu in gpus if gpu is not None)
    if not sampled:
        raise MissingInput("no NVML sample lies between the first and the last training step")
    return Gpus(sampled)


def _summarise(gpu: GpuSamples, run: Run, rank: int | None) -> Gpu | None:
    during = _during_training(gpu.t_ns, run, gpu.host)
    if not during.any():
        return None
    power_w, util_percent = _mean(gpu.power_mw[during]), _mean(gpu.util_percent[during])
    used = gpu.memory_used_bytes[during].compressed()
    return Gpu(
        host=gpu.host,
        uuid=gpu.uuid,
        name=gpu.name,
        rank=rank,
        samples=int(during.sum()),
        power_w=None if power_w is None else power_w / 1e3,
        power_limit_w=None if gpu.power_limit_mw is None else gpu.power_limit_mw / 1e3,
        util_percent=util_percent,
        memory_used_bytes=int(used.max()) if len(used) else None,
        memory_total_bytes=gpu.memory_total_bytes,
    )


def _during_training(t_ns: np.ndarray, run: Run, host: str) -> np.ndarray:
    here = {(rank.rank, rank.attempt) for rank in run.ranks if rank.host == host}
    ends: Sequence[np.ndarray] = [table.end_ns for table in run.steps if (table.rank, table.attempt) in here]
    if not ends:
        return np.zeros(len(t_ns), bool)
    first, last = min(int(end[0]) for end in ends), max(int(end[-1]) for end in ends)
    return np.asarray((t_ns >= first) & (t_ns <= last))


def _mean(column: np.ma.MaskedArray) -> float | None:
    known = column.compressed()
    return float(known.mean()) if len(known) else None


def _gigabytes(count: int | None) -> float | None:
    return None if count is None else count / 1e9
