"""The files that the NVML sampler writes: ``RUN/nvml/HOST.jsonl``, the GPUs in the first line, then a line a sample.

A node that was sampled again, after a restart, or whose file was full, has ``HOST.1.jsonl`` and so on. Full ones are
compressed: ``HOST.jsonl.gz``, ``HOST.1.jsonl.gz``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from perfscope import wire
from perfscope.files import open_regular, read_compressed
from perfscope.sources.runs.records import DAMAGE, require_possible
from perfscope.tables.columns import Int64, MaskedInt64, join, masked
from perfscope.tables.gpus import GpuSamples

#: Counters of ``GpuSamples.counters``.
COUNTERS = (
    "nvlink_tx_kib", "nvlink_rx_kib", "pcie_tx_bytes", "pcie_rx_bytes",
    "sw_power_cap_ns", "sync_boost_ns", "sw_thermal_ns", "hw_thermal_ns", "hw_power_brake_ns",
)  # fmt: skip


class GpuValues(msgspec.Struct):
    """A GPU in a first line, or its values in a sample; readers that need it add the host."""

    host: str = ""
    uuid: str = ""
    name: str = ""
    index: int | None = None
    power_limit_mw: int | None = None
    power_limit_default_mw: int | None = None
    memory_total_bytes: int | None = None
    sm_clock_max_mhz: int | None = None
    mig: bool = False
    power_mw: int | None = None
    gpu_util_percent: int | None = None
    memory_used_bytes: int | None = None
    sm_clock_mhz: int | None = None
    temperature_c: int | None = None
    throttle: int | None = None
    nvlink_tx_kib: int | None = None
    nvlink_rx_kib: int | None = None
    pcie_tx_bytes: int | None = None
    pcie_rx_bytes: int | None = None
    sw_power_cap_ns: int | None = None
    sync_boost_ns: int | None = None
    sw_thermal_ns: int | None = None
    hw_thermal_ns: int | None = None
    hw_power_brake_ns: int | None = None


class _SamplerCost(msgspec.Struct):
    cpu_ns: int = 0
    rounds: int = 0
    late: int = 0


class SampleLine(msgspec.Struct):
    """Any line of a sampler."""

    t_ns: int = 0
    continues: bool = False
    gpus: list[GpuValues] | None = None
    host: str = ""
    note: str = ""
    lost: str = ""
    sampler: _SamplerCost | None = None


_SAMPLED = (
    "power_mw", "gpu_util_percent", "memory_used_bytes", "sm_clock_mhz", "temperature_c", "throttle",
    *COUNTERS,
)  # fmt: skip
_DESCRIBED = (
    "uuid", "name", "index", "power_limit_mw", "power_limit_default_mw", "memory_total_bytes", "sm_clock_max_mhz",
)  # fmt: skip
_CHUNK = 20_000
_COMPRESSED = ".gz"
_UNREADABLE = " cannot be read"
_get_values = attrgetter(*_SAMPLED)


class _SampleColumns:
    """Collects the samples of one GPU, packed as they are read, because a week has millions."""

    def __init__(self) -> None:
        self._packed: list[tuple[Int64, list[MaskedInt64]]] = []
        self._times: list[int] = []
        self._values: list[GpuValues] = []

    def add(self, t_ns: int, values: GpuValues) -> None:
        self._times.append(t_ns)
        self._values.append(values)
        if len(self._times) >= _CHUNK:
            self._pack()

    def _pack(self) -> None:
        columns = zip(*map(_get_values, self._values), strict=True) if self._values else ((),) * len(_SAMPLED)
        self._packed.append((np.asarray(self._times, np.int64), [masked(values) for values in columns]))
        self._times, self._values = [], []

    def concatenate(self) -> tuple[Int64, dict[str, MaskedInt64]]:
        self._pack()
        times = np.concatenate([times for times, _ in self._packed])
        parts = zip(*(columns for _, columns in self._packed), strict=True)
        return times, {name: join(columns) for name, columns in zip(_SAMPLED, parts, strict=True)}


@dataclass(slots=True)
class _Host:
    """All files of one host, in the order of their first lines; GPUs by their UUIDs."""

    gpus: dict[str, GpuValues] = field(default_factory=dict)
    samples: dict[str, _SampleColumns] = field(default_factory=dict)
    lost_ns: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_gpus(run: Path, damage: list[str]) -> tuple[tuple[GpuSamples, ...], tuple[str, ...]]:
    """The samples of a run's GPUs, and notes: hosts without NVML, lost GPUs, the cost of the sampler.

    ``damage`` gets a text for each line that cannot be read.
    """
    hosts: dict[str, _Host] = {}
    for name, files in _files_of_samplers(run / wire.NVML_FOLDER, damage):
        _add_lines(hosts.setdefault(name, _Host()), (line for file in files for line in file))
    gpus = [
        _to_samples(name, host.gpus[uuid], samples, host.lost_ns.get(uuid))
        for name, host in sorted(hosts.items())
        for uuid, samples in host.samples.items()
    ]
    notes = [f"{name}: {note}" for name, host in sorted(hosts.items()) for note in dict.fromkeys(host.notes)]
    return tuple(gpus), tuple(notes)


def _files_of_samplers(folder: Path, damage: list[str]) -> list[tuple[str, list[Iterable[SampleLine]]]]:
    """The files of each sampler: its host and their lines, in the order of time."""
    firsts: dict[tuple[str, int], tuple[SampleLine, Path]] = {}
    for path in sorted(folder.glob("*.jsonl")) + sorted(folder.glob(f"*.jsonl{_COMPRESSED}")):
        first = _first_line(path, damage)
        if first is not None:  # a compressed file takes the place of its lines
            firsts[first.host or path.name.partition(".jsonl")[0], first.t_ns or -len(firsts)] = first, path
    samplers: list[tuple[str, list[Iterable[SampleLine]]]] = []
    latest: dict[str, list[Iterable[SampleLine]]] = {}
    for (host, _), (first, path) in sorted(firsts.items(), key=lambda item: (item[1][0].t_ns, item[1][1].name)):
        if not first.continues or host not in latest:
            latest[host] = []
            samplers.append((host, latest[host]))
        latest[host].append(_lines(path, damage))
    return samplers


def _first_line(path: Path, damage: list[str]) -> SampleLine | None:
    """The description of the GPUs, or why there are none; None where the file cannot be read."""
    unread: list[str] = []
    first = next(_lines(path, unread), None)
    if first is None and any(text.endswith(_UNREADABLE) for text in unread):
        damage.append(f"{wire.NVML_FOLDER}/{path.name}{_UNREADABLE}")
        return None
    return first or SampleLine()


def _lines(path: Path, damage: list[str]) -> Iterator[SampleLine]:
    decode = msgspec.json.Decoder(SampleLine).decode
    if not path.exists() and path.suffix != _COMPRESSED:
        path = path.with_name(path.name + _COMPRESSED)  # it was compressed after it was listed
    try:
        with io.BytesIO(read_compressed(path)) if path.suffix == _COMPRESSED else open_regular(path) as file:
            for line in file:
                try:
                    require_possible(line)
                    yield decode(line)
                except DAMAGE:
                    damage.append(f"{wire.NVML_FOLDER}/{path.name} holds a line that cannot be read")
    except OSError:
        damage.append(f"{wire.NVML_FOLDER}/{path.name}{_UNREADABLE}")


def _add_lines(host: _Host, lines: Iterable[SampleLine]) -> None:
    uuids: list[str] = []
    began_ns, cost = 0, None
    for line in lines:
        if line.note:
            host.notes.append(line.note)
        elif line.lost:
            host.lost_ns.setdefault(line.lost, line.t_ns)
            host.notes.append(f"{line.lost} stopped answering NVML")
        elif line.sampler is not None:
            cost = line
        elif line.gpus is not None and any(gpu.uuid for gpu in line.gpus):
            began_ns = began_ns if line.continues else line.t_ns
            uuids = [gpu.uuid for gpu in line.gpus]
            for gpu in line.gpus:
                host.gpus[gpu.uuid] = gpu
                host.samples.setdefault(gpu.uuid, _SampleColumns())
        elif line.gpus is not None and len(line.gpus) == len(uuids):
            for uuid, gpu in zip(uuids, line.gpus, strict=True):
                if not host.gpus[uuid].mig:  # its values are those of several devices
                    host.samples[uuid].add(line.t_ns, gpu)
    if cost is not None and cost.sampler is not None and cost.t_ns > began_ns > 0:
        share = cost.sampler.cpu_ns / (cost.t_ns - began_ns)
        late = f"; {cost.sampler.late} of {cost.sampler.rounds} rounds were late" if cost.sampler.late else ""
        host.notes.append(f"the sampler took {100 * share:.1f} % of one core{late}")


def _to_samples(host: str, gpu: GpuValues, samples: _SampleColumns, lost_ns: int | None) -> GpuSamples:
    times, columns = samples.concatenate()
    util_percent, counters = columns.pop("gpu_util_percent"), {name: columns.pop(name) for name in COUNTERS}
    others: dict[str, Any] = {name: getattr(gpu, name) for name in _DESCRIBED} | columns
    return GpuSamples(host=host, lost_ns=lost_ns, t_ns=times, util_percent=util_percent, counters=counters, **others)
