"""The files that the NVML sampler writes: ``RUN/nvml/HOST.jsonl``, the GPUs in the first line, then a line a sample."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfscope import wire
from perfscope.sources.masking import masked
from perfscope.tables.gpus import GpuSamples


class _Gpu(msgspec.Struct):
    """A GPU in the first line, or its values in a sample."""

    uuid: str = ""
    name: str = ""
    power_limit_mw: int | None = None
    memory_total_bytes: int | None = None
    power_mw: int | None = None
    gpu_util_percent: int | None = None
    memory_used_bytes: int | None = None


class _Line(msgspec.Struct):
    t_ns: int = 0
    gpus: list[_Gpu] = []
    note: str = ""


def read_gpus(run: Path, damage: list[str]) -> tuple[tuple[GpuSamples, ...], tuple[str, ...]]:
    """Read every host's samples.

    Args:
        run: The run's folder.
        damage: Gets a line for each file that ends in half a line or is not what it should be.

    Returns:
        The GPUs, and the notes of hosts without NVML.
    """
    gpus: list[GpuSamples] = []
    notes: list[str] = []
    for path in sorted((run / wire.NVML).glob("*.jsonl")):
        lines = _read_lines(path, damage)
        notes += [f"{path.stem}: {line.note}" for line in lines if line.note]
        lines = [line for line in lines if not line.note]
        if lines:
            gpus += _gpus(path.stem, lines[0].gpus, lines[1:])
    return tuple(gpus), tuple(notes)


def _read_lines(path: Path, damage: list[str]) -> list[_Line]:
    decode = msgspec.json.Decoder(_Line).decode
    lines = []
    for line in path.read_bytes().split(b"\n"):
        if not line:
            continue
        try:
            lines.append(decode(line))
        except msgspec.MsgspecError:
            damage.append(f"{wire.NVML}/{path.name} holds a line that cannot be read")
    return lines


def _gpus(host: str, known: Sequence[_Gpu], samples: Sequence[_Line]) -> list[GpuSamples]:
    whole = [sample for sample in samples if len(sample.gpus) == len(known)]

    def column(index: int, field: str) -> np.ma.MaskedArray[Any, Any]:
        return masked([getattr(sample.gpus[index], field) for sample in whole])

    return [
        GpuSamples(
            host=host,
            uuid=gpu.uuid,
            name=gpu.name,
            power_limit_mw=gpu.power_limit_mw,
            memory_total_bytes=gpu.memory_total_bytes,
            t_ns=np.asarray([sample.t_ns for sample in whole], np.int64),
            power_mw=column(index, "power_mw"),
            util_percent=column(index, "gpu_util_percent"),
            memory_used_bytes=column(index, "memory_used_bytes"),
        )
        for index, gpu in enumerate(known)
    ]
