"""What perfscope itself cost a run: slower steps in a window, the time that a window held training, memory, hooks.

Undisturbed steps before the first window, those between windows and after them, and those inside are compared by their
medians, the slowest rank of each step. A window whose steps were more than 10 % slower than undisturbed ones is
*distorted*: the shares of its trace are those of slowed steps, see ``perfscope.analyzers.distortion``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from perfscope.analyzers.steps import (
    Choose,
    last_attempts,
    profiled_steps,
    slowest_rank_of_each_step,
    undisturbed_steps,
)
from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section
from perfscope.tables.run import Run, Window
from perfscope.tables.steps import Steps

#: How much slower a window's steps may be before its shares are not those of training.
DISTORTED = 0.10


@dataclass(frozen=True, slots=True)
class WindowCost:
    """What one window cost.

    Attributes:
        first_step, last_step: Its training steps.
        profiled_s: Median of its steps; absent where their times are unknown.
        slower: By which part they were slower than undisturbed ones; absent where there is none to compare with.
        start_s, stop_s, export_s, release_s: How long the rank that was held longest waited for the profiler to start
            and to stop, for the trace to be written, and for its memory to be given back.
        trace_bytes: Size of all its traces before compression.
        memory_bytes: By how much the memory of the process that grew most had grown when it was over; absent where
            unknown.
    """

    first_step: int
    last_step: int
    profiled_s: float | None
    slower: float | None
    start_s: float
    stop_s: float
    export_s: float
    release_s: float | None
    trace_bytes: int
    memory_bytes: int | None

    @property
    def held_s(self) -> float:
        """How long training stood still for it."""
        return self.start_s + self.stop_s + self.export_s + (self.release_s or 0.0)

    @property
    def is_distorted(self) -> bool | None:
        """Whether its shares are those of slowed steps; absent where that cannot be told."""
        return None if self.slower is None else self.slower > DISTORTED

    @property
    def name(self) -> str:
        """Its steps, as people write them."""
        return str(self.first_step) if self.first_step == self.last_step else f"{self.first_step}-{self.last_step}"


@dataclass(frozen=True, slots=True)
class Cost:
    """What perfscope cost.

    Attributes:
        before_s: Median undisturbed step before the first window; absent where there is none.
        after_s: Median undisturbed step behind it; absent where there is none.
        undisturbed_s: Median of both.
        hooks_s: Median time that the hooks took in an undisturbed step and at its boundary; absent where unknown.
        windows: Every window, in order.
        marks_passes: Whether the hooks mark the passes of micro-batches on the device.
    """

    before_s: float | None
    after_s: float | None
    undisturbed_s: float | None
    hooks_s: float | None
    windows: tuple[WindowCost, ...]
    marks_passes: bool = False

    def data(self) -> Json:
        """The value of ``results.cost``."""
        windows: list[Json] = [
            {**asdict(window), "held_s": window.held_s, "distorted": window.is_distorted} for window in self.windows
        ]
        return {
            "before_s": self.before_s,
            "after_s": self.after_s,
            "undisturbed_s": self.undisturbed_s,
            "hooks_s": self.hooks_s,
            "windows": windows,
        }

    def sections(self) -> tuple[Section, ...]:
        """One row a window."""
        columns = (
            Column("Window"),
            Column("Its steps (ms)", 2),
            Column("Slower by (%)"),
            Column("Start (ms)"),
            Column("Stop (ms)"),
            Column("Export (ms)"),
            Column("Memory back (ms)"),
            Column("Traces (MB)"),
            Column("Memory kept (MB)"),
            Column("Shares"),
        )
        rows = tuple(
            (
                window.name,
                _ms(window.profiled_s),
                None if window.slower is None else 100 * window.slower,
                _ms(window.start_s),
                _ms(window.stop_s),
                _ms(window.export_s),
                _ms(window.release_s),
                window.trace_bytes / 1e6,
                None if window.memory_bytes is None else window.memory_bytes / 1e6,
                _SHARES[window.is_distorted],
            )
            for window in self.windows
        )
        if not rows:
            return (Section("Cost of perfscope", notes=("No window was profiled.", *self._notes())),)
        return (Section("Cost of perfscope", columns, rows, self._notes()),)

    def _notes(self) -> tuple[str, ...]:
        notes = []
        if self.before_s is not None and self.after_s is not None:
            change = self.after_s / self.before_s - 1
            notes.append(
                f"Median undisturbed step: {self.before_s * 1e3:.2f} ms before the first window, "
                f"{self.after_s * 1e3:.2f} ms behind it ({change:+.1%})."
            )
        elif self.windows:
            known = "behind" if self.before_s is None else "before"
            if self.undisturbed_s is not None:
                notes.append(f"There are undisturbed steps only {known} the first window: nothing to compare with.")
        if self.hooks_s is not None and self.undisturbed_s:
            share = self.hooks_s / (self.undisturbed_s + self.hooks_s)
            waits = "; where the device's queue is full, marking a pass waits for it" if self.marks_passes else ""
            notes.append(
                f"The hooks took {self.hooks_s * 1e6:.0f} us of a median step outside windows ({share:.2%}){waits}."
            )
        held_s = sum(window.held_s for window in self.windows)
        if held_s:
            notes.append(f"The windows held training for {held_s:.2f} s in all, which is in no step's time.")
        distorted = [window.name for window in self.windows if window.is_distorted]
        if distorted:
            notes.append(
                f"Windows with steps over {DISTORTED:.0%} slower than undisturbed ones: {', '.join(distorted)}. "
                "What their traces show as idle, host or other time is in part the profiler's own."
            )
        return tuple(notes)


_SHARES = {True: "of slowed steps", False: "of training", None: None}


def analyze(run: Run) -> Cost:
    """Compare the steps around the windows, and add up what held training.

    Raises:
        MissingInput: No rank completed a training step.
    """
    tables = last_attempts(run.steps)
    if not tables:
        raise MissingInput("no rank completed a training step")
    ranges = sorted({(window.first_step, window.last_step) for window in run.windows})
    first = ranges[0][0] if ranges else None
    undisturbed_s = _median(tables, undisturbed_steps)
    hooks = [table.hook_ns[undisturbed_steps(table)].compressed() for table in tables]
    hook_ns = np.concatenate(hooks) if hooks else np.empty(0)
    return Cost(
        before_s=None if first is None else _median(tables, lambda table: _undisturbed(table, before=first)),
        after_s=None if first is None else _median(tables, lambda table: _undisturbed(table, after=first)),
        undisturbed_s=undisturbed_s,
        hooks_s=float(np.median(hook_ns)) / NS_PER_S if len(hook_ns) else None,
        windows=tuple(_window(steps, run.windows, tables, undisturbed_s) for steps in ranges),
        marks_passes=bool(run.micro_batches),
    )


def _undisturbed(table: Steps, *, before: int | None = None, after: int | None = None) -> np.ndarray:
    chosen = undisturbed_steps(table)
    if before is not None:
        chosen = chosen & (table.step < before)
    if after is not None:
        chosen = chosen & (table.step > after)
    return np.asarray(chosen)


def _window(
    steps: tuple[int, int], windows: Sequence[Window], tables: Sequence[Steps], undisturbed_s: float | None
) -> WindowCost:
    mine = [window for window in windows if (window.first_step, window.last_step) == steps]
    slowest = max(mine, key=lambda window: window.start_ns + window.stop_ns + window.export_ns)
    profiled_s = _median(
        tables, lambda table: profiled_steps(table) & (table.step >= steps[0]) & (table.step <= steps[1])
    )
    grown = [
        window.rss_after_bytes - window.rss_before_bytes
        for window in mine
        if window.rss_after_bytes is not None and window.rss_before_bytes is not None
    ]
    return WindowCost(
        first_step=steps[0],
        last_step=steps[1],
        profiled_s=profiled_s,
        slower=None if profiled_s is None or not undisturbed_s else profiled_s / undisturbed_s - 1,
        start_s=slowest.start_ns / NS_PER_S,
        stop_s=slowest.stop_ns / NS_PER_S,
        export_s=slowest.export_ns / NS_PER_S,
        release_s=None if slowest.release_ns is None else slowest.release_ns / NS_PER_S,
        trace_bytes=sum(window.trace_bytes for window in mine),
        memory_bytes=max(grown, default=None),
    )


def _median(tables: Sequence[Steps], choose: Choose) -> float | None:
    seconds = slowest_rank_of_each_step(tables, choose)
    return float(np.median(seconds)) if len(seconds) else None


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3
