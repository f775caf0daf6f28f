"""Lines that any job's log can hold: how it ended, memory by nvidia-smi, figures that launch scripts print."""

from __future__ import annotations

import re
from collections.abc import Callable

from perfscope.constants import GIB, KIB, MIB
from perfscope.sources.joblog.log_format import Format, FormatState
from perfscope.sources.joblog.rules import LineMatch, Rule
from perfscope.sources.joblog.text import parse_number

_UNITS = {b"MiB": MIB, b"GiB": GIB, b"KiB": KIB}
_LENGTH_OPTION = re.compile(
    rb"(?<![\w-])(?:--)?(?:max[_-])?seq(?:uence)?[_-]len(?:gth)?(?![\w-])['\"]?(?:\s{0,40}+[=:]\s{0,40}+|\s{1,40}+)"
    rb"(\d{1,15})(?![\w.])"
)
_CAPACITY = re.compile(rb"([\d.]+) ([KMG]iB) total capacity|total capacity of ([\d.]+) ([KMG]iB)")


def _on_smi_memory(state: FormatState, line: LineMatch) -> None:
    state.log.add_memory(used=_scaled(line[1], MIB), total=_scaled(line[2], MIB))


def _on_device_out_of_memory(state: FormatState, line: LineMatch) -> None:
    state.log.out_of_memory = "device"
    state.log.on_bad_end("the device ran out of memory")
    capacity = _CAPACITY.search(line.full_line)
    if capacity:
        state.log.add_memory(total=_scaled(capacity[1] or capacity[3], _UNITS[capacity[2] or capacity[4]]))


def _on_host_out_of_memory(state: FormatState, _line: LineMatch) -> None:
    state.log.out_of_memory = state.log.out_of_memory or "host"
    state.log.on_bad_end("the host ran out of memory")


def _bad_end(reason: str) -> Callable[[FormatState, LineMatch], None]:
    """Make the function of a line that reports a bad end."""

    def on_match(state: FormatState, _line: LineMatch) -> None:
        state.log.on_bad_end(reason)

    return on_match


def _on_model_size(state: FormatState, line: LineMatch) -> None:
    """Launch scripts once printed the size in units of 2**30 and called them B."""
    size = parse_number(line[1])
    if size is not None and not state.log.has_fact("model_size_line"):
        state.log.set_fact("model_size_line", size, "log")


def _on_sequence_length(state: FormatState, line: LineMatch) -> None:
    state.log.set_count("seq_len", line[1], "log")


def _on_length_option(state: FormatState, line: LineMatch) -> None:
    """``--max_seq_len 512`` in a command, ``max_seq_len=512`` or ``'max_seq_len': 512`` in printed arguments."""
    state.log.set_count("seq_len", line[1], "command line")


def _scaled(text: bytes, unit: int) -> float | None:
    value = parse_number(text)
    return None if value is None else value * unit


FORMAT = Format(
    framework=None,
    state=FormatState,
    rules=(
        Rule(b"MiB / ", re.compile(rb"(\d{1,9})MiB / {1,9}(\d{1,9})MiB"), _on_smi_memory, span=(9, 40)),
        Rule(b"CUDA out of memory", re.compile(rb"CUDA out of memory"), _on_device_out_of_memory),
        Rule(b"OutOfMemoryError", re.compile(rb"OutOfMemoryError"), _on_device_out_of_memory),
        Rule(b"oom-kill", re.compile(rb"oom[-_]kill"), _on_host_out_of_memory),
        Rule(b"out-of-memory handler", re.compile(rb"out-of-memory handler"), _on_host_out_of_memory),
        Rule(
            b"DUE TO TIME LIMIT",
            re.compile(rb"CANCELLED AT .* DUE TO TIME LIMIT"),
            _bad_end("SLURM cancelled it at its time limit"),
            begin=(b"CANCELLED AT",),
        ),
        Rule(b"CANCELLED AT", re.compile(rb"CANCELLED AT"), _bad_end("it was cancelled")),
        Rule(
            b"Traceback (most recent",
            re.compile(rb"Traceback \(most recent call last\)"),
            _bad_end("it raised an exception"),
        ),
        Rule(b"ChildFailedError", re.compile(rb"ChildFailedError"), _bad_end("a process of it failed")),
        Rule(b"srun: error", re.compile(rb"srun: error"), _bad_end("srun reports an error")),
        Rule(b"Model size:", re.compile(rb"Model size: (\d+(?:\.\d+)?)B\b"), _on_model_size),
        Rule(b"equence length", re.compile(rb"[Ss]equence length[ :=]+(\d+)"), _on_sequence_length),
        *(
            Rule(anchor, _LENGTH_OPTION, _on_length_option, span=(6, 120))
            for anchor in (b"seq_len", b"seq-len", b"sequence_len", b"sequence-len")
        ),
    ),
)
