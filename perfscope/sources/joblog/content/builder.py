"""Collects what the lines of one log state, for its table; the rules of the formats write into it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import ClassVar, TypeAlias

from perfscope.sources.joblog.content.job_changes import JobChanges
from perfscope.sources.joblog.content.saves_builder import SavesBuilder
from perfscope.sources.joblog.repeats.equal_lines import Labels
from perfscope.sources.joblog.repeats.repetition import ANY_NUMBER, AddedOf
from perfscope.sources.joblog.series.compared_copies import AddedRecord
from perfscope.sources.joblog.series.iteration_series import RECORDS_KEPT, IterationSeries
from perfscope.sources.joblog.series.moments_builder import MomentsBuilder
from perfscope.sources.joblog.text.line_fields import parse_number
from perfscope.tables.joblog import Disturbance, Fact, Memory, Timer

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

#: Values of timers of which each line is read.
ENOUGH_TIMER_LINES = 20_000

#: What a fact can be.
Value: TypeAlias = "int | float | str | bool"


class JobLogBuilder:
    """The content of one log, as far as it has been read.

    Attributes:
        series: The iteration records, by the source of their times.
        frameworks: The frameworks that some line proves to have written it.
        saves: The checkpoint saves.
        arguments: The arguments that the framework printed, as text.
        tflops_label: What the log calls its own TFLOPs.
        memory: The largest memory figures.
        out_of_memory: ``device``, ``host`` or None.
        unreadable: Records whose time is no number.
        timer_lines: Values of timers so far.
        ranks: For how many ranks a line stands that is added.
        remarks: The first remark of each kind, by its code.
    """

    COUNTS: ClassVar = ("unreadable", "timer_lines", "_timers")

    def __init__(self, records_kept: int = RECORDS_KEPT, moments: MomentsBuilder | None = None) -> None:
        self.series: dict[str, IterationSeries] = {}
        self.frameworks: set[str] = set()
        self.saves = SavesBuilder(moments)
        self.arguments: dict[str, str] = {}
        self.tflops_label: str | None = None
        self.memory = Memory()
        self.out_of_memory: str | None = None
        self.unreadable = 0
        self.timer_lines = 0
        self.ranks = 1
        self.remarks: dict[str, str] = {}
        self._records_kept = records_kept
        self._moments = moments
        self._distrusted: set[str] = set()
        self._without_rates: set[str] = set()
        self._facts: dict[str, dict[str, Fact]] = {}
        self._timers: dict[str, tuple[int, int]] = {}
        self._bad_ends: dict[int, str] = {}
        self._jobs = JobChanges()

    def most_repetitions(self, added_of: AddedOf) -> int:
        """As often as is wanted, but that timers are left out of long logs: up to there."""
        added = added_of(self)["timer_lines"]
        until = ENOUGH_TIMER_LINES - self.timer_lines
        return ANY_NUMBER if not added or until < 0 else until // added - 1

    @property
    def records_kept(self) -> int:
        """How many records of all sources are kept one by one."""
        return sum(len(series) - series.folded_times.records for series in self.series.values())

    def settle(self) -> None:
        """Put all that waits to be counted into its place."""
        for series in self.series.values():
            series.settle()

    def series_of(self, source: str) -> IterationSeries:
        """The series of one source, which is created at the first call."""
        if source not in self.series:
            self.series[source] = IterationSeries(self._records_kept, self._moments)
        return self.series[source]

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
        """Training is interrupted; where the clock of a series runs on, the time of its next record contains that.

        ``is_in_times`` is false where the format itself says which records do.
        """
        if self._moments is not None:
            self._moments.events.append(kind)
        for series in self.series.values() if is_in_times else ():
            series.on_disturbance(kind)

    def on_restart(self) -> None:
        """A process begins to train."""
        for series in self.series.values():
            series.on_restart()

    def apply_to_equal_lines(self, apply: Callable[[], None], label: bytes | None, labels: Labels, ranks: int) -> None:
        """Read a line, and count it again for the lines that equal it.

        Args:
            apply: Reads it. It is the second of its kind in a row, so that what it states is known but for the records
                and timers that it adds.
            label: Its label.
            labels: The labels of the lines that equal it.
            ranks: How many lines there are with this one and the first.
        """
        added: list[AddedRecord] = []
        timers, timer_lines, unreadable = self._timers.copy(), self.timer_lines, self.unreadable
        for series in self.series.values():
            series.observe(added)
        apply()
        for series in self.series.values():
            series.observe(None)
        have_own_labels = all(rank_label is not None and rank_label != label for rank_label in labels)
        if not have_own_labels and not all(series.may_be_printed_by(ranks, own) for series, _, own in added):
            for _ in labels:
                apply()
            return
        for owner, record, own in added:
            again = replace(record)
            if not have_own_labels and owner.add_last_again(again, own, len(labels)):
                continue
            for rank_label in labels:
                if owner.add(again, rank_label if rank_label is not None and own == label else own):
                    again = replace(record)  # the series keeps it
        self.unreadable += len(labels) * (self.unreadable - unreadable)
        if self.timer_lines != timer_lines:
            self.timer_lines += len(labels) * (self.timer_lines - timer_lines)
            for name, (lines, total) in self._timers.items():
                lines_before, total_before = timers.get(name, (0, 0))
                further = (len(labels) * (lines - lines_before), len(labels) * (total - total_before))
                self._timers[name] = (lines + further[0], total + further[1])

    def add_for_ranks(self, labels: Labels, sources: Sequence[str], add: Callable[[], None]) -> bool:
        """Add what the first rank prints for each rank, where all have printed the same before; return whether.

        Args:
            labels: The labels of the ranks, in the order in which they print each line.
            sources: What ``add`` may add records to, all of which are folded.
            add: Adds the records of many lines.
        """
        recorded = [self.series[source] for source in sources if source in self.series]
        ranks = [series.ranks_in_step(labels) for series in recorded]
        if None in ranks:
            return False
        count = [
            series.count_for_ranks(each, labels[0])
            for series, each in zip(recorded, ranks, strict=True)
            if each is not None
        ]
        self.ranks = len(labels)
        add()
        self.ranks = 1
        for count_series in count:
            count_series()
        return True

    def on_bad_end(self, reason: str) -> None:
        """A process failed; if no record follows, the run ended by it. Of several reasons the gravest is kept."""
        records = self._records()
        gravest = self._bad_ends.get(records)
        if gravest is None or _BAD_ENDS.index(reason) < _BAD_ENDS.index(gravest):
            self._bad_ends[records] = reason

    @property
    def bad_end(self) -> str | None:
        """How the run ended badly; None where no line after the last record says so."""
        return self._bad_ends.get(self._records())

    def _records(self) -> int:
        return sum(self._records_by_source().values())

    def _records_by_source(self) -> dict[str, int]:
        return {source: len(series) for source, series in self.series.items()}

    def set_fact(self, name: str, value: Value, source: str) -> None:
        """Set a fact; the last value of each source counts, because a job can start again with another set-up."""
        by_source = self._facts.setdefault(name, {})
        before = by_source.get(source)
        if before is not None and before.value != value and (name, source) in _OF_ONE_JOB:
            self._jobs.on_change(name, before.value, value, self._records_by_source())
        by_source[source] = Fact(value, source)

    def on_end_of_records(self, iterations: int, number: int) -> None:
        """The record of iteration ``number`` states another last iteration of its job than the record before."""
        self.set_fact("train_iterations", iterations, "records")
        self._jobs.on_end(iterations, number)

    def on_two_jobs(self, reason: str) -> None:
        """Some lines are of another job than others, so that no figure is of one job."""
        self._jobs.add(reason)

    def mixture_of(self, source: str | None) -> str | None:
        """Why the records of a source cannot be of one job; None where they can."""
        series = self.series.get(source or "")
        reason = self._jobs.conclude(source, len(series) if series else 0)
        return reason or (series.mixture if series else None)

    def set_count(self, name: str, text: bytes, source: str) -> None:
        """Set a fact that is a count, if the text is one."""
        value = parse_number(text)
        if value is not None and value == int(value):
            self.set_fact(name, int(value), source)

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

    def add_timer(self, name: str, wall_ns: int, lines: int = 1) -> None:
        """Add one line's time of a named part of the iteration, or the sum of several lines'."""
        before, total = self._timers.get(name, (0, 0))
        self._timers[name] = (before + lines, total + wall_ns)
        self.timer_lines += lines

    def timers(self) -> tuple[Timer, ...]:
        """The parts, in the order of their first line."""
        return tuple(Timer(name, lines, total // lines) for name, (lines, total) in self._timers.items())

    def add_memory(
        self,
        *,
        allocated: float | None = None,
        reserved: float | None = None,
        used: float | None = None,
        total: float | None = None,
    ) -> None:
        """Raise the peaks to what a line states, in bytes."""
        self.memory = Memory(
            _larger(self.memory.allocated_bytes, allocated),
            _larger(self.memory.reserved_bytes, reserved),
            _larger(self.memory.used_bytes, used),
            _larger(self.memory.total_bytes, total),
        )


def _larger(peak: int | None, size: float | None) -> int | None:
    if size is None or size <= 0:
        return peak
    return max(int(size), peak or 0)
