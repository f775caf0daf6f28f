"""Tells traces of other tools, in Chrome's format, from those of torch.profiler that hold nothing to analyze."""

from __future__ import annotations

import json
import re

from perfscope.errors import NotATrace
from perfscope.sources.traces.inflate import read_blocks
from perfscope.sources.traces.records import KIND

_OVERLAP_BYTES = 256
_MOST_NAMED = 3
#: What torch.profiler writes around its events, and the categories of some that perfscope does not read.
_OF_TORCH = re.compile(
    rb'"(?:schemaVersion|deviceProperties|distributedInfo|baseTimeNanoseconds|record_shapes)"'
    rb'|"cat"\s*:\s*"(?:Trace|overhead|ac2g|fwdbwd|cpu_instant_event|gpu_user_annotation|'
    + "|".join(KIND).encode()
    + rb')"'
)
_PHASE = re.compile(rb'"ph"\s*:\s*"[XBEbe]"')
_PROCESS = re.compile(
    rb'"process_name"[^{}]*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")'
    rb'|\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*\}[^{}]*"process_name"'
)


def refuse_other_tools(path: str) -> None:
    """Refuse a file with timed events, none of which torch.profiler writes.

    Raises:
        NotATrace: It is that; its processes are named where it names them.
    """
    rest, has_events = b"", False
    processes: dict[str, None] = {}
    for block in read_blocks(path, []):
        text = rest + block
        if _OF_TORCH.search(text):
            return
        has_events = has_events or _PHASE.search(text) is not None
        processes |= {json.loads(match[1] or match[2]): None for match in _PROCESS.finditer(text)}
        rest = block[-_OVERLAP_BYTES:]
    if has_events:
        listed = ", ".join(list(processes)[:_MOST_NAMED])
        of_what = f" ({listed})" if listed else ""
        hint = "perfscope reads those of torch.profiler, of JAX and of torch_npu"
        raise NotATrace(
            path, f"is a trace of another tool{of_what}: torch.profiler writes none of its events", hint=hint
        )
