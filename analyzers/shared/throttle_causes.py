"""Why a GPU's clock is not higher, as NVML states it at each sample."""

from __future__ import annotations

#: NVML's bits of the causes that are throttling, and the counter of the time that each was active.
CAUSES = {
    0x004: ("software power cap", "sw_power_cap_ns"),
    0x008: ("hardware slowdown", None),
    0x010: ("sync boost", "sync_boost_ns"),
    0x020: ("software thermal slowdown", "sw_thermal_ns"),
    0x040: ("hardware thermal slowdown", "hw_thermal_ns"),
    0x080: ("hardware power brake", "hw_power_brake_ns"),
    0x200: ("board limit", None),
    0x400: ("reliability voltage", None),
}
