"""Builds the table of the checkpoint saves in a log, from the lines at their beginning and their end."""

from __future__ import annotations

from dataclasses import replace

from perfscope.sources.joblog.series.moments_builder import MomentsBuilder
from perfscope.tables.joblog import Save


class SavesBuilder:
    """Saves in the order of their beginning; a later save may begin before an earlier one has ended."""

    def __init__(self, moments: MomentsBuilder | None = None) -> None:
        self._moments = moments
        self._saves: list[Save] = []
        self._begin_ns: dict[int, int] = {}
        self._first: dict[float | None, int] = {}

    def table(self) -> tuple[Save, ...]:
        """Every save so far."""
        return tuple(self._saves)

    def add(self, save: Save) -> None:
        """Append a save."""
        self._first.setdefault(save.iteration, len(self._saves))
        if self._moments is not None:
            self._moments.events.append(len(self._saves))
        self._saves.append(save)

    def on_begin(self, iteration: int | None, path: str | None, stamp_ns: int | None) -> None:
        """A save begins."""
        self.add(Save(iteration, None, None, path))
        if stamp_ns is not None:
            self._begin_ns[len(self._saves) - 1] = stamp_ns

    def is_last(self, iteration: int | None) -> bool:
        """Whether the last save is the one of this iteration."""
        return bool(self._saves) and iteration is not None and self._saves[-1].iteration == iteration

    def on_end(self, iteration: float | None, stamp_ns: int | None) -> None:
        """The save of an iteration is complete on disk; without a number it is the last one."""
        last = len(self._saves) - 1
        index = self._first.get(iteration, last)
        begin_ns = self._begin_ns.pop(index, None)
        if begin_ns is None or stamp_ns is None or stamp_ns < begin_ns:
            return
        if self._saves[index].asynchronous:
            self._saves[index] = replace(self._saves[index], drained_ns=stamp_ns - begin_ns)
        elif index == last:
            self.set_time(stamp_ns - begin_ns, "timestamps")

    def on_file_written(self, stamp_ns: int | None) -> None:
        """A file of the last save is complete on disk; the save lasts until its last file."""
        begin_ns = self._begin_ns.get(len(self._saves) - 1)
        if begin_ns is not None and stamp_ns is not None and stamp_ns >= begin_ns:
            self.set_time(stamp_ns - begin_ns, "timestamps")

    def on_scheduled(self, stamp_ns: int | None) -> None:
        """The last save is written in the background from here on, while training continues."""
        if self._saves:
            self._saves[-1] = replace(self._saves[-1], asynchronous=True)
            self.on_file_written(stamp_ns)

    def set_time(self, wall_ns: int, source: str) -> None:
        """Set the duration of the last save; a timer's figure outranks the difference of two timestamps."""
        if not self._saves:
            self.add(Save(None, wall_ns, source, None))
        elif self._saves[-1].source != "timer" or source == "timer":
            self._saves[-1] = replace(self._saves[-1], wall_ns=wall_ns, source=source)
