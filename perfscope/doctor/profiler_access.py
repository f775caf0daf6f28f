"""Whether another profiler or the driver's permissions keep the GPU profiler (CUPTI) from this user."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from perfscope.doctor.check import Check, ok, warn
from perfscope.hooks.profiler.window_schedule import find_profiler_variable

_PROFILER_PROCESSES = ("nv-hostengine", "dcgm-exporter", "ncu", "nsys")


def check_other_profilers() -> Check:
    """Look for profilers that may hold CUPTI, which one process at a time can use."""
    variable = find_profiler_variable(os.environ)
    if variable is not None:
        return warn("Other profilers", f"{variable} is set, so no window is profiled", "run without that profiler")
    running = sorted({name for name in _process_names() if name in _PROFILER_PROCESSES})
    if running:
        return warn(
            "Other profilers",
            f"{', '.join(running)} runs here",
            "where kernels are missing from traces: dcgmi profile --pause, and --resume afterwards",
        )
    return ok("Other profilers", "none: no DCGM, no Nsight")


def check_permissions(gpus: int, parameters: Path = Path("/proc/driver/nvidia/params")) -> Check:
    """Check whether the driver restricts performance counters to administrators."""
    if not gpus or not parameters.exists():
        return ok("Permissions", "no NVIDIA driver, no permission needed")
    lines = dict(line.split(":", 1) for line in parameters.read_text().splitlines() if ":" in line)
    is_restricted = lines.get("RmProfilingAdminOnly", "0").strip() == "1"
    if not is_restricted:
        return ok("Permissions", "performance counters are open to all users")
    if os.geteuid() == 0:
        return ok("Permissions", "performance counters are restricted to root, and this is root")
    return warn(
        "Permissions",
        "performance counters are restricted to administrators (RmProfilingAdminOnly is 1)",
        "traces do not need them; if CUPTI fails above: nvidia module option NVreg_RestrictProfilingToAdminUsers=0",
    )


def _process_names() -> Iterable[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "comm").read_text().strip()
        except OSError:
            continue  # the process has ended
