"""What perfscope itself cost a run: slower steps in a window, the time that a window stalled training, memory, hooks.

Steady-state steps before the first window, those after it, and the steps inside windows are compared by their medians.
A window that slowed its steps by more than 10 % is not representative: the shares of its trace are those of slowed
steps; ``perfscope.analyzers.cost.corrected`` puts them right.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from perfscope.analyzers.cost.result import Cost, WindowCost
from perfscope.analyzers.shared.statistics import median
from perfscope.analyzers.shared.step_selection import find_undisturbed, job_times_s, profiled_steps
from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.report import in_unit
from perfscope.tables.run import Run, Window
from perfscope.tables.steps import Steps


def analyze(run: Run) -> Cost:
    """Compare the steps around and inside the windows, and add up what stalled training.

    Raises:
        MissingInput: No rank completed a training step.
    """
    undisturbed = find_undisturbed(run.steps)
    tables, effect = undisturbed.tables, undisturbed.effect
    if not tables:
        raise MissingInput("no training step was recorded")
    times_s = undisturbed.times_s()
    steady_s = median(times_s)
    # The time of a single step says nothing of how much slower another one is.
    compared_s = steady_s if len(times_s) > 1 else None
    ranges = sorted({(window.first_step, window.last_step) for window in run.windows})
    hook_ns = np.concatenate([table.hook_ns[undisturbed.mask(table)].compressed() for table in tables])
    return Cost(
        before_s=None if effect is None else effect.before_s,
        after_s=None if effect is None else effect.after_s,
        steady_s=steady_s,
        hooks_s=in_unit(median(hook_ns), NS_PER_S),
        windows=tuple(
            _summarize_window(
                [window for window in run.windows if (window.first_step, window.last_step) == steps], tables, compared_s
            )
            for steps in ranges
        ),
        marks_passes=bool(run.micro_batches),
        detached=_is_detached(run.windows),
        attached_because=tuple(sorted({window.attached_because for window in run.windows if window.attached_because})),
        effect=effect,
    )


def _is_detached(windows: Sequence[Window]) -> bool | None:
    """Whether every window left the device's launches as it found them; None where a window does not say so."""
    states = [window.detached for window in windows]
    return None if not states or None in states else all(states)


def _summarize_window(windows: Sequence[Window], tables: Sequence[Steps], steady_s: float | None) -> WindowCost:
    """The overhead of a window, from what each rank recorded of it."""
    first_step, last_step = windows[0].first_step, windows[0].last_step
    slowest = max(windows, key=lambda window: window.start_ns + window.stop_ns + window.export_ns)
    profiled_s = median(
        job_times_s(
            tables,
            lambda table: profiled_steps(table) & (table.step >= first_step) & (table.step <= last_step),
        )
    )
    growth_bytes = [
        window.rss_after_bytes - window.rss_before_bytes
        for window in windows
        if window.rss_after_bytes is not None and window.rss_before_bytes is not None
    ]
    return WindowCost(
        first_step=first_step,
        last_step=last_step,
        profiled_s=profiled_s,
        slowdown=None if profiled_s is None or not steady_s else profiled_s / steady_s - 1,
        start_s=slowest.start_ns / NS_PER_S,
        stop_s=slowest.stop_ns / NS_PER_S,
        export_s=slowest.export_ns / NS_PER_S,
        release_s=in_unit(slowest.release_ns, NS_PER_S),
        trace_bytes=sum(window.trace_bytes for window in windows),
        memory_bytes=max(growth_bytes, default=None),
        activities=windows[0].activities or "",
    )
