"""Times checkpoint saves: what stalls training, what goes on beside it, and how many bytes this process wrote.

A save inside a save, such as DeepSpeed's ``torch.save`` of each file, is a part of it and counted once. A save in
another thread than the training's is asynchronous by itself: it stalls nothing.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from perfscope.hooks.facts.secrets import redact_path
from perfscope.hooks.guard import hook_entry, value_or_none
from perfscope.hooks.timers.open_saves import OpenSaves, Save

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from perfscope.hooks.rank_files import RankFiles

_Value = TypeVar("_Value")
_Arguments = ParamSpec("_Arguments")


class SavingProcess(Protocol):
    """What the timer needs of the capture that it belongs to."""

    dead: bool
    pid: int
    steps: int
    files: RankFiles

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains."""


@dataclass
class _StepSaves:
    """What saves did to the step that runs."""

    stalled_ns: int = 0
    was_draining: bool = False


class SaveTimer:
    """Times the saves of one process; its methods are safe to call from training.

    Attributes:
        hook_ns: Time that they took.
    """

    def __init__(self, process: SavingProcess) -> None:
        self.hook_ns = 0
        self._process = process
        self._open = OpenSaves()
        self._step = _StepSaves()
        self._write_lock = threading.Lock()

    @property
    def dead(self) -> bool:
        """Whether the capture has ended."""
        return self._process.dead

    @property
    def pid(self) -> int:
        """The process of the capture."""
        return self._process.pid

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""
        self._process.abandon(reason)

    @hook_entry
    def run_guarded(
        self, action: Callable[_Arguments, _Value], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Value:
        """Run a part of a hook; None where it fails."""
        return action(*args, **kwargs)

    @contextlib.contextmanager
    def saving(self, source: str, path: object, *, is_asynchronous: bool = False) -> Iterator[Save | None]:
        """Time what runs inside as one save; None where it is a part of another one."""
        save = self._begin(source, path, is_asynchronous=is_asynchronous)
        try:
            yield save
        except BaseException:
            self._end(save, failed=True)
            raise
        self._end(save, failed=False)

    def waiting_for(self, source: str, is_drained: Callable[[], bool]) -> Generator[None, None, None]:
        """A hook around a function in which training may wait for the asynchronous saves of a source.

        After it, all of them are on disk if ``is_drained()`` returns True.
        """
        began_ns = time.monotonic_ns()
        yield
        saves = self._open.find_draining(source)
        if saves:
            if not self._open.is_stalling:
                self._step.stalled_ns += time.monotonic_ns() - began_ns
            if value_or_none(is_drained):
                for save in saves:
                    self.on_drained(save)

    @hook_entry
    def on_drained(self, save: Save, *, failed: bool = False) -> None:
        """An asynchronous save lies on disk; called in any thread."""
        now_ns = time.monotonic_ns()
        if not self._open.remove_draining(save):
            return
        self._step.was_draining = True
        if failed:
            self._note_failure(save, "an asynchronous checkpoint save")
        self._write(save, None if failed else now_ns)

    @hook_entry
    def on_writer_begin(self) -> Save | None:
        """A storage writer starts; the bytes of what is saved inside it are reported at its end."""
        save = self._current()
        if save is None or save.is_in_writer:
            return None
        save.is_in_writer = True
        return save

    @hook_entry
    def on_writer_end(self, save: Save | None, size_bytes: int | None) -> None:
        """A storage writer wrote; None where it does not report how much."""
        if save is not None:
            save.is_in_writer = False
            save.add_bytes(size_bytes)

    @hook_entry
    def on_write(self, size_bytes: int | None) -> None:
        """A part of a save was written; None where its size is unknown."""
        save = self._current()
        if save is not None and not save.is_in_writer:
            save.add_bytes(size_bytes)

    def take_step_times(self) -> tuple[int | None, bool | None]:
        """How long saves stalled the step that ended, and whether one was writing beside it; None for neither."""
        step, self._step = self._step, _StepSaves()
        return step.stalled_ns or None, (step.was_draining or self._open.is_draining) or None

    def finish(self) -> None:
        """Write the records of the saves that were never seen to be complete on disk."""
        for save in self._open.all_draining():
            if self._open.remove_draining(save):
                self._write(save, None)

    @hook_entry
    def _begin(self, source: str, path: object, *, is_asynchronous: bool) -> Save | None:
        is_stalling = self._process.is_training_thread()
        start_ns = time.monotonic_ns()
        save = Save(
            source=source,
            path=None if path is None else redact_path(str(path)),
            step=self._process.steps,
            start_ns=start_ns,
            is_asynchronous=is_asynchronous or not is_stalling,
            is_stalling=is_stalling,
            end_ns=None if is_stalling else start_ns,
        )
        if not self._open.add(save):
            return None
        self._process.files.claim()
        return save

    @hook_entry
    def _end(self, save: Save | None, *, failed: bool) -> None:
        """The call returned; an asynchronous save may still be writing."""
        if save is None:
            return
        if save.is_stalling:
            save.end_ns = time.monotonic_ns()
            self._step.stalled_ns += save.end_ns - save.start_ns
            self._open.end_stall()
        if failed:
            self._open.remove_draining(save)
            self._note_failure(save, "a checkpoint save")
        elif not save.is_asynchronous:
            self._write(save, None)
        elif not save.is_stalling:
            self.on_drained(save)

    def _current(self) -> Save | None:
        return self._open.find_current(in_training_thread=self._process.is_training_thread())

    def _note_failure(self, save: Save, kind: str) -> None:
        self._process.files.note(f"{kind} by {save.source} failed after step {save.step}")

    def _write(self, save: Save, drained_ns: int | None) -> None:
        if save.end_ns is not None:
            with self._write_lock:
                self._process.files.claim().write_checkpoint(save.record(save.end_ns, drained_ns))
