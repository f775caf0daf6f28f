"""Collects what the lines of one log state, for its table; the rules of the formats write into it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from perfscope.sources.joblog.moments import MomentsBuilder
from perfscope.sources.joblog.records import Record, RecordSeries
from perfscope.sources.joblog.step_times import ElapsedClock
from perfscope.sources.joblog.text import parse_number, parse_resolution
from perfscope.tables.joblog import Disturbance, Fact, PeakMemory, Save, Timer

#: The sources of facts, best first.
FACT_SOURCES = ("arguments", "log", "deepspeed config", "records", "command line", "name")

#: What does not change while one job trains, and where it is stated; records may state a batch that grows.
_OF_ONE_JOB = {
    *product(("layers", "hidden", "heads", "seq_len", "gbs", "mbs", "gpus", "tp", "pp", "dp"), ("arguments", "log")),
    ("gbs", "deepspeed config"),
}

# The gravest first.
_BAD_ENDS = (
    "the device ran out of memory",
    "the host ran out of memory",
    "SLURM cancelled it at its time limit",
    "it was cancelled",
    "it raised an exception",
    "a process of it failed",
    "srun reports an error",
)

#: What a fact can be.
Value: TypeAlias = "int | float | str | bool"


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


class JobLogBuilder:
    """The content of one log, as far as it has been read. ``unreadable`` counts records whose time is no number."""

    def __init__(self, moments: MomentsBuilder | None = None) -> None:
        self.series: dict[str, RecordSeries] = {}
        self.frameworks: set[str] = set()
        self.saves = SavesBuilder(moments)
        self.arguments: dict[str, str] = {}
        self.tflops_label: str | None = None
        self.clocks: dict[str, ElapsedClock] = {}
        self._peaks: dict[str, int] = {}
        self.out_of_memory: str | None = None
        self.unreadable = 0
        self.remarks: dict[str, str] = {}
        self._moments = moments
        self._distrusted: set[str] = set()
        self._without_rates: set[str] = set()
        self._facts: dict[str, dict[str, Fact]] = {}
        self._timers: dict[str, tuple[int, int]] = {}
        self._bad_ends: list[tuple[dict[str, int], str]] = []
        self._changes: dict[str, tuple[str, int]] = {}
        self._end: tuple[int, int] | None = None
        self._two_jobs: str | None = None

    def series_of(self, source: str) -> RecordSeries:
        """The series of one source, which is created at the first call."""
        if source not in self.series:
            self.series[source] = RecordSeries(self._moments)
        return self.series[source]

    def add(self, source: str, record: Record, label: bytes | None, **settings: bool | int | None) -> None:
        """Append a record to its source, whose attributes are set to ``settings``."""
        series = self.series_of(source)
        for name, value in settings.items():
            setattr(series, name, value)
        series.add(record, label)

    def add_dated(self, source: str, record: Record, label: bytes | None, stamp_ns: int | None) -> None:
        """Append a record with the time since the one before, which runs on through evaluations and saves."""
        series = self.series_of(source)
        series.clock_runs_on = True
        series.add(record, label, stamp_ns)

    def clock(self, source: str, *, runs_on: bool = True) -> ElapsedClock:
        """The clock whose differences are the times of a source, through evaluations and saves where it runs on."""
        if source not in self.clocks:
            self.clocks[source] = ElapsedClock(self.series_of(source), runs_on=runs_on)
        return self.clocks[source]

    def timed(
        self, text: bytes, unit_ns: int, iteration: int | None = None, *, loss: float | None = None, digits: bool = True
    ) -> Record | None:
        """A record with the time that a text states, and what its last digit stands for; None where it is no time."""
        value = parse_number(text)
        if value is None or value <= 0:
            self.unreadable += 1
            return None
        resolution_ns = max(round(parse_resolution(text) * unit_ns), 1) if digits else None
        return Record(iteration, round(value * unit_ns), loss=loss, wall_resolution_ns=resolution_ns)

    def best_source(self, sources: Iterable[str]) -> str | None:
        """The best source that gives a time, else the best one that has records."""
        recorded = None
        for name in sources:
            series = self.series.get(name)
            if series is None or not len(series.resolved.rows):
                continue
            if name not in self._distrusted and series.median_ns() is not None:
                return name
            recorded = recorded or name
        return recorded

    def median_times(self) -> dict[str, int]:
        """The median time of each source that gives one, except those that are distrusted."""
        medians = {name: series.median_ns() for name, series in self.series.items() if name not in self._distrusted}
        return {name: median for name, median in medians.items() if median is not None}

    def distrust(self, source: str, *, with_rates: bool = False) -> None:
        """Do not take the step time from a source while another one gives it; with its rates, not those either."""
        self._distrusted.add(source)
        if with_rates:
            self._without_rates.add(source)

    def median_samples_per_s(self, source: str) -> float | None:
        """The median samples a second that a source states, unless its rates are distrusted."""
        return None if source in self._without_rates else self.series[source].median_samples_per_s()

    def on_disturbance(self, kind: Disturbance, *, is_in_times: bool = True) -> None:
        """Training is interrupted: the next record whose clock runs on holds it, unless the format says which do."""
        if self._moments is not None:
            self._moments.events.append(kind)
        for series in self.series.values() if is_in_times else ():
            series.on_disturbance(kind)

    def on_restart(self) -> None:
        """A process begins to train."""
        for series in self.series.values():
            series.on_restart()

    def on_bad_end(self, reason: str) -> None:
        """A process failed; if no record follows, the run ended by it. Of several reasons the gravest is kept."""
        rows = self._rows()
        same = self._bad_ends[-1:] if self._bad_ends and self._bad_ends[-1][0] == rows else []
        gravest = min([reason, *(earlier for _, earlier in same)], key=_BAD_ENDS.index)
        self._bad_ends[len(self._bad_ends) - len(same) :] = [(rows, gravest)]

    @property
    def bad_end(self) -> str | None:
        """How the run ended badly; None where no line after the last record says so."""
        last = [
            reason
            for rows, reason in self._bad_ends
            if not any(series.new_since(rows.get(source, 0)) for source, series in self.series.items())
        ]
        return min(last, key=_BAD_ENDS.index, default=None)

    def _rows(self) -> dict[str, int]:
        return {source: series.rows for source, series in self.series.items()}

    def set_fact(self, name: str, value: Value, source: str) -> None:
        """Set a fact; the last value of each source counts, because a job can start again with another set-up."""
        by_source = self._facts.setdefault(name, {})
        before = by_source.get(source)
        if before is not None and before.value != value and (name, source) in _OF_ONE_JOB:
            text = f"{name} is {before.value} for the first records and {value} for those that follow"
            for each, rows in self._rows().items():
                if rows:
                    self._changes.setdefault(each, (f"the log is of two jobs: {text}", rows))
        by_source[source] = Fact(value, source)

    def on_end_of_records(self, iterations: int, number: int) -> None:
        """The record of iteration ``number`` states another last iteration than the one before."""
        self.set_fact("train_iterations", iterations, "records")
        before, first = self._end or (iterations, number)
        if before != iterations and number <= first:
            low, high = sorted((before, iterations))
            self.on_two_jobs(f"the log is of two jobs, one of {low} iterations and one of {high}")
        self._end = iterations, first

    def on_two_jobs(self, reason: str) -> None:
        """Two jobs are certain; the first reason is kept."""
        self._two_jobs = self._two_jobs or reason

    def mixture_of(self, source: str | None) -> str | None:
        """Why the records of a source cannot be of one job; None where they can.

        A job may restart and may extend its end. Records with another last iteration are of another job if they start
        from the beginning. A set-up that changes between two records of the source shows another job, too.
        """
        series = self.series.get(source or "")
        if series is None or self._two_jobs is not None:
            return self._two_jobs
        change, rows = self._changes.get(source or "", (None, 0))
        return change if change is not None and series.new_since(rows) else series.resolved.mixture

    def set_count(self, name: str, text: bytes, source: str) -> None:
        """Set a fact that is a count, if the text is one."""
        value = parse_number(text)
        if value is not None and value == int(value):
            self.set_fact(name, int(value), source)

    def set_mfu(self, percent: bytes) -> None:
        """Set the MFU that the last record states, in percent, if the text is one."""
        value = parse_number(percent) if percent else None
        if value is not None:
            self.set_fact("stated_mfu", value, "records")

    def drop_fact(self, name: str) -> None:
        """Remove a fact of every source."""
        self._facts.pop(name, None)

    def has_fact(self, name: str) -> bool:
        """Whether any source states a fact."""
        return name in self._facts

    def count(self, name: str) -> int | None:
        """A count from its best source; None where no source states it."""
        facts = self.facts().get(name)
        value = facts[0].value if facts else None
        return value if isinstance(value, int) else None

    def facts(self) -> Mapping[str, tuple[Fact, ...]]:
        """Every fact, the best source first."""
        return {
            name: tuple(sorted(by_source.values(), key=lambda fact: FACT_SOURCES.index(fact.source)))
            for name, by_source in sorted(self._facts.items())
        }

    def add_remark(self, code: str, text: str) -> None:
        """Add a remark on what was read; the first one of each kind is kept."""
        self.remarks.setdefault(code, text)

    def add_timer(self, name: str, wall_ns: int) -> None:
        """Add one line's time of a named part of the iteration."""
        lines, total = self._timers.get(name, (0, 0))
        self._timers[name] = (lines + 1, total + wall_ns)

    def timers(self) -> tuple[Timer, ...]:
        """The parts, in the order of their first line."""
        return tuple(Timer(name, lines, total // lines) for name, (lines, total) in self._timers.items())

    def add_memory(self, unit: int = 1, **sizes: float | None) -> None:
        """Raise the peaks ``allocated``, ``reserved``, ``used`` and ``total`` to what a line states, in this unit."""
        for name, size in sizes.items():
            if size is not None and size * unit > self._peaks.get(name, 0):
                self._peaks[name] = int(size * unit)

    def memory(self) -> PeakMemory:
        """The largest memory figures."""
        return PeakMemory(**{f"{name}_bytes": size for name, size in self._peaks.items()})
