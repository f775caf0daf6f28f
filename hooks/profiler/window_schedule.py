"""Opens, advances and closes the profiler windows of a process, and labels the steps around them."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Protocol

from perfscope import wire
from perfscope.hooks.facts import identity
from perfscope.hooks.guard import write_message
from perfscope.hooks.profiler.module_ranges import ModuleRanges
from perfscope.hooks.profiler.window import ExportError, ProfilerWindow

if TYPE_CHECKING:
    from perfscope.hooks.config import Config
    from perfscope.hooks.recorder import Recorder
    from perfscope.hooks.selection import StepWindow


class WindowOwner(Protocol):
    """What the windows need of the capture that they belong to."""

    def note(self, text: str) -> None:
        """Keep something that a reader of the report must know."""

    def claim_files(self) -> tuple[Recorder, wire.RankRecord]:
        """The rank's files, claimed now where they were not."""

    def claimed_rank(self) -> int | None:
        """The rank, where its files are claimed."""


class WindowSchedule:
    """The windows of one process.

    Attributes:
        label: How the step that runs now relates to a window.
        foreign: Why no window is profiled; absent where nothing forbids it.
    """

    def __init__(self, config: Config, owner: WindowOwner) -> None:
        self.label: str | None = None
        self.foreign: str | None = _foreign_tool()
        self._config = config
        self._owner = owner
        self._pending = list(config.windows)
        self._window: ProfilerWindow | None = None
        self._moving = False
        self._ends_after_move = False
        self._ranges = ModuleRanges()

    @property
    def is_open(self) -> bool:
        """Whether a window is open, its warm-up step included."""
        return self._window is not None

    def on_step_end(self, completed: int) -> None:
        """Go from the step that just ended to the next: open, advance or close a window, and label the next step."""
        self._moving = True
        try:
            self._move(completed)
        finally:
            self._moving = False
            if self._ends_after_move:
                self.discard()

    def _move(self, completed: int) -> None:
        self.label = None
        next_step = completed + 1
        if self._window is not None:
            if completed >= self._window.steps.last:
                self.close(completed)
                self.label = wire.EXPORT
            else:
                self._window.step()
                self.label = wire.PROFILED
        while self._pending and self._pending[0].first < next_step:
            self._owner.note(f"the window {self._pending.pop(0)} is not profiled: training was past its warm-up step")
        if self._pending and self._pending[0].first <= next_step + 1 and self._window is None:
            self._open(self._pending.pop(0), next_step)

    def _open(self, window: StepWindow, next_step: int) -> None:
        if self.foreign is not None:
            self._owner.note(f"the window {window} is not profiled: {self.foreign}")
            write_message(f"the window {window} is not profiled: {self.foreign}")
            return
        if not self._profiles_this_rank():
            return
        opened = ProfilerWindow(window, self._config, next_step)
        self._window = opened
        opened.start()
        if next_step == window.first:
            self._owner.note(f"the window {window} began without a warm-up step: its first step is slower")
        self.label = wire.PROFILED if next_step == window.first else wire.WARMUP
        if self._config.modules:
            self._ranges.start()

    def close(self, completed: int, *, after_failure: bool = False) -> None:
        """Stop an open window and write what it holds."""
        window, self._window = self._window, None
        if window is None:
            return
        try:
            self._ranges.stop()
            if not window.recorded:
                self._owner.note(f"the window {window.steps} holds nothing: training ended in its warm-up step")
                return
            recorder, rank = self._owner.claim_files()
            finish = window.finish_after_failure if after_failure else window.finish
            recorder.write_event(finish(_metadata(rank, window), completed))
        except ExportError as error:
            self._owner.note(f"the window {window.steps} is lost: {error}")
            write_message(f"the window {window.steps} is lost: {error}")
        finally:
            window.discard()

    def discard(self) -> None:
        """Leave nothing running and write nothing."""
        if self._moving:  # a hook failed inside the profiler's own start, which stopping it now would break
            self._ends_after_move = True
            return
        window, self._window = self._window, None
        try:
            self._ranges.stop()
        finally:
            if window is not None:
                window.discard()

    def on_profiler_start(self) -> None:
        """Somebody starts a profiler: if it is not ours, ours would take its events away, so ours stands down."""
        if self._moving or self.foreign is not None:
            return
        self._stand_down("the script runs a profiler of its own")

    def _stand_down(self, reason: str) -> None:
        self.foreign = reason
        if self._window is None and not self._pending:
            return
        self.discard()
        self._owner.note(f"no window is profiled: {self.foreign}")
        write_message(f"no window is profiled from here on: {self.foreign}")

    def _profiles_this_rank(self) -> bool:
        if self._config.ranks is None:
            return True
        rank = self._owner.claimed_rank()
        return (identity.rank_and_world_size()[0] if rank is None else rank) in self._config.ranks


def _metadata(rank: wire.RankRecord, window: ProfilerWindow) -> dict[str, Any]:
    return {
        "schema": wire.SCHEMA,
        "rank": rank.rank,
        "world_size": rank.world_size,
        "first_step": window.steps.first,
        "wall_ns": time.time_ns(),
        "monotonic_ns": time.monotonic_ns(),
    }


def _foreign_tool() -> str | None:
    """A profiler outside the process that holds CUPTI."""
    for name in ("CUDA_INJECTION64_PATH", "NSYS_PROFILING_SESSION_ID"):
        if os.environ.get(name):
            return f"another profiler is attached ({name} is set)"
    return None
