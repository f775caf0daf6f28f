"""What perfscope itself cost a run: slower steps in a window, the time that a window stalled training, memory, hooks.

Steady-state steps before the first window, those after it, and the steps inside windows are compared by their medians.
A window that slowed its steps by more than 10 % is not representative: the shares of its trace are those of slowed
steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from perfscope.analyzers.shared.statistics import median
from perfscope.analyzers.shared.step_selection import find_undisturbed, job_times_s, profiled_steps
from perfscope.analyzers.shared.window_effect import SMALLEST_EFFECT, Verdict, WindowEffect
from perfscope.constants import MB, MS_PER_S, NS_PER_S, US_PER_S
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section, in_unit, milliseconds, percent
from perfscope.tables.run import Run, Window
from perfscope.tables.steps import FEWEST_STEPS, Steps
from perfscope.units import format_count, format_ranges

#: A window that slowed its steps by more is not representative of training.
LARGEST_REPRESENTATIVE_SLOWDOWN = 0.10

_TITLE = "Profiling overhead"
_YES_NO = {True: "yes", False: "no", None: None}


@dataclass(frozen=True, slots=True)
class WindowCost:
    """The overhead of one window.

    Attributes:
        first_step, last_step: Its training steps.
        profiled_s: Median of its steps; absent where their times are unknown.
        slowdown: By which share they took longer than steady-state steps; absent where there is none to compare with.
        start_s, stop_s, export_s, release_s: How long the profiler's start and stop, the export of the trace and the
            release of its memory stalled the rank that was stalled longest.
        trace_bytes: Size of all its traces before compression.
        memory_bytes: Growth of the resident memory over the window, of the process that grew most; absent where
            unknown.
        activities: What it recorded, ``operators`` or ``light``; ``""`` where the run does not say so.
    """

    first_step: int
    last_step: int
    profiled_s: float | None
    slowdown: float | None
    start_s: float
    stop_s: float
    export_s: float
    release_s: float | None
    trace_bytes: int
    memory_bytes: int | None
    activities: str = ""

    @property
    def stall_s(self) -> float:
        """How long it stalled training."""
        return self.start_s + self.stop_s + self.export_s + (self.release_s or 0.0)

    @property
    def is_representative(self) -> bool | None:
        """Whether the shares of its trace are those of training; absent where that is unknown."""
        return None if self.slowdown is None else self.slowdown <= LARGEST_REPRESENTATIVE_SLOWDOWN

    @property
    def name(self) -> str:
        """Its steps, as people write them, and what it recorded."""
        steps = format_ranges(range(self.first_step, self.last_step + 1))
        return f"{steps} ({self.activities})" if self.activities else steps

    def data(self) -> dict[str, Json]:
        """The window for JSON."""
        return {
            "first_step": self.first_step,
            "last_step": self.last_step,
            "activities": self.activities or None,
            "profiled_s": self.profiled_s,
            "slower": self.slowdown,
            "start_s": self.start_s,
            "stop_s": self.stop_s,
            "export_s": self.export_s,
            "release_s": self.release_s,
            "trace_bytes": self.trace_bytes,
            "memory_bytes": self.memory_bytes,
            "held_s": self.stall_s,
            "distorted": None if self.is_representative is None else not self.is_representative,
        }


@dataclass(frozen=True, slots=True)
class Cost:
    """The profiling overhead of a run.

    Attributes:
        before_s: Median steady-state step before the first window; absent where there is none.
        after_s: Median steady-state step after it; absent where there is none.
        steady_s: Median of the undisturbed steps: of both sides, or of those before where the window slowed the others.
        hooks_s: Median time that the hooks took in a steady-state step and at its boundary; absent where unknown.
        windows: Every window, in order.
        marks_passes: Whether the hooks mark the passes of micro-batches on the device.
        detached: Whether CUPTI was detached at the end of every window; absent where that is unknown.
        attached_because: Why it was not.
        effect: What a test of the steps before and after it says; absent without a window.
    """

    before_s: float | None
    after_s: float | None
    steady_s: float | None
    hooks_s: float | None
    windows: tuple[WindowCost, ...]
    marks_passes: bool = False
    detached: bool | None = None
    attached_because: tuple[str, ...] = ()
    effect: WindowEffect | None = None

    def largest_slowdown(self, activities: str) -> float | None:
        """The largest slowdown of the windows that recorded something, of all windows where it is ``""``."""
        windows = [window for window in self.windows if activities in ("", window.activities)]
        return max((window.slowdown for window in windows if window.slowdown is not None), default=None)

    def largest_distortion(self, activities: str) -> float | None:
        """The same of windows that are not representative; absent where all are."""
        slowdown = self.largest_slowdown(activities)
        return slowdown if slowdown is not None and slowdown > LARGEST_REPRESENTATIVE_SLOWDOWN else None

    def data(self) -> Json:
        """The value of ``results.cost``."""
        return {
            "before_s": self.before_s,
            "after_s": self.after_s,
            "undisturbed_s": self.steady_s,
            "hooks_s": self.hooks_s,
            "windows": [window.data() for window in self.windows],
            "cupti_detached": self.detached,
            "cupti_attached_because": list(self.attached_because),
        }

    def sections(self) -> tuple[Section, ...]:
        """A row a window."""
        columns = (
            Column("Window"),
            Column("Profiled step (ms)", 2),
            Column("Slowdown (%)"),
            Column("Start (ms)"),
            Column("Stop (ms)"),
            Column("Export (ms)"),
            Column("Memory release (ms)"),
            Column("Traces (MB)"),
            Column("RSS growth (MB)"),
            Column("Representative"),
        )
        rows = tuple(
            (
                window.name,
                milliseconds(window.profiled_s),
                percent(window.slowdown),
                milliseconds(window.start_s),
                milliseconds(window.stop_s),
                milliseconds(window.export_s),
                milliseconds(window.release_s),
                in_unit(window.trace_bytes, MB),
                in_unit(window.memory_bytes, MB),
                _YES_NO[window.is_representative],
            )
            for window in self.windows
        )
        if not rows:
            return (Section(_TITLE, notes=("No window was profiled.", *self._notes())),)
        return (Section(_TITLE, columns, rows, self._notes()),)

    def _describe_change(self, change: float) -> str:
        """The change behind the window as far as it means something: a median of very few steps means little."""
        if self.effect is None or self.effect.verdict is not Verdict.UNTESTED:
            noise = ", within the noise of the steps"
            is_noise = self.effect is not None and self.effect.verdict is Verdict.NO_DIFFERENCE
            return f"{change:+.1%}{noise if is_noise and abs(change) >= SMALLEST_EFFECT else ''}"
        if min(self.effect.before, self.effect.after) < FEWEST_STEPS:
            return "too few to compare"
        return f"not compared: {self.effect.reason}"

    def _count(self, *, before: bool) -> str:
        """How many steps a median is of."""
        if self.effect is None:
            return ""
        return f" ({format_count(self.effect.before if before else self.effect.after, 'step')})"

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.before_s is not None and self.after_s is not None:
            change = self._describe_change(self.after_s / self.before_s - 1)
            notes.append(
                f"Median steady-state step: {self.before_s * MS_PER_S:.2f} ms before the first window"
                f"{self._count(before=True)}, {self.after_s * MS_PER_S:.2f} ms after it{self._count(before=False)}: "
                f"{change}."
            )
        elif self.windows and self.steady_s is not None:
            side = "after" if self.before_s is None else "before"
            notes.append(f"All steady-state steps are {side} the first window, so there is nothing to compare with.")
        if self.detached:
            notes.append(
                "CUPTI was detached at the end of every window: later launches of kernels do not pass through it."
            )
        elif self.detached is False:
            notes.append(
                "CUPTI stayed attached after a window, which slows every later launch of a kernel: "
                f"{'; '.join(self.attached_because) or 'unknown reason'}."
            )
        if self.hooks_s is not None and self.steady_s:
            share = self.hooks_s / (self.steady_s + self.hooks_s)
            waits = "; timing a pass waits where the device's launch queue is full" if self.marks_passes else ""
            notes.append(
                f"Hooks: {self.hooks_s * US_PER_S:.0f} us per median step outside windows ({share:.2%}){waits}."
            )
        stall_s = sum(window.stall_s for window in self.windows)
        if stall_s:
            notes.append(f"Windows stalled training for {stall_s:.2f} s in total (excluded from step times).")
        distorted = [window.name for window in self.windows if window.is_representative is False]
        if distorted:
            notes.append(
                f"Not representative of training: {', '.join(f'window {name}' for name in distorted)}; the profiler "
                f"slowed these steps by more than {LARGEST_REPRESENTATIVE_SLOWDOWN:.0%}. Part of the idle, host and "
                "other time in their traces is the profiler's own."
            )
        return tuple(notes)


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
