"""What NVML told of one GPU while a run went on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfscope.tables import Int64


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of a GPU that CUDA sees as a device of its own; power and clocks are the whole GPU's.

    Attributes:
        uuid: What NVML and CUDA call it.
        name: Its profile, such as ``1g.18gb``.
        gpu_instance, compute_instance: Its numbers on the GPU; None where they were not told.
        memory_total_bytes: Its memory; None where it was not told.
    """

    uuid: str
    name: str
    gpu_instance: int | None
    compute_instance: int | None
    memory_total_bytes: int | None


@dataclass(frozen=True, slots=True, eq=False)
class GpuSamples:
    """The samples of one GPU, in order of time. A value that was not told or not read then is masked.

    Attributes:
        host: Its machine.
        uuid: What NVML and CUDA both call it.
        name: Its model.
        index: Its number on the machine, in the order of PCI buses.
        power_limit_mw: The enforced power limit; None where it was not told.
        power_limit_default_mw: The limit that it was built with; None where it was not told.
        memory_total_bytes: Its memory; None where it was not told.
        sm_clock_max_mhz: The fastest clock of its multiprocessors; None where it was not told.
        instances: Its MIG instances; empty without MIG.
        lost_ns: When it stopped to answer; None where it did not.
        t_ns: When the sample was taken, on the host's monotonic clock.
        power_mw: Power draw, NVML's mean over its own period.
        util_percent: Share of NVML's period in which any kernel ran.
        memory_used_bytes: Memory in use by all processes.
        sm_clock_mhz: Clock of the multiprocessors.
        temperature_c: Temperature.
        throttle: Why the clock is held down, NVML's bits; 0 is no reason.
        energy_mj: Energy since the driver was loaded.
        energy_t_ns: When that was read.
        counters: Other counters since the driver was loaded, by their names in the records: ``nvlink_tx_kib``,
            ``pcie_rx_bytes``, ``sw_power_cap_ns`` and so on.
        pcie_kb_per_s: Transmitted and received, where PCIe has no counters: means over 20 ms.
    """

    host: str
    uuid: str
    name: str
    index: int | None
    power_limit_mw: int | None
    power_limit_default_mw: int | None
    memory_total_bytes: int | None
    sm_clock_max_mhz: int | None
    instances: tuple[MigInstance, ...]
    lost_ns: int | None
    t_ns: Int64
    power_mw: np.ma.MaskedArray[Any, Any]
    util_percent: np.ma.MaskedArray[Any, Any]
    memory_used_bytes: np.ma.MaskedArray[Any, Any]
    sm_clock_mhz: np.ma.MaskedArray[Any, Any]
    temperature_c: np.ma.MaskedArray[Any, Any]
    throttle: np.ma.MaskedArray[Any, Any]
    energy_mj: np.ma.MaskedArray[Any, Any]
    energy_t_ns: np.ma.MaskedArray[Any, Any]
    counters: Mapping[str, np.ma.MaskedArray[Any, Any]]
    pcie_kb_per_s: tuple[np.ma.MaskedArray[Any, Any], np.ma.MaskedArray[Any, Any]]
