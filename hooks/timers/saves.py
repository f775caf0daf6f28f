"""Times checkpoint saves: what holds training, what goes on beside it, and how many bytes this process wrote.

A save inside a save, such as DeepSpeed's ``torch.save`` of each file, is a part of it and counted once. A save in
another thread than the training's is asynchronous by itself: it holds nothing.
"""

from __future__ import annotations

import io
import os
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from perfscope.hooks.facts.secrets import redact_path
from perfscope.hooks.guard import hook_entry
from perfscope.wire import CheckpointRecord

if TYPE_CHECKING:
    from perfscope.hooks.recorder import Recorder
    from perfscope.wire import RankRecord


class Saving(Protocol):
    """What the timer needs of the capture that it belongs to."""

    dead: bool
    pid: int
    steps: int

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""

    def note(self, text: str) -> None:
        """Keep something that a reader of the report must know."""

    def claim_files(self) -> tuple[Recorder, RankRecord]:
        """The rank's files, claimed now where they were not."""

    def is_training_thread(self) -> bool:
        """Whether this is the thread that trains."""


@dataclass
class Save:
    """A save that is under way.

    Attributes:
        source, path, step: As in CheckpointRecord.
        start_ns: When it began.
        is_asynchronous: Whether writing goes on beside training.
        holds: Whether it holds training now.
        end_ns: When training could go on; None while it is held.
        size_bytes: What this process is known to have written; None where nothing was told.
        is_size_known: False once something was written whose size nobody told.
        in_writer: Inside a storage writer, which tells the bytes of all that is saved in it.
    """

    source: str
    path: str | None
    step: int
    start_ns: int
    is_asynchronous: bool
    holds: bool
    end_ns: int | None = None
    size_bytes: int | None = None
    is_size_known: bool = True
    in_writer: bool = False


@dataclass
class _InStep:
    """What saves did to the step that runs."""

    held_ns: int = 0
    was_draining: bool = False


@dataclass
class SaveTimer:
    """The saves of one process."""

    capture: Saving
    hook_ns: int = 0
    _open: Save | None = None
    _draining: list[Save] = field(default_factory=list)
    _in_step: _InStep = field(default_factory=_InStep)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def dead(self) -> bool:
        """Whether the capture has ended."""
        return self.capture.dead

    @property
    def pid(self) -> int:
        """The process of the capture."""
        return self.capture.pid

    def abandon(self, reason: str) -> None:
        """End the capture after a failure."""
        self.capture.abandon(reason)

    @hook_entry
    def begins(self, source: str, path: object, *, is_asynchronous: bool = False) -> Save | None:
        """A save is about to start; None where it is a part of another one."""
        holds = self.capture.is_training_thread()
        with self._lock:
            if self._open is not None or (self._draining and not holds):
                return None
            save = Save(
                source=source,
                path=None if path is None else redact_path(str(path)),
                step=self.capture.steps,
                start_ns=time.monotonic_ns(),
                is_asynchronous=is_asynchronous or not holds,
                holds=holds,
            )
            if holds:
                self._open = save
            else:
                save.end_ns = save.start_ns
            if save.is_asynchronous:
                self._draining.append(save)
        self.capture.claim_files()
        return save

    @hook_entry
    def ends(self, save: Save | None, *, failed: bool = False) -> None:
        """The call returned; an asynchronous save may still be writing."""
        if save is None:
            return
        now_ns = time.monotonic_ns()
        with self._lock:
            if save.holds:
                self._open = None
                save.end_ns = now_ns
                self._in_step.held_ns += now_ns - save.start_ns
        if failed:
            self._forget(save)
            self.capture.note(f"a checkpoint save by {save.source} failed after step {save.step}")
        elif not save.is_asynchronous:
            self._write(save, None)
        elif not save.holds:
            self.drained(save)

    @hook_entry
    def drained(self, save: Save | None, *, failed: bool = False) -> None:
        """An asynchronous save lies on disk; called in any thread."""
        now_ns = time.monotonic_ns()
        if save is None or not self._forget(save):
            return
        self._in_step.was_draining = True
        if failed:
            self.capture.note(f"an asynchronous checkpoint save by {save.source} failed after step {save.step}")
        self._write(save, None if failed else now_ns)

    def is_draining(self, source: str) -> bool:
        """Whether an asynchronous save of a source is not known to lie on disk."""
        return any(save.source == source for save in self._draining)

    @hook_entry
    def drained_by(self, source: str) -> None:
        """Every asynchronous save of a source lies on disk."""
        for save in list(self._draining):
            if save.source == source and save.end_ns is not None:
                self.drained(save)

    @hook_entry
    def held(self, began_ns: int) -> None:
        """Training waited since then for a save that went on beside it."""
        if self._open is None:
            self._in_step.held_ns += time.monotonic_ns() - began_ns

    @hook_entry
    def writer_begins(self) -> Save | None:
        """A storage writer starts; what is saved inside it is told at its end."""
        save = self._current()
        if save is None or save.in_writer:
            return None
        save.in_writer = True
        return save

    @hook_entry
    def writer_ends(self, save: Save | None, size_bytes: int | None) -> None:
        """A storage writer told what it wrote; None where it did not."""
        if save is not None:
            save.in_writer = False
            _add(save, size_bytes)

    @hook_entry
    def wrote(self, size_bytes: int | None) -> None:
        """A part of a save was written; None where its size is not known."""
        save = self._current()
        if save is not None and not save.in_writer:
            _add(save, size_bytes)

    def end_of_step(self) -> tuple[int | None, bool | None]:
        """How long saves held the step that ended, and whether one was writing beside it; None for neither."""
        ended, self._in_step = self._in_step, _InStep()
        return ended.held_ns or None, (ended.was_draining or bool(self._draining)) or None

    def finish(self) -> None:
        """Write what holds of saves that nobody saw reach the disk."""
        for save in list(self._draining):
            if self._forget(save) and save.end_ns is not None:
                self._write(save, None)

    def _current(self) -> Save | None:
        """The save that a part belongs to."""
        if self._open is not None and (self.capture.is_training_thread() or not self._draining):
            return self._open
        return self._draining[0] if self._draining else None

    def _forget(self, save: Save) -> bool:
        with self._lock:
            if save not in self._draining:
                return False
            self._draining.remove(save)
            return True

    def _write(self, save: Save, drained_ns: int | None) -> None:
        assert save.end_ns is not None
        record = CheckpointRecord(
            start_ns=save.start_ns,
            end_ns=save.end_ns,
            source=save.source,
            step=save.step,
            path=save.path,
            size_bytes=save.size_bytes if save.is_size_known else None,
            asynchronous=save.is_asynchronous,
            drained_ns=drained_ns,
        )
        with self._lock:
            self.capture.claim_files()[0].write_checkpoint(record)


def _add(save: Save, size_bytes: int | None) -> None:
    if size_bytes is None:
        save.is_size_known = False
    else:
        save.size_bytes = (save.size_bytes or 0) + size_bytes


def is_file(target: Any) -> bool:
    """Whether what ``torch.save`` writes to is a file, and not memory."""
    return not isinstance(target, (io.BytesIO, io.StringIO))


def path_of(target: Any) -> str | None:
    """The path of what ``torch.save`` writes to; None where it has none."""
    if isinstance(target, (str, os.PathLike)):
        return os.fspath(target)
    name = getattr(target, "name", None) or getattr(target, "path", None)
    return name if isinstance(name, str) else None


def position_in(target: Any) -> int | None:
    """Where in a file object the next byte goes; 0 for a path; None where it does not tell."""
    if isinstance(target, (str, os.PathLike)):
        return 0
    position = target.tell()
    return position if isinstance(position, int) else None


def written_to(target: Any, began_at: int | None) -> int | None:
    """How many bytes were written since; None where that cannot be told."""
    if isinstance(target, (str, os.PathLike)):
        return os.path.getsize(target) if os.path.isfile(target) else None
    ended_at = position_in(target)
    return None if began_at is None or ended_at is None or ended_at < began_at else ended_at - began_at
