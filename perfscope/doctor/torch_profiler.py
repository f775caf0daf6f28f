"""Whether torch can profile here: a tiny profile is taken, on the CPU and on a GPU where there is one."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from perfscope.doctor.check import Check, fail, ok, warn
from perfscope.doctor.probe import ProbeResult, probe
from perfscope.hooks.profiler.window_schedule import find_profiler_variable

_OLDEST_TORCH = (2, 4)

_PROFILE = """
import os, tempfile
import torch
result["torch"] = torch.__version__
result["cuda"] = torch.version.cuda or torch.version.hip
result["devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
activities = [torch.profiler.ProfilerActivity.CPU]
device = "cpu"
if result["devices"]:
    activities.append(torch.profiler.ProfilerActivity.CUDA)
    device = "cuda"
    result["device"] = torch.cuda.get_device_name(0)
    torch.ones(8, device=device).sum().item()
with torch.profiler.profile(activities=activities) as profiler:
    product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    if result["devices"]:
        torch.cuda.synchronize()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "trace.json")
    profiler.export_chrome_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
result["operators"] = sum(event.get("cat") == "cpu_op" for event in events)
result["kernels"] = sum(event.get("cat") == "kernel" for event in events)
"""


def check_python() -> Check:
    """Name this interpreter."""
    return ok("Python", f"{platform.python_version()} at {sys.executable}")


def check_torch(environment: Mapping[str, str] | None = None, *, gpus: int = 0) -> list[Check]:
    """Check torch, its devices and its profiler.

    Args:
        environment: The environment to check; this process's own where absent.
        gpus: Number of GPUs that NVML reports.
    """
    if find_spec("torch") is None:
        fix = "install perfscope into the environment that trains; reading traces and logs needs no torch"
        return [warn("torch", "not installed here: nothing can be captured", fix)]
    result = probe(_PROFILE, environment)
    if result.values is None:
        return [fail("torch", f"a tiny profile failed: {result.problem}", 'try: python -c "import torch"')]
    checks = [_check_version(result.values), _check_devices(result.values, gpus), _check_operators(result.values)]
    if result.values["devices"]:
        checks.append(_check_kernels(result, environment or os.environ))
    return checks


def _check_version(values: Mapping[str, Any]) -> Check:
    numbers = tuple(int(number) for number in str(values["torch"]).split("+")[0].split(".")[:2])
    if numbers < _OLDEST_TORCH:
        oldest = ".".join(str(number) for number in _OLDEST_TORCH)
        finding = f"{values['torch']}; the hooks are tested from {oldest} on"
        return warn("torch", finding, f"use torch {oldest} or newer")
    return ok("torch", str(values["torch"]))


def _check_devices(values: Mapping[str, Any], gpus: int) -> Check:
    if values["devices"]:
        return ok("CUDA", f"{values['devices']} x {values['device']}, CUDA {values['cuda']}")
    if gpus and values["cuda"]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        cause = f"CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else "the driver may be too old for it"
        return fail("CUDA", f"torch sees none of {gpus} GPUs", f"{cause}; compare nvidia-smi with torch.version.cuda")
    if gpus:
        finding = f"this torch is built without CUDA, and there are {gpus} GPUs"
        return fail("CUDA", finding, "install a CUDA build of torch")
    return warn("CUDA", "no GPU here: CPU runs can be captured, and traces of GPUs can be read")


def _check_operators(values: Mapping[str, Any]) -> Check:
    if values["operators"]:
        return ok("torch.profiler", f"a tiny profile contains {values['operators']} operators")
    return fail("torch.profiler", "a tiny profile contains no operator", "install a torch that is built with Kineto")


def _check_kernels(result: ProbeResult, environment: Mapping[str, str]) -> Check:
    kernels = (result.values or {}).get("kernels")
    if kernels:
        return ok("CUPTI", f"a tiny profile contains {kernels} kernels")
    messages = [line.strip() for line in result.stderr.splitlines() if "CUPTI" in line.upper()]
    variable = find_profiler_variable(environment)
    if variable is not None:
        fix = f"{variable} is set: run without that profiler, which holds CUPTI"
    else:
        fix = "another profiler may hold CUPTI: see DCGM and Nsight below; else update the driver"
    return fail("CUPTI", "a tiny profile contains no kernel" + (f": {messages[-1]}" if messages else ""), fix)
