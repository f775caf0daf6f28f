"""The checkpoint saves that are under way in a process, and the save that a written file belongs to."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from perfscope.hooks.timers.written_files import WrittenFiles
from perfscope.wire.records import CheckpointRecord


@dataclass(eq=False)
class Save:
    """A save that is under way.

    Attributes:
        source, path, step: As in CheckpointRecord.
        start_ns: When it began.
        is_asynchronous: Whether writing goes on beside training.
        is_stalling: Whether it began in the thread that trains, which waits until the call returns.
        end_ns: When training could go on; None while it is stalled.
        staged_ns: When the state was copied beside training; None where it was not.
        is_drained: Whether an asynchronous save was seen to end.
        drained_ns: When it was complete on disk; None where it was not seen, or failed.
        waits: When training waited for its end, later.
        waiting_since_ns: Since when training waits for it now; None while it does not.
        files: What this process is known to have written.
        is_in_writer: Inside a storage writer, which reports all that is saved in it.
    """

    source: str
    path: str | None
    step: int
    start_ns: int
    is_asynchronous: bool
    is_stalling: bool
    end_ns: int | None = None
    staged_ns: int | None = None
    is_drained: bool = False
    drained_ns: int | None = None
    waits: list[tuple[int, int]] = field(default_factory=list)
    waiting_since_ns: int | None = None
    files: WrittenFiles = field(default_factory=WrittenFiles)
    is_in_writer: bool = False

    def record(self, end_ns: int) -> CheckpointRecord:
        """Describe the save, which stalled training until ``end_ns``."""
        return CheckpointRecord(
            start_ns=self.start_ns,
            end_ns=end_ns,
            source=self.source,
            step=self.step,
            path=self.path,
            size_bytes=self.files.size_bytes,
            asynchronous=self.is_asynchronous,
            drained_ns=self.drained_ns,
            files=self.files.named(),
            file_count=self.files.count,
            staged_ns=self.staged_ns,
            waits=tuple(self.waits) or None,
        )


class OpenSaves:
    """The save that stalls training, where there is one, and the asynchronous ones that do not lie on disk yet."""

    def __init__(self) -> None:
        self._stalling: Save | None = None
        self._draining: list[Save] = []
        self._lock = threading.Lock()

    @property
    def is_stalling(self) -> bool:
        """Whether a save stalls training."""
        return self._stalling is not None

    @property
    def is_draining(self) -> bool:
        """Whether an asynchronous save does not lie on disk yet."""
        return bool(self._draining)

    def add(self, save: Save) -> bool:
        """Begin a save; False where it is a part of another save that is under way."""
        with self._lock:
            if self._stalling is not None or (self._draining and not save.is_stalling):
                return False
            if save.is_stalling:
                self._stalling = save
            if save.is_asynchronous:
                self._draining.append(save)
            return True

    def end_stall(self) -> None:
        """Training goes on."""
        with self._lock:
            self._stalling = None

    def remove_draining(self, save: Save) -> bool:
        """Take an asynchronous save out; False where it is out already."""
        with self._lock:
            if save not in self._draining:
                return False
            self._draining.remove(save)
            return True

    def find_draining(self, source: str) -> list[Save]:
        """The asynchronous saves of a source that no longer stall training and do not lie on disk yet."""
        return [save for save in self._draining if save.source == source and save.end_ns is not None]

    def all_draining(self) -> list[Save]:
        """All asynchronous saves that do not lie on disk yet."""
        return list(self._draining)

    def find_current(self, *, in_training_thread: bool) -> Save | None:
        """The save to which a file belongs that is written now, in the training thread or in another one."""
        if self._stalling is not None and (in_training_thread or not self._draining):
            return self._stalling
        return self._draining[0] if self._draining else None
