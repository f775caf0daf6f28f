"""What NVML told of one GPU while a run went on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from perfscope.tables import Int64


@dataclass(frozen=True, slots=True, eq=False)
class GpuSamples:
    """The samples of one GPU, in order of time.

    Attributes:
        host: Its machine.
        uuid: What NVML and CUDA both call it.
        name: Its model.
        power_limit_mw: The enforced power limit; None where it was not told.
        memory_total_bytes: Its memory; None where it was not told.
        t_ns: When the sample was taken, on the host's monotonic clock.
        power_mw: Power draw, NVML's mean over its own period; masked where it was not told.
        util_percent: Share of NVML's period in which any kernel ran; masked where it was not told.
        memory_used_bytes: Memory in use by all processes; masked where it was not told.
    """

    host: str
    uuid: str
    name: str
    power_limit_mw: int | None
    memory_total_bytes: int | None
    t_ns: Int64
    power_mw: np.ma.MaskedArray[Any, Any]
    util_percent: np.ma.MaskedArray[Any, Any]
    memory_used_bytes: np.ma.MaskedArray[Any, Any]
