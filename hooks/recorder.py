"""Writes a rank's records: whole lines, each by one write, so that a killed process leaves whole lines."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from perfscope import wire
from perfscope.hooks.late_writer import LateWriter
from perfscope.hooks.record_files import RecordFile
from perfscope.wire.records import to_file, to_line
from perfscope.wire.requests import ANSWERS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfscope.wire.model import ModelRecord
    from perfscope.wire.passes import MicroBatchRecord
    from perfscope.wire.records import CheckpointRecord, EndRecord, NoteRecord, RankRecord, WindowRecord
    from perfscope.wire.requests import Answer
    from perfscope.wire.setup import SetupRecord


class Recorder:
    """The files of one rank's process; one that few processes need is created by its first record.

    A method that appends raises OSError where the disk is full or gone; one that writes late raises any earlier error.

    Attributes:
        attempt: How many processes had this rank earlier in this run.
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
        self.attempt, self.folder = _claim_folder(os.path.join(run_dir, wire.RANKS_FOLDER), rank)
        self._files: dict[str, RecordFile] = {}
        self.steps_file = self._file(wire.STEPS_FILE)
        self._file(wire.EVENTS_FILE)
        self.late = LateWriter(read_beside, look_beside)

    def _file(self, name: str) -> RecordFile:
        if name not in self._files:
            is_limited = name in (wire.STEPS_FILE, wire.MICRO_BATCHES_FILE)
            self._files[name] = RecordFile(os.path.join(self.folder, name), is_limited=is_limited)
        return self._files[name]

    def close(self) -> None:
        """Write the records that wait."""
        self.late.close()

    def write_answer(self, answer: Answer) -> None:
        """Write what the rank does about a request, as late as a step."""
        self.late.add(self._file(ANSWERS_FILE), answer.to_line)

    def write_micro_batches(self, record: MicroBatchRecord) -> None:
        """Write the passes of one training step, as late as the step."""
        self.late.add(self._file(wire.MICRO_BATCHES_FILE), to_line, record)

    def write_checkpoint(self, record: CheckpointRecord) -> None:
        """Write a checkpoint save."""
        self._file(wire.CHECKPOINTS_FILE).append(to_line(record))

    def write_event(self, record: WindowRecord | NoteRecord | EndRecord) -> None:
        """Write a finished window, a note or the end of the process, after the steps that came before it."""
        self.late.flush()
        self._file(wire.EVENTS_FILE).append(to_line(record))

    def write_rank(self, record: RankRecord) -> None:
        """Write who the rank is, in place of what was written before."""
        self._replace(wire.RANK_FILE, to_line(record))

    def write_model(self, record: ModelRecord) -> None:
        """Write what the rank trains."""
        self._replace(wire.MODEL_FILE, to_line(record))

    def write_setup(self, record: SetupRecord) -> None:
        """Write how the rank trains, in place of what was written before."""
        self._replace(wire.SETUP_FILE, to_line(record))

    def write_layout(self, layout: Mapping[str, object]) -> None:
        """Write the rank's coordinates in the process groups."""
        self._replace(wire.PARALLEL_FILE, to_file(layout))

    def _replace(self, name: str, content: bytes) -> None:
        replace_file(os.path.join(self.folder, name), content)


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


def _claim_folder(ranks: str, rank: int) -> tuple[int, str]:
    os.makedirs(ranks, exist_ok=True)
    attempt = 0
    while True:
        folder = os.path.join(ranks, wire.rank_folder(rank, attempt))
        try:
            os.mkdir(folder)
        except FileExistsError:
            attempt += 1
        else:
            return attempt, folder
