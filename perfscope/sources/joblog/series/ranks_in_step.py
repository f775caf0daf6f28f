"""Records that all ranks print in step: those of the first rank are added, and stand for those of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from perfscope.sources.joblog.series.compared_copies import ComparedCopies
from perfscope.sources.joblog.series.gaps import Gaps
from perfscope.sources.joblog.series.printed_numbers import PrintedNumbers
from perfscope.sources.joblog.series.record import Record

#: How many ranks print a record with each label.
Ranks: TypeAlias = Mapping[bytes | None, int]


@dataclass(frozen=True, slots=True)
class SuspectedRestart:
    """A suspected restart, with the state to return to if it was another process with the same label."""

    label: bytes | None
    records: int
    attempt: int
    redone: int
    last: int
    first: int
    gaps: Gaps
    counts: Counter[int]


class RanksInStep(ComparedCopies):
    """Records of ranks in step; see ``IterationSeries``.

    Attributes:
        attempt: Restarts so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attempt = 0
        self._suspected: SuspectedRestart | None = None
        self._restarting = False
        self._unnumbered: dict[bytes, int] = {}

    def ranks_in_step(self, labels: Sequence[bytes | None]) -> Ranks | None:
        """The ranks whose records are added, of those that print each line with one of some labels.

        Returns the first one alone where the others' lines add nothing, and None where it is not certain that each of
        these has printed the last record, and nobody a further one.
        """
        ranks = Counter(labels)
        if self._restarting or self._suspected is not None:
            return None
        if self.last is None:
            most = max(self._unnumbered.values(), default=0)
            have_most = all(label is not None and self._unnumbered.get(label) == most for label in ranks)
            return ranks if have_most and len(ranks) == len(labels) else None
        if all(self._have_printed_last(label, times) for label, times in ranks.items()):
            return ranks
        others = [self._numbers[label] for label in ranks if label != labels[0] and label in self._numbers]
        is_alone = self._have_printed_last(labels[0], 1) and all(numbers.last != self.last for numbers in others)
        return {labels[0]: 1} if is_alone else None

    def _have_printed_last(self, label: bytes | None, ranks: int) -> bool:
        """Whether so many ranks print with a label, and all have printed each of the last records."""
        numbers, turns = self._numbers.get(label), self._turns.get(label)
        if numbers is None or turns is None or self.last is None:
            return False
        is_at_last = numbers.attempt == self.attempt and numbers.last == self.last == turns.last
        return is_at_last and (numbers.processes or 1) == ranks and set(numbers.counts.values()) == {ranks}

    def add_last_again(self, record: Record, label: bytes | None, times: int) -> bool:
        """Add the last record again for further ranks behind its label; return whether all are copies of it."""
        numbers, turns, number = self._numbers.get(label), self._turns.get(label), record.iteration
        if numbers is None or turns is None or number is None or self._restarting or self._suspected is not None:
            return False
        is_last = numbers.attempt == self.attempt and number == numbers.last == self.last == turns.last
        most = None if numbers.processes is None else max(numbers.processes, 2)
        if not is_last or (most is not None and numbers.counts[number] + times > most):
            return False
        record.drop_impossible()
        compared, unlike = self._latest.compared, self._latest.unlike
        self._on_copy(record, number)
        numbers.counts[number] += times
        self.copies += times - 1
        self._since_new += times - 1
        self._latest.compared += (times - 1) * (self._latest.compared - compared)
        self._latest.unlike += (times - 1) * (self._latest.unlike - unlike)
        return True

    def count_for_ranks(self, ranks: Ranks, label: bytes | None) -> Callable[[], None]:
        """Take further records of a label as those of the only rank, until what is returned counts them for all."""
        records, copies, compared, all_ranks = len(self), self.copies, self._latest.compared, sum(ranks.values())
        numbers = self._numbers.get(label)
        unnumbered = self._unnumbered.copy()
        if numbers is not None:
            numbers.processes = 1 if ranks[label] > 1 else numbers.processes
            numbers.counts = Counter(dict.fromkeys(numbers.counts, 1))
        elif label is not None:
            self._unnumbered = {label: unnumbered[label]}

        def count() -> None:
            added = (all_ranks - 1) * (len(self) - records)
            self.copies += added + (all_ranks - 1) * (self.copies - copies)
            self._latest.compared += (all_ranks - 1) * (self._latest.compared - compared)
            if numbers is None:
                printed = self._unnumbered[label] if label is not None else 0
                self._unnumbered = unnumbered | {each: printed for each in ranks if each is not None}
                return
            self._latest.compared += added if self._latest.has_time else 0
            self._since_new = all_ranks - 1 if added else self._since_new
            first = self._numbers.get(label)
            if first is None:
                return  # a start has begun, of which nothing is known yet
            for each, times in ranks.items():
                counts = Counter(dict.fromkeys(first.counts, times))
                processes = times if times > 1 else first.processes
                self._numbers[each] = PrintedNumbers(first.last, first.attempt, counts, processes)
                self._turns[each].follow_to(self._turns[label])

        return count
