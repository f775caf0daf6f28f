"""Tells traces of other tools, in Chrome's format, from those of torch.profiler that hold nothing of a device."""

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
#: A process of torch_npu's profiler, which writes a bare list, and operators of PyTorch, too.
_OF_NPU = b'"Ascend Hardware"'
_PHASE = re.compile(rb'"ph"\s*:\s*"[XBEbe]"')
_PROCESS = re.compile(
    rb'"process_name"[^{}]*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")'
    rb'|\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*\}[^{}]*"process_name"'
)


def refuse_other_tools(path: str, *, holds_events: bool) -> None:
    """Refuse a file without events of a device that another tool wrote.

    Args:
        path: The file.
        holds_events: Whether it holds events on the host, as torch.profiler writes them.

    Raises:
        NotATrace: It is that; its processes are named where it names them.
    """
    rest, has_events, is_of_torch = b"", False, holds_events
    is_list: bool | None = None
    processes: dict[str, None] = {}
    for block in read_blocks(path, []):
        text = rest + block
        is_list = text.lstrip().startswith(b"[") if is_list is None else is_list
        is_of_torch = is_of_torch or _OF_TORCH.search(text) is not None
        if is_list and _OF_NPU in text:
            raise NotATrace(path, "is a trace of an Ascend NPU", hint="perfscope reads those of torch.profiler")
        if is_of_torch and not is_list:
            return
        has_events = has_events or _PHASE.search(text) is not None
        processes |= {json.loads(match[1] or match[2]): None for match in _PROCESS.finditer(text)}
        rest = block[-_OVERLAP_BYTES:]
    if has_events and not is_of_torch:
        listed = ", ".join(list(processes)[:_MOST_NAMED])
        of_what = f" ({listed})" if listed else ""
        hint = "perfscope reads those of torch.profiler"
        raise NotATrace(
            path, f"is a trace of another tool{of_what}: torch.profiler writes none of its events", hint=hint
        )
