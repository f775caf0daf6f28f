"""Reads one log of any framework: the rules of all formats are applied to every block of the text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import accumulate, compress, count
from operator import itemgetter
from pathlib import Path
from sys import maxsize
from typing import TypeAlias

import numpy as np

from perfscope.errors import SourceError
from perfscope.sources.joblog.assembly import assemble_log
from perfscope.sources.joblog.content.builder import JobLogBuilder
from perfscope.sources.joblog.log_format import OpenBulkReading, OpenRule
from perfscope.sources.joblog.registry import FORMATS
from perfscope.sources.joblog.repeats.equal_lines import EqualLines, join_equal_lines
from perfscope.sources.joblog.repeats.repeated_text import find_period
from perfscope.sources.joblog.repeats.repetition import ALIKE, Repetition
from perfscope.sources.joblog.rules import LineMatch
from perfscope.sources.joblog.series.iteration_series import RECORDS_KEPT, IterationSeries
from perfscope.sources.joblog.series.moments_builder import MomentsBuilder
from perfscope.sources.joblog.splitting.parallel import split_blocks_between
from perfscope.sources.joblog.splitting.rank_lines import RankLines
from perfscope.sources.joblog.splitting.split_block import SplitBlock
from perfscope.sources.joblog.swept_text import OpenSweep, SweptText
from perfscope.sources.joblog.text.anchors import search_for
from perfscope.sources.joblog.text.blocks import is_uncompressed_text, read_blocks, to_plain_text
from perfscope.tables.joblog import JobLog
from perfscope.tables.logged_moments import LoggedMoments

#: All rules, by the number of the format and that of the rule in it.
_RULES = [
    (format_index, rule_index)
    for format_index, log_format in enumerate(FORMATS)
    for rule_index in range(len(log_format.rules))
]
#: All sweeps, by the number of the format and that of the sweep in it.
_SWEEPS = [
    (format_index, sweep_index)
    for format_index, log_format in enumerate(FORMATS)
    for sweep_index in range(len(log_format.sweeps))
]
_SWEEP_ANCHORS = [sweep.anchors for log_format in FORMATS for sweep in log_format.sweeps]
#: The places of their anchors among all.
_PLACES = [
    range(len(_RULES) + len(before), len(_RULES) + len(before) + len(anchors))
    for before, anchors in zip(accumulate(_SWEEP_ANCHORS, initial=()), _SWEEP_ANCHORS, strict=False)
]
_ANCHORS = (
    *(rule.anchor for log_format in FORMATS for rule in log_format.rules),
    *(anchor for anchors in _SWEEP_ANCHORS for anchor in anchors),
)
#: Those of rules that match more than a line.
_OF_SEVERAL_LINES = [(number, rule) for number, rule in _RULES if FORMATS[number].rules[rule].reach]
_MOST_REPETITIONS_READ = 2 * ALIKE
_MOST_FAILURES = 4
_MOST_BEGINS = 32
_READ_IN_A_ROW = 2
_PIECE = 1 << 15
_LARGE = 1 << 25  # for one process
_LONG = 1 << 22
_RECORDS_BETWEEN_LOOKS = 64
_LINES_BETWEEN_LOOKS = 64
_RECORDS_KEPT_OF_LONG = 1 << 9

#: A match of a rule, and where it begins.
FoundLine: TypeAlias = tuple[int, OpenRule, LineMatch]


def read_log(path: Path) -> JobLog:
    """Read one log.

    Raises:
        SourceError: It cannot be read, or is no text.
    """
    size = path.stat().st_size if path.is_file() else 0
    return _LogReader(_RECORDS_KEPT_OF_LONG if size > _LONG else RECORDS_KEPT).read(path, size)


def read_moments(path: Path) -> LoggedMoments:
    """Read when the iterations of a log ended. Each line is looked at, which takes longer than ``read_log``.

    Raises:
        SourceError: It cannot be read, is of several jobs, or has no line with a time and the number of an iteration.
    """
    moments = MomentsBuilder()
    return _LogReader(maxsize, moments).read_moments(path, moments)


class _LogReader:
    """The formats, opened for one log."""

    def __init__(self, records_kept: int, moments: MomentsBuilder | None = None) -> None:
        self._log = JobLogBuilder(records_kept, moments)
        self._formats = [log_format.open(self._log) for log_format in FORMATS]
        self._bulk = [bulk for log_format in self._formats for bulk in log_format.fast_paths]
        self._bound: dict[int, OpenRule] = {}
        self._uneven = 0

    def read(self, path: Path, size: int) -> JobLog:
        """Read the log: block by block, and in several processes once a fast path may be taken."""
        done = 0
        for text in read_blocks(path):
            is_repeating = self._read_repetitions(text)
            done += len(text)
            bulk = self._bulk_reading() if size - done > _LARGE and not is_repeating else None
            if bulk and self._is_full(bulk) and is_uncompressed_text(path):
                for block in split_blocks_between(path, done, size, bulk.split_text):
                    self._apply(bulk, block)
                break
        return assemble_log(self._log, self._formats, path)

    def read_moments(self, path: Path, moments: MomentsBuilder) -> LoggedMoments:
        """Read the log line by line, and when each record was printed."""
        for block in read_blocks(path):
            text, done = to_plain_text(block), 0
            rules, swept = self._possible_rules(text)
            for _, rule, line in _find_lines(rules, text):
                end = text.find(b"\n", max(line.line, done)) % (len(text) + 1)
                moments.read_times(text[done:end])
                done = end
                swept.apply(rule, line)
            moments.read_times(text[done:])
            swept.sweep_to(len(text))
            self._log.settle()
        moments.end()
        log = assemble_log(self._log, self._formats, path)
        if log.mixture is not None:
            raise SourceError(path, log.mixture)
        series = self._log.series.get(log.time_source or "", IterationSeries())
        of_format = next(
            (each.sources for each in self._formats if any(source.name == log.time_source for source in each.sources)),
            (),
        )
        is_fallback = any(source.name == log.time_source and source.is_fallback for source in of_format)
        are_times_apart = not (series.clock_runs_on or is_fallback)
        if series.covers_gaps:  # a record may stand for several lines, where another source has one for each
            others = [self._log.series[source.name] for source in of_format if source.name in self._log.series]
            each_line = max([series, *others], key=len)
            are_times_apart = are_times_apart and each_line is series
            series, log = each_line, replace(log, iterations=each_line.iterations())
        return moments.table(log, series.moments(), are_times_apart=are_times_apart)

    def _bulk_reading(self) -> OpenBulkReading | None:
        """The fast path of a format whose further records are folded, as those are complete that are kept.

        Else that of a format of which for long no record was a new one.
        """
        series = self._log.series
        for bulk in self._bulk:
            recorded = [series[name] for name in bulk.sources if name in series]
            tells_copies = bulk.are_copies is not None
            if recorded and all(source.is_full or (tells_copies and source.is_repeating) for source in recorded):
                return bulk
        return None

    def _is_full(self, bulk: OpenBulkReading) -> bool:
        series = self._log.series
        return all(series[name].is_full for name in bulk.sources if name in series)

    def _read_repetitions(self, text: bytes) -> bool:
        """Read a block, and count what it repeats instead of reading it; returns whether it did."""
        found = find_period(text) if self._uneven < _MOST_FAILURES else None
        done = _begin_of_period(text[: found[0]]) if found else None
        if found is None or done is None:
            self._read_block(text)
            return False
        period, end = found
        if done:
            self._read_block(text[:done])
        piece, counted = max(_PIECE // period, 1) * period, 0
        while done + _MOST_REPETITIONS_READ * period < end and self._uneven < _MOST_FAILURES:
            read, counted = self._count_repetitions(text, done, period, end)
            done += (read + counted) * period
            if counted:
                break
            last = min(done + piece, done + (end - done) // period * period)
            self._read_block(text[done:last])
            done = last
        self._read_block(text[done:])
        return counted > 0

    def _count_repetitions(self, text: bytes, begin: int, period: int, end: int) -> tuple[int, int]:
        """Read some repetitions, and count the others if these are alike; returns how many were read and counted."""
        repetition, records = None, self._log.records_kept
        for read in range(1, _MOST_REPETITIONS_READ + 1):
            self._read_block(text[begin + (read - 1) * period : begin + read * period])
            if self._log.records_kept != records:
                return read, 0  # these are read one by one
            if repetition is None:
                repetition = Repetition(self._log, [each.state for each in self._formats])
                continue
            repetition.look()
            if repetition.is_even:
                counted = repetition.add((end - begin) // period - read)
                self._uneven = 0 if counted else self._uneven + 1
                return read, counted
        self._uneven += 1
        return _MOST_REPETITIONS_READ, 0

    def _bulk_of_ranks(self) -> OpenBulkReading | None:
        """The fast path that drops copies of other ranks, where many have printed before its records are folded."""
        series = self._log.series
        for bulk in self._bulk:
            counting = series.get(bulk.copies_of[0]) if bulk.copies_of is not None else None
            if counting is not None and counting.are_ranks_in_step:
                return bulk
        return None

    def _drop_copies(self, bulk: OpenBulkReading, text: bytes) -> bytes:
        """A block's plain text without the lines that repeat those of another rank, which are counted."""
        block = bulk.split(text, len(text), np.empty(len(text), np.bool_))
        if block is None or not block.plain.copies or bulk.copies_of is None or "epoch" in block.plain.columns:
            return to_plain_text(text)
        source, compares = bulk.copies_of
        series, copies = self._log.series[source], block.plain.copies
        if not series.all_go_on(block.first_of_labels):
            return to_plain_text(text)
        series.add_copies(copies, copies if compares and block.plain.wall_ns[0] > 0 else 0)
        return block.text()

    def _read_block(self, text: bytes) -> None:
        bulk = self._bulk_reading()
        if bulk is None and (printing := self._bulk_of_ranks()) is not None:
            self._apply_until_full(self._drop_copies(printing, text), has_copies=False)
        elif bulk is None:
            self._apply_until_full(to_plain_text(text))
        else:
            self._apply_text(bulk, text)

    def _apply_text(self, bulk: OpenBulkReading, text: bytes) -> None:
        for block in bulk.split_text(text, len(text), np.empty(len(text), np.bool_)):
            self._apply(bulk, block)

    def _apply(self, bulk: OpenBulkReading, block: SplitBlock | bytes) -> None:
        """Apply a block, or what it was split from: where what all ranks print is not what all have printed before."""
        if not isinstance(block, bytes) and block.ranks and not self._are_in_step(bulk, block.ranks):
            text = block.ranks.of_all_ranks
            block = bulk.split(text, len(text), np.empty(len(text), np.bool_)) or text
        if isinstance(block, bytes):
            self._apply_rules(to_plain_text(block))
        elif block.plain.copies and not (self._is_full(bulk) and self._all_go_on(bulk, block)):
            self._apply_rules(block.original)
        else:
            self._apply_split(bulk, block)

    def _apply_rules(self, text: bytes) -> None:
        lines, swept, joined = self._find_lines(text)
        for _, rule, line in lines:
            self._apply_line(rule, line, swept, joined)
        swept.sweep_to(len(text))

    def _find_lines(self, text: bytes) -> tuple[list[FoundLine], SweptText, EqualLines | None]:
        """The lines that rules match, in a text without most of the equal lines in a row where that says the same."""
        rules, swept = self._possible_rules(text)
        joined = None if swept.has_sweeps else join_equal_lines(text, _READ_IN_A_ROW)
        if joined is not None:
            lines = _find_lines(rules, joined.text)
            if not any(rule.counts_lines for _, rule, _ in lines):
                return lines, swept, joined
        return _find_lines(rules, text), swept, None

    def _apply_line(self, rule: OpenRule, line: LineMatch, swept: SweptText, joined: EqualLines | None) -> None:
        labels = joined.further.get(line.line, ()) if joined else ()
        if labels:
            apply = partial(rule.apply, line)
            self._log.apply_to_equal_lines(apply, line.label, labels, _READ_IN_A_ROW + len(labels))
        else:
            swept.apply(rule, line)

    def _apply_until_full(self, text: bytes, *, has_copies: bool = True) -> None:
        """Apply the rules up to where a fast path may be taken, and take it; before, drop the copies of ranks."""
        done, next_look = 0, _RECORDS_BETWEEN_LOOKS
        lines, swept, joined = self._find_lines(text)
        for number, (_, rule, line) in enumerate(lines, start=1):
            if number >= next_look and line.line >= done:
                next_look = number + _RECORDS_BETWEEN_LOOKS
                bulk, printing = self._bulk_reading(), self._bulk_of_ranks() if has_copies else None
                if bulk is not None or printing is not None:
                    swept.sweep_to(line.line)
                    rest = joined.text_from(line.line) if joined else text[line.line :]
                    if bulk is not None:
                        self._apply_text(bulk, rest)
                    elif printing is not None:
                        self._apply_until_full(self._drop_copies(printing, rest), has_copies=False)
                    return
            self._apply_line(rule, line, swept, joined)
            done = line.match.end()
        swept.sweep_to(len(text))

    def _possible_rules(self, text: bytes) -> tuple[list[OpenRule], SweptText]:
        """The rules whose anchors the text contains, without those that only prove a framework: these are applied.

        With them come the sweeps whose anchors it contains.
        """
        rules, frameworks = [], self._log.frameworks
        is_possible = search_for(_ANCHORS).find(text)
        for index in compress(count(), is_possible[: len(_RULES)]):
            rule = self._bound.get(index) or self._bound.setdefault(index, self._bind(index))
            if rule.proves is None:
                rules.append(rule)
            elif rule.proves not in frameworks and next(iter(rule.find(text)), None):
                frameworks.add(rule.proves)
        sweeps = [
            OpenSweep(_SWEEP_ANCHORS[index], self._formats[format_index].sweeps[sweep_index])
            for index, (format_index, sweep_index) in enumerate(_SWEEPS)
            if any(is_possible[first] for first in _PLACES[index])
        ]
        return rules, SweptText(text, sweeps)

    def _bind(self, index: int) -> OpenRule:
        format_index, rule_index = _RULES[index]
        return self._formats[format_index].bind(rule_index)

    def _all_go_on(self, bulk: OpenBulkReading, block: SplitBlock) -> bool:
        """Whether no rank goes back between the lines before and a block: what it prints then is no copy."""
        recorded = [self._log.series[name] for name in bulk.sources if name in self._log.series]
        is_comparable = "epoch" not in block.plain.columns
        return not (is_comparable and any(series.any_goes_back(block.first_of_labels) for series in recorded))

    def _are_in_step(self, bulk: OpenBulkReading, ranks: RankLines) -> bool:
        """Whether all ranks have printed the last record, so that what all print next can be read once."""
        recorded = [self._log.series[name] for name in bulk.sources if name in self._log.series]
        return self._is_full(bulk) and all(series.ranks_in_step(ranks.names) is not None for series in recorded)

    def _add_plain(self, bulk: OpenBulkReading, block: SplitBlock, first: int, last: int) -> None:
        """Add plain lines at once, or one by one where they may be records that are to be kept."""
        while first < last:
            add = partial(bulk.add, block.plain, first, last)
            if block.ranks is None:
                if self._is_full(bulk) or (bulk.are_copies is not None and bulk.are_copies(block.plain, first, last)):
                    add()
                    return
            elif self._is_full(bulk) and self._log.add_for_ranks(block.ranks.names, bulk.sources, add):
                return
            stop = last if block.ranks is None else min(first + _LINES_BETWEEN_LOOKS, last)
            text = block.plain_text(first, stop)
            self._apply_rules(block.ranks.of_same_ranks(text) if block.ranks else text)
            first = stop

    def _apply_split(self, bulk: OpenBulkReading, block: SplitBlock) -> None:
        """Add the plain lines and apply the rules to the rest, in the order of the text."""
        done = 0
        rules, swept = self._possible_rules(block.rest)
        lines = _find_lines(rules, block.rest)
        places = block.plain_before_each([start for start, _, _ in lines])
        for before, (_, rule, line) in zip(places, lines, strict=True):
            if before > done:
                self._add_plain(bulk, block, done, before)
                done = before
            swept.apply(rule, line)
        swept.sweep_to(len(block.rest))
        self._add_plain(bulk, block, done, len(block.plain.wall_ns))


def _find_lines(rules: Iterable[OpenRule], text: bytes) -> list[FoundLine]:
    """Every match of every rule with its place in the text, in that order."""
    matches = [(line.match.start(), rule, line) for rule in rules for line in rule.find(text)]
    return sorted(matches, key=itemgetter(0))


def _begin_of_period(lines: bytes) -> int | None:
    """Where to begin with lines that follow each other again, so that no rule matches across their end."""
    text = to_plain_text(2 * lines)
    rules = [FORMATS[number].rules[rule] for number, rule in _OF_SEVERAL_LINES]
    spans = [line.match.span() for rule in rules if rule.anchor in text for line in rule.find(text)]
    begin = 0
    for _ in range(_MOST_BEGINS):
        places = (begin, begin + len(lines))
        if not any(first < place < last for first, last in spans for place in places):
            return begin
        begin = text.find(b"\n", begin, len(lines)) + 1
        if not begin or len(text) != 2 * len(lines):
            break
    return None
