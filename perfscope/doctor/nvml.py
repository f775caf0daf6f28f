"""Whether the GPUs of this machine can be sampled through NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from perfscope import hooks
from perfscope.doctor.check import Check, fail, ok, warn
from perfscope.hooks.reach import attach

_TIMEOUT_S = 20
_POLL_S = 0.05
_SAMPLES_PER_S = 10
#: The description of the GPUs, and a sample.
_EXPECTED_LINES = 2
_EXPECTED_VALUES = {
    "power_mw": "power",
    "sm_clock_mhz": "clock",
    "gpu_util_percent": "utilisation",
    "throttle": "throttle reasons",
    "energy_mj": "energy counter",
}


def check_nvml() -> tuple[Check, int]:
    """Run the sampler until its first sample; returns the check, and the number of GPUs."""
    pynvml_folder = attach.find_pynvml()
    if pynvml_folder is None:
        return fail("NVML", "nvidia-ml-py is not installed", "pip install nvidia-ml-py"), 0
    lines = _read_first_lines(pynvml_folder)
    note = next((line["note"] for line in lines if "note" in line), None)
    if note is not None or len(lines) < _EXPECTED_LINES:
        return warn("NVML", note or "it did not answer in time", "none needed on a machine without GPUs"), 0
    gpus, samples = lines[0]["gpus"], lines[1]["gpus"]
    missing = [text for name, text in _EXPECTED_VALUES.items() if any(name not in sample for sample in samples)]
    mig_gpus = sum("mig_devices" in gpu for gpu in gpus)
    finding = f"{len(gpus)} x {gpus[0].get('name', 'GPU')}, driver {lines[0].get('driver', 'unknown')}"
    if mig_gpus:
        finding += f", {mig_gpus} in MIG mode, where power is that of the entire GPU"
    if missing:
        fix = "the columns of these values will be n/a"
        return warn("NVML", f"{finding}; not reported: {', '.join(missing)}", fix), len(gpus)
    return ok("NVML", finding), len(gpus)


def _read_first_lines(pynvml_folder: str) -> list[dict[str, Any]]:
    """The first records of the sampler, started as a run starts it."""
    script = Path(hooks.__file__).resolve().parent / "nvml" / "sampler.py"
    command = [sys.executable, "-I", "-S", str(script), pynvml_folder, str(_SAMPLES_PER_S), str(os.getpid())]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _TIMEOUT_S
        content = b""
        while time.monotonic() < deadline and content.count(b"\n") < _EXPECTED_LINES:
            has_ended = process.poll() is not None
            output.seek(0)
            content = output.read()
            if has_ended:
                break
            time.sleep(_POLL_S)
        process.kill()
        process.wait()
    return [json.loads(line) for line in content.split(b"\n")[:-1]]
