"""Python, torch and its profiler: a tiny profile is really taken, on the CPU and on a GPU where there is one."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from perfscope.checkup.probing import Probe, probe
from perfscope.checkup.verdict import Check, fail, ok, warn

OLDEST_TORCH = (2, 4)

_PROFILE = """
import os, tempfile
import torch
answer["torch"] = torch.__version__
answer["cuda"] = torch.version.cuda or torch.version.hip
answer["devices"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
activities = [torch.profiler.ProfilerActivity.CPU]
device = "cpu"
if answer["devices"]:
    activities.append(torch.profiler.ProfilerActivity.CUDA)
    device = "cuda"
    answer["device"] = torch.cuda.get_device_name(0)
    torch.ones(8, device=device).sum().item()
with torch.profiler.profile(activities=activities) as profiler:
    product = torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)
    if answer["devices"]:
        torch.cuda.synchronize()
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "trace.json")
    profiler.export_chrome_trace(path)
    with open(path) as file:
        events = json.load(file)["traceEvents"]
answer["operators"] = sum(event.get("cat") == "cpu_op" for event in events)
answer["kernels"] = sum(event.get("cat") == "kernel" for event in events)
"""


def check_python() -> Check:
    """This interpreter."""
    return ok("Python", f"{platform.python_version()} at {sys.executable}")


def check_torch(environment: Mapping[str, str] | None = None, *, gpus: int = 0) -> list[Check]:
    """torch, its devices and its profiler.

    Args:
        environment: Where to try it; this process's own where absent.
        gpus: How many GPUs NVML knows.
    """
    if find_spec("torch") is None:
        mend = "install perfscope into the environment that trains; reading traces and logs needs no torch"
        return [warn("torch", "not installed here: nothing can be captured", mend)]
    tried = probe(_PROFILE, environment)
    if tried.answer is None:
        return [fail("torch", f"a tiny profile failed: {tried.problem}", 'try: python -c "import torch"')]
    return [_version(tried.answer), _devices(tried.answer, gpus), *_profiles(tried, environment or os.environ)]


def _version(answer: Mapping[str, Any]) -> Check:
    numbers = tuple(int(one) for one in str(answer["torch"]).split("+")[0].split(".")[:2])
    if numbers < OLDEST_TORCH:
        oldest = ".".join(str(number) for number in OLDEST_TORCH)
        return warn("torch", f"{answer['torch']}; the hooks are tried from {oldest} on", f"use torch {oldest} or newer")
    return ok("torch", str(answer["torch"]))


def _devices(answer: Mapping[str, Any], gpus: int) -> Check:
    if answer["devices"]:
        return ok("CUDA", f"{answer['devices']} x {answer['device']}, CUDA {answer['cuda']}")
    if gpus and answer["cuda"]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        hint = f"CUDA_VISIBLE_DEVICES is {visible!r}" if visible is not None else "the driver may be too old for it"
        return fail("CUDA", f"torch sees none of {gpus} GPUs", f"{hint}; compare nvidia-smi with torch.version.cuda")
    if gpus:
        return fail(
            "CUDA", f"this torch is built without CUDA, and there are {gpus} GPUs", "install a CUDA build of torch"
        )
    return warn("CUDA", "no GPU here: CPU runs can be captured, and traces of GPUs read")


def _profiles(tried: Probe, environment: Mapping[str, str]) -> list[Check]:
    answer = tried.answer or {}
    checks = []
    if answer["operators"]:
        checks.append(ok("torch.profiler", f"a tiny profile holds {answer['operators']} operators"))
    else:
        checks.append(fail("torch.profiler", "a tiny profile holds no operator", "this torch is built without Kineto"))
    if not answer["devices"]:
        return checks
    if answer["kernels"]:
        checks.append(ok("CUPTI", f"a tiny profile holds {answer['kernels']} kernels"))
    else:
        said = [line for line in tried.stderr.splitlines() if "CUPTI" in line.upper()]
        held = foreign_profiler(environment)
        mend = held or "another profiler may hold CUPTI: see DCGM and Nsight below; else update the driver"
        checks.append(fail("CUPTI", f"a tiny profile holds no kernel{f': {said[-1].strip()}' if said else ''}", mend))
    return checks


def foreign_profiler(environment: Mapping[str, str]) -> str:
    """Who else profiles this process, in words; empty where nobody does."""
    for name in ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH"):
        if environment.get(name):
            return f"{name} is set: run without that profiler, which holds CUPTI"
    return ""
