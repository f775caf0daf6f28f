"""Power, utilisation, clock, temperature, memory and link traffic of each GPU during training.

Means are over the samples between the first and the last training step of the host's ranks. NVML's utilisation is the
share of its own sampling period in which any kernel ran: 100 % means that the GPU was never idle, not that it was used
well. Link rates are the change of byte counters over time: each direction, all NVLinks of a GPU together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import numpy as np

from perfscope.constants import KIB, KILO, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.measures.gpu_steps import GpuOfRanks, find_device_ranks, ranks_on_gpu, require_samples
from perfscope.measures.rank_labels import rank_cell
from perfscope.measures.readings import read_column
from perfscope.measures.statistics import maximum, mean
from perfscope.report import Section, in_unit
from perfscope.result import GIGABYTES, Column, Doc, ResultList, Table
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.gpus import GpuSamples
from perfscope.tables.run import Run

#: As observed on H200 with driver 580.
_PCIE_WRAP = 2**32


class GpuUsage(GpuOfRanks, frozen=True):
    """An entry of ``results.gpus``; means are over NVML's samples between the first and the last step."""

    samples: Annotated[int, Doc("How many samples the means are over.")]
    power_w: Annotated[float | None, Doc("Mean power.")]
    power_limit_w: Annotated[float | None, Doc("The enforced limit.")]
    power_limit_default_w: Annotated[float | None, Doc("Its default limit.")]
    util_percent: Annotated[float | None, Doc("Mean utilisation: share of NVML's period in which any kernel ran.")]
    sm_clock_mhz: Annotated[float | None, Doc("Mean clock of its multiprocessors.")]
    sm_clock_max_mhz: Annotated[int | None, Doc("Their maximum clock.")]
    temperature_c: Annotated[int | None, Doc("Maximum temperature.")]
    memory_used_bytes: Annotated[int | None, Doc("Most memory in use, other processes included.")]
    memory_total_bytes: Annotated[int | None, Doc("Its memory.")]
    nvlink_tx_bytes_per_s: Annotated[float | None, Doc("Mean rate of sending over all its NVLinks.")]
    nvlink_rx_bytes_per_s: Annotated[float | None, Doc("Mean rate of receiving over all its NVLinks.")]
    pcie_tx_bytes_per_s: Annotated[float | None, Doc("Mean rate of sending over PCIe.")]
    pcie_rx_bytes_per_s: Annotated[float | None, Doc("Mean rate of receiving over PCIe.")]
    lost: Annotated[bool, Doc("Whether it stopped answering.")]


class Gpus(ResultList, frozen=True):
    """``results.gpus``: every GPU that was sampled and that a rank could have used."""

    gpus: tuple[GpuUsage, ...]
    notes: tuple[str, ...]

    TABLES = (
        Table(
            "GPUs",
            "gpus",
            (
                Column("Host", "host"),
                Column("Rank", "ranks", rank_cell),
                Column("GPU", "name"),
                Column("Power (W)", "power_w"),
                Column("Limit (W)", "power_limit_w", None, 0),
                Column("NVML util. (%)", "util_percent"),
                Column("SM clock (MHz)", "sm_clock_mhz", None, 0),
                Column("Max temp. (C)", "temperature_c", None, 0),
                Column("Max memory (GB)", "memory_used_bytes", GIGABYTES),
                Column("Total memory (GB)", "memory_total_bytes", GIGABYTES),
                Column("Samples", "samples"),
            ),
        ),
        Table(
            "Links",
            "gpus",
            (
                Column("Host", "host"),
                Column("Rank", "ranks", rank_cell),
                Column("NVLink tx (GB/s)", "nvlink_tx_bytes_per_s", GIGABYTES, 2),
                Column("NVLink rx (GB/s)", "nvlink_rx_bytes_per_s", GIGABYTES, 2),
                Column("PCIe tx (GB/s)", "pcie_tx_bytes_per_s", GIGABYTES, 2),
                Column("PCIe rx (GB/s)", "pcie_rx_bytes_per_s", GIGABYTES, 2),
            ),
        ),
    )

    def sections(self) -> tuple[Section, ...]:
        """A row a GPU; its links, where any is measured, in a table of their own."""
        table, links = self.TABLES
        note = (
            "NVML, from the first to the last training step: mean power, clock and utilisation; maximum memory in use. "
            "Utilisation is the share of time in which any kernel ran, not how well the GPU was used. GB is 10^9 bytes."
        )
        sections = [table.section(self.gpus, (note, *self.notes))]
        rates = links.section(self.gpus, ["Means over training, windows included."])
        if any(rate is not None for row in rates.rows for rate in row[2:]):
            sections.append(rates)
        return tuple(sections)


def analyze(run: Run) -> Gpus:
    """Summarize every GPU's samples over the training steps; MissingInput where there are none, or no GPU."""
    visible = []
    for gpu in require_samples(run):  # assumed where it is unknown what a rank of the host could see
        seen_by = [rank.visible_uuids for rank in run.ranks if rank.host == gpu.host]
        if not seen_by or any(seen is None or gpu.uuid in seen for seen in seen_by):
            visible.append(gpu)
    if not visible:
        raise MissingInput("CUDA_VISIBLE_DEVICES leaves the ranks none of the sampled GPUs")
    ranks_by_device = find_device_ranks(run.ranks)
    gpus = (_summarize(gpu, run, ranks_on_gpu(gpu, ranks_by_device)) for gpu in visible)
    sampled = tuple(gpu for gpu in gpus if gpu is not None)
    if not sampled:
        raise MissingInput("no NVML sample lies between the first and the last training step")
    return Gpus(sampled, _notes(sampled, run, len(run.gpus) - len(visible)))


def _summarize(gpu: GpuSamples, run: Run, ranks: tuple[int, ...]) -> GpuUsage | None:
    during = _during_training(gpu.t_ns, run, gpu.host)
    if not during.any():
        return None
    return GpuUsage(
        host=gpu.host,
        uuid=gpu.uuid,
        name=gpu.name,
        ranks=ranks,
        samples=int(during.sum()),
        power_w=in_unit(mean(gpu.power_mw[during]), KILO),
        power_limit_w=in_unit(gpu.power_limit_mw, KILO),
        power_limit_default_w=in_unit(gpu.power_limit_default_mw, KILO),
        util_percent=mean(gpu.util_percent[during]),
        sm_clock_mhz=mean(gpu.sm_clock_mhz[during]),
        sm_clock_max_mhz=gpu.sm_clock_max_mhz,
        temperature_c=maximum(gpu.temperature_c[during]),
        memory_used_bytes=maximum(gpu.memory_used_bytes[during]),
        memory_total_bytes=gpu.memory_total_bytes,
        nvlink_tx_bytes_per_s=_rate(gpu, "nvlink_tx_kib", during),
        nvlink_rx_bytes_per_s=_rate(gpu, "nvlink_rx_kib", during),
        pcie_tx_bytes_per_s=_rate(gpu, "pcie_tx_bytes", during),
        pcie_rx_bytes_per_s=_rate(gpu, "pcie_rx_bytes", during),
        lost=gpu.lost_ns is not None,
    )


def _during_training(t_ns: Int64, run: Run, host: str) -> Bool:
    host_ranks = {(rank.rank, rank.attempt) for rank in run.ranks if rank.host == host}
    step_ends = [table.end_ns for table in run.steps if (table.rank, table.attempt) in host_ranks]
    if not step_ends:
        return np.zeros(len(t_ns), bool)
    first, last = min(int(ends[0]) for ends in step_ends), max(int(ends[-1]) for ends in step_ends)
    return np.asarray((t_ns >= first) & (t_ns <= last))


def _rate(gpu: GpuSamples, counter: str, during: Bool) -> float | None:
    """Bytes/s of a counter. NVLink's counts KiB, and may be reset; PCIe's wraps around at 2^32 bytes."""
    column = gpu.counters.get(counter)
    readings = None if column is None else read_column(gpu.t_ns[during], column[during])
    is_pcie = counter.startswith("pcie")
    if readings is None or not readings.span_ns or (readings.decreases and not is_pcie):
        return None
    changes = np.diff(readings.value)
    if is_pcie and readings.value.max() < _PCIE_WRAP:
        changes %= _PCIE_WRAP
    return float(changes.sum()) * (1 if is_pcie else KIB) / (readings.span_ns / NS_PER_S)


def _notes(gpus: Sequence[GpuUsage], run: Run, hidden: int) -> tuple[str, ...]:
    notes = []
    for limit, default in sorted({(gpu.power_limit_w, gpu.power_limit_default_w) for gpu in gpus}, key=str):
        if limit is not None and default is not None and limit < default:
            capped = [gpu for gpu in gpus if (gpu.power_limit_w, gpu.power_limit_default_w) == (limit, default)]
            notes.append(
                f"Power is capped at {limit:.0f} W on {len(capped)} GPUs, below their default of {default:.0f} W."
            )
    notes += [f"{gpu.host} {gpu.uuid} stopped answering NVML during training." for gpu in gpus if gpu.lost]
    if hidden:
        notes.append(
            f"{hidden} GPUs of these hosts are excluded, because no rank could see them (CUDA_VISIBLE_DEVICES)."
        )
    lost = {gpu.uuid for gpu in gpus if gpu.lost}
    notes += [f"{note}." for note in run.gpu_notes if not any(uuid in note for uuid in lost)]
    return tuple(notes)
