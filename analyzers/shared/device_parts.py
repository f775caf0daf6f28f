"""Where a window of a device went: the parts that add up to it, and how they are measured."""

from __future__ import annotations

from msgspec import Struct

from perfscope.analyzers.shared.intervals import covered
from perfscope.constants import NS_PER_MS, NS_PER_US
from perfscope.report import Cell, Column, Json, percent, percent_of
from perfscope.tables.trace import DeviceEvents, Work


class Parts(Struct, frozen=True, array_like=True):
    """Where a window went, in nanoseconds.

    ``compute + exposed_communication + exposed_copy + idle`` is the window.
    """

    window: int
    compute: int
    communication: int
    copy: int
    exposed_communication: int
    exposed_copy: int
    idle: int

    def __add__(self, addend: Parts) -> Parts:
        # Field by field: many ranks have many steps, and to walk over the names of the fields takes five times as long.
        return Parts(
            self.window + addend.window,
            self.compute + addend.compute,
            self.communication + addend.communication,
            self.copy + addend.copy,
            self.exposed_communication + addend.exposed_communication,
            self.exposed_copy + addend.exposed_copy,
            self.idle + addend.idle,
        )

    @property
    def overlap_fraction(self) -> float | None:
        """The share of communication time during which compute runs; absent without communication."""
        return (self.communication - self.exposed_communication) / self.communication if self.communication else None

    def data(self) -> dict[str, Json]:
        """The parts as microseconds."""
        return {
            "window_us": self.window / NS_PER_US,
            "compute_us": self.compute / NS_PER_US,
            "communication_us": self.communication / NS_PER_US,
            "copy_us": self.copy / NS_PER_US,
            "exposed_communication_us": self.exposed_communication / NS_PER_US,
            "exposed_copy_us": self.exposed_copy / NS_PER_US,
            "idle_us": self.idle / NS_PER_US,
            "overlap_fraction": self.overlap_fraction,
        }

    def cells(self) -> tuple[Cell, ...]:
        """The parts as a row of a table."""
        parts = (self.compute, self.exposed_communication, self.exposed_copy, self.idle)
        return (
            self.window / NS_PER_MS,
            *(percent_of(part, self.window) for part in parts),
            self.communication / NS_PER_MS,
            percent(self.overlap_fraction),
        )


class StepParts(Struct, frozen=True, array_like=True):
    """Where one step's window went.

    Attributes:
        name: The step.
        parts: Its time on the device.
        host: How long the host was in it, in nanoseconds.
    """

    name: str
    parts: Parts
    host: int

    def data(self) -> dict[str, Json]:
        """One entry of a rank's ``steps``."""
        return {"name": self.name, "host_us": self.host / NS_PER_US, **self.parts.data()}


#: The columns of ``Parts.cells``.
COLUMNS = (
    Column("Window (ms)", 2),
    Column("Compute (%)"),
    Column("Exposed comm. (%)"),
    Column("Exposed copy (%)"),
    Column("Idle (%)"),
    Column("Comm. (ms)", 2),
    Column("Hidden comm. (%)"),
)


def split(events: DeviceEvents) -> Parts:
    """Where the window of some device events went; their window is from the first start to the last end."""
    compute, communication, copies = (
        covered(events, events.is_work(*kinds))
        for kinds in ((Work.COMPUTE, Work.FUSED), (Work.COMMUNICATION, Work.FUSED), (Work.COPY,))
    )
    window = int(events.end_ns.max() - events.start_ns.min())
    exposed_communication = (communication - compute).measure
    busy = compute | communication
    exposed_copy = (copies - busy).measure
    return Parts(
        window=window,
        compute=compute.measure,
        communication=communication.measure,
        copy=copies.measure,
        exposed_communication=exposed_communication,
        exposed_copy=exposed_copy,
        idle=window - (busy | copies).measure,
    )
