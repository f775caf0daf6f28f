"""Reads one log of any framework: blocks of lines, to the rules of all formats, to the table of the log.

A rule looks for lines that hold its anchor. What these state goes into the log's builder, in the order of the file.
Which records are copies and where the job started again is resolved at the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from perfscope.errors import SourceError
from perfscope.sources.joblog.builder import JobLogBuilder
from perfscope.sources.joblog.files import parse_file_name
from perfscope.sources.joblog.log_format import FormatState, LineMatch, LineRule, LogFormat, WriterRole, ignore_line
from perfscope.sources.joblog.moments import MomentsBuilder
from perfscope.sources.joblog.records import RecordSeries
from perfscope.sources.joblog.registry import FORMATS
from perfscope.sources.joblog.text import read_blocks, to_plain_text
from perfscope.tables.joblog import JobLog, LoggedMoments, SourceMedian
from perfscope.tables.saves import Saves, SaveTiming

_DIGITS = b"0123456789"
#: The rules of all formats by their anchors without digits: the number of a rule, the rule and its format.
_RULES: dict[bytes, list[tuple[int, LineRule[Any], LogFormat[Any]]]] = {}
for _format in FORMATS:
    for _rule in _format.rules:
        _same = _RULES.setdefault(_rule.anchor.translate(None, _DIGITS), [])
        _same.append((sum(map(len, _RULES.values())), _rule, _format))
_CLOSED_IN_ORDER = sorted(FORMATS, key=lambda each: each.role)
_PLAIN = next(each for each in FORMATS if each.take_plain is not None)
#: Every source of step times, best first, and its format.
_SOURCES = {name: each for each in FORMATS for name in each.sources} | {
    name: each for each in FORMATS for name in each.fallbacks
}


def read_log(path: Path) -> JobLog:
    """Read one log; fails where it cannot be read, or is no text."""
    reader = _LogReader()
    for block in read_blocks(path):
        reader.read(to_plain_text(block))
    return reader.close(path)


def read_moments(path: Path) -> LoggedMoments:
    """Read when the iterations of a log ended. Each line is looked at, which takes longer than ``read_log``.

    Fails where it is of several jobs, or has no line with a time and the number of an iteration.
    """
    moments = MomentsBuilder()
    reader = _LogReader(moments)
    for block in read_blocks(path):
        text, done = to_plain_text(block), 0
        for rule, state, line in reader.find_lines(text):
            end = text.find(b"\n", max(line.line, done)) % (len(text) + 1)
            moments.read_times(text[done:end])
            done = end
            rule.on_match(state, line)
        moments.read_times(text[done:])
    moments.end()
    log = reader.close(path)
    if log.mixture is not None:
        raise SourceError(path, log.mixture)
    return reader.moments_of(log, moments)


def read_log_saves(path: Path) -> Saves:
    """Read the saves of a training log; fails where it states none."""
    log = read_log(path)
    if not log.saves:
        raise SourceError(path, "states no checkpoint save")
    timings = tuple(
        SaveTiming(
            number=number,
            rank=None,
            step=save.iteration,
            blocked_ns=save.wall_ns,
            drained_ns=save.drained_ns,
            size_bytes=None,
            asynchronous=save.asynchronous or (None if save.wall_ns is None else False),  # its end came first
            source=f"the log's {save.source}" if save.source else "nothing in the log",
        )
        for number, save in enumerate(log.saves)
    )
    rows = log.iterations
    if not len(rows) or np.ma.getmaskarray(rows.wall_ns).any():
        return Saves(timings, None)
    training_ns = int((rows.wall_ns * rows.new).sum())
    if not (rows.disturbed == "save").any():  # no iteration's time contains them
        training_ns += sum(save.wall_ns or 0 for save in log.saves)
    return Saves(timings, training_ns)


class _LogReader:
    """Reads the blocks of one log; a format has a state from its first line on."""

    def __init__(self, moments: MomentsBuilder | None = None) -> None:
        self._log = JobLogBuilder(moments)
        self._states: dict[int, FormatState] = {}

    def read(self, text: bytes) -> None:
        """Read a block of whole lines."""
        state = self._states.get(id(_PLAIN))
        assert _PLAIN.take_plain is not None
        for piece in _PLAIN.take_plain(state, text) if state is not None else (text,):
            for rule, of_rule, line in self.find_lines(piece):
                rule.on_match(of_rule, line)

    def find_lines(self, text: bytes) -> Iterator[tuple[LineRule[Any], FormatState, LineMatch]]:
        """Every match of every rule, in the order of the text; of lines that only prove a framework one is enough."""
        # Most lines are one of a few dozen with other numbers: an anchor that is in none of these is nowhere.
        lines = b"\n".join(set(text.translate(None, _DIGITS).split(b"\n")))
        frameworks = self._log.frameworks
        found: list[tuple[int, int, LineRule[Any], LogFormat[Any], LineMatch]] = []
        for anchor, rules in _RULES.items():
            for number, rule, of_format in rules if anchor in lines else ():
                matches = rule.find(text)
                if rule.on_match is not ignore_line:
                    found += [(line.match.start(), number, rule, of_format, line) for line in matches]
                elif of_format.framework not in frameworks and next(matches, None) is not None:
                    frameworks.add(of_format.framework or "")
        found.sort(key=itemgetter(0, 1))
        states: dict[int, FormatState] = {}  # by the number of a rule that has proved its framework
        for _, number, rule, of_format, line in found:
            state = states.get(number)
            if state is None:
                state = self._states.get(id(of_format)) or of_format.state(self._log)
                self._states[id(of_format)] = states[number] = state
                if rule.identifies and of_format.framework is not None:
                    frameworks.add(of_format.framework)
            yield rule, state, line

    def close(self, path: Path) -> JobLog:
        """Close the formats and make the table."""
        log, name = self._log, parse_file_name(path)
        for fact, value in name.facts.items():
            log.set_fact(fact, value, "name")
        for clock in log.clocks.values():
            clock.close()
        for each in _CLOSED_IN_ORDER:
            if id(each) in self._states:
                each.close(self._states[id(each)])
        source = log.best_source(_SOURCES)
        series = log.series[source] if source is not None else RecordSeries()
        last_iteration, last = log.count("train_iterations"), series.resolved.last
        mixture = log.mixture_of(source)
        if mixture is not None:
            log.add_remark("mixed-jobs", f"{mixture}: no figure is of one job")
        if series.resolved.unnumbered_ranks > 1:
            ranks = series.resolved.unnumbered_ranks
            text = f"{ranks} ranks print records without a number; those of one of them are counted"
            log.add_remark("unnumbered-ranks", text)
        iterations = series.iterations()
        others = [SourceMedian(other, log.series[other].median_ns(), log.median_samples_per_s(other))
                  for other in _SOURCES if other in log.series and other != source and mixture is None]  # fmt: skip
        return JobLog(
            path=str(path),
            framework=self._framework(source),
            iterations=iterations if mixture is None else iterations.without_figures(),
            time_source=source,
            copies=series.resolved.copies,
            redone=series.resolved.redone,
            gaps=series.irregular_gaps,
            unreadable=log.unreadable,
            other_sources=tuple(each for each in others if (each.wall_ns, each.samples_per_s) != (None, None)),
            facts=log.facts(),
            arguments=log.arguments,
            tflops_label=log.tflops_label,
            saves=log.saves.table(),
            timers=log.timers(),
            memory=log.memory(),
            out_of_memory=log.out_of_memory,
            names_run=name.is_run,
            ended=log.bad_end,
            complete=None if last is None or last_iteration is None or mixture is not None else last >= last_iteration,
            remarks=tuple(f"{code}: {text}" for code, text in log.remarks.items()),
            mixture=mixture,
        )

    def _framework(self, source: str | None) -> str | None:
        """The trainer whose step time it is; without one, the first that some line identifies."""
        writer = _SOURCES[source] if source is not None else None
        if writer is None or writer.role is WriterRole.ENGINE:
            identified = (each for each in _CLOSED_IN_ORDER if each.framework in self._log.frameworks)
            writer = next(identified, writer)
        if writer is None:
            return None
        state = self._states.get(id(writer))
        return (state.name if state is not None else None) or writer.name or writer.framework

    def moments_of(self, log: JobLog, moments: MomentsBuilder) -> LoggedMoments:
        """When the records of a log were printed that has been closed."""
        source = log.time_source or ""
        series = self._log.series.get(source, RecordSeries())
        of_format = _SOURCES.get(source)
        names = (*of_format.sources, *of_format.fallbacks) if of_format is not None else ()
        is_fallback = of_format is not None and source in of_format.fallbacks
        are_times_apart = not (series.clock_runs_on or is_fallback)
        if series.covers_gaps:  # a record may stand for several lines, where another source has one for each
            others = [self._log.series[each] for each in names if each in self._log.series]
            each_line = max([series, *others], key=len)
            are_times_apart = are_times_apart and each_line is series
            series, log = each_line, replace(log, iterations=each_line.iterations())
        return moments.table(log, series.moments(), are_times_apart=are_times_apart)
