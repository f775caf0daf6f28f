"""Reads one log of any framework: blocks of lines, to the rules of all formats, to the table of the log.

A rule looks for lines that hold its anchor. What these state goes into the log's builder, in the order of the file.
Which records are copies and where the job started again is resolved at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from perfscope.errors import SourceError
from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.file_names import parse_file_name
from perfscope.sources.joblog.log_format import Format, FormatState, Role, ignore_line
from perfscope.sources.joblog.moments import MomentsBuilder
from perfscope.sources.joblog.records import MOST_IN_FULL, Series
from perfscope.sources.joblog.registry import FORMATS
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.text import read_blocks, to_plain_text
from perfscope.tables.joblog import JobLog, SourceMedian
from perfscope.tables.logged_moments import LoggedMoments

_DIGITS = b"0123456789"
_ANCHORS = sorted({rule.anchor.translate(None, _DIGITS) for log_format in FORMATS for rule in log_format.rules})


def read_log(path: Path) -> JobLog:
    """Read one log.

    Raises:
        SourceError: It cannot be read, or is no text.
    """
    reader = _LogReader()
    for block in read_blocks(path):
        reader.read(to_plain_text(block))
    return reader.close(path)


def read_moments(path: Path) -> LoggedMoments:
    """Read when the iterations of a log ended. Each line is looked at, which takes longer than ``read_log``.

    Raises:
        SourceError: It cannot be read, is of several jobs, or has no line with a time and the number of an iteration.
    """
    moments = MomentsBuilder()
    reader = _LogReader(moments)
    for block in read_blocks(path):
        text, done = to_plain_text(block), 0
        for rule, line in reader.find_lines(text):
            end = text.find(b"\n", max(line.line, done)) % (len(text) + 1)
            moments.read_times(text[done:end])
            done = end
            rule.apply(line)
        moments.read_times(text[done:])
    moments.end()
    log = reader.close(path)
    if log.mixture is not None:
        raise SourceError(path, log.mixture)
    return reader.moments_of(log, moments)


@dataclass(frozen=True, slots=True)
class _OpenFormat:
    """A format with the state of one log."""

    format: Format[Any]
    state: FormatState

    def close(self) -> None:
        self.format.close(self.state)


@dataclass(frozen=True, slots=True)
class _OpenRule:
    """A rule with its number, the state of one log, and the framework that its lines prove, if they do."""

    rule: Rule[Any]
    number: int
    state: FormatState
    proves: str | None

    def apply(self, line: LineMatch) -> None:
        """Write what a line states into the log's builder."""
        if self.proves is not None:
            self.state.log.frameworks.add(self.proves)
        self.rule.on_match(self.state, line)


class _LogReader:
    """The formats, opened for one log."""

    def __init__(self, moments: MomentsBuilder | None = None) -> None:
        self._log = JobLogBuilder(moments)
        self._formats = [_OpenFormat(log_format, log_format.state(self._log)) for log_format in FORMATS]
        self._rules: dict[bytes, list[_OpenRule]] = {anchor: [] for anchor in _ANCHORS}
        rules = [(opened, rule) for opened in self._formats for rule in opened.format.rules]
        for number, (opened, rule) in enumerate(rules):
            proves = opened.format.framework if rule.identifies else None
            self._rules[rule.anchor.translate(None, _DIGITS)].append(_OpenRule(rule, number, opened.state, proves))

    def read(self, text: bytes) -> None:
        """Read a block of whole lines."""
        takes = next(each for each in self._formats if each.format.take_plain is not None)
        assert takes.format.take_plain is not None
        for piece in takes.format.take_plain(takes.state, text):
            for rule, line in self.find_lines(piece):
                rule.apply(line)

    def find_lines(self, text: bytes) -> Iterator[tuple[_OpenRule, LineMatch]]:
        """Every match of every rule, in the order of the text; of lines that only prove a framework one is enough."""
        # Most lines are one of a few dozen with other numbers: an anchor that is in none of these is nowhere.
        lines = b"\n".join(set(text.translate(None, _DIGITS).split(b"\n")))
        found: list[tuple[int, int, _OpenRule, LineMatch]] = []
        for anchor in _ANCHORS:
            for rule in self._rules[anchor] if anchor in lines else ():
                matches = rule.rule.find(text)
                if rule.rule.on_match is not ignore_line:
                    found += [(line.match.start(), rule.number, rule, line) for line in matches]
                elif rule.proves not in self._log.frameworks and next(matches, None) is not None:
                    self._log.frameworks.add(rule.proves or "")
        found.sort(key=itemgetter(0, 1))
        return ((rule, line) for _, _, rule, line in found)

    def close(self, path: Path) -> JobLog:
        """Close the formats and make the table."""
        log, name = self._log, parse_file_name(path)
        for fact, value in name.facts.items():
            log.set_fact(fact, value, "name")
        trainers_first = sorted(self._formats, key=lambda each: each.format.role)
        for each in trainers_first:
            each.close()
        sources = self._sources()
        source = _step_time_source(log, list(sources))
        series = log.series[source] if source is not None else Series()
        last_iteration, last = log.count("train_iterations"), series.resolved.last
        mixture = log.mixture_of(source)
        if mixture is not None:
            log.add_remark("mixed-jobs", f"{mixture}: no figure is of one job")
        if series.resolved.unnumbered_ranks > 1:
            ranks = series.resolved.unnumbered_ranks
            text = f"{ranks} ranks print records without a number; those of one of them are counted"
            log.add_remark("unnumbered-ranks", text)
        if series.rows > MOST_IN_FULL:
            text = f"of the records after the first {MOST_IN_FULL:,} only number, time and batch are kept"
            log.add_remark("long-log", text)
        iterations = series.iterations()
        return JobLog(
            path=str(path),
            framework=_framework(log, trainers_first, sources[source] if source is not None else None),
            iterations=iterations if mixture is None else iterations.without_figures(),
            time_source=source,
            copies=series.resolved.copies,
            redone=series.redone,
            gaps=series.irregular_gaps,
            unreadable=log.unreadable,
            other_sources=_summarize_sources(log, [name for name in sources if name != source and mixture is None]),
            facts=log.facts(),
            arguments=log.arguments,
            tflops_label=log.tflops_label,
            saves=log.saves.table(),
            timers=log.timers(),
            memory=log.memory,
            out_of_memory=log.out_of_memory,
            names_run=name.is_run,
            ended=log.bad_end,
            complete=None if last is None or last_iteration is None or mixture is not None else last >= last_iteration,
            remarks=tuple(f"{code}: {text}" for code, text in log.remarks.items()),
            mixture=mixture,
        )

    def moments_of(self, log: JobLog, moments: MomentsBuilder) -> LoggedMoments:
        """When the records of a log were printed that has been closed."""
        series = self._log.series.get(log.time_source or "", Series())
        source = self._sources().get(log.time_source or "")
        of_format = source.format.sources if source is not None else ()
        is_fallback = any(each.name == log.time_source and each.is_fallback for each in of_format)
        are_times_apart = not (series.clock_runs_on or is_fallback)
        if series.covers_gaps:  # a record may stand for several lines, where another source has one for each
            others = [self._log.series[each.name] for each in of_format if each.name in self._log.series]
            each_line = max([series, *others], key=len)
            are_times_apart = are_times_apart and each_line is series
            series, log = each_line, replace(log, iterations=each_line.iterations())
        return moments.table(log, series.moments(), are_times_apart=are_times_apart)

    def _sources(self) -> dict[str, _OpenFormat]:
        """Every source of step times, best first, and the format that it belongs to."""
        ranked = [(source, each) for each in self._formats for source in each.format.sources]
        return {source.name: each for source, each in sorted(ranked, key=lambda pair: pair[0].is_fallback)}


def _step_time_source(log: JobLogBuilder, sources: Sequence[str]) -> str | None:
    """The best source that gives a time, else the best one that has records."""
    times = log.median_times()
    timed = [source for source in sources if source in times]
    recorded = [source for source in sources if source in log.series and len(log.series[source])]
    return next(iter((*timed, *recorded)), None)


def _summarize_sources(log: JobLogBuilder, sources: Sequence[str]) -> tuple[SourceMedian, ...]:
    medians = [
        SourceMedian(source, log.series[source].median_ns(), log.median_samples_per_s(source))
        for source in sources
        if source in log.series
    ]
    return tuple(median for median in medians if (median.wall_ns, median.samples_per_s) != (None, None))


def _framework(log: JobLogBuilder, formats: Sequence[_OpenFormat], timed_by: _OpenFormat | None) -> str | None:
    """The trainer whose step time it is; without one, the first that some line identifies."""
    writer = timed_by
    if timed_by is None or timed_by.format.role is Role.ENGINE:
        identified = (each for each in formats if each.format.framework in log.frameworks)
        writer = next(identified, timed_by)
    if writer is None:
        return None
    return writer.format.framework_of(writer.state) if writer.format.framework_of else writer.format.framework
