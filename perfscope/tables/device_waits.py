"""What streams and the host waited for, as the profiler records it."""

from __future__ import annotations

from msgspec import Struct

from perfscope.tables.columns import Int64


class DeviceWaits(Struct, frozen=True, eq=False):
    """Waits for an event of the device, as ``enable_cuda_sync_events`` of torch.profiler records them.

    Attributes:
        correlation: The id of the call that waits, or that lets a stream wait.
        stream: The stream that waits, or ABSENT where the host does.
        record_correlation: The id of the call that recorded the event, or ABSENT.
        record_stream: The stream on which it was recorded, or ABSENT.
    """

    correlation: Int64
    stream: Int64
    record_correlation: Int64
    record_stream: Int64

    def __len__(self) -> int:
        return len(self.correlation)
