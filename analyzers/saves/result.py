"""The checkpoints of a run and what saving them cost, as data and as a table."""

from __future__ import annotations

from typing import Annotated

from perfscope.constants import GB, KB, MB
from perfscope.report import Section, in_unit
from perfscope.result import PERCENT, Column, Doc, Figures, Result, Table, figure

_MODES = {True: "asynchronous", False: "blocking"}
#: The smallest size that is shown in a unit.
_UNITS = ((GB // 10, "GB", GB), (MB // 10, "MB", MB), (0, "kB", KB))
#: Columns that are left out where no row has a value: a log or a typed time states few of them.
_OPTIONAL = ("Checkpoint", "Ranks", "Files", "Share of the run (%)", "Slowest rank", "In the background (s)")


class Save(Figures, frozen=True):
    """One checkpoint over all ranks, with all of its files."""

    step: Annotated[int | None, Doc("The training step after which it was saved.")]
    ranks: Annotated[int, Doc("How many ranks timed it; 0 for a log.")]
    blocked_s: Annotated[float | None, Doc("How long it stalled the slowest rank.")]
    blocked_share: Annotated[
        float | None,
        Doc("Share of the run in which it stalled any rank and no save before it did."),
    ]
    slowest_rank: Annotated[int | None, Doc("The rank that it stalled longest.")]
    background_s: Annotated[float | None, Doc("From when training could go on until all was on disk.")]
    staged_s: Annotated[float | None, Doc("Time until the state was copied beside training.")]
    drained_s: Annotated[float | None, Doc("Time until all was on disk.")]
    files: Annotated[int | None, Doc("Number of files.")]
    bytes: Annotated[int | None, Doc("Size of all files.")]
    asynchronous: Annotated[bool | None, Doc("Whether training continued while files were written.")]
    source: Annotated[str, Doc("What measured the time.")]
    path: Annotated[str | None, Doc("The destination, as the first rank states it.")]
    writing_ranks: Annotated[tuple[int, ...], Doc("The ranks that are known to have written files.")]
    waiting_ranks: Annotated[tuple[int, ...], Doc("The ranks that took part and wrote nothing.")]
    absent_ranks: Annotated[tuple[int, ...], Doc("The ranks of the run that took no part.")]

    @property
    def bytes_per_s(self) -> float | None:
        """Speed over all files."""
        seconds = self.drained_s or self.blocked_s
        return self.bytes / seconds if self.bytes and seconds else None

    @figure
    def gb_per_s(self) -> float | None:
        """Speed over all files, in 10**9 bytes a second."""
        return in_unit(self.bytes_per_s, GB)


class SaveTimes(Result, frozen=True):
    """``results.saves``: the checkpoints of a run, and what saving them cost."""

    saves: Annotated[tuple[Save, ...], Doc("Each save, in order.")]
    blocked_s: Annotated[float | None, Doc("How long saves stalled training, moments of several ranks counted once.")]
    run_s: Annotated[float | None, Doc("From the beginning of the first step to the end of the last step or save.")]
    blocked_share: Annotated[float | None, Doc("``blocked_s / run_s``.")]
    notes: tuple[str, ...]

    def sections(self) -> tuple[Section, ...]:
        """One row a checkpoint; columns that are empty of all are left out."""
        largest = max((save.bytes or 0 for save in self.saves), default=0)
        unit, unit_bytes = next((name, size) for least, name, size in _UNITS if largest >= least)
        columns = (
            Column("After step", "step"),
            Column("Checkpoint", "path", lambda path: path.rstrip("/").rpartition("/")[2]),
            Column("Ranks", lambda save: save.ranks or None),
            Column("Files", "files"),
            Column(unit, "bytes", lambda size: in_unit(size, unit_bytes), 3),
            Column("Training stalled (s)", "blocked_s", None, 3),
            Column("Share of the run (%)", "blocked_share", PERCENT),
            Column("Slowest rank", "slowest_rank", str),
            Column("In the background (s)", "background_s", None, 3),
            Column(f"{unit}/s", "bytes_per_s", lambda speed: in_unit(speed, unit_bytes), 2),
            Column("Mode", "asynchronous", _MODES.get),
        )
        shown = [
            column
            for column in columns
            if column.heading not in _OPTIONAL or any(column.cell(save) is not None for save in self.saves)
        ]
        return (Table("Saves", "saves", tuple(shown)).section(self.saves, self.notes),)
