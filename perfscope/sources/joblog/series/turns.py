"""Whether the iteration numbers of one label are those of two jobs that take turns.

The numbers of a job ascend; after a restart they go back, and never come back to where they were but by passing all
numbers between. Two jobs whose lines are in one log go to and fro between two places, each of which goes on from where
it was. A process of the same job is at most a few iterations behind the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from perfscope.sources.joblog.repeats.repetition import ANY_NUMBER, AddedOf, is_far
from perfscope.sources.joblog.series.printed_numbers import SKEW
from perfscope.tables.columns import Int64

_FEWEST_TURNS = 3
_FEWEST_STEPS = 3
_MOST_PLACES = 4
_MANY = 8


@dataclass(slots=True)
class _Place:
    """Where one job may be: its first and last number, the least step between two numbers, how many steps it took."""

    COUNTS: ClassVar = ("steps",)

    first: int
    last: int
    step: int | None = None
    steps: int = 0

    def most_repetitions(self, added_of: AddedOf) -> int:
        """As often as is wanted once it took enough steps."""
        added = added_of(self)["steps"]
        return ANY_NUMBER if not added or is_far(self.steps, added, _FEWEST_STEPS) else 0

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

    def follow_many(self, numbers: Int64) -> bool:
        """Go on to numbers of which each is one of the next after the one before; False where that is not certain."""
        moved = np.diff(numbers, prepend=self.last)
        if self.step is None or moved.min() < self.step or moved.max() > SKEW * self.step:
            return False
        self.steps += len(numbers)
        self.last = int(numbers[-1])
        return True

    def passes(self, other: _Place) -> bool:
        """Whether this is a restart of the other that has come to where that was."""
        return self is not other and self.first <= other.last <= self.last


class Turns:
    """The places of the jobs that print with one label."""

    COUNTS: ClassVar = ("_turns",)

    def __init__(self) -> None:
        self._places: list[_Place] = []
        self._turns = 0

    def most_repetitions(self, added_of: AddedOf) -> int:
        """As often as is wanted once there are enough turns."""
        added = added_of(self)["_turns"]
        return ANY_NUMBER if not added or is_far(self._turns, added, _FEWEST_TURNS) else 0

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
        self._drop_passed(current)

    def add_copies(self, numbers: Int64) -> None:
        """Add the numbers of many records, none of which goes on."""
        current = self._places[-1] if self._places else None
        if current is not None and numbers.max() <= current.last and current.leads_to(int(numbers.min())):
            self._drop_passed(current)
            return
        for number in numbers.tolist():
            self.add(number)

    @property
    def last(self) -> int | None:
        """The number of the job that printed last; None where none has."""
        return self._places[-1].last if self._places else None

    def follow_to(self, other: Turns) -> None:
        """Go where another label of the same job went on."""
        self._places[-1:] = [replace(other._places[-1])]

    def step_behind(self, number: int) -> int | None:
        """The least step between two numbers of the job that was last at a number; None where it is unknown."""
        current = self._places[-1] if self._places else None
        return current.step if current is not None and current.last == number else None

    def add_many(self, numbers: Int64, begins: Int64) -> None:
        """Add the numbers of many records, which ascend but at the rows ``begins``."""
        for start, stop in pairwise((0, *begins.tolist(), len(numbers))):
            row = min(start + _MANY, stop)
            for number in numbers[start:row].tolist():
                self.add(number)
            if row < stop and self._places[-1].follow_many(numbers[row:stop]):
                self._drop_passed(self._places[-1])
            else:
                for number in numbers[row:stop].tolist():
                    self.add(number)

    def _drop_passed(self, current: _Place) -> None:
        if len(self._places) > 1:
            self._places = [place for place in self._places if not current.passes(place)]
