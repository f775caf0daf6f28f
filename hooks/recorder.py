"""Writes a rank's records: whole lines, each by one write, so that a killed process leaves whole lines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from perfscope import wire
from perfscope.hooks.late_writer import LateWriter
from perfscope.hooks.record_files import RecordFile
from perfscope.wire.records import to_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Recorder:
    """The files of one rank's process; one that few processes need is created by its first record.

    ``append`` raises OSError where the disk is full or gone; ``append_late`` raises any earlier error.

    Attributes:
        late: Writes the records of steps.
        steps_file: Where it writes them.
        folder: The folder of the files.
    """

    def __init__(
        self,
        run_dir: str,
        rank: int,
        read_beside: Callable[[], Mapping[str, object]] | None = None,
        look_beside: Callable[[], None] | None = None,
    ) -> None:
        self.folder = _claim_folder(os.path.join(run_dir, wire.RANKS_FOLDER), rank)
        self._files: dict[str, RecordFile] = {}
        self.steps_file = self._file(wire.STEPS_FILE)
        self._file(wire.EVENTS_FILE)
        self.late = LateWriter(read_beside, look_beside)

    def append(self, name: str, record: Any) -> None:
        """Write a record, after the steps that came before it."""
        self.late.flush()
        self._file(name).append(to_line(record))

    def append_late(self, name: str, record: Any) -> None:
        """Write a record as late as a step."""
        self.late.add(self._file(name), to_line, record)

    def replace(self, name: str, content: bytes) -> None:
        """Write a file in place of what was written before."""
        replace_file(os.path.join(self.folder, name), content)

    def _file(self, name: str) -> RecordFile:
        if name not in self._files:
            is_limited = name in (wire.STEPS_FILE, wire.MICRO_BATCHES_FILE)
            self._files[name] = RecordFile(os.path.join(self.folder, name), is_limited=is_limited)
        return self._files[name]


def replace_file(path: str, content: bytes) -> None:
    """Replace a file in one step: a reader sees the old content or the new one, never a part.

    Raises OSError: it cannot be written; an existing file is unchanged.
    """
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise


def _claim_folder(ranks: str, rank: int) -> str:
    os.makedirs(ranks, exist_ok=True)
    attempt = 0
    while True:
        folder = os.path.join(ranks, wire.rank_folder(rank, attempt))
        try:
            os.mkdir(folder)
        except FileExistsError:
            attempt += 1
        else:
            return folder
