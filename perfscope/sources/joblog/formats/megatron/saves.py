"""What Megatron prints beside its iterations: starts, checkpoint saves, evaluations, memory."""

from __future__ import annotations

import re

from perfscope.constants import MIB, NS_PER_MS
from perfscope.sources.joblog.log_format import FormatState
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.text.line_fields import parse_number
from perfscope.tables.joblog import Disturbance

_RANK_LINES_REACH = 1 << 16
_RANK_TIME = re.compile(rb" rank +\d+: ([\d.]+)")


def _on_start(state: FormatState, _line: LineMatch) -> None:
    state.log.on_restart()


def _on_save_begin(state: FormatState, line: LineMatch) -> None:
    state.log.on_disturbance(Disturbance.SAVE)
    iteration = parse_number(line[1])
    path = line[2].decode("utf-8", "replace").strip() or None
    state.log.saves.on_begin(None if iteration is None else int(iteration), path, line.timestamp_ns)


def _on_save_end(state: FormatState, line: LineMatch) -> None:
    """``successfully saved checkpoint from iteration 10``: a later save may have begun since."""
    state.log.saves.on_end(parse_number(line[1]), line.timestamp_ns)


def _on_save_scheduled(state: FormatState, line: LineMatch) -> None:
    state.log.saves.on_scheduled(line.timestamp_ns)


def _on_save_timer(state: FormatState, line: LineMatch) -> None:
    """The slowest rank's time: the second of a pair (min, max), the only one, or the largest of a line a rank."""
    times = [parse_number(text) for text in _RANK_TIME.findall(line["ranks"])]
    printed = parse_number(line["slowest"] or line["only"])
    slowest = max((time for time in times if time is not None), default=printed)
    if slowest is not None and slowest > 0:
        state.log.saves.set_time(round(slowest * NS_PER_MS), "timer")


def _on_evaluation(state: FormatState, _line: LineMatch) -> None:
    state.log.on_disturbance(Disturbance.EVALUATION)


def _on_memory(state: FormatState, line: LineMatch) -> None:
    """Megatron divides by 2**20 and writes MB."""
    allocated, reserved = parse_number(line[1]), parse_number(line[2])
    state.log.add_memory(
        allocated=None if allocated is None else allocated * MIB, reserved=None if reserved is None else reserved * MIB
    )


RULES = (
    Rule(b"[before the start of training step]", re.compile(rb"\[before the start of training step\]"), _on_start),
    Rule(
        b"saving checkpoint at iteration",
        re.compile(rb"saving checkpoint at iteration\s+(\d+)(?: to (\S+))?"),
        _on_save_begin,
    ),
    Rule(
        b"successfully saved checkpoint",
        re.compile(rb"successfully saved checkpoint(?: (?:from|at) iteration\s+(\d+))?"),
        _on_save_end,
        identifies=False,
    ),
    Rule(
        b"save-checkpoint",
        re.compile(
            rb"save-checkpoint(?: \.*)?: *(?:\([\d.]+, *(?P<slowest>[\d.]+)\)|(?P<only>[\d.]+)"
            rb"|(?P<ranks>(?:\n[^\n]{0,40}? rank +\d+: [\d.]+)+))"
        ),
        _on_save_timer,
        reach=_RANK_LINES_REACH,
        begin=(b"save-checkpoint",),
        identifies=False,
    ),
    Rule(
        b"an async checkpoint save",
        re.compile(rb"scheduled an async checkpoint save"),
        _on_save_scheduled,
        identifies=False,
    ),
    Rule(b"validation loss at ", re.compile(rb"validation loss at (?:iteration )?"), _on_evaluation, identifies=False),
    Rule(
        b"validation results at ",
        re.compile(rb"validation results at iteration"),
        _on_evaluation,
        identifies=False,
    ),
    Rule(
        b"memory (MB) |",
        re.compile(rb"memory \(MB\) \|[^\n]{0,60}?max allocated: ([\d.]+) \|[^\n]{0,60}?max reserved: ([\d.]+)"),
        _on_memory,
        identifies=False,
        begin=(b"memory (MB) |",),
    ),
)
