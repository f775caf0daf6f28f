"""What text that repeats itself exactly does to the state of a log, counted instead of read again and again.

A process that starts again and again, or prints the same lines in a loop, repeats itself byte by byte. Each repetition
is read as any text, until the last few have changed nothing but counts, each by the same amount. All that is decided on
the way then turns out as before in the next one, so that the amounts are added at once for all that follow. A class
names its counts in ``COUNTS``, and says by ``most_repetitions`` how often amounts may be added before a decision that
rests on a count could turn out otherwise. Where anything else changes, the text is read to its end.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import FunctionType
from typing import Any, Protocol, TypeAlias

import numpy as np

#: So many repetitions in turn must have changed the same.
ALIKE = 3
#: Nothing limits how often something may be added.
ANY_NUMBER = 1 << 60
_ATOMS = (int, float, str, bytes, type(None), Enum, type, FunctionType, re.Pattern)

#: A count, a collection of counts, or a list that is only appended to.
Counted: TypeAlias = Any
#: What a repetition adds to a count, to each of a collection of counts, or to the length of a list.
Added: TypeAlias = Any
#: What a repetition adds to the counts of an object, by their names.
AddedOf: TypeAlias = Callable[[object], Mapping[str, Added]]


class Log(Protocol):
    """What the lines of one log state; the states of all formats refer to it."""

    def settle(self) -> None:
        """Put all that waits to be counted into its place."""


class _UnevenError(Exception):
    """Something has changed that is no count."""


@dataclass(slots=True)
class _Mark:
    """A state at one moment: all that is no count, and the counts of each object that has some."""

    log: Log
    fixed: list[object] = field(default_factory=list)
    counts: list[tuple[Any, str, Added]] = field(default_factory=list)

    def take(self, value: object) -> None:
        """Add an object and all that it holds, but the log."""
        fixed = self.fixed
        if isinstance(value, _ATOMS):
            fixed.append(value)
        elif value is self.log:
            fixed.append(None)
        elif isinstance(value, dict):
            fixed += (type(value), len(value), *value)
            for each in value.values():
                self.take(each)
        elif isinstance(value, list | tuple | deque):
            fixed += (type(value), len(value))
            for each in value:
                self.take(each)
        elif isinstance(value, set | frozenset):
            fixed.append(frozenset(value))
        elif isinstance(value, array | np.ndarray):
            fixed.append(value.tobytes())
        else:
            self.take_fields(value)

    def take_fields(self, value: object) -> None:
        """Add the attributes of an object."""
        kind: Any = type(value)
        names = getattr(value, "__dict__", None) or getattr(kind, "__struct_fields__", None)
        names = names or getattr(kind, "__dataclass_fields__", None)
        if names is None:
            raise _UnevenError
        counts = getattr(kind, "COUNTS", ())
        self.fixed.append(kind)
        for name in names:
            if name in counts:
                self.counts.append((value, name, _copy(getattr(value, name))))
            else:
                self.take(getattr(value, name))

    def added_since(self, before: _Mark) -> list[Added]:
        """What was added to each count."""
        if self.fixed != before.fixed or len(self.counts) != len(before.counts):
            raise _UnevenError
        return [_difference(old, new) for (_, _, old), (_, _, new) in zip(before.counts, self.counts, strict=True)]


class Repetition:
    """The changes of a state by text that repeats itself."""

    def __init__(self, log: Log, states: Iterable[object]) -> None:
        self._log = log
        self._states = list(states)
        self._mark = self._take()
        self._alike = 0
        self._added: list[Added] | None = None

    @property
    def is_even(self) -> bool:
        """Whether the last repetitions have changed nothing but counts, each by the same amount."""
        return self._alike >= ALIKE

    def look(self) -> None:
        """Look at the state behind one more repetition."""
        before, self._mark = self._mark, self._take()
        try:
            added = self._mark.added_since(before) if before and self._mark else None
        except _UnevenError:
            added = None
        self._alike = self._alike + 1 if added is not None and added == self._added else int(added is not None)
        self._added = added

    def add(self, times: int) -> int:
        """Add what a repetition adds for several of them, as far as may be; returns for how many."""
        assert self._mark is not None
        assert self._added is not None
        added: dict[int, dict[str, Added]] = {}
        for (owner, name, _), amount in zip(self._mark.counts, self._added, strict=True):
            added.setdefault(id(owner), {})[name] = amount
        owners = {id(owner): owner for owner, _, _ in self._mark.counts}.values()
        limits = [owner.most_repetitions(lambda each: added[id(each)]) for owner in owners]
        times = min(times, *limits)
        if times > 0:
            for (owner, name, _), amount in zip(self._mark.counts, self._added, strict=True):
                setattr(owner, name, _advance(getattr(owner, name), amount, times))
        return max(times, 0)

    def _take(self) -> _Mark | None:
        self._log.settle()
        mark = _Mark(self._log)
        try:
            mark.take_fields(self._log)
            mark.take(self._states)
        except _UnevenError:
            return None
        return mark


def is_far(count: int, added: int, least: int) -> bool:
    """Whether a count was at least so large before the repetitions that were looked at."""
    return count - (ALIKE + 1) * added >= least


def _copy(value: Counted) -> Added:
    """The counts of an attribute as they are now; of a list its length, as it is only appended to."""
    if isinstance(value, dict):
        return {key: _copy(each) for key, each in value.items()}
    if isinstance(value, tuple | np.ndarray):
        return tuple(np.asarray(value).tolist())
    return len(value) if isinstance(value, list) else value


def _difference(before: Added, after: Added) -> Added:
    if isinstance(before, dict):
        if before.keys() != after.keys():
            raise _UnevenError
        return {key: _difference(each, after[key]) for key, each in before.items()}
    if isinstance(before, tuple):
        if len(before) != len(after):
            raise _UnevenError
        return tuple(new - old for old, new in zip(before, after, strict=True))
    if before is None or after is None:
        if before is not after:
            raise _UnevenError
        return None
    return after - before


def _advance(value: Counted, added: Added, times: int) -> Counted:
    """An attribute after so many further repetitions."""
    if isinstance(value, dict):
        for key, amount in added.items():
            value[key] = _advance(value[key], amount, times)
        return value
    if isinstance(value, list):
        return [*value, *(value[len(value) - added :] * times)] if added else value
    if isinstance(value, np.ndarray):
        return value + times * np.asarray(added, value.dtype)
    if isinstance(value, tuple):
        return tuple(each + times * amount for each, amount in zip(value, added, strict=True))
    return None if value is None else value + times * added
