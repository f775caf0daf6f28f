"""What the steps of a rank lose beside their work, as means: a wait of every tenth step is in no median."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np

from perfscope.constants import NS_PER_S
from perfscope.report import Json
from perfscope.tables.columns import Bool, MaskedInt64, present
from perfscope.tables.steps import Steps

#: torch.compile may need some steps until it has seen every shape.
_FIRST_STEPS = 5


@dataclass(frozen=True, slots=True)
class StepMeans:
    """Means over steps, in seconds.

    Attributes:
        data_wait_s: Waiting for data loaders in the undisturbed steps; absent where no loader was detected.
        data_wait_low_s, data_wait_high_s: The quarter of them with the shortest waits waits at most so long, and that
            with the longest waits at least.
        garbage_s: Full collections of Python's garbage in them.
        garbage_steps: How many of them such a collection interrupted.
        compiled_steps: Steps behind the first five in which torch.compile compiled.
        compile_s: Its time in a step behind the first five, windows, saves and validations left out.
        compile_in_steps_s: Its time in an undisturbed step, which is not 0 where most steps compile.
        device_allocs: Calls of cudaMalloc in a step behind those in which the optimizer allocates its state; absent
            where unknown.
        alloc_retries: Emptied caches of the allocator in such a step; absent where unknown.
        samples, tokens: What the rank took in in an undisturbed step; absent where unknown.
    """

    data_wait_s: float | None
    data_wait_low_s: float | None
    data_wait_high_s: float | None
    garbage_s: float | None
    garbage_steps: int
    compiled_steps: int
    compile_s: float | None
    compile_in_steps_s: float | None
    device_allocs: float | None
    alloc_retries: float | None
    samples: float | None = None
    tokens: float | None = None

    def data(self) -> Json:
        """An object of JSON."""
        return asdict(self)


def measure_means(steps: Steps, undisturbed: Bool) -> StepMeans:
    """The means of one rank."""
    waits = steps.data_wait_ns[undisturbed].compressed() / NS_PER_S
    later = steps.is_unstalled & (steps.step > _FIRST_STEPS)
    low, high = np.quantile(waits, (0.25, 0.75)).tolist() if len(waits) else (None, None)
    return StepMeans(
        data_wait_s=float(waits.mean()) if len(waits) else None,
        data_wait_low_s=low,
        data_wait_high_s=high,
        garbage_s=_mean(np.ma.filled(steps.garbage_ns, 0)[undisturbed]),
        garbage_steps=int(present(steps.garbage_ns)[undisturbed].sum()),
        compiled_steps=int(present(steps.compile_ns)[later].sum()),
        compile_s=_mean(np.ma.filled(steps.compile_ns, 0)[later]),
        compile_in_steps_s=_mean(np.ma.filled(steps.compile_ns, 0)[undisturbed]),
        device_allocs=_growth(steps, steps.device_allocs),
        alloc_retries=_growth(steps, steps.alloc_retries),
        samples=_mean_count(steps.samples[undisturbed]),
        tokens=_mean_count(steps.tokens[undisturbed]),
    )


def _mean(times_ns: np.ndarray) -> float | None:
    return float(times_ns.mean()) / NS_PER_S if len(times_ns) else None


def _mean_count(counts: MaskedInt64) -> float | None:
    stated = counts.compressed()
    return float(stated.mean()) if len(stated) else None


def _growth(steps: Steps, count: MaskedInt64) -> float | None:
    """How much a count grows in a step, from the first reading behind the first steps to the last one."""
    rows = np.flatnonzero(present(count) & (steps.step > _FIRST_STEPS))
    if len(rows) < 2:  # noqa: PLR2004 - a first reading and a last one
        return None
    first, last = rows[0], rows[-1]
    return float(count[last] - count[first]) / float(steps.step[last] - steps.step[first])
