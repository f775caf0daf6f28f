"""When this process was started, when torch was loaded, and when training first called a hook."""

from __future__ import annotations

import os
import time
from typing import Any

from perfscope.constants import NS_PER_S
from perfscope.hooks.guard import value_or_none

#: The field of /proc/self/stat that says when the process was started, counted behind the name in parentheses.
_START_FIELD = 19
_moments: dict[str, int] = {}


def note_torch_loaded() -> None:
    """The module torch was executed."""
    _moments.setdefault("torch_loaded_ns", time.monotonic_ns())


def note_hooked() -> None:
    """Training called a hook for the first time."""
    _moments.setdefault("hooked_ns", time.monotonic_ns())


def describe_startup() -> dict[str, Any]:
    """The moments that are known, as fields of RankRecord; a forked child knows those of its parent, too."""
    started_ns = value_or_none(read_start_ns)
    return {**_moments} if started_ns is None else {"started_ns": started_ns, **_moments}


def read_start_ns() -> int | None:
    """When this process was started, on the monotonic clock; None where the system does not say.

    Raises:
        OSError: There is no /proc.
        ValueError: It is written in another way.
    """
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        ticks = int(file.read().rpartition(")")[2].split()[_START_FIELD])
    now_ns = time.monotonic_ns()
    suspended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) - now_ns
    started_ns = ticks * NS_PER_S // os.sysconf("SC_CLK_TCK") - suspended_ns
    return started_ns if ticks > 0 and 0 < started_ns <= now_ns else None
