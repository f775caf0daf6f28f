"""Results that were never measured: what rules read of them is set, and everything else is absent."""

from __future__ import annotations

from typing import Any

from perfscope.analyzers.findings.training import AnalyzerResults, TracedRun
from perfscope.measures.parts import Parts

#: The step of a made training, in microseconds.
STEP_US = 10_000.0


class Made:
    """A result, or a part of one; what is not set is None."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        return None


def training(**results: Any) -> TracedRun:
    """A training with these results, whose steps take 10 ms unless the results say so."""
    return TracedRun(AnalyzerResults(**{"steps": steps(), **results}))


def steps(step_s: float | None = STEP_US / 1e6, **values: Any) -> Made:
    means = Made(data_wait_s=0.004, garbage_s=0.002, garbage_steps=3, compiled_steps=0)
    rank = Made(rank=0, undisturbed=30, memory_peak_bytes=9, means=means)
    return Made(**{"source": "", "count": 40, "step_time_s": step_s, "median_s": step_s, "ranks": [rank], **values})


def parts(compute_us: float, communication_us: float, copy_us: float = 0.0) -> Parts:
    compute, communication, copy = (round(1000 * us) for us in (compute_us, communication_us, copy_us))
    return Parts(compute + communication + copy, compute, communication, copy, communication, copy, 0)


def breakdown(*ranks: Parts, steps: int = 1) -> Made:
    """Devices, one a rank, in a marked step."""
    return Made(
        ranks=[
            Made(rank=rank, device=rank, trace=f"{rank}", steps=["step"] * steps, row=row)
            for rank, row in enumerate(ranks)
        ]
    )


class Causes:
    """Idle time by cause; there is none of the causes that are not set."""

    def __init__(self, **causes_us: float) -> None:
        self._causes_us = causes_us

    def __getattr__(self, name: str) -> float:
        return self._causes_us.get(name.removesuffix("_us"), 0.0)


def idle(*ranks: dict[str, float]) -> Made:
    """What each rank's device waited for, in microseconds."""
    causes = [Causes(**each) for each in ranks]
    return Made(
        ranks=[
            Made(rank=rank, device=rank, trace=f"{rank}", causes=each, marked=each) for rank, each in enumerate(causes)
        ]
    )


def kernels(*names: str, work: str = "compute") -> Made:
    return Made(names=[Made(name=name, work=work, total_us=900.0, calls=100, max_us=9.0) for name in names])


def setup(**rank: Any) -> Made:
    """How the first rank is set up."""
    return Made(ranks=[Made(**{"frameworks": (), "loaders": (), "engine": {}, **rank})])
