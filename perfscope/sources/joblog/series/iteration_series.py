"""The iteration records of a log while it is read: drops copies by other ranks, detects restarts, bounds the memory.

Several ranks can print the same iteration, with or without a label in front, at the same time or some iterations apart.
A job that restarts goes back to the iteration of its checkpoint. In both cases the iteration number does not grow.
The numbers of each label are therefore compared with the earlier numbers of the same label: a process counts up, so if
they go back, the process has restarted. If several processes share a label, or have none, their lines look like a
restart at first. Then numbers repeat, or go back again soon, and the suspected restart is undone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import repeat
from typing import ClassVar

import numpy as np

from perfscope.sources.joblog.repeats.repetition import ANY_NUMBER, AddedOf, is_far
from perfscope.sources.joblog.series.compared_copies import MANY_COPIES
from perfscope.sources.joblog.series.latest_records import COMPARED_ROWS
from perfscope.sources.joblog.series.moments_builder import MomentsBuilder
from perfscope.sources.joblog.series.printed_numbers import RECENT, SKEW, PrintedNumbers
from perfscope.sources.joblog.series.rank_copies import follow_repeats
from perfscope.sources.joblog.series.ranks_in_step import RanksInStep, SuspectedRestart
from perfscope.sources.joblog.series.record import LARGEST_INTEGER, Record
from perfscope.sources.joblog.series.record_columns import DISTURBANCES
from perfscope.sources.joblog.series.rows import Rows, drop_times_after
from perfscope.sources.joblog.series.turns import Turns
from perfscope.sources.joblog.splitting.split_block import Numbers
from perfscope.tables.columns import Bool, Int64
from perfscope.tables.joblog import Disturbance

#: Records that are kept one by one; those of a longer log are folded.
RECORDS_KEPT = 1 << 12

_SUSPECTED_RECORDS = 16
REPEATS_AT_ONCE = 1 << 12  # records of several processes
#: Fewer records are added faster one by one.
FEW = 10
_NOWHERE = np.empty(0, np.int64)


class IterationSeries(RanksInStep):
    """The iteration records of one source in one log.

    Attributes:
        records_kept: How many records are kept one by one.
        clock_runs_on: The time of a record begins at the record before it, so it contains evaluations and saves.
        covers_gaps: A record is the mean since the record before it, however many iterations lie between.
        measures_from_zero: Where records cover gaps, a first record with a time is the mean of all iterations so far.
        expects_gaps: Lines are counted anew in every epoch, so that gaps at its end are no missing records.
        untimed_after_start: How many iterations after the first one of a start have a mean that contains that one.
        starts_over: After a start the first iteration is printed by itself, and is also part of the next record's mean.
        stated_interval: How many iterations lie between two records according to the set-up; None without a statement.
        copies: Records that repeated another rank's.
        attempt: Restarts so far.
        redone: Iterations that were done again after a restart.
        last: Number of the last iteration.
        folded_times: The records that are not kept one by one.
    """

    COUNTS: ClassVar = ("copies", "attempt", "redone", "_since_new", "_unnumbered")

    def __init__(self, records_kept: int = RECORDS_KEPT, moments: MomentsBuilder | None = None) -> None:
        super().__init__()
        self._moments = moments
        self.records_kept = records_kept
        self.clock_runs_on = False
        self.redone = 0
        self._first = 0
        self._disturbance = 0

    def most_repetitions(self, added_of: AddedOf) -> int:
        """As often as is wanted where the attempt of each label stays as far behind, or falls further behind."""
        added, unnumbered = added_of(self)["attempt"], set(added_of(self)["_unnumbered"].values())
        are_behind = all(
            added_of(numbers)["attempt"] == added or is_far(self.attempt - numbers.attempt, added, added)
            for numbers in self._numbers.values()
        )
        return ANY_NUMBER if are_behind and len(unnumbered) <= 1 else 0

    def on_restart(self) -> None:
        """A process begins to train; several ranks may print that."""
        self._restarting = len(self) > 0
        self._numbers.clear()
        self._unnumbered.clear()
        self._suspected = None

    def on_disturbance(self, kind: Disturbance) -> None:
        """Training is interrupted; where the clock runs on, the time of the next record contains that."""
        if self.clock_runs_on:
            self._disturbance = min(DISTURBANCES.index(kind), self._disturbance or len(DISTURBANCES))

    def add(self, record: Record, label: bytes | None = None) -> bool:
        """Append a record and return True, unless it repeats that of another rank or has an impossible number."""
        if self._added is not None:
            self._added.append((self, replace(record), label))
        number = record.iteration
        if number is not None and number > LARGEST_INTEGER:
            return False
        record.drop_impossible()
        if number is not None:
            turns = self._turns.get(label)
            if turns is None:
                turns = self._turns[label] = Turns()
            turns.add(number)
            if not self._restarting and self._is_copy(number, label):
                self._on_copy(record, number)
                return False
        elif label is not None and self._is_of_another_rank(label):
            self.copies += 1
            return False
        self._since_new = 0
        begins = self._on_number(number, label)
        if self.is_full:
            if number is not None and self._first < number < self._first + self.untimed_after_start:
                record.wall_ns = None
            self.folded_times.add(record, is_disturbed=self._disturbance > 0, begins=begins)
            self._latest.append(number, record.wall_ns, record.samples)
        else:
            record.moment = self._moments.mark() if self._moments is not None else None
            self._columns.append(record, self.attempt, self._disturbance)
        self._disturbance = 0
        return True

    def add_many(self, iterations: Numbers, wall_ns: Int64, samples: int | None, label: bytes | None = None) -> None:
        """Append many undisturbed records at once, which are folded: their numbers ascend in equal steps.

        A time that is not above 0 is none.
        """
        self.folded_times.add_many(wall_ns, samples)
        self._latest.extend(iterations[-COMPARED_ROWS:], wall_ns)
        if self.last is not None:
            self._gaps.add(int(iterations[0]) - self.last)
        if len(iterations) > 1:
            self._gaps.add(int(iterations[1]) - int(iterations[0]), len(iterations) - 1)
        self.last = int(iterations[-1])
        numbers = self._numbers.get(label)
        processes = (numbers.processes if numbers else None) or 1  # their numbers grow one by one
        counts = Counter(int(number) for number in iterations[-RECENT:])
        self._numbers[label] = PrintedNumbers(self.last, self.attempt, counts, processes)
        self._suspected = None

    def add_rows(self, iterations: Int64, wall_ns: Int64, samples: Int64 | None, label: bytes | None = None) -> Bool:
        """Append many undisturbed records of one label as ``add`` does, and return which of them are new.

        Where their numbers go back, a start begins, or they are copies. A time or a batch that is not above 0 is none.
        """
        if len(iterations) < FEW:
            batches = samples.tolist() if samples is not None else repeat(None)
            rows = zip(iterations.tolist(), wall_ns.tolist(), batches, strict=False)
            added = [self.add(Record(number, time_ns, samples=batch), label) for number, time_ns, batch in rows]
            return np.asarray(added, np.bool_)
        if self.are_copies(iterations, label):
            self._add_copies(iterations, wall_ns, samples, label)
            return np.zeros(len(iterations), np.bool_)
        is_new = np.ones(len(iterations), np.bool_)
        moved = np.diff(iterations)
        row, equal, back, next_look = 0, Rows(moved == 0), Rows(moved <= 0), 0
        while row < len(iterations):
            if row >= next_look and self.repeats_go_on(label):
                some = slice(row, row + REPEATS_AT_ONCE)
                batches = None if samples is None else samples[some]
                taken = self.follow_repeats(iterations[some], wall_ns[some], batches, label)
                is_new[row : row + len(taken)] = taken
                row += len(taken)
                next_look = row if len(taken) >= FEW else row + FEW
                continue
            end = row
            if self.is_full and self._goes_on_alone(label):
                one_process = self._numbers[label].is_of_one_process
                if iterations[row] > (self.last or 0) or (one_process and iterations[row] != self.last):
                    end = (equal if one_process else back).next_after(row) + 1
            if end - row > 1:
                self.fold(iterations[row:end], wall_ns[row:end], None if samples is None else samples[row:end], label)
                row = end
                continue
            batch = None if samples is None else int(samples[row])
            is_new[row] = self.add(Record(int(iterations[row]), int(wall_ns[row]), samples=batch), label)
            row += 1
        return is_new

    def are_copies(self, iterations: Int64, label: bytes | None) -> bool:
        """Whether many records of a label all repeat records of another process, in any order."""
        numbers = self._numbers.get(label)
        if numbers is None or self._restarting or self._suspected is not None or not len(iterations):
            return False
        return numbers.are_repeats(iterations)

    def repeats_go_on(self, label: bytes | None) -> bool:
        """Whether several processes print with this label, and how many is known."""
        is_certain = self.is_full and self._goes_on_alone(label) and self._latest.ascend
        return is_certain and (self._numbers[label].processes or 1) > 1

    def follow_repeats(self, iterations: Int64, wall_ns: Int64, samples: Int64 | None, label: bytes | None) -> Bool:
        """Add records as ``add`` does, up to the first that is not surely new or a copy; return which are new."""
        is_new = follow_repeats(iterations, self._numbers[label], self._turns[label], self._gaps)
        self._latest.compare_rows(iterations, wall_ns, samples, is_new)
        rows = np.flatnonzero(is_new)
        self.copies += len(is_new) - len(rows)
        self._since_new = len(is_new) - 1 - int(rows[-1]) if len(rows) else self._since_new + len(is_new)
        if len(rows):
            numbers, batches = iterations[rows], None if samples is None else samples[rows]
            self._turns[label].add_many(numbers, _NOWHERE)
            self._gaps.add(self._gaps.usual, len(rows))
            total = None if batches is None or (batches <= 0).any() else int(batches.sum())
            self.folded_times.add_many(wall_ns[rows], total)
            self._latest.extend(numbers[-COMPARED_ROWS:], wall_ns[rows], batches)
            self.last, self._suspected = int(numbers[-1]), None
        return is_new

    def _add_copies(self, iterations: Int64, wall_ns: Int64, samples: Int64 | None, label: bytes | None) -> None:
        """Count records that ``are_copies``."""
        self._turns[label].add_copies(iterations)
        self.copies += len(iterations)
        self._since_new += len(iterations)
        for number, times in zip(*np.unique(iterations, return_counts=True), strict=True):
            self._numbers[label].counts[int(number)] += int(times)
            original = self._find_latest(int(number))
            if original is not None:
                rows = iterations == number
                self._latest.compare_many(wall_ns[rows], None if samples is None else samples[rows], original)

    @property
    def are_ranks_in_step(self) -> bool:
        """Whether other ranks repeated many records, and every label is in the same attempt, without a doubt."""
        is_certain = self.copies >= MANY_COPIES and self._suspected is None and not self._restarting
        return is_certain and all(numbers.attempt == self.attempt for numbers in self._numbers.values())

    def all_go_on(self, first_of_labels: Mapping[bytes, int]) -> bool:
        """Whether the next numbers of some labels go on from their last ones."""
        printed = ((self._numbers.get(label), number) for label, number in first_of_labels.items())
        return all(numbers is not None and number > numbers.last for numbers, number in printed)

    def any_goes_back(self, first_of_labels: Mapping[bytes, int]) -> bool:
        """Whether the next number of some label is none above its last one, or goes on from another start."""
        printed = ((self._numbers.get(label), number) for label, number in first_of_labels.items())
        return any(
            numbers is not None and (number <= numbers.last or numbers.attempt != self.attempt)
            for numbers, number in printed
        )

    def _goes_on_alone(self, label: bytes | None) -> bool:
        """Whether the last record is of this label, and the next one needs no closer look."""
        numbers = self._numbers.get(label)
        is_last = numbers is not None and numbers.last == self.last and numbers.attempt == self.attempt
        return is_last and self.is_steady

    def fold(
        self,
        iterations: Int64,
        wall_ns: Int64,
        samples: Int64 | None = None,
        label: bytes | None = None,
        starts: Int64 = _NOWHERE,
    ) -> None:
        """Fold records that are new; where their numbers go back, and at ``starts``, their process has restarted."""
        assert self.last is not None
        moved = np.diff(iterations, prepend=self.last)
        begins = np.union1d(np.flatnonzero(moved <= 0), starts)
        self._turns[label].add_many(iterations, begins)
        self._gaps.add_many(np.delete(moved, begins) if len(begins) else moved)
        if len(begins):
            self.attempt += len(begins)
            self.redone += int((1 - moved[moved <= 0]).sum())
            self._first = int(iterations[begins[-1]])
            if self.untimed_after_start:
                wall_ns = drop_times_after(begins, iterations, wall_ns, self.untimed_after_start)
        total = None if samples is None or (samples <= 0).any() else int(samples.sum())
        self.folded_times.add_many(wall_ns, total, begins)
        self._latest.extend(iterations[-COMPARED_ROWS:], wall_ns)
        self.last = int(iterations[-1])
        if len(starts):
            self.on_restart()
            iterations, begins = iterations[starts[-1] :], begins[begins > starts[-1]] - starts[-1]
            self._numbers[label] = PrintedNumbers(self.last, self.attempt, Counter())
            self._restarting = False
        self._numbers[label].add_many(iterations, begins, self.attempt, self.interval())
        self._suspected = None

    def add_unnumbered(self, wall_ns: Int64, label: bytes | None = None) -> None:
        """Append many undisturbed records without a number, which are folded; a time that is not above 0 is none."""
        first, rows = 0, len(wall_ns)
        while first < rows and not (
            rows > 1 and self.is_steady and self.is_full and self._unnumbered.keys() <= {label}
        ):
            self.add(Record(wall_ns=int(wall_ns[first]) if wall_ns[first] > 0 else None), label)
            first += 1
        if first == rows:
            return
        self.folded_times.add_many(wall_ns[first:], None)
        self._latest.extend(repeat(None, min(rows - first, COMPARED_ROWS)), wall_ns[first:])
        if label is not None:
            self._unnumbered[label] = self._unnumbered.get(label, 0) + rows - first

    @property
    def unnumbered_ranks(self) -> int:
        """How many labels are in front of records without a number."""
        return len(self._unnumbered)

    @property
    def is_full(self) -> bool:
        """Whether further records are folded."""
        return self.folded_times.records > 0 or len(self._columns) >= self.records_kept

    @property
    def is_continuing(self) -> bool:
        """Whether the next record follows the last one in the same process."""
        return not self._restarting

    @property
    def is_steady(self) -> bool:
        """Whether the next record neither begins an attempt nor is disturbed, and has the time that it states."""
        is_timed = self.last is None or self.last + 1 >= self._first + self.untimed_after_start
        return self._disturbance == 0 and not self._restarting and is_timed

    def _is_of_another_rank(self, label: bytes) -> bool:
        """Whether a record without a number is that of another rank: the n-th of its label, where another has n."""
        count = self._unnumbered[label] = self._unnumbered.get(label, 0) + 1
        return any(rank != label and rank_count >= count for rank, rank_count in self._unnumbered.items())

    def _is_copy(self, number: int, label: bytes | None) -> bool:
        """Whether a record repeats that of another process; adds its number to those of its label."""
        numbers = self._numbers.get(label)
        if numbers is None:
            if self.last is None:
                return False
            self._numbers[label] = PrintedNumbers(number, self.attempt, Counter({number: 1}))
            return number <= self.last
        if self._take_back_restart(numbers, number, label):
            numbers = self._numbers[label]
        if number > numbers.last:
            numbers.last = number
            if self._gaps.counts:
                numbers.drop_old(self.interval())
        elif numbers.is_repeat(number):
            numbers.counts[number] += 1
            return True
        else:
            numbers.last, numbers.attempt = number, numbers.attempt + 1
            numbers.counts = Counter()
        numbers.counts[number] += 1
        if numbers.attempt > self.attempt:
            return False
        return numbers.attempt < self.attempt or (self.last is not None and number <= self.last)

    def _take_back_restart(self, numbers: PrintedNumbers, number: int, label: bytes | None) -> bool:
        """Undo a suspected restart if the numbers of its label do not continue as those of a single process would."""
        suspected = self._suspected
        if suspected is None or suspected.label != label:
            return False
        is_next = number <= numbers.last + self.interval() or not self._gaps.counts  # the first number was damaged
        if numbers.last < number and is_next:
            is_past = number > suspected.last + SKEW * self.interval()
            if is_past or len(self) > suspected.records + _SUSPECTED_RECORDS:
                self._suspected = None
            return False
        self._suspected = None
        if self.is_full:
            return False
        counts = suspected.counts + Counter(self._columns.iterations_from(suspected.records))
        self.copies += self._columns.join_attempt(suspected.records, suspected.last, suspected.attempt)
        self.attempt, self.redone, self._gaps = suspected.attempt, suspected.redone, suspected.gaps
        self._first = suspected.first
        self.last = max([suspected.last, *self._columns.iterations_from(suspected.records)])
        self._numbers = {label: PrintedNumbers(self.last, suspected.attempt, counts)}
        return True

    def _on_number(self, number: int | None, label: bytes | None) -> bool:
        """Add the number of a record that is appended; return whether the record begins an attempt."""
        is_first = len(self) == 0
        goes_back = number is not None and self.last is not None and number <= self.last
        if self._restarting or goes_back:
            self._suspected = None if self._restarting else self._suspect(label)
            self.attempt += 1
            if goes_back and number is not None and self.last is not None:
                self.redone += self.last - number + 1
        elif number is not None and self.last is not None:
            self._gaps.add(number - self.last)
        begins = is_first or self._restarting or goes_back
        self._restarting = False
        if number is not None:
            self._first = number if begins else self._first
            self.last = number
            numbers = self._numbers.get(label)
            if numbers is None:
                numbers = self._numbers[label] = PrintedNumbers(number, self.attempt, Counter({number: 1}))
            numbers.last, numbers.attempt = number, self.attempt
        return begins

    def _suspect(self, label: bytes | None) -> SuspectedRestart | None:
        """The state to return to if this is not a restart; None where it certainly is one, or cannot be undone."""
        numbers = self._numbers.get(label)
        if self.is_full or numbers is None or numbers.processes is not None or self.last is None:
            return None
        counts = Counter(dict.fromkeys(self._columns.iterations_from(-SKEW), 1))
        rows, gaps = len(self), self._gaps.copy()
        return SuspectedRestart(label, rows, self.attempt, self.redone, self.last, self._first, gaps, counts)
