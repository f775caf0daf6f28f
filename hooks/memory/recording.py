"""When the allocator's history is recorded: in windows, and from the first step on where memory may run out.

A failure here costs the history alone: it becomes a note, and the window and the training go on.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from perfscope.hooks.guard import call_safely
from perfscope.hooks.memory.history import HistoryRecorder, NoHistory
from perfscope.hooks.messages import write_message
from perfscope.wire.memory import OUT_OF_MEMORY, STEP

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfscope.hooks.config import Config
    from perfscope.hooks.memory.history import Trained
    from perfscope.hooks.rank_files import RankFiles

#: Events that are kept for an out-of-memory error: some steps of a large model.
_EVENTS_BEFORE_ERROR = 200_000
#: A script that catches its out-of-memory errors may have thousands.
_MOST_ERRORS = 2


class MemoryRecording:
    """The histories of one process."""

    def __init__(self, config: Config, files: RankFiles, trained: Trained) -> None:
        self._config = config
        self._files = files
        self._trained = trained
        self._window: HistoryRecorder | None = None
        self._until_error: HistoryRecorder | None = None
        self._errors = 0
        self._step = 1

    @property
    def watches_for_errors(self) -> bool:
        """Whether the history is written when memory runs out."""
        return self._until_error is not None

    def start_window(self, step: int) -> None:
        """A window with operators opens before a step."""
        if self._config.memory and self._window is None:
            self._window = history = HistoryRecorder(self._config.run_dir, self._trained)
            if not self._safely(lambda: history.start(step), "is not recorded"):
                self.discard_window()

    def on_step(self, step: int) -> None:
        """A step of a window begins."""
        if self._window is not None:
            self._window.marks.add(STEP, str(step))

    def finish_window(self, last_step: int) -> None:
        """The window ends after a step."""
        history = self._window
        if history is not None:
            self._safely(lambda: history.write(self._files.claim_files()[1].rank, last_step), "is lost")
            self.discard_window()

    def discard_window(self) -> None:
        """Leave nothing recording that a window began."""
        history, self._window = self._window, None
        if history is not None:
            call_safely(history.stop)

    def watch_for_errors(self, step: int) -> None:
        """Record from here on, where it is wanted, and write what was recorded when memory runs out."""
        if not self._config.on_oom:
            return
        history = HistoryRecorder(self._config.run_dir, self._trained, most_events=_EVENTS_BEFORE_ERROR)
        if not self._safely(lambda: history.start(step), "is not recorded"):
            call_safely(history.stop)
            return
        self._until_error = history
        self._safely(self._attach_observer, "is not written when memory runs out")

    def on_any_step(self, step: int) -> None:
        """A step of the training begins, in a window or not."""
        self._step = step
        if self._until_error is not None:
            self._until_error.marks.forget_steps()
            self._until_error.marks.add(STEP, str(step))

    def forget(self) -> None:
        """Write nothing in a forked child."""
        self._window = self._until_error = None

    def _attach_observer(self) -> None:
        attach: Callable[[Callable[..., None]], None] | None
        attach = getattr(sys.modules["torch"]._C, "_cuda_attach_out_of_memory_observer", None)
        if attach is None:
            raise NoHistory("this version of torch reports no out-of-memory errors")
        attach(self._on_out_of_memory)

    def _on_out_of_memory(self, _device: int, request_bytes: int, *_state: int) -> None:
        """Torch calls this before it raises the error, without the allocator's lock; nothing may leave it."""
        history = self._until_error
        self._errors += 1
        if history is None or self._errors > _MOST_ERRORS:
            return

        def write() -> None:
            rank = self._files.claim_files()[1].rank
            names = history.write(rank, self._step, OUT_OF_MEMORY, request_bytes=int(request_bytes))
            write_message(f"memory ran out in step {self._step}: the allocator's history is in {', '.join(names)}")

        self._safely(write, "is lost")

    def _safely(self, action: Callable[[], object], loss: str) -> bool:
        """Whether an action succeeded; a note says why not."""
        _, error = call_safely(action)
        if error is not None:
            reason = str(error) if isinstance(error, (NoHistory, OSError)) else repr(error)
            self._files.note(f"the allocator's history {loss}: {reason}")
        return error is None
