"""Times checkpoint saves: what stalls training, what goes on during training, and how many bytes this process wrote.

A save inside a save, such as DeepSpeed's ``torch.save`` of each file, is a part of it and counted once. A save in
another thread than the training's is asynchronous by itself: it stalls nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from perfscope import wire
from perfscope.constants import NS_PER_MS
from perfscope.hooks.facts.launched_rank import is_daemon_process
from perfscope.hooks.facts.secrets import redact_path
from perfscope.hooks.guard import hook_entry, value_or_none
from perfscope.wire.records import CheckpointRecord

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

#: Files of configurations and tokenizers, which frameworks write without a function that hooks could time.
_TEXT_ENDINGS = (".json", ".jsonl", ".txt", ".model", ".jinja", ".md", ".yaml", ".yml")
_MOST_ENTRIES, _MOST_NAMED = 2000, 500
_CLOCK_TOLERANCE_S = 2.0  # file systems have clocks of their own
_Value = TypeVar("_Value")
_Arguments = ParamSpec("_Arguments")


def size_of_file(path: object) -> int | None:
    """The size of a local file; None where there is none of this path."""
    return value_or_none(lambda: os.stat(path).st_size)  # type: ignore[arg-type]


class WrittenFiles:
    """What one save of this process is known to have written."""

    def __init__(self) -> None:
        self._sizes: dict[str, int | None] = {}
        self._unnamed_bytes: int | None = None
        self._is_anything_unknown = False
        self._text_folders: set[str] = set()
        self._began_s = time.time()

    def add_file(self, path: object, size_bytes: int | None) -> None:
        """A file was written; None where its size is unknown, and so is the save's."""
        self._sizes[str(path) if "://" in str(path) else os.path.normpath(str(path))] = size_bytes

    def add_bytes(self, size_bytes: int | None) -> None:
        """Bytes were written to files without known names; None where it is unknown how many."""
        if size_bytes is None:
            self._is_anything_unknown = True
        else:
            self._unnamed_bytes = (self._unnamed_bytes or 0) + size_bytes

    def add_text_folder(self, folder: str) -> None:
        """Into this folder the process writes configurations or a tokenizer."""
        self._text_folders.add(folder)

    def add_text_files(self) -> None:
        """Look for the configurations and tokenizers that were written since the save began."""
        since_s = self._began_s - _CLOCK_TOLERANCE_S
        for folder in self._text_folders:
            with contextlib.suppress(OSError), os.scandir(folder) as entries:
                for entry in itertools.islice(entries, _MOST_ENTRIES):
                    if entry.name.endswith(_TEXT_ENDINGS) and entry.stat().st_mtime >= since_s:
                        self._sizes.setdefault(os.path.normpath(entry.path), entry.stat().st_size)
        self._text_folders.clear()

    @property
    def size_bytes(self) -> int | None:
        """All bytes; None where something unknown was written, or nothing was reported."""
        is_unreported = not self._sizes and self._unnamed_bytes is None
        if is_unreported or self._is_anything_unknown or None in self._sizes.values():
            return None
        return sum(size or 0 for size in self._sizes.values()) + (self._unnamed_bytes or 0)

    @property
    def count(self) -> int | None:
        """The number of files; None where it is unknown."""
        is_unreported = not self._sizes and self._unnamed_bytes is None
        return None if is_unreported or self._is_anything_unknown or self._unnamed_bytes else len(self._sizes)

    def named(self) -> tuple[tuple[str, int | None], ...] | None:
        """Path and size of each file, without secrets; None where unknown, or where there are very many."""
        if self.count is None or self.count > _MOST_NAMED:
            return None
        return tuple((redact_path(path), size) for path, size in sorted(self._sizes.items()))


@dataclass(eq=False)
class TimedSave:
    """A save that is under way; see ``CheckpointRecord``.

    Attributes:
        is_stalling: Whether it began in the thread that trains, which waits until the call returns.
        end_ns: When training could go on; None while it is stalled.
        is_drained: Whether an asynchronous save was seen to end, also by a failure.
        waiting_since_ns: Since when training waits for it now; None while it does not.
        is_in_writer: Inside a storage writer, which reports all that is saved in it.
    """

    source: str
    path: str | None
    step: int
    start_ns: int
    is_asynchronous: bool
    is_stalling: bool
    end_ns: int | None = None
    is_drained: bool = False
    drained_ns: int | None = None
    waits: list[tuple[int, int]] = field(default_factory=list)
    waiting_since_ns: int | None = None
    files: WrittenFiles = field(default_factory=WrittenFiles)
    is_in_writer: bool = False

    def end_wait(self, now_ns: int) -> None:
        """Training waits no longer for it: training goes on, or the save is complete, whichever is first."""
        began_ns, self.waiting_since_ns = self.waiting_since_ns, None
        if began_ns is not None and now_ns - began_ns >= NS_PER_MS:  # asking whether it is complete is no wait
            self.waits.append((began_ns, now_ns))


class CaptureTimer:
    """A part of a ``Capture`` whose methods are safe to call from training; they took ``hook_ns``."""

    def __init__(self, process: Any) -> None:
        self.hook_ns = 0
        self._process = process

    @property
    def dead(self) -> bool:
        """Whether the capture has ended."""
        return bool(self._process.dead)

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""
        self._process.abandon(reason)

    def take_hook_ns(self) -> int:
        """How long these hooks took since this was last asked."""
        hook_ns, self.hook_ns = self.hook_ns, 0
        return hook_ns


class SaveTimer(CaptureTimer):
    """Times the saves of one process; what its methods take inside a stall is no time of hooks.

    Attributes:
        is_in_use: Whether there is anything to say of the step that runs.
        stalled_ns: How long saves have stalled the running step so far.
    """

    def __init__(self, process: Any) -> None:
        super().__init__(process)
        self.stalled_ns = self._hook_ns_before_stall = 0
        self.is_in_use = False
        #: The save that stalls training, and the asynchronous ones that do not lie on disk yet.
        self._stalling: TimedSave | None = None
        self._draining: list[TimedSave] = []
        self._was_draining = False
        self._lock = threading.RLock()

    @hook_entry
    def run_guarded(
        self, action: Callable[_Arguments, _Value], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Value:
        """Run a part of a hook; None where it fails."""
        return action(*args, **kwargs)

    @contextlib.contextmanager
    def saving(
        self, source: str, path: object, *, is_asynchronous: bool = False, text_folder: object = None
    ) -> Iterator[TimedSave | None]:
        """Time what runs inside as one save; None where it is a part of another one.

        Writing of an asynchronous one goes on after the call. This process may write configurations or a tokenizer,
        too, into ``text_folder``.
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
        saves = [save for save in self._draining if save.source == source and save.end_ns is not None]
        if saves:
            if self._stalling is None:
                now_ns = time.monotonic_ns()
                self.stalled_ns += now_ns - began_ns
                saves[0].waiting_since_ns = began_ns
                saves[0].end_wait(now_ns)
            if value_or_none(is_drained):
                for save in saves:
                    self.on_drained(save)

    def waiting_on(self, save: TimedSave) -> Generator[None, None, None]:
        """A hook around a call in which training may wait for one asynchronous save."""
        began_ns = time.monotonic_ns()
        waits = self._process.is_training_thread() and self._stalling is None and save in self._draining
        save.waiting_since_ns = began_ns if waits else None
        try:
            yield
        finally:
            now_ns = time.monotonic_ns()
            if waits:
                self.stalled_ns += now_ns - began_ns
                with self._lock:
                    save.end_wait(now_ns)

    @hook_entry
    def on_drained(self, save: TimedSave, *, failed: bool = False) -> None:
        """An asynchronous save lies on disk; called in any thread."""
        now_ns = time.monotonic_ns()
        with self._lock:
            if not self._remove_draining(save):
                return
            self._was_draining = True
            if failed:
                self._process.files.note(
                    f"an asynchronous checkpoint save by {save.source} failed after step {save.step}"
                )
            save.end_wait(now_ns)
            save.is_drained, save.drained_ns = True, None if failed else now_ns
            self._write(save)

    @hook_entry
    def on_writer_begin(self) -> TimedSave | None:
        """A storage writer starts; the bytes of what is saved inside it are reported at its end."""
        save = self._current()
        if save is None or save.is_in_writer:
            return None
        save.is_in_writer = True
        return save

    @hook_entry
    def on_writer_end(self, save: TimedSave | None) -> None:
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
            save.files.add_file(path, size_of_file(path) if size_bytes is None else size_bytes)

    @hook_entry
    def on_written_beside(self, source: str, path: object, *, failed: bool) -> None:
        """Another thread than the training's wrote all of an asynchronous save to this path, or failed to."""
        if not self._process.is_training_thread():
            written = source, _path_text(path)
            for save in [save for save in self._draining if (save.source, save.path) == written][:1]:
                self.on_drained(save, failed=failed)

    def take_step_times(self) -> tuple[int | None, bool | None]:
        """How long saves stalled the step that ended, and whether one was writing during it; None for neither."""
        self.is_in_use = bool(self._draining) or self._stalling is not None
        taken = self.stalled_ns or None, (self._was_draining or bool(self._draining)) or None
        self.stalled_ns, self._was_draining = 0, False
        return taken

    def finish(self) -> None:
        """Write the records of the saves that were never seen to be complete on disk."""
        for save in list(self._draining):
            if self._remove_draining(save):
                self._write(save)

    @hook_entry
    def _begin(self, source: str, path: object, *, is_asynchronous: bool) -> TimedSave | None:
        self.is_in_use = True
        self._process.step.next_event = 0
        is_stalling = self._process.is_training_thread()
        start_ns = time.monotonic_ns()
        if is_daemon_process():
            return None  # it saves for the process that trains, which times it
        save = TimedSave(
            source=source,
            path=_path_text(path),
            step=self._process.step.steps,
            start_ns=start_ns,
            is_asynchronous=is_asynchronous or not is_stalling,
            is_stalling=is_stalling,
            end_ns=None if is_stalling else start_ns,
        )
        with self._lock:
            if self._stalling is not None or (self._draining and not is_stalling):
                return None  # a part of a save that is under way
            if is_stalling:
                self._stalling = save
                self._hook_ns_before_stall = self.hook_ns
            if save.is_asynchronous:
                self._draining.append(save)
        self._process.files.claim()
        return save

    @hook_entry
    def _add_text_folder(self, folder: object) -> None:
        save = self._current()
        if save is not None:
            save.files.add_text_folder(str(folder))

    @hook_entry
    def _end(self, save: TimedSave | None, *, failed: bool) -> None:
        if save is None:
            return
        is_drained = False
        if save.is_stalling:
            with self._lock:
                end_ns = save.end_ns = time.monotonic_ns()
                is_drained = save.is_drained
                self._stalling = None
            self.stalled_ns += end_ns - save.start_ns
            self.hook_ns = self._hook_ns_before_stall
        save.files.add_text_files()
        if failed:
            self._remove_draining(save)
            self._process.files.note(f"a checkpoint save by {save.source} failed after step {save.step}")
        elif is_drained or not save.is_asynchronous:
            self._write(save)
        elif not save.is_stalling:
            self.on_drained(save)

    def _current(self) -> TimedSave | None:
        """The save to which a file belongs that this thread writes now."""
        if self._stalling is not None and (self._process.is_training_thread() or not self._draining):
            return self._stalling
        return self._draining[0] if self._draining else None

    def _remove_draining(self, save: TimedSave) -> bool:
        """Take an asynchronous save out; False where it is out already."""
        with self._lock:
            if save not in self._draining:
                return False
            self._draining.remove(save)
            return True

    def _write(self, save: TimedSave) -> None:
        with self._lock:
            if save.end_ns is None:
                return
            self._process.files.claim().append(
                wire.CHECKPOINTS_FILE,
                CheckpointRecord(
                    start_ns=save.start_ns,
                    end_ns=save.end_ns,
                    source=save.source,
                    step=save.step,
                    path=save.path,
                    size_bytes=save.files.size_bytes,
                    asynchronous=save.is_asynchronous,
                    drained_ns=save.drained_ns,
                    files=save.files.named(),
                    file_count=save.files.count,
                    waits=tuple(save.waits) or None,
                ),
            )


def _path_text(path: object) -> str | None:
    """A path as records have it: without secrets."""
    return None if path is None else redact_path(str(path))
