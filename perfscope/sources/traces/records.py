"""The raw keys of a torch.profiler (Kineto) trace, as typed records.

Events are decoded straight into these; no dictionary is made for any of them.
"""

from __future__ import annotations

import msgspec

from perfscope.tables.trace import ABSENT, Events

KERNEL, COPY, FILL = range(3)
DEVICE_CATEGORIES = {"kernel": KERNEL, "gpu_memcpy": COPY, "gpu_memset": FILL}
_CALL_CATEGORIES = (
    "cuda_runtime", "cuda_driver", "hip_runtime", "hip_driver", "xpu_runtime", "xpu_driver", "privateuse1_runtime",
    "privateuse1_driver",
)  # fmt: skip
#: The kind of event behind each category that exporters write; other categories are not read.
KIND = {
    **dict.fromkeys(DEVICE_CATEGORIES, Events.DEVICE),
    **dict.fromkeys(_CALL_CATEGORIES, Events.CALLS),
    "user_annotation": Events.ANNOTATIONS,
    "ProfilerStep": Events.ANNOTATIONS,
    "cpu_op": Events.OPERATORS,
    "python_function": Events.FRAMES,
}


class Args(msgspec.Struct, gc=False, frozen=True, rename={
    "external_id": "External id", "operation": "Collective name", "group": "Process Group Name",
    "description": "Process Group Description", "ranks": "Process Group Ranks", "group_size": "Group size",
    "in_elements": "In msg nelems", "out_elements": "Out msg nelems", "sequence": "Seq", "source": "Src Rank",
    "destination": "Dst Rank", "old_external_id": "external id", "in_split": "In split size",
    "out_split": "Out split size", "number": "Sequence number", "forward_thread": "Fwd thread id",
}):  # fmt: skip
    """The arguments of an event of any kind that an analysis may need."""

    external_id: int | None = ABSENT
    device: int | None = ABSENT
    stream: int | str | None = ABSENT  # ROCm writes the address of some
    correlation: int | None = ABSENT
    bytes: int | None = ABSENT
    operation: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    dtype: str | None = None
    group: str | None = None
    description: str | None = None
    ranks: str | None = None
    source: int | None = None
    destination: int | None = None
    sequence: int | None = None
    in_split: str | None = None
    out_split: str | None = None
    old_external_id: int | None = ABSENT
    grid: msgspec.Raw = msgspec.Raw(b"")
    number: int | None = ABSENT
    forward_thread: int | None = ABSENT


class ShapedArgs(Args, gc=False, frozen=True, rename={
    "dims": "Input Dims", "strides": "Input Strides", "types": "Input type", "values": "Concrete Inputs",
}):  # fmt: skip
    """The arguments of an event with the inputs of an operator, as they are written."""

    dims: msgspec.Raw = msgspec.Raw(b"")
    strides: msgspec.Raw = msgspec.Raw(b"")
    types: msgspec.Raw = msgspec.Raw(b"")
    values: msgspec.Raw = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """One event; its time is a double: exact where it is whole microseconds, or below 2**43 of them."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: int | str | None = ABSENT
    tid: int | str | None = ABSENT
    ts: float | None = None
    dur: float | None = None
    args: Args | None = Args()


class ShapedEvent(Event, gc=False):
    """One event with the inputs of an operator."""

    args: ShapedArgs | None = ShapedArgs()


class TimedEvent(msgspec.Struct, gc=False):
    """When a thread was inside an operator or a Python function."""

    name: str = ""
    tid: int | str | None = ABSENT
    ts: float | None = None
    dur: float | None = None


class Group(msgspec.Struct):
    """A process group in the trace's head."""

    pg_name: str = ""
    pg_desc: str = ""
    pg_size: int = 0
    ranks: list[int] = []


class DistributedInfo(msgspec.Struct):
    """The profiler's metadata on torch.distributed."""

    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    pg_config: list[Group] = []


class TraceDevice(msgspec.Struct, rename={"processors": "numSms"}):
    """A GPU of the machine."""

    id: int = 0
    name: str = ""
    processors: int = 0
