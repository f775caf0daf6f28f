"""NVML samples of one GPU during a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from perfscope.tables.columns import Int64, MaskedInt64


@dataclass(frozen=True, slots=True, eq=False)
class GpuSamples:
    """The samples of one GPU, in order of time. A value that was not reported or not read then is masked.

    Attributes:
        index: Its number on the machine, in the order of PCI buses.
        power_limit_mw: The enforced power limit; this and what follows to ``sm_clock_max_mhz`` is None where unknown.
        lost_ns: When it stopped answering; None where it did not.
        t_ns: When the sample was taken, on the host's monotonic clock.
        power_mw: Power draw, NVML's mean over its own period.
        util_percent: Share of NVML's period in which any kernel ran.
        memory_used_bytes: Memory in use by all processes.
        throttle: Why the clock is reduced, NVML's bits; 0 is no reason.
        counters: Other counters since the driver was loaded, by their names in the records: ``nvlink_tx_kib``,
            ``pcie_rx_bytes``, ``sw_power_cap_ns`` and so on.
    """

    host: str
    uuid: str
    name: str
    index: int | None
    power_limit_mw: int | None
    power_limit_default_mw: int | None
    memory_total_bytes: int | None
    sm_clock_max_mhz: int | None
    lost_ns: int | None
    t_ns: Int64
    power_mw: MaskedInt64
    util_percent: MaskedInt64
    memory_used_bytes: MaskedInt64
    sm_clock_mhz: MaskedInt64
    temperature_c: MaskedInt64
    throttle: MaskedInt64
    counters: Mapping[str, MaskedInt64]
