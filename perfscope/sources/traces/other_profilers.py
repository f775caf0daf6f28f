"""What a file holds in which torch.profiler recorded nothing on a device: a profile of something else, perhaps.

Loaded by name where there is one: most commands read traces of torch.profiler alone.
"""

from __future__ import annotations

from perfscope.sources.traces.ascend import is_of_ascend, read_ascend
from perfscope.sources.traces.jax import is_export, read_export, read_xplane
from perfscope.sources.traces.other_tools import refuse_other_tools
from perfscope.tables.trace import Trace

__all__ = ["read_other", "read_xplane"]


def read_other(path: str, trace: Trace) -> Trace:
    """A file's profile of another profiler, or the trace without device events that it was read as.

    Raises:
        SourceError: It is of a tool that is not read, or cannot be read.
    """
    has_calls = bool(len(trace.calls) or len(trace.annotations))
    if not has_calls and is_export(path):
        return read_export(path)
    if is_of_ascend(path):
        return read_ascend(path, trace.rank)
    if not has_calls and not len(trace.operators):
        refuse_other_tools(path)
    return trace
