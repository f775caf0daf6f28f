"""DeepSpeed's checkpoint saves and memory figures."""

from __future__ import annotations

import re

from perfscope.constants import GIB
from perfscope.sources.joblog.log_format import FormatState
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.text.line_fields import parse_number
from perfscope.tables.joblog import Disturbance

_STEP = re.compile(rb"global_step(\d+)")


def _on_save_begin(state: FormatState, line: LineMatch) -> None:
    """DeepSpeed prints no duration: it is from the first file's beginning to the last file's end."""
    path = line[1]
    step = _STEP.search(path)
    iteration = int(step[1]) if step else None
    if not state.log.saves.is_last(iteration):
        state.log.saves.on_begin(iteration, path.decode("utf-8", "replace").strip() or None, line.timestamp_ns)
        state.log.on_disturbance(Disturbance.SAVE)


def _on_file_written(state: FormatState, line: LineMatch) -> None:
    state.log.saves.on_file_written(line.timestamp_ns)


def _on_memory(state: FormatState, line: LineMatch) -> None:
    """DeepSpeed divides by 2**30 and writes GB."""
    allocated = parse_number(line[1])
    state.log.add_memory(allocated=None if allocated is None else allocated * GIB)


RULES = (
    Rule(b"Saving model checkpoint:", re.compile(rb"Saving model checkpoint: (\S+)"), _on_save_begin),
    Rule(b"[Torch] Saved ", re.compile(rb"\[Torch\] Saved (\S+)"), _on_file_written, identifies=False),
    Rule(b"Max_MA ", re.compile(rb"Max_MA ([\d.]+) GB"), _on_memory, identifies=False),
    Rule(b"MaxMemAllocated=", re.compile(rb"MaxMemAllocated=([\d.]+)\s*GB"), _on_memory, identifies=False),
)
