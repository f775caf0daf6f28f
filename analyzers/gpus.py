"""What each GPU drew, how busy NVML saw it, how fast it ran and what its links carried while training went on.

Means are over the samples between the first and the last training step of the host's ranks. NVML's utilisation is the
share of its own sampling period in which any kernel ran: 100 % says that the GPU was never left alone, not that it was
used well. Links are counters of bytes, taken apart by time: both directions, all NVLinks of a GPU together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from perfscope.analyzers.shared.gpu_steps import ranks_of_devices, ranks_on, ranks_text
from perfscope.errors import MissingInput
from perfscope.report import Cell, Column, Json, Section
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Run

_KIB = 1024
_PCIE = ("pcie_tx_bytes", "pcie_rx_bytes")
#: As seen on H200 with driver 580.
_PCIE_WRAP = 2**32


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU. What NVML does not tell is absent.

    Attributes:
        host, uuid, name: Which one.
        ranks: The ranks that trained on it; empty where none did, or where the ranks' devices are not known.
        mig_instances: Its MIG instances; 0 without MIG.
        samples: How many samples the means are over.
        power_w: Mean power.
        power_limit_w: The enforced limit.
        power_limit_default_w: The limit that it was built with.
        util_percent: Mean utilisation.
        sm_clock_mhz: Mean clock of its multiprocessors.
        sm_clock_max_mhz: The fastest that they have.
        temperature_c: Highest temperature.
        memory_used_bytes: Most memory in use, other processes included.
        memory_total_bytes: Its memory.
        nvlink_tx_bytes_per_s, nvlink_rx_bytes_per_s: Mean rate over all its NVLinks.
        pcie_tx_bytes_per_s, pcie_rx_bytes_per_s: Mean rate over PCIe.
        lost: It stopped to answer.
    """

    host: str
    uuid: str
    name: str
    ranks: tuple[int, ...]
    mig_instances: int
    samples: int
    power_w: float | None
    power_limit_w: float | None
    power_limit_default_w: float | None
    util_percent: float | None
    sm_clock_mhz: float | None
    sm_clock_max_mhz: int | None
    temperature_c: int | None
    memory_used_bytes: int | None
    memory_total_bytes: int | None
    nvlink_tx_bytes_per_s: float | None
    nvlink_rx_bytes_per_s: float | None
    pcie_tx_bytes_per_s: float | None
    pcie_rx_bytes_per_s: float | None
    lost: bool


@dataclass(frozen=True, slots=True)
class Gpus:
    """Every GPU that was sampled and that a rank could have used.

    Attributes:
        gpus: The GPUs.
        notes: What a reader must know.
        most_of_pcie_bytes_per_s: PCIe rates above this are shown too low; absent where no counter was read.
    """

    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...]
    most_of_pcie_bytes_per_s: float | None

    def data(self) -> Json:
        """The value of ``results.gpus``."""
        return [{**asdict(gpu), "ranks": list(gpu.ranks)} for gpu in self.gpus]

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU; its links in a table of their own."""
        columns = (
            Column("Host"),
            Column("Rank"),
            Column("GPU"),
            Column("Power (W)"),
            Column("Limit (W)", 0),
            Column("NVML util. (%)"),
            Column("SM clock (MHz)", 0),
            Column("Hottest (C)", 0),
            Column("Memory used (GB)"),
            Column("of (GB)"),
            Column("Samples"),
        )
        rows = tuple(
            (
                gpu.host,
                ranks_text(gpu.ranks),
                gpu.name + (f" ({gpu.mig_instances} MIG)" if gpu.mig_instances else ""),
                gpu.power_w,
                gpu.power_limit_w,
                gpu.util_percent,
                gpu.sm_clock_mhz,
                gpu.temperature_c,
                _gigabytes(gpu.memory_used_bytes),
                _gigabytes(gpu.memory_total_bytes),
                gpu.samples,
            )
            for gpu in self.gpus
        )
        note = (
            "NVML, from the first to the last training step: mean power, clock and utilisation, most memory in use. "
            "Utilisation says that some kernel ran, not that the GPU was used well. GB is 10^9 bytes."
        )
        return (Section("GPUs", columns, rows, notes=(note, *self.notes)), *self._links())

    def _links(self) -> tuple[Section, ...]:
        rows = [
            (
                gpu,
                [
                    gpu.nvlink_tx_bytes_per_s,
                    gpu.nvlink_rx_bytes_per_s,
                    gpu.pcie_tx_bytes_per_s,
                    gpu.pcie_rx_bytes_per_s,
                ],
            )
            for gpu in self.gpus
        ]
        if not any(rate is not None for _, rates in rows for rate in rates):
            return ()
        columns = (
            Column("Host"),
            Column("Rank"),
            Column("NVLink sent (GB/s)", 2),
            Column("received (GB/s)", 2),
            Column("PCIe sent (GB/s)", 2),
            Column("received (GB/s)", 2),
        )
        cells: tuple[tuple[Cell, ...], ...] = tuple(
            (gpu.host, ranks_text(gpu.ranks), *(_gigabytes(rate) for rate in rates)) for gpu, rates in rows
        )
        notes = ["Means over training, windows included."]
        if self.most_of_pcie_bytes_per_s is not None:
            most = self.most_of_pcie_bytes_per_s / 1e9
            notes.append(
                f"PCIe's counters begin again at 4.3 GB (2^32 bytes): as they were read here, rates above {most:.1f} "
                "GB/s would be shown too low."
            )
        return (Section("Links", columns, cells, notes=tuple(notes)),)


def analyze(run: Run) -> Gpus:
    """Summarise every GPU's samples over the training steps.

    Raises:
        MissingInput: There are no samples between the first and the last step, or no rank could see a GPU.
    """
    if not run.gpus:
        raise MissingInput(run.gpu_notes[0] if run.gpu_notes else "no NVML samples were taken")
    visible = [gpu for gpu in run.gpus if _is_visible(gpu, run)]
    if not visible:
        raise MissingInput("CUDA_VISIBLE_DEVICES leaves the ranks none of the sampled GPUs")
    on = ranks_of_devices(run.ranks)
    gpus = [_summarise(gpu, run, ranks_on(gpu, on)) for gpu in visible]
    sampled = tuple(gpu for gpu in gpus if gpu is not None)
    if not sampled:
        raise MissingInput("no NVML sample lies between the first and the last training step")
    return Gpus(sampled, _notes(sampled, run, len(run.gpus) - len(visible)), _most_of_pcie(run))


def _is_visible(gpu: GpuSamples, run: Run) -> bool:
    """Whether a rank of the host could see it; where that is not known of one rank, it could."""
    uuids = {gpu.uuid, *(instance.uuid for instance in gpu.instances)}
    seen = [rank.visible_uuids for rank in run.ranks if rank.host == gpu.host]
    return not seen or any(one is None or uuids & set(one) for one in seen)


def _summarise(gpu: GpuSamples, run: Run, ranks: tuple[int, ...]) -> Gpu | None:
    during = _during_training(gpu.t_ns, run, gpu.host)
    if not during.any():
        return None
    power_w = _mean(gpu.power_mw[during])
    return Gpu(
        host=gpu.host,
        uuid=gpu.uuid,
        name=gpu.name,
        ranks=ranks,
        mig_instances=len(gpu.instances),
        samples=int(during.sum()),
        power_w=None if power_w is None else power_w / 1e3,
        power_limit_w=None if gpu.power_limit_mw is None else gpu.power_limit_mw / 1e3,
        power_limit_default_w=None if gpu.power_limit_default_mw is None else gpu.power_limit_default_mw / 1e3,
        util_percent=_mean(gpu.util_percent[during]),
        sm_clock_mhz=_mean(gpu.sm_clock_mhz[during]),
        sm_clock_max_mhz=gpu.sm_clock_max_mhz,
        temperature_c=_most(gpu.temperature_c[during]),
        memory_used_bytes=_most(gpu.memory_used_bytes[during]),
        memory_total_bytes=gpu.memory_total_bytes,
        nvlink_tx_bytes_per_s=_rate(gpu, "nvlink_tx_kib", during, _KIB),
        nvlink_rx_bytes_per_s=_rate(gpu, "nvlink_rx_kib", during, _KIB),
        pcie_tx_bytes_per_s=_pcie(gpu, 0, during),
        pcie_rx_bytes_per_s=_pcie(gpu, 1, during),
        lost=gpu.lost_ns is not None,
    )


def _during_training(t_ns: np.ndarray, run: Run, host: str) -> np.ndarray:
    here = {(rank.rank, rank.attempt) for rank in run.ranks if rank.host == host}
    ends: Sequence[np.ndarray] = [table.end_ns for table in run.steps if (table.rank, table.attempt) in here]
    if not ends:
        return np.zeros(len(t_ns), bool)
    first, last = min(int(end[0]) for end in ends), max(int(end[-1]) for end in ends)
    return np.asarray((t_ns >= first) & (t_ns <= last))


def _rate(gpu: GpuSamples, counter: str, during: np.ndarray, unit: int) -> float | None:
    """Bytes a second between a counter's first and last reading; absent where it went back."""
    times, counts = _readings(gpu, counter, during)
    if len(times) < 2 or (np.diff(counts) < 0).any():  # noqa: PLR2004 - a difference has two ends
        return None
    return float(counts[-1] - counts[0]) * unit / (float(times[-1] - times[0]) / 1e9)


def _pcie(gpu: GpuSamples, direction: int, during: np.ndarray) -> float | None:
    """By the counters, which begin again at 2^32 bytes, else the mean of what was sampled over 20 ms at a time."""
    times, counts = _readings(gpu, _PCIE[direction], during)
    if len(times) > 1:
        moved = np.diff(counts) % _PCIE_WRAP if counts.max() < _PCIE_WRAP else np.diff(counts)
        return float(moved.sum()) / (float(times[-1] - times[0]) / 1e9)
    sampled = _mean(gpu.pcie_kb_per_s[direction][during])
    return None if sampled is None else sampled * 1e3


def _readings(gpu: GpuSamples, counter: str, during: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """When a counter was read while training went on, and what it was."""
    values = gpu.counters.get(counter)
    if values is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    told = during & ~np.ma.getmaskarray(values)
    return gpu.t_ns[told], np.asarray(values.data)[told]


def _most_of_pcie(run: Run) -> float | None:
    """The fastest rate, in bytes a second, at which PCIe's counters do not turn unseen between two readings."""
    spans = [
        int(np.diff(gpu.t_ns[~np.ma.getmaskarray(values)]).max())
        for gpu in run.gpus
        if (values := gpu.counters.get(_PCIE[0])) is not None and values.count() > 1
    ]
    return _PCIE_WRAP / (max(spans) / 1e9) if spans else None


def _notes(gpus: Sequence[Gpu], run: Run, hidden: int) -> tuple[str, ...]:
    notes = []
    for limit, default in sorted({(gpu.power_limit_w, gpu.power_limit_default_w) for gpu in gpus}, key=str):
        if limit is not None and default is not None and limit < default:
            capped = [gpu for gpu in gpus if (gpu.power_limit_w, gpu.power_limit_default_w) == (limit, default)]
            notes.append(
                f"Power is capped at {limit:.0f} W on {len(capped)} GPUs, below their default of {default:.0f} W."
            )
    if any(gpu.mig_instances for gpu in gpus):
        notes.append(
            "Power, clock and temperature of a GPU with MIG are those of the whole GPU, shared by its instances."
        )
    notes += [f"{gpu.host} {gpu.uuid} stopped to answer NVML while training went on." for gpu in gpus if gpu.lost]
    if hidden:
        notes.append(f"{hidden} GPUs of these hosts that no rank could see (CUDA_VISIBLE_DEVICES) are left out.")
    lost = {gpu.uuid for gpu in gpus if gpu.lost}
    notes += [f"{note}." for note in run.gpu_notes if not any(uuid in note for uuid in lost)]
    return tuple(notes)


def _most(column: np.ma.MaskedArray) -> int | None:
    known = column.compressed()
    return int(known.max()) if len(known) else None


def _mean(column: np.ma.MaskedArray) -> float | None:
    known = column.compressed()
    return float(known.mean()) if len(known) else None


def _gigabytes(count: float | None) -> float | None:
    return None if count is None else count / 1e9
