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

from perfscope.hooks.facts.launched_rank import is_daemon_process
from perfscope.hooks.facts.secrets import redact_path
from perfscope.hooks.guard import hook_entry, value_or_none
from perfscope.hooks.timers.file_sizes import size_of_file
from perfscope.hooks.timers.open_saves import OpenSaves, Save

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from perfscope.hooks.rank_files import RankFiles
    from perfscope.hooks.step import StepAccumulator

#: Asking whether a save is complete is no wait.
_SHORTEST_WAIT_NS = 1_000_000
_Value = TypeVar("_Value")
_Arguments = ParamSpec("_Arguments")


def _path_text(path: object) -> str | None:
    """A path as records have it: without secrets."""
    return None if path is None else redact_path(str(path))


class SavingProcess(Protocol):
    """What the timer needs of the capture that it belongs to."""

    dead: bool
    pid: int
    files: RankFiles
    step: StepAccumulator

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
        hook_ns: Time that they took since it was last taken, without what they took inside a stall.
        is_in_use: Whether there is anything to say of the step that runs.
    """

    def __init__(self, process: SavingProcess) -> None:
        self.hook_ns = 0
        self.is_in_use = False
        self._hook_ns_before_stall = 0
        self._process = process
        self._open = OpenSaves()
        self._step = _StepSaves()
        self._write_lock = threading.Lock()
        self._end_lock = threading.Lock()

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

    @property
    def stalled_ns(self) -> int:
        """How long saves have stalled the running step so far."""
        return self._step.stalled_ns

    @hook_entry
    def run_guarded(
        self, action: Callable[_Arguments, _Value], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Value:
        """Run a part of a hook; None where it fails."""
        return action(*args, **kwargs)

    @contextlib.contextmanager
    def saving(
        self, source: str, path: object, *, is_asynchronous: bool = False, text_folder: object = None
    ) -> Iterator[Save | None]:
        """Time what runs inside as one save; None where it is a part of another one.

        Args:
            source: What is timed.
            path: Where it is saved to, as the framework states it.
            is_asynchronous: Whether writing goes on beside training after the call.
            text_folder: Where this process writes configurations or a tokenizer, too.
        """
        save = self._begin(source, path, is_asynchronous=is_asynchronous)
        if text_folder is not None:
            self._add_text_folder(text_folder)
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
            now_ns = time.monotonic_ns()
            if not self._open.is_stalling:
                self._step.stalled_ns += now_ns - began_ns
                if now_ns - began_ns >= _SHORTEST_WAIT_NS:
                    saves[0].waits.append((began_ns, now_ns))
            if value_or_none(is_drained):
                for save in saves:
                    self.on_drained(save)

    def waiting_on(self, save: Save) -> Generator[None, None, None]:
        """A hook around a call in which training may wait for one asynchronous save."""
        began_ns = time.monotonic_ns()
        waits = self._process.is_training_thread() and not self._open.is_stalling
        waits = waits and save in self._open.all_draining()
        save.waiting_since_ns = began_ns if waits else None
        try:
            yield
        finally:
            now_ns = time.monotonic_ns()
            if waits:
                self._step.stalled_ns += now_ns - began_ns
                self._end_wait(save, now_ns)

    def _end_wait(self, save: Save, now_ns: int) -> None:
        """Training waits no longer for a save: it goes on, or the save is complete, whichever is first."""
        with self._end_lock:
            began_ns, save.waiting_since_ns = save.waiting_since_ns, None
            if began_ns is not None and now_ns - began_ns >= _SHORTEST_WAIT_NS:
                save.waits.append((began_ns, now_ns))

    @hook_entry
    def on_drained(self, save: Save, *, failed: bool = False) -> None:
        """An asynchronous save lies on disk; called in any thread."""
        now_ns = time.monotonic_ns()
        if not self._open.remove_draining(save):
            return
        self._step.was_draining = True
        if failed:
            self._note_failure(save, "an asynchronous checkpoint save")
        self._end_wait(save, now_ns)
        with self._end_lock:
            save.is_drained, save.drained_ns = True, None if failed else now_ns
            is_stalling = save.end_ns is None
        if not is_stalling:  # else its record is written when training can go on
            self._write(save)

    @hook_entry
    def on_writer_begin(self) -> Save | None:
        """A storage writer starts; the bytes of what is saved inside it are reported at its end."""
        save = self._current()
        if save is None or save.is_in_writer:
            return None
        save.is_in_writer = True
        return save

    @hook_entry
    def on_writer_end(self, save: Save | None) -> None:
        """A storage writer wrote; what it reports is counted after this."""
        if save is not None:
            save.is_in_writer = False

    @hook_entry
    def on_write(self, size_bytes: int | None) -> None:
        """A part of a save was written to files without known names; None where its size is unknown."""
        save = self._current()
        if save is not None and not save.is_in_writer:
            save.files.add_bytes(size_bytes)

    @hook_entry
    def on_file(self, path: object, size_bytes: int | None = None) -> None:
        """A file of a save was written; where its size is not stated, the file system states it."""
        save = self._current()
        if save is not None and not save.is_in_writer:
            save.files.add_file(str(path), size_of_file(path) if size_bytes is None else size_bytes)

    @hook_entry
    def on_files_of_rank(self, save: Save, paths: list[str]) -> None:
        """Another process wrote these files of a save, as far as they exist; called in any thread."""
        for path in paths:
            size_bytes = size_of_file(path)
            if size_bytes is not None:
                save.files.add_file(path, size_bytes)

    @hook_entry
    def on_staged(self, save: Save) -> None:
        """The state of an asynchronous save was copied; called in any thread."""
        save.staged_ns = time.monotonic_ns()

    @hook_entry
    def on_written_beside(self, source: str, path: object, *, failed: bool) -> None:
        """A thread beside training wrote all of an asynchronous save of a source to this path, or failed to."""
        if self._process.is_training_thread():
            return
        text = _path_text(path)
        for save in self._open.all_draining():
            if (save.source, save.path) == (source, text):
                self.on_drained(save, failed=failed)
                return

    def take_hook_ns(self) -> int:
        """How long the hooks of saves took since this was last asked, but for what they took inside a stall."""
        hook_ns, self.hook_ns = self.hook_ns, 0
        return hook_ns

    def take_step_times(self) -> tuple[int | None, bool | None]:
        """How long saves stalled the step that ended, and whether one was writing beside it; None for neither."""
        self.is_in_use = self._open.is_draining or self._open.is_stalling
        step, self._step = self._step, _StepSaves()
        return step.stalled_ns or None, (step.was_draining or self._open.is_draining) or None

    def finish(self) -> None:
        """Write the records of the saves that were never seen to be complete on disk."""
        for save in self._open.all_draining():
            if self._open.remove_draining(save):
                self._write(save)

    @hook_entry
    def _begin(self, source: str, path: object, *, is_asynchronous: bool) -> Save | None:
        self.is_in_use = True
        self._process.step.next_event = 0
        is_stalling = self._process.is_training_thread()
        start_ns = time.monotonic_ns()
        if is_daemon_process():
            return None  # it saves for the process that trains, which times it
        save = Save(
            source=source,
            path=_path_text(path),
            step=self._process.step.steps,
            start_ns=start_ns,
            is_asynchronous=is_asynchronous or not is_stalling,
            is_stalling=is_stalling,
            end_ns=None if is_stalling else start_ns,
        )
        if not self._open.add(save):
            return None
        if is_stalling:
            self._hook_ns_before_stall = self.hook_ns
        self._process.files.claim()
        return save

    @hook_entry
    def _add_text_folder(self, folder: object) -> None:
        save = self._current()
        if save is not None:
            save.files.add_text_folder(str(folder))

    @hook_entry
    def _end(self, save: Save | None, *, failed: bool) -> None:
        """The call returned; an asynchronous save may still be writing."""
        if save is None:
            return
        is_drained = False
        if save.is_stalling:
            with self._end_lock:
                end_ns = save.end_ns = time.monotonic_ns()
                is_drained = save.is_drained
            self._step.stalled_ns += end_ns - save.start_ns
            self.hook_ns = self._hook_ns_before_stall
            self._open.end_stall()
        save.files.add_text_files()
        if failed:
            self._open.remove_draining(save)
            self._note_failure(save, "a checkpoint save")
        elif is_drained or not save.is_asynchronous:
            self._write(save)
        elif not save.is_stalling:
            self.on_drained(save)

    def _current(self) -> Save | None:
        return self._open.find_current(in_training_thread=self._process.is_training_thread())

    def _note_failure(self, save: Save, kind: str) -> None:
        self._process.files.note(f"{kind} by {save.source} failed after step {save.step}")

    def _write(self, save: Save) -> None:
        if save.end_ns is not None:
            with self._write_lock:
                self._process.files.claim().write_checkpoint(save.record(save.end_ns))
