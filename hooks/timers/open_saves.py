"""The checkpoint saves that are under way in a process, and the save that a written file belongs to."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from perfscope.wire import CheckpointRecord


@dataclass(eq=False)
class Save:
    """A save that is under way.

    Attributes:
        source, path, step: As in CheckpointRecord.
        start_ns: When it began.
        is_asynchronous: Whether writing goes on beside training.
        is_stalling: Whether it began in the thread that trains, which waits until the call returns.
        end_ns: When training could go on; None while it is stalled.
        size_bytes: What this process is known to have written; None before anything was reported.
        is_size_known: False once something was written whose size is unknown.
        is_in_writer: Inside a storage writer, which reports the bytes of all that is saved in it.
    """

    source: str
    path: str | None
    step: int
    start_ns: int
    is_asynchronous: bool
    is_stalling: bool
    end_ns: int | None = None
    size_bytes: int | None = None
    is_size_known: bool = True
    is_in_writer: bool = False

    def add_bytes(self, size_bytes: int | None) -> None:
        """Count what was written; None where its size is unknown, and with it that of the save."""
        if size_bytes is None:
            self.is_size_known = False
        else:
            self.size_bytes = (self.size_bytes or 0) + size_bytes

    def record(self, end_ns: int, drained_ns: int | None) -> CheckpointRecord:
        """Describe the save once training could go on, and, where that was seen, once it lay on disk."""
        return CheckpointRecord(
            start_ns=self.start_ns,
            end_ns=end_ns,
            source=self.source,
            step=self.step,
            path=self.path,
            size_bytes=self.size_bytes if self.is_size_known else None,
            asynchronous=self.is_asynchronous,
            drained_ns=drained_ns,
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
