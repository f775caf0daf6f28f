"""Whether what a log states of its job shows that it holds the lines of two jobs.

A job may start again, and its end may be set further on. A job of another size, whose records begin at the beginning
again, or come between those of the first, is another job; so is one whose set-up changed after the first had trained.
"""

from __future__ import annotations

from collections.abc import Mapping

_RECENT = 4
_MOST_CHANGES = 64


class JobChanges:
    """Changes of the set-up and of the last iteration, in one log."""

    def __init__(self) -> None:
        self._ends: list[int] = []
        self._first = 0
        self._changes: list[tuple[str, Mapping[str, int]]] = []
        self._reason: str | None = None

    def add(self, reason: str) -> None:
        """Two jobs are certain; the first reason is kept."""
        self._reason = self._reason or reason

    def on_change(self, name: str, before: object, after: object, records: Mapping[str, int]) -> None:
        """A fact that one job states once has changed, after so many records of each source."""
        if len(self._changes) < _MOST_CHANGES:
            text = f"the log is of two jobs: {name} is {before} for the first records and {after} for those that follow"
            self._changes.append((text, records))

    def on_end(self, iterations: int, number: int) -> None:
        """The record of iteration ``number`` states another last iteration than those before."""
        if not self._ends:
            self._first = number
        elif iterations in self._ends[:-1]:
            low, high = sorted((self._ends[-1], iterations))
            self.add(f"records of two jobs take turns, of {low} and of {high} iterations")
        elif number <= self._first:
            low, high = sorted((self._ends[-1], iterations))
            self.add(f"the log is of two jobs, one of {low} iterations and one of {high}")
        if iterations not in self._ends[-1:]:
            self._ends = [*self._ends, iterations][-_RECENT:]

    def conclude(self, source: str | None, records: int) -> str | None:
        """Why the ``records`` of a source cannot be of one job; None where they can.

        A set-up that changed before the first of them, or after the last, is of a job that they are not of.
        """
        changes = (text for text, before in self._changes if 0 < before.get(source or "", 0) < records)
        return self._reason or next(changes, None)
