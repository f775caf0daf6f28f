"""Lines that any job's log can hold: how it ended, memory by nvidia-smi, figures that launch scripts print."""

from __future__ import annotations

import re

from perfscope.constants import GIB, KIB, MIB
from perfscope.sources.joblog.log_format import (
    FormatState,
    LineMatch,
    LineRule,
    LogFormat,
    OnMatch,
    counts,
    uses_memory,
)
from perfscope.sources.joblog.text import parse_number

_UNITS = {b"MiB": MIB, b"GiB": GIB, b"KiB": KIB}
_LENGTH_OPTION = re.compile(
    rb"(?<![\w-])(?:--)?(?:max[_-])?seq(?:uence)?[_-]len(?:gth)?(?![\w-])['\"]?(?:\s{0,40}+[=:]\s{0,40}+|\s{1,40}+)"
    rb"(\d{1,15})(?![\w.])"
)
_CAPACITY = re.compile(rb"([\d.]+) ([KMG]iB) total capacity|total capacity of ([\d.]+) ([KMG]iB)")


def _on_device_out_of_memory(state: FormatState, line: LineMatch) -> None:
    state.log.out_of_memory = "device"
    state.log.on_bad_end("the device ran out of memory")
    capacity = _CAPACITY.search(line.full_line)
    if capacity:
        state.log.add_memory(_UNITS[capacity[2] or capacity[4]], total=parse_number(capacity[1] or capacity[3]))


def _on_host_out_of_memory(state: FormatState, _line: LineMatch) -> None:
    state.log.out_of_memory = state.log.out_of_memory or "host"
    state.log.on_bad_end("the host ran out of memory")


def _ends(reason: str) -> OnMatch:
    """What reports a bad end."""
    return lambda state, _line: state.log.on_bad_end(reason)


FORMAT = LogFormat(
    framework=None,
    state=FormatState,
    rules=(
        LineRule(b"MiB / ", rb"(\d{1,9})MiB / {1,9}(\d{1,9})MiB", uses_memory(MIB, "used", "total"), span=(9, 40)),
        LineRule(b"CUDA out of memory", b"", _on_device_out_of_memory),
        LineRule(b"OutOfMemoryError", b"", _on_device_out_of_memory),
        LineRule(b"oom-kill", rb"oom[-_]kill", _on_host_out_of_memory),
        LineRule(b"out-of-memory handler", b"", _on_host_out_of_memory),
        LineRule(
            b"DUE TO TIME LIMIT",
            rb"CANCELLED AT .* DUE TO TIME LIMIT",
            _ends("SLURM cancelled it at its time limit"),
            begin=(b"CANCELLED AT",),
        ),
        LineRule(b"CANCELLED AT", b"", _ends("it was cancelled")),
        LineRule(b"Traceback (most recent", rb"Traceback \(most recent call last\)", _ends("it raised an exception")),
        LineRule(b"ChildFailedError", b"", _ends("a process of it failed")),
        LineRule(b"srun: error", b"", _ends("srun reports an error")),
        LineRule(b"equence length", rb"[Ss]equence length[ :=]+(\d+)", counts("seq_len")),
        *(
            LineRule(anchor, _LENGTH_OPTION, counts("seq_len", "command line"), span=(6, 120))
            for anchor in (b"seq_len", b"seq-len", b"sequence_len", b"sequence-len")
        ),
    ),
)
