"""Free space and write speed where runs will be: training waits while the trace of a window is written."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from pathlib import Path

from perfscope.constants import GB, MB, MIB
from perfscope.doctor.check import Check, fail, ok, warn
from perfscope.hooks.profiler.window import SMALLEST_FREE_BYTES

_SLOW_BYTES_PER_S = 50 * MB
_LITTLE_FREE_BYTES = 5 * GB
_TRIAL_BLOCKS = 32


def check_disk(folder: Path) -> Check:
    """Check free space, write speed and the limit of file sizes."""
    try:
        free_bytes = shutil.disk_usage(folder).free
        free = f"{free_bytes / GB:,.1f} GB free in {folder}"
        if free_bytes < SMALLEST_FREE_BYTES:
            fix = "free some space, or choose another folder with -o"
            return fail("Disk", f"{free}: too little for the trace of a window", fix)
        bytes_per_s = _measure_write_speed(folder)
    except OSError as error:
        return fail("Disk", f"{folder} cannot be written: {error.strerror}", "choose another folder with -o")
    finding = f"{free}, written at {bytes_per_s / MB:,.0f} MB/s"
    fixes = _suggest_fixes(free_bytes, bytes_per_s, resource.getrlimit(resource.RLIMIT_FSIZE)[0])
    return warn("Disk", finding, "; ".join(fixes)) if fixes else ok("Disk", finding)


def _suggest_fixes(free_bytes: int, bytes_per_s: float, largest_file_bytes: int) -> list[str]:
    fixes = []
    if free_bytes < _LITTLE_FREE_BYTES:
        fixes.append("free some space: a window of a large model can take gigabytes before it is compressed")
    if bytes_per_s < _SLOW_BYTES_PER_S:
        fixes.append("put runs on a faster disk: training waits for the trace of each window")
    if largest_file_bytes != resource.RLIM_INFINITY:
        fixes.append(f"ulimit -f unlimited: files are limited to {largest_file_bytes / MB:,.0f} MB")
    return fixes


def _measure_write_speed(folder: Path) -> float:
    """Measure bytes/s to the disk itself, with a file that has no name and so cannot be left behind.

    Raises:
        OSError: The folder cannot be written.
    """
    block = os.urandom(MIB)
    with tempfile.TemporaryFile(dir=folder) as file:
        began_s = time.monotonic()
        for _ in range(_TRIAL_BLOCKS):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return _TRIAL_BLOCKS * len(block) / (time.monotonic() - began_s)
