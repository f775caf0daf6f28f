"""How long checkpoint saves stalled training, and how fast they wrote.

A save stalls training for as long as its slowest rank. Its speed is the bytes of all files over that time, or, where
training continues while files are written, over the time until all are on disk. Bytes in the page cache count as bytes
on disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.constants import GB, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section, in_unit
from perfscope.tables.run import Run
from perfscope.tables.saves import Saves, SaveTiming

_NO_SAVE = "no checkpoint save was timed"
_MODES = {True: "asynchronous", False: "blocking", None: None}


@dataclass(frozen=True, slots=True)
class Save:
    """One save over all ranks.

    Attributes:
        step: The training step after which it was saved; absent where unknown.
        ranks: How many ranks timed it; 0 for a log.
        blocked_s: How long it stalled the slowest rank; absent where it was not timed.
        slowest_rank: That rank; absent for a log.
        drained_s: Time until all was on disk; absent where unknown, or where training waited for it.
        size_bytes: Size of all files; absent where unknown.
        asynchronous: Whether training continued while files were written; absent where unknown.
        source: What measured the time.
        path: The destination, as the first rank states it; absent where unknown.
    """

    step: int | None
    ranks: int
    blocked_s: float | None
    slowest_rank: int | None
    drained_s: float | None
    size_bytes: int | None
    asynchronous: bool | None
    source: str
    path: str | None

    @property
    def gb_per_s(self) -> float | None:
        """GB/s over all files."""
        seconds = self.drained_s or self.blocked_s
        return self.size_bytes / seconds / GB if self.size_bytes and seconds else None


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """Every save of a run.

    Attributes:
        saves: In order.
        blocked_share: Share of the run that training was stalled by saves; absent where the run's time is unknown.
    """

    saves: tuple[Save, ...]
    blocked_share: float | None

    def data(self) -> Json:
        """The value of ``results.saves``."""
        return {
            "saves": [
                {
                    "step": save.step,
                    "ranks": save.ranks,
                    "blocked_s": save.blocked_s,
                    "slowest_rank": save.slowest_rank,
                    "drained_s": save.drained_s,
                    "bytes": save.size_bytes,
                    "gb_per_s": save.gb_per_s,
                    "asynchronous": save.asynchronous,
                    "source": save.source,
                    "path": save.path,
                }
                for save in self.saves
            ],
            "blocked_share": self.blocked_share,
        }

    def sections(self) -> tuple[Section, ...]:
        """One row a save."""
        columns = (
            Column("After step"),
            Column("Ranks"),
            Column("Training stalled (s)", 3),
            Column("Slowest rank"),
            Column("On disk after (s)", 3),
            Column("GB", 3),
            Column("GB/s", 2),
            Column("Mode"),
        )
        rows = tuple(
            (
                save.step,
                save.ranks or None,
                save.blocked_s,
                None if save.slowest_rank is None else str(save.slowest_rank),
                save.drained_s,
                in_unit(save.size_bytes, GB),
                save.gb_per_s,
                _MODES[save.asynchronous],
            )
            for save in self.saves
        )
        notes = [f"Timed by {', '.join(dict.fromkeys(save.source for save in self.saves))}; page caches count as disk."]
        if self.blocked_share is not None:
            notes.append(f"Saves stalled training for {self.blocked_share:.1%} of the run.")
        return (Section("Saves", columns, rows, tuple(notes)),)


def analyze(run: Run) -> SaveTimes:
    """Summarize the checkpoint saves that the hooks timed in a run.

    Raises:
        MissingInput: The run saved no checkpoint that a hook timed.
    """
    if run.saves is None:
        raise MissingInput(_NO_SAVE)
    return summarize_saves(run.saves)


def summarize_saves(saves: Saves, checkpoint_bytes: int | None = None) -> SaveTimes:
    """Combine the ranks' timings of each save.

    Args:
        saves: The timings.
        checkpoint_bytes: Size of a checkpoint, for saves whose own size is not known.

    Raises:
        MissingInput: Nothing was timed.
    """
    summaries = tuple(_summarize(timings, checkpoint_bytes) for timings in _group_by_save(saves.timings))
    if not summaries:
        raise MissingInput(_NO_SAVE)
    stalls_s = [save.blocked_s for save in summaries if save.blocked_s is not None]
    share = None
    if saves.training_ns and len(stalls_s) == len(summaries):
        share = sum(stalls_s) / (saves.training_ns / NS_PER_S)
    return SaveTimes(summaries, share)


def _group_by_save(timings: Sequence[SaveTiming]) -> list[list[SaveTiming]]:
    """The timings of each save, in order: timings belong together if source, step and repetition are the same."""
    groups: dict[tuple[str, int | None, int], list[SaveTiming]] = {}
    repetitions: Counter[tuple[int | None, str, int | None]] = Counter()
    for timing in timings:
        key = (timing.rank, timing.source, timing.step)
        groups.setdefault((timing.source, timing.step, repetitions[key]), []).append(timing)
        repetitions[key] += 1
    return sorted(groups.values(), key=lambda group: min(timing.number for timing in group))


def _summarize(timings: Sequence[SaveTiming], checkpoint_bytes: int | None) -> Save:
    timed = [timing for timing in timings if timing.blocked_ns is not None]
    slowest = max(timed, key=lambda timing: timing.blocked_ns or 0, default=None)
    drained = max((timing.drained_ns for timing in timings if timing.drained_ns is not None), default=None)
    sizes = [timing.size_bytes for timing in timings if timing.size_bytes is not None]
    modes = {timing.asynchronous for timing in timings if timing.asynchronous is not None}
    return Save(
        step=next((timing.step for timing in timings if timing.step is not None), None),
        ranks=len({timing.rank for timing in timings if timing.rank is not None}),
        blocked_s=None if slowest is None or slowest.blocked_ns is None else slowest.blocked_ns / NS_PER_S,
        slowest_rank=None if slowest is None else slowest.rank,
        drained_s=None if drained is None else drained / NS_PER_S,
        size_bytes=sum(sizes) if sizes and len(sizes) == len(timings) else checkpoint_bytes,
        asynchronous=any(modes) if modes else None,
        source=timings[0].source,
        path=next((timing.path for timing in timings if timing.path is not None), None),
    )
