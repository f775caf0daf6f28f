"""NVML, who else profiles, permissions, the disk, and the programs that other commands start."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from perfscope import hooks
from perfscope.checkup.verdict import Check, fail, ok, warn
from perfscope.hooks.reach import attaching

_SAMPLER_TIMEOUT_S = 20
_SLOW_BYTES_PER_S = 50 * 10**6
_LITTLE_BYTES = 5 * 10**9
#: A window is not written where less is free.
_TOO_LITTLE_BYTES = 256 * 2**20
_TRIAL_BYTES = 32 * 2**20
_EXPECTED = {
    "power_mw": "power",
    "sm_clock_mhz": "clock",
    "gpu_util_percent": "utilisation",
    "throttle": "throttle reasons",
    "energy_mj": "energy counter",
}


def check_nvml() -> tuple[Check, int]:
    """Run the sampler for a moment; the check, and how many GPUs there are."""
    folder = attaching.find_pynvml()
    if folder is None:
        return fail("NVML", "nvidia-ml-py is not installed", "pip install nvidia-ml-py"), 0
    lines = _first_lines(folder)
    note = next((line["note"] for line in lines if "note" in line), None)
    if note is not None or len(lines) < 2:  # noqa: PLR2004 - who the GPUs are, and a sample
        return warn("NVML", note or "it did not answer in time", "nothing to mend on a machine without GPUs"), 0
    gpus, values = lines[0]["gpus"], lines[1]["gpus"]
    missing = [text for name, text in _EXPECTED.items() if any(name not in one for one in values)]
    parted = sum("mig_devices" in gpu for gpu in gpus)
    found = f"{len(gpus)} x {gpus[0].get('name', 'GPU')}, driver {lines[0].get('driver', 'unknown')}"
    if parted:
        found += f", {parted} in MIG mode, where power is the whole GPU's"
    if missing:
        return warn("NVML", f"{found}; not told: {', '.join(missing)}", "columns of these will be n/a"), len(gpus)
    return ok("NVML", found), len(gpus)


def _first_lines(folder: str) -> list[dict[str, Any]]:
    """The sampler's first lines, by the program that a run starts."""
    script = Path(hooks.__file__).resolve().parent / "nvml" / "sampler.py"
    with tempfile.TemporaryFile() as written, tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", script, folder, "10", str(os.getpid())], stdout=written, stderr=said
        )
        deadline = time.monotonic() + _SAMPLER_TIMEOUT_S
        content = b""
        while time.monotonic() < deadline and content.count(b"\n") < 2:  # noqa: PLR2004 - as above
            ended = process.poll() is not None
            written.seek(0)
            content = written.read()
            if ended:
                break
            time.sleep(0.05)
        process.kill()
        process.wait()
    return [json.loads(line) for line in content.split(b"\n")[:-1]]


def check_other_profilers() -> Check:
    """Who else may hold what one process at a time can have."""
    for name in ("NSYS_PROFILING_SESSION_ID", "CUDA_INJECTION64_PATH"):
        if os.environ.get(name):
            return warn("Other profilers", f"{name} is set, so perfscope takes no window", "run without that profiler")
    engines = [one for one in _process_names() if one in ("nv-hostengine", "dcgm-exporter", "ncu", "nsys")]
    if engines:
        return warn(
            "Other profilers",
            f"{', '.join(sorted(set(engines)))} runs here",
            "where kernels are missing from traces: dcgmi profile --pause, and --resume afterwards",
        )
    return ok("Other profilers", "none: no DCGM, no Nsight")


def _process_names() -> Iterable[str]:
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            yield (folder / "comm").read_text().strip()
        except OSError:
            continue  # it has ended


def check_permissions(gpus: int, parameters: Path = Path("/proc/driver/nvidia/params")) -> Check:
    """Whether the driver keeps performance counters for administrators."""
    if not gpus or not parameters.exists():
        return ok("Permissions", "no NVIDIA driver, nothing to ask for")
    lines = dict(line.split(":", 1) for line in parameters.read_text().splitlines() if ":" in line)
    restricted = lines.get("RmProfilingAdminOnly", "0").strip() == "1"
    if restricted and os.geteuid() != 0:
        return warn(
            "Permissions",
            "performance counters are for administrators (RmProfilingAdminOnly is 1)",
            "traces need none; if CUPTI fails above: option NVreg_RestrictProfilingToAdminUsers=0 of the nvidia module",
        )
    return ok("Permissions", "performance counters are " + ("root's, which this is" if restricted else "everybody's"))


def check_disk(folder: Path) -> Check:
    """Room and speed of where runs will be: the trace of a window is written while training waits."""
    try:
        free = shutil.disk_usage(folder).free
        if free < _TOO_LITTLE_BYTES:
            told = f"{free / 1e9:,.1f} GB free in {folder}: no window would be written"
            return fail("Disk", told, "make room, or choose another folder with -o")
        rate = _write_rate(folder)
    except OSError as error:
        return fail("Disk", f"{folder} cannot be written: {error.strerror}", "choose another folder with -o")
    told = f"{free / 1e9:,.1f} GB free in {folder}, written at {rate / 1e6:,.0f} MB/s"
    doubts = _doubts_about_disk(free, rate, resource.getrlimit(resource.RLIMIT_FSIZE)[0])
    return warn("Disk", told, "; ".join(doubts)) if doubts else ok("Disk", told)


def _doubts_about_disk(free: int, rate: float, largest: int) -> list[str]:
    doubts = []
    if free < _LITTLE_BYTES:
        doubts.append("make room: a window of a large model can be gigabytes before it is compressed")
    if rate < _SLOW_BYTES_PER_S:
        doubts.append("put runs on a faster disk: training waits for the trace of each window")
    if largest != resource.RLIM_INFINITY:
        doubts.append(f"ulimit -f unlimited: files may have {largest / 1e6:,.0f} MB at most")
    return doubts


def _write_rate(folder: Path) -> float:
    """Bytes a second to the disk itself, by a file that has no name and so cannot be left behind.

    Raises:
        OSError: It cannot be written.
    """
    block = os.urandom(2**20)
    with tempfile.TemporaryFile(dir=folder) as file:
        began = time.monotonic()
        for _ in range(_TRIAL_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return _TRIAL_BYTES / (time.monotonic() - began)


def check_libraries() -> list[Check]:
    """What makes reading fast, and what opens traces elsewhere."""
    checks = []
    for part, name, mend in (
        ("Reading traces", "isal", "pip install isal: traces are unpacked twice as fast"),
        ("TensorBoard", "torch-tb-profiler", "pip install 'perfscope-toolkit[tensorboard]', to open RUN/traces there"),
        ("Dask", "distributed", "pip install 'perfscope-toolkit[dask]', to read traces on many machines"),
    ):
        try:
            checks.append(ok(part, f"{name} {version(name)}"))
        except PackageNotFoundError:
            checks.append(warn(part, f"{name} is not installed", mend))
    return checks


def check_collecting() -> Check:
    """What `perfscope collect` starts to reach other hosts."""
    missing = [name for name in ("ssh", "tar", "find") if shutil.which(name) is None]
    if missing:
        return warn("Collecting", f"{', '.join(missing)} not on PATH", "apt-get install openssh-client tar findutils")
    return ok("Collecting", "ssh, tar and find are there")
