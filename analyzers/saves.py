"""How long checkpoint saves held training, and how fast they wrote.

A save holds training for as long as its slowest rank; its speed is the bytes of all files over that time, or, where
writing goes on beside training, over the time until they lay on disk. Page caches are not told from disks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfscope.constants import NS_PER_S
from perfscope.errors import MissingInput
from perfscope.report import Column, Json, Section
from perfscope.tables.saves import Saves, SaveTiming


@dataclass(frozen=True, slots=True)
class Save:
    """One save over all ranks.

    Attributes:
        step: The training step after which it was saved; absent where unknown.
        ranks: How many ranks timed it; 0 for a log.
        blocked_s: How long the slowest rank stood still; absent where nobody timed it.
        slowest_rank: Which one; absent for a log.
        drained_s: Until it lay on disk; absent where unknown or where it did so before training went on.
        size_bytes: Of all files; absent where unknown.
        asynchronous: Whether writing went on beside training; absent where unknown.
        source: What told the time.
        path: Where to, as the first rank told it; absent where nobody did.
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
        return self.size_bytes / seconds / 1e9 if self.size_bytes and seconds else None


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """Every save of a run.

    Attributes:
        saves: In order.
        blocked_share: Share of the run that saves held; absent where the run's time is unknown.
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
            Column("Training held (s)", 3),
            Column("Slowest rank"),
            Column("On disk after (s)", 3),
            Column("GB", 3),
            Column("GB/s", 2),
            Column("Writing"),
        )
        rows = tuple(
            (
                save.step,
                save.ranks or None,
                save.blocked_s,
                None if save.slowest_rank is None else str(save.slowest_rank),
                save.drained_s,
                save.size_bytes / 1e9 if save.size_bytes else None,
                save.gb_per_s,
                _WRITING[save.asynchronous],
            )
            for save in self.saves
        )
        notes = [f"Timed by {', '.join(dict.fromkeys(save.source for save in self.saves))}; page caches count as disk."]
        if self.blocked_share is not None:
            notes.append(f"Saves held training for {self.blocked_share:.1%} of the run.")
        return (Section("Saves", columns, rows, tuple(notes)),)


_WRITING = {True: "asynchronous", False: "blocking", None: None}


def analyze(saves: Saves, checkpoint_bytes: int | None = None) -> SaveTimes:
    """Bring the ranks' timings of each save together.

    Args:
        saves: What was timed.
        checkpoint_bytes: Size of a checkpoint, for saves whose own size is not known.

    Raises:
        MissingInput: Nothing was timed.
    """
    groups = _groups(saves.timings)
    if not groups:
        raise MissingInput("no checkpoint save was timed")
    found = tuple(_save(timings, checkpoint_bytes) for timings in groups)
    held = sum(save.blocked_s for save in found if save.blocked_s is not None)
    known = saves.training_ns is not None and all(save.blocked_s is not None for save in found)
    share = held / (saves.training_ns / NS_PER_S) if known and saves.training_ns else None
    return SaveTimes(found, share)


def _groups(timings: Sequence[SaveTiming]) -> list[list[SaveTiming]]:
    """The timings of each save, in order: ranks save the same where they do it the same way after the same step."""
    groups: dict[tuple[str, int | None, int], list[SaveTiming]] = {}
    seen: Counter[tuple[int | None, str, int | None]] = Counter()
    for timing in timings:
        same = (timing.rank, timing.source, timing.step)
        groups.setdefault((timing.source, timing.step, seen[same]), []).append(timing)
        seen[same] += 1
    return sorted(groups.values(), key=lambda group: min(timing.number for timing in group))


def _save(timings: Sequence[SaveTiming], checkpoint_bytes: int | None) -> Save:
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
