"""What perfscope itself cost a run: slower steps in a window, the time that a window stalled training, memory, hooks.

Steady-state steps before the first window, those after it, and the steps inside windows are compared by their medians.
A window that slowed its steps by more than 10 % is not representative: the shares of its trace are those of slowed
steps.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated

import numpy as np

from perfscope.constants import MB, MS_PER_S, NS_PER_S, US_PER_S
from perfscope.errors import MissingInput
from perfscope.measures.statistics import median
from perfscope.measures.step_selection import find_undisturbed, job_times_s, profiled_steps
from perfscope.measures.window_effect import Effect, WindowEffect
from perfscope.report import SMALLEST_CHANGE, Section, in_unit
from perfscope.result import MS, PERCENT, Column, Doc, Figures, Result, Table, figure
from perfscope.tables.run import Run, Window
from perfscope.tables.steps import FEWEST_STEPS, Steps
from perfscope.units import format_count, format_ranges

#: A window that slowed its steps by more is not representative of training.
LARGEST_REPRESENTATIVE_SLOWDOWN = 0.10

_TITLE = "Profiling overhead"
_REPRESENTATIVE = {True: "no", False: "yes", None: None}


def _MEGABYTES(size: int) -> float:  # noqa: N802 - a unit
    return size / MB


class WindowCost(Figures, frozen=True):
    """What one window cost."""

    first_step: Annotated[int, Doc("Its first training step.")]
    last_step: Annotated[int, Doc("Its last one.")]
    activities: Annotated[str | None, Doc("What it recorded: ``operators`` or ``light``; None where that is unknown.")]
    profiled_s: Annotated[float | None, Doc("Median of its steps.")]
    slower: Annotated[float | None, Doc("By which share they took longer than undisturbed steps.")]
    start_s: Annotated[float, Doc("How long starting the profiler stalled the rank that was stalled longest.")]
    stop_s: Annotated[float, Doc("Stopping it, likewise.")]
    export_s: Annotated[float, Doc("Writing the trace, likewise.")]
    release_s: Annotated[float | None, Doc("Releasing its memory, likewise.")]
    trace_bytes: Annotated[int, Doc("Size of all its traces before compression.")]
    memory_bytes: Annotated[int | None, Doc("Growth of the host memory of the process that grew most.")]

    @figure
    def held_s(self) -> float:
        """How long it stalled training."""
        return self.start_s + self.stop_s + self.export_s + (self.release_s or 0.0)

    @figure
    def distorted(self) -> bool | None:
        """Whether the shares of its trace are not those of training; None where unknown."""
        return None if self.slower is None else self.slower > LARGEST_REPRESENTATIVE_SLOWDOWN

    @property
    def name(self) -> str:
        """Its steps, as people write them, and what it recorded."""
        steps = format_ranges(range(self.first_step, self.last_step + 1))
        return f"{steps} ({self.activities})" if self.activities else steps


class Cost(Result, frozen=True):
    """``results.cost``: the overhead of perfscope itself."""

    before_s: Annotated[float | None, Doc("Median undisturbed step before the first window.")]
    after_s: Annotated[float | None, Doc("Median undisturbed step after it.")]
    undisturbed_s: Annotated[float | None, Doc("Median of the undisturbed steps.")]
    hooks_s: Annotated[float | None, Doc("Median time that the hooks took in an undisturbed step and at its boundary.")]
    windows: Annotated[tuple[WindowCost, ...], Doc("Every window, in order.")]
    cupti_detached: Annotated[bool | None, Doc("Whether it was detached at the end of every window.")] = None
    cupti_attached_because: Annotated[tuple[str, ...], Doc("Why it was not.")] = ()
    marks_passes: bool = False
    effect: WindowEffect | None = None

    TABLES = (
        Table(
            _TITLE,
            "windows",
            (
                Column("Window", "name"),
                Column("Profiled step (ms)", "profiled_s", MS, 2),
                Column("Slowdown (%)", "slower", PERCENT),
                Column("Start (ms)", "start_s", MS),
                Column("Stop (ms)", "stop_s", MS),
                Column("Export (ms)", "export_s", MS),
                Column("Memory release (ms)", "release_s", MS),
                Column("Traces (MB)", "trace_bytes", _MEGABYTES),
                Column("RSS growth (MB)", "memory_bytes", _MEGABYTES),
                Column("Representative", lambda window: _REPRESENTATIVE[window.distorted]),
            ),
        ),
    )

    def largest_distortion(self, activities: str) -> float | None:
        """The largest slowdown of windows with these activities, or any, that are not representative."""
        windows = [window for window in self.windows if window.distorted and activities in ("", window.activities)]
        return max((window.slower for window in windows if window.slower is not None), default=None)

    def sections(self) -> tuple[Section, ...]:
        """A row a window."""
        if not self.windows:
            return (Section(_TITLE, notes=("No window was profiled.", *self._notes())),)
        return (self.TABLES[0].section(self.windows, self._notes()),)

    def _describe_change(self, change: float) -> str:
        """The change after the window as far as it means something: a median of very few steps means little."""
        effect = self.effect
        if effect is not None and effect.verdict is Effect.UNTESTED:
            is_few = min(effect.before, effect.after) < FEWEST_STEPS
            return "too few to compare" if is_few else f"not compared: {effect.reason}"
        is_noise = effect is not None and effect.verdict is Effect.NO_DIFFERENCE and abs(change) >= SMALLEST_CHANGE
        return f"{change:+.1%}{', within the noise of the steps' if is_noise else ''}"

    def _notes(self) -> Iterator[str]:
        if self.before_s is not None and self.after_s is not None:
            sides = ("", "")
            if self.effect is not None:
                counts = self.effect.before, self.effect.after
                sides = f" ({format_count(counts[0], 'step')})", f" ({format_count(counts[1], 'step')})"
            yield (
                f"Median steady-state step: {self.before_s * MS_PER_S:.2f} ms before the first window{sides[0]}, "
                f"{self.after_s * MS_PER_S:.2f} ms after it{sides[1]}: "
                f"{self._describe_change(self.after_s / self.before_s - 1)}."
            )
        elif self.windows and self.undisturbed_s is not None:
            side = "after" if self.before_s is None else "before"
            yield f"All steady-state steps are {side} the first window, so there is nothing to compare with."
        if self.cupti_detached:
            yield "CUPTI was detached at the end of every window: later launches of kernels do not pass through it."
        elif self.cupti_detached is False:
            yield (
                "CUPTI stayed attached after a window, which slows every later launch of a kernel: "
                f"{'; '.join(self.cupti_attached_because) or 'unknown reason'}."
            )
        if self.hooks_s is not None and self.undisturbed_s:
            share = self.hooks_s / (self.undisturbed_s + self.hooks_s)
            waits = "; timing a pass waits where the device's launch queue is full" if self.marks_passes else ""
            yield f"Hooks: {self.hooks_s * US_PER_S:.0f} us per median step outside windows ({share:.2%}){waits}."
        held_s = sum(window.held_s for window in self.windows)
        if held_s:
            yield f"Windows stalled training for {held_s:.2f} s in total (excluded from step times)."
        distorted = ", ".join(f"window {window.name}" for window in self.windows if window.distorted)
        if distorted:
            yield (
                f"Not representative of training: {distorted}; the profiler slowed these steps by more than "
                f"{LARGEST_REPRESENTATIVE_SLOWDOWN:.0%}. Part of the idle, host and other time in their traces is the "
                "profiler's own."
            )


def analyze(run: Run) -> Cost:
    """Compare the steps around and inside the windows; MissingInput where no rank completed a training step."""
    undisturbed = find_undisturbed(run.steps)
    tables, effect = undisturbed.tables, undisturbed.effect
    if not tables:
        raise MissingInput("no training step was recorded")
    times_s = undisturbed.times_s()
    # The time of a single step says nothing of how much slower another one is.
    compared_s = median(times_s) if len(times_s) > 1 else None
    windows: dict[tuple[int, int], list[Window]] = {}
    for window in sorted(run.windows, key=lambda window: (window.first_step, window.last_step)):
        windows.setdefault((window.first_step, window.last_step), []).append(window)
    states = [window.detached for window in run.windows]
    return Cost(
        before_s=None if effect is None else effect.before_s,
        after_s=None if effect is None else effect.after_s,
        undisturbed_s=median(times_s),
        hooks_s=in_unit(
            median(np.concatenate([table.hook_ns[undisturbed.mask(table)].compressed() for table in tables])), NS_PER_S
        ),
        windows=tuple(_summarize_window(of_ranks, tables, compared_s) for of_ranks in windows.values()),
        cupti_detached=None if not states or None in states else all(states),
        cupti_attached_because=tuple(sorted({w.attached_because for w in run.windows if w.attached_because})),
        marks_passes=bool(run.micro_batches),
        effect=effect,
    )


def _summarize_window(windows: Sequence[Window], tables: Sequence[Steps], steady_s: float | None) -> WindowCost:
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
        activities=windows[0].activities or None,
        profiled_s=profiled_s,
        slower=None if profiled_s is None or not steady_s else profiled_s / steady_s - 1,
        start_s=slowest.start_ns / NS_PER_S,
        stop_s=slowest.stop_ns / NS_PER_S,
        export_s=slowest.export_ns / NS_PER_S,
        release_s=in_unit(slowest.release_ns, NS_PER_S),
        trace_bytes=sum(window.trace_bytes for window in windows),
        memory_bytes=max(growth_bytes, default=None),
    )
