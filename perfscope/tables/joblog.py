"""Typed tables of a job's log: its iterations and when they ended, the facts that it states, its saves.

Absent is neither 0 nor NaN. Times are integer nanoseconds, sizes integer bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from perfscope.tables.columns import Int64, MaskedFloat64, MaskedInt64


class Disturbance(StrEnum):
    """What the time of a logged record contains besides training."""

    EVALUATION = "evaluation"
    SAVE = "save"


@dataclass(frozen=True, eq=False)  # without slots: it keeps what is derived
class Iterations:
    """The iteration records of one log, in their order. A record can be a mean over several iterations.

    Attributes:
        iteration: Number of the record's last iteration; masked where the log does not number them.
        span: How many iterations the record is the mean of; the last one is ``iteration``.
        attempt: 0 before the first restart, 1 after it and so on.
        wall_ns: Mean time of one iteration; masked where the log does not state it.
        wall_resolution_ns: What the last digit of the time stands for; masked where the framework does not print one.
        disturbed: ``""``, ``"evaluation"`` or ``"save"``: what else the time contains.
        samples: Global batch size; masked where the record does not state it.
        samples_per_s: Throughput over all GPUs, as the log states it.
        tokens_per_s: Tokens a second over all GPUs, as the log states it.
        tokens_per_s_per_gpu: Tokens a second and GPU, as the log states it.
        tflops_per_gpu: TFLOP/s a GPU, as the log states it.
        tflops_resolution: What the last digit of that stands for.
        skipped: Iterations of the record whose update was skipped.
        nan: Iterations of the record with a NaN.
    """

    iteration: MaskedInt64
    span: Int64
    attempt: Int64
    wall_ns: MaskedInt64
    wall_resolution_ns: MaskedInt64
    disturbed: npt.NDArray[np.str_]
    samples: MaskedInt64
    samples_per_s: MaskedFloat64
    tokens_per_s: MaskedFloat64
    tokens_per_s_per_gpu: MaskedFloat64
    tflops_per_gpu: MaskedFloat64
    tflops_resolution: MaskedFloat64
    loss: MaskedFloat64
    loss_scale: MaskedFloat64
    skipped: Int64
    nan: Int64

    def __len__(self) -> int:
        return len(self.span)

    @cached_property
    def before(self) -> Int64:
        """How many iterations of its attempt are over when a record's mean begins."""
        numbers = np.ma.getdata(self.iteration)
        done = np.cumsum(self.span) - self.span
        before = np.zeros(len(self), np.int64)
        for first in np.flatnonzero(np.diff(self.attempt, prepend=-1)):
            rows = self.attempt == self.attempt[first]
            numbered = not np.ma.getmaskarray(self.iteration)[rows].any()
            begin = numbers - self.span if numbered else done
            before[rows] = (begin - begin[first])[rows]
        return before

    @property
    def new(self) -> Int64:
        """How many of a record's iterations no earlier record contains; one can be printed alone and in a mean."""
        before = self.before
        follows = self.attempt[1:] == self.attempt[:-1]
        again = np.where(follows, np.maximum((before + self.span)[:-1] - before[1:], 0), 0)
        new = self.span.copy()
        new[1:] -= np.minimum(again, new[1:])
        return new

    def without_figures(self) -> Iterations:
        """The numbers of the iterations alone, with neither times nor what else was measured."""
        measured = {
            column.name: np.ma.MaskedArray(values.data, mask=True)
            for column in fields(self)
            if column.name != "iteration" and isinstance(values := getattr(self, column.name), np.ma.MaskedArray)
        }
        return replace(self, **measured)


@dataclass(frozen=True, slots=True)
class Save:
    """One checkpoint save; what the log does not state is absent.

    Attributes:
        wall_ns: How long it stalled training.
        source: Where the time comes from: ``timer`` or ``timestamps``.
        asynchronous: Training went on meanwhile.
        drained_ns: From its beginning until an asynchronous one lay on disk.
    """

    iteration: int | None
    wall_ns: int | None
    source: str | None
    path: str | None
    asynchronous: bool | None = None
    drained_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Fact:
    """What a log (arguments, log, deepspeed config, records, command line) or its name states about its run."""

    value: int | float | str | bool
    source: str


@dataclass(frozen=True, slots=True)
class Timer:
    """A named part of an iteration, from so many timer lines; the mean over these of the slowest rank."""

    name: str
    lines: int
    mean_ns: int


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """Device memory, the largest that any rank reports; used as nvidia-smi sees it, total is what the device has."""

    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    used_bytes: int | None = None
    total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SourceMedian:
    """The median of a source that was not chosen for the step time; what it does not state is absent."""

    name: str
    wall_ns: int | None
    samples_per_s: float | None


@dataclass(frozen=True, slots=True, eq=False)
class JobLog:
    """The contents of one log.

    Attributes:
        framework: What wrote it; absent where no line identifies a framework.
        time_source: What the times of ``iterations`` are; absent without records.
        copies: Records that repeat another rank's.
        redone: Iterations that were done again after a restart.
        gaps: Places where iterations are missing between two records.
        unreadable: Records whose time is no number.
        facts: What is stated about model, batch and layout, by name, best source first.
        arguments: Every argument that it prints, as text.
        tflops_label: What it calls its own TFLOPs; absent where it prints none.
        out_of_memory: ``device``, ``host`` or absent.
        names_run: Its name is built like a benchmark's log.
        ended: How the run ended badly, in words; absent without such a line.
        complete: It reached its last iteration; absent where the last one is unknown.
        remarks: Doubts about what was read: ``code: sentence``.
        mixture: Why the records cannot be of one job, and have no times therefore; absent where they can.
    """

    path: str
    framework: str | None
    iterations: Iterations
    time_source: str | None
    copies: int
    redone: int
    gaps: int
    unreadable: int
    other_sources: tuple[SourceMedian, ...]
    facts: Mapping[str, tuple[Fact, ...]]
    arguments: Mapping[str, str]
    tflops_label: str | None
    saves: tuple[Save, ...]
    timers: tuple[Timer, ...]
    memory: PeakMemory
    out_of_memory: str | None
    names_run: bool
    ended: str | None
    complete: bool | None
    remarks: tuple[str, ...] = field(default=())
    mixture: str | None = None

    def fact(self, name: str) -> Fact | None:
        """The fact from its best source; None where no source states it."""
        facts = self.facts.get(name)
        return facts[0] if facts else None

    def number(self, name: str) -> int | None:
        """A fact that is a count; None where it is absent or no count."""
        fact = self.fact(name)
        return fact.value if fact is not None and isinstance(fact.value, int) else None


@dataclass(frozen=True, slots=True)
class LoggedMoment:
    """A line with a time and the number of an iteration.

    Attributes:
        t_ns: When, since 1970, as the log's clock says.
        iteration: The last iteration that is complete.
        stated_ns: What an iteration took by the log; absent where the line does not say.
        saved_ns: How long saves stalled training since the moment before; 0 where the log does not say.
        has_evaluation, has_save: Whether the model was validated, and a checkpoint saved, since then.
    """

    t_ns: int
    iteration: int
    stated_ns: int | None
    saved_ns: int = 0
    has_evaluation: bool = False
    has_save: bool = False


@dataclass(frozen=True, slots=True)
class LoggedMoments:
    """One log, with the moments at which iterations ended, in its order.

    ``ranks`` is how many trained, absent where the log does not say. ``damage`` is what contradicts itself, in words.
    """

    path: str
    first_ns: int
    last_ns: int
    moments: tuple[LoggedMoment, ...]
    ranks: int | None = None
    damage: tuple[str, ...] = ()
