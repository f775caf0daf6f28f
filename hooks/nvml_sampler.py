"""Samples power, utilisation and memory of every GPU of this node until the rank that started it ends.

Run by itself: ``python -I -S nvml_sampler.py FOLDER_OF_PYNVML HZ PID``. Each sample is a line of JSON::

    {"t_ns": monotonic, "gpus": [{"uuid", "power_mw", "gpu_util_percent", "memory_used_bytes", ...}]}

A value that a GPU does not tell is left out. Only calls that take microseconds are made at this rate.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any


def main(folder: str, hz: float, parent: int) -> None:
    """Sample until the parent is gone."""
    sys.path.append(folder)
    try:
        import pynvml
    except ImportError as error:
        _write({"note": f"NVML is not sampled: {error}"})
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        _write({"note": f"NVML is not sampled: {error}"})
        return
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    _write({"gpus": [_identify(pynvml, handle) for handle in handles]})
    period_s = 1.0 / hz
    due_s = time.monotonic()
    while os.getppid() == parent:
        _write({"t_ns": time.monotonic_ns(), "gpus": [_sample(pynvml, handle) for handle in handles]})
        due_s = max(due_s + period_s, time.monotonic())
        time.sleep(max(0.0, due_s - time.monotonic()))


def _write(value: dict[str, Any]) -> None:
    os.write(1, json.dumps(value, separators=(",", ":")).encode() + b"\n")


def _identify(pynvml: Any, handle: Any) -> dict[str, Any]:
    return _known(
        pynvml,
        {
            "uuid": lambda: pynvml.nvmlDeviceGetUUID(handle),
            "name": lambda: pynvml.nvmlDeviceGetName(handle),
            "power_limit_mw": lambda: pynvml.nvmlDeviceGetEnforcedPowerLimit(handle),
            "memory_total_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).total,
        },
    )


def _sample(pynvml: Any, handle: Any) -> dict[str, Any]:
    return _known(
        pynvml,
        {
            "power_mw": lambda: pynvml.nvmlDeviceGetPowerUsage(handle),
            "gpu_util_percent": lambda: pynvml.nvmlDeviceGetUtilizationRates(handle).gpu,
            "memory_used_bytes": lambda: pynvml.nvmlDeviceGetMemoryInfo(handle).used,
            "sm_clock_mhz": lambda: pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "temperature_c": lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        },
    )


def _known(pynvml: Any, calls: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    values = {}
    for name, call in calls.items():
        try:
            value = call()
        except pynvml.NVMLError:
            continue
        values[name] = value.decode() if isinstance(value, bytes) else value
    return values


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3]))
