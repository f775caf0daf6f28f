"""The checkpoints of a run and what saving them cost, as data and as a table."""

from __future__ import annotations

from dataclasses import dataclass

from perfscope.constants import GB, KB, MB
from perfscope.report import Column, Json, Row, Section, in_unit, percent

_MODES = {True: "asynchronous", False: "blocking", None: None}
#: The smallest size that is shown in a unit.
_UNITS = ((GB // 10, "GB", GB), (MB // 10, "MB", MB), (0, "kB", KB))
#: Columns that are left out where no row has a value: a log or a typed time states few of them.
_OPTIONAL = ("Checkpoint", "Ranks", "Files", "Share of the run (%)", "Slowest rank", "In the background (s)")


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint over all ranks, with all of its files.

    Attributes:
        step: The training step after which it was saved; absent where unknown.
        ranks: How many ranks timed it; 0 for a log.
        blocked_s: How long it stalled the slowest rank; absent where it was not timed.
        blocked_share: Share of the run in which it stalled any rank and no save before it did; absent where unknown.
        slowest_rank: The rank that it stalled longest; absent for a log.
        background_s: From when training could go on until all was on disk; absent where unknown, or not asynchronous.
        staged_s: Time until the state was copied beside training; absent where it was not.
        drained_s: Time until all was on disk; absent where unknown, or where training waited for it.
        files: Number of files; absent where unknown.
        size_bytes: Size of all files; absent where unknown.
        asynchronous: Whether training continued while files were written; absent where unknown.
        source: What measured the time.
        path: The destination, a file or a folder, as the first rank states it; absent where unknown.
        writing_ranks: The ranks that are known to have written files.
        waiting_ranks: The ranks that took part and wrote nothing.
        absent_ranks: The ranks of the run that took no part.
    """

    step: int | None
    ranks: int
    blocked_s: float | None
    blocked_share: float | None
    slowest_rank: int | None
    background_s: float | None
    staged_s: float | None
    drained_s: float | None
    files: int | None
    size_bytes: int | None
    asynchronous: bool | None
    source: str
    path: str | None
    writing_ranks: tuple[int, ...]
    waiting_ranks: tuple[int, ...]
    absent_ranks: tuple[int, ...]

    @property
    def bytes_per_s(self) -> float | None:
        """Speed over all files."""
        seconds = self.drained_s or self.blocked_s
        return self.size_bytes / seconds if self.size_bytes and seconds else None

    def data(self) -> Json:
        """One entry of ``results.saves.saves``."""
        return {
            "step": self.step,
            "ranks": self.ranks,
            "blocked_s": self.blocked_s,
            "blocked_share": self.blocked_share,
            "slowest_rank": self.slowest_rank,
            "background_s": self.background_s,
            "staged_s": self.staged_s,
            "drained_s": self.drained_s,
            "files": self.files,
            "bytes": self.size_bytes,
            "gb_per_s": in_unit(self.bytes_per_s, GB),
            "asynchronous": self.asynchronous,
            "source": self.source,
            "path": self.path,
            "writing_ranks": self.writing_ranks,
            "waiting_ranks": self.waiting_ranks,
            "absent_ranks": self.absent_ranks,
        }


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """Every checkpoint of a run.

    Attributes:
        saves: In order.
        blocked_s: How long saves stalled training, moments of several ranks counted once; absent where not timed.
        run_s: From the beginning of the first step to the end of the last step or save; absent where unknown.
        blocked_share: Share of that time that training was stalled by saves; absent where the run's time is unknown.
        notes: What a reader must know.
    """

    saves: tuple[Save, ...]
    blocked_s: float | None
    run_s: float | None
    blocked_share: float | None
    notes: tuple[str, ...]

    def data(self) -> Json:
        """The value of ``results.saves``."""
        return {
            "saves": [save.data() for save in self.saves],
            "blocked_s": self.blocked_s,
            "run_s": self.run_s,
            "blocked_share": self.blocked_share,
        }

    def sections(self) -> tuple[Section, ...]:
        """One row a checkpoint."""
        largest = max((save.size_bytes or 0 for save in self.saves), default=0)
        unit, unit_bytes = next((name, size) for least, name, size in _UNITS if largest >= least)
        columns: tuple[Column, ...] = (
            Column("After step"),
            Column("Checkpoint"),
            Column("Ranks"),
            Column("Files"),
            Column(unit, 3),
            Column("Training stalled (s)", 3),
            Column("Share of the run (%)"),
            Column("Slowest rank"),
            Column("In the background (s)", 3),
            Column(f"{unit}/s", 2),
            Column("Mode"),
        )
        rows: tuple[Row, ...] = tuple(
            (
                save.step,
                None if save.path is None else save.path.rstrip("/").rpartition("/")[2],
                save.ranks or None,
                save.files,
                in_unit(save.size_bytes, unit_bytes),
                save.blocked_s,
                percent(save.blocked_share),
                None if save.slowest_rank is None else str(save.slowest_rank),
                save.background_s,
                in_unit(save.bytes_per_s, unit_bytes),
                _MODES[save.asynchronous],
            )
            for save in self.saves
        )
        shown = [
            index
            for index, column in enumerate(columns)
            if column.heading not in _OPTIONAL or any(row[index] is not None for row in rows)
        ]
        columns = tuple(columns[index] for index in shown)
        return (Section("Saves", columns, tuple(tuple(row[index] for index in shown) for row in rows), self.notes),)
