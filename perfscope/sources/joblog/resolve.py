"""Which records of a log are copies of another rank's, where the job started again, and whether it is one job.

Several ranks can print the same iteration, with or without a label in front, at the same time or some iterations apart.
A job that restarts goes back to the iteration of its checkpoint. In both cases the iteration number does not grow.
A label whose numbers were mostly printed once is that of one process: it counts up, so if it goes back, it restarted.
So is one that does not go back to its first number, which all processes print, and passes where it was each time.
With several processes, a number that is a few iterations back and not printed by all of them is a copy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import msgspec
import numpy as np

from perfscope.tables.columns import Float64, Int64

#: No number, time or batch.
ABSENT = -1
#: How many iterations the processes of a job may be apart when they print.
SKEW = 4
#: The ranks of a job wait for each other in every iteration.
MOST_APART = 1.25
_FEWEST_UNLIKE = 3

_TAKE_TURNS = "records of two jobs take turns: their iteration numbers go to and fro"
_REPEAT = "records of two jobs take turns: they repeat each iteration with another time or batch"


class Resolved(msgspec.Struct, frozen=True, eq=False):
    """The records of a job.

    Attributes:
        rows: The places of those that are no copies.
        attempt: 0 before the first restart, 1 after it and so on.
        disturbed: What happened before each.
        gaps: How often how many iterations lie between two records.
        interval: The gap that occurs most often, of several the smallest; 1 without any.
        unnumbered_ranks: How many labels are in front of records without a number.
        mixture: Why the records cannot be of one job; None where they can.
    """

    rows: Int64
    attempt: Int64
    disturbed: Int64
    copies: int
    redone: int
    gaps: Counter[int]
    interval: int
    last: int | None
    unnumbered_ranks: int
    mixture: str | None


def resolve(column: Callable[[str], Float64]) -> Resolved:
    """Tell copies from restarts in the columns of all records, in the order of the log; NaN is an absent figure.

    What one process printed is read at once.
    """
    numbers, label = column("iteration"), column("label")
    has_number = ~np.isnan(numbers)
    is_of_one = has_number.all() and not column("begins")[1:].any() and (label == label[:1]).all()
    moved, disturbed = np.diff(numbers), np.nan_to_num(column("disturbed")).astype(np.int64)
    if is_of_one and (moved > 0).all():
        return _describe(numbers, np.arange(len(numbers)), np.zeros(len(numbers), np.int64), disturbed, 0, 0, None)
    far = SKEW * _usual_gap(np.diff(np.unique(numbers[has_number])))
    labels = {each: numbers[has_number & (label == each)] for each in np.unique(label).tolist()}
    processes = {each: _processes(of_label, far) for each, of_label in labels.items()}
    turns = max((_turns(of_label, far) for of_label in labels.values()), default=0)
    mixture = _TAKE_TURNS if turns >= _FEWEST_UNLIKE else None
    back = moved[moved <= 0]
    if is_of_one and (back < 0).all() and (1 in processes.values() or (back < -far).all()):
        attempt = np.concatenate(([0], np.cumsum(moved <= 0)))
        return _describe(numbers, np.arange(len(numbers)), attempt, disturbed, 0, 0, mixture)
    resolver = _Resolver(column, far, processes)
    for row in range(len(numbers)):
        resolver.add(row)
    rows, attempt, disturbed = (
        np.asarray(column, np.int64) for column in (resolver.rows, resolver.attempts, resolver.disturbances)
    )
    unlike = resolver.unlike >= _FEWEST_UNLIKE and 2 * resolver.unlike > resolver.compared
    mixture = mixture or (_REPEAT if unlike else None)
    return _describe(numbers, rows, attempt, disturbed, resolver.copies, len(resolver.unnumbered), mixture)


def _describe(
    printed: Float64, rows: Int64, attempt: Int64, disturbed: Int64, copies: int, unnumbered: int, mixture: str | None
) -> Resolved:
    has_number = ~np.isnan(printed[rows])
    numbers, starts = printed[rows][has_number].astype(np.int64), attempt[has_number]
    moved, is_restart = np.diff(numbers), np.diff(starts) > 0
    values, times = np.unique(moved[~is_restart], return_counts=True)
    gaps = Counter(dict(zip(values.tolist(), times.tolist(), strict=True)))
    interval = int(values[np.argmax(times)]) if len(values) else 1
    redone = 0
    for row in np.flatnonzero(is_restart & (moved <= 0)).tolist():
        last, number = int(numbers[row]), int(numbers[row + 1])
        redone += last - number + max(min(number % interval or interval, number), 1)  # one off the grid stands alone
    return Resolved(
        rows=rows,
        attempt=attempt,
        disturbed=disturbed,
        copies=copies,
        redone=redone,
        gaps=gaps,
        interval=interval,
        last=int(numbers[-1]) if len(numbers) else None,
        unnumbered_ranks=unnumbered,
        mixture=mixture,
    )


def _usual_gap(gaps: Float64 | Int64) -> int:
    values, times = np.unique(gaps, return_counts=True)
    return int(values[np.argmax(times)]) if len(values) else 1


def _processes(numbers: Float64, far: int) -> int:
    """How many processes print with a label: how often most of its numbers were printed, if they go back repeatedly."""
    moved = np.diff(numbers)
    back = np.flatnonzero(moved <= 0)
    goes_back = int((moved[back] >= -far).sum()) > 1
    if not goes_back:
        return 1
    lasts, firsts = numbers[back], numbers[back + 1]
    again = moved[numbers[:-1] < np.maximum.accumulate(numbers[:-1])]
    passes = (firsts < lasts).all() and (np.diff(lasts) > 0).all() and SKEW * again.max() <= far
    if passes and firsts.min() > numbers[0]:
        return 1  # it does all again up to where it was, and goes on, however often it crashes
    times, often = np.unique(np.unique(numbers, return_counts=True)[1], return_counts=True)
    return int(times[often == often.max()].max())


def _turns(numbers: Float64, far: int) -> int:
    """How often the numbers of a label go back, and then on from where they were: two jobs take turns."""
    turns, left = 0, None
    moved = np.diff(numbers)
    for row in np.flatnonzero(np.abs(moved) > far).tolist():
        if moved[row] < 0:
            left = numbers[row]
        elif left is not None:
            turns += abs(numbers[row + 1] - left) <= far
            left = None
    return turns


class _Printer(msgspec.Struct):
    processes: int
    last: int
    attempt: int
    counts: Counter[int]


class _Resolver:
    def __init__(self, column: Callable[[str], Float64], far: int, processes: dict[float, int]) -> None:
        self._columns = [
            np.where(np.isnan(values), ABSENT, values).astype(np.int64).tolist()
            for values in map(column, ("iteration", "label", "begins", "disturbed", "wall_ns", "samples"))
        ]
        self.rows: list[int] = []
        self.attempts: list[int] = []
        self.disturbances: list[int] = []
        self.unnumbered: dict[int, int] = {}
        self.copies = self.compared = self.unlike = 0
        self._far = far
        self._processes = processes
        self._printers: dict[int, _Printer] = {}
        self._restarting = False
        self._last: int | None = None
        self._attempt = self._disturbance = 0

    def add(self, row: int) -> None:
        number, label, begins, disturbed, *_ = (column[row] for column in self._columns)
        if begins:
            self._restarting = len(self.rows) > 0
            self._printers.clear()
            self.unnumbered.clear()
        if disturbed:
            self._disturbance = min(disturbed, self._disturbance or disturbed)
        if number == ABSENT:
            if label and not self._restarting and self._is_of_another_rank(label):
                self.copies += 1
                return
        elif self._is_copy(number, label):
            self.copies += 1
            self._compare(row, number)
            return
        self._attempt += self._restarting
        self._restarting = False
        if number != ABSENT:
            self._last = number
        self.rows.append(row)
        self.attempts.append(self._attempt)
        self.disturbances.append(self._disturbance)
        self._disturbance = 0

    def _is_copy(self, number: int, label: int) -> bool:
        """Whether a record repeats that of another process; where its process went back, the job restarts."""
        printer = self._printers.get(label)
        if printer is None:
            attempt = self._attempt + self._restarting
            printer = self._printers[label] = _Printer(self._processes[label], number, attempt, Counter())
        elif number > printer.last:
            printer.last = number
        else:
            printed = printer.counts[number]
            is_near = printer.last - number <= self._far and printer.processes > 1
            if printed < (max(printer.processes, 2) if number == printer.last else printer.processes * is_near):
                printer.counts[number] += 1
                return True
            printer.last, printer.attempt = number, printer.attempt + 1
            printer.counts = Counter()
            self._restarting = self._restarting or printer.attempt > self._attempt
        printer.counts[number] += 1
        if len(printer.counts) > 2 * self._far:
            printer.counts = Counter(
                {each: times for each, times in printer.counts.items() if each >= number - self._far}
            )
        if self._restarting or self._last is None:
            return False
        return printer.attempt < self._attempt or number <= self._last

    def _is_of_another_rank(self, label: int) -> bool:
        """Whether a record without a number is that of another rank: the n-th of its label, where another has n."""
        count = self.unnumbered[label] = self.unnumbered.get(label, 0) + 1
        return any(rank != label and rank_count >= count for rank, rank_count in self.unnumbered.items())

    def _compare(self, row: int, number: int) -> None:
        numbers, *_, times_ns, samples = self._columns
        original = next((each for each in self.rows[-2 * SKEW :] if numbers[each] == number), None)
        if original is None or times_ns[row] == ABSENT:
            return
        first_ns = times_ns[original] if times_ns[original] != ABSENT else times_ns[row]
        low, high = sorted((times_ns[row], first_ns))
        batches = {samples[row], samples[original]}
        self.compared += 1
        self.unlike += (ABSENT not in batches and len(batches) > 1) or high > MOST_APART * low
