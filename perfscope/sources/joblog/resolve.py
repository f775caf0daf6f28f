"""Which records of a log are copies of another rank's, where the job started again, and whether it is one job.

Several ranks can print the same iteration, with or without a label in front, at the same time or some iterations apart.
A job that restarts goes back to the iteration of its checkpoint. In both cases the iteration number does not grow.
The numbers of each label are therefore compared with the earlier numbers of the same label: a process counts up, so if
they go back, the process has restarted. If several processes share a label, or have none, their lines look like a
restart at first. Then numbers repeat, or go back again soon, and the suspected restart is undone.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np

from perfscope.tables.columns import Float64, Int64

#: Stands for no number, time or batch.
ABSENT = -1
#: How many iterations the processes of a job may be apart when they print.
SKEW = 4
#: How many numbers of a label are kept.
_RECENT = 64
_DROPPED_AT_ONCE = 16
_SUSPECTED_RECORDS = 16
#: With so many of the last records a copy is compared.
_COMPARED_RECORDS = 8
#: The ranks of a job wait for each other in every iteration.
_MOST_APART = 1.25
_FEWEST_UNLIKE = 3
_FEWEST_TURNS = 3
_FEWEST_STEPS = 3
_MOST_PLACES = 4

_TAKE_TURNS = "records of two jobs take turns: their iteration numbers go to and fro"
_REPEAT = "records of two jobs take turns: they repeat each iteration with another time or batch"


class Printed(msgspec.Struct, frozen=True, eq=False):
    """All records of one source in the order of the log; NaN stands for an absent figure.

    Attributes:
        iteration: Their numbers.
        wall_ns: The times that they state.
        label: The number of what a launcher wrote in front; 0 for nothing.
        begins: 1 where a process said before that it begins.
        disturbed: What happened since the record before; 0 for nothing, of several the smallest counts.
        samples: Their batches.
    """

    iteration: Float64
    wall_ns: Float64
    label: Float64
    begins: Float64
    disturbed: Float64
    samples: Float64


class Resolved(msgspec.Struct, frozen=True, eq=False):
    """The records of a job.

    Attributes:
        rows: The places of those that are no copies.
        attempt: 0 before the first restart, 1 after it and so on.
        disturbed: What happened before each.
        copies: How many records repeat another rank's.
        redone: Iterations that were done again after a restart.
        gaps: How often how many iterations lie between two records.
        interval: The gap that occurs most often, of several the smallest; 1 without any.
        last: Number of the last iteration.
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


def resolve(printed: Printed) -> Resolved:
    """Tell copies from restarts, in the order of the log.

    What one process printed is read at once, as most logs are: numbers that ascend, or do so evenly between restarts.
    """
    numbers, label = printed.iteration, printed.label
    if not len(numbers) or np.isnan(numbers).any() or printed.begins[1:].any() or (label != label[0]).any():
        return _resolve_in_turn(printed)
    moved = np.diff(numbers).astype(np.int64)
    gaps, times = np.unique(moved[moved > 0], return_counts=True)
    back = np.flatnonzero(moved <= 0)
    if len(back):
        firsts, lasts = numbers[back + 1], np.append(numbers[back[1:]], numbers[-1])
        are_long = np.diff(np.concatenate(([-1], back, [len(moved)]))).min() > _SUSPECTED_RECORDS + SKEW
        if len(gaps) > 1 or not are_long or (firsts == numbers[back]).any() or (lasts < numbers[back]).any():
            return _resolve_in_turn(printed)
    interval = int(gaps[np.argmax(times)]) if len(gaps) else 1
    rows = np.arange(len(numbers))
    return Resolved(
        rows=rows,
        attempt=np.searchsorted(back + 1, rows, "right"),
        disturbed=printed.disturbed.astype(np.int64),
        copies=0,
        redone=sum(count_redone(int(numbers[row]), int(numbers[row + 1]), interval) for row in back.tolist()),
        gaps=Counter(dict(zip(gaps.tolist(), times.tolist(), strict=True))),
        interval=interval,
        last=int(numbers[-1]),
        unnumbered_ranks=0,
        mixture=None,
    )


def _resolve_in_turn(printed: Printed) -> Resolved:
    resolver = _Resolver(printed)
    for row in range(len(printed.iteration)):
        resolver.add(row)
    return resolver.result()


def count_redone(last: int, number: int, interval: int) -> int:
    """Iterations up to ``last`` that the record of ``number`` and those after it repeat; a record covers an interval.

    A number between two usual ones is printed by itself.
    """
    return last - number + max(min(number % interval or interval, number), 1)


@dataclass(slots=True)
class _Gaps:
    """How many iterations lie between two records, how often, and what occurs most often."""

    counts: Counter[int] = field(default_factory=Counter)
    usual: int = 1

    def add(self, gap: int) -> None:
        self.counts[gap] += 1
        if (self.counts[gap], -gap) > (self.counts[self.usual], -self.usual):
            self.usual = gap

    def copy(self) -> _Gaps:
        return _Gaps(self.counts.copy(), self.usual)


@dataclass(slots=True)
class _PrintedNumbers:
    """The iteration numbers printed with one label.

    Attributes:
        last: The largest number of its attempt.
        attempt: Which attempt that is.
        counts: How often each of the latest numbers of the attempt was printed.
        processes: How many processes print with this label; None until enough iterations were printed to count them.
    """

    last: int
    attempt: int
    counts: Counter[int]
    processes: int | None = None

    def drop_old(self, interval: int) -> None:
        """Learn the number of processes from iterations that all have printed, and drop the oldest of them."""
        if self.processes is not None and len(self.counts) <= _RECENT + _DROPPED_AT_ONCE:
            return
        old = [number for number in self.counts if number < self.last - SKEW * interval]
        if old:
            times_printed = Counter(self.counts[number] for number in old)
            self.processes = max(times_printed, key=lambda times: (times_printed[times], times))
        if len(self.counts) > _RECENT:
            for number in old[: len(self.counts) - _RECENT]:
                del self.counts[number]

    def is_repeat(self, number: int) -> bool:
        """Whether a number that does not grow was printed by another process; if not, the process itself went back."""
        times = self.counts[number]
        if self.processes is None:
            return number == self.last or max(self.counts.values(), default=0) > 1
        # A line that is printed twice is an accident; a restart at the very last number would be rare.
        return 0 < times < (max(self.processes, 2) if number == self.last else self.processes)


@dataclass(slots=True)
class _Place:
    """Where one job may be: its first and last number, the least step between two numbers, how many steps it took."""

    first: int
    last: int
    step: int | None = None
    steps: int = 0

    def leads_to(self, number: int) -> bool:
        """Whether a number is one of the next, or a repetition of one of the last."""
        return abs(number - self.last) <= SKEW * (self.step or 1)

    def follow(self, number: int) -> None:
        """Go on to a number."""
        step = number - self.last
        if step > 0:
            if self.step is not None and step < self.step:
                self.first = self.last  # what came before was another job's, or a gap
            self.step = step if self.step is None else min(self.step, step)
            self.steps += 1
            self.last = number

    def passes(self, other: _Place) -> bool:
        """Whether this is a restart of the other that has come to where that was."""
        return self is not other and self.first <= other.last <= self.last


class Turns:
    """Whether the iteration numbers of one label are those of two jobs that take turns.

    The numbers of a job ascend; after a restart they go back, and never come back to where they were but by passing all
    numbers between. Two jobs whose lines are in one log go to and fro between two places, each of which goes on from
    where it was. A process of the same job is at most a few iterations behind the others.
    """

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._turns = 0

    @property
    def are_of_two_jobs(self) -> bool:
        """Whether two jobs took turns several times, and no restart or gap between can have made it look so."""
        return self._turns >= _FEWEST_TURNS

    def add(self, number: int) -> None:
        """Add the number of the next record."""
        places = self._places
        current = places[-1] if places else None
        if current is not None and number == current.last:
            return  # another rank's, as most are where all print
        if current is None or not current.leads_to(number):
            place = next((place for place in places[:-1] if place.leads_to(number)), None)
            if place is not None and current is not None:
                self._turns += min(place.steps, current.steps) >= _FEWEST_STEPS
                places.remove(place)
                places.append(place)
                current = place
            elif current is None or current.step is not None or number < current.last:
                self._places = [*places, _Place(number, number)][-_MOST_PLACES:]
                self._turns = self._turns if self.are_of_two_jobs else 0
                return
        current.follow(number)  # the second number of a job tells its step
        if len(self._places) > 1:
            self._places = [place for place in self._places if not current.passes(place)]


@dataclass(frozen=True, slots=True)
class _SuspectedRestart:
    """A suspected restart, with the state to return to if it was another process with the same label."""

    label: int
    records: int
    attempt: int
    redone: int
    last: int
    gaps: _Gaps
    counts: Counter[int]


class _Resolver:
    """Reads the records of a source one after the other."""

    def __init__(self, printed: Printed) -> None:
        self._iteration, self._label, self._begins, self._disturbed, self._wall_ns, self._samples = (
            np.where(np.isnan(column), ABSENT, column).astype(np.int64).tolist()
            for column in (
                printed.iteration,
                printed.label,
                printed.begins,
                printed.disturbed,
                printed.wall_ns,
                printed.samples,
            )
        )
        self._rows: list[int] = []
        self._attempts: list[int] = []
        self._disturbances: list[int] = []
        self._numbers: dict[int, _PrintedNumbers] = {}
        self._turns: dict[int, Turns] = {}
        self._unnumbered: dict[int, int] = {}
        self._suspected: _SuspectedRestart | None = None
        self._restarting = False
        self._gaps = _Gaps()
        self._last: int | None = None
        self._attempt = self._redone = self._copies = self._disturbance = 0
        self._compared = self._unlike = 0

    def add(self, row: int) -> None:
        """Read the record in a row."""
        number, label = self._iteration[row], self._label[row]
        if self._begins[row]:
            self._restarting = len(self._rows) > 0
            self._numbers.clear()
            self._unnumbered.clear()
            self._suspected = None
        if self._disturbed[row]:
            self._disturbance = min(self._disturbed[row], self._disturbance or self._disturbed[row])
        if number != ABSENT:
            turns = self._turns.get(label)
            if turns is None:
                turns = self._turns[label] = Turns()
            turns.add(number)
            if not self._restarting and self._is_copy(number, label):
                self._copies += 1
                self._compare(row, number)
                return
        elif label and self._is_of_another_rank(label):
            self._copies += 1
            return
        self._on_number(number, label)
        self._rows.append(row)
        self._attempts.append(self._attempt)
        self._disturbances.append(self._disturbance)
        self._disturbance = 0

    def result(self) -> Resolved:
        """What was found."""
        mixture = None
        if any(turns.are_of_two_jobs for turns in self._turns.values()):
            mixture = _TAKE_TURNS
        elif self._unlike >= _FEWEST_UNLIKE and 2 * self._unlike > self._compared:
            mixture = _REPEAT
        return Resolved(
            np.asarray(self._rows, np.int64),
            np.asarray(self._attempts, np.int64),
            np.asarray(self._disturbances, np.int64),
            self._copies,
            self._redone,
            self._gaps.counts,
            self._gaps.usual,
            self._last,
            len(self._unnumbered),
            mixture,
        )

    def _compare(self, row: int, number: int) -> None:
        """Compare a copy with what it repeats, if that is one of the last records."""
        original = next((each for each in self._rows[-_COMPARED_RECORDS:] if self._iteration[each] == number), None)
        wall_ns = self._wall_ns[row]
        if original is None or wall_ns == ABSENT:
            return
        first_ns, samples, first_samples = self._wall_ns[original], self._samples[row], self._samples[original]
        low, high = sorted((wall_ns, first_ns if first_ns != ABSENT else wall_ns))
        is_other_batch = ABSENT not in (samples, first_samples) and samples != first_samples
        self._compared += 1
        self._unlike += is_other_batch or high > _MOST_APART * low

    def _is_of_another_rank(self, label: int) -> bool:
        """Whether a record without a number is that of another rank: the n-th of its label, where another has n."""
        count = self._unnumbered[label] = self._unnumbered.get(label, 0) + 1
        return any(rank != label and rank_count >= count for rank, rank_count in self._unnumbered.items())

    def _is_copy(self, number: int, label: int) -> bool:
        """Whether a record repeats that of another process; adds its number to those of its label."""
        numbers = self._numbers.get(label)
        if numbers is None:
            if self._last is None:
                return False
            self._numbers[label] = _PrintedNumbers(number, self._attempt, Counter({number: 1}))
            return number <= self._last
        if self._take_back_restart(numbers, number, label):
            numbers = self._numbers[label]
        if number > numbers.last:
            numbers.last = number
            if self._gaps.counts:
                numbers.drop_old(self._gaps.usual)
        elif numbers.is_repeat(number):
            numbers.counts[number] += 1
            return True
        else:
            numbers.last, numbers.attempt = number, numbers.attempt + 1
            numbers.counts = Counter()
        numbers.counts[number] += 1
        if numbers.attempt > self._attempt:
            return False
        return numbers.attempt < self._attempt or (self._last is not None and number <= self._last)

    def _on_number(self, number: int, label: int) -> None:
        """Add the number of a record that is new; it may begin an attempt."""
        goes_back = number != ABSENT and self._last is not None and number <= self._last
        if self._restarting or goes_back:
            self._suspected = None if self._restarting else self._suspect(label)
            self._attempt += 1
            if goes_back and self._last is not None:
                self._redone += count_redone(self._last, number, self._gaps.usual)
        elif number != ABSENT and self._last is not None:
            self._gaps.add(number - self._last)
        self._restarting = False
        if number != ABSENT:
            self._last = number
            numbers = self._numbers.get(label)
            if numbers is None:
                numbers = self._numbers[label] = _PrintedNumbers(number, self._attempt, Counter({number: 1}))
            numbers.last, numbers.attempt = number, self._attempt

    def _suspect(self, label: int) -> _SuspectedRestart | None:
        """The state to return to if this is not a restart; None where it certainly is one."""
        numbers = self._numbers.get(label)
        if numbers is None or numbers.processes is not None or self._last is None:
            return None
        counts = Counter(dict.fromkeys((self._iteration[row] for row in self._rows[-SKEW:]), 1))
        rows, gaps = len(self._rows), self._gaps.copy()
        return _SuspectedRestart(label, rows, self._attempt, self._redone, self._last, gaps, counts)

    def _take_back_restart(self, numbers: _PrintedNumbers, number: int, label: int) -> bool:
        """Undo a suspected restart if the numbers of its label do not continue as those of a single process would."""
        suspected = self._suspected
        if suspected is None or suspected.label != label:
            return False
        interval = self._gaps.usual
        is_next = number <= numbers.last + interval or not self._gaps.counts  # the first number was damaged
        if numbers.last < number and is_next:
            is_past = number > suspected.last + SKEW * interval
            if is_past or len(self._rows) > suspected.records + _SUSPECTED_RECORDS:
                self._suspected = None
            return False
        self._suspected = None
        rows = self._rows[suspected.records :]
        kept = [(row, kind) for row, kind in zip(rows, self._disturbances[suspected.records :], strict=True)
                if self._iteration[row] > suspected.last]  # fmt: skip
        counts = suspected.counts + Counter(self._iteration[row] for row in rows)
        self._copies += len(rows) - len(kept)
        self._rows[suspected.records :] = [row for row, _ in kept]
        self._disturbances[suspected.records :] = [kind for _, kind in kept]
        self._attempts[suspected.records :] = [suspected.attempt] * len(kept)
        self._attempt, self._redone, self._gaps = suspected.attempt, suspected.redone, suspected.gaps
        self._last = max([suspected.last, *(self._iteration[row] for row, _ in kept)])
        self._numbers = {label: _PrintedNumbers(self._last, suspected.attempt, counts)}
        return True
