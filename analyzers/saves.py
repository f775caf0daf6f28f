"""What each checkpoint of a run cost: files, bytes, how long it stalled training, and how fast it was written.

A checkpoint stalls training for as long as its slowest rank. Its speed is the bytes of all files over that time, or,
where training continues while files are written, over the time until all are on disk. Bytes in the page cache count as
bytes on disk. The share of the run unites the stalls of all ranks and checkpoints, so it is never above 1.

Frameworks save a checkpoint in one call, in which everything is nested. Scripts save its files one after the other. The
files of one folder that are saved after the same step belong together. So do the folders of its parts and ranks.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import Annotated

import numpy as np

from perfscope.constants import GB, KB, MB, NS_PER_S
from perfscope.errors import MissingInput
from perfscope.report import Section, in_unit
from perfscope.result import PERCENT, Column, Doc, Figures, Result, Table, figure
from perfscope.tables.intervals import Intervals, union
from perfscope.tables.run import Run
from perfscope.tables.saves import Saves, SaveTiming
from perfscope.units import format_count

#: Folders inside a checkpoint, one for each part or rank.
_PART_FOLDER = re.compile(
    r"(?:model|optim|optimizer|lr_scheduler|scheduler|states?|weights|ema|tokenizer|dataloader|trainer|rng"
    r"|pytorch_model_fsdp|(?:mp_|tp_|pp_|dp_|ep_)?rank|worker|shard)(?:[-_]?\d+)*",
    re.IGNORECASE,
)
_FILE_ENDINGS = (".pt", ".pth", ".bin", ".ckpt", ".safetensors", ".tar", ".pkl")
_TEXT_ENDINGS = (".json", ".jsonl", ".txt", ".model", ".jinja", ".md", ".yaml", ".yml")
_FILE_SOURCES = ("torch.save", "safetensors")
_MODES = {True: "asynchronous", False: "blocking"}
#: The smallest size that is shown in a unit.
_UNITS = ((GB // 10, "GB", GB), (MB // 10, "MB", MB), (0, "kB", KB))
#: Columns that are left out where no row has a value: a log or a typed time states few of them.
_OPTIONAL = ("Checkpoint", "Ranks", "Files", "Share of the run (%)", "Slowest rank", "In the background (s)")


class CheckpointSave(Figures, frozen=True):
    """One checkpoint over all ranks, with all of its files."""

    step: Annotated[int | None, Doc("The training step after which it was saved.")]
    ranks: Annotated[int, Doc("How many ranks timed it; 0 for a log.")]
    blocked_s: Annotated[float | None, Doc("How long it stalled the slowest rank.")]
    blocked_share: Annotated[float | None, Doc("Share of the run in which it alone, or it first, stalled a rank.")]
    slowest_rank: Annotated[int | None, Doc("The rank that it stalled longest.")]
    background_s: Annotated[float | None, Doc("From when training could go on until all was on disk.")]
    drained_s: Annotated[float | None, Doc("Time until all was on disk.")]
    files: Annotated[int | None, Doc("Number of files.")]
    bytes: Annotated[int | None, Doc("Size of all files.")]
    asynchronous: Annotated[bool | None, Doc("Whether training continued while files were written.")]
    source: Annotated[str, Doc("What measured the time.")]
    path: Annotated[str | None, Doc("The destination, as the first rank states it.")]

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

    saves: Annotated[tuple[CheckpointSave, ...], Doc("Each save, in order.")]
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


def analyze(run: Run) -> SaveTimes:
    """Summarize the checkpoint saves of a run; MissingInput where the hooks timed none."""
    if run.saves is None:
        raise MissingInput("no checkpoint save was timed")
    return summarize_saves(run.saves)


def summarize_saves(saves: Saves, checkpoint_bytes: int | None = None) -> SaveTimes:
    """Combine the timings of each checkpoint; MissingInput where nothing was timed.

    ``checkpoint_bytes`` is for saves whose own size is not known.
    """
    groups = group_by_checkpoint(saves.timings)
    checkpoints = []
    for group in groups:  # configurations or a tokenizer alone are no state of training, so no checkpoint
        names = [name for timing in group for name, _ in timing.files or ()]
        if not names or not all(map(is_text, names)) or any(timing.files is None for timing in group):
            checkpoints.append(group)
    if not checkpoints:
        raise MissingInput("no checkpoint save was timed")
    stalls_ns = _added_stalls_ns(checkpoints)
    run_ns = saves.training_ns
    is_possible = run_ns is None or None in stalls_ns or sum(stall or 0 for stall in stalls_ns) <= run_ns
    blocked_ns = None if None in stalls_ns else sum(stall or 0 for stall in stalls_ns)
    shares = [None if stall is None or not run_ns or not is_possible else stall / run_ns for stall in stalls_ns]
    summaries = tuple(
        _summarize(group, share, checkpoint_bytes) for group, share in zip(checkpoints, shares, strict=True)
    )
    return SaveTimes(
        saves=summaries,
        blocked_s=in_unit(blocked_ns, NS_PER_S),
        run_s=in_unit(run_ns, NS_PER_S),
        blocked_share=blocked_ns / run_ns if blocked_ns is not None and run_ns and is_possible else None,
        notes=tuple(_notes(summaries, groups, blocked_ns, run_ns)),
    )


def _added_stalls_ns(checkpoints: Sequence[Sequence[SaveTiming]]) -> list[int | None]:
    """What each checkpoint adds to the time in which saves stalled any rank; None where that was not timed."""
    edges = [
        np.array([edge for timing in group for edge in timing.stalls_ns], np.int64).reshape(-1, 2)
        for group in checkpoints
    ]
    own = [union(of_group[:, 0], of_group[:, 1]) for of_group in edges]
    united = list(accumulate(own, lambda first, second: first | second, initial=Intervals()))
    added = [after.measure - before.measure for before, after in pairwise(united)]
    return [
        stall
        if any(timing.stalls_ns for timing in group)
        else max((timing.blocked_ns for timing in group if timing.blocked_ns is not None), default=None)
        for stall, group in zip(added, checkpoints, strict=True)
    ]


def _summarize(
    timings: Sequence[SaveTiming], blocked_share: float | None, checkpoint_bytes: int | None
) -> CheckpointSave:
    processes: dict[int | None, list[SaveTiming]] = {}
    for timing in timings:
        processes.setdefault(timing.rank, []).append(timing)
    blocked_ns = {rank: sum(timing.blocked_ns or 0 for timing in own) for rank, own in processes.items()}
    is_timed = any(timing.blocked_ns is not None for timing in timings)
    slowest = max(blocked_ns, key=lambda rank: blocked_ns[rank])
    modes = {timing.asynchronous for timing in timings if timing.asynchronous is not None}
    files, size_bytes = _count_files(timings)
    drained_ns = [timing.drained_ns for timing in timings if timing.drained_ns is not None]
    background_ns = (
        # The call itself stalls training, without later waits.
        max(0, timing.drained_ns - (timing.stalls_ns[0][1] - timing.stalls_ns[0][0] if timing.stalls_ns else blocked))
        for timing in timings
        for blocked in (timing.blocked_ns or 0,)
        if timing.drained_ns is not None
    )
    return CheckpointSave(
        step=next((timing.step for timing in timings if timing.step is not None), None),
        ranks=len(processes) - (None in processes),
        blocked_s=blocked_ns[slowest] / NS_PER_S if is_timed else None,
        blocked_share=blocked_share,
        slowest_rank=slowest if is_timed else None,
        background_s=in_unit(max(background_ns, default=None), NS_PER_S),
        drained_s=in_unit(max(drained_ns, default=None), NS_PER_S),
        files=files,
        bytes=checkpoint_bytes if size_bytes is None else size_bytes,
        asynchronous=any(modes) if modes else None,
        source=", ".join(dict.fromkeys(timing.source for timing in timings)),
        path=_find_path(timings),
    )


def _count_files(timings: Sequence[SaveTiming]) -> tuple[int | None, int | None]:
    """Number and bytes of all files, each of a host counted once; None where unknown."""
    named = {(timing.host, name): size for timing in timings if timing.files is not None for name, size in timing.files}
    unnamed = [timing for timing in timings if timing.files is None]
    counts = [timing.file_count for timing in unnamed]
    sizes = [*named.values(), *(timing.size_bytes for timing in unnamed)]
    count = None if None in counts else len(named) + sum(number or 0 for number in counts)
    return count, None if None in sizes else sum(size or 0 for size in sizes)


def _find_path(timings: Sequence[SaveTiming]) -> str | None:
    """The destination where there is only one, else the folder of all."""
    paths = {timing.path for timing in timings if timing.path is not None}
    if len(paths) == 1:
        return paths.pop()
    return next((find_folder(timing) for timing in timings if timing.path is not None), None)


def _notes(
    saves: Sequence[CheckpointSave], groups: Sequence[Sequence[SaveTiming]], blocked_ns: int | None, run_ns: int | None
) -> Iterable[str]:
    sources = dict.fromkeys(timing.source for group in groups for timing in group)
    yield f"Timed by {', '.join(sources)}; page caches count as disk."
    if blocked_ns is not None and run_ns:
        if blocked_ns <= run_ns:
            yield (
                f"Saves stalled training for {blocked_ns / run_ns:.1%} of the run without its start-up: "
                f"{blocked_ns / NS_PER_S:.3f} s of {run_ns / NS_PER_S:.3f} s."
            )
        else:
            yield (
                f"The share of the run is left out: saves took {blocked_ns / NS_PER_S:.3f} s, and the run only "
                f"{run_ns / NS_PER_S:.3f} s."
            )
    left_out = len(groups) - len(saves)
    if left_out:
        yield f"{format_count(left_out, 'save')} of configurations or tokenizers alone are not listed."


def is_text(name: str) -> bool:
    """Whether a file holds a configuration or a tokenizer, and no state of training."""
    return name.endswith(_TEXT_ENDINGS)


def is_file(timing: SaveTiming) -> bool:
    """Whether the destination of a save is a file, and not a folder."""
    path = timing.path or ""
    names = [name for name, _ in timing.files or ()]
    return path in names or timing.source in _FILE_SOURCES or path.endswith(_FILE_ENDINGS)


def find_folder(timing: SaveTiming) -> str | None:
    """The folder of the checkpoint that a save belongs to; None where the destination is unknown.

    >>> find_folder(SaveTiming(0, 0, 5, 1, None, None, False, "dcp", "runs/step-5/optimizer"))
    'runs/step-5'
    """
    if timing.path is None:
        return None
    folder = posixpath.dirname(timing.path) if is_file(timing) else timing.path.rstrip("/")
    while posixpath.dirname(folder) and _PART_FOLDER.fullmatch(posixpath.basename(folder)):
        folder = posixpath.dirname(folder)
    return folder


def group_by_checkpoint(timings: Iterable[SaveTiming]) -> list[list[SaveTiming]]:
    """The timings of each checkpoint, in order.

    A rank that saves to the same file or folder once more has begun another checkpoint.
    """
    groups: dict[tuple[object, ...], list[SaveTiming]] = {}
    repetitions: dict[tuple[object, ...], tuple[int, set[str]]] = {}
    for timing in timings:
        checkpoint = (timing.attempt, timing.step, find_folder(timing))
        targets = _find_targets(timing)
        number, before = repetitions.get((timing.rank, *checkpoint), (0, set()))
        if targets & before:
            number, before = number + 1, set()
        repetitions[timing.rank, *checkpoint] = number, before | targets
        groups.setdefault((*checkpoint, number), []).append(timing)
    return sorted(groups.values(), key=_begin)


def _find_targets(timing: SaveTiming) -> set[str]:
    """What a save writes to; where its files are not known, its destination."""
    states = {name for name, _ in timing.files or () if not is_text(name)}
    if states or (timing.files and timing.path is not None):
        return states
    return {f"{timing.source} {timing.path}"}


def _begin(timings: Sequence[SaveTiming]) -> tuple[int, int]:
    starts_ns = [start_ns for timing in timings for start_ns, _ in timing.stalls_ns]
    return min(starts_ns, default=0), min(timing.number for timing in timings)
